"""The frame of a log file: a sequence of blocks, each with a type, a header and content bytes.

Block: magic | int64 size of the rest | int32 format version | int32 type | header | int64 content
length | content | footer | int64 size of everything before this field. Integers are big-endian.

A block that a crashed writer left half written (its size runs past the end of the file, the
trailing size disagrees, or no magic follows it) is yielded as `BlockType.CORRUPT`, and reading
goes on at the next magic; readers skip such blocks. A block that passes these checks but does
not parse was damaged later: that is a `CorruptTableError`. Content is a slice of the input,
never a copy, and no length field is trusted before it is compared with the bytes at hand.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError

__all__ = [
    "MAGIC",
    "BlockType",
    "HeaderKey",
    "LogBlock",
    "compacted_instants",
    "decode_blocks",
    "effective_instants",
    "encode_block",
]

MAGIC = b"#HUDI#"
_FORMAT_VERSION = 1
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_START = struct.Struct(">ii")
_SCAN_CHUNK_SIZE = 1 << 20


class BlockType(enum.IntEnum):
    """What a block holds; the value is the number on disk. CORRUPT is made by readers, never written."""

    COMMAND = 0
    DELETE = 1
    CORRUPT = 2
    AVRO_DATA = 3
    HFILE_DATA = 4
    PARQUET_DATA = 5
    CDC_DATA = 6


class HeaderKey(enum.IntEnum):
    """Keys of block headers; the value is the number on disk."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    RECORD_POSITIONS = 5
    BLOCK_IDENTIFIER = 6
    IS_PARTIAL = 7
    BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class LogBlock:
    """One block. `offset` is where its magic starts in the file; `content` is a view of the file's bytes."""

    type: BlockType
    header: Mapping[HeaderKey, str]
    content: bytes | memoryview
    offset: int = 0


def encode_block(block_type: BlockType, header: Mapping[HeaderKey, str], content: bytes | memoryview) -> bytes:
    """The bytes of one block, magic to trailing size; blocks are concatenated to make a file."""
    if block_type is BlockType.CORRUPT:
        raise InvalidRequestError("a corrupt block is what readers make of damaged bytes; it is never written")
    head = bytearray(_START.pack(_FORMAT_VERSION, block_type) + _INT.pack(len(header)))
    for key in sorted(header):
        value = header[key].encode()
        head += _START.pack(key, len(value)) + value
    head += _LONG.pack(len(content))
    size = len(head) + len(content) + _INT.size + _LONG.size
    no_footer = _INT.pack(0)
    trailer = _LONG.pack(size + len(MAGIC))
    return b"".join((MAGIC, _LONG.pack(size), head, content, no_footer, trailer))


def decode_blocks(data: bytes | memoryview, *, file: str) -> Iterator[LogBlock]:
    """The blocks of a log file in order, damaged stretches as `BlockType.CORRUPT`.

    Raises `CorruptTableError` for a file that does not start with a block, or a block that is framed
    right but does not parse; `UnsupportedFeatureError` for a block or format version not known here.
    """
    view = memoryview(data).cast("B")
    offset = 0
    while len(view) - offset >= len(MAGIC):
        if view[offset : offset + len(MAGIC)] != MAGIC:
            raise CorruptTableError(file=file, reason=f"no log block starts at byte {offset}")
        body = offset + len(MAGIC)
        end = _block_end(view, body)
        if end is None:
            end = _next_magic(view, body)
            yield LogBlock(BlockType.CORRUPT, MappingProxyType({}), view[body:end], offset)
        else:
            yield _decode_block(view[body + _LONG.size : end - _LONG.size], file=file, offset=offset)
        offset = end
    if offset < len(view):
        # Fewer bytes than a magic: the beginning of a block that was not written to its end.
        yield LogBlock(BlockType.CORRUPT, MappingProxyType({}), view[offset:], offset)


def compacted_instants(block: LogBlock) -> tuple[str, ...] | None:
    """The instants whose blocks a log compaction merged into this one; None for any other block."""
    times = block.header.get(HeaderKey.COMPACTED_BLOCK_TIMES)
    return None if times is None else tuple(times.split(","))


def effective_instants(merged: Mapping[str, Collection[str] | None]) -> list[str]:
    """The instants whose blocks count, in the order in which these take effect.

    `merged` has the instants of a slice in the order of its blocks, and for a log compaction those that it merged.
    Its blocks stand where the newest of them stands, not where they were written: what came in between is newer than
    what they hold. Where none of them is left they count for nothing, because then a compaction has taken them in,
    and with them what came later. Log compactions of merged blocks add up.
    """
    merged_into: dict[str, str] = {}
    newest_first: dict[str, None] = {}
    for instant in reversed(list(merged)):
        final = merged_into.get(instant, instant)
        originals = merged[instant]
        if originals is None:
            newest_first.setdefault(final)
        else:
            merged_into.update(dict.fromkeys(originals, final))
    return list(reversed(newest_first))


