"""Predicates: reading text, filtering rows, and pruning by statistics and by partition."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.record.predicate import (
    And,
    ColumnRange,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    from_comparisons,
    parse_predicate,
)

ROWS = pa.table(
    {
        "row": [0, 1, 2, 3],
        "id": [1, 2, 3, None],
        "city": ["sf", "la", None, "s_x"],
        "d": [1.5, float("nan"), None, 2.0],
        "f": pa.array([1.1, 2.5, None, -1.0], pa.float32()),
        "m": pa.array([decimal.Decimal(text) if text else None for text in ("1.50", "2.00", "", "-1.00")]),
        "st": pa.array([{"x": 1}, None, {"x": None}, {"x": 4}]),
        "ts": pa.array([0, 10**6, None, 5], pa.timestamp("us", "UTC")),
        "local": pa.array([0, 1000, None, 5], pa.timestamp("ms")),
        "day": [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None, dt.date(1969, 1, 1)],
        "ok": [True, False, None, True],
        "raw": [b"a", b"\xff", None, b""],
        "tag": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    }
)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("id = 2", [1]),
        ("id == 2", [1]),
        ("2 = id", [1]),
        ("2 < id", [2]),
        ("id <> 2", [0, 2]),
        ("id != 2 and id < 3", [0]),
        ("not (id > 1)", [0]),
        ("NOT id > 1 OR city IS NULL", [0, 2]),
        ("id = 1 or city = 's_x'", [0, 3]),
        ("id = 1 or id = 2 and city = 'zz'", [0]),
        ("(id = 1 or id = 2) and city = 'la'", [1]),
        ("id in (1, 3, null)", [0, 2]),
        ("id in (1.0, 2.5)", [0]),
        ("id not in (1)", [1, 2]),
        ("id not in (1, null)", []),
        ("id between 2 and 3", [1, 2]),
        ("id not between 2 and 3", [0]),
        ("id is null", [3]),
        ("id is not null", [0, 1, 2]),
        ("id = null", []),
        ("not (id = null)", []),
        ("id > 1.5", [1, 2]),
        ("id = 1.5", []),
        ("id != 1.5", [0, 1, 2]),
        ("id <= -99999999999999999999", []),
        ("id < 99999999999999999999", [0, 1, 2]),
        ("id = '2'", [1]),
        ("city like 's%'", [0, 3]),
        ("city like 's\\_%'", [3]),
        ("city like '_f'", [0]),
        ("city not like 's%'", [1]),
        ("city in ('sf', 'it''s')", [0]),
        ("d > 1.6", [1, 3]),
        ("not (d > 1.6)", [0]),
        ("d < 100", [0, 3]),
        ("d != 1.5", [1, 3]),
        ("d in (1.5e0, 2)", [0, 3]),
        ("f = 2.5", [1]),
        ("f = 1.1", []),
        ("m = 1.5", [0]),
        ("m > 1.501", [1]),
        ("m >= 1.500", [0, 1]),
        ("m in (2, 1.505)", [1]),
        ("m < 12345678901234567890", [0, 1, 3]),
        ("st.x = 4", [3]),
        ("st.x is null", [1, 2]),
        ("ts >= timestamp '1970-01-01 00:00:01'", [1]),
        ("ts = timestamp '1970-01-01T01:00:00+01:00'", [0]),
        ("ts = '1970-01-01'", [0]),
        ("ts in (timestamp '1970-01-01 00:00:01Z')", [1]),
        ("local > timestamp '1970-01-01 00:00:00.0049'", [1, 3]),
        ("day > date '2024-01-01'", [1]),
        ("day <= '2024-01-01'", [0, 3]),
        ("day = timestamp '2024-01-02 00:00:00'", [1]),
        ("ok = true", [0, 3]),
        ("ok != true", [1]),
        ("raw = X'FF'", [1]),
        ("raw = 'a'", [0]),
        ("tag = 'a'", [0, 3]),
        ("tag in ('b')", [1]),
        ("`city` = 'sf' and \"id\" = 1", [0]),
    ],
)
def test_a_filter_keeps_the_rows_for_which_the_text_is_true(where: str, rows: list[int]) -> None:
    predicate = parse_predicate(where)
    assert parse_predicate(predicate.to_sql()) == predicate
    assert ROWS.filter(predicate.to_arrow(ROWS.schema))["row"].to_pylist() == rows


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ("a.b = 1", Comparison("a.b", "=", 1)),
        ("`a b`.`c` < -1.5", Comparison("a b.c", "<", decimal.Decimal("-1.5"))),
        ("a >= 1e3", Comparison("a", ">=", 1000.0)),
        ("a <> ''", Comparison("a", "!=", "")),
        (r"a = 'x\'y\\z\n\u0041'", Comparison("a", "=", "x'y\\z\nA")),
        ("a = X'00ff'", Comparison("a", "=", b"\x00\xff")),
        ("a in (true, FALSE, Null)", In("a", (True, False, None))),
        ("not not a is null", Not(Not(IsNull("a")))),
        ("a=1 and b=2 and c=3", And((Comparison("a", "=", 1), Comparison("b", "=", 2), Comparison("c", "=", 3)))),
        (
            "a=1 and (b=2 and c=3)",
            And((Comparison("a", "=", 1), And((Comparison("b", "=", 2), Comparison("c", "=", 3))))),
        ),
        ("a not like 'x%'", Like("a", "x%", excluded=True)),
        ("date = date '2024-02-29'", Comparison("date", "=", dt.date(2024, 2, 29))),
        ("a = timestamp_ntz '2024-01-01 10:00:00'", Comparison("a", "=", dt.datetime(2024, 1, 1, 10))),
        (
            "a between 1 and 2 or b = 1",
            Or((And((Comparison("a", ">=", 1), Comparison("a", "<=", 2))), Comparison("b", "=", 1))),
        ),
    ],
)
def test_text_is_read_into_a_tree(text: str, predicate: Predicate) -> None:
    assert parse_predicate(text) == predicate


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 1, "expected a column or a value, found the end"),
        ("id =", 5, "expected a column or a value"),
        ("id = city", 6, "columns cannot be compared with each other"),
        ('city = "sf"', 8, "put text in single quotes"),
        ("id == = 3", 7, "expected a column or a value, found ="),
        ("(id = 1", 8, "expected `)`"),
        ("id = 'x", 6, "is a quote not closed?"),
        ("id + 1 = 2", 4, "expected a comparison"),
        ("id = 1 id", 8, "expected `and`, `or` or the end"),
        ("upper(city) = 'x'", 6, "functions are not supported"),
        ("1 = 1", 1, "needs a column on one side"),
        ("ts = timestamp 'x'", 16, "expected a timestamp such as"),
        ("id in ()", 8, "expected a column or a value"),
        ("city", 5, "expected a comparison"),
        ("id not = 1", 8, "expected `in`, `between` or `like`"),
        ("city like 5", 11, "expected a pattern"),
        ("a; b", 2, "cannot read"),
        ("a = 1x", 5, "cannot read"),
        ("a = X'0'", 5, "hexadecimal"),
        ("(" * 200 + "a = 1" + ")" * 200, 102, "levels of parentheses"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_position(text: str, position: int, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_predicate(text)
    assert f"position {position}: " in str(refused.value)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("citty = 'x'", r"no column citty in the data; did you mean city\?"),
        ("city = 5", "column city is string and cannot be compared with 5: write a text in single quotes"),
        ("id = 'abc'", "column id is int64 and cannot be compared with 'abc': write a number"),
        ("id = true", "cannot be compared with true"),
        ("day > timestamp '2024-01-01 10:00:00'", "write a date such as"),
        ("local > timestamp '2024-01-01 10:00:00Z'", "write a time such as"),
        ("st = 1", "nested columns compare by their fields"),
        ("id like '1%'", "like is for text columns"),
    ],
)
def test_a_literal_that_does_not_fit_the_column_is_refused(where: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_predicate(where).to_arrow(ROWS.schema)


def test_the_columns_of_a_predicate_are_known() -> None:
    assert parse_predicate("a = 1 or not (b.c in (2) and a like 'x')").columns() == {"a", "b.c"}


def test_sql_with_a_schema_does_not_depend_on_the_zone_of_the_session() -> None:
    predicate = parse_predicate("ts > '2024-01-01' and local < date '2024-01-02' and day = '2024-01-03' and id = 1")
    assert predicate.to_sql(ROWS.schema) == (
        "ts > timestamp '2024-01-01 00:00:00+00:00' and local < timestamp_ntz '2024-01-02 00:00:00' "
        "and day = date '2024-01-03' and id = 1"
    )


def test_structured_filters_become_one_predicate() -> None:
    filters: list[tuple[str, str, Any]] = [
        ("a", "==", 1),
        ("b", "in", ["x", "y"]),
        ("c", "IS  NOT NULL", None),
        ("d", "<=>", None),
        ("e", "starts with", "50%_\\"),
    ]
    assert from_comparisons(filters) == And(
        (
            Comparison("a", "=", 1),
            In("b", ("x", "y")),
            IsNull("c", excluded=True),
            IsNull("d"),
            Like("e", "50\\%\\_\\\\%"),
        )
    )
    assert from_comparisons([("a", ">", 1)]) == Comparison("a", ">", 1)


@pytest.mark.parametrize(
    "filters",
    [[], [("a", "~", 1)], [("a", "=", float("nan"))], [("a", "=", object())], [("a", "in", [])], [("a", "like", 5)]],
)
def test_filters_that_make_no_sense_are_refused(filters: list[tuple[str, str, Any]]) -> None:
    with pytest.raises(InvalidRequestError):
        from_comparisons(filters)


RANGE = {"a": ColumnRange(10, 20, null_count=0, value_count=5)}


@pytest.mark.parametrize(
    ("where", "ranges", "expected"),
    [
        ("a = 9", RANGE, False),
        ("a = 10", RANGE, True),
        ("a < 10", RANGE, False),
        ("a <= 10", RANGE, True),
        ("a > 20", RANGE, False),
        ("a >= 20", RANGE, True),
        ("a != 10", RANGE, True),
        ("a != 10", {"a": ColumnRange(10, 10)}, False),
        ("not (a >= 10)", RANGE, False),
        ("a in (1, 30)", RANGE, False),
        ("a in (1, 15)", RANGE, True),
        ("a not in (10)", {"a": ColumnRange(10, 10)}, False),
        ("a is null", RANGE, False),
        ("a is null", {"a": ColumnRange(1, 2)}, True),
        ("a is not null", {"a": ColumnRange(null_count=3, value_count=3)}, False),
        ("a = 1", {"a": ColumnRange(null_count=3, value_count=3)}, False),
        ("a = 1 or b = 1", RANGE, True),
        ("a = 1 and b = 1", RANGE, False),
        ("a > 1", {"a": ColumnRange(None, 1)}, False),
        ("a < 1", {"a": ColumnRange(None, 1)}, True),
        ("a = 'x'", RANGE, True),
        ("a > 2.5", {"a": ColumnRange(1.0, 2.0)}, True),
        ("a > 2.5", {"a": ColumnRange(1.0, 2.0, nan_count=0)}, False),
        ("a < 0.5", {"a": ColumnRange(1.0, 2.0)}, False),
        ("a like 'b%'", {"a": ColumnRange("c", "d")}, False),
        ("a like 'b%'", {"a": ColumnRange("bx", "d")}, True),
        ("a like 'b%'", {"a": ColumnRange("a", "az")}, False),
        ("a like '%b'", {"a": ColumnRange("c", "d")}, True),
        ("a > '2024-02-01'", {"a": ColumnRange(dt.date(2024, 1, 1), dt.date(2024, 1, 31))}, False),
        ("a = '\U00010000'", {"a": ColumnRange("a", "\ue000")}, True),
        ("a = null", {}, False),
        ("a = 9007199254740993e0", {"a": ColumnRange(9007199254740993, 9007199254740993)}, True),
    ],
)
def test_statistics_prune_only_what_cannot_match(where: str, ranges: dict[str, ColumnRange], expected: bool) -> None:
    assert parse_predicate(where).may_match(ranges) is expected


@pytest.mark.parametrize(
    ("where", "values", "expected"),
    [
        ("city = 'sf'", {"city": "la"}, False),
        ("city = 'sf'", {"city": "sf"}, True),
        ("city = ''", {"city": None}, True),
        ("city = 'sf'", {"city": None}, False),
        ("city = '__HIVE_DEFAULT_PARTITION__'", {"city": None}, True),
        ("city = 'sf' or id = 1", {"city": None, "id": "1"}, True),
        ("city = 'sf' and id is null", {"city": None, "id": None}, False),
        ("city is null", {"city": None}, True),
        ("city is null", {"city": "sf"}, False),
        ("id = 5", {"id": None}, False),
        ("id is null", {"id": None}, True),
        ("id > 9", {"id": "10"}, True),
        ("id > 9", {"id": "8"}, False),
        ("id > 9", {"id": "abc"}, True),
        ("day >= date '2024-01-02'", {"day": "2024-01-01"}, False),
        ("ts < timestamp '1970-01-01 00:00:01'", {"ts": "1000000"}, False),
        ("d > 5", {"d": "1.0E10"}, True),
        ("d > 5", {"d": "1.0"}, False),
        ("d > 5", {"d": "NaN"}, True),
        ("m = 1.5", {"m": "2.00"}, False),
        ("raw = X'FF'", {"raw": "ff"}, True),
        ("raw = X'FF'", {"raw": "fe"}, False),
        ("city = 'sf' and id = 1", {"id": "1"}, True),
        ("gone = 1", {"gone": "2"}, True),
    ],
)
def test_partition_values_prune_only_what_cannot_match(
    where: str, values: dict[str, str | None], expected: bool
) -> None:
    assert parse_predicate(where).may_match_partition(values, ROWS.schema) is expected


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("zero", ["0", "0.0", "-0.0"])
def test_both_zeros_are_in_a_list_with_one_of_them(kind: pa.DataType, zero: str) -> None:
    rows = pa.table({"d": pa.array([0.0, -0.0, 1.5, None], kind)})
    listed, others = (parse_predicate(f"d {word} ({zero}, 7)").to_arrow(rows.schema) for word in ("in", "not in"))
    assert rows.filter(listed)["d"].to_pylist() == [0.0, -0.0]
    assert rows.filter(others)["d"].to_pylist() == [1.5]
