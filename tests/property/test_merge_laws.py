"""Merging by Arrow kernels gives what a row-by-row reading of the rules gives, for any sequence of changes.

The model walks the changes one by one; the kernels collapse them first and then lay the winners over the base
rows, batch by batch.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.record.merge import KEY_COLUMN, Deletes, collapse
from tests.support.merge_model import TYPES, Case, as_change, as_table, cases, model


def merged(case: Case) -> tuple[pa.Table, int, int]:
    winners = collapse([as_change(b, case) for b in case.blocks], case.rule, schema=case.schema)
    parts = [winners.apply(as_table(g, case.schema, case.rule.ordering)) for g in case.base]
    return pa.concat_tables([*parts, winners.unmatched()]), winners.updated, winners.removed


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


@pytest.mark.parametrize("names", [(), ("int64",), ("float64",), ("string",), ("float64", "int64")], ids=str)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_changes_of_a_slice_may_be_replaced_by_their_winners_wherever_more_changes_follow(
    names: tuple[str, ...], data: st.DataObject
) -> None:
    case = data.draw(cases(names))
    changes = [as_change(block, case) for block in case.blocks]
    compacted = data.draw(st.integers(0, len(changes)))
    fewer = collapse(changes[:compacted], case.rule, schema=case.schema).as_changes()
    winners = collapse(fewer + changes[compacted:], case.rule, schema=case.schema)
    parts = [winners.apply(as_table(g, case.schema, case.rule.ordering)) for g in case.base]
    table = pa.concat_tables([*parts, winners.unmatched()])
    actual = sorted(zip(table.column(KEY_COLUMN).to_pylist(), table.column("row").to_pylist(), strict=True))
    assert actual == model(case)
    keys = [change.keys if isinstance(change, Deletes) else change.column(KEY_COLUMN) for change in fewer]
    named = [key for each in keys for key in each.to_pylist()]
    assert len(set(named)) == len(named)
