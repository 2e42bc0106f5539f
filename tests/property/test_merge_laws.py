"""Merging by Arrow kernels gives what a row-by-row reading of the rules gives, for any sequence of changes.

The model walks the changes one by one, the way the rules are written down; the kernels collapse them first and
then lay the winners over the base rows, batch by batch.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.config.table_config import MergeMode
from tablekeeper.record.merge import KEY_COLUMN, Deletes, MergeRule, collapse

KEYS = ["a", "ключ", "🙂"]
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-3, 3)),
    "int32": (pa.int32(), st.sampled_from([-(2**31), 0, 2**31 - 1])),
    "float64": (pa.float64(), st.sampled_from([-math.inf, -1.5, 0.0, 2.0, math.inf, math.nan])),
    "string": (pa.string(), st.sampled_from(["", "a", "aa", "b", "é"])),
    "decimal": (pa.decimal128(10, 2), st.sampled_from([Decimal("-1.50"), Decimal("0.00"), Decimal("1.49")])),
    "date": (pa.date32(), st.sampled_from([dt.date(1969, 1, 1), dt.date(2024, 1, 1)])),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        st.sampled_from([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)]),
    ),
    "bool": (pa.bool_(), st.booleans()),
}


@dataclass(frozen=True)
class Change:
    """One version of a key. Without a `row` it is a delete of a delete block; `by_commit_time` ignores `order`."""

    key: str
    order: tuple[Any, ...]
    row: int | None = None
    tombstone: bool = False
    by_commit_time: bool = False

    @property
    def is_delete(self) -> bool:
        return self.row is None or self.tombstone


@dataclass(frozen=True)
class Case:
    """Base rows in row groups, and changes in blocks, under one rule."""

    rule: MergeRule
    schema: pa.Schema
    base: list[list[Change]]
    blocks: list[list[Change]]


def rank(value: Any) -> tuple[int, Any]:
    """Null is smallest and not-a-number is greatest."""
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value)


def at_least(new: Change, old: Change) -> bool:
    return [rank(v) for v in new.order] >= [rank(v) for v in old.order]


def merge_one(existing: Change, new: Change, *, by_event_time: bool) -> Change:
    """The rules, for one pair."""
    if not by_event_time or new.by_commit_time or existing.by_commit_time:
        return new
    return new if at_least(new, existing) else existing


def model(case: Case) -> list[tuple[str, int]]:
    """Key and row number of what must be left, sorted."""
    changes = [change for block in case.blocks for change in block]
    result: list[tuple[str, int]] = []
    present: set[str] = set()
    for group in case.base:
        for base in group:
            present.add(base.key)
            state = base
            for change in changes:
                if change.key == base.key:
                    state = merge_one(state, change, by_event_time=case.rule.by_event_time)
            if state is base or not state.is_delete:
                assert state.row is not None
                result.append((state.key, state.row))
    fresh: dict[str, Change] = {}
    for change in changes:
        if change.key not in present:
            known = fresh.get(change.key)
            fresh[change.key] = (
                change if known is None else merge_one(known, change, by_event_time=case.rule.by_event_time)
            )
    result += [(c.key, c.row) for c in fresh.values() if not c.is_delete and c.row is not None]
    return sorted(result)


def as_table(changes: list[Change], schema: pa.Schema, ordering: tuple[str, ...]) -> pa.Table:
    rows = [
        {KEY_COLUMN: c.key, "row": c.row, "_hoodie_is_deleted": c.tombstone or None, "tags": [str(c.row)]}
        | dict(zip(ordering, c.order, strict=True))
        for c in changes
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def as_change(block: list[Change], case: Case) -> pa.Table | Deletes:
    if all(c.row is not None for c in block):
        return as_table(block, case.schema, case.rule.ordering)
    keys = pa.array([c.key for c in block], pa.string())
    types = pa.schema([case.schema.field(name) for name in case.rule.ordering])
    if not len(types) or all(c.by_commit_time for c in block):
        return Deletes(keys)
    ordering = pa.Table.from_pylist([dict(zip(types.names, c.order, strict=True)) for c in block], schema=types)
    return Deletes(keys, ordering, pa.array([c.by_commit_time for c in block]))


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any], names: tuple[str, ...] | None = None) -> Case:
    if names is None:
        names = tuple(draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=0, max_size=2)))
    mode = draw(st.sampled_from([MergeMode.EVENT_TIME, MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME]))
    ordering = tuple(f"o{i}" for i in range(len(names)))
    fields = [pa.field(o, TYPES[name][0]) for o, name in zip(ordering, names, strict=True)]
    schema = pa.schema(
        [
            pa.field(KEY_COLUMN, pa.string()),
            pa.field("row", pa.int64()),
            *fields,
            pa.field("_hoodie_is_deleted", pa.bool_()),
            pa.field("tags", pa.list_(pa.string())),
        ]
    )
    order = st.tuples(*(st.none() | TYPES[name][1] for name in names))
    number = iter(range(10_000))

    def version(*, delete: bool, base: bool = False) -> Change:
        key = draw(st.sampled_from(KEYS))
        values = draw(order)
        if delete:
            by_commit = draw(st.booleans()) or not values
            return Change(key, tuple(None for _ in values) if by_commit else values, by_commit_time=by_commit)
        return Change(key, values, row=next(number), tombstone=not base and draw(st.integers(0, 3)) == 0)

    base = [
        [version(delete=False, base=True) for _ in range(draw(st.integers(0, 4)))]
        for _ in range(draw(st.integers(0, 3)))
    ]
    blocks = []
    for _ in range(draw(st.integers(0, 4))):
        delete = draw(st.booleans())
        blocks.append([version(delete=delete) for _ in range(draw(st.integers(0, 5)))])
    return Case(MergeRule(mode, ordering), schema, base, blocks)


def merged(case: Case) -> tuple[pa.Table, int, int]:
    winners = collapse([as_change(b, case) for b in case.blocks], case.rule, schema=case.schema)
    parts = [winners.apply(as_table(g, case.schema, case.rule.ordering)) for g in case.base]
    return pa.concat_tables([*parts, winners.unseen()]), winners.updated, winners.removed


@pytest.mark.parametrize(
    "names", [(), *((name,) for name in TYPES), ("int64", "string"), ("float64", "int64")], ids=str
)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_collapsing_and_applying_gives_what_walking_the_changes_one_by_one_gives(
    names: tuple[str, ...], data: st.DataObject
) -> None:
    case = data.draw(cases(names))
    table, _, _ = merged(case)
    actual = sorted(zip(table.column(KEY_COLUMN).to_pylist(), table.column("row").to_pylist(), strict=True))
    assert actual == model(case)
    # Nested columns take another way through the kernel than flat ones; both must bring the same row.
    assert table.column("tags").to_pylist() == [[str(row)] for row in table.column("row").to_pylist()]
    assert table.schema.equals(case.schema)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_the_counts_say_how_many_base_rows_were_replaced_and_removed(case: Case) -> None:
    table, updated, removed = merged(case)
    before = [row.row for group in case.base for row in group]
    kept = set(before) & set(table.column("row").to_pylist())
    assert removed == len(before) - (table.num_rows - len(_fresh(case)))
    assert updated + removed == len(before) - len(kept)


def _fresh(case: Case) -> list[tuple[str, int]]:
    present = {row.key for group in case.base for row in group}
    return [(key, row) for key, row in model(case) if key not in present]


@settings(max_examples=200, deadline=None)
@given(cases())
def test_how_changes_are_cut_into_blocks_makes_no_difference(case: Case) -> None:
    single = Case(case.rule, case.schema, case.base, [[c] for block in case.blocks for c in block])
    one, other = merged(single)[0], merged(case)[0]
    # As text, because not-a-number is not equal to itself.
    assert sorted(map(repr, one.to_pylist())) == sorted(map(repr, other.to_pylist()))
