"""Pruning by path never loses a row: what matches lies in a partition, and below directories, that are looked into."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.read.pruning import PartitionPruner
from tablekeeper.record.partition_paths import PartitionField, PartitionSpec, partition_paths
from tablekeeper.record.predicate import And, Comparison, In, IsNull, Like, Not, Or, Predicate

TEXTS = ["a", "a/b", "a/b/c", "a0", "a!", "b", "", "é", "x=1", "50%", "/a"[1:], None, "__HIVE_DEFAULT_PARTITION__x"]
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), TEXTS),
    "number": (pa.int32(), [-1, 0, 7, 70, None]),
    "day": (pa.date32(), [dt.date(2024, 1, 1), dt.date(1969, 12, 31), None]),
    "flag": (pa.bool_(), [True, False, None]),
}


def comparisons(column: str, values: list[Any]) -> st.SearchStrategy[Predicate]:
    value = st.sampled_from([v for v in values if v is not None])
    simple: list[st.SearchStrategy[Predicate]] = [
        st.builds(Comparison, st.just(column), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), value),
        st.builds(In, st.just(column), st.lists(value, min_size=1, max_size=3).map(tuple), st.booleans()),
        st.builds(IsNull, st.just(column), st.booleans()),
    ]
    if isinstance(values[0], str):
        simple.append(st.builds(Like, st.just(column), st.sampled_from(["a%", "%b", "a/_", "a", "%"]), st.booleans()))
    return st.one_of(simple)


@st.composite
def cases(draw: Any) -> tuple[pa.Table, PartitionSpec, Predicate]:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    columns = [f"c{number}" for number in range(len(names))]
    schema = pa.schema([(column, KINDS[name][0]) for column, name in zip(columns, names, strict=True)])
    rows = draw(st.lists(st.tuples(*(st.sampled_from(KINDS[name][1]) for name in names)), min_size=1, max_size=8))
    table = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema=schema)
    spec = PartitionSpec(tuple(map(PartitionField, columns)), draw(st.booleans()), draw(st.booleans()))
    leaves = st.one_of(*(comparisons(c, KINDS[n][1]) for c, n in zip(columns, names, strict=True)))
    tree = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(And, st.tuples(inner, inner)),
            st.builds(Or, st.tuples(inner, inner)),
        ),
        max_leaves=4,
    )
    return table, spec, draw(tree)


@settings(max_examples=500, deadline=None)
@given(cases())
def test_the_path_of_a_matching_row_and_every_directory_on_the_way_are_kept(
    case: tuple[pa.Table, PartitionSpec, Predicate],
) -> None:
    table, spec, predicate = case
    pruner = PartitionPruner(predicate, spec, table.schema)
    matching = table.filter(predicate.to_arrow(table.schema))
    if matching.num_rows == 0:
        return
    for path in partition_paths(matching, spec).dictionary.to_pylist():
        assert pruner.may_match(path), path
        segments = path.split("/")
        for depth in range(1, len(segments) + 1):
            assert pruner.may_lead("/".join(segments[:depth])), (path, depth)


def test_directories_that_cannot_lead_to_a_match_are_left_out() -> None:
    schema = pa.schema([("city", pa.string()), ("day", pa.int32())])
    predicate = And((Comparison("city", "=", "sf"), Comparison("day", ">", 5)))
    fields = (PartitionField("city"), PartitionField("day"))
    plain = PartitionPruner(predicate, PartitionSpec(fields), schema)
    assert [d for d in ("la", "sf", "sfo", "sf/1", "sf/9", "zz") if plain.may_lead(d)] == ["sf", "sf/1", "sf/9"]
    encoded = PartitionPruner(predicate, PartitionSpec(fields, hive_style=True, url_encode=True), schema)
    named = ("city=la", "city=sf", "city=sf/day=1", "city=sf/day=9", "other")
    assert [d for d in named if encoded.may_lead(d)] == ["city=sf", "city=sf/day=9", "other"]
