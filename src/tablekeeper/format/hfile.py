"""HFile version 3: the sorted key/value files that the metadata table is made of.

`HFileReader` reads what Java writes, base files and contents of HFile log blocks alike: plain and
gzip blocks, an index of any number of levels. It works on bytes in memory or on a range reader,
and then fetches only the end of the file and the blocks of index and data that a lookup needs.

The format has no usable checksums (Java writes type 0, none), so the reader leans on structure:
block magics and lengths, strictly rising keys, first keys that match the index, the
entry count of the trailer. Whatever does not fit is a `CorruptTableError` that names the file.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hfile_index import IndexEntry, LowerIndex, RootIndex, decode_named_blocks, route
from tablekeeper.format.hfile_layout import (
    DATA_MAGIC,
    ENTRY_HEAD,
    FILE_INFO_MAGIC,
    GZIP,
    HEADER,
    INTERMEDIATE_INDEX_MAGIC,
    KEY_TAIL,
    LEAF_INDEX_MAGIC,
    MAJOR_VERSION,
    PLAIN,
    PROTOBUF_MAGIC,
    ROOT_INDEX_MAGIC,
    TRAILER_MAGIC,
    TRAILER_SIZE,
)

__all__ = ["HFileReader", "RangeSource"]

_META_MAGIC = b"METABLKc"

_MAX_INDEX_LEVELS = 8

_ENTRY_SIZES = struct.Struct(">ii")
# Blocks with no more than this between them are read together.
_NEAR_BYTES = 64 * 1024
# The end of a file, with which all of it that has to be known is mostly read at once.
_TAIL_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class RangeSource:
    """An object of `size` bytes of which `read(start, length)` returns a part, and `ranges` several."""

    size: int
    read: Callable[[int, int], bytes]
    ranges: Callable[[Sequence[tuple[int, int]]], Sequence[bytes]] | None = None

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Several parts, at once where the object can do that."""
        return self.ranges(ranges) if self.ranges is not None else [self.read(*each) for each in ranges]


