"""Statistics of written files that the writer did not bring along, read from the files themselves.

A writer takes most ranges from the Parquet footer that it has just written. What is missing there (bounds
of very long values, files of other writers) is computed here from the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.avro_columnar import decode_avro_block
from tablekeeper.format.column_stats import column_ranges_from_parquet, column_ranges_from_table, empty_column_range
from tablekeeper.format.log_blocks import BlockType, decode_blocks
from tablekeeper.format.log_data import decode_parquet_block
from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.model import WriteStat
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage

__all__ = ["load_column_ranges", "load_missing_ranges"]


def load_missing_ranges(
    storage: Storage,
    stats: Iterable[WriteStat],
    *,
    known: Mapping[str, Sequence[ColumnRange]],
    columns: Sequence[str],
    runtime: Runtime,
) -> dict[str, tuple[ColumnRange, ...]]:
    """Ranges of `columns` for each written file, by path: the `known` ones, and those of the file where some lack."""
    written = {stat.path: stat for stat in stats}
    complete = {path: tuple(known.get(path, ())) for path in written}
    wanted = set(columns)
    open_paths = [path for path, ranges in complete.items() if wanted - {each.column for each in ranges}]
    loaded = runtime.threads.map(lambda path: load_column_ranges(storage, path, columns=columns), open_paths)
    return complete | dict(zip(open_paths, loaded, strict=True))


def load_column_ranges(storage: Storage, path: str, *, columns: Sequence[str]) -> tuple[ColumnRange, ...]:
    """Ranges of those of `columns` that the base or log file at `path` has."""
    if path.endswith(".parquet"):
        return tuple(_ranges_of_base(storage, path, columns=columns).values())
    return tuple(_ranges_of_log(storage, path, columns=columns).values())


def _ranges_of_base(storage: Storage, path: str, *, columns: Sequence[str]) -> dict[str, ColumnRange]:
    try:
        with storage.open_input(path) as stream, pq.ParquetFile(stream) as parquet:
            schema = parquet.schema_arrow
            ranges = column_ranges_from_parquet(parquet.metadata, schema, columns=columns)
            unknown = [column for column in columns if column not in ranges and _has(schema, column)]
            if unknown and parquet.metadata.num_rows:
                roots = sorted({column.split(".")[0] for column in unknown})
                ranges |= column_ranges_from_table(parquet.read(columns=roots), columns=unknown)
            return ranges
    except pa.ArrowInvalid as error:
        raise CorruptTableError(file=path, reason=f"the Parquet file does not decode ({error})") from error


def _ranges_of_log(storage: Storage, path: str, *, columns: Sequence[str]) -> dict[str, ColumnRange]:
    roots = sorted({column.split(".")[0] for column in columns})
    merged: dict[str, ColumnRange] = {}
    for block in decode_blocks(storage.read(path), file=path):
        rows: Any = None
        if block.type is BlockType.PARQUET_DATA:
            rows = decode_parquet_block(block, file=path, columns=roots)
        elif block.type is BlockType.AVRO_DATA:
            rows = decode_avro_block(block, file=path, columns=roots)
        if rows is None or rows.num_rows == 0:
            continue
        for column, column_range in column_ranges_from_table(rows, columns=columns).items():
            before = merged.get(column)
            merged[column] = column_range if before is None else before.merged_with(column_range)
    return merged or {column: empty_column_range(column) for column in columns}


def _has(schema: Any, column: str) -> bool:
    return bool(schema.get_field_index(column.split(".", maxsplit=1)[0]) >= 0)
