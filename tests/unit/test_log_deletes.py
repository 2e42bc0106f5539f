"""Delete blocks: what Java wrote, what we write, and what does not decode."""

from __future__ import annotations

import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.log_blocks import BlockType, LogBlock, decode_blocks
from tablekeeper.format.log_deletes import decode_deletes, encode_deletes

__all__: list[str] = []

DATA = Path(__file__).parent / "data"
FILE = ".f_001.log.1_0-0-0"


def _decoded(content: bytes) -> pa.Table:
    return decode_deletes(LogBlock(BlockType.DELETE, {}, content), file=FILE)


def _avro(hex_body: str) -> pa.Table:
    body = bytes.fromhex(hex_body)
    return _decoded(struct.pack(">ii", 3, len(body)) + body)


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    assert table.column_names == ["key", "partition", "ordering", "by_commit_time"]
    return [tuple(row.values()) for row in table.to_pylist()]


# Contents of delete blocks that Java Hudi 1.2.0 wrote for deletes of the keys 1 and 2, by type of the ordering column.
JAVA = {
    "bool": ("04020231020002010202320200020000", pa.array([True, False])),
    "bigint": ("04020231020006120202320200060000", pa.array([9, 0])),
    "float": ("04020231020008000010410202320200080000000000", pa.array([9, 0], pa.float32())),
    "double": ("0402023102000a000000000000224002023202000a000000000000000000", pa.array([9.0, 0.0])),
    "string": ("0402023102000e023902023202000e023000", pa.array(["9", "0"])),
    "decimal": (
        "040202310200120e21c0331d5dc0000202320200120e01c6bf5263400000",
        pa.array([Decimal("9.5"), Decimal("0.5")], pa.decimal128(30, 15)),
    ),
    "timestamp": (
        "0402023102000680d1d38ae2f5860602023202000680808982e2f5860600",
        pa.array([1704067209000000, 1704067200000000]),
    ),
    "two columns": (
        "04020231020018020406120606000202320200180204060006060000",
        pa.array([{"f0": 9, "f1": 3}, {"f0": 0, "f1": 3}]),
    ),
}


@pytest.mark.parametrize("name", JAVA)
def test_deletes_of_java_decode_to_its_ordering_values_and_encode_to_its_bytes(name: str) -> None:
    body, ordering = JAVA[name]
    table = _avro(body)
    assert table["key"].to_pylist() == ["1", "2"]
    assert table["partition"].to_pylist() == ["", ""]
    assert table["by_commit_time"].to_pylist() == [False, False]
    assert table["ordering"].combine_chunks().equals(ordering)
    encoded = encode_deletes(table["key"], partition="", ordering=ordering)
    assert encoded[8:].hex() == body


def test_the_integer_zero_means_by_commit_time_and_is_no_ordering_value() -> None:
    table = _avro("04020231020004120202320200040000")
    assert table.schema.field("ordering").type == pa.int32()
    assert _rows(table) == [("1", "", 9, False), ("2", "", None, True)]


def test_the_long_zero_is_an_ordering_value() -> None:
    assert _rows(_avro("02020231020006000" + "0")) == [("1", "", 0, False)]


def test_without_ordering_values_the_deletes_are_by_commit_time() -> None:
    content = encode_deletes(pa.array(["k1", "k2"]), partition="p=1", ordering=None)
    # Java's plain delete writes the integer 0 for each record.
    assert content[8:].hex() == "0402046b310206703d31040002046b320206703d31040000"
    table = _decoded(content)
    assert table.schema.field("ordering").type == pa.null()
    assert _rows(table) == [("k1", "p=1", None, True), ("k2", "p=1", None, True)]


def test_a_null_ordering_value_is_written_like_java_writes_none() -> None:
    content = encode_deletes(pa.array(["a", "b"]), partition="", ordering=pa.array([None, 7], pa.int64()))
    assert content[8:].hex() == "04020261020004000202620200060e00"
    assert _rows(_decoded(content)) == [("a", "", None, True), ("b", "", 7, False)]


