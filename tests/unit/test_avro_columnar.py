"""Rows in Avro binary, case by case: what generated tables do not reach."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.avro_arrow import arrow_to_avro_schema
from tablekeeper.format.avro_columnar import decode_avro_block, decode_avro_rows, encode_avro_block_content
from tablekeeper.format.log_blocks import BlockType, HeaderKey, LogBlock

__all__: list[str] = []

FILE = ".f_001.log.1_0-0-0"


def _schema(avro: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "c", "type": avro}]}


def _block(content: bytes, avro: Any) -> LogBlock:
    return LogBlock(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: json.dumps(_schema(avro))}, content)


def _decoded(avro: Any, *records: bytes) -> list[Any]:
    """Column `c` of the records; both alone and among so many others that they are decoded together."""
    few = _column(avro, *records)
    assert _column(avro, *records * 20) == few * 20
    return few


def _column(avro: Any, *records: bytes) -> list[Any]:
    content = struct.pack(">ii", 3, len(records)) + b"".join(struct.pack(">i", len(r)) + r for r in records)
    values: list[Any] = decode_avro_block(_block(content, avro), file=FILE)["c"].to_pylist()
    return values


def _corrupt(avro: Any, record: bytes, reason: str) -> None:
    for copies in (1, 20):
        with pytest.raises(CorruptTableError, match=reason) as caught:
            _column(avro, *[record] * copies)
        assert caught.value.file == FILE


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (63, "7e"),
        (64, "8001"),
        (2**27 - 1, "feffff7f"),
        (2**55 - 1, "feffffffffffff7f"),
        (-(2**55), "ffffffffffffff7f"),
        (2**55, "808080808080808001"),
        (2**62 - 1, "feffffffffffffff7f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_integers_of_one_to_ten_bytes_decode(value: int, encoded: str) -> None:
    assert _decoded("long", bytes.fromhex(encoded), b"\x02") == [value, 1]


@pytest.mark.parametrize("encoded", ["ffffffffffffffffff02", "ffffffffffffffffffff01", "80", "ffffffffffffffffff"])
def test_an_integer_of_more_than_64_bits_or_without_an_end_is_an_error(encoded: str) -> None:
    _corrupt("long", bytes.fromhex(encoded), "64 bits|past the end|length says")


@pytest.mark.parametrize("encoded", ["8080808010", "feffffffffffffffff01", "8180808010"])
def test_an_int_of_more_than_32_bits_is_an_error(encoded: str) -> None:
    _corrupt("int", bytes.fromhex(encoded), "32 bits")


def test_arrays_in_several_blocks_and_with_sizes_decode() -> None:
    whole = bytes.fromhex("06" + "020406" + "00")
    in_blocks = bytes.fromhex("02" + "02" + "04" + "0406" + "00")
    sized = bytes.fromhex("03" + "04" + "0204" + "01" + "02" + "06" + "00")
    avro = {"type": "array", "items": "int"}
    assert _decoded(avro, whole, in_blocks, sized, b"\x00") == [[1, 2, 3]] * 3 + [[]]


def test_a_map_keeps_the_order_of_its_entries() -> None:
    record = bytes.fromhex("04" + "0262" + "02" + "0261" + "04" + "00")
    assert _decoded({"type": "map", "values": "long"}, record) == [[("b", 1), ("a", 2)]]


def test_enums_decode_to_their_symbols() -> None:
    avro = ["null", {"type": "enum", "name": "e", "symbols": ["A", "B"]}]
    assert _decoded(avro, b"\x02\x00", b"\x02\x02", b"\x00") == ["A", "B", None]
    _corrupt(avro, b"\x02\x04", "symbol")
    _corrupt(avro, b"\x02\x01", "symbol")


def test_null_may_be_the_second_branch_or_the_only_one() -> None:
    assert _decoded(["int", "null"], b"\x00\x0e", b"\x02") == [7, None]
    assert _decoded(["null"], b"\x00") == [None]
    assert _decoded("null", b"") == [None]
    assert _decoded(["int"], b"\x00\x0e") == [7]


@pytest.mark.parametrize(
    ("avro", "record", "reason"),
    [
        (["null", "int"], "04", "branch"),
        (["null", "int"], "01", "branch"),
        (["int"], "02", "branch"),
        ("boolean", "02", "boolean"),
        ("string", "04c328", "UTF-8"),
        ("string", "0461", "past the end"),
        ("string", "01", "past the end"),
        ("bytes", "feffffffffffffffff01", "past the end"),
        ("double", "00000000000000", "length says|past the end"),
        ("int", "0202", "length says"),
        ("int", "", "length says|past the end"),
        ({"type": "fixed", "name": "f", "size": 40}, "00", "past the end"),
        ({"type": "array", "items": "int"}, "feffffffffffffffff01", "more items"),
        ({"type": "array", "items": "int"}, "ffffffffffffffffff0100", "more items"),
        ({"type": "array", "items": "null"}, "feffffffffffffffff01", "more items"),
        ({"type": "array", "items": "double"}, "040000000000000000" + "00", "more items"),
        ({"type": "map", "values": "int"}, "02" + "0661", "past the end|does not end"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, "00", "decimal"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, "0264", "digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, "22" + "00" * 17, "decimal"),
    ],
)
def test_a_record_that_does_not_decode_is_reported_with_the_file(avro: Any, record: str, reason: str) -> None:
    _corrupt(avro, bytes.fromhex(record), reason)


def test_an_array_of_nulls_decodes() -> None:
    assert _decoded({"type": "array", "items": "null"}, b"\x06\x00") == [[None, None, None]]


def test_one_row_with_very_many_items_decodes() -> None:
    items = [f"item {number}" if number % 3 else None for number in range(50_000)]
    table = pa.table({"c": pa.array([["a"]] * 100 + [items] + [[]] * 100)})
    avro = arrow_to_avro_schema(table.schema, record_name="r", namespace="n")
    content = encode_avro_block_content(table, avro)
    block = LogBlock(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: json.dumps(avro)}, content)
    assert decode_avro_block(block, file=FILE).equals(table)


def test_more_rows_than_one_batch_come_back_in_order() -> None:
    count = 20_000
    table = pa.table({"c": pa.array(range(count)), "s": pa.array([str(number) for number in range(count)])})
    avro = arrow_to_avro_schema(table.schema, record_name="r", namespace="n")
    content = encode_avro_block_content(table, avro)
    block = LogBlock(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: json.dumps(avro)}, content)
    decoded = decode_avro_block(block, file=FILE)
    assert decoded.equals(table)
    assert decoded["s"].num_chunks == 1


def test_decimals_in_bytes_of_any_length_decode() -> None:
    avro = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}
    values = [0, 1, -1, 127, -128, 2**31, -(2**63), 2**63, 10**38 - 1, 1 - 10**38]
    records = []
    for value in values:
        raw = value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True)
        records.append(bytes((len(raw) * 2,)) + raw)
    assert [int(value) for value in _decoded(avro, *records)] == values
    padded = b"\x20" + (-5).to_bytes(16, "big", signed=True)
    assert [int(value) for value in _decoded(avro, padded)] == [-5]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0\3",
        struct.pack(">ii", 3, 1),
        struct.pack(">ii", 3, -1),
        struct.pack(">ii", 3, 2**31 - 1),
        struct.pack(">iii", 3, 1, 5) + b"\0",
        struct.pack(">iii", 3, 1, -4),
        struct.pack(">iiii", 3, 2, -8, 0) + b"\0" * 4,
        struct.pack(">iii", 3, 1, 1) + b"\0\0",
        struct.pack(">ii", 3, 0) + b"\0",
    ],
)
def test_a_block_whose_lengths_do_not_add_up_is_reported_with_the_file(content: bytes) -> None:
    with pytest.raises(CorruptTableError) as caught:
        decode_avro_block(_block(content, "int"), file=FILE)
    assert caught.value.file == FILE


def test_a_block_of_a_later_content_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedFeatureError, match=f"{FILE}.*version 4"):
        decode_avro_block(_block(struct.pack(">ii", 4, 0), "int"), file=FILE)


def test_a_block_without_a_schema_is_reported() -> None:
    with pytest.raises(CorruptTableError, match="no schema"):
        decode_avro_block(LogBlock(BlockType.AVRO_DATA, {}, struct.pack(">ii", 3, 0)), file=FILE)


def test_an_empty_block_is_a_table_without_rows() -> None:
    table = decode_avro_block(_block(struct.pack(">ii", 3, 0), ["null", "int"]), file=FILE)
    assert table.num_rows == 0
    assert table.schema.equals(pa.schema([("c", pa.int32())]))


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 3), (5, 0), (0, -1), (2**62, 2**62)])
def test_a_record_outside_of_the_bytes_is_reported(offset: int, length: int) -> None:
    with pytest.raises(CorruptTableError, match="outside"):
        decode_avro_rows(
            memoryview(b"\0\0"),
            offsets=np.array([offset]),
            lengths=np.array([length]),
            schema=_schema("int"),
            file=FILE,
        )


def test_a_null_where_the_schema_has_no_branch_for_it_is_refused_by_column() -> None:
    cases: list[tuple[Any, pa.Array, str]] = [
        ("int", pa.array([1, None], pa.int32()), "'c'"),
        ({"type": "array", "items": "int"}, pa.array([[1, None]], pa.list_(pa.int32())), r"'c\.element'"),
        ({"type": "map", "values": "int"}, pa.array([[("a", None)]], pa.map_("string", "int32")), r"'c\.value'"),
        (_schema("int") | {"name": "s"}, pa.array([{"c": None}], pa.struct([("c", pa.int32())])), r"'c\.c'"),
    ]
    for avro, values, column in cases:
        with pytest.raises(InvalidRequestError, match=column):
            encode_avro_block_content(pa.table({"c": values}), _schema(avro))


def test_a_missing_column_and_one_of_another_type_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no column 'c'"):
        encode_avro_block_content(pa.table({"d": [1]}), _schema("int"))
    with pytest.raises(InvalidRequestError, match="does not fit"):
        encode_avro_block_content(pa.table({"c": ["x"]}), _schema("int"))
    with pytest.raises(InvalidRequestError, match="does not fit"):
        encode_avro_block_content(pa.table({"c": [2**40]}), _schema("int"))
    enum = {"type": "enum", "name": "e", "symbols": ["A"]}
    with pytest.raises(InvalidRequestError, match="symbols"):
        encode_avro_block_content(pa.table({"c": ["B"]}), _schema(enum))


def test_columns_of_wider_and_encoded_types_are_written_in_the_type_of_the_schema() -> None:
    table = pa.table(
        {
            "s": pa.array(["a", "b"]).dictionary_encode(),
            "l": pa.array(["a", None], pa.large_string()),
            "i": pa.array([1, 2], pa.int8()),
            "d": pa.array([86_400_000, None], pa.date64()),
            "n": pa.array([[1], None], pa.large_list(pa.int16())),
        }
    )
    avro = arrow_to_avro_schema(table.schema, record_name="r", namespace="n")
    content = encode_avro_block_content(table, avro)
    block = LogBlock(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: json.dumps(avro)}, content)
    assert decode_avro_block(block, file=FILE).to_pylist() == table.to_pylist()


def test_items_under_a_null_list_are_not_written() -> None:
    items = pa.array([1, 2, 3], pa.int32())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), items, mask=pa.array([False, True, False]))
    table = pa.table({"c": lists})
    avro = arrow_to_avro_schema(table.schema, record_name="r", namespace="n")
    content = encode_avro_block_content(table, avro)
    block = LogBlock(BlockType.AVRO_DATA, {HeaderKey.SCHEMA: json.dumps(avro)}, content)
    assert decode_avro_block(block, file=FILE)["c"].to_pylist() == [[1], None, [3]]
