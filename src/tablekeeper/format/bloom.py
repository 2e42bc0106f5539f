"""Bloom filters over record keys, as they stand in the footers of base files.

A filter is a header (number of hash functions, number of bits) and the bits; DYNAMIC_V0, which Java writes
by default, is a list of such filters. Building is on the hot path of every write, so whole columns are hashed
with numpy: keys of equal length are laid out as 32-bit words, in chunks that stay in the processor's cache, and
every arithmetic step is done in place. While a filter is built a bit takes a byte: setting bytes needs no
reading, and numpy packs them in one pass at the end.

Java takes the number of hash functions from the header. Filters built here have at most `MAX_HASHES` of them and
slightly more bits instead, which keeps the promised rate of false positives at about half the cost.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hashing import as_binary, equal_length_groups

__all__ = ["MAX_HASHES", "BloomFilterBuilder", "BloomProbe", "bloom_size", "build_bloom_filter", "might_contain"]

MAX_HASHES = 16

_HEADER = struct.Struct(">iibi")
_DYNAMIC_HEADER = struct.Struct(">iii")
_SIMPLE = "SIMPLE"
_DYNAMIC = "DYNAMIC_V0"
_VERSION = -1
_MURMUR = 1
_MOST_READABLE_HASHES = 4096
# Bounds the memory of a builder to 64 MiB; a filter over more keys than fit has more false positives.
_MOST_BITS = 2**26
_CHUNK = 16_384

_M = np.uint32(0x5BD1E995)
_SHIFT_13 = np.uint32(13)
_SHIFT_15 = np.uint32(15)
_SHIFT_24 = np.uint32(24)


def bloom_size(*, expected_entries: int, false_positive_rate: float, max_hashes: int = MAX_HASHES) -> tuple[int, int]:
    """Bits and hash functions of a filter that, with that many keys in it, has that rate of false positives.

    With enough `max_hashes` this is the optimum, which Java computes; with fewer, a filter with more bits.
    """
    entries = max(1, expected_entries)
    bits = math.ceil(entries * -math.log(false_positive_rate) / math.log(2) ** 2)
    hashes = math.ceil(math.log(2) * bits / entries)
    if hashes > max_hashes:
        hashes = max_hashes
        bits = math.ceil(-hashes * entries / math.log1p(-(false_positive_rate ** (1 / hashes))))
    if bits > _MOST_BITS:
        bits, hashes = _MOST_BITS, max(1, round(math.log(2) * _MOST_BITS / entries))
    return bits, min(hashes, max_hashes)


class BloomFilterBuilder:
    """A SIMPLE filter in the making. Takes a byte of memory for each bit of the filter."""

    def __init__(self, expected_entries: int, false_positive_rate: float, *, max_hashes: int = MAX_HASHES) -> None:
        if expected_entries < 0 or not 0 < false_positive_rate < 1:
            raise ValueError(f"no filter over {expected_entries} keys has a rate of {false_positive_rate}")
        bits, self._hashes = bloom_size(
            expected_entries=expected_entries, false_positive_rate=false_positive_rate, max_hashes=max_hashes
        )
        self._bits = np.zeros(bits, dtype=np.bool_)

    def add(self, keys: pa.Array | pa.ChunkedArray) -> None:
        """Put keys into the filter. Nulls are left out."""
        bits = self._bits
        for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
            for _, rows in equal_length_groups(as_binary(chunk)):
                for start in range(0, len(rows), _CHUNK):
                    for positions in _positions(rows[start : start + _CHUNK], hashes=self._hashes, bits=len(bits)):
                        bits[positions] = True

    def encode(self) -> bytes:
        """The filter as it stands in a footer, before Base64."""
        header = _HEADER.pack(_VERSION, self._hashes, _MURMUR, len(self._bits))
        return header + np.packbits(self._bits, bitorder="little").tobytes()


def build_bloom_filter(keys: pa.Array, *, expected_entries: int, false_positive_rate: float) -> bytes:
    """A SIMPLE filter over all keys of a column."""
    builder = BloomFilterBuilder(expected_entries, false_positive_rate)
    builder.add(keys)
    return builder.encode()


def might_contain(
    filter_bytes: bytes, keys: pa.Array, *, bloom_type: str | None = None, file: str = "bloom filter"
) -> npt.NDArray[np.bool_]:
    """For each key, False if it is certainly not in the filter. A null is in no filter.

    `bloom_type` is what the footer calls the filter, SIMPLE or DYNAMIC_V0; without it the length decides.
    """
    filters = _decode_filters(filter_bytes, bloom_type=bloom_type, file=file)
    found = np.zeros(len(keys), dtype=np.bool_)
    for places, rows in equal_length_groups(as_binary(keys)):
        group = np.zeros(len(rows), dtype=np.bool_)
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            for part in filters:
                group[start : start + _CHUNK] |= part.might_contain(chunk)
        found[slice(None) if places is None else places] = group
    return found


class BloomProbe:
    """Keys, none of them null, that are looked up in many filters: each is hashed once, however many these are.

    The hashes do not depend on the filter; the bits do. They are made round by round, when a filter first asks.
    """

    def __init__(self, keys: pa.Array) -> None:
        self._count = len(keys)
        self._sources: list[tuple[slice | npt.NDArray[np.intp], Iterator[npt.NDArray[np.uint32]]]] = []
        for places, rows in equal_length_groups(as_binary(keys)):
            for start in range(0, len(rows), _CHUNK):
                of_chunk = slice(start, start + _CHUNK) if places is None else places[start : start + _CHUNK]
                self._sources.append((of_chunk, _hashes(rows[start : start + _CHUNK], count=_MOST_READABLE_HASHES)))
        self._rounds: list[npt.NDArray[np.uint32]] = []

    def candidates(
        self, filter_bytes: bytes, *, first: int, end: int, bloom_type: str | None, file: str
    ) -> npt.NDArray[np.intp]:
        """Places of those keys, from the one at `first` up to `end`, that may be in the filter, in order."""
        filters = _decode_filters(filter_bytes, bloom_type=bloom_type, file=file)
        found = [self._alive(each, np.arange(first, end)) for each in filters]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _alive(self, each: _Filter, places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        for number in range(each.hashes):
            if not len(places):
                break
            positions = self._round(number)[places] % np.uint32(each.bits)
            places = places[each.has(positions)]
        return places

    def _round(self, number: int) -> npt.NDArray[np.uint32]:
        while len(self._rounds) <= number:
            made = np.empty(self._count, np.uint32)
            for places, hashes in self._sources:
                made[places] = next(hashes)
            self._rounds.append(made)
        return self._rounds[number]


@dataclass(frozen=True, slots=True)
class _Filter:
    """One plain filter: the bits are packed, lowest first."""

    hashes: int
    bits: int
    content: npt.NDArray[np.uint8]

    def has(self, positions: npt.NDArray[np.intp] | npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Whether the bits at these positions are set."""
        is_set: npt.NDArray[np.bool_] = (self.content[positions >> 3] >> (positions & 7)) & 1 != 0
        return is_set

    def might_contain(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        alive = np.ones(len(rows), dtype=np.bool_)
        for positions in _positions(rows, hashes=self.hashes, bits=self.bits):
            alive &= self.has(positions)
            if not alive.any():
                break
        return alive


def _decode_filters(data: bytes, *, bloom_type: str | None, file: str) -> list[_Filter]:
    """The plain filters that a SIMPLE (one) or DYNAMIC_V0 (any number) filter consists of."""
    hashes, bits = _decode_header(data, 0, file=file)
    size = _HEADER.size + (bits + 7) // 8
    if bloom_type not in (None, (_SIMPLE if len(data) == size else _DYNAMIC)):
        raise CorruptTableError(file=file, reason=f"the bloom filter is not a whole {bloom_type} filter")
    if len(data) == size:
        return [_decode_filter(data, 0, hashes=hashes, bits=bits)]
    start = _HEADER.size + _DYNAMIC_HEADER.size
    if len(data) < start:
        raise CorruptTableError(file=file, reason="the bloom filter ends early")
    count = _DYNAMIC_HEADER.unpack_from(data, _HEADER.size)[2]
    if count < 1 or len(data) != start + count * size:
        raise CorruptTableError(file=file, reason="the bloom filter has the wrong length")
    offsets = range(start, len(data), size)
    if any(_decode_header(data, offset, file=file) != (hashes, bits) for offset in offsets):
        raise CorruptTableError(file=file, reason="the rows of the bloom filter differ in size")
    return [_decode_filter(data, offset, hashes=hashes, bits=bits) for offset in offsets]


def _decode_header(data: bytes, offset: int, *, file: str) -> tuple[int, int]:
    if len(data) < offset + _HEADER.size:
        raise CorruptTableError(file=file, reason="the bloom filter ends early")
    version, hashes, kind, bits = _HEADER.unpack_from(data, offset)
    if version != _VERSION or kind != _MURMUR or not 0 < hashes <= _MOST_READABLE_HASHES or bits <= 0:
        raise CorruptTableError(file=file, reason="the header of the bloom filter is wrong, or of an unknown kind")
    return hashes, bits


def _decode_filter(data: bytes, offset: int, *, hashes: int, bits: int) -> _Filter:
    content = np.frombuffer(data, dtype=np.uint8, count=(bits + 7) // 8, offset=offset + _HEADER.size)
    return _Filter(hashes, bits, content)


def _positions(rows: npt.NDArray[np.uint8], *, hashes: int, bits: int) -> Iterator[npt.NDArray[np.intp]]:
    """For each hash function in turn, the bit of every row. The array is the same one each time, refilled."""
    divisor = np.uint32(bits)
    quotient = np.empty(len(rows), dtype=np.uint32)
    positions = np.empty(len(rows), dtype=np.intp)
    for hashed in _hashes(rows, count=hashes):
        # Dividing by a constant is vectorised in numpy, taking the remainder is not.
        np.floor_divide(hashed, divisor, out=quotient)
        np.multiply(quotient, divisor, out=quotient)
        np.subtract(hashed, quotient, out=hashed)
        np.copyto(positions, hashed)
        yield positions


def _hashes(rows: npt.NDArray[np.uint8], *, count: int) -> Iterator[npt.NDArray[np.uint32]]:
    """What each hash function in turn makes of every row. The array is the same one each time, refilled.

    Each function is murmur2 with the hash before as its seed, of which the absolute value counts.
    """
    length = np.uint32(rows.shape[1])
    words, tail = _words(rows)
    seed = np.zeros(len(rows), dtype=np.uint32)
    work = np.empty(len(rows), dtype=np.uint32)
    signed_seed, signed_work = seed.view(np.int32), work.view(np.int32)
    for _ in range(count):
        np.bitwise_xor(seed, length, out=seed)
        for word in words:
            np.multiply(seed, _M, out=seed)
            np.bitwise_xor(seed, word, out=seed)
        if tail is not None:
            np.bitwise_xor(seed, tail, out=seed)
            np.multiply(seed, _M, out=seed)
        np.right_shift(seed, _SHIFT_13, out=work)
        np.bitwise_xor(seed, work, out=seed)
        np.multiply(seed, _M, out=seed)
        np.right_shift(seed, _SHIFT_15, out=work)
        np.bitwise_xor(seed, work, out=seed)
        # The absolute value of the lowest integer is itself, which is the right number once it is read without sign.
        np.absolute(signed_seed, out=signed_work)
        yield work


def _words(rows: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32] | None]:
    """What does not depend on the seed: the mixed 32-bit words, one array a word, and the last 1 to 3 bytes."""
    count, length = rows.shape
    whole = length // 4
    words = np.empty((whole, count), dtype=np.uint32)
    for index in range(whole):
        words[index] = np.ndarray((count,), dtype="<u4", buffer=rows, offset=4 * index, strides=(length,))
    words *= _M
    words ^= words >> _SHIFT_24
    words *= _M
    if length % 4 == 0:
        return words, None
    tail = np.zeros(count, dtype=np.int32)
    for shift, column in enumerate(range(length - 1, 4 * whole - 1, -1)):
        # Java widens these bytes with their sign.
        tail ^= rows[:, column].view(np.int8).astype(np.int32) << (8 * shift)
    return words, tail.view(np.uint32)