class HFileReader:
    """Reads one HFile. Opening it loads its end, which has the root of the index; blocks follow on demand."""

    def __init__(self, source: bytes | memoryview | RangeSource, *, file: str) -> None:
        self._file = file
        self._source = source if isinstance(source, RangeSource) else _source_of(source)
        tail_at = max(0, self._source.size - _TAIL_BYTES)
        tail = self._read(tail_at, self._source.size - tail_at)
        trailer = self._decode_trailer(tail)
        self.entry_count = trailer.get(7, 0)
        self._codec = trailer.get(12, PLAIN)
        if self._codec not in (GZIP, PLAIN):
            raise self._corrupt(f"HFile compression codec {self._codec} is not gzip or none")
        opened_at, end = trailer.get(2, -1), self._source.size - TRAILER_SIZE
        if not 0 <= opened_at < end:
            raise self._corrupt(f"HFile index offset {opened_at} is outside the file")
        section = tail[opened_at - tail_at : end - tail_at] if opened_at >= tail_at else b""
        section = section or self._read(opened_at, end - opened_at)
        root, position = self._unpack(section, 0, ROOT_INDEX_MAGIC)
        meta, position = self._unpack(section, position, ROOT_INDEX_MAGIC)
        info, _ = self._unpack(section, position, FILE_INFO_MAGIC)
        self._root = RootIndex(root, trailer.get(5, 0), file=file)
        self._lower_magics = self._magics_below_root(trailer)
        self._meta = decode_named_blocks(meta, trailer.get(6, 0), file=file)
        self.info: Mapping[bytes, bytes] = self._decode_file_info(info)
        self._blocks: dict[int, dict[bytes, bytes]] = {}

    @property
    def first_key(self) -> bytes | None:
        """The least key, None if there are no entries. Known from the root of the index: no block is read."""
        return self._root.entry(0).key if len(self._root) else None

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries in key order. Raises if they are not as many as the trailer says."""
        seen = 0
        for number in range(len(self._index)):
            entries = self._decode_block(number)
            seen += len(entries)
            yield from entries
        if seen != self.entry_count:
            raise self._corrupt(f"HFile has {seen} entries, its trailer says {self.entry_count}")

    def get(self, key: bytes) -> bytes | None:
        """The value stored under `key`, or None."""
        number = bisect_right(self._first_keys, key) - 1
        if number < 0:
            return None
        return self._block(number).get(key)

    def find_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values stored under those of `keys` (in rising order) that are here.

        For a few keys out of many: blocks are fetched together, and not taken apart into entries. Values must hold no
        bytes that look like the end of a stored key, which no text and no Avro of text does.
        """
        wanted = route(self._root, keys)
        for magic in self._lower_magics:
            below: dict[IndexEntry, list[bytes]] = {}
            for entry, payload in self._payloads(list(wanted), magic):
                for child, routed in route(LowerIndex(payload, file=self._file), wanted[entry]).items():
                    below.setdefault(child, []).extend(routed)
            wanted = below
        found: dict[bytes, bytes] = {}
        for entry, payload in self._payloads(list(wanted), DATA_MAGIC):
            for key in wanted[entry]:
                value = _value_in(payload, key)
                if value is not None:
                    found[key] = value
        return found

    def meta_block(self, name: bytes) -> bytes | None:
        """Contents of the meta block `name` (such as the bloom filter), or None."""
        entry = self._meta.get(name)
        if entry is None:
            return None
        return self._unpack(self._read(entry.offset, entry.size), 0, _META_MAGIC)[0]

    def _corrupt(self, reason: str) -> CorruptTableError:
        return CorruptTableError(file=self._file, reason=reason)

    def _read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self._source.size:
            raise self._corrupt(f"HFile refers to bytes [{start}, {start + length}) of {self._source.size}")
        data = self._source.read(start, length)
        if len(data) != length:
            raise self._corrupt(f"only {len(data)} of {length} bytes could be read at {start}")
        return data

    def _decode_trailer(self, tail: bytes) -> dict[int, int]:
        if len(tail) < TRAILER_SIZE:
            raise self._corrupt(f"{self._source.size} bytes are too few for an HFile")
        data = tail[-TRAILER_SIZE:]
        if not data.startswith(TRAILER_MAGIC):
            raise self._corrupt("HFile trailer magic is missing")
        version = int.from_bytes(data[-3:], "big")
        if version != MAJOR_VERSION:
            raise self._corrupt(f"HFile version {version} is not {MAJOR_VERSION}")
        fields = self._decode_delimited(data, len(TRAILER_MAGIC))
        return {number: value for number, value in fields if isinstance(value, int)}

    def _magics_below_root(self, trailer: Mapping[int, int]) -> tuple[bytes, ...]:
        """What the blocks of each lower level of the index begin with."""
        levels = trailer.get(8, 1)
        if not 1 <= levels <= _MAX_INDEX_LEVELS:
            raise self._corrupt(f"HFile index has {levels} levels")
        return (INTERMEDIATE_INDEX_MAGIC,) * (levels - 2) + (LEAF_INDEX_MAGIC,) * (levels > 1)

    @cached_property
    def _index(self) -> list[IndexEntry]:
        """All data blocks."""
        entries = [self._root.entry(number) for number in range(len(self._root))]
        for magic in self._lower_magics:
            lower = [LowerIndex(payload, file=self._file) for _, payload in self._payloads(entries, magic)]
            entries = [index.entry(number) for index in lower for number in range(len(index))]
            if any(before.key >= after.key for before, after in itertools.pairwise(entries)):
                raise self._corrupt("HFile index is not in order")
        return entries

    @cached_property
    def _first_keys(self) -> list[bytes]:
        return [entry.key for entry in self._index]

    def _unpack(self, data: bytes, position: int, magic: bytes) -> tuple[bytes, int]:
        """Payload of the block at `position` of `data`, and the position after the block."""
        end = position + HEADER.size
        if end > len(data):
            raise self._corrupt("HFile block header is cut off")
        found, on_disk, plain_size, _, _, _, with_header = HEADER.unpack_from(data, position)
        if found != magic:
            raise self._corrupt(f"HFile block {magic!r} expected, {found!r} found")
        if on_disk < 0 or plain_size < 0 or end + on_disk > len(data):
            raise self._corrupt(f"HFile block {magic!r} is cut off")
        payload_size = with_header - HEADER.size
        if not 0 <= payload_size <= on_disk:
            raise self._corrupt(f"HFile block {magic!r} has impossible sizes")
        payload = data[end : end + payload_size]
        if self._codec == GZIP:
            payload = self._gunzip(payload, plain_size)
        if len(payload) != plain_size:
            raise self._corrupt(f"HFile block {magic!r} holds {len(payload)} bytes, its header says {plain_size}")
        return payload, end + on_disk

    def _gunzip(self, payload: bytes, plain_size: int) -> bytes:
        if plain_size == 0:
            return b""
        decompressor = zlib.decompressobj(wbits=31)
        try:
            # One byte more than expected is enough to notice a stream that is too long without unpacking all of it.
            plain = decompressor.decompress(payload, plain_size + 1)
            if len(plain) == plain_size and not decompressor.eof:
                plain += decompressor.decompress(decompressor.unconsumed_tail, 1)
        except zlib.error as error:
            raise self._corrupt(f"HFile block does not decompress ({error})") from error
        if not decompressor.eof:
            raise self._corrupt("HFile block's gzip stream has no end")
        return plain

    def _block(self, number: int) -> dict[bytes, bytes]:
        if number not in self._blocks:
            self._blocks[number] = dict(self._decode_block(number))
        return self._blocks[number]

    def _payloads(self, entries: Sequence[IndexEntry], magic: bytes) -> Iterator[tuple[IndexEntry, bytes]]:
        """The content of these blocks, which lie in the file in this order; of neighbours a run is read at once."""
        runs: list[list[IndexEntry]] = []
        end = -_NEAR_BYTES - 1
        for entry in entries:
            if entry.offset < max(end, 0) or not 0 < entry.size <= self._source.size - entry.offset:
                raise self._corrupt(f"HFile index names a block of {entry.size} bytes at {entry.offset}")
            if entry.offset - end > _NEAR_BYTES:
                runs.append([])
            runs[-1].append(entry)
            end = entry.offset + entry.size
        ranges = [(run[0].offset, run[-1].offset + run[-1].size - run[0].offset) for run in runs]
        for run, content in zip(runs, self._source.read_many(ranges), strict=True):
            for entry in run:
                yield entry, self._unpack(content, entry.offset - run[0].offset, magic)[0]

    def _decode_block(self, number: int) -> list[tuple[bytes, bytes]]:
        index = self._index[number]
        data, _ = self._unpack(self._read(index.offset, index.size), 0, DATA_MAGIC)
        entries: list[tuple[bytes, bytes]] = []
        position = 0
        while position < len(data):
            if position + ENTRY_HEAD.size > len(data):
                raise self._corrupt("HFile entry is cut off")
            key_size, value_size, content_size = ENTRY_HEAD.unpack_from(data, position)
            key_start = position + ENTRY_HEAD.size
            value_start = position + 8 + key_size
            end = value_start + value_size
            if content_size < 0 or key_size < content_size + 2 or value_size < 0 or end >= len(data) or data[end]:
                raise self._corrupt("HFile entry has impossible sizes")
            entries.append((data[key_start : key_start + content_size], data[value_start:end]))
            position = end + 1
        self._check_entries(number, entries)
        return entries

    def _check_entries(self, number: int, entries: Sequence[tuple[bytes, bytes]]) -> None:
        if not entries or entries[0][0] != self._first_keys[number]:
            raise self._corrupt("HFile data block does not start with the key that the index names")
        keys = [key for key, _ in entries]
        if number + 1 < len(self._first_keys):
            keys.append(self._first_keys[number + 1])
        if any(before >= after for before, after in itertools.pairwise(keys)):
            raise self._corrupt("HFile keys are not in order")

    def _decode_file_info(self, data: bytes) -> dict[bytes, bytes]:
        if not data.startswith(PROTOBUF_MAGIC):
            raise self._corrupt("HFile file info has no protobuf magic")
        info: dict[bytes, bytes] = {}
        for number, pair in self._decode_delimited(data, len(PROTOBUF_MAGIC)):
            if number != 1 or not isinstance(pair, bytes):
                continue
            fields = dict(self._decode_message(pair))
            key, value = fields.get(1), fields.get(2)
            if not isinstance(key, bytes) or not isinstance(value, bytes):
                raise self._corrupt("HFile file info entry has no key or value")
            info[key] = value
        return info

    def _decode_delimited(self, data: bytes, position: int) -> list[tuple[int, int | bytes]]:
        length, start = self._decode_varint(data, position)
        if start + length > len(data):
            raise self._corrupt("HFile protobuf message is cut off")
        return self._decode_message(data[start : start + length])

    def _decode_message(self, data: bytes) -> list[tuple[int, int | bytes]]:
        """Fields of a protobuf message: whole numbers and byte strings, the only kinds in an HFile."""
        fields: list[tuple[int, int | bytes]] = []
        position = 0
        while position < len(data):
            tag, position = self._decode_varint(data, position)
            if tag & 7 == 0:
                number, position = self._decode_varint(data, position)
                fields.append((tag >> 3, number - (1 << 64) if number >> 63 else number))
            elif tag & 7 == 2:
                length, position = self._decode_varint(data, position)
                if position + length > len(data):
                    raise self._corrupt("HFile protobuf field is cut off")
                fields.append((tag >> 3, data[position : position + length]))
                position += length
            else:
                raise self._corrupt(f"HFile protobuf field has wire type {tag & 7}")
        return fields

    def _decode_varint(self, data: bytes, position: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if position >= len(data):
                raise self._corrupt("HFile protobuf number is cut off")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & ((1 << 64) - 1), position
        raise self._corrupt("HFile protobuf number is too long")


def _source_of(data: bytes | memoryview) -> RangeSource:
    return RangeSource(size=len(data), read=lambda start, length: bytes(data[start : start + length]))


def _value_in(payload: bytes, key: bytes) -> bytes | None:
    """The value of `key` in the content of a block. A stored key ends in bytes that no text contains."""
    mark = struct.pack(">h", len(key)) + key + KEY_TAIL
    at = payload.find(mark)
    if at < _ENTRY_SIZES.size:
        return None
    key_size, value_size = _ENTRY_SIZES.unpack_from(payload, at - _ENTRY_SIZES.size)
    start = at + len(mark)
    if key_size != len(mark) or not 0 <= value_size < len(payload) - start:
        return None
    return payload[start : start + value_size]
