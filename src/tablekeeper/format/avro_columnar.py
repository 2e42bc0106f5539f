"""Rows in Avro binary <-> Arrow tables: the contents of Avro data blocks in log files.

Content: int32 version | int32 record count | per record int32 length and that many bytes of Avro.
Every length is checked against the bytes at hand, and a record must use up exactly its own bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.avro_decoder import RecordDecoder
from tablekeeper.format.avro_rows import binary_lengths, binary_values, fixed_pieces, join_pieces, record_pieces
from tablekeeper.format.avro_types import AvroSchema, resolve_record
from tablekeeper.format.avro_walk import MalformedAvroError
from tablekeeper.format.log_blocks import BlockType, HeaderKey, LogBlock

__all__ = ["decode_avro_block", "decode_avro_rows", "encode_avro_block_content"]

_CONTENT_VERSION = 3
_START = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_ENCODED_BATCH_ROWS = 1 << 16
_DECODED_BATCH_ROWS = 1 << 13
_DECODED_BATCH_SIZE = 1 << 22
_MAX_RECORD_SIZE = (1 << 31) - 1


def decode_avro_block(block: LogBlock, *, file: str, columns: Collection[str] | None = None) -> pa.Table:
    """The rows of an Avro data block, with the schema that its header carries; `columns` as in `decode_avro_rows`."""
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
        raise UnsupportedFeatureError(f"{file}: an Avro block with content version {version} is not supported")
    offsets, lengths = _find_records(data, count, file=file)
    return decode_avro_rows(data, offsets=offsets, lengths=lengths, schema=schema, file=file, columns=columns)


def decode_avro_rows(
    data: memoryview,
    *,
    offsets: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    schema: AvroSchema,
    file: str,
    columns: Collection[str] | None = None,
) -> pa.Table:
    """One row for each record `data[offset : offset + length]`.

    With `columns`, only those of them that the schema has, in its order; the others are stepped over.
    """
    root = resolve_record(schema, file=file)
    wanted = None if columns is None else frozenset(columns)
    arrow = pa.schema([field for field in root.arrow if wanted is None or field.name in wanted])
    data = memoryview(data).cast("B")
    starts, ends = _bounds(data, offsets, lengths, file=file)
    if (starts[1:] < ends[:-1]).any():
        data, starts, ends = _in_order(data, starts, ends)
    batches = []
    for first, last in _batch_bounds(starts, ends):
        base = int(starts[first])
        decoder = RecordDecoder(data[base : int(ends[last - 1])])
        try:
            arrays = decoder.columns(root, starts[first:last] - base, ends[first:last] - base, wanted)
        except MalformedAvroError as error:
            raise CorruptTableError(file=file, reason=f"records {first} to {last - 1}: {error}") from error
        # A table without columns still has its number of rows.
        batches.append(pa.RecordBatch.from_struct_array(_struct(arrow, arrays, last - first)))
    return pa.Table.from_batches(batches, schema=arrow).combine_chunks()


def _struct(arrow: pa.Schema, arrays: list[pa.Array], count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.struct(list(arrow)), count, [None], children=arrays)


def _bounds(
    data: memoryview, offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], *, file: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    starts, sizes = np.asarray(offsets, np.int64), np.asarray(lengths, np.int64)
    outside = (
        (starts < 0) | (sizes < 0) | (starts > len(data)) | (sizes > len(data) - starts) | (sizes > _MAX_RECORD_SIZE)
    )
    if outside.any():
        raise CorruptTableError(file=file, reason=f"record {int(np.argmax(outside))} is outside the given bytes")
    return starts, starts + sizes


def _in_order(
    data: memoryview, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[memoryview, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Copy records that are out of order or overlap, one after the other."""
    copied = b"".join(data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
    new_ends = np.cumsum(ends - starts)
    return memoryview(copied), new_ends - (ends - starts), new_ends


def _batch_bounds(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) record of batches small enough to stay in the processor's cache."""
    first = 0
    while first < len(starts):
        full = int(np.searchsorted(ends, starts[first] + _DECODED_BATCH_SIZE, side="right"))
        last = max(first + 1, min(full, first + _DECODED_BATCH_ROWS))
        yield first, last
        first = last


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
    """The column in the type of the schema. Nulls are looked at when they are written, not here."""
    if column.type == arrow:
        return column
    try:
        return column.cast(_all_nullable(arrow))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        reason = f"column {name!r} of type {column.type} does not fit into {arrow} ({error})"
        raise InvalidRequestError(reason) from error


def _all_nullable(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(field.name, _all_nullable(field.type)) for field in arrow])
    if pa.types.is_list(arrow):
        return pa.list_(pa.field(arrow.value_field.name, _all_nullable(arrow.value_type)))
    if pa.types.is_map(arrow):
        return pa.map_(arrow.key_type, pa.field(arrow.item_field.name, _all_nullable(arrow.item_type)))
    return arrow


def _find_records(data: memoryview, count: int, *, file: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Offsets and lengths of the records of a block."""
    if not 0 <= count <= (len(data) - _START.size) // _LENGTH.size:
        raise CorruptTableError(file=file, reason=f"{count} records in an Avro block of {len(data)} bytes")
    ends = [_START.size]
    at = _START.size
    unpack, append = _LENGTH.unpack_from, ends.append
    try:
        for _ in range(count):
            at += _LENGTH.size + unpack(data, at)[0]
            append(at)
    except struct.error as error:
        reason = f"an Avro block of {len(data)} bytes ends before record {len(ends) - 1} of {count}"
        raise CorruptTableError(file=file, reason=reason) from error
    bounds = np.array(ends, np.int64)
    # Looked at here and not in the loop, which is the one part that Python does record by record.
    if at != len(data) or (np.diff(bounds) < _LENGTH.size).any():
        raise CorruptTableError(
            file=file, reason=f"record lengths do not add up to the {len(data)} bytes of an Avro block"
        )
    offsets = bounds[:-1] + _LENGTH.size
    return offsets, bounds[1:] - offsets
