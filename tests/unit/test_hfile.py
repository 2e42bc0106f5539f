"""HFiles: what the writer lays down, what the reader accepts and what it refuses."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hfile import HFileReader, RangeSource
from tablekeeper.format.hfile_writer import encode_hfile

__all__: list[str] = []

ENTRIES = [(f"key-{number:04d}".encode(), bytes([number % 256]) * number) for number in range(300)]
HEADER = struct.Struct(">8siiqBii")


def open_hfile(data: bytes) -> HFileReader:
    return HFileReader(data, file="some-hfile")


def data_blocks(data: bytes) -> list[tuple[int, int]]:
    """(offset, uncompressed payload size) of each data block, found by walking the file."""
    blocks = []
    position = 0
    while data[position : position + 8] == b"DATABLK*":
        _, on_disk, plain, _, _, _, _ = HEADER.unpack_from(data, position)
        blocks.append((position, plain))
        position += HEADER.size + on_disk
    return blocks


@pytest.mark.parametrize("compress", [True, False])
def test_all_entries_come_back_in_order(compress: bool) -> None:
    reader = open_hfile(encode_hfile(ENTRIES, schema_json="{}", compress=compress))
    assert list(reader.items()) == ENTRIES
    assert reader.entry_count == len(ENTRIES)
    assert reader.info[b"schema"] == b"{}"
    assert reader.info[b"hfile.LASTKEY"] == struct.pack(">h", 8) + b"key-0299"


def test_an_empty_file_has_no_entries() -> None:
    reader = open_hfile(encode_hfile([], schema_json="{}"))
    assert list(reader.items()) == []
    assert reader.get(b"x") is None


def test_a_key_is_found_and_a_stranger_is_not() -> None:
    reader = open_hfile(encode_hfile(ENTRIES, schema_json="{}"))
    assert reader.get(b"key-0123") == bytes([123]) * 123
    for stranger in (b"", b"key", b"key-0123x", b"zzz"):
        assert reader.get(stranger) is None


def test_a_lookup_reads_the_index_and_one_block() -> None:
    data = encode_hfile(ENTRIES, schema_json="{}")
    ranges: list[tuple[int, int]] = []

    def read(start: int, length: int) -> bytes:
        ranges.append((start, length))
        return data[start : start + length]

    reader = HFileReader(RangeSource(len(data), read), file="some-hfile")
    assert reader.get(b"key-0123") == bytes([123]) * 123
    assert len(ranges) == 2
    assert len(data_blocks(data)) > 3


def test_a_look_up_in_a_large_file_reads_what_the_key_needs() -> None:
    entries = [(f"key-{number:06d}".encode(), b"x" * 1000) for number in range(20_000)]
    data = encode_hfile(entries, schema_json="{}", compress=False)
    bytes_read = []

    def read(start: int, length: int) -> bytes:
        bytes_read.append(length)
        return data[start : start + length]

    reader = HFileReader(RangeSource(len(data), read), file="some-hfile")
    assert reader.find_many([b"key-000000", b"key-012345"]) == {b"key-000000": b"x" * 1000, b"key-012345": b"x" * 1000}
    assert sum(bytes_read) < 100_000
    assert list(reader.items()) == entries


def test_an_index_that_names_blocks_out_of_order_is_refused_by_a_look_up() -> None:
    data = two_level_hfile([[(b"a", b"1"), (b"b", b"2")], [(b"c", b"3")]])
    size = data.index(b"DATABLK*", 1)
    turned = data.replace(struct.pack(">qi", 0, size), struct.pack(">qi", size + 1, size))
    assert turned != data
    with pytest.raises(CorruptTableError, match="names a block"):
        open_hfile(turned).find_many([b"a", b"b"])


@pytest.mark.parametrize("compress", [True, False])
def test_data_blocks_stay_below_the_size_at_which_java_drops_entries(compress: bool) -> None:
    entries = [*ENTRIES, (b"z-large", b"x" * 100_000), (b"zz", b"small")]
    blocks = data_blocks(encode_hfile(entries, schema_json="{}", compress=compress))
    sizes = [size for _, size in blocks]
    large = [size for size in sizes if size > 100_000]
    assert len(large) == 1, "the large entry has a block of its own"
    assert all(size + HEADER.size <= 16 * 1024 for size in sizes if size not in large)


def test_unsorted_and_repeated_keys_are_not_written() -> None:
    for keys in ([b"b", b"a"], [b"a", b"a"]):
        with pytest.raises(ValueError, match="rising keys"):
            encode_hfile([(key, b"") for key in keys], schema_json="{}")


def block(magic: bytes, payload: bytes) -> bytes:
    return (
        HEADER.pack(magic, len(payload) + 4, len(payload), -1, 0, 16384, HEADER.size + len(payload))
        + payload
        + bytes(4)
    )


def entry(key: bytes, value: bytes) -> bytes:
    return (
        struct.pack(">iih", len(key) + 12, len(value), len(key))
        + key
        + b"\0"
        + b"\x7f"
        + b"\xff" * 7
        + b"\x04"
        + value
        + b"\0"
    )


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7]) if number > 127 else bytes([number])


def two_level_hfile(groups: Sequence[Sequence[tuple[bytes, bytes]]]) -> bytes:
    """An HFile with one leaf index block for each group and one data block for each entry, as HBase lays it out."""
    out = b""
    leaves = []
    for group in groups:
        offsets, keys = [0], b""
        for key, value in group:
            data = block(b"DATABLK*", entry(key, value))
            keys += struct.pack(">qih", len(out), len(data), len(key)) + key
            offsets.append(len(keys))
            out += data
        leaf = block(b"IDXLEAF2", struct.pack(f">i{len(offsets)}i", len(group), *offsets) + keys)
        leaves.append((group[0][0], len(out), len(leaf)))
        out += leaf
    root = b"".join(struct.pack(">qibh", o, size, len(key) + 2, len(key)) + key for key, o, size in leaves)
    opens_at = len(out)
    out += block(b"IDXROOT2", root) + block(b"IDXROOT2", b"") + block(b"FILEINF2", b"PBUF\x00")
    count = sum(len(group) for group in groups)
    fields = {2: opens_at, 5: len(leaves), 7: count, 8: 2, 12: 2}
    message = b"".join(bytes([number << 3]) + varint(value) for number, value in fields.items())
    trailer = b'TRABLK"$' + bytes([len(message)]) + message
    return out + trailer + bytes(4096 - len(trailer) - 1) + b"\x03"


def test_an_index_of_two_levels_is_followed() -> None:
    groups = [[(b"a", b"1"), (b"b", b"2")], [(b"c", b"3")], [(b"d", b"4"), (b"e", b"5"), (b"f", b"6")]]
    reader = open_hfile(two_level_hfile(groups))
    assert list(reader.items()) == [pair for group in groups for pair in group]
    assert reader.get(b"e") == b"5"


def test_every_truncation_is_reported_with_the_file_name() -> None:
    data = encode_hfile(ENTRIES[:40], schema_json="{}")
    for length in range(0, len(data), 97):
        with pytest.raises(CorruptTableError, match="some-hfile"):
            list(open_hfile(data[:length]).items())


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("trailer magic", b'TRABLK"$', b"TRABLKxx"),
        ("data block magic", b"DATABLK*", b"DATABLK?"),
        ("index magic", b"IDXROOT2", b"IDXLEAF2"),
        ("file info magic", b"FILEINF2", b"FILEINF1"),
    ],
)
def test_a_foreign_magic_is_reported(what: str, old: bytes, new: bytes) -> None:
    data = encode_hfile(ENTRIES[:3], schema_json="{}", compress=False).replace(old, new, 1)
    with pytest.raises(CorruptTableError, match="some-hfile"):
        list(open_hfile(data).items())


def test_keys_out_of_order_are_reported() -> None:
    data = encode_hfile([(b"aa", b"1"), (b"bb", b"2")], schema_json="{}", compress=False)
    with pytest.raises(CorruptTableError, match="not in order"):
        list(open_hfile(data.replace(b"bb\0", b"a0\0", 1)).items())


def test_another_hfile_version_is_reported() -> None:
    data = encode_hfile(ENTRIES[:3], schema_json="{}")
    with pytest.raises(CorruptTableError, match="version 2"):
        open_hfile(data[:-1] + b"\x02")