@pytest.mark.parametrize("arrow", [pa.date32(), pa.date64()])
def test_a_date_is_written_as_its_day_number_which_java_can_compare(arrow: pa.DataType) -> None:
    days = pa.array([19731], pa.int32()).cast(pa.date32()).cast(arrow)
    table = _decoded(encode_deletes(pa.array(["a"]), partition="", ordering=days))
    assert table["ordering"].cast(pa.date32()).to_pylist() == days.cast(pa.date32()).to_pylist()
    assert table.schema.field("ordering").type == pa.int32()


@pytest.mark.parametrize("arrow", [pa.timestamp("us", tz="UTC"), pa.timestamp("ms"), pa.time64("us")])
def test_a_time_is_written_as_the_integer_of_its_column(arrow: pa.DataType) -> None:
    moments = pa.array([1_700_000_000], pa.int64()).cast(arrow)
    table = _decoded(encode_deletes(pa.array(["a"]), partition="", ordering=moments))
    assert table["ordering"].to_pylist() == [1_700_000_000]


def test_several_ordering_columns_may_hold_nulls() -> None:
    ordering = pa.array([{"x": 1, "y": None}, None, {"x": 2, "y": "b"}])
    table = _decoded(encode_deletes(pa.array(["a", "b", "c"]), partition="p", ordering=ordering))
    assert _rows(table) == [
        ("a", "p", {"f0": 1, "f1": None}, False),
        ("b", "p", None, True),
        ("c", "p", {"f0": 2, "f1": "b"}, False),
    ]


def test_chunked_and_dictionary_columns_are_taken_as_keys_and_ordering_values() -> None:
    keys = pa.chunked_array([["a"], ["b"]]).cast(pa.large_string())
    ordering = pa.chunked_array([["x"], ["y"]]).dictionary_encode()
    table = _decoded(encode_deletes(keys, partition="p", ordering=ordering))
    assert _rows(table) == [("a", "p", "x", False), ("b", "p", "y", False)]


def test_no_deletes_make_an_empty_block() -> None:
    content = encode_deletes(pa.array([], pa.string()), partition="p", ordering=None)
    assert content.hex() == "000000030000000100"
    assert _decoded(content).num_rows == 0


def test_a_null_key_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="key"):
        encode_deletes(pa.array(["a", None]), partition="", ordering=None)


def test_an_ordering_type_that_has_no_wrapper_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="list"):
        encode_deletes(pa.array(["a"]), partition="", ordering=pa.array([[1]]))


def test_a_decimal_that_no_wrapper_holds_is_refused() -> None:
    wide = pa.array([Decimal("1e25")], pa.decimal128(38, 2))
    with pytest.raises(InvalidRequestError, match="does not fit"):
        encode_deletes(pa.array(["a"]), partition="", ordering=wide)


def test_ordering_values_must_be_as_many_as_keys() -> None:
    with pytest.raises(ValueError, match="1 keys and 2"):
        encode_deletes(pa.array(["a"]), partition="", ordering=pa.array([1, 2]))


def test_deletes_of_a_log_file_that_java_wrote_are_read_with_their_ordering_values() -> None:
    blocks = decode_blocks((DATA / "java_all_types_avro.log").read_bytes(), file=FILE)
    (table,) = (decode_deletes(block, file=FILE) for block in blocks if block.type is BlockType.DELETE)
    expected = {(str(key), "", key * 1000003 + 1, False) for key in (37, 38, 39, 40)}
    assert set(_rows(table)) == expected


# Contents of version 1 and 2 as Java's serialiser writes them, made with Java Hudi 1.2.0.


def _java_file(name: str) -> bytes:
    return (DATA / "java_kryo" / f"{name}.bin").read_bytes()


