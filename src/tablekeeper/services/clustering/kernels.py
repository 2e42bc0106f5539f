"""The data work of clustering: one task reads the slices of one group, orders their rows and writes new files.

Logs are merged into the rows as they are read. Rows keep their record key, commit time and sequence number; the new
files are new file groups, which take the place of those that were read when the clustering commits. A task may run
twice: each attempt makes file groups of its own, and only those whose result came back are committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from tablekeeper.config.clustering_order import ClusteringOrder, Layout, OutputLayout
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import BaseFile, FileGroupId, FileSlice
from tablekeeper.read.slice_rows import open_base_file, read_row_group, read_slice
from tablekeeper.record.columns import column_type, column_values, columns_holding
from tablekeeper.record.evolution import conform
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.record.space_curves import SAMPLE_ROWS, SpaceCurve, fit_curve
from tablekeeper.write.base_files import BaseFileWriter, holds_nan
from tablekeeper.write.context import WriteContext
from tablekeeper.write.results import WrittenFile
from tablekeeper.write.row_sorter import RowSorter
from tablekeeper.write.staging import stamp_rows

__all__ = ["ClusterTask", "cluster_group", "refuse_bad_order"]

# A full file still takes the rest of its share if that is less than this part of it.
_CRUMB_SHARE = 8
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
# A column whose values take less than this in a file, dictionary and all, repeats a lot.
_SMALL_BYTES = 4


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """Rewrite these slices, all of one partition, into `outputs` new file groups or more."""

    context: WriteContext
    slices: tuple[FileSlice, ...]
    outputs: int
    number: int
    layout: OutputLayout
    preserves_metadata: bool = True


def cluster_group(task: ClusterTask) -> list[WrittenFile]:
    """Kernel: rewrite one clustering group."""
    settings = task.context.settings
    dictionaries = _repeating_columns(task)
    files = _OutputFiles(task, dictionaries)
    try:
        if not task.layout.order.columns:
            for rows in _rows(task, dictionaries):
                files.write(rows)
            return files.finish()
        keys = _Keys(task)
        with RowSorter(
            task.context, keys, budget_bytes=settings.task_memory_bytes, chunk_bytes=settings.row_group_bytes
        ) as sorter:
            found_nan = False
            for rows in _rows(task, dictionaries):
                found_nan = found_nan or holds_nan(rows)
                sorter.add(rows)
            files.expect(sorter.rows, is_free_of_nan=not found_nan)
            for chunk in sorter.chunks():
                files.write(chunk)
        return files.finish()
    except BaseException as error:
        files.abort(error)
        raise


def refuse_bad_order(order: ClusteringOrder, schema: pa.Schema) -> None:
    """Raise `InvalidRequestError` if rows of this schema cannot be ordered so."""
    if len(set(order.columns)) < len(order.columns):
        raise InvalidRequestError(f"order by {', '.join(order.columns)}: a column is named twice")
    for name in order.columns:
        kind = column_type(schema, name)
        if pa.types.is_nested(kind):
            raise InvalidRequestError(f"rows cannot be ordered by column {name}, which is a {kind}: name a plain one")
    if len(order.columns) > 1 and order.layout is not Layout.LINEAR:
        fit_curve([schema.empty_table().column(0)] * len(order.columns), is_hilbert=False)


def _rows(task: ClusterTask, dictionaries: frozenset[str]) -> Iterator[pa.Table]:
    """All rows of all slices, merged with their logs, without the columns that the writer fills."""
    for file_slice in task.slices:
        task.context.check()
        plain = None if file_slice.logs or file_slice.base is None else file_slice.base
        rows = _plain_rows(task, plain, dictionaries) if plain is not None else None
        yield from rows if rows is not None else _merged_rows(task, file_slice, dictionaries)


def _plain_rows(task: ClusterTask, base: BaseFile, dictionaries: frozenset[str]) -> Iterator[pa.Table] | None:
    """The rows of a base file as they are; None if it has another schema than the table has now."""
    file = open_base_file(task.context.store, base, dictionaries=dictionaries, verifies_pages=True)
    schema = _schema(task, dictionaries)
    stored = file.schema_arrow
    if not all(field.name in stored.names and stored.field(field.name).type == field.type for field in schema):
        file.close()
        return None
    return _row_groups(task, base, file, schema)


def _row_groups(task: ClusterTask, base: BaseFile, file: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.Table]:
    with file:
        for group in range(file.num_row_groups):
            task.context.check()
            rows = read_row_group(file, group, columns=schema.names, file=base.path)
            yield conform(rows, schema)


def _merged_rows(task: ClusterTask, file_slice: FileSlice, dictionaries: frozenset[str]) -> Iterator[pa.Table]:
    context = task.context
    reading = replace(context.slice_task(file_slice, context.rewritten_schema), verifies_pages=True)
    for batch in read_slice(reading):
        task.context.check()
        rows = pa.Table.from_batches([batch])
        for name in dictionaries:
            encoded = rows.column(name).dictionary_encode()
            rows = rows.set_column(rows.schema.get_field_index(name), name, encoded)
        yield rows


def _schema(task: ClusterTask, dictionaries: frozenset[str]) -> pa.Schema:
    """The columns of rows on their way, as they are in files but for those that are written anew."""
    fields = task.context.rewritten_schema
    return pa.schema([field.with_type(_DICTIONARY) if field.name in dictionaries else field for field in fields])


def _repeating_columns(task: ClusterTask) -> frozenset[str]:
    """Text columns whose values repeat so much that they are better moved as dictionaries, by the first base file."""
    base = next((file_slice.base for file_slice in task.slices if file_slice.base is not None), None)
    if base is None:
        return frozenset()
    with open_base_file(task.context.store, base) as file:
        metadata = file.metadata
    kept = {KEY_COLUMN, *(path.split(".")[0] for path in task.layout.order.columns)}
    texts = {field.name for field in _schema(task, frozenset()) if pa.types.is_string(field.type)} - kept
    small: dict[str, bool] = {}
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            is_small = column.has_dictionary_page and column.total_uncompressed_size <= _SMALL_BYTES * column.num_values
            small[column.path_in_schema] = small.get(column.path_in_schema, True) and is_small
    return frozenset(name for name in texts if small.get(name, False))


class _Keys:
    """The columns that order the rows, or their places on a curve, whose bounds come from a sample of all rows."""

    def __init__(self, task: ClusterTask) -> None:
        self._task = task
        self._columns = task.layout.order.columns
        self._is_linear = task.layout.order.layout is Layout.LINEAR or len(self._columns) == 1
        self._curve: SpaceCurve | None = None

    def __call__(self, rows: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        columns = [column_values(rows, name) for name in self._columns]
        if self._is_linear:
            return columns
        if self._curve is None:
            sample = _base_sample(self._task) or columns
            is_hilbert = self._task.layout.order.layout is Layout.HILBERT
            self._curve = fit_curve(sample, is_hilbert=is_hilbert)
        return [pa.array(self._curve.positions(columns))]


def _base_sample(task: ClusterTask) -> list[pa.ChunkedArray] | None:
    """Values of the order's columns from rows spread over all base files; None if there is no base file.

    Changes in logs do not matter to bounds, and reading few columns costs little.
    """
    schema = columns_holding(task.layout.order.columns, task.context.schema)
    bases = [file_slice.base for file_slice in task.slices if file_slice.base is not None]
    parts = [part for base in bases for part in _columns_of(task, base, schema)]
    total = sum(part.num_rows for part in parts)
    if total == 0:
        return None
    rows = pa.concat_tables(parts)
    step = max(1, total // SAMPLE_ROWS)
    chosen = rows.take(pa.array(range(0, total, step))) if step > 1 else rows
    return [column_values(chosen, name) for name in task.layout.order.columns]


def _columns_of(task: ClusterTask, base: BaseFile, schema: pa.Schema) -> Iterator[pa.Table]:
    with open_base_file(task.context.store, base) as file:
        stored = set(file.schema_arrow.names)
        columns = [name for name in schema.names if name in stored]
        for group in range(file.num_row_groups):
            task.context.check()
            yield conform(read_row_group(file, group, columns=columns, file=base.path), schema)


class _OutputFiles:
    """The files that a task writes, one after the other, each a new file group."""

    def __init__(self, task: ClusterTask, dictionaries: frozenset[str]) -> None:
        self._task = task
        self._dictionaries = dictionaries
        self._uuid = task.context.runtime.ids.uuid()
        self._rows_a_file: int | None = None
        self._is_free_of_nan = False
        self._taken = 0
        self._writer: BaseFileWriter | None = None
        self._done: list[WrittenFile] = []

    def expect(self, rows: int, *, is_free_of_nan: bool) -> None:
        """Share so many rows evenly between the outputs."""
        self._is_free_of_nan = is_free_of_nan
        self._rows_a_file = max(1, -(-rows // max(1, self._task.outputs)))

    def write(self, rows: pa.Table) -> None:
        """Add rows, beginning new files where one is full."""
        start = 0
        while start < rows.num_rows:
            self._task.context.check()
            count = min(rows.num_rows - start, self._room())
            self._add(rows.slice(start, count))
            start += count

    def finish(self) -> list[WrittenFile]:
        self._close()
        return self._done

    def abort(self, error: BaseException) -> None:
        """Publish nothing of the open file."""
        if self._writer is not None:
            self._writer.__exit__(type(error), error, error.__traceback__)

    def _room(self) -> int:
        """How many rows go into the present file before its share is full."""
        if self._rows_a_file is None:
            return 1 << 62
        return self._rows_a_file - self._taken % self._rows_a_file

    def _add(self, rows: pa.Table) -> None:
        writer = self._writer or self._open()
        if self._task.preserves_metadata:
            writer.write(rows)
        else:
            writer.write(stamp_rows(self._task.context, rows, task=self._task.number, first_row=self._taken))
        self._taken += rows.num_rows
        is_share_full = self._rows_a_file is not None and self._taken % self._rows_a_file == 0
        if is_share_full or self._is_too_large(writer):
            self._close()

    def _is_too_large(self, writer: BaseFileWriter) -> bool:
        if self._task.layout.single_file or writer.bytes_written < self._task.layout.target_file_bytes:
            return False
        return self._rows_a_file is None or self._room() > writer.rows // _CRUMB_SHARE

    def _open(self) -> BaseFileWriter:
        group = FileGroupId(self._task.slices[0].group.partition, f"{self._uuid}-{len(self._done)}")
        self._writer = BaseFileWriter(
            self._task.context,
            group,
            task=self._task.number,
            expected_rows=self._rows_a_file,
            keeps_commit_times=self._task.preserves_metadata,
            dictionaries=self._dictionaries,
            is_free_of_nan=self._is_free_of_nan,
        )
        return self._writer

    def _close(self) -> None:
        if self._writer is not None:
            written = self._writer.close(inserts=self._writer.rows, updates=0, deletes=0)
            self._done.append(written)
            self._writer = None