def _block_end(view: memoryview, body: int) -> int | None:
    """Where the block ends whose size field is at `body`; None if it was not written to its end."""
    if len(view) - body < _LONG.size:
        return None
    size = _LONG.unpack_from(view, body)[0]
    end = body + _LONG.size + int(size)
    if size < _LONG.size or end > len(view):
        return None
    if _LONG.unpack_from(view, end - _LONG.size)[0] != size + len(MAGIC):
        return None
    follower = view[end : end + len(MAGIC)]
    if len(follower) == len(MAGIC) and follower != MAGIC:
        return None
    return end


def _next_magic(view: memoryview, start: int) -> int:
    """Offset of the first magic at or after `start`, or the end of the file."""
    while start < len(view):
        chunk = bytes(view[start : start + _SCAN_CHUNK_SIZE])
        found = chunk.find(MAGIC)
        if found >= 0:
            return start + found
        if start + len(chunk) >= len(view):
            break
        start += len(chunk) - len(MAGIC) + 1
    return len(view)


class _Cursor:
    """Reads fields of one block; a field that does not fit into it is a `CorruptTableError`."""

    def __init__(self, view: memoryview, *, file: str, offset: int) -> None:
        self._view = view
        self._file = file
        self._offset = offset
        self._at = 0

    def take(self, size: int, what: str) -> memoryview:
        if size < 0 or size > len(self._view) - self._at:
            left = len(self._view) - self._at
            raise self.corrupt(f"{what} of {size} bytes, but {left} bytes are left")
        self._at += size
        return self._view[self._at - size : self._at]

    def int32(self, what: str) -> int:
        return int(_INT.unpack(self.take(_INT.size, what))[0])

    def int64(self, what: str) -> int:
        return int(_LONG.unpack(self.take(_LONG.size, what))[0])

    def text(self, size: int, what: str) -> str:
        try:
            return str(self.take(size, what), "utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{what} is not UTF-8") from error

    def corrupt(self, reason: str) -> CorruptTableError:
        return CorruptTableError(file=self._file, reason=f"log block at byte {self._offset}: {reason}")

    @property
    def left(self) -> int:
        return len(self._view) - self._at


def _decode_block(view: memoryview, *, file: str, offset: int) -> LogBlock:
    """Parse what lies between the two size fields of a block."""
    cursor = _Cursor(view, file=file, offset=offset)
    version = cursor.int32("format version")
    if version != _FORMAT_VERSION:
        raise UnsupportedFeatureError(
            f"{file}: the log block at byte {offset} has format version {version}, this release reads version "
            f"{_FORMAT_VERSION}. Upgrade tablekeeper, or compact the file group with the writer's own release."
        )
    block_type = _decode_type(cursor.int32("block type"), file=file, offset=offset)
    header = {
        _decode_key(number, file=file, offset=offset): value for number, value in _decode_pairs(cursor, what="header")
    }
    content = cursor.take(cursor.int64("content length"), "content")
    for number, _value in _decode_pairs(cursor, what="footer"):
        raise cursor.corrupt(f"footer entry {number}, but no footer key is defined")
    if cursor.left:
        raise cursor.corrupt(f"{cursor.left} bytes between footer and trailing size")
    return LogBlock(block_type, MappingProxyType(header), content, offset)


def _decode_type(number: int, *, file: str, offset: int) -> BlockType:
    if number == BlockType.CORRUPT or number not in BlockType._value2member_map_:
        raise UnsupportedFeatureError(
            f"{file}: the log block at byte {offset} has type {number}, which this release does not know. "
            "Upgrade tablekeeper, or compact the file group with the writer's own release."
        )
    return BlockType(number)


def _decode_key(number: int, *, file: str, offset: int) -> HeaderKey:
    if number not in HeaderKey._value2member_map_:
        raise UnsupportedFeatureError(
            f"{file}: the log block at byte {offset} has header key {number}, which this release does not know. "
            "Upgrade tablekeeper, or compact the file group with the writer's own release."
        )
    return HeaderKey(number)


def _decode_pairs(cursor: _Cursor, *, what: str) -> Iterator[tuple[int, str]]:
    count = cursor.int32(f"{what} count")
    if count < 0 or count > cursor.left // _START.size:
        raise cursor.corrupt(f"{what} with {count} entries, but {cursor.left} bytes are left")
    for _ in range(count):
        number = cursor.int32(f"{what} key")
        yield number, cursor.text(cursor.int32(f"{what} length"), f"{what} entry {number}")
