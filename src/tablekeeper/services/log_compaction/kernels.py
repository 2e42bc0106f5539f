"""The kernel of log compaction: the log blocks of one slice become blocks of one new log file.

The new blocks name the instants whose blocks they stand in for, and readers put them where the newest of those stands.
They hold the winning change of each key, deletes included, so that they merge with the base file and with later
blocks exactly as the originals do. Rows keep their commit times.

Partial updates cannot be merged without the rows that they build on: a slice with such blocks is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from tablekeeper.format.column_stats import merge_column_ranges
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.model import FileSlice, WriteStat
from tablekeeper.read.log_changes import PartialRows
from tablekeeper.read.spilled_changes import park_changes
from tablekeeper.record.merge import Deletes, collapse
from tablekeeper.write.context import WriteContext
from tablekeeper.write.log_files import LOG_VERSION, encode_data_block, log_column_ranges, log_name, publish_log
from tablekeeper.write.results import WrittenFile

__all__ = ["LogCompactionTask", "compact_logs"]

# What logs may take, as they are stored, of the memory of a task.
_LOG_SHARE = 2


@dataclass(frozen=True)
class LogCompactionTask:
    """Merge the logs of one slice. `number` goes into the name of the new file."""

    context: WriteContext
    file_slice: FileSlice
    number: int


def compact_logs(task: LogCompactionTask) -> tuple[WrittenFile, ...]:
    """Kernel: write the log file that stands in for the slice's logs; nothing if there is nothing to merge.

    Logs that do not fit into memory are merged by ranges of key hashes (`read/spilled_changes.py`), and the result is
    cut into several files, because a reader loads one file at a time.
    """
    task.context.check()
    context = task.context
    limit_bytes = max(1, context.within_memory().settings.task_memory_bytes // _LOG_SHARE)
    if sum(log.size for log in task.file_slice.logs) > limit_bytes:
        return _compact_by_lanes(task, limit_bytes)
    loaded = context.load_changes(task.file_slice.logs, context.file_schema)
    if loaded.has_partial_rows or not loaded.changes:
        return ()
    files = _NewLogs(task, loaded.instants, limit_bytes=limit_bytes)
    files.add(collapse(loaded.changes, context.rule, schema=context.file_schema).as_changes())
    return files.close()


def _compact_by_lanes(task: LogCompactionTask, limit_bytes: int) -> tuple[WrittenFile, ...]:
    context = task.context
    parked, instants = park_changes(
        context.store.storage,
        task.file_slice.logs,
        limit_bytes=limit_bytes,
        schema=context.file_schema,
        rule=context.rule,
        key=context.key,
        visibility=context.blocks,
    )
    with closing(parked):
        if parked.has_partial_rows:
            return ()
        files = _NewLogs(task, instants, limit_bytes=limit_bytes)
        for lane in range(len(parked)):
            changes = [each for each in parked.load(lane) if not isinstance(each, PartialRows)]
            files.add(collapse(changes, context.rule, schema=context.file_schema).as_changes())
            context.check()
        return files.close()


class _NewLogs:
    """The log files of a slice; the next one begins where the last one has `limit_bytes`."""

    def __init__(self, task: LogCompactionTask, instants: Sequence[str], *, limit_bytes: int) -> None:
        self._task = task
        self._header = {HeaderKey.COMPACTED_BLOCK_TIMES: ",".join(instants)}
        self._limit_bytes = limit_bytes
        self._written: list[WrittenFile] = []
        self._begin()

    def add(self, changes: Sequence[pa.Table | Deletes]) -> None:
        """Append changes, no key of which was there before."""
        context, partition = self._task.context, self._task.file_slice.group.partition
        for change in changes:
            self._blocks.append(_block(context, change, partition=partition, header=self._header))
            if isinstance(change, Deletes):
                self._deletes += len(change.keys)
            else:
                self._rows += change.num_rows
                self._ranges.append(log_column_ranges(context, change))
        if sum(map(len, self._blocks)) >= self._limit_bytes:
            self._publish()

    def close(self) -> tuple[WrittenFile, ...]:
        """Publish the last file; all that were."""
        if self._blocks:
            self._publish()
        return tuple(self._written)

    def _begin(self) -> None:
        self._blocks: list[bytes] = []
        self._rows = self._deletes = 0
        self._ranges: list[tuple[ColumnRange, ...]] = []

    def _publish(self) -> None:
        context, file_slice = self._task.context, self._task.file_slice
        version = LOG_VERSION + len(self._written)
        name = log_name(context, file_slice.group, task=self._task.number, version=version)
        content = b"".join(self._blocks)
        stat = WriteStat(
            group=file_slice.group,
            path=publish_log(context, file_slice.group, name, content),
            size=len(content),
            writes=self._rows,
            updates=self._rows,
            deletes=self._deletes,
            previous_commit=file_slice.base_instant.value,
            log_version=version,
            base_file=file_slice.base.name if file_slice.base is not None else "",
        )
        ranges = [merge_column_ranges(of_column) for of_column in zip(*self._ranges, strict=True)]
        self._written.append(WrittenFile(stat, tuple(ranges) or log_column_ranges(context, None)))
        self._begin()


def _block(
    context: WriteContext, change: pa.Table | Deletes, *, partition: str, header: Mapping[HeaderKey, str]
) -> bytes:
    if not isinstance(change, Deletes):
        return encode_data_block(context, change, header=header)
    content = encode_deletes(change.keys, partition=partition, ordering=_ordering(change))
    return encode_block(BlockType.DELETE, {**header, HeaderKey.INSTANT_TIME: context.instant}, content)


def _ordering(deletes: Deletes) -> pa.Array | None:
    """The ordering values as delete blocks hold them: a plain array, or structs of several columns."""
    if deletes.ordering is None:
        return None
    columns = [column.combine_chunks() for column in deletes.ordering.columns]
    return columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, names=deletes.ordering.column_names)
