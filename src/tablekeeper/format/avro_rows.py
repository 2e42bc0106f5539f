"""Arrow arrays -> Avro binary, whole columns at a time.

Each column becomes a few binary arrays with one piece of Avro a row (a union branch, a length, the
bytes of a string); joining the pieces of all columns row by row gives the records. A row that a
null parent hides contributes empty pieces. Nulls are only written where the schema has a branch
for them: elsewhere they are refused, by column name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.avro_types import AvroNode

__all__ = [
    "binary_lengths",
    "binary_values",
    "encode_values",
    "encode_varints",
    "fixed_pieces",
    "join_pieces",
    "record_pieces",
]

_Mask = npt.NDArray[np.bool_]


def record_pieces(root: AvroNode, columns: list[pa.Array]) -> list[pa.Array]:
    """Pieces of all fields of a record, in order; `columns` has the arrays of its fields."""
    pieces: list[pa.Array] = []
    for name, node, column in zip(root.names, root.children, columns, strict=True):
        pieces += _pieces(node, column, None, name)
    return pieces


def encode_values(node: AvroNode, values: pa.Array, *, column: str) -> pa.Array:
    """The Avro binary of each value, as a large binary array."""
    return join_pieces(_pieces(node, values, None, column), len(values))


def join_pieces(pieces: list[pa.Array], count: int) -> pa.Array:
    """One binary value a row from the pieces of that row."""
    if not pieces:
        return _binary(np.zeros(count + 1, np.int64), np.empty(0, np.uint8))
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


def binary_lengths(pieces: list[pa.Array], count: int) -> npt.NDArray[np.int64]:
    """Bytes that the pieces of each row take together."""
    total = np.zeros(count, np.int64)
    for piece in pieces:
        total += np.diff(_offsets(piece))
    return total


def binary_values(values: pa.Array) -> memoryview:
    """The bytes of all values of a large binary array, one after the other."""
    offsets = _offsets(values)
    data = values.buffers()[2]
    return memoryview(data)[int(offsets[0]) : int(offsets[-1])] if data is not None else memoryview(b"")


def encode_varints(values: npt.NDArray[np.int64], present: _Mask | None = None) -> pa.Array:
    """Avro's zigzag variable-length form of each integer; empty where not `present`."""
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max(1, -(-int(rest.max()).bit_length() // 7)) if len(rest) else 1
    matrix = np.empty((len(rest), width), np.uint8)
    lengths = np.ones(len(rest), np.int64)
    for position in range(width):
        matrix[:, position] = rest & np.uint64(0x7F)
        rest = rest >> np.uint64(7)
        more = rest != 0
        matrix[:, position] |= more.astype(np.uint8) << 7
        if position + 1 < width:
            lengths += more
    if present is not None:
        lengths *= present
    used = np.arange(width) < lengths[:, None]
    return _binary(_starts(lengths), matrix[used])


def fixed_pieces(values: npt.NDArray[Any]) -> pa.Array:
    """The bytes of each number as they lie in memory."""
    return _fixed_width(values.view(np.uint8).reshape(len(values), values.itemsize), None)


def _pieces(node: AvroNode, values: pa.Array, present: _Mask | None, column: str) -> list[pa.Array]:
    """Pieces of a column; `present` is False for rows that write nothing, None if there are none."""
    valid = None
    if values.null_count:
        valid = np.asarray(values.is_valid())
        hidden = valid if present is None else valid | ~present
        if not node.nullable and not hidden.all():
            raise InvalidRequestError(f"column {column!r} may not be null, but a row has no value in it")
    shown = valid if present is None else present if valid is None else present & valid
    branch = [] if node.union is None else [_branches(node.union, len(values), shown, present)]
    return branch + _value_pieces(node, values, shown, column)


def _branches(union: tuple[int | None, int | None], count: int, shown: _Mask | None, present: _Mask | None) -> pa.Array:
    null, value = (0 if number is None else number * 2 for number in union)
    codes = np.full(count, value, np.uint8)
    if shown is not None:
        codes[~shown] = null
    return _fixed_width(codes[:, None], present)


def _value_pieces(node: AvroNode, values: pa.Array, shown: _Mask | None, column: str) -> list[pa.Array]:
    if node.kind in ("null", "record"):
        pieces: list[pa.Array] = []
        fields = values.flatten() if node.kind == "record" else ()
        for name, child, field in zip(node.names, node.children, fields, strict=True):
            pieces += _pieces(child, field, shown, f"{column}.{name}")
        return pieces
    if node.kind in ("array", "map"):
        return _list_pieces(node, values, shown, column)
    if node.kind in ("int", "long"):
        return [encode_varints(_integers(values), shown)]
    if node.kind == "enum":
        return [encode_varints(_symbols(node, values, shown, column), shown)]
    if node.kind in ("string", "bytes"):
        return _bytes_pieces(values, shown)
    return [_fixed_width(_matrix(node, values), shown)]


def _list_pieces(node: AvroNode, values: pa.Array, shown: _Mask | None, column: str) -> list[pa.Array]:
    counts, items = _list_items(values, shown)
    if node.kind == "map":
        names = (f"{column}.key", f"{column}.value")
        pieces: list[pa.Array] = []
        for child, field, name in zip(node.children, items.flatten(), names, strict=True):
            pieces += _pieces(child, field, None, name)
        encoded = join_pieces(pieces, len(items))
    else:
        encoded = encode_values(node.children[0], items, column=f"{column}.element")
    bounds = _offsets(encoded)[_starts(counts)]
    block = pa.Array.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(bounds), encoded.buffers()[2]])
    end = _fixed_width(np.zeros((len(values), 1), np.uint8), shown)
    return [encode_varints(counts, counts > 0), block, end]


