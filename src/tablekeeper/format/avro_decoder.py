"""Avro binary -> Arrow arrays, one field of all records at a time.

A decoder holds the bytes of some records and keeps one position a record. Reading a field gathers
the bytes at all positions at once and moves all positions on, so the work is done by numpy and
Arrow, not by Python. Strings are not copied one by one: ends and starts, in the order of the bytes,
are the offsets of an Arrow array over the bytes themselves, of which every other value is taken.

Safe against any input: positions only grow, a value never reaches past the end of its record, a
count of items never exceeds what the bytes left can hold, and a record that does not end where its
length says is an error. Bytes after the records are zeros, so reading a word there is harmless.
Readers are never called for no rows at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.format.avro_types import AvroNode
from tablekeeper.format.avro_walk import MAX_EMPTY_ITEMS, MalformedAvroError, walk_items

__all__ = ["RecordDecoder"]

_Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_Mask = npt.NDArray[np.bool_]
_PADDING = 16
# With fewer records than this left, one step of numpy costs more than a walk in Python.
_FEW = 16
_U1, _U7, _U56 = np.uint64(1), np.uint64(7), np.uint64(56)
_CONTINUED = np.uint64(0x8080808080808080)
_BYTE_NUMBERS = np.uint64(0x0102030405060708)


class RecordDecoder:
    """Decodes records that lie in `data` in order and without overlap: `ends[i] <= starts[i + 1]`."""

    def __init__(self, data: memoryview) -> None:
        self._limit = len(data)
        self._raw = b"".join((data, bytes(_PADDING)))
        self._data = np.frombuffer(self._raw, np.uint8)
        self._buffer = pa.py_buffer(self._raw)
        self._windows: dict[int, npt.NDArray[Any]] = {}

    def columns(self, root: AvroNode, starts: _Ints, ends: _Ints, wanted: frozenset[str] | None) -> list[pa.Array]:
        """The arrays of the record's fields, or of those in `wanted`, in the order of the schema."""
        arrays = []
        at = starts
        for name, node in zip(root.names, root.children, strict=True):
            keep = wanted is None or name in wanted
            array, at = self._field(node, at, ends, keep)
            if keep:
                arrays.append(array)
        if not np.array_equal(at, ends):
            raise MalformedAvroError("a record does not end where its length says")
        return arrays

    # Values. Each reader gives the array (None unless `keep`) and the positions after the values.

    def _field(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool) -> tuple[Any, _Ints]:
        if not len(at):
            return pa.nulls(0, node.arrow), at
        if node.union is None:
            return self._value(node, at, ends, keep, None)
        branches = self._bytes_at(at)
        at = at + 1
        null, value = node.union
        full = branches == (255 if value is None else value * 2)
        if full.all():
            return self._value(node, at, ends, keep, None)
        if null is None or not (full | (branches == null * 2)).all():
            raise MalformedAvroError("a branch that the union does not have")
        if not full.any():
            return (_nulls(node, len(at)) if keep else None), at
        return self._value(node, at, ends, keep, full)

    def _value(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        """Read values at `at`, at the rows in `full` only if it is given; the others are null."""
        reader = _READERS[node.kind]
        if full is None or node.kind in ("string", "bytes"):
            return reader(self, node, at, ends, keep, full)
        rows = np.flatnonzero(full)
        array, after = reader(self, node, at[rows], ends[rows], keep, full)
        at = at.copy()
        at[rows] = after
        return array, at

    def _null(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        return pa.nulls(len(at) if full is None else len(full)), at

    def _boolean(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        values = self._bytes_at(at)
        if values.max() > 1:
            raise MalformedAvroError("a boolean that is neither 0 nor 1")
        if not keep:
            return None, at + 1
        values = values if full is None else _scattered(values, full)
        return _array(node.arrow, len(values), full, np.packbits(values, bitorder="little")), at + 1

    def _integer(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        if not keep:
            return None, self._after_longs(at)
        longs, at = self.longs(at)
        values: npt.NDArray[Any] = _narrowed(longs) if node.kind == "int" else longs
        values = values if full is None else _scattered(values, full)
        return _array(node.arrow, len(values), full, values), at

    def _float(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        size = 4 if node.kind == "float" else 8
        if not keep:
            return None, at + size
        values = self._window(at, size).view(f"<u{size}")
        values = values if full is None else _scattered(values, full)
        return _array(node.arrow, len(values), full, values), at + size

    def _fixed(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        after = at + node.size
        if (after > ends).any():
            raise MalformedAvroError("a fixed value that runs past the end of its record")
        if not keep:
            return None, after
        if pa.types.is_decimal(node.arrow):
            sizes = np.full(len(at), node.size, np.int64)
            return self._decimals(node, at, sizes, full), after
        values = self._window(at, node.size)
        values = values if full is None else _scattered(values, full)
        return _array(node.arrow, len(values), full, values), after

    def _enum(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        numbers, at = self.longs(at)
        if numbers.min() < 0 or numbers.max() >= len(node.symbols):
            raise MalformedAvroError("a symbol that the enum does not have")
        if not keep:
            return None, at
        numbers = numbers if full is None else _scattered(numbers, full)
        indices = _array(pa.int64(), len(numbers), full, numbers)
        return pa.array(node.symbols, pa.string()).take(indices), at

    def _bytes(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        """Strings and bytes. Rows not in `full` are empty ranges, which keeps all ranges in order."""
        if full is None:
            sizes, starts = self._sizes(at, ends)
        else:
            rows = np.flatnonzero(full)
            sizes, starts = np.zeros(len(at), np.int64), at.copy()
            sizes[rows], starts[rows] = self._sizes(at[rows], ends[rows])
        after = starts + sizes
        if not keep:
            return None, after
        if pa.types.is_decimal(node.arrow):
            chosen = slice(None) if full is None else full
            return self._decimals(node, starts[chosen], sizes[chosen], full), after
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[0::2] = starts
        offsets[1::2] = after
        ranges = pa.Array.from_buffers(node.arrow, len(offsets) - 1, [None, pa.py_buffer(offsets), self._buffer])
        every_other = np.arange(0, len(offsets), 2, dtype=np.int32)
        array = ranges.take(_array(pa.int32(), len(starts), full, every_other))
        if node.kind == "string":
            _check_utf8(array)
        return array, after

    def _record(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        arrays = []
        for child in node.children:
            array, at = self._field(child, at, ends, keep)
            arrays.append(array)
        if not keep:
            return None, at
        if full is not None:
            # Rows without a value repeat one that is there: a field that may not be null has no null anywhere.
            sources = pa.array(np.maximum(np.cumsum(full) - 1, 0))
            arrays = [array.take(sources) for array in arrays]
        count = len(at) if full is None else len(full)
        return pa.Array.from_buffers(node.arrow, count, [_validity(full)], children=arrays), at

    def _list(self, node: AvroNode, at: _Ints, ends: _Ints, keep: bool, full: _Mask | None) -> tuple[Any, _Ints]:
        item = _item_node(node)
        counts, starts, at = self._items(item, at, ends)
        if not keep:
            return None, at
        items, _after = self._field(item, starts, np.repeat(ends, counts), True)
        counts = counts if full is None else _scattered(counts, full)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        buffers = [_validity(full), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(node.arrow, len(counts), buffers, children=[items]), at

    # Items of arrays and maps

    def _items(self, item: AvroNode, at: _Ints, ends: _Ints) -> tuple[_Ints, _Ints, _Ints]:
        """For each row the number of items, then the start of every item, then the position after the row."""
        at = at.copy()
        counts = np.zeros(len(at), np.int64)
        found: list[_Ints] = []
        rows = np.arange(len(at))
        while len(rows) >= _FEW:
            lefts = self._block_counts(at, rows, item, ends)
            rows, lefts = rows[lefts > 0], lefts[lefts > 0]
            counts[rows] += lefts
            found += self._step_items(item, at, ends, rows, lefts)
        for row in rows.tolist():
            starts, at[row] = walk_items(item, self._raw, int(at[row]), int(ends[row]))
            counts[row] += len(starts)
            found.append(np.array(starts, np.int64))
        return counts, np.sort(np.concatenate(found)) if found else np.empty(0, np.int64), at

    def _step_items(self, item: AvroNode, at: _Ints, ends: _Ints, rows: _Ints, lefts: _Ints) -> list[_Ints]:
        """Move over one block of items in each of `rows`, one item of all rows at a time; where they start."""
        found: list[_Ints] = []
        while len(rows) >= _FEW:
            found.append(at[rows])
            _skipped, at[rows] = self._field(item, at[rows], ends[rows], False)
            more = lefts > len(found)
            rows, lefts = rows[more], lefts[more]
        for row, left in zip(rows.tolist(), (lefts - len(found)).tolist(), strict=True):
            starts, at[row] = walk_items(item, self._raw, int(at[row]), int(ends[row]), count=left)
            found.append(np.array(starts, np.int64))
        return found

    def _block_counts(self, at: _Ints, rows: _Ints, item: AvroNode, ends: _Ints) -> _Ints:
        """Read the head of a block in each of `rows`: its number of items, 0 for the end."""
        lefts, at[rows] = self.longs(at[rows])
        sized = rows[lefts < 0]
        if len(sized):
            # A negative count is followed by the size of the block in bytes, for readers that skip it.
            _sizes, at[sized] = self.longs(at[sized])
            lefts = np.abs(lefts)
        room = (ends[rows] - at[rows]) // item.min_size if item.min_size else np.int64(MAX_EMPTY_ITEMS)
        if (lefts < 0).any() or (lefts > room).any():
            raise MalformedAvroError("more items than bytes to hold them")
        return lefts

    # Numbers

    def longs(self, at: _Ints) -> tuple[_Ints, _Ints]:
        """Zigzag variable-length integers at these positions, and the positions after them."""
        first = self._bytes_at(at)
        if first.max() < 0x80:
            short = first.astype(np.int64)
            return (short >> 1) ^ -(short & 1), at + 1
        words = self._window(at, 8).view("<u8")
        last = _last_bits(words)
        sizes = _sizes_by_last_bit(last)
        words &= (last << _U1) - _U1
        values = _sevens(words)
        long = np.flatnonzero(last == 0)
        if len(long):
            values[long], sizes[long] = self._long_tail(at[long], values[long])
        negative = -(values & _U1).view(np.int64)
        return (values >> _U1).view(np.int64) ^ negative, at + sizes

    def _after_longs(self, at: _Ints) -> _Ints:
        """The positions after the integers at these positions."""
        first = self._bytes_at(at)
        if first.max() < 0x80:
            return at + 1
        sizes = _sizes_by_last_bit(_last_bits(self._window(at, 8).view("<u8")))
        long = np.flatnonzero(sizes == 0)
        if len(long):
            _values, sizes[long] = self._long_tail(at[long], np.zeros(len(long), np.uint64))
        return at + sizes

    def _long_tail(self, at: _Ints, values: _Words) -> tuple[_Words, _Ints]:
        """Add bytes nine and ten to integers whose first eight bytes all say that more follow."""
        ninth = self._data[at + 8].astype(np.uint64)
        tenth = self._data[at + 9].astype(np.uint64)
        is_ten = ninth >= 0x80
        if (tenth[is_ten] > 1).any():
            raise MalformedAvroError("an integer of more than 64 bits")
        values = values | ((ninth & np.uint64(0x7F)) << _U56)
        values[is_ten] |= tenth[is_ten] << np.uint64(63)
        return values, np.where(is_ten, 10, 9)

    def _sizes(self, at: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
        """Lengths of strings or bytes and where their bytes start, all inside the records."""
        sizes, starts = self.longs(at)
        if sizes.min() < 0 or sizes.max() > self._limit or (starts + sizes > ends).any():
            raise MalformedAvroError("a value that runs past the end of its record")
        return sizes, starts

    def _decimals(self, node: AvroNode, at: _Ints, sizes: _Ints, full: _Mask | None) -> pa.Array:
        """Big-endian two's complement numbers of 1 to 16 bytes."""
        if sizes.min() < 1 or sizes.max() > 16:
            raise MalformedAvroError("a decimal of no or of more than 16 bytes")
        heads = self._window(at, 8).view(">i8").astype(np.int64)
        pairs = np.empty((len(at), 2), np.int64)
        pairs[:, 0] = heads >> np.maximum(64 - 8 * sizes, 0)
        pairs[:, 1] = heads >> 63
        wide = np.flatnonzero(sizes > 8)
        if len(wide):
            pairs[wide, 0] = self._window(at[wide] + sizes[wide] - 8, 8).view(">i8")
            pairs[wide, 1] = heads[wide] >> (128 - 8 * sizes[wide])
        pairs = pairs if full is None else _scattered(pairs, full)
        array = _array(node.arrow, len(pairs), full, pairs)
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise MalformedAvroError("a decimal with more digits than its type allows") from error
        return array

    # Bytes

    def _bytes_at(self, at: _Ints) -> npt.NDArray[np.uint8]:
        if at.max() > self._limit:
            raise MalformedAvroError("a value that runs past the end of the data")
        return self._data[at]

    def _window(self, at: _Ints, size: int) -> npt.NDArray[Any]:
        """`size` bytes at each position, as values of that width."""
        if at.max() > self._limit:
            raise MalformedAvroError("a value that runs past the end of the data")
        window = self._windows.get(size)
        if window is None:
            # Overlapping values, one for each byte: unaligned loads without a matrix of indices.
            shape = (max(0, len(self._data) - size + 1),)
            window = np.ndarray(shape, dtype=f"V{size}", buffer=self._data, strides=(1,))
            self._windows[size] = window
        return window[at]


_Reader = Callable[[RecordDecoder, AvroNode, _Ints, _Ints, bool, _Mask | None], tuple[Any, _Ints]]
_READERS: dict[str, _Reader] = {
    "null": RecordDecoder._null,
    "boolean": RecordDecoder._boolean,
    "int": RecordDecoder._integer,
    "long": RecordDecoder._integer,
    "float": RecordDecoder._float,
    "double": RecordDecoder._float,
    "string": RecordDecoder._bytes,
    "bytes": RecordDecoder._bytes,
    "fixed": RecordDecoder._fixed,
    "enum": RecordDecoder._enum,
    "record": RecordDecoder._record,
    "array": RecordDecoder._list,
    "map": RecordDecoder._list,
}


def _item_node(node: AvroNode) -> AvroNode:
    if node.kind == "array":
        return node.children[0]
    names = ("key", "value")
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), node.children[1].field("value")])
    return AvroNode("record", entry, children=node.children, names=names)


def _last_bits(words: _Words) -> _Words:
    """The highest bit of the first byte that ends an integer; 0 if none of the eight bytes does."""
    last = ~words & _CONTINUED
    last &= ~last + _U1
    return last


def _sizes_by_last_bit(last: _Words) -> _Ints:
    """Number of bytes up to the one with that bit: the factor has the answer for each at its top."""
    return (((last >> _U7) * _BYTE_NUMBERS) >> _U56).view(np.int64)


def _sevens(words: _Words) -> _Words:
    """Close up the seven low bits of each of eight bytes to one number of 56 bits."""
    words = (words & np.uint64(0x007F007F007F007F)) | ((words & np.uint64(0x7F007F007F007F00)) >> _U1)
    words = (words & np.uint64(0x00003FFF00003FFF)) | ((words & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (words & np.uint64(0x000000000FFFFFFF)) | ((words & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))


def _narrowed(values: _Ints) -> npt.NDArray[np.int32]:
    narrow = values.astype(np.int32)
    if not np.array_equal(narrow, values):
        raise MalformedAvroError("an int of more than 32 bits")
    return narrow


def _scattered(values: npt.NDArray[Any], full: _Mask) -> npt.NDArray[Any]:
    spread = np.zeros((len(full), *values.shape[1:]), values.dtype)
    spread[full] = values
    return spread


def _nulls(node: AvroNode, count: int) -> pa.Array:
    if node.kind != "record":
        return pa.nulls(count, node.arrow)
    first = pa.array(np.zeros(count, np.int64))
    fields = [pa.array([_default(field.type)], field.type).take(first) for field in node.arrow]
    return pa.Array.from_buffers(node.arrow, count, [_validity(np.zeros(count, np.bool_))], children=fields)


def _default(arrow: pa.DataType) -> Any:
    """Some value of the type, for fields that may not be null inside of a null struct."""
    if pa.types.is_struct(arrow):
        return {field.name: _default(field.type) for field in arrow}
    if pa.types.is_fixed_size_binary(arrow):
        return bytes(arrow.byte_width)
    for matches, value in _DEFAULTS:
        if matches(arrow):
            return value
    return 0


_DEFAULTS: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pa.types.is_nested, []),
    (pa.types.is_string, ""),
    (pa.types.is_binary, b""),
    (pa.types.is_boolean, False),
    (pa.types.is_null, None),
)


def _validity(full: _Mask | None) -> Any:
    return None if full is None else pa.py_buffer(np.packbits(full, bitorder="little"))


def _array(arrow: pa.DataType, count: int, full: _Mask | None, values: npt.NDArray[Any]) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(arrow, count, [_validity(full), buffer])


def _check_utf8(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise MalformedAvroError("a string that is not UTF-8") from error
