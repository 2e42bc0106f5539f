"""Writes HFiles, version 3: the smallest that Java's reader accepts, taking the entries one by one.

Java's reader takes the end of a data block for earlier than it is by four bytes per started
16 KiB on disk, and silently drops entries that begin there. The writer therefore closes a block
before it reaches 16 KiB; a larger entry gets a block of its own, where nothing can be lost.

The index has one level, as Java writes it, or two where it would be large: a look-up then reads a part of it only.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tablekeeper.format.hfile_layout import (
    BYTES_PER_CHECKSUM,
    DATA_MAGIC,
    ENTRY_HEAD,
    FILE_INFO_MAGIC,
    GZIP,
    HEADER,
    INDEX_ENTRY,
    KEY_TAIL,
    LEAF_INDEX_MAGIC,
    MAJOR_VERSION,
    PLAIN,
    PROTOBUF_MAGIC,
    ROOT_INDEX_MAGIC,
    TRAILER_MAGIC,
    TRAILER_SIZE,
)
from tablekeeper.format.varint import encode_varint

__all__ = ["encode_hfile"]

_ENTRY_OVERHEAD = 8 + 2 + len(KEY_TAIL) + 1
_MOST_ROOT_ENTRIES = 1024
_LEAVES_OF_A_FULL_ROOT = 4
_COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"


@dataclass(frozen=True, slots=True)
class _IndexEntry:
    key: bytes
    offset: int
    size: int


def encode_hfile(
    entries: Iterable[tuple[bytes, bytes]],
    *,
    schema_json: str,
    compress: bool = True,
    block_size: int = BYTES_PER_CHECKSUM,
    most_root_entries: int = _MOST_ROOT_ENTRIES,
    created_ms: int = 0,
    bounds_info: tuple[bytes, bytes] | None = None,
) -> bytes:
    """An HFile of `entries`, which must be sorted by key without duplicates, and are taken one by one.

    `schema_json` is the Avro schema of the values; readers take it from the file info. The smallest and the largest key
    are put there under the names `bounds_info`. The index has a second level if it names more data blocks than
    `most_root_entries`.
    """
    totals = _Totals()
    out = bytearray()
    index: list[_IndexEntry] = []
    for first_key, payload in _plan_blocks(totals.of(entries), min(block_size, BYTES_PER_CHECKSUM) - HEADER.size):
        block = _encode_block(DATA_MAGIC, payload, compress=compress, previous=index[-1].offset if index else -1)
        index.append(_IndexEntry(first_key, len(out), len(block)))
        out += block
    roots = index
    if len(index) > most_root_entries:
        roots = []
        share = max(1, most_root_entries // _LEAVES_OF_A_FULL_ROOT)
        for first in range(0, len(index), share):
            named = index[first : first + share]
            block = _encode_block(LEAF_INDEX_MAGIC, _encode_leaf(named), compress=compress)
            roots.append(_IndexEntry(named[0].key, len(out), len(block)))
            out += block
    root_offset = len(out)
    root = b"".join(_encode_root_entry(entry) for entry in roots)
    out += _encode_block(ROOT_INDEX_MAGIC, root, compress=compress)
    out += _encode_block(ROOT_INDEX_MAGIC, b"", compress=compress)
    info_offset = len(out)
    bounds = dict(zip(bounds_info or (), (index[0].key, totals.last_key) if index else (), strict=False))
    info = _encode_file_info(totals, schema_json=schema_json, created_ms=created_ms, more=bounds)
    out += _encode_block(FILE_INFO_MAGIC, info, compress=compress)
    trailer: dict[int, int | bytes] = {
        1: info_offset,
        2: root_offset,
        3: totals.key_bytes + totals.value_bytes + totals.entries * _ENTRY_OVERHEAD,
        5: len(roots),
        6: 0,
        7: totals.entries,
        8: 1 if roots is index else 2,
        9: index[0].offset if index else -1,
        10: index[-1].offset if index else 0,
        11: _COMPARATOR,
        12: GZIP if compress else PLAIN,
    }
    return bytes(out + _encode_trailer(trailer))


@dataclass(slots=True)
class _Totals:
    """What the end of a file says of all its entries, counted while they pass."""

    entries: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    last_key: bytes = b""

    def of(self, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for key, value in entries:
            if self.entries and key <= self.last_key:
                raise ValueError("the entries of an HFile have rising keys, each once")
            self.entries += 1
            self.key_bytes += len(key)
            self.value_bytes += len(value)
            self.last_key = key
            yield key, value


def _plan_blocks(entries: Iterable[tuple[bytes, bytes]], limit: int) -> Iterator[tuple[bytes, bytes]]:
    """First key and payload of each data block; no block of more than one entry is larger than `limit`."""
    payload = bytearray()
    first_key = b""
    for key, value in entries:
        if payload and len(payload) + _ENTRY_OVERHEAD + len(key) + len(value) > limit:
            yield first_key, bytes(payload)
            payload.clear()
        if not payload:
            first_key = key
        payload += ENTRY_HEAD.pack(len(key) + 2 + len(KEY_TAIL), len(value), len(key))
        payload += key + KEY_TAIL + value + b"\0"
    if payload:
        yield first_key, bytes(payload)


def _encode_block(magic: bytes, payload: bytes, *, compress: bool, previous: int = -1) -> bytes:
    stored = gzip.compress(payload, compresslevel=6, mtime=0) if compress else payload
    with_header = HEADER.size + len(stored)
    checksums = 4 * -(-with_header // BYTES_PER_CHECKSUM)
    header = HEADER.pack(magic, len(stored) + checksums, len(payload), previous, 0, BYTES_PER_CHECKSUM, with_header)
    return header + stored + bytes(checksums)


def _encode_root_entry(entry: _IndexEntry) -> bytes:
    head = INDEX_ENTRY.pack(entry.offset, entry.size)
    return head + _encode_vint(len(entry.key) + 2) + struct.pack(">h", len(entry.key)) + entry.key


def _encode_leaf_entry(entry: _IndexEntry) -> bytes:
    return INDEX_ENTRY.pack(entry.offset, entry.size) + struct.pack(">h", len(entry.key)) + entry.key


def _encode_leaf(entries: Sequence[_IndexEntry]) -> bytes:
    """How many entries there are, where each begins and the last one ends, and the entries."""
    content = [_encode_leaf_entry(entry) for entry in entries]
    ends = accumulate(map(len, content), initial=0)
    return struct.pack(f">{len(content) + 2}i", len(content), *ends) + b"".join(content)


def _encode_file_info(totals: _Totals, *, schema_json: str, created_ms: int, more: Mapping[bytes, bytes]) -> bytes:
    count = max(1, totals.entries)
    last_key = totals.last_key
    info = {
        b"schema": schema_json.encode(),
        b"hfile.LASTKEY": struct.pack(">h", len(last_key)) + last_key if last_key else b"",
        b"MAX_MEMSTORE_TS_KEY": bytes(8),
        b"KEY_VALUE_VERSION": struct.pack(">i", 1),
        b"hfile.AVG_KEY_LEN": struct.pack(">i", totals.key_bytes // count),
        b"hfile.AVG_VALUE_LEN": struct.pack(">i", totals.value_bytes // count),
        b"hfile.CREATE_TIME_TS": struct.pack(">q", created_ms),
        **more,
    }
    message = b"".join(_encode_field(1, _encode_field(1, key) + _encode_field(2, value)) for key, value in info.items())
    return PROTOBUF_MAGIC + encode_varint(len(message)) + message


def _encode_trailer(fields: Mapping[int, int | bytes]) -> bytes:
    message = b"".join(_encode_field(number, value) for number, value in fields.items())
    head = TRAILER_MAGIC + encode_varint(len(message)) + message
    return head + bytes(TRAILER_SIZE - len(head) - 1) + bytes([MAJOR_VERSION])


def _encode_field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return encode_varint(number << 3) + encode_varint(value)
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def _encode_vint(value: int) -> bytes:
    if value <= 127:
        return bytes([value])
    size = (value.bit_length() + 7) // 8
    return bytes([256 - 112 - size]) + value.to_bytes(size, "big")
