"""The summary of a timeline: what it counts, that it agrees with the triggers, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.model import ServiceKind
from tablekeeper.table.automatic_services import find_due
from tests.support.storage_wrappers import CountingStorage
from tests.support.table_builder import TableBuilder, trips


@pytest.fixture
def builder() -> Iterator[TableBuilder]:
    made = TableBuilder()
    yield made
    made.forget()


def upsert(table: tk.Table, ts: int) -> None:
    table.upsert(trips(("a", "sf", ts, float(ts))))


def test_a_new_table_has_nothing_due(builder: TableBuilder) -> None:
    summary = builder.create(table_type="mor").timeline_summary()
    assert (summary.newest_time, summary.instants, summary.pending) == ("", 0, ())
    assert summary.behind_since_ms is None


def test_commits_count_from_the_last_plan_of_each_service(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor")
    for ts in (1, 2, 3):
        upsert(table, ts)
    before = table.timeline_summary()
    assert (before.deltas_since_compaction, before.commits_since_clustering, before.commits_since_clean) == (3, 3, 3)
    table.compact()
    upsert(table, 4)
    after = table.timeline_summary()
    assert (after.deltas_since_compaction, after.deltas_since_log_compaction) == (1, 1)
    assert after.commits_since_clustering == 4, "a compaction is no commit that asks for a clustering"
    assert before.behind_since_ms is not None
    assert after.behind_since_ms is not None
    assert after.behind_since_ms > before.behind_since_ms


def test_a_log_compaction_does_not_count_as_a_delta_commit(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor", options={"hoodie.log.compaction.blocks.threshold": 2})
    for ts in (1, 2, 3):
        upsert(table, ts)
    assert table.log_compact() is not None
    summary = table.timeline_summary()
    assert (summary.deltas_since_compaction, summary.deltas_since_log_compaction) == (3, 0)


def test_pending_and_completed_plans_are_told_apart(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor")
    for ts in (1, 2):
        upsert(table, ts)
    plan = table.schedule_compaction()
    assert plan is not None
    instant = plan.instant.value
    summary = table.timeline_summary()
    assert [(each.instant, each.service, each.state) for each in summary.pending] == [
        (instant, "compaction", "requested")
    ]
    assert instant not in summary.completed
    table.execute(plan)
    assert instant in table.timeline_summary().completed


def test_the_summary_agrees_with_the_triggers_of_the_services(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor")
    for ts in range(1, 8):
        upsert(table, ts)
        summary = table.timeline_summary()
        due = find_due(table._load_environment(), Options(), ServiceKind.COMPACTION, is_async=True)
        assert due.due == (summary.deltas_since_compaction >= 5), due.why
        clustering = find_due(table._load_environment(), Options(), ServiceKind.CLUSTERING, is_async=True)
        assert clustering.due == (summary.commits_since_clustering >= 4), clustering.why
        if ts == 5:
            table.compact()


def test_a_look_costs_one_read_and_one_listing_whatever_the_size_of_the_table(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor")
    for ts in range(6):
        table.upsert(trips(*((f"k{n}", f"city{n}", ts, 1.0) for n in range(ts + 1))))
    counting = CountingStorage(builder.storage(table))
    builder.through(table, counting).timeline_summary()
    assert dict(counting.counts) == {"read": 1, "list_files": 1}
