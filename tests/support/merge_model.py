"""Versions of rows in any order, and what must be left of them: the merge rules read row by row.

`Case` is a slice: base rows in row groups and changes in blocks. `model` walks the changes one by one, the way the
rules are written down, lays what is left over the base rows, and `cases` makes them for Hypothesis.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tablekeeper.config.table_config import MergeMode
from tablekeeper.record.merge import KEY_COLUMN, Deletes, MergeRule

__all__ = ["TYPES", "ZEROS", "Case", "Change", "as_change", "as_table", "cases", "model"]

KEYS = ["a", "ключ", "🙂"]
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-3, 3)),
    "int32": (pa.int32(), st.sampled_from([-(2**31), 0, 2**31 - 1])),
    "float64": (pa.float64(), st.sampled_from([-math.inf, -1.5, 0.0, 2.0, math.inf, math.nan])),
    "string": (pa.string(), st.sampled_from(["", "a", "aa", "b", "é"])),
    "decimal": (pa.decimal128(10, 2), st.sampled_from([Decimal("-1.50"), Decimal("0.00"), Decimal("1.49")])),
    "date": (pa.date32(), st.sampled_from([dt.date(1969, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 1, 1)])),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        st.sampled_from([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)]),
    ),
    "bool": (pa.bool_(), st.booleans()),
}
# Java stands the integer 0 in for a missing ordering value; these are the types whose values it keeps as integers.
ZEROS: dict[pa.DataType, Any] = {pa.int32(): 0, pa.date32(): dt.date(1970, 1, 1)}


@dataclass(frozen=True)
class Change:
    """One version of a key. Without a `row` it is a delete of a delete block; `by_commit_time` ignores `order`."""

    key: str
    order: tuple[Any, ...]
    row: int | None = None
    tombstone: bool = False
    by_commit_time: bool = False


@dataclass(frozen=True)
class Case:
    """Base rows in row groups, and changes in blocks, under one rule."""

    rule: MergeRule
    schema: pa.Schema
    base: list[list[Change]]
    blocks: list[list[Change]]

    def order(self, change: Change) -> list[tuple[int, Any]]:
        """What the change is compared by."""
        kinds = [self.schema.field(name).type for name in self.rule.ordering]
        return [rank(value, kind) for value, kind in zip(change.order, kinds, strict=True)]

    def is_by_commit_time(self, change: Change) -> bool:
        """Whether the change is a delete without an ordering value; Java's mark for none is the integer 0."""
        if change.row is not None and not change.tombstone:
            return False
        if change.row is not None and len(change.order) == 1:
            zero = ZEROS.get(self.schema.field(self.rule.ordering[0]).type)
            return change.order[0] is None or (zero is not None and change.order[0] == zero)
        return change.by_commit_time


def rank(value: Any, kind: pa.DataType) -> tuple[int, Any]:
    """Not-a-number is greatest. Null is smallest, but 0 where Java keeps the values as 32-bit integers."""
    if value is None:
        return (1, ZEROS[kind]) if kind in ZEROS else (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value)


def merge_one(existing: Change | None, new: Change, case: Case) -> Change:
    """The rules, for a change after what the changes before it left."""
    if existing is None or not case.rule.by_event_time:
        return new
    if case.is_by_commit_time(existing):
        # Deleted is deleted: only a row changes that.
        return existing if new.row is None and not case.is_by_commit_time(new) else new
    return new if case.is_by_commit_time(new) or case.order(new) >= case.order(existing) else existing


def model(case: Case) -> list[tuple[str, int]]:
    """Key and row number of what must be left, sorted: the changes merge first, what is left meets the base row."""
    latest: dict[str, Change] = {}
    for change in (change for block in case.blocks for change in block):
        latest[change.key] = merge_one(latest.get(change.key), change, case)
    left: list[Change] = []
    present: set[str] = set()
    for base in (base for group in case.base for base in group):
        present.add(base.key)
        left.append(merge_one(base, latest[base.key], case) if base.key in latest else base)
    left += [change for key, change in latest.items() if key not in present]
    return sorted((each.key, each.row) for each in left if each.row is not None and not each.tombstone)


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
