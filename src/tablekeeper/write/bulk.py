"""Bulk insert: rows go straight from the caller's table into new base files, without staging or look-ups.

Each source task keeps one open file per partition. Rows are gathered up to the task's memory budget, sorted by
partition (and by key, if the settings say so), and written as one row group per partition.

Rows that are scattered over many partitions would become as many small files in every task. A task that finds this in
its first rows stages them instead, and the rows of a partition are then gathered from all tasks. An explicit sort mode
takes precedence.

As in Java with its default row writer, a bulk insert stores rows as they are, even those that are marked as deleted;
an overwrite leaves these out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.model import FileGroupId
from tablekeeper.write.base_files import BaseFileWriter
from tablekeeper.write.context import WriteContext
from tablekeeper.write.grouping import PartitionNumbers, group_rows
from tablekeeper.write.results import WrittenFile
from tablekeeper.write.staging import (
    StagedBatch,
    keyed_rows,
    ordered_by_key,
    refuse_too_many_partitions,
    stage_keyed_rows,
    stamp_rows,
    without_deleted,
)

__all__ = ["write_live_files", "write_new_files"]

Written = WrittenFile | StagedBatch
Keyed = Iterator[tuple[pa.Table, pa.DictionaryArray]]

_OPEN_FILES = 128
# This many partitions within this many bytes would make files that are too small.
_SCATTERED_PARTITIONS = 64
_SCATTERED_BYTES = 64 << 20
_LEAST_ROW_GROUP_BYTES = 8 << 20


def write_new_files(context: WriteContext, part: int, batches: Iterator[pa.RecordBatch]) -> list[Written]:
    """Source kernel: write all rows of this part into new file groups, in the order that the settings say."""
    orders_keys = context.settings.bulk_insert_sort.orders_keys
    return _write(context, part, batches, prepare=ordered_by_key if orders_keys else None)


def write_live_files(context: WriteContext, part: int, batches: Iterator[pa.RecordBatch]) -> list[Written]:
    """Source kernel: write the rows of this part that are not marked as deleted into new file groups.

    If all rows of a partition are marked, it gets a file without rows, so that it counts as overwritten.
    """
    return _write(context, part, batches, prepare=without_deleted)


def _write(
    context: WriteContext,
    part: int,
    batches: Iterator[pa.RecordBatch],
    *,
    prepare: Callable[[pa.Table], pa.Table] | None,
) -> list[Written]:
    context = context.within_memory()
    keyed: Keyed = (keyed_rows(context, batch) for batch in batches if batch.num_rows)
    if context.settings.gathers_scattered_rows:
        first = _FirstRows(context, keyed)
        keyed = first.and_others()
        if first.are_scattered:
            return [*stage_keyed_rows(context, part, keyed)]
    sink = _PartitionedFiles(context, part, prepare=prepare)
    try:
        for rows, paths in keyed:
            sink.add(rows, paths)
        return [*sink.finish()]
    except BaseException as error:
        sink.abort(error)
        raise


class _FirstRows:
    """The first rows of a part, read ahead until it is clear whether they are scattered over many partitions."""

    def __init__(self, context: WriteContext, keyed: Keyed) -> None:
        self._others = keyed
        self._rows: deque[tuple[pa.Table, pa.DictionaryArray]] = deque()
        partitions = PartitionNumbers()
        limit = min(_SCATTERED_BYTES, context.settings.task_memory_bytes)
        size = 0
        for rows, paths in keyed:
            self._rows.append((rows, paths))
            partitions.of(paths)
            size += rows.nbytes
            if size >= limit or len(partitions) > _SCATTERED_PARTITIONS:
                break
        self.are_scattered = len(partitions) > _SCATTERED_PARTITIONS

    def and_others(self) -> Keyed:
        """All rows of the part; those read ahead are not kept."""
        while self._rows:
            yield self._rows.popleft()
        yield from self._others


class _PartitionedFiles:
    """The open files of one task, least recently written first. Rows of a partition go through `prepare` first."""

    def __init__(
        self, context: WriteContext, part: int, *, prepare: Callable[[pa.Table], pa.Table] | None = None
    ) -> None:
        self._prepare = prepare
        self._context = context
        self._part = part
        self._partitions = PartitionNumbers()
        self._rows: list[pa.Table] = []
        self._groups: list[npt.NDArray[np.int64]] = []
        self._bytes = 0
        self._row_count = 0
        self._open: OrderedDict[str, BaseFileWriter] = OrderedDict()
        self._done: list[WrittenFile] = []

    def add(self, rows: pa.Table, paths: pa.DictionaryArray) -> None:
        self._groups.append(self._partitions.of(paths))
        refuse_too_many_partitions(len(self._partitions), self._context)
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self._context.settings.task_memory_bytes:
            self._flush()

    def finish(self) -> list[WrittenFile]:
        self._flush(last=True)
        while self._open:
            self._close(next(iter(self._open)))
        return self._done

    def abort(self, error: BaseException) -> None:
        """Publish none of the open files."""
        for writer in self._open.values():
            writer.__exit__(type(error), error, error.__traceback__)

    def _flush(self, *, last: bool = False) -> None:
        """Hand the gathered rows to the files of their partitions; the `last` ones complete these."""
        if not self._rows:
            return
        rows = pa.concat_tables(self._rows)
        names = self._partitions.names
        for number, part in group_rows(rows, np.concatenate(self._groups)):
            self._write(names[number], part)
            writer = self._open.get(names[number])
            if writer is not None and last:
                self._close(names[number])
            elif writer is not None and writer.pending_bytes >= _LEAST_ROW_GROUP_BYTES:
                # Rows of other partitions may fill the memory before this one gets more.
                writer.flush()
        self._rows, self._groups, self._bytes = [], [], 0
        # Rows and keys that wait in the files' writers count against the budget as well.
        budget = self._context.settings.task_memory_bytes
        if sum(writer.pending_bytes for writer in self._open.values()) >= budget:
            for writer in self._open.values():
                writer.flush()
        while sum(writer.key_bytes for writer in self._open.values()) >= budget:
            self._close(max(self._open, key=lambda partition: self._open[partition].key_bytes))

    def _write(self, partition: str, rows: pa.Table) -> None:
        writer = self._writer(partition)
        rows = rows if self._prepare is None else self._prepare(rows)
        writer.write(stamp_rows(self._context, rows, task=self._part, first_row=self._row_count))
        self._row_count += rows.num_rows
        if writer.bytes_written >= self._context.settings.max_file_bytes:
            self._close(partition)

    def _writer(self, partition: str) -> BaseFileWriter:
        writer = self._open.get(partition)
        if writer is None:
            if len(self._open) >= _OPEN_FILES:
                self._close(next(iter(self._open)))
            group = FileGroupId(partition, f"{self._context.runtime.ids.uuid()}-0")
            writer = BaseFileWriter(self._context, group, task=self._part)
            self._open[partition] = writer
        self._open.move_to_end(partition)
        return writer

    def _close(self, partition: str) -> None:
        writer = self._open[partition]
        self._done.append(writer.close(inserts=writer.rows, updates=0, deletes=0))
        del self._open[partition]
