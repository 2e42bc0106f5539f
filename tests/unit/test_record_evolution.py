"""Schema evolution on write: what is planned, what is stored, and how rows are brought into a schema."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

from tablekeeper.config.keys import WIDEN_TO_STRING
from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.evolution import TypeChange, conform, plan_evolution, storable_schema

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("n", pa.int32()),
        ("st", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("l", pa.list_(pa.int32())),
        ("m", pa.map_(pa.string(), pa.int32())),
    ]
)


def one(kind: pa.DataType, name: str = "c") -> pa.Schema:
    return pa.schema([(name, kind)])


def test_the_same_schema_changes_nothing() -> None:
    evolution = plan_evolution(TABLE, TABLE)
    assert evolution.schema is TABLE
    assert (evolution.added, evolution.widened) == ((), ())


def test_new_columns_come_last_and_are_nullable() -> None:
    incoming = pa.schema([pa.field("new", pa.int8(), nullable=False), *TABLE])
    evolution = plan_evolution(TABLE, incoming)
    assert evolution.added == ("new",)
    assert evolution.schema.names == [*TABLE.names, "new"]
    assert evolution.schema.field("new") == pa.field("new", pa.int32(), nullable=True)


def test_missing_nullable_columns_are_noted_and_kept() -> None:
    evolution = plan_evolution(TABLE, pa.schema([("id", pa.int64())]))
    assert evolution.missing == ("city", "n", "st", "l", "m")
    assert evolution.schema is TABLE


def test_a_missing_column_that_must_have_a_value_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="column id: table has int64 not null, data has no such column"):
        plan_evolution(TABLE, pa.schema([("city", pa.string())]))


def test_nested_fields_evolve_like_columns() -> None:
    incoming = pa.schema(
        [
            ("id", pa.int64()),
            ("st", pa.struct([("b", pa.string()), ("c", pa.float32())])),
            ("l", pa.large_list(pa.int64())),
            ("m", pa.map_(pa.string(), pa.float64())),
        ]
    )
    evolution = plan_evolution(TABLE, incoming)
    assert evolution.added == ("st.c",)
    assert [change.column for change in evolution.widened] == ["l.element", "m.value"]
    assert evolution.schema.field("st").type == pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.float32())])


NUMBERS = [pa.int32(), pa.int64(), pa.float32(), pa.float64()]
WIDER = [(before, after) for at, before in enumerate(NUMBERS) for after in NUMBERS[at + 1 :]]


@pytest.mark.parametrize(
    ("before", "after"),
    [*WIDER, (pa.decimal128(9, 2), pa.decimal128(12, 2)), (pa.decimal128(9, 2), pa.decimal128(12, 4))],
    ids=str,
)
def test_a_type_may_become_wider_and_stays_wide(before: pa.DataType, after: pa.DataType) -> None:
    widened = plan_evolution(one(before), one(after))
    assert widened.widened == (TypeChange("c", before, after),)
    assert widened.schema == one(after)
    assert plan_evolution(one(after), one(before)).schema == one(after)


@pytest.mark.parametrize("number", [*NUMBERS, pa.decimal128(9, 2)], ids=str)
def test_numbers_become_strings_only_on_request_and_never_in_some_columns(number: pa.DataType) -> None:
    table, incoming = one(number), one(pa.string())
    with pytest.raises(InvalidRequestError, match=rf"column c: .*{WIDEN_TO_STRING}=true"):
        plan_evolution(table, incoming)
    asked = plan_evolution(table, incoming, widens_to_string=True)
    assert asked.widened == (TypeChange("c", number, pa.string()),)
    assert plan_evolution(incoming, table).schema == incoming
    with pytest.raises(InvalidRequestError, match=r"column c: .*never becomes a string"):
        plan_evolution(table, incoming, widens_to_string=True, never_strings=["c"])


@pytest.mark.parametrize(
    ("table", "data"),
    [
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")),
        (pa.timestamp("ms"), pa.timestamp("ns")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")),
        (pa.decimal128(12, 2), pa.int64()),
        (pa.binary(4), pa.binary()),
        (pa.int32(), pa.null()),
        (pa.string(), pa.dictionary(pa.int8(), pa.large_string())),
    ],
    ids=str,
)
def test_data_that_fits_leaves_the_type_of_the_table(table: pa.DataType, data: pa.DataType) -> None:
    evolution = plan_evolution(one(table), one(data))
    assert evolution.schema == one(table)
    assert (evolution.added, evolution.widened) == ((), ())


@pytest.mark.parametrize(
    ("table", "data"),
    [
        (pa.string(), pa.struct([("x", pa.int32())])),
        (pa.string(), pa.bool_()),
        (pa.int32(), pa.bool_()),
        (pa.date32(), pa.string()),
        (pa.string(), pa.date32()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.int64(), pa.timestamp("us")),
        (pa.list_(pa.int32()), pa.int32()),
        (pa.list_(pa.string()), pa.map_(pa.string(), pa.string())),
        (pa.decimal128(9, 4), pa.decimal128(9, 2)),
        (pa.float64(), pa.decimal128(9, 2)),
    ],
    ids=str,
)
def test_other_types_are_refused_by_name(table: pa.DataType, data: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        plan_evolution(one(table, "city"), one(data, "city"))
    assert f"column city: table has {table}, data has {data}" in str(refused.value)


def test_every_difference_is_listed() -> None:
    incoming = pa.schema([("id", pa.bool_()), ("st", pa.struct([("a", pa.date32())])), ("City", pa.string())])
    with pytest.raises(InvalidRequestError) as refused:
        plan_evolution(TABLE, incoming)
    text = str(refused.value)
    assert "column id: table has int64, data has bool" in text
    assert "column st.a: table has int32, data has date32[day]" in text
    assert "column City: table has city, which differs only in case" in text


def test_what_is_stored_for_arrow_types() -> None:
    schema = pa.schema(
        [
            ("a", pa.int8()),
            ("b", pa.timestamp("s", "Asia/Tokyo")),
            ("c", pa.timestamp("ns")),
            ("d", pa.timestamp("ms", "UTC")),
            ("e", pa.dictionary(pa.int32(), pa.large_string())),
            ("f", pa.large_list(pa.float16())),
            ("g", pa.decimal256(20, 2)),
            ("h", pa.struct([pa.field("i", pa.binary_view(), nullable=False)])),
            ("j", pa.date64()),
            ("k", pa.map_(pa.large_string(), pa.int16())),
            ("l", pa.list_(pa.int32(), 3)),
            pa.field("m", pa.string_view(), nullable=False),
            ("n", pa.binary(4)),
            ("_hoodie_record_key", pa.string()),
            ("_hoodie_is_deleted", pa.bool_()),
        ]
    )
    stored = pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.timestamp("us", "UTC")),
            ("c", pa.timestamp("us")),
            ("d", pa.timestamp("ms", "UTC")),
            ("e", pa.string()),
            ("f", pa.list_(pa.float32())),
            ("g", pa.decimal128(20, 2)),
            ("h", pa.struct([("i", pa.binary())])),
            ("j", pa.date32()),
            ("k", pa.map_(pa.string(), pa.int32())),
            ("l", pa.list_(pa.int32())),
            ("m", pa.string()),
            ("n", pa.binary()),
            ("_hoodie_is_deleted", pa.bool_()),
        ]
    )
    assert storable_schema(schema) == stored
    assert storable_schema(stored) == stored


def test_key_columns_are_stored_as_not_null_on_request() -> None:
    assert storable_schema(one(pa.int64()), key_fields=("c",)) == pa.schema([pa.field("c", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (one(pa.uint8()), "column c: Hudi tables do not store uint8; cast it to int32"),
        (one(pa.uint64()), r"uint64; cast it to decimal\(20, 0\)"),
        (one(pa.null()), "holds no value at all"),
        (one(pa.duration("s")), "do not store duration"),
        (one(pa.time64("us")), "neither Spark nor Java reads times of day; store microseconds as int64, or text"),
        (one(pa.struct([("t", pa.time32("ms"))])), "column c.t: Hudi tables do not store time32"),
        (one(pa.decimal256(50, 2)), "precision up to 38"),
        (one(pa.map_(pa.int32(), pa.string())), "keys of a map are strings"),
        (one(pa.struct([])), "struct without fields"),
        (one(pa.int32(), "a-b"), "column a-b: a name may hold only"),
        (one(pa.int32(), "1st"), "column 1st: a name may hold only"),
        (one(pa.struct([("a b", pa.int32())])), "column c.a b: a name may hold only"),
        (pa.schema([("A", pa.int32()), ("a", pa.int32())]), "columns A, a: names must differ"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_rule(schema: pa.Schema, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        storable_schema(schema)


def test_rows_that_fit_are_handed_back_as_they_are() -> None:
    rows = pa.table({"id": [1]}, schema=pa.schema([("id", pa.int64())]))
    assert conform(rows, rows.schema.with_metadata({"k": "v"})) is rows


@pytest.mark.parametrize("kind", ["table", "batch", "slice"])
def test_rows_are_reordered_filled_and_cast_at_every_depth(kind: str) -> None:
    struct = pa.struct([("b", pa.large_string()), ("c", pa.float32())])
    rows = pa.table(
        {
            "n": [9, 1, None],
            "id": pa.array([0, 1, 2], pa.int8()),
            "st": pa.array([None, {"b": "x", "c": 1.5}, {"b": None, "c": 2.0}], struct),
            "l": pa.array([[7, 8], [1], None], pa.large_list(pa.int64())),
            "m": pa.array([None, [("a", 1)], []], pa.map_(pa.string(), pa.int8())),
            "ignored": ["x", "y", "z"],
        }
    )
    expected: list[dict[str, Any]] = [
        {"id": 0, "city": None, "n": 9, "st": None, "l": [7, 8], "m": None},
        {"id": 1, "city": None, "n": 1, "st": {"a": None, "b": "x"}, "l": [1], "m": [("a", 1)]},
        {"id": 2, "city": None, "n": None, "st": {"a": None, "b": None}, "l": None, "m": []},
    ]
    data = {"table": rows, "batch": rows.to_batches()[0], "slice": rows.to_batches()[0].slice(1)}[kind]
    fitted = conform(data, TABLE)
    fitted.validate(full=True)
    assert type(fitted) is type(data)
    assert fitted.schema == TABLE
    assert fitted.to_pylist() == expected[-data.num_rows :]


@pytest.mark.parametrize(
    ("values", "target", "expected"),
    [
        (pa.array([1, None]), pa.int32(), [1, None]),
        (pa.array([2**53 + 1]), pa.float64(), [float(2**53)]),
        (pa.array([0.1, None, -3e38, 1e-45], pa.float32()), pa.float64(), [0.1, None, -3e38, 1e-45]),
        (pa.array([[0.1]], pa.list_(pa.float32())), pa.list_(pa.float64()), [[0.1]]),
        (pa.array([1.5]), pa.string(), ["1.5"]),
        (pa.array([1e10]), pa.string(), ["1.0E10"]),
        (pa.array([5]), pa.decimal128(9, 2), [decimal.Decimal("5.00")]),
        (pa.array([decimal.Decimal("1.5")], pa.decimal128(3, 1)), pa.decimal128(9, 4), [decimal.Decimal("1.5")]),
        (pa.array([1000], pa.timestamp("ns")), pa.timestamp("us"), [dt.datetime(1970, 1, 1, 0, 0, 0, 1)]),
        (pa.array(["a", None]).dictionary_encode(), pa.string(), ["a", None]),
        (pa.array(["a"], pa.string_view()), pa.string(), ["a"]),
        (pa.array([b"a"]), pa.string(), ["a"]),
        (pa.array(["a"]), pa.binary(), [b"a"]),
        (pa.array([None]), pa.struct([("x", pa.int32())]), [None]),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.list_(pa.int64()), [[1, 2]]),
    ],
    ids=str,
)
def test_values_survive_the_cast(values: pa.Array, target: pa.DataType, expected: list[Any]) -> None:
    fitted = conform(pa.record_batch({"c": values}), one(target))
    assert fitted.column(0).type == target
    assert fitted.column(0).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (pa.array([2**31]), pa.int32()),
        (pa.array([10**9]), pa.decimal128(9, 2)),
        (pa.array([1001], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([1001], pa.timestamp("us")), pa.timestamp("ms")),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([decimal.Decimal("1.55")], pa.decimal128(9, 2)), pa.decimal128(9, 1)),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused_with_its_column(values: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match="column c: a value of the data"):
        conform(pa.record_batch({"c": values}), one(target))


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (pa.array(["5"]), pa.int64()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([{"x": 1}]), pa.string()),
        (pa.array([1]), pa.struct([("x", pa.int32())])),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([True]), pa.int32()),
    ],
    ids=str,
)
def test_a_cast_that_changes_the_meaning_is_refused(values: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match=r"column c: table has .*, data has"):
        conform(pa.record_batch({"c": values}), one(target))


def test_rows_outside_a_slice_are_not_looked_at() -> None:
    rows = pa.record_batch({"c": pa.array([[2**40], [1], None, [2, 3]])}).slice(1)
    fitted = conform(rows, one(pa.list_(pa.int32())))
    fitted.validate(full=True)
    assert fitted.column(0).to_pylist() == [[1], None, [2, 3]]


def test_what_stands_below_a_null_struct_is_not_looked_at() -> None:
    hidden = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([], pa.string()), safe=False)
    rows = pa.StructArray.from_arrays([hidden], names=["x"], mask=pa.array([True]))
    target = pa.struct([("x", pa.string())])
    assert conform(pa.record_batch({"c": rows}), one(target)).column(0).to_pylist() == [None]


def test_nulls_where_a_value_is_needed_are_counted_and_refused() -> None:
    with pytest.raises(InvalidRequestError, match="column id must have a value in every row, but 1 of 2 rows"):
        conform(pa.table({"id": [1, None]}), pa.schema([pa.field("id", pa.int64(), nullable=False)]))


def test_a_column_that_occurs_twice_is_refused() -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(InvalidRequestError, match="column id occurs 2 times"):
        conform(rows, pa.schema([("id", pa.int32())]))


@pytest.mark.parametrize(("view", "plain"), [(pa.string_view(), pa.string()), (pa.binary_view(), pa.binary())])
def test_categories_of_views_as_polars_has_them_become_their_values(view: pa.DataType, plain: pa.DataType) -> None:
    values = pa.array(["x", "y"], pa.string()).cast(view)
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), values)
    found = conform(pa.table({"c": column}), pa.schema([("c", plain)])).column("c")
    assert found.to_pylist() == pa.array(["y", None, "x"]).cast(plain).to_pylist()
