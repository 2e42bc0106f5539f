"""The kernel of log compaction: the log blocks of one slice become blocks of one new log file.

The new blocks name the instants whose blocks they stand in for, and readers put them where the newest of those stands.
They hold the winning change of each key, deletes included, so that they merge with the base file and with later
blocks exactly as the originals do. Rows keep their commit times.

Partial updates cannot be merged without the rows that they build on: a slice with such blocks is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.model import FileSlice, WriteStat
from tablekeeper.record.merge import Deletes, collapse
from tablekeeper.write.context import WriteContext
from tablekeeper.write.log_files import LOG_VERSION, encode_data_block, log_column_ranges, log_name, publish_log
from tablekeeper.write.results import WrittenFile

__all__ = ["LogCompactionTask", "compact_logs"]


@dataclass(frozen=True)
class LogCompactionTask:
    """Merge the logs of one slice. `number` goes into the name of the new file."""

    context: WriteContext
    file_slice: FileSlice
    number: int


def compact_logs(task: LogCompactionTask) -> WrittenFile | None:
    """Kernel: write the log file that stands in for the slice's logs; None if there is nothing to merge."""
    task.context.check()
    context, file_slice = task.context, task.file_slice
    schema = context.file_schema
    loaded = context.load_changes(file_slice.logs, schema)
    if loaded.has_partial_rows or not loaded.changes:
        return None
    changes = collapse(loaded.changes, context.rule, schema=schema).as_changes()
    if not changes:
        return None
    return _write(task, changes, instants=loaded.instants)


def _write(task: LogCompactionTask, changes: Sequence[pa.Table | Deletes], *, instants: tuple[str, ...]) -> WrittenFile:
    context, file_slice, group = task.context, task.file_slice, task.file_slice.group
    name = log_name(context, group, task=task.number)
    header = {HeaderKey.COMPACTED_BLOCK_TIMES: ",".join(instants)}
    content = b"".join(_block(context, change, partition=group.partition, header=header) for change in changes)
    path = publish_log(context, group, name, content)
    rows = next((change for change in changes if not isinstance(change, Deletes)), None)
    written = rows.num_rows if rows is not None else 0
    stat = WriteStat(
        group=group,
        path=path,
        size=len(content),
        writes=written,
        updates=written,
        deletes=sum(len(change.keys) for change in changes if isinstance(change, Deletes)),
        previous_commit=file_slice.base_instant.value,
        log_version=LOG_VERSION,
        base_file=file_slice.base.name if file_slice.base is not None else "",
    )
    return WrittenFile(stat, log_column_ranges(context, rows))


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