def _list_items(values: pa.Array, shown: _Mask | None) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Number of items of each row that is shown, and those items; a null row may lie over items of its own."""
    offsets = np.asarray(values.offsets).astype(np.int64)
    counts = np.diff(offsets)
    if shown is not None:
        counts *= shown
    total = int(counts.sum())
    if total == offsets[-1] - offsets[0]:
        return counts, values.values.slice(int(offsets[0]), total)
    shifts = offsets[:-1] - _starts(counts)[:-1]
    return counts, values.values.take(pa.array(np.arange(total) + np.repeat(shifts, counts)))


def _bytes_pieces(values: pa.Array, shown: _Mask | None) -> list[pa.Array]:
    if pa.types.is_decimal(values.type):
        data = _decimal_bytes(values, shown)
    else:
        data = values.cast(pa.large_string() if pa.types.is_string(values.type) else pa.large_binary())
        data = data.cast(pa.large_binary())
        if data.null_count:
            data = pc.fill_null(data, b"")
    return [encode_varints(np.diff(_offsets(data)), shown), data]


def _integers(values: pa.Array) -> npt.NDArray[np.int64]:
    storage = pa.int32() if values.type.bit_width == 32 else pa.int64()
    return np.asarray(pc.fill_null(values.view(storage), 0)).astype(np.int64)


def _symbols(node: AvroNode, values: pa.Array, shown: _Mask | None, column: str) -> npt.NDArray[np.int64]:
    numbers = pc.index_in(values, value_set=pa.array(node.symbols, pa.string()))
    found = np.asarray(numbers.is_valid())
    if not (found if shown is None else found | ~shown).all():
        raise InvalidRequestError(f"column {column!r} has a value that is none of the symbols of its enum")
    return np.asarray(pc.fill_null(numbers, 0)).astype(np.int64)


def _matrix(node: AvroNode, values: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of a fixed-width column, one row of bytes a value."""
    if node.kind == "boolean":
        return np.asarray(pc.fill_null(values, False).cast(pa.uint8()))[:, None]
    if node.kind in ("float", "double"):
        width = 4 if node.kind == "float" else 8
        return np.asarray(pc.fill_null(values, 0.0)).astype(f"<f{width}").view(np.uint8).reshape(-1, width)
    if pa.types.is_decimal(values.type):
        return _decimal_matrix(values)[:, 16 - node.size :]
    return _fixed_buffer(values, node.size)


def _decimal_matrix(values: pa.Array) -> npt.NDArray[np.uint8]:
    """Unscaled values as 16 bytes, highest first."""
    return _fixed_buffer(values, 16)[:, ::-1]


def _fixed_buffer(values: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    data = np.frombuffer(values.buffers()[1], np.uint8, len(values) * width, values.offset * width)
    return data.reshape(-1, width)


def _decimal_bytes(values: pa.Array, shown: _Mask | None) -> pa.Array:
    """Unscaled values in the fewest bytes that keep their sign."""
    matrix = _decimal_matrix(values)
    negative = matrix[:, :1] >> 7
    redundant = (matrix[:, :-1] == negative * np.uint8(0xFF)) & (matrix[:, 1:] >> 7 == negative)
    skipped = np.cumprod(redundant, axis=1, dtype=np.uint8).sum(axis=1, dtype=np.int64)
    lengths = 16 - skipped
    if shown is not None:
        lengths *= shown
    used = np.arange(16) >= 16 - lengths[:, None]
    return _binary(_starts(lengths), matrix[used])


def _fixed_width(matrix: npt.NDArray[np.uint8], present: _Mask | None) -> pa.Array:
    count, width = matrix.shape
    if present is None:
        return _binary(np.arange(count + 1, dtype=np.int64) * width, np.ascontiguousarray(matrix))
    return _binary(_starts(present * np.int64(width)), np.ascontiguousarray(matrix[present]))


def _starts(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _offsets(values: Any) -> npt.NDArray[np.int64]:
    offsets: npt.NDArray[np.int64] = np.frombuffer(values.buffers()[1], np.int64)
    return offsets[values.offset : values.offset + len(values) + 1]


def _binary(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
