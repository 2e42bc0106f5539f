"""The frame of log files: blocks, damaged stretches and what follows them."""

from __future__ import annotations

import struct

import pytest

from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.log_blocks import MAGIC, BlockType, HeaderKey, LogBlock, decode_blocks, encode_block

__all__: list[str] = []

FILE = "p/.f_001.log.1_0-0-0"
HEADER = {HeaderKey.INSTANT_TIME: "20260102030405006", HeaderKey.SCHEMA: '{"ü": 1}'}


def _block(content: bytes = b"content", block_type: BlockType = BlockType.AVRO_DATA) -> bytes:
    return encode_block(block_type, HEADER, content)


def _decoded(data: bytes) -> list[LogBlock]:
    return list(decode_blocks(data, file=FILE))


def _types(data: bytes) -> list[BlockType]:
    return [block.type for block in _decoded(data)]


def _framed(body: bytes) -> bytes:
    """A block whose sizes are right, whatever its body is."""
    return MAGIC + struct.pack(">q", len(body) + 8) + body + struct.pack(">q", len(body) + 14)


def test_the_bytes_of_a_block_are_laid_out_as_the_format_says() -> None:
    data = encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: "01"}, b"xyz")
    assert data == b"".join(
        (
            b"#HUDI#",
            struct.pack(">q", 4 + 4 + 4 + 8 + 2 + 8 + 3 + 4 + 8),
            struct.pack(">ii", 1, 1),
            struct.pack(">iii", 1, 0, 2) + b"01",
            struct.pack(">q", 3) + b"xyz",
            struct.pack(">i", 0),
            struct.pack(">q", len(data) - 8),
        )
    )


def test_blocks_come_back_in_order_with_their_offsets() -> None:
    first, second = _block(b"one"), _block(b"", BlockType.COMMAND)
    blocks = _decoded(first + second)
    assert [block.type for block in blocks] == [BlockType.AVRO_DATA, BlockType.COMMAND]
    assert [bytes(block.content) for block in blocks] == [b"one", b""]
    assert [dict(block.header) for block in blocks] == [HEADER, HEADER]
    assert [block.offset for block in blocks] == [0, len(first)]


def test_content_is_a_view_of_the_input() -> None:
    data = bytearray(_block(b"before"))
    (block,) = decode_blocks(memoryview(data), file=FILE)
    at = data.index(b"before")
    data[at : at + 6] = b"after!"
    assert bytes(block.content) == b"after!"


def test_a_file_without_blocks_is_empty() -> None:
    assert _decoded(b"") == []


def test_bytes_that_are_too_few_for_a_magic_make_a_corrupt_block() -> None:
    assert [block.type for block in _decoded(b"#HUD")] == [BlockType.CORRUPT]
    assert _types(_block() + b"#HUD") == [BlockType.AVRO_DATA, BlockType.CORRUPT]


def test_a_file_that_does_not_start_with_a_block_is_reported_with_its_name() -> None:
    with pytest.raises(CorruptTableError, match="byte 0") as caught:
        _decoded(b"PAR1....PAR1")
    assert caught.value.file == FILE


@pytest.mark.parametrize("kept", [6, 10, 14, 40, -1])
def test_a_last_block_that_was_cut_off_is_a_corrupt_block(kept: int) -> None:
    whole, cut = _block(b"kept"), _block(b"lost")[:kept]
    blocks = _decoded(whole + cut)
    assert [block.type for block in blocks] == [BlockType.AVRO_DATA, BlockType.CORRUPT]
    assert bytes(blocks[1].content) == cut[6:]
    assert blocks[1].offset == len(whole)


@pytest.mark.parametrize("kept", [6, 10, 14, 40, -1])
def test_reading_goes_on_at_the_next_magic_after_a_block_that_was_cut_off(kept: int) -> None:
    cut = _block(b"lost")[:kept]
    assert _types(_block() + cut + _block() + _block()) == [
        BlockType.AVRO_DATA,
        BlockType.CORRUPT,
        BlockType.AVRO_DATA,
        BlockType.AVRO_DATA,
    ]