def _kryo(name: str) -> pa.Table:
    body = _java_file(name)
    return _decoded(struct.pack(">ii", int(name[1]), len(body)) + body)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (
            "v1_keys",
            [
                ("k1", "p=1", None, True),
                ("schlüssel-é-日本", "p=1", None, True),
                ("x" * 70, "", None, True),
                ("k", "q", None, True),
            ],
        ),
        ("v1_sharedpart", [(key, "p=shared", None, True) for key in ("a1", "a2", "a")]),
        ("v1_empty", []),
        ("v2_empty", []),
        ("v2_int0", [("k1", "p=1", None, True), ("k2", "p=1", None, True)]),
        (
            "v2_shared",
            [("k1", "p=shared", 17, False), ("k2", "p=shared", -5, False), ("", "p=shared", 1 << 60, False)],
        ),
        (
            "v2_string",
            [("k1", "p=shared", "abc", False), ("k2", "p=shared", "é", False), ("k3", "p=shared", "", False)],
        ),
        ("v2_double", [("k1", "p=shared", 1.5, False), ("k2", "p=shared", -2.25, False)]),
        ("v2_float", [("k1", "p=shared", 1.5, False)]),
        ("v2_bool", [("k1", "p=shared", True, False), ("k2", "p=shared", False, False)]),
        ("v2_null", [("k1", "p=shared", None, True), ("k2", None, 5, False)]),
        ("v2_decimal", [("k1", "p=shared", Decimal("12.345"), False), ("k2", "p=shared", Decimal("-0.5"), False)]),
        ("v2_many", [(f"key-{n}", f"part={n % 3}", n**3, False) for n in range(300)]),
    ],
)
def test_deletes_that_old_writers_serialised_as_java_objects_are_read(name: str, rows: list[Any]) -> None:
    assert _rows(_kryo(name)) == rows


@pytest.mark.parametrize("name", ["v2_timestamp", "v2_date", "v2_utf8"])
def test_an_ordering_value_of_another_java_class_is_unsupported_and_named(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"{FILE}.*Java class"):
        _kryo(name)


@pytest.mark.parametrize("version", [0, 4, -1])
def test_a_delete_block_of_an_unknown_version_is_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"content version {version}"):
        _decoded(struct.pack(">ii", version, 0))


@pytest.mark.parametrize(
    "body",
    [
        "",
        "02",
        "0202",
        "020202610200",
        "0202026102001a00",
        "020202610400",
        "02020261020002020000",
        "feffffffffffffffff01",
        "ffffffffffffffffffff01",
        "0202feffffff0f",
        "0202026102000004",
        "0000",
        "020202ff0200040000",
        "0202026102000800",
        "0202026102001224" + "01" * 18 + "00",
        "02020261020012" + "00" + "00",
    ],
)
def test_deletes_that_do_not_decode_are_reported_with_the_file(body: str) -> None:
    with pytest.raises(CorruptTableError, match="delete block at byte 0") as caught:
        _avro(body)
    assert caught.value.file == FILE


def test_content_shorter_than_its_length_is_reported() -> None:
    for content in (b"", b"\0\0\0\3", struct.pack(">ii", 3, 10) + b"\0", struct.pack(">ii", 3, -1)):
        with pytest.raises(CorruptTableError, match="delete block"):
            _decoded(content)


def test_ordering_values_of_two_types_in_one_block_are_refused() -> None:
    with pytest.raises(CorruptTableError, match="several types"):
        _avro("04020231020006120202320200 0e023900".replace(" ", ""))


def test_int_and_long_ordering_values_in_one_block_are_longs() -> None:
    table = _avro("040202310200061202023202000408" + "00")
    assert table.schema.field("ordering").type == pa.int64()
    assert table["ordering"].to_pylist() == [9, 4]


def test_another_kind_of_block_holds_no_deletes() -> None:
    with pytest.raises(ValueError, match="AVRO_DATA"):
        decode_deletes(LogBlock(BlockType.AVRO_DATA, {}, b""), file=FILE)
