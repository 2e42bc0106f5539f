"""Merging partial updates by Arrow kernels gives what a row-by-row reading of the law gives, for any changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.config.table_config import MergeMode
from tablekeeper.record.merge import KEY_COLUMN, Deletes, MergeRule
from tablekeeper.record.partial_merge import PartialWinners
from tests.support.merge_model import Case, as_change, as_table, cases, model

KEYS = ["a", "b", "ключ"]
VALUES = ("x", "y", "z")
SCHEMA = pa.schema(
    [
        (KEY_COLUMN, pa.string()),
        ("o", pa.int64()),
        *((name, pa.list_(pa.int64())) for name in VALUES),
        ("_hoodie_is_deleted", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Version:
    """What is known of a key: an ordering value, the columns, and whether it is deleted, and in which way."""

    order: int | None
    columns: dict[str, Any] = field(default_factory=dict)
    is_deleted: bool = False
    by_commit_time: bool = False


Block = tuple[tuple[str, ...] | None, dict[str, Version]]
"""Columns that the rows of a block have (none for a block of deletes), and the rows by key."""


def meet(old: Version | None, new: Version, *, by_event_time: bool, is_deletion: bool) -> Version:
    if old is None:
        return new
    new_wins = True
    if by_event_time:
        if old.by_commit_time and is_deletion:
            return old
        later = (new.order is not None, new.order or 0) >= (old.order is not None, old.order or 0)
        new_wins = old.by_commit_time or new.by_commit_time or later
    winner, loser = (new, old) if new_wins else (old, new)
    if old.is_deleted or new.is_deleted:
        return winner
    return Version(winner.order, {**loser.columns, **winner.columns})


def walked(base: dict[str, Version], blocks: list[Block], *, by_event_time: bool) -> dict[str, dict[str, Any]]:
    latest: dict[str, Version] = {}
    for names, versions in blocks:
        for key, version in versions.items():
            latest[key] = meet(latest.get(key), version, by_event_time=by_event_time, is_deletion=names is None)
    left = dict(base)
    for key, version in latest.items():
        left[key] = meet(base.get(key), version, by_event_time=by_event_time, is_deletion=False)
    return {key: each.columns for key, each in left.items() if not each.is_deleted}


def table_of(versions: dict[str, Version], names: tuple[str, ...]) -> pa.Table:
    schema = pa.schema([f for f in SCHEMA if f.name in {KEY_COLUMN, "o", "_hoodie_is_deleted", *names}])
    rows = [{KEY_COLUMN: k, "o": v.order, "_hoodie_is_deleted": v.is_deleted, **v.columns} for k, v in versions.items()]
    return pa.Table.from_pylist(rows, schema=schema)


def change_of(block: Block) -> pa.Table | Deletes:
    names, versions = block
    if names is not None:
        return table_of(versions, names)
    ordering = pa.table({"o": pa.array([v.order for v in versions.values()], pa.int64())})
    marks = pa.array([v.by_commit_time for v in versions.values()], pa.bool_())
    return Deletes(pa.array(list(versions), pa.string()), ordering, marks)


@st.composite
def slices(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[dict[str, Version], list[Block]]:
    number = iter(range(10_000))
    order = st.none() | st.integers(-2, 2)

    def row(names: tuple[str, ...], *, may_delete: bool) -> Version:
        value = draw(order)
        is_deleted = may_delete and draw(st.integers(0, 4)) == 0
        columns = {name: draw(st.none() | st.builds(lambda: [next(number)])) for name in names}
        return Version(value, columns, is_deleted, is_deleted and value is None)

    def deletion() -> Version:
        value = draw(order)
        return Version(value, is_deleted=True, by_commit_time=value is None)

    keys = st.lists(st.sampled_from(KEYS), unique=True)
    base = {key: row(VALUES, may_delete=False) for key in draw(keys)}
    blocks: list[Block] = []
    for _ in range(draw(st.integers(0, 5))):
        names = draw(st.none() | st.sampled_from([VALUES, ("x",), ("y",), ("x", "z"), ()]))
        made = {key: deletion() if names is None else row(names, may_delete=True) for key in draw(keys)}
        blocks.append((names, made))
    return base, blocks


@settings(max_examples=600, deadline=None)
@given(slices(), st.booleans())
def test_partial_rows_whole_rows_and_deletes_merge_as_the_law_says(
    case: tuple[dict[str, Version], list[Block]], by_event_time: bool
) -> None:
    base, blocks = case
    rule = MergeRule(MergeMode.EVENT_TIME, ("o",)) if by_event_time else MergeRule(MergeMode.COMMIT_TIME)
    winners = PartialWinners([change_of(block) for block in blocks], rule, schema=SCHEMA)
    parts = [winners.apply(table_of({key: version}, VALUES)) for key, version in base.items()]
    rows = pa.concat_tables([*parts, winners.unmatched()]).to_pylist()
    actual = {row[KEY_COLUMN]: {name: row[name] for name in VALUES} for row in rows}
    assert len(rows) == len(actual)
    expected = walked(base, blocks, by_event_time=by_event_time)
    assert actual == {key: {name: columns.get(name) for name in VALUES} for key, columns in expected.items()}


@settings(max_examples=600, deadline=None)
@given(cases())
def test_whole_rows_merge_as_they_do_without_partial_ones(case: Case) -> None:
    winners = PartialWinners([as_change(b, case) for b in case.blocks], case.rule, schema=case.schema)
    parts = [winners.apply(as_table(group, case.schema, case.rule.ordering)) for group in case.base]
    table = pa.concat_tables([*parts, winners.unmatched()])
    actual = sorted(zip(table.column(KEY_COLUMN).to_pylist(), table.column("row").to_pylist(), strict=True))
    assert actual == model(case)
    assert table.column("tags").to_pylist() == [[str(row)] for row in table.column("row").to_pylist()]
