"""The index of an HFile: which block begins with which key.

A file with few data blocks has one level, the root, which names them all. In one with many, the root names blocks of
the next level, in which a key is found by halving without taking them apart: a look-up costs what its keys cost.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import lt
from typing import NamedTuple

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hfile_layout import INDEX_ENTRY

__all__ = ["IndexEntry", "LowerIndex", "RootIndex", "decode_named_blocks", "route"]

_LONGEST_IN_A_BYTE = 127
_KEY_SIZE = struct.Struct(">h")
_COUNT = struct.Struct(">i")


class IndexEntry(NamedTuple):
    """A block: the key that it begins with, and where it lies."""

    key: bytes
    offset: int
    size: int


class RootIndex:
    """The root, of `count` entries. Its keys rise strictly."""

    def __init__(self, data: bytes, count: int, *, file: str) -> None:
        self._data = data
        self._file = file
        self._places: list[int] = []
        self._keys: list[bytes] = []
        # A large file has an entry for each few kilobytes: this loop is most of what opening it costs.
        for place, start, end in _entries(data, count, file=file):
            self._places.append(place)
            content = start + _KEY_SIZE.size
            stop = content + (data[start] << 8 | data[start + 1]) if end - start > 1 else end + 1
            # After the content of a key there may be fields of HBase's own.
            if stop > end or data[start] > _LONGEST_IN_A_BYTE:
                raise CorruptTableError(file=file, reason="HFile key is cut off")
            self._keys.append(data[content:stop])
        if not all(map(lt, self._keys, self._keys[1:])):
            raise CorruptTableError(file=file, reason="HFile index is not in order")

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: bytes) -> int:
        """The number of the entry whose block can hold `key`; -1 if there is none."""
        return bisect_right(self._keys, key) - 1

    def entry(self, number: int) -> IndexEntry:
        return IndexEntry(self._keys[number], *INDEX_ENTRY.unpack_from(self._data, self._places[number]))


class LowerIndex:
    """The content of an index block below the root. Its entries are looked at when they are asked for."""

    def __init__(self, data: bytes, *, file: str) -> None:
        self._data = data
        self._file = file
        count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else -1
        self._start = _COUNT.size * (count + 2)
        if count < 0 or self._start > len(data):
            raise CorruptTableError(file=file, reason=f"HFile index block cannot hold {count} entries")
        self._relative: tuple[int, ...] = struct.unpack_from(f">{count + 1}i", data, _COUNT.size)

    def __len__(self) -> int:
        return len(self._relative) - 1

    def find(self, key: bytes) -> int:
        """The number of the entry whose block can hold `key`; -1 if there is none."""
        return bisect_right(range(len(self)), key, key=lambda number: self.entry(number).key) - 1

    def entry(self, number: int) -> IndexEntry:
        start, end = self._relative[number], self._relative[number + 1]
        content = INDEX_ENTRY.size + _KEY_SIZE.size
        raw = self._data[self._start + start : self._start + end] if 0 <= start < end else b""
        if len(raw) != end - start or len(raw) < content:
            raise CorruptTableError(file=self._file, reason="HFile index entry is cut off")
        stop = content + _KEY_SIZE.unpack_from(raw, INDEX_ENTRY.size)[0]
        if not content <= stop <= len(raw):
            raise CorruptTableError(file=self._file, reason="HFile key is cut off")
        return IndexEntry(raw[content:stop], *INDEX_ENTRY.unpack_from(raw))


def route(index: RootIndex | LowerIndex, keys: Sequence[bytes]) -> dict[IndexEntry, list[bytes]]:
    """By block that can hold them, those of `keys` that some block can hold."""
    numbers: dict[int, list[bytes]] = {}
    for key in keys:
        number = index.find(key)
        if number >= 0:
            numbers.setdefault(number, []).append(key)
    return {index.entry(number): found for number, found in numbers.items()}


def decode_named_blocks(data: bytes, count: int, *, file: str) -> dict[bytes, IndexEntry]:
    """The blocks of the meta index, which have names instead of keys."""
    found = [
        IndexEntry(data[start:end], *INDEX_ENTRY.unpack_from(data, place))
        for place, start, end in _entries(data, count, file=file)
    ]
    return {entry.key: entry for entry in found}


def _entries(data: bytes, count: int, *, file: str) -> Iterator[tuple[int, int, int]]:
    """Where each entry of a root begins, and where its stored key begins and ends."""
    head, size, position = INDEX_ENTRY.size, len(data), 0
    for _ in range(count):
        place = position
        if position + head >= size:
            raise CorruptTableError(file=file, reason=f"HFile index has fewer entries than the {count} of the trailer")
        length, start = data[position + head], position + head + 1
        if length > _LONGEST_IN_A_BYTE:
            length, start = _decode_vint(data, start - 1, file=file)
        position = start + length
        if length < 0 or position > size:
            raise CorruptTableError(file=file, reason="HFile index key is cut off")
        yield place, start, position
    if position != size:
        raise CorruptTableError(file=file, reason=f"HFile index has more entries than the {count} of the trailer")


def _decode_vint(data: bytes, position: int, *, file: str) -> tuple[int, int]:
    """Hadoop's variable-length integer: one byte for -112..127, else a length byte and big-endian bytes."""
    first = data[position] - 256 if data[position] > _LONGEST_IN_A_BYTE else data[position]
    if first >= -112:
        return first, position + 1
    negative = first < -120
    size = -(first + 120) if negative else -(first + 112)
    raw = data[position + 1 : position + 1 + size]
    if len(raw) != size:
        raise CorruptTableError(file=file, reason="HFile index is cut off")
    value = int.from_bytes(raw, "big")
    return (~value if negative else value), position + 1 + size
