"""Avro binary of metadata records, for the one schema that this package and Java 1.x write.

A commit writes a record for each column of each file, and a listing reads one for each partition, so this is written
out by hand: it takes a tenth of the time of a general codec. Other schemas (of older or newer writers) go through
fastavro in `metadata_records`.

Values are plain: files as name -> (size, is deleted), statistics as the tuple of their fields in schema order with a
bound as (position in the union of wrappers, value), bloom filters as (kind, instant, content, is deleted).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DOUBLE",
    "FLOAT",
    "INT",
    "LONG",
    "STRING",
    "RawRecord",
    "RawStats",
    "decode_raw_record",
    "encode_raw_record",
    "encode_record_index",
    "encode_secondary_index",
]

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_NULL = b"\0"
_PRESENT = b"\x02"
_HEAD = _NULL * 5
"""The five meta columns, which are always null."""

BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, STRING = range(1, 8)
_WHOLE = frozenset({INT, LONG, 8, 10, 11, 12})
_MAX_VARINT = 10
_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))

Bound = tuple[int, bool | int | float | str | bytes] | None


@dataclass(frozen=True, slots=True)
class RawStats:
    """Fields of column statistics as stored. A count of None is a null."""

    subject: str | None
    column: str | None
    minimum: Bound
    maximum: Bound
    value_count: int | None
    null_count: int | None
    total_size: int | None
    total_uncompressed_size: int | None
    is_deleted: bool
    is_tight: bool
    value_type: tuple[int, str | None] | None


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record of any kind; of the payloads only these are decoded."""

    kind: int
    files: Mapping[str, tuple[int, bool]] | None = None
    stats: RawStats | None = None
    bloom: tuple[str, str, bytes, bool] | None = None


def encode_raw_record(record: RawRecord) -> bytes:
    """The record with an empty key."""
    out = bytearray(_HEAD + _NULL + _long(record.kind))
    out += _NULL if record.files is None else _PRESENT + _encode_files(record.files)
    out += _NULL if record.bloom is None else _PRESENT + _encode_bloom(record.bloom)
    out += _NULL if record.stats is None else _PRESENT + _encode_stats(record.stats)
    out += _NULL + _NULL
    return bytes(out)


def encode_record_index(kind: int, fields: Sequence[str | int]) -> bytes:
    """A record of the record index: its fields in schema order, the last of which is the encoding of the file id."""
    *nullable, encoding = fields
    out = bytearray(_HEAD + _NULL + _long(kind) + _NULL * 3 + _PRESENT)
    for value in nullable:
        out += _PRESENT + (_text(value) if isinstance(value, str) else _long(value))
    return bytes(out + _long(int(encoding)) + _NULL + _NULL)


def encode_secondary_index() -> bytes:
    """A record of a secondary index."""
    return bytes(_HEAD + _NULL + _long(7) + _NULL * 4 + _PRESENT + b"\0")


def decode_raw_record(data: bytes) -> RawRecord | None:
    """The record, or None if it holds a payload that is not decoded here. Raises ValueError on other bytes."""
    source = _Source(data)
    for _ in range(5):
        if source.union(2):
            source.text()
    source.text()
    kind = source.long()
    files = source.files() if source.union(2) else None
    bloom = source.bloom() if source.union(2) else None
    stats = source.stats() if source.union(2) else None
    if source.union(2) or source.union(2):
        return None
    if source.left:
        raise ValueError(f"{source.left} bytes are left over")
    return RawRecord(kind, files, stats, bloom)


