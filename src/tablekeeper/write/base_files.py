"""Writing base files: marker first, then Parquet with the footers that Java's indexes want."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tablekeeper.format.base_file import encode_base_name, encode_footer
from tablekeeper.format.bloom import BloomFilterBuilder
from tablekeeper.format.column_stats import column_ranges_from_parquet
from tablekeeper.model import FileGroupId, WriteStat, join_path
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.txn.markers import MarkerKind, create_marker
from tablekeeper.write.context import WriteContext
from tablekeeper.write.results import WrittenFile

__all__ = ["BaseFileWriter"]

_FILE_NAME_COLUMN = "_hoodie_file_name"
_LEAST_BLOOM_ENTRIES = 100
_PLAIN_COLUMNS = frozenset({KEY_COLUMN, "_hoodie_commit_seqno"})


class BaseFileWriter:
    """One base file of one file group. Leaving the `with` block by an exception publishes nothing.

    Rows are gathered until they fill a row group. The file name column is set here, since only this
    writer knows the name. With `expected_rows` the bloom filter grows along; without, keys are kept until the
    file is closed and their number is known.
    """

    def __init__(
        self,
        context: WriteContext,
        group: FileGroupId,
        *,
        task: int,
        replaces: str | None = None,
        expected_rows: int | None = None,
    ) -> None:
        self.group = group
        self.name = encode_base_name(
            file_id=group.file_id, write_token=context.write_token(task), instant=context.instant
        )
        self.rows = 0
        self._context = context
        self._replaces = replaces
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._path = join_path(group.partition, self.name)
        self._min_key: str | None = None
        self._max_key: str | None = None
        self._keys: list[pa.ChunkedArray] = []
        self._bloom = self._start_bloom(expected_rows) if expected_rows is not None else None
        self._stack = ExitStack()
        kind = MarkerKind.CREATE if replaces is None else MarkerKind.MERGE
        create_marker(
            context.store.storage,
            instant=context.instant,
            partition=group.partition,
            file_name=self.name,
            kind=kind,
        )
        self._sink = self._stack.enter_context(context.store.storage.open_output(self._path))
        self._writer = pq.ParquetWriter(
            self._sink,
            context.file_schema,
            compression=context.settings.compression,
            compression_level=1 if context.settings.compression == "zstd" else None,
            use_dictionary=_dictionary_columns(context.file_schema),
            write_statistics=True,
            store_schema=False,
        )

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
        """Add rows of the context's file schema."""
        if rows.num_rows == 0:
            return
        self.rows += rows.num_rows
        self._note_keys(rows.column(KEY_COLUMN))
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._context.settings.row_group_bytes:
            self._flush()

    def close(self, *, inserts: int, updates: int, deletes: int, previous_commit: str = "null") -> WrittenFile:
        """Finish and publish the file."""
        self._flush()
        footer = encode_footer(
            avro_schema_json=self._context.avro_schema,
            min_key=self._min_key,
            max_key=self._max_key,
            bloom=self._encode_bloom(),
            bloom_type="SIMPLE",
        )
        self._writer.add_key_value_metadata(footer)
        self._writer.close()
        size = self.bytes_written
        metadata = self._writer.writer.metadata if hasattr(self._writer.writer, "metadata") else None
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
        return WrittenFile(stat, self._column_ranges(metadata))

    def _column_ranges(self, metadata: pq.FileMetaData | None) -> tuple[object, ...]:
        if not self._context.stats_columns:
            return ()
        if metadata is None:
            with self._context.store.storage.open_input(self._path) as stream:
                metadata = pq.read_metadata(stream)
        ranges = column_ranges_from_parquet(
            metadata, self._context.file_schema, columns=self._context.stats_columns
        )
        return tuple(ranges.values())

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = pa.concat_tables(self._pending) if len(self._pending) > 1 else self._pending[0]
        self._pending, self._pending_bytes = [], 0
        position = self._context.file_schema.get_field_index(_FILE_NAME_COLUMN)
        names = pa.repeat(pa.scalar(self.name), rows.num_rows)
        rows = rows.set_column(position, self._context.file_schema.field(position), names)
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

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
            self._keys.append(keys)


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    """Columns worth a dictionary: not the keys and sequence numbers, which never repeat."""
    return [field.name for field in schema if field.name not in _PLAIN_COLUMNS]
