"""Parquet data blocks of log files: the content is a complete Parquet file.

HFile data blocks belong to the metadata table and Avro ones to `avro_columnar`; both are named
here so that a reader of log files finds all row codecs in one place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.log_blocks import BlockType, LogBlock

__all__ = [
    "decode_parquet_block",
    "each_row_group",
    "encode_parquet_block_content",
]

_AVRO_SCHEMA_KEY = "parquet.avro.schema"


def decode_parquet_block(block: LogBlock, *, file: str, columns: Collection[str] | None = None) -> pa.Table:
    """The rows of a Parquet data block; with `columns` only those of them that the block has, in its order."""
    _require_parquet(block)
    with _damage_in(block, file=file):
        parquet, wanted = _opened(block, columns)
        table = parquet.read(columns=wanted, use_threads=False)
    return table.replace_schema_metadata(None)


def each_row_group(block: LogBlock, *, file: str, columns: Collection[str]) -> Iterator[pa.Table]:
    """The same rows of a Parquet data block, one row group at a time."""
    _require_parquet(block)
    with _damage_in(block, file=file):
        parquet, wanted = _opened(block, columns)
    for group in range(parquet.num_row_groups):
        with _damage_in(block, file=file):
            table = parquet.read_row_group(group, columns=wanted, use_threads=False)
        yield table.replace_schema_metadata(None)


def encode_parquet_block_content(table: pa.Table, *, avro_schema_json: str) -> bytes:
    """The content of a Parquet data block with the rows of `table`."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", store_schema=False, write_page_checksum=True
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_AVRO_SCHEMA_KEY: avro_schema_json, "writer.model.name": "avro"})
    return bytes(sink.getvalue())


def _require_parquet(block: LogBlock) -> None:
    if block.type is not BlockType.PARQUET_DATA:
        raise ValueError(f"a {block.type.name} block is not Parquet")


def _opened(block: LogBlock, columns: Collection[str] | None) -> tuple[pq.ParquetFile, list[str] | None]:
    parquet = pq.ParquetFile(pa.BufferReader(pa.py_buffer(block.content)), page_checksum_verification=True)
    names = parquet.schema_arrow.names
    return parquet, None if columns is None else [name for name in names if name in set(columns)]


@contextmanager
def _damage_in(block: LogBlock, *, file: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = f"the Parquet block at byte {block.offset} does not decode ({error})"
        raise CorruptTableError(file=file, reason=reason) from error