class _Source:
    """Reads values from bytes, and never past their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, length: int) -> bytes:
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise ValueError("a value is cut off")
        found = self._data[self._at : end]
        self._at = end
        return found

    def long(self) -> int:
        data, position, shift, value = self._data, self._at, 0, 0
        for _ in range(_MAX_VARINT):
            if position >= len(data):
                raise ValueError("a number is cut off")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = position
                number = (value >> 1) ^ -(value & 1)
                if not -(1 << 63) <= number < 1 << 63:
                    raise ValueError("a number is too large")
                return number
            shift += 7
        raise ValueError("a number is too long")

    def union(self, branches: int) -> int:
        branch = self.long()
        if not 0 <= branch < branches:
            raise ValueError(f"a union has no branch {branch}")
        return branch

    def boolean(self) -> bool:
        byte = self.take(1)
        if byte > b"\x01":
            raise ValueError("a boolean is neither 0 nor 1")
        return byte == b"\x01"

    def text(self) -> str:
        return self.take(self.long()).decode()

    def files(self) -> dict[str, tuple[int, bool]]:
        files: dict[str, tuple[int, bool]] = {}
        while count := self.long():
            if count < 0:
                # A negative count is followed by the size of the block in bytes.
                count = -count
                self.long()
            for _ in range(count):
                name = self.text()
                files[name] = (self.long(), self.boolean())
        return files

    def bloom(self) -> tuple[str, str, bytes, bool]:
        return self.text(), self.text(), self.take(self.long()), self.boolean()

    def stats(self) -> RawStats:
        return RawStats(
            subject=self.text() if self.union(2) else None,
            column=self.text() if self.union(2) else None,
            minimum=self.bound(),
            maximum=self.bound(),
            value_count=self.long() if self.union(2) else None,
            null_count=self.long() if self.union(2) else None,
            total_size=self.long() if self.union(2) else None,
            total_uncompressed_size=self.long() if self.union(2) else None,
            is_deleted=self.boolean(),
            is_tight=self.boolean(),
            value_type=(self.long(), self.text() if self.union(2) else None) if self.union(2) else None,
        )

    def bound(self) -> Bound:
        branch = self.union(13)
        if branch == 0:
            return None
        if branch in _WHOLE:
            return branch, self.long()
        return branch, self._other_value(branch)

    def _other_value(self, branch: int) -> bool | float | str | bytes:
        if branch == BOOLEAN:
            return self.boolean()
        if branch == STRING:
            return self.text()
        if branch == DOUBLE:
            return float(_DOUBLE.unpack(self.take(8))[0])
        if branch == FLOAT:
            return float(_FLOAT.unpack(self.take(4))[0])
        return self.take(self.long())


def _encode_files(files: Mapping[str, tuple[int, bool]]) -> bytes:
    out = bytearray(_long(len(files)) if files else b"")
    for name, (size, is_deleted) in files.items():
        out += _text(name) + _long(size) + (b"\x01" if is_deleted else b"\0")
    return bytes(out + _NULL)


def _encode_bloom(bloom: tuple[str, str, bytes, bool]) -> bytes:
    kind, instant, content, is_deleted = bloom
    return _text(kind) + _text(instant) + _long(len(content)) + content + (b"\x01" if is_deleted else b"\0")


def _encode_stats(stats: RawStats) -> bytes:
    counts = (stats.value_count, stats.null_count, stats.total_size, stats.total_uncompressed_size)
    value_type = _NULL
    if stats.value_type is not None:
        ordinal, info = stats.value_type
        value_type = _PRESENT + _long(ordinal) + _optional_text(info)
    return b"".join(
        (
            _optional_text(stats.subject),
            _optional_text(stats.column),
            _bound(stats.minimum),
            _bound(stats.maximum),
            *(_NULL if count is None else _PRESENT + _long(count) for count in counts),
            b"\x01" if stats.is_deleted else b"\0",
            b"\x01" if stats.is_tight else b"\0",
            value_type,
        )
    )


def _bound(bound: Bound) -> bytes:
    return _NULL if bound is None else _long(bound[0]) + _value(*bound)


def _value(branch: int, value: bool | int | float | str | bytes) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes):
        return _long(len(value)) + value
    if branch == BOOLEAN:
        return b"\x01" if value else b"\0"
    if branch == FLOAT:
        return _FLOAT.pack(value)
    if branch == DOUBLE:
        return _DOUBLE.pack(value)
    return _long(int(value))


def _optional_text(text: str | None) -> bytes:
    return _NULL if text is None else _PRESENT + _text(text)


def _text(text: str) -> bytes:
    data = text.encode()
    return _long(len(data)) + data


def _long(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
