"""Writing base files: marker first, then Parquet with the footers that Java's indexes want."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tablekeeper.format.bloom import BloomFilterBuilder
from tablekeeper.format.data_files import encode_base_name, encode_footer
from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.metadata_table.ranges import load_column_ranges
from tablekeeper.model import FileGroupId, WriteStat, join_path
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.txn.markers import MarkerKind, create_marker
from tablekeeper.write.context import WriteContext
from tablekeeper.write.results import WrittenFile

__all__ = ["BaseFileWriter", "holds_nan", "is_known_free_of_nan"]

_COMMIT_TIME = "_hoodie_commit_time"
_PARTITION_PATH = "_hoodie_partition_path"
_FILE_NAME = "_hoodie_file_name"
_LEAST_BLOOM_ENTRIES = 100
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_FLOATS = ("FLOAT", "DOUBLE")
_SAMPLE_ROWS = 4096
_REPEATING_SHARE = 0.5


class BaseFileWriter:
    """One base file of one file group. Leaving the `with` block by an exception publishes nothing.

    Rows are gathered until they fill a row group. Meta columns with one value for the whole file (its name, its
    partition, and in a new file the commit time, unless it `keeps_commit_times` of rows that were written before) are
    added here, as dictionaries of one entry. With `expected_rows` the bloom filter is built as rows arrive; without,
    keys are kept until their number is known. Text columns named in `dictionaries` come as dictionaries.
    `is_free_of_nan` says that no row will have a not-a-number: columns with floats then get bounds in the footer
    although not all rows are known when the file is begun.
    """

    def __init__(
        self,
        context: WriteContext,
        group: FileGroupId,
        *,
        task: int,
        replaces: str | None = None,
        expected_rows: int | None = None,
        keeps_commit_times: bool = False,
        dictionaries: Collection[str] = (),
        is_free_of_nan: bool = False,
    ) -> None:
        self.group = group
        self.name = encode_base_name(
            file_id=group.file_id, write_token=context.write_token(task), instant=context.instant
        )
        self.rows = 0
        self.pending_bytes = 0
        self.key_bytes = 0
        self._context = context
        self._replaces = replaces
        self._is_free_of_nan = is_free_of_nan
        self._pending: list[pa.Table] = []
        self._path = join_path(group.partition, self.name)
        self._constants = {_PARTITION_PATH: group.partition, _FILE_NAME: self.name}
        if replaces is None and not keeps_commit_times:
            self._constants[_COMMIT_TIME] = context.instant
        self._schema = _with_dictionaries(context.file_schema, {*self._constants, *dictionaries})
        self._min_key: str | None = None
        self._max_key: str | None = None
        self._keys: list[pa.Array] = []
        self._bloom = self._start_bloom(expected_rows) if expected_rows is not None else None
        self._stack = ExitStack()
        create_marker(
            context.store.storage,
            instant=context.instant,
            partition=group.partition,
            file_name=self.name,
            kind=MarkerKind.CREATE if replaces is None else MarkerKind.MERGE,
            scope=context.scope,
        )
        self._sink = self._stack.enter_context(context.store.storage.open_output(self._path, scope=context.scope))
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stack.__exit__(kind, error, trace)

    @property
    def bytes_written(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Add rows of the context's file schema; columns that are constant here may be missing."""
        if rows.num_rows == 0:
            return
        self.rows += rows.num_rows
        self._note_keys(rows.column(KEY_COLUMN))
        self._pending.append(rows)
        self.pending_bytes += rows.nbytes
        if self.pending_bytes >= self._context.settings.row_group_bytes:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write the gathered rows, as one row group, or as several if they came in one large piece."""
        if not self._pending:
            return
        rows = pa.concat_tables(self._pending) if len(self._pending) > 1 else self._pending[0]
        groups = max(1, round(self.pending_bytes / self._context.settings.row_group_bytes))
        self._pending, self.pending_bytes = [], 0
        columns = [self._column(rows, name) for name in self._schema.names]
        table = pa.table(columns, schema=self._schema)
        self._open(table, whole=last).write_table(table, row_group_size=-(-table.num_rows // groups))

    def close(
        self,
        *,
        inserts: int,
        updates: int,
        deletes: int,
        previous_commit: str = "null",
    ) -> WrittenFile:
        """Finish and publish the file."""
        self.flush(last=True)
        writer = self._open(self._schema.empty_table(), whole=True)
        footer = encode_footer(
            avro_schema_json=self._context.avro_schema,
            min_key=self._min_key,
            max_key=self._max_key,
            bloom=self._encode_bloom(),
            bloom_type="SIMPLE",
        )
        writer.add_key_value_metadata(footer)
        writer.close()
        size = self.bytes_written
        with self._context.publishing(self._path):
            self._stack.close()
        stat = WriteStat(
            group=self.group,
            path=self._path,
            size=size,
            writes=self.rows,
            inserts=inserts,
            updates=updates,
            deletes=deletes,
            previous_commit=previous_commit,
            previous_base_file=self._replaces,
        )
        return WrittenFile(stat, self._column_ranges())

    def _open(self, sample: pa.Table, *, whole: bool) -> pq.ParquetWriter:
        """The writer, opened with the first rows, or with all rows of the `whole` file."""
        if self._writer is None:
            hidden = [] if self._is_free_of_nan else _columns_that_may_hide_nan(sample, whole=whole)
            compression = self._context.settings.compression
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression=compression,
                compression_level=1 if compression == "zstd" else None,
                use_dictionary=_repeating_columns(sample),
                write_statistics=_leaves_outside(hidden, self._schema) if hidden else True,
                store_schema=False,
                write_page_checksum=True,
            )
        return self._writer

    def _column(self, rows: pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
        value = self._constants.get(name)
        if value is None:
            return rows.column(name)
        zeros = pa.array(np.zeros(rows.num_rows, dtype=np.int32))
        return pa.DictionaryArray.from_arrays(zeros, pa.array([value]))

    def _column_ranges(self) -> tuple[ColumnRange, ...]:
        """Ranges of the columns that the metadata table indexes, computed here and not under the lock."""
        if not self._context.stats_columns:
            return ()
        return load_column_ranges(self._context.store.storage, self._path, columns=self._context.stats_columns)

    def _start_bloom(self, rows: int) -> BloomFilterBuilder:
        rate = self._context.settings.bloom_false_positive_rate
        return BloomFilterBuilder(expected_entries=max(rows, _LEAST_BLOOM_ENTRIES), false_positive_rate=rate)

    def _encode_bloom(self) -> bytes | None:
        if not self._context.settings.writes_bloom:
            return None
        bloom = self._bloom
        if bloom is None:
            bloom = self._start_bloom(self.rows)
            for keys in self._keys:
                bloom.add(keys)
        return bloom.encode()

    def _note_keys(self, keys: pa.ChunkedArray) -> None:
        bounds = pc.min_max(keys)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        self._min_key = low if self._min_key is None else min(self._min_key, low)
        self._max_key = high if self._max_key is None else max(self._max_key, high)
        if not self._context.settings.writes_bloom:
            return
        if self._bloom is not None:
            self._bloom.add(keys)
        else:
            kept = _copied(keys)
            self._keys.append(kept)
            self.key_bytes += kept.nbytes


def _copied(values: pa.ChunkedArray) -> pa.Array:
    """A copy of the values: a column of a batch from Spark would keep all columns of the batch in memory."""
    return pa.concat_arrays([*values.chunks, pa.array([], values.type)])


def _with_dictionaries(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field.with_type(_DICTIONARY) if field.name in names else field for field in schema])


def _repeating_columns(sample: pa.Table) -> list[str]:
    """Columns whose values repeat, judged by the first rows: dictionaries of unique values only cost time and space."""
    first = sample.slice(0, _SAMPLE_ROWS)
    repeating = []
    for field in first.schema:
        if pa.types.is_dictionary(field.type) or pa.types.is_boolean(field.type):
            repeating.append(field.name)
        elif not pa.types.is_nested(field.type):
            distinct = pc.count_distinct(first.column(field.name), mode="all").as_py()
            if distinct <= first.num_rows * _REPEATING_SHARE:
                repeating.append(field.name)
    return repeating


def holds_nan(rows: pa.Table) -> bool:
    """Whether a column, or a field inside of one, has a not-a-number that the bounds of a footer would leave out."""
    return any(_has_nan(values) for column in rows.columns for values in _floats(column))


def is_known_free_of_nan(metadata: pq.FileMetaData | None) -> bool:
    """Whether a base file says that it has no not-a-number: columns with one have no bounds, in Java's files too.

    None stands for a slice without base file, which has none.
    """
    if metadata is None:
        return True
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.physical_type in _FLOATS and not _has_bounds(column):
                return False
    return True


def _has_bounds(column: pq.ColumnChunkMetaData) -> bool:
    """Whether the footer gives the bounds of the column, or says that it has no value."""
    known = column.statistics
    return known is not None and bool(known.has_min_max or known.null_count == column.num_values)


def _columns_that_may_hide_nan(sample: pa.Table, *, whole: bool) -> list[str]:
    """Columns that may get bounds in the footer that leave out a not-a-number. `sample` may be the `whole` file.

    Arrow does not count them in, and Java and Spark, where they are greater than every number, then skip rows
    that match. Java's own files have no bounds in that case either.
    """
    floats = {name: _floats(sample.column(name)) for name in sample.column_names}
    return [name for name, values in floats.items() if values and (not whole or any(map(_has_nan, values)))]


def _floats(values: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    if pa.types.is_struct(values.type):
        return [each for field in values.flatten() for each in _floats(field)]
    return [values] if pa.types.is_floating(values.type) else []


def _has_nan(values: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.is_nan(values)).as_py())


def _leaves_outside(columns: Collection[str], schema: pa.Schema) -> list[str]:
    """Parquet's names of the leaf columns, without those inside `columns`."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    paths = [leaves.column(position).path for position in range(len(leaves))]
    return [path for path in paths if path.partition(".")[0] not in columns]
