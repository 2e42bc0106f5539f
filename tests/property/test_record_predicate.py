"""Laws of predicates, against a plain evaluator with SQL's three-valued logic."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.record.keys import KeySpec, record_keys
from tablekeeper.record.partition_paths import PartitionField, PartitionSpec, partition_paths, prunable_values
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
    parse_predicate,
)

KINDS = {
    "i": pa.int32(),
    "d": pa.float64(),
    "m": pa.decimal128(6, 2),
    "s": pa.string(),
    "b": pa.bool_(),
    "day": pa.date32(),
    "ts": pa.timestamp("us", "UTC"),
}
SCHEMA = pa.schema(list(KINDS.items()))
DAYS = st.dates(dt.date(2023, 12, 30), dt.date(2024, 1, 3))
TIMES = st.datetimes(dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 3))
TEXTS = st.text(alphabet="ab%_\\'\n", max_size=3)
CENTS = st.decimals(-3, 3, places=2, allow_nan=False)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-3, 3),
    "d": st.sampled_from([-1.5, -0.0, 0.0, 0.5, 2.0, math.nan, math.inf]),
    "m": CENTS,
    "s": TEXTS,
    "b": st.booleans(),
    "day": DAYS,
    "ts": TIMES.map(lambda time: time.replace(tzinfo=dt.UTC)),
}
NUMBERS = st.one_of(st.integers(-4, 4), CENTS, st.sampled_from([-1.5, 0.5, 1e30]), st.just(10**20))
LITERALS: dict[str, st.SearchStrategy[Any]] = {
    **VALUES,
    "i": NUMBERS,
    "d": NUMBERS,
    "m": NUMBERS,
}
OPERATORS = ["=", "!=", "<", "<=", ">", ">="]


def leaves(columns: list[str]) -> st.SearchStrategy[Predicate]:
    def of(column: str) -> st.SearchStrategy[Predicate]:
        literal = st.none() | LITERALS[column]
        choices: list[st.SearchStrategy[Predicate]] = [
            st.builds(Comparison, st.just(column), st.sampled_from(OPERATORS), literal),
            st.builds(In, st.just(column), st.lists(literal, min_size=1, max_size=3).map(tuple), st.booleans()),
            st.builds(IsNull, st.just(column), st.booleans()),
        ]
        if column == "s":
            choices.append(st.builds(Like, st.just(column), TEXTS, st.booleans()))
        return st.one_of(choices)

    return st.sampled_from(columns).flatmap(of)


def trees(columns: list[str]) -> st.SearchStrategy[Predicate]:
    def joined(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.builds(Not, inner) | st.builds(And, several) | st.builds(Or, several)

    return st.recursive(leaves(columns), joined, max_leaves=6)


ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), max_size=6)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def rank(value: Any) -> Any:
    """Spark's order of numbers: not-a-number above everything."""
    if isinstance(value, float):
        return (1, 0) if is_nan(value) else (0, value)
    return (0, value) if isinstance(value, (int, decimal.Decimal)) else value


def beside(value: Any, literal: Any) -> tuple[Any, Any]:
    """Spark compares a double with another number as doubles, and other numbers exactly."""
    if isinstance(value, float):
        return rank(value), rank(float(literal))
    if isinstance(literal, float):
        literal = decimal.Decimal(repr(literal))
    return rank(value), rank(literal)