def test_a_magic_inside_of_content_does_not_split_a_whole_block() -> None:
    (block,) = _decoded(_block(b"a" + MAGIC + b"b"))
    assert bytes(block.content) == b"a" + MAGIC + b"b"


def test_a_wrong_trailing_size_makes_a_corrupt_block() -> None:
    data = bytearray(_block())
    data[-1] ^= 1
    assert _types(bytes(data) + _block()) == [BlockType.CORRUPT, BlockType.AVRO_DATA]


def test_a_block_that_no_magic_follows_is_corrupt() -> None:
    assert _types(_block() + b"garbage" + _block()) == [BlockType.CORRUPT, BlockType.AVRO_DATA]


def test_the_beginning_of_a_magic_at_the_end_of_the_file_is_a_corrupt_block() -> None:
    assert _types(_block() + b"#HUDI") == [BlockType.AVRO_DATA, BlockType.CORRUPT]


@pytest.mark.parametrize("size", [-1, 0, 7, 2**62, -(2**63)])
def test_a_senseless_size_makes_a_corrupt_block(size: int) -> None:
    assert _types(MAGIC + struct.pack(">q", size) + bytes(40) + _block()) == [BlockType.CORRUPT, BlockType.AVRO_DATA]


def test_the_next_magic_is_found_across_the_chunks_of_a_long_scan() -> None:
    for filler in range((1 << 20) - 12, (1 << 20) + 1):
        data = MAGIC + b"\xff" * filler + _block()
        assert _types(data) == [BlockType.CORRUPT, BlockType.AVRO_DATA]


@pytest.mark.parametrize("number", [2, 7, -1, 2**31 - 1])
def test_a_block_of_an_unknown_type_is_unsupported_by_file_and_type(number: int) -> None:
    body = struct.pack(">iiiq", 1, number, 0, 0) + struct.pack(">i", 0)
    with pytest.raises(UnsupportedFeatureError, match=rf"{FILE}.*type {number}"):
        _decoded(_framed(body))


@pytest.mark.parametrize("version", [0, 2, -1])
def test_a_block_of_an_unknown_version_is_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"{FILE}.*format version {version}"):
        _decoded(_framed(struct.pack(">iiiqi", version, 3, 0, 0, 0)))


def test_an_unknown_header_key_is_unsupported() -> None:
    with pytest.raises(UnsupportedFeatureError, match="header key 99"):
        _decoded(_framed(struct.pack(">iiiiiqi", 1, 3, 1, 99, 0, 0, 0)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack(">ii", 1, 3),
        struct.pack(">iii", 1, 3, -1),
        struct.pack(">iii", 1, 3, 2**31 - 1),
        struct.pack(">iiiii", 1, 3, 1, 0, 2**31 - 1),
        struct.pack(">iiiii", 1, 3, 1, 0, -5),
        struct.pack(">iiiii2sqi", 1, 3, 1, 0, 2, b"\xff\xfe", 0, 0),
        struct.pack(">iiiqi", 1, 3, 0, 2**60, 0),
        struct.pack(">iiiqi", 1, 3, 0, -1, 0),
        struct.pack(">iiiqiii", 1, 3, 0, 0, 1, 0, 0),
        struct.pack(">iiiqi3s", 1, 3, 0, 0, 0, b"xyz"),
    ],
)
def test_a_framed_block_that_does_not_parse_is_reported_with_file_and_place(body: bytes) -> None:
    with pytest.raises(CorruptTableError, match="log block at byte 0") as caught:
        _decoded(_framed(body))
    assert caught.value.file == FILE


def test_a_corrupt_block_cannot_be_written() -> None:
    with pytest.raises(InvalidRequestError, match="never written"):
        encode_block(BlockType.CORRUPT, {}, b"")
