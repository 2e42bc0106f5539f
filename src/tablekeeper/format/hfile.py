"""HFile version 3: the sorted key/value files that the metadata table is made of.

`HFileReader` reads what Java writes, base files and contents of HFile log blocks alike: plain and
gzip blocks, an index of any number of levels. It works on bytes in memory or on a range reader,
and then fetches only the trailer, the index and the data blocks that a lookup needs.

The format has no usable checksums (Java writes type 0, none), so the reader leans on structure:
block magics and lengths, strictly rising offsets and keys, first keys that match the index, the
entry count of the trailer. Whatever does not fit is a `CorruptTableError` that names the file.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import lt
from typing import NamedTuple

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hfile_layout import (
    DATA_MAGIC,
    ENTRY_HEAD,
    FILE_INFO_MAGIC,
    GZIP,
    HEADER,
    INDEX_ENTRY,
    KEY_TAIL,
    MAJOR_VERSION,
    PLAIN,
    PROTOBUF_MAGIC,
    ROOT_INDEX_MAGIC,
    TRAILER_MAGIC,
    TRAILER_SIZE,
)

__all__ = ["HFileReader", "RangeSource"]

_LEAF_INDEX_MAGIC = b"IDXLEAF2"
_INTERMEDIATE_INDEX_MAGIC = b"IDXINTE2"
_META_MAGIC = b"METABLKc"

_MAX_INDEX_LEVELS = 8

_ENTRY_SIZES = struct.Struct(">ii")
_LONGEST_IN_A_BYTE = 127
# Blocks with no more than this between them are read together.
_NEAR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RangeSource:
    """An object of `size` bytes of which `read(start, length)` returns a part, and `ranges` several."""

    size: int
    read: Callable[[int, int], bytes]
    ranges: Callable[[Sequence[tuple[int, int]]], Sequence[bytes]] | None = None

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Several parts, at once where the object can do that."""
        return self.ranges(ranges) if self.ranges is not None else [self.read(*each) for each in ranges]


class _IndexEntry(NamedTuple):
    key: bytes
    offset: int
    size: int


