"""Rows in Avro binary <-> Arrow tables: the contents of Avro data blocks in log files.

Content: int32 version | int32 record count | per record int32 length and that many bytes of Avro.
Every length is checked against the bytes at hand, and a record must use up exactly its own bytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.avro_rows import binary_lengths, binary_values, fixed_pieces, join_pieces, record_pieces
from tablekeeper.format.avro_types import AvroNode, AvroSchema, resolve_record
from tablekeeper.format.log_blocks import BlockType, HeaderKey, LogBlock

__all__ = ["decode_avro_block", "decode_avro_rows", "encode_avro_block_content"]

_CONTENT_VERSION = 3
_START = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_ENCODED_BATCH_ROWS = 1 << 16


def decode_avro_block(block: LogBlock, *, file: str) -> pa.Table:
    """The rows of an Avro data block, with the schema that its header carries."""
    if block.type not in (BlockType.AVRO_DATA, BlockType.CDC_DATA):
        raise ValueError(f"a {block.type.name} block holds no Avro rows")
    schema = block.header.get(HeaderKey.SCHEMA)
    if schema is None:
        raise CorruptTableError(file=file, reason=f"the Avro block at byte {block.offset} has no schema")
    data = memoryview(block.content).cast("B")
    if len(data) < _START.size:
        raise CorruptTableError(file=file, reason=f"the Avro block at byte {block.offset} has {len(data)} bytes")
    version, count = _START.unpack_from(data)
    if not 0 <= version <= _CONTENT_VERSION:
        raise UnsupportedFeatureError(f"{file}: an Avro block with content version {version} is not known here")
    offsets, lengths = _find_records(data, count, file=file)
    return decode_avro_rows(data, offsets=offsets, lengths=lengths, schema=schema, file=file)


def decode_avro_rows(
    data: memoryview,
    *,
    offsets: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    schema: AvroSchema,
    file: str,
) -> pa.Table:
    """One row for each record `data[offset : offset + length]`."""
    root = resolve_record(schema, file=file)
    plain = fastavro.parse_schema(_plain(root))
    rows: list[Any] = []
    for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        stream = io.BytesIO(data[offset : offset + length])
        try:
            row = fastavro.schemaless_reader(stream, plain)
        except (EOFError, ValueError, IndexError, OverflowError, MemoryError, TypeError, StopIteration) as error:
            raise CorruptTableError(file=file, reason=f"a record does not decode ({error!r})") from error
        if stream.tell() != length:
            raise CorruptTableError(file=file, reason="a record does not fill its length")
        rows.append(row)
    columns = [
        pa.array([_converter(node)(row[name]) for row in rows], node.arrow)
        for name, node in zip(root.names, root.children, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(list(root.arrow)))


def encode_avro_block_content(table: pa.Table, schema: AvroSchema) -> bytes:
    """The content of an Avro data block with the rows of `table`."""
    root = resolve_record(schema, file="the schema given")
    missing = [name for name in root.names if name not in table.column_names]
    if missing:
        raise InvalidRequestError(f"the rows have no column {missing[0]!r}, which their Avro schema has")
    parts: list[bytes | memoryview] = [_START.pack(_CONTENT_VERSION, len(table))]
    for batch in table.select(root.names).to_batches(max_chunksize=_ENCODED_BATCH_ROWS):
        columns = [
            _cast(column, node.arrow, name)
            for name, node, column in zip(root.names, root.children, batch.columns, strict=True)
        ]
        pieces = record_pieces(root, columns)
        lengths = binary_lengths(pieces, len(batch)).astype(">i4")
        parts.append(binary_values(join_pieces([fixed_pieces(lengths), *pieces], len(batch))))
    return b"".join(parts)


def _cast(column: pa.Array, arrow: pa.DataType, name: str) -> pa.Array:
    try:
        return column.cast(arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequestError(
            f"column {name!r} of type {column.type} does not fit into {arrow} ({error})"
        ) from error


def _find_records(data: memoryview, count: int, *, file: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if count < 0 or count > (len(data) - _START.size) // _LENGTH.size:
        raise CorruptTableError(file=file, reason=f"{count} records in an Avro block of {len(data)} bytes")
    offsets, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    at = _START.size
    for number in range(count):
        if len(data) - at < _LENGTH.size:
            raise CorruptTableError(file=file, reason=f"an Avro block ends before record {number} of {count}")
        length = _LENGTH.unpack_from(data, at)[0]
        at += _LENGTH.size
        if not 0 <= length <= len(data) - at:
            raise CorruptTableError(file=file, reason=f"record {number} of an Avro block has length {length}")
        offsets[number], lengths[number] = at, length
        at += length
    if at != len(data):
        raise CorruptTableError(file=file, reason=f"{len(data) - at} bytes after the last record of an Avro block")
    return offsets, lengths


def _plain(node: AvroNode, name: str = "r") -> Any:
    """The schema without logical types, so that values come as integers and bytes."""
    simple: Any = node.kind
    if node.kind == "record":
        fields = [
            {"name": field, "type": _plain(child, f"{name}_{field}")}
            for field, child in zip(node.names, node.children, strict=True)
        ]
        simple = {"type": "record", "name": name, "fields": fields}
    elif node.kind == "array":
        simple = {"type": "array", "items": _plain(node.children[0], name + "_i")}
    elif node.kind == "map":
        simple = {"type": "map", "values": _plain(node.children[1], name + "_v")}
    elif node.kind == "fixed":
        simple = {"type": "fixed", "name": name, "size": node.size}
    elif node.kind == "enum":
        simple = {"type": "enum", "name": name, "symbols": list(node.symbols)}
    if node.union is None:
        return simple
    pairs = sorted(
        (number, branch) for number, branch in zip(node.union, ("null", simple), strict=True) if number is not None
    )
    return [branch for _number, branch in pairs]


def _converter(node: AvroNode) -> Callable[[Any], Any]:
    if pa.types.is_decimal(node.arrow):
        return lambda v: None if v is None else _decimal(int.from_bytes(v, "big", signed=True), node.arrow.scale)
    if node.kind == "record":
        inner = {name: _converter(child) for name, child in zip(node.names, node.children, strict=True)}
        return lambda v: None if v is None else {name: inner[name](item) for name, item in v.items()}
    if node.kind == "array":
        item = _converter(node.children[0])
        return lambda v: None if v is None else [item(one) for one in v]
    if node.kind == "map":
        value = _converter(node.children[1])
        return lambda v: None if v is None else [(key, value(one)) for key, one in v.items()]
    return lambda v: v


def _decimal(unscaled: int, scale: int) -> Decimal:
    with localcontext() as context:
        context.prec = 100
        return Decimal(unscaled).scaleb(-scale)
