"""Changes that are merged by lanes, out of a file, give what they give when all are in memory."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.read.log_changes import PartialRows
from tablekeeper.read.spilled_changes import ParkedChanges, SpilledWinners
from tablekeeper.record.merge import KEY_COLUMN, Deletes, Winners, collapse
from tests.support.merge_model import Case, as_change, as_table, cases, model


def _spilled(case: Case, *, lanes: int, order: list[int], is_partial: bool = False) -> SpilledWinners:
    parked = ParkedChanges(lanes)
    for number, block in enumerate(case.blocks):
        change = as_change(block, case)
        parked.park(number, PartialRows(change) if is_partial and not isinstance(change, Deletes) else change)
    parked.drop_all_but(order)
    return SpilledWinners(parked, case.rule, case.schema)


def _rows(winners: Winners | SpilledWinners, case: Case) -> list[tuple[str, int]]:
    parts = [winners.apply(as_table(group, case.schema, case.rule.ordering)) for group in case.base]
    fresh = [winners.unmatched()] if isinstance(winners, Winners) else [*winners.each_unmatched()]
    table = pa.concat_tables([*parts, *fresh])
    return sorted(zip(table.column(KEY_COLUMN).to_pylist(), table.column("row").to_pylist(), strict=True))


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(1, 5), st.booleans())
def test_lanes_give_what_walking_the_changes_one_by_one_gives(case: Case, lanes: int, is_partial: bool) -> None:
    spilled = _spilled(case, lanes=lanes, order=list(range(len(case.blocks))), is_partial=is_partial)
    assert _rows(spilled, case) == model(case)
    spilled.close()


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_blocks_count_in_the_order_that_is_known_at_the_end(case: Case, data: st.DataObject) -> None:
    order = data.draw(st.lists(st.sampled_from(range(len(case.blocks))), unique=True)) if case.blocks else []
    spilled = _spilled(case, lanes=3, order=order)
    together = collapse([as_change(case.blocks[i], case) for i in order], case.rule, schema=case.schema)
    assert len(spilled) == len(together)
    assert _rows(spilled, case) == _rows(together, case)
    assert (spilled.updated, spilled.removed) == (together.updated, together.removed)
    spilled.close()
