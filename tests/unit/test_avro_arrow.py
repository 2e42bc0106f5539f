"""Avro schemas and Arrow schemas, case by case."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.avro_arrow import (
    META_COLUMNS,
    arrow_to_avro_schema,
    avro_to_arrow_schema,
    with_meta_columns,
    without_meta_columns,
)

__all__: list[str] = []


def _avro_type(arrow: pa.DataType) -> Any:
    schema = pa.schema([pa.field("c", arrow, nullable=False)])
    return arrow_to_avro_schema(schema, record_name="t_record", namespace="hoodie.t")["fields"][0]["type"]


def _arrow_field(avro: Any) -> pa.Field:
    record = {"type": "record", "name": "r", "namespace": "n.s", "fields": [{"name": "c", "type": avro}]}
    return avro_to_arrow_schema(record, file="f.log").field(0)


def test_a_record_schema_is_spelled_as_java_spells_it() -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("price", pa.decimal128(10, 2), nullable=False)])
    assert arrow_to_avro_schema(schema, record_name="t_record", namespace="hoodie.t") == {
        "type": "record",
        "name": "t_record",
        "namespace": "hoodie.t",
        "fields": [
            {"name": "id", "type": ["null", "long"], "default": None},
            {
                "name": "price",
                "type": {
                    "type": "fixed",
                    "name": "fixed",
                    "namespace": "hoodie.t.t_record.price",
                    "size": 5,
                    "logicalType": "decimal",
                    "precision": 10,
                    "scale": 2,
                },
            },
        ],
    }


@pytest.mark.parametrize(
    ("arrow", "avro"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "int"),
        (pa.int16(), "int"),
        (pa.int32(), "int"),
        (pa.int64(), "long"),
        (pa.float32(), "float"),
        (pa.float64(), "double"),
        (pa.string(), "string"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.binary(), "bytes"),
        (pa.large_binary(), "bytes"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.date32(), {"type": "int", "logicalType": "date"}),
        (pa.timestamp("us", tz="UTC"), {"type": "long", "logicalType": "timestamp-micros"}),
        (pa.timestamp("us", tz="Europe/Vienna"), {"type": "long", "logicalType": "timestamp-micros"}),
        (pa.timestamp("ms", tz="UTC"), {"type": "long", "logicalType": "timestamp-millis"}),
        (pa.timestamp("us"), {"type": "long", "logicalType": "local-timestamp-micros"}),
        (pa.timestamp("ms"), {"type": "long", "logicalType": "local-timestamp-millis"}),
        (pa.list_(pa.int32()), {"type": "array", "items": ["null", "int"]}),
        (pa.large_list(pa.int32()), {"type": "array", "items": ["null", "int"]}),
        (pa.map_(pa.string(), pa.int64()), {"type": "map", "values": ["null", "long"]}),
    ],
)
def test_an_arrow_type_has_its_avro_type(arrow: pa.DataType, avro: Any) -> None:
    assert _avro_type(arrow) == avro


@pytest.mark.parametrize(
    ("precision", "size"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (9, 4), (10, 5), (18, 8), (19, 9), (38, 16)]
)
def test_a_decimal_takes_the_fewest_bytes_for_its_digits(precision: int, size: int) -> None:
    assert _avro_type(pa.decimal128(precision, 0))["size"] == size


def test_nested_records_are_named_by_their_path() -> None:
    inner = pa.struct([("x", pa.decimal128(5, 1))])
    schema = pa.schema([("s", pa.struct([("s", inner), ("l", pa.list_(inner))]))])
    avro = arrow_to_avro_schema(schema, record_name="r", namespace="hoodie.t")
    outer = avro["fields"][0]["type"][1]
    first, second = (field["type"][1] for field in outer["fields"])
    assert (outer["name"], outer["namespace"]) == ("s", "hoodie.t.r")
    assert (first["name"], first["namespace"]) == ("s", "hoodie.t.r.s")
    assert (second["items"][1]["name"], second["items"][1]["namespace"]) == ("l", "hoodie.t.r.s")
    assert first["fields"][0]["type"][1]["namespace"] == "hoodie.t.r.s.s.x"
    assert avro_to_arrow_schema(avro, file="f").equals(schema)


def test_a_table_name_that_avro_does_not_take_is_made_fit_like_java_does() -> None:
    avro = arrow_to_avro_schema(pa.schema([]), record_name="my-table 1_record", namespace="hoodie.my-table 1")
    assert (avro["name"], avro["namespace"]) == ("my__table__1_record", "hoodie.my__table__1")
    assert arrow_to_avro_schema(pa.schema([]), record_name="1t", namespace="hoodie.1")["name"] == "__t"


@pytest.mark.parametrize(
    "arrow",
    [
        pa.uint8(),
        pa.uint64(),
        pa.float16(),
        pa.null(),
        pa.timestamp("ns"),
        pa.timestamp("s", tz="UTC"),
        pa.time64("ns"),
        pa.duration("us"),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.struct([]),
        pa.month_day_nano_interval(),
        pa.dictionary(pa.int32(), pa.uint16()),
        pa.map_(pa.int32(), pa.int32()),
        pa.list_(pa.uint8()),
    ],
)
def test_a_type_that_hudi_does_not_store_is_refused_by_column_name(arrow: pa.DataType) -> None:
    schema = pa.schema([("ok", pa.int32()), ("outer", pa.struct([("odd_one", arrow)]))])
    with pytest.raises(InvalidRequestError, match=r"outer\.odd_one"):
        arrow_to_avro_schema(schema, record_name="r", namespace="n")


@pytest.mark.parametrize("name", ["", "1a", "a b", "a-b", "ä", "a.b"])
def test_a_column_name_that_avro_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="Rename the column"):
        arrow_to_avro_schema(pa.schema([(name, pa.int32())]), record_name="r", namespace="n")


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="twice"):
        arrow_to_avro_schema(pa.schema([("a", pa.int32()), ("a", pa.int32())]), record_name="r", namespace="n")


@pytest.mark.parametrize(
    ("avro", "arrow", "nullable"),
    [
        (["null", "int"], pa.int32(), True),
        (["int", "null"], pa.int32(), True),
        (["int"], pa.int32(), False),
        (["null"], pa.null(), True),
        ("null", pa.null(), True),
        ({"type": "int"}, pa.int32(), False),
        ({"type": {"type": "string", "avro.java.string": "String"}}, pa.string(), False),
        ({"type": "string", "logicalType": "uuid"}, pa.string(), False),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, pa.string(), False),
        ({"type": "fixed", "name": "f", "size": 4}, pa.binary(4), False),
        ({"type": "fixed", "name": "f", "size": 12, "logicalType": "duration"}, pa.binary(12), False),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, pa.decimal128(5, 2), False),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5}, pa.decimal128(5, 0), False),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.timestamp("ns", tz="UTC"), False),
        ({"type": "int", "logicalType": "time-millis"}, pa.time32("ms"), False),
        ({"type": "long", "logicalType": "never-heard-of"}, pa.int64(), False),
        ({"type": "int", "logicalType": "timestamp-micros"}, pa.int32(), False),
    ],
)
def test_an_avro_type_has_its_arrow_type(avro: Any, arrow: pa.DataType, nullable: bool) -> None:
    field = _arrow_field(avro)
    assert field.type == arrow
    assert field.nullable == nullable


def test_named_types_are_found_by_short_and_by_full_name() -> None:
    avro = {
        "type": "record",
        "name": "a.b.R",
        "fields": [
            {"name": "x", "type": {"type": "fixed", "name": "F", "size": 2}},
            {"name": "y", "type": ["null", "F"]},
            {"name": "z", "type": "a.b.F"},
            {
                "name": "n",
                "type": {"type": "record", "name": "N", "namespace": "c", "fields": [{"name": "q", "type": "a.b.F"}]},
            },
            {"name": "m", "type": {"type": "map", "values": "c.N"}},
        ],
    }
    schema = avro_to_arrow_schema(json.dumps(avro), file="f.log")
    assert schema.field("x").type == schema.field("y").type == schema.field("z").type == pa.binary(2)
    assert schema.field("y").nullable
    assert schema.field("m").type.item_type == schema.field("n").type


@pytest.mark.parametrize(
    "avro",
    [
        ["int", "string"],
        ["null", "int", "string"],
        "r",
        {"type": "array", "items": "n.s.r"},
        {"type": "bytes", "logicalType": "decimal", "precision": 39},
        {"type": "fixed", "name": "f", "size": 17, "logicalType": "decimal", "precision": 38},
    ],
)
def test_a_schema_that_needs_more_than_columns_of_one_type_is_unsupported_by_file_and_field(avro: Any) -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"f\.log.*'c"):
        _arrow_field(avro)


def test_a_schema_that_nests_without_end_is_unsupported() -> None:
    avro: Any = "int"
    for _ in range(200):
        avro = {"type": "array", "items": avro}
    with pytest.raises(UnsupportedFeatureError, match="deeper"):
        _arrow_field(avro)
    with pytest.raises(CorruptTableError, match="not JSON"):
        avro_to_arrow_schema("[" * 100_000, file="f.log")


@pytest.mark.parametrize(
    "avro",
    [
        None,
        7,
        "strin",
        {},
        {"type": "record", "name": "x"},
        {"type": "record", "fields": []},
        {"type": "record", "name": "x", "fields": [{"name": "a"}]},
        {"type": "record", "name": "x", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]},
        {"type": "record", "name": "x", "namespace": 5, "fields": []},
        {"type": "array"},
        {"type": "map", "values": "nothing"},
        {"type": "fixed", "name": "f"},
        {"type": "fixed", "name": "f", "size": -1},
        {"type": "fixed", "name": "f", "size": True},
        {"type": "enum", "name": "e", "symbols": [1]},
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
        [],
        ["null", "null"],
        [["int"]],
    ],
)
def test_what_is_no_avro_schema_is_reported_with_the_file(avro: Any) -> None:
    with pytest.raises(CorruptTableError) as caught:
        _arrow_field(avro)
    assert caught.value.file == "f.log"


@pytest.mark.parametrize("text", ["", "{", '"int"', "[]", '{"type": "int"}'])
def test_text_that_is_no_record_schema_is_reported_with_the_file(text: str) -> None:
    with pytest.raises(CorruptTableError, match=r"f\.log"):
        avro_to_arrow_schema(text, file="f.log")


def test_meta_columns_are_put_in_front_and_taken_off_with_the_operation_column() -> None:
    schema = pa.schema([("id", pa.int64()), ("_hoodie_operation", pa.string())], metadata={"k": "v"})
    full = with_meta_columns(schema)
    assert full.names == [*META_COLUMNS, "id", "_hoodie_operation"]
    assert all(full.field(name).type == pa.string() and full.field(name).nullable for name in META_COLUMNS)
    assert full.metadata == {b"k": b"v"}
    assert without_meta_columns(full).names == ["id"]