def compare(value: Any, op: str, literal: Any) -> bool | None:
    if value is None or literal is None:
        return None
    left, right = beside(value, literal)
    return bool(
        {
            "=": left == right,
            "!=": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[op]
    )


def negate(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def any_of(truths: list[bool | None]) -> bool | None:
    return True if True in truths else None if None in truths else False


def like(text: str, pattern: str) -> bool:
    tokens = re.findall(r"\\[%_\\]|.", pattern, flags=re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(token, re.escape(token[-1])) for token in tokens)
    return re.fullmatch(regex, text, flags=re.DOTALL) is not None


def evaluate(predicate: Predicate, row: dict[str, Any]) -> bool | None:
    truth: bool | None
    match predicate:
        case Comparison(column, op, value):
            truth = compare(row[column], op, value)
        case In(column, values, excluded):
            found = any_of([compare(row[column], "=", value) for value in values])
            truth = negate(found) if excluded else found
        case IsNull(column, excluded):
            truth = (row[column] is None) != excluded
        case Like(column, pattern, excluded):
            truth = None if row[column] is None else like(row[column], pattern) != excluded
        case Not(operand):
            truth = negate(evaluate(operand, row))
        case And(operands):
            truth = negate(any_of([negate(evaluate(operand, row)) for operand in operands]))
        case Or(operands):
            truth = any_of([evaluate(operand, row) for operand in operands])
        case _:
            raise AssertionError(predicate)
    return truth


def statistics(rows: list[dict[str, Any]], column: str) -> ColumnRange:
    values = [row[column] for row in rows]
    present = [value for value in values if value is not None and not is_nan(value)]
    return ColumnRange(
        minimum=min(present, default=None),
        maximum=max(present, default=None),
        null_count=values.count(None),
        value_count=len(values),
    )


@given(trees(list(KINDS)))
def test_the_sql_of_a_predicate_reads_back_as_the_same_predicate(predicate: Predicate) -> None:
    assert parse_predicate(predicate.to_sql()) == predicate


@given(trees(list(KINDS)), ROWS)
@settings(deadline=None)
def test_typed_sql_reads_back_with_the_same_meaning(predicate: Predicate, rows: list[dict[str, Any]]) -> None:
    typed = parse_predicate(predicate.to_sql(SCHEMA))
    assert [evaluate(typed, row) for row in rows] == [evaluate(predicate, row) for row in rows]


@given(trees(list(KINDS)), ROWS)
@settings(deadline=None)
def test_the_arrow_filter_keeps_exactly_the_rows_that_are_true(
    predicate: Predicate, rows: list[dict[str, Any]]
) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA).append_column("row", pa.array(range(len(rows)), pa.int64()))
    kept = table.filter(predicate.to_arrow(table.schema))["row"].to_pylist()
    assert kept == [number for number, row in enumerate(rows) if evaluate(predicate, row) is True]


@given(trees(list(KINDS)), ROWS, st.data())
@settings(deadline=None)
def test_statistics_never_prune_rows_that_match(
    predicate: Predicate, rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    ranges = {column: statistics(rows, column) for column in KINDS}
    known = data.draw(st.lists(st.sampled_from(list(KINDS)), unique=True))
    matching = any(evaluate(predicate, row) is True for row in rows)
    for given_ranges in (ranges, {column: ranges[column] for column in known}):
        assert predicate.may_match(given_ranges) or not matching


@given(trees(["i", "d", "m", "s", "b", "day", "ts"]), ROWS.filter(bool))
@settings(deadline=None)
def test_partition_values_never_prune_rows_that_match(predicate: Predicate, rows: list[dict[str, Any]]) -> None:
    fields = tuple(PartitionField(name) for name in sorted(predicate.columns()))
    spec = PartitionSpec(fields, hive_style=True, url_encode=True)
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    for path, row in zip(partition_paths(table, spec).to_pylist(), rows, strict=True):
        values = prunable_values(path, spec)
        assert set(values) == predicate.columns()
        assert predicate.may_match_partition(values, SCHEMA) or evaluate(predicate, row) is not True


@given(trees(["i"]), st.integers(-3, 3) | st.none())
def test_pruning_by_one_exact_value_is_as_sharp_as_evaluating_it(predicate: Predicate, value: int | None) -> None:
    nulls = 1 if value is None else 0
    known = {"i": ColumnRange(value, value, null_count=nulls, value_count=1)}
    if not any(isinstance(v, float) for v in literals(predicate)):
        expected = evaluate(predicate, {"i": value}) is True
        assert predicate.may_match(known) or not expected
        if isinstance(predicate, (Comparison, In, IsNull)):
            assert predicate.may_match(known) is expected


def literals(predicate: Predicate) -> list[Any]:
    match predicate:
        case Comparison(_, _, value):
            return [value]
        case In(_, values, _):
            return list(values)
        case Not(operand):
            return literals(operand)
        case And(operands) | Or(operands):
            return [value for operand in operands for value in literals(operand)]
        case _:
            return []


@given(st.lists(st.tuples(st.integers(), st.none() | st.text(max_size=5)), max_size=8))
@settings(deadline=None)
def test_composite_keys_are_what_hudi_defines(rows: list[tuple[int, str | None]]) -> None:
    numbers = [number % 2**63 for number, _ in rows]
    table = pa.table({"a": pa.array(numbers, pa.int64()), "b": pa.array([text for _, text in rows], pa.string())})
    shown = ["__null__" if text is None else text or "__empty__" for _, text in rows]
    expected = [f"a:{number},b:{text}" for number, text in zip(numbers, shown, strict=True)]
    assert record_keys(table, KeySpec(("a", "b"), composite=True)).to_pylist() == expected
