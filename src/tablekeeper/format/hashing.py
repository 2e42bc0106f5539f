"""Hashes that decide where Java looks for a record: bucket index, consistent hashing, metadata table.

Values are hashed as Java sees them, as UTF-16. Columns are hashed as a whole: texts of equal length are laid
out as a matrix and hashed one character position at a time, in 32-bit arithmetic that wraps as Java's does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

__all__ = [
    "HASH_SPACE",
    "as_binary",
    "bucket_of_values",
    "equal_length_groups",
    "java_string_hash",
    "md5_key",
    "spread_hashes",
    "xxhash64_key",
]

_CHUNK = 16_384
_MOST_COUNTED_LENGTH = 65_536
_POSITIVE = 0x7FFFFFFF
HASH_SPACE = 1 << 16
"""What `spread_hashes` gives are numbers below this."""

# Java widens its 32-bit seed to 64 bits with the sign.
_XXHASH64_SEED = 0xFFFFFFFFDABADABA


def java_string_hash(values: pa.Array) -> npt.NDArray[np.int32]:
    """`String.hashCode` of each value; 0 for null, as `Objects.hashCode` has it."""
    values = as_binary(values)
    hashes = np.zeros(len(values), dtype=np.uint32)
    is_ascii = _ascii_mask(values)
    if is_ascii.all():
        _hash_groups(values, np.arange(len(values)), dtype=np.dtype(np.uint8), out=hashes)
        return hashes.view(np.int32)
    plain = np.flatnonzero(is_ascii)
    _hash_groups(values.take(pa.array(plain)), plain, dtype=np.dtype(np.uint8), out=hashes)
    wide = np.flatnonzero(~is_ascii)
    _hash_groups(_utf16(values.take(pa.array(wide))), wide, dtype=np.dtype("<u2"), out=hashes)
    return hashes.view(np.int32)


def bucket_of_values(columns: Sequence[pa.Array], *, buckets: int) -> npt.NDArray[np.int32]:
    """The bucket of each row, from the texts of its index fields in order, as `List.hashCode` combines them."""
    hashes = np.ones(len(columns[0]), dtype=np.uint32)
    for column in columns:
        hashes *= np.uint32(31)
        hashes += java_string_hash(column).view(np.uint32)
    hashes &= np.uint32(_POSITIVE)
    hashes %= np.uint32(buckets)
    return hashes.view(np.int32)


def spread_hashes(values: pa.Array) -> npt.NDArray[np.int64]:
    """A number below `HASH_SPACE` for each value, evenly spread."""
    # Java's string hash leaves the high bits of short texts empty; multiplying spreads them.
    mixed = java_string_hash(values).view(np.uint32) * np.uint32(2654435761)
    return (mixed >> np.uint32(16)).astype(np.int64)


def xxhash64_key(text: str) -> bytes:
    """A column or partition name as it stands in keys of the metadata table: 8 bytes, high byte first."""
    return xxhash.xxh64_digest(text.encode(), seed=_XXHASH64_SEED)


def md5_key(text: str) -> bytes:
    """A file name as it stands in keys of the metadata table: 16 bytes."""
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


def as_binary(values: Any) -> Any:
    """The same bytes with 64-bit offsets, whatever text type the values have."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_string()).cast(pa.large_binary())


def equal_length_groups(values: Any) -> Iterator[tuple[npt.NDArray[np.intp] | None, npt.NDArray[np.uint8]]]:
    """The non-null values of a binary array, by length: their positions (None for all) and bytes, a row a value."""
    lengths = np.diff(_offsets(values))
    if values.null_count:
        lengths[np.asarray(values.is_null())] = -1
    if not len(lengths):
        return
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest >= 0:
        yield None, _matrix(values, longest)
        return
    for length in _distinct(lengths[lengths >= 0], longest=longest):
        positions = np.flatnonzero(lengths == length)
        yield positions, _matrix(values.take(pa.array(positions)), int(length))


def _distinct(lengths: npt.NDArray[np.int64], *, longest: int) -> npt.NDArray[np.intp] | npt.NDArray[np.int64]:
    # Counting is several times faster than the sort inside `unique`, as long as the counters are few.
    if longest < _MOST_COUNTED_LENGTH:
        return np.flatnonzero(np.bincount(lengths))
    return np.unique(lengths)


def _hash_groups(
    values: Any, places: npt.NDArray[np.intp], *, dtype: np.dtype[Any], out: npt.NDArray[np.uint32]
) -> None:
    for positions, rows in equal_length_groups(values):
        characters = rows.view(dtype)
        hashes = np.concatenate(
            [_hash_rows(characters[start : start + _CHUNK]) for start in range(0, len(rows), _CHUNK)]
        )
        out[places if positions is None else places[positions]] = hashes


def _hash_rows(characters: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    hashes = np.zeros(len(characters), dtype=np.uint32)
    for column in np.ascontiguousarray(characters.T):
        hashes *= np.uint32(31)
        hashes += column
    return hashes


def _utf16(values: Any) -> Any:
    """UTF-8 values without nulls, as UTF-16. All are converted as one text; the lead bytes tell where each ends."""
    offsets = _offsets(values)
    content = np.frombuffer(values.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
    units = np.zeros(len(content) + 1, dtype=np.int64)
    # A character takes one unit; one with a lead byte from 0xF0 on lies beyond 16 bits, and takes two.
    np.cumsum(((content & 0xC0) != 0x80).view(np.int8) + (content >= 0xF0), out=units[1:])
    starts = 2 * units[offsets - offsets[0]]
    text = content.tobytes().decode().encode("utf-16-le")
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(values), [None, pa.py_buffer(starts), pa.py_buffer(text)]
    )


def _offsets(values: Any) -> npt.NDArray[np.int64]:
    if not len(values):
        return np.zeros(1, dtype=np.int64)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)
    window: npt.NDArray[np.int64] = offsets[values.offset : values.offset + len(values) + 1]
    return window


def _matrix(values: Any, length: int) -> npt.NDArray[np.uint8]:
    """Bytes of values that all have `length`, a row a value, without copying."""
    count = len(values)
    if not length:
        return np.empty((count, 0), dtype=np.uint8)
    start = int(_offsets(values)[0])
    content = np.frombuffer(values.buffers()[2], dtype=np.uint8)[start : start + count * length]
    return content.reshape(count, length)


def _ascii_mask(values: Any) -> npt.NDArray[np.bool_]:
    """Where a value has ASCII characters only; a null counts as such."""
    offsets = _offsets(values)
    content = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    if not len(content) or content.max() < 0x80:
        return np.ones(len(values), dtype=bool)
    mask = pc.string_is_ascii(values.cast(pa.large_string()))
    return np.asarray(pc.fill_null(mask, True))
