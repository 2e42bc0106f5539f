"""A table whose schema grows: old files and old logs still read right, now and as of any moment before."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.keys import WIDEN_TO_STRING
from tablekeeper.errors import InvalidRequestError
from tests.support.rows import exact_rows
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

UTC = dt.UTC
INNER = pa.struct([("label", pa.string()), ("size", pa.int64())])
ALL_TYPES = pa.schema(
    [
        ("id", pa.string()),
        ("city", pa.string()),
        ("ts", pa.int64()),
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(7, 2)),
        ("wide", pa.decimal128(38, 18)),
        ("day", pa.date32()),
        ("micros", pa.timestamp("us", tz="UTC")),
        ("millis", pa.timestamp("ms", tz="UTC")),
        ("local_micros", pa.timestamp("us")),
        ("local_millis", pa.timestamp("ms")),
        ("raw", pa.binary()),
        ("fixed", pa.binary(4)),
        ("tags", pa.list_(pa.string())),
        ("nested", pa.list_(pa.list_(pa.int32()))),
        ("parts", pa.list_(INNER)),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("deep", pa.map_(pa.string(), pa.list_(INNER))),
        ("place", pa.struct([("inner", INNER), ("marks", pa.list_(pa.decimal128(5, 1)))])),
    ]
)


def full_row(key: str, ts: int) -> dict[str, Any]:
    moment = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)
    return {
        "id": key,
        "city": "sf",
        "ts": ts,
        "flag": True,
        "small": -(2**31),
        "big": 2**63 - 1,
        "single": 1.5,
        "double": -1e300,
        "price": Decimal("-99999.99"),
        "wide": Decimal("12345678901234567890.123456789012345678"),
        "day": dt.date(1, 1, 1),
        "micros": moment.replace(tzinfo=UTC),
        "millis": moment.replace(microsecond=123000, tzinfo=UTC),
        "local_micros": moment,
        "local_millis": moment.replace(microsecond=999000),
        "raw": b"\x00\xff",
        "fixed": b"abcd",
        "tags": ["ключ", "", None],
        "nested": [[1, 2], [], None],
        "parts": [{"label": "x", "size": None}, None],
        "counts": [("a", 1), ("b", None)],
        "deep": [("k", [{"label": None, "size": 1}])],
        "place": {"inner": None, "marks": [Decimal("1.5"), None]},
    }


@pytest.fixture(params=["cow", "mor", "mor avro"])
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    table_type, _, block = str(request.param).partition(" ")
    return {"table_type": table_type, "options": {"hoodie.logfile.data.block.format": block or "parquet"}}


@pytest.fixture
def table(tables: TableBuilder, kind: dict[str, Any]) -> tk.Table:
    return tables.create(**kind)


def test_every_type_and_nulls_of_every_type_survive_inserts_merges_and_logs(
    tables: TableBuilder, kind: dict[str, Any]
) -> None:
    table = tables.create(schema=ALL_TYPES, **kind)
    empty = dict.fromkeys(ALL_TYPES.names) | {"id": "empty", "city": "sf", "ts": 1}
    first = pa.Table.from_pylist([full_row("a", 1), empty, full_row("c", 1)], schema=ALL_TYPES)
    table.bulk_insert(first)
    assert exact_rows(table.read()) == exact_rows(first)
    second = pa.Table.from_pylist([full_row("empty", 2), {**empty, "id": "a", "ts": 2}], schema=ALL_TYPES)
    table.upsert(second)
    assert exact_rows(table.read()) == exact_rows(pa.concat_tables([second, first.slice(2)]))
    third = pa.Table.from_pylist([full_row("a", 3), full_row("n", 3), {**empty, "ts": 3}], schema=ALL_TYPES)
    table.upsert(third)
    assert exact_rows(table.read()) == exact_rows(pa.concat_tables([third, first.slice(2)]))
    assert exact_rows(table.changes()) == exact_rows(table.read())
    # What lists and maps call their elements is the format's choice, and bytes have no fixed size in it.
    plain = [field for field in ALL_TYPES if not pa.types.is_nested(field.type) and field.name != "fixed"]
    assert table.schema.field("fixed").type == pa.binary()
    assert [table.schema.field(field.name) for field in plain] == plain


def test_a_new_column_is_null_in_rows_from_before(table: tk.Table) -> None:
    first = table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    second = table.upsert(trips(("a", "sf", 2, 2.0)))
    schema = pa.schema([*TRIPS, ("note", pa.string()), ("tags", pa.list_(pa.string()))])
    third = table.upsert(trips(("b", "sf", 2, 3.0, "hi", ["x"]), ("c", "sf", 1, 1.0, None, None), schema=schema))
    assert rows_of(table.read(), "id", "fare", "note", "tags") == [
        ("a", 2.0, None, None),
        ("b", 3.0, "hi", ["x"]),
        ("c", 1.0, None, None),
    ]
    assert table.schema.names == schema.names
    assert table.read(as_of=first.instant).schema.equals(TRIPS)
    assert rows_of(table.read(as_of=second.instant)) == [("a", "sf", 2, 2.0), ("b", "sf", 1, 1.0)]
    assert rows_of(table.changes(until=second.instant), "id", "note") == [("a", None), ("b", None)]
    assert rows_of(table.changes(since=second.instant), "id", "note") == [("b", "hi"), ("c", None)]
    assert rows_of(table.read(columns=["note"]), "note") == [("hi",), (None,), (None,)]
    assert rows_of(table.read(where="note = 'hi'"), "id") == [("b",)]
    assert rows_of(table.read(where="note is null"), "id") == [("a",), ("c",)]
    assert third.instant > second.instant


def test_rows_without_a_column_that_the_table_has_get_null_there(table: tk.Table) -> None:
    table.upsert(trips(("a", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2)).drop_columns(["fare"]))
    table.upsert(trips(("b", "sf", 2)).drop_columns(["fare"]))
    assert rows_of(table.read()) == [("a", "sf", 2, None), ("b", "sf", 2, None)]
    assert table.schema.equals(TRIPS)


def test_a_column_of_nulls_without_a_type_takes_the_tables_type(table: tk.Table) -> None:
    table.upsert(pa.table({"id": ["a"], "city": ["sf"], "ts": [1], "fare": pa.nulls(1)}))
    assert rows_of(table.read()) == [("a", "sf", 1, None)]


@dataclass(frozen=True)
class Widening:
    """A type that becomes another; `old_now` is how the value `old` shows afterwards."""

    before: pa.DataType
    after: pa.DataType
    old: Any
    new: Any
    old_now: Any


@pytest.mark.parametrize(
    "case",
    [
        Widening(pa.int32(), pa.int64(), 7, 2**40, 7),
        Widening(pa.int32(), pa.float64(), 7, 1.5, 7.0),
        Widening(pa.int64(), pa.string(), 7, "x", "7"),
        Widening(pa.float32(), pa.float64(), 1.5, 1e300, 1.5),
        Widening(pa.float64(), pa.string(), 1.5, "x", "1.5"),
        Widening(
            pa.decimal128(5, 2), pa.decimal128(12, 4), Decimal("1.25"), Decimal("12345678.1234"), Decimal("1.2500")
        ),
    ],
    ids=lambda case: f"{case.before} to {case.after}",
)
def test_a_widened_column_shows_old_values_in_the_new_type(
    tables: TableBuilder, kind: dict[str, Any], case: Widening
) -> None:
    narrow = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("v", case.before)])
    wide = narrow.set(3, pa.field("v", case.after))
    asked = {WIDEN_TO_STRING: pa.types.is_string(case.after)}
    table = tables.create(schema=narrow, **(kind | {"options": {**kind.get("options", {}), **asked}}))
    table.upsert(trips(("a", "sf", 1, case.old), ("b", "sf", 1, case.old), ("c", "sf", 1, None), schema=narrow))
    past = table.upsert(trips(("a", "sf", 2, case.old), schema=narrow))
    table.upsert(trips(("b", "sf", 2, case.new), ("d", "sf", 1, case.new), schema=wide))
    now = [("a", case.old_now), ("b", case.new), ("c", None), ("d", case.new)]
    assert rows_of(table.read(), "id", "v") == now
    assert table.schema.field("v").type == case.after
    assert rows_of(table.read(as_of=past.instant), "id", "v") == [("a", case.old), ("b", case.old), ("c", None)]
    assert table.read(as_of=past.instant).schema.field("v").type == case.before
    literal = f"'{case.old_now}'" if pa.types.is_string(case.after) else str(case.old_now)
    assert rows_of(table.read(where=f"v = {literal}"), "id") == [("a",)]
    # Rows in the narrow type still fit.
    table.upsert(trips(("e", "sf", 1, case.old), schema=narrow))
    assert rows_of(table.read(where="id = 'e'"), "v") == [(case.old_now,)]


@pytest.mark.parametrize("kind_of_number", [pa.int32(), pa.int64(), pa.float64(), pa.decimal128(7, 2)], ids=str)
@pytest.mark.parametrize("operation", ["upsert", "insert", "bulk_insert", "insert_overwrite"])
def test_a_batch_of_strings_does_not_change_the_type_of_a_number_column(
    tables: TableBuilder, kind: dict[str, Any], kind_of_number: pa.DataType, operation: str
) -> None:
    schema = TRIPS.set(3, pa.field("fare", kind_of_number))
    table = tables.create(schema=schema, **kind)
    table.upsert(trips(("a", "sf", 1, 7), schema=schema))
    wrong = trips(("b", "sf", 1, "7"), schema=TRIPS.set(3, pa.field("fare", pa.string())))
    with pytest.raises(InvalidRequestError) as refused:
        getattr(table, operation)(wrong)
    for part in ("column fare", f"table has {kind_of_number}, data has string", f"{WIDEN_TO_STRING}=true"):
        assert part in str(refused.value)
    assert table.schema == schema
    assert rows_of(table.read(), "id", "fare") == [("a", 7)]


@pytest.mark.parametrize("column", ["id", "part", "ts"])
def test_key_ordering_and_partition_columns_never_become_strings(
    tables: TableBuilder, kind: dict[str, Any], column: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("ts", pa.int64())])
    asked = {"options": {**kind.get("options", {}), WIDEN_TO_STRING: True}}
    table = tables.create(schema=schema, partition_by="part", **(kind | asked))
    table.upsert(trips((1, 1, 1), schema=schema))
    position = schema.get_field_index(column)
    row = tuple("2" if number == position else 2 for number in range(3))
    wrong = trips(row, schema=schema.set(position, pa.field(column, pa.string())))
    with pytest.raises(InvalidRequestError, match=f"column {column}: .*never becomes a string: cast the data"):
        table.upsert(wrong)
    assert table.schema == schema
    assert rows_of(table.read()) == [(1, 1, 1)]


def test_numbers_inside_of_other_columns_stay_numbers(tables: TableBuilder, kind: dict[str, Any]) -> None:
    def schema(inner: pa.DataType) -> pa.Schema:
        return pa.schema([*TRIPS, ("s", pa.struct([("x", inner)])), ("l", pa.list_(inner))])

    table = tables.create(schema=schema(pa.int64()), **kind)
    with pytest.raises(InvalidRequestError) as refused:
        table.upsert(trips(("a", "sf", 1, 1.0, {"x": "1"}, ["1"]), schema=schema(pa.string())))
    assert "column s.x: table has int64, data has string" in str(refused.value)
    assert "column l.element: table has int64, data has string" in str(refused.value)


def test_structs_grow_inside_lists_maps_and_structs(tables: TableBuilder, kind: dict[str, Any]) -> None:
    def schema(inner: pa.DataType) -> pa.Schema:
        nested = [("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))]
        return pa.schema([*TRIPS, *nested])

    narrow, wide = pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int64()), ("y", pa.string())])
    table = tables.create(schema=schema(narrow), **kind)
    old = {"x": 1}
    table.upsert(trips(("a", "sf", 1, 1.0, old, [old, None], [("k", old)]), schema=schema(narrow)))
    table.upsert(trips(("b", "sf", 1, 1.0, old, None, None), schema=schema(narrow)))
    table.upsert(trips(("b", "sf", 2, 1.0, None, [old], []), schema=schema(narrow)))
    new = {"x": 2**40, "y": "z"}
    table.upsert(trips(("c", "sf", 1, 1.0, new, [new], [("k", new)]), schema=schema(wide)))
    grown = {"x": 1, "y": None}
    assert rows_of(table.read(), "id", "s", "l", "m") == [
        ("a", grown, [grown, None], [("k", grown)]),
        ("b", None, [grown], []),
        ("c", new, [new], [("k", new)]),
    ]
    assert rows_of(table.read(where="s.y = 'z'"), "id") == [("c",)]
    assert rows_of(table.read(where="s.x = 1"), "id") == [("a",)]


def test_a_tombstone_column_may_come_late(table: tk.Table) -> None:
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 1.0)))
    schema = pa.schema([*TRIPS, ("_hoodie_is_deleted", pa.bool_())])
    table.upsert(trips(("a", "sf", 3, None, True), schema=schema))
    assert rows_of(table.read(), "id") == [("b",)]
    table.upsert(trips(("a", "sf", 4, 4.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 4.0), ("b", 1.0)]


def test_a_wider_ordering_column_still_orders(tables: TableBuilder, kind: dict[str, Any]) -> None:
    narrow = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int32()), ("fare", pa.float64())])
    wide = narrow.set(2, pa.field("ts", pa.int64()))
    table = tables.create(schema=narrow, **kind)
    table.upsert(trips(("a", "sf", 5, 1.0), ("b", "sf", 5, 1.0), schema=narrow))
    table.upsert(trips(("a", "sf", 7, 2.0), schema=narrow))
    table.upsert(trips(("a", "sf", 6, 9.0), ("b", "sf", 2**40, 2.0), schema=wide))
    assert rows_of(table.read(), "id", "ts", "fare") == [("a", 7, 2.0), ("b", 2**40, 2.0)]


def test_inserts_into_a_small_file_bring_its_old_rows_into_the_new_schema(table: tk.Table) -> None:
    table.insert(trips(("a", "sf", 1, 1.0)))
    schema = pa.schema([*TRIPS, ("note", pa.string())])
    table.insert(trips(("b", "sf", 1, 1.0, "x"), schema=schema))
    assert len(table.files()) == 1
    assert rows_of(table.read(), "id", "note") == [("a", None), ("b", "x")]


def test_every_operation_may_bring_a_new_column(table: tk.Table) -> None:
    table.upsert(trips(("a", "sf", 1, 1.0), ("z", "la", 1, 1.0)))
    names = ["insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table"]
    schema = TRIPS
    for number, name in enumerate(names):
        schema = schema.append(pa.field(f"c{number}", pa.int64()))
        row = (name, "sf", 1, 1.0, *([None] * number), number)
        getattr(table, name)(trips(row, schema=schema))
        assert rows_of(table.read(where=f"c{number} is not null"), "id", f"c{number}") == [(name, number)]
        assert table.schema.names == schema.names
    table.delete(trips(("a", "sf")))
    assert table.schema.names == schema.names