class HFileReader:
    """Reads one HFile. Opening it loads the trailer, the index and the file info; data blocks follow on demand."""

    def __init__(self, source: bytes | memoryview | RangeSource, *, file: str) -> None:
        self._file = file
        self._source = source if isinstance(source, RangeSource) else _source_of(source)
        trailer = self._read_trailer()
        self.entry_count = trailer.get(7, 0)
        self._codec = trailer.get(12, PLAIN)
        if self._codec not in (GZIP, PLAIN):
            raise self._corrupt(f"HFile compression codec {self._codec} is not gzip or none")
        self._index: list[_IndexEntry] = []
        self._meta: dict[bytes, _IndexEntry] = {}
        self.info: Mapping[bytes, bytes] = {}
        self._load_on_open(trailer)
        self._first_keys = [entry.key for entry in self._index]
        self._blocks: dict[int, dict[bytes, bytes]] = {}

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
        wanted: dict[int, list[bytes]] = {}
        for key in keys:
            number = bisect_right(self._first_keys, key) - 1
            if number >= 0:
                wanted.setdefault(number, []).append(key)
        found: dict[bytes, bytes] = {}
        for number, payload in self._payloads(list(wanted)):
            for key in wanted[number]:
                value = _value_in(payload, key)
                if value is not None:
                    found[key] = value
        return found

    def scan_prefix(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key starts with `prefix`, in key order."""
        for number in range(max(0, bisect_right(self._first_keys, prefix) - 1), len(self._index)):
            if self._first_keys[number] > prefix and not self._first_keys[number].startswith(prefix):
                return
            for key, value in self._block(number).items():
                if key.startswith(prefix):
                    yield key, value

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

    def _read_trailer(self) -> dict[int, int]:
        if self._source.size < TRAILER_SIZE:
            raise self._corrupt(f"{self._source.size} bytes are too few for an HFile")
        data = self._read(self._source.size - TRAILER_SIZE, TRAILER_SIZE)
        if not data.startswith(TRAILER_MAGIC):
            raise self._corrupt("HFile trailer magic is missing")
        version = int.from_bytes(data[-3:], "big")
        if version != MAJOR_VERSION:
            raise self._corrupt(f"HFile version {version} is not {MAJOR_VERSION}")
        fields = self._decode_delimited(data, len(TRAILER_MAGIC))
        return {number: value for number, value in fields if isinstance(value, int)}

    def _load_on_open(self, trailer: Mapping[int, int]) -> None:
        start, end = trailer.get(2, -1), self._source.size - TRAILER_SIZE
        if not 0 <= start < end:
            raise self._corrupt(f"HFile index offset {start} is outside the file")
        section = self._read(start, end - start)
        root, position = self._unpack(section, 0, ROOT_INDEX_MAGIC)
        meta, position = self._unpack(section, position, ROOT_INDEX_MAGIC)
        info, _ = self._unpack(section, position, FILE_INFO_MAGIC)
        entries = self._decode_root_index(root, trailer.get(5, 0), sized_keys=True)
        for level in range(self._index_levels(trailer) - 1, 0, -1):
            magic = _LEAF_INDEX_MAGIC if level == 1 else _INTERMEDIATE_INDEX_MAGIC
            entries = [child for entry in entries for child in self._decode_child_index(entry, magic)]
            self._check_rising(entries)
        self._index = entries
        self._meta = {e.key: e for e in self._decode_root_index(meta, trailer.get(6, 0), sized_keys=False)}
        self.info = self._decode_file_info(info)

    def _index_levels(self, trailer: Mapping[int, int]) -> int:
        levels = trailer.get(8, 1)
        if not 1 <= levels <= _MAX_INDEX_LEVELS:
            raise self._corrupt(f"HFile index has {levels} levels")
        return levels

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

    def _decode_root_index(self, data: bytes, count: int, *, sized_keys: bool) -> list[_IndexEntry]:
        """A large file has an entry for each few kilobytes: this loop is most of what opening it costs."""
        entries: list[_IndexEntry] = []
        unpack, head, size, position = INDEX_ENTRY.unpack_from, INDEX_ENTRY.size, len(data), 0
        for _ in range(count):
            if position + head >= size:
                raise self._corrupt(f"HFile index has fewer entries than the {count} of the trailer")
            offset, block_size = unpack(data, position)
            length, position = data[position + head], position + head + 1
            if length > _LONGEST_IN_A_BYTE:
                length, position = self._decode_vint(data, position - 1)
            key = data[position : position + length]
            if length < 0 or len(key) != length:
                raise self._corrupt("HFile index key is cut off")
            position += length
            entries.append(_IndexEntry(self._strip_key(key) if sized_keys else key, offset, block_size))
        if position != size:
            raise self._corrupt(f"HFile index has more entries than the {count} of the trailer")
        if sized_keys:
            self._check_rising(entries)
        return entries

    def _decode_child_index(self, parent: _IndexEntry, magic: bytes) -> list[_IndexEntry]:
        data, _ = self._unpack(self._read(parent.offset, parent.size), 0, magic)
        if len(data) < 8:
            raise self._corrupt("HFile index block is too short")
        count = int.from_bytes(data[:4], "big", signed=True)
        keys_start = 4 + 4 * (count + 1)
        if count < 0 or keys_start > len(data):
            raise self._corrupt(f"HFile index block cannot hold {count} entries")
        relative = struct.unpack_from(f">{count + 1}i", data, 4)
        entries = []
        for start, end in itertools.pairwise(relative):
            raw = data[keys_start + start : keys_start + end] if 0 <= start < end else b""
            if len(raw) != end - start or len(raw) < INDEX_ENTRY.size:
                raise self._corrupt("HFile index entry is cut off")
            offset, size = INDEX_ENTRY.unpack_from(raw)
            entries.append(_IndexEntry(self._strip_key(raw[INDEX_ENTRY.size :]), offset, size))
        return entries

    def _check_rising(self, entries: Sequence[_IndexEntry]) -> None:
        """Offsets and first keys rise strictly, which also bounds how many blocks there can be."""
        keys, offsets = [entry.key for entry in entries], [entry.offset for entry in entries]
        if not (all(map(lt, keys, keys[1:])) and all(map(lt, offsets, offsets[1:]))):
            raise self._corrupt("HFile index is not in order")

    def _strip_key(self, key: bytes) -> bytes:
        """The content of a stored key: two bytes of length, the content, and perhaps HBase's own fields."""
        content = key[2 : 2 + (key[0] << 8 | key[1])] if len(key) > 1 else b""
        if len(key) < 2 or key[0] > _LONGEST_IN_A_BYTE or len(content) != key[0] << 8 | key[1]:
            raise self._corrupt("HFile key is cut off")
        return content

    def _block(self, number: int) -> dict[bytes, bytes]:
        if number not in self._blocks:
            self._blocks[number] = dict(self._decode_block(number))
        return self._blocks[number]

    def _payloads(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The content of these data blocks, in their order; of neighbours a run is read at once."""
        runs: list[list[int]] = []
        end = -_NEAR_BYTES - 1
        for number in numbers:
            entry = self._index[number]
            if entry.offset - end > _NEAR_BYTES:
                runs.append([])
            runs[-1].append(number)
            end = entry.offset + entry.size
        ranges = [(self._index[run[0]].offset, self._index[run[-1]]) for run in runs]
        contents = self._source.read_many([(start, last.offset + last.size - start) for start, last in ranges])
        for run, (start, _), content in zip(runs, ranges, contents, strict=True):
            for number in run:
                yield number, self._unpack(content, self._index[number].offset - start, DATA_MAGIC)[0]

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

    def _decode_vint(self, data: bytes, position: int) -> tuple[int, int]:
        """Hadoop's variable-length integer: one byte for -112..127, else a length byte and big-endian bytes."""
        if position >= len(data):
            raise self._corrupt("HFile index is cut off")
        first = data[position] - 256 if data[position] > 127 else data[position]
        if first >= -112:
            return first, position + 1
        negative = first < -120
        size = -(first + 120) if negative else -(first + 112)
        raw = data[position + 1 : position + 1 + size]
        if len(raw) != size:
            raise self._corrupt("HFile index is cut off")
        value = int.from_bytes(raw, "big")
        return (~value if negative else value), position + 1 + size

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
