"""Column statistics from Parquet footers and from rows agree, and neither claims what it does not know."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tablekeeper.format.column_stats import (
    column_ranges_from_parquet,
    column_ranges_from_table,
    merge_column_ranges,
    value_type_of,
)
from tablekeeper.format.metadata_records import ColumnRange, ValueType

__all__: list[str] = []

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
COLUMNS: dict[str, tuple[pa.DataType, list[Any], ValueType, Any, Any]] = {
    "flag": (pa.bool_(), [True, None, False], ValueType.BOOLEAN, False, True),
    "int": (pa.int32(), [3, None, -2], ValueType.INT, -2, 3),
    "long": (pa.int64(), [1 << 40, 5, None], ValueType.LONG, 5, 1 << 40),
    "float": (pa.float32(), [0.5, -0.25, None], ValueType.FLOAT, -0.25, 0.5),
    "double": (pa.float64(), [0.1, 0.2, None], ValueType.DOUBLE, 0.1, 0.2),
    "text": (pa.string(), ["b", "ä", None], ValueType.STRING, "b", "ä"),
    "bytes": (pa.binary(), [b"\xff", b"\x01", None], ValueType.BYTES, b"\x01", b"\xff"),
    "fixed": (pa.binary(2), [b"ab", b"aa", None], ValueType.FIXED, b"aa", b"ab"),
    "amount": (
        pa.decimal128(20, 2),
        [Decimal("-1.50"), Decimal("300.00"), None],
        ValueType.DECIMAL,
        b"\xff\x6a",
        b"\x75\x30",
    ),
    "wide": (
        pa.decimal128(38, 2),
        [Decimal("-123456789012345678901234567890123456.78"), Decimal("0.00"), None],
        ValueType.DECIMAL,
        (-12345678901234567890123456789012345678).to_bytes(16, "big", signed=True),
        b"\x00",
    ),
    "day": (pa.date32(), [dt.date(1970, 1, 11), dt.date(1969, 12, 31), None], ValueType.DATE, -1, 10),
    "at": (pa.timestamp("us", "UTC"), [NOON, None, NOON], ValueType.TIMESTAMP_MICROS, *[1704110400000000] * 2),
    "ms": (pa.timestamp("ms", "UTC"), [NOON, None, NOON], ValueType.TIMESTAMP_MILLIS, *[1704110400000] * 2),
    "wall": (
        pa.timestamp("us"),
        [NOON.replace(tzinfo=None), None, None],
        ValueType.LOCAL_TIMESTAMP_MICROS,
        *[1704110400000000] * 2,
    ),
    "time": (pa.time64("us"), [dt.time(0, 0, 1), None, dt.time(0)], ValueType.TIME_MICROS, 0, 1_000_000),
    "nothing": (pa.int64(), [None, None, None], ValueType.LONG, None, None),
}


def footer_ranges(table: pa.Table, columns: list[str], **options: Any) -> dict[str, ColumnRange]:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, store_schema=False, **options)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    return column_ranges_from_parquet(file.metadata, file.schema_arrow, columns=columns)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_every_type_has_the_bounds_that_java_stores(name: str) -> None:
    data_type, values, value_type, minimum, maximum = COLUMNS[name]
    table = pa.table({name: pa.array(values, data_type)})
    from_rows = column_ranges_from_table(table, columns=[name])[name]
    assert (from_rows.value_type, from_rows.minimum, from_rows.maximum) == (value_type, minimum, maximum)
    assert (from_rows.null_count, from_rows.value_count) == (values.count(None), 3)
    from_footer = footer_ranges(table, [name])[name]
    assert from_footer.total_size > 0
    assert (from_footer.value_type, from_footer.minimum, from_footer.maximum, from_footer.null_count) == (
        from_rows.value_type,
        from_rows.minimum,
        from_rows.maximum,
        from_rows.null_count,
    )
    assert from_footer.type_info == from_rows.type_info


def test_row_groups_are_merged() -> None:
    found = footer_ranges(pa.table({"c": [5, 1, None, 9]}), ["c"], row_group_size=1)["c"]
    assert (found.minimum, found.maximum, found.null_count, found.value_count) == (1, 9, 1, 4)


def test_bounds_that_the_footer_leaves_out_are_not_guessed() -> None:
    table = pa.table({"short": ["a", "b"], "long": ["x" * 10_000, "y"]})
    assert set(footer_ranges(table, ["short", "long"])) == {"short"}
    assert footer_ranges(table, ["short"], write_statistics=False) == {}
    assert column_ranges_from_table(table, columns=["long"])["long"].maximum == "y"


def test_a_file_without_rows_has_no_ranges() -> None:
    assert footer_ranges(pa.table({"c": pa.array([], pa.int64())}), ["c"]) == {}


def test_columns_that_are_not_there_or_have_no_order_are_left_out() -> None:
    table = pa.table({"c": [1], "list": [[1]], "struct": [{"x": 1}]})
    assert set(footer_ranges(table, ["c", "gone", "list", "struct", "struct.y"])) == {"c"}
    assert set(column_ranges_from_table(table, columns=["c", "gone", "list", "struct", "struct.y"])) == {"c"}
    assert value_type_of(pa.list_(pa.int64())) is None


def test_nested_columns_are_found_by_their_parquet_path() -> None:
    table = pa.table(
        {
            "s": pa.array([{"a": {"b": 4}}, None, {"a": {"b": 7}}], pa.struct({"a": pa.struct({"b": pa.int64()})})),
            "l": pa.array([[3, 1], None, [2]], pa.list_(pa.int64())),
            "m": pa.array([[("k", 5)], None, [("j", 6)]], pa.map_(pa.string(), pa.int64())),
        }
    ).slice(0)
    columns = ["s.a.b", "l.list.element", "m.key_value.key", "m.key_value.value"]
    bounds = {"s.a.b": (4, 7), "l.list.element": (1, 3), "m.key_value.key": ("j", "k"), "m.key_value.value": (5, 6)}
    for found in (footer_ranges(table, columns), column_ranges_from_table(table, columns=columns)):
        assert {name: (each.minimum, each.maximum) for name, each in found.items()} == bounds
    tail = column_ranges_from_table(table.slice(1), columns=columns)
    assert {name: (each.minimum, each.maximum) for name, each in tail.items()} == {
        "s.a.b": (7, 7),
        "l.list.element": (2, 2),
        "m.key_value.key": ("j", "j"),
        "m.key_value.value": (6, 6),
    }


def test_infinity_stands_for_not_a_number_in_bounds() -> None:
    some = column_ranges_from_table(pa.table({"c": [1.0, math.nan, None]}), columns=["c"])["c"]
    assert (some.minimum, some.maximum) == (1.0, math.inf)
    only = column_ranges_from_table(pa.table({"c": [math.nan]}), columns=["c"])["c"]
    assert (only.minimum, only.maximum) == (math.inf, math.inf)


def test_ranges_of_several_files_become_one() -> None:
    parts = [ColumnRange("c", ValueType.LONG, low, low + 1, 1, 3) for low in (5, -4, 9)]
    assert merge_column_ranges(parts) == ColumnRange("c", ValueType.LONG, -4, 10, 3, 9)
