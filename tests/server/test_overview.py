"""The lake as a whole: rankings, counts and samples in each database, plots and Hudi's metrics made from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import open_service
from tablekeeper.server.dashboard.plots import draw_bars, draw_lines, draw_parts, draw_steps
from tablekeeper.server.dashboard.words import size, span
from tablekeeper.server.decisions.due import foresee, table_facts
from tablekeeper.server.decisions.freshness import Freshness, judge_freshness
from tablekeeper.server.model import Sample, ServiceAction, Signal, Status, TableFacts
from tablekeeper.server.policy import DEFAULT_POLICY, Policy
from tablekeeper.server.settings import Limits, ServerSettings
from tablekeeper.server.store.overview import TableOrder
from tablekeeper.server.store.protocol import JobStore, NewTable, Submission
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.server.store.wanted import TableFilter
from tests.server.conftest import StoreClock


def fill(store: JobStore, now_ms: int) -> None:
    """Three tables: `a` a minute behind, `b` an hour, `c` not at all; `d` is paused, `e` in quarantine."""
    for number, (name, behind_s) in enumerate((("a", 60), ("b", 3600), ("c", None), ("d", 60), ("e", 60))):
        new = NewTable("db" if name != "c" else "other", name, f"/lake/{name}", policy=Policy(fresh_within_s=600))
        table, _ = store.register_table(new)
        since_ms = None if behind_s is None else now_ms - behind_s * 1000
        facts = TableFacts(commits_behind=number, behind_since_ms=since_ms, pending={"compaction": 2})
        store.finish_look(table.table_id, facts, next_in_s=3600, is_idle=True)
        if name == "d":
            store.set_paused(table.table_id, is_paused=True)
        if name == "e":
            store.quarantine_table(table.table_id, "broken")


def ranked(store: SqlJobStore, order: TableOrder, *, down: bool, offset: int = 0, limit: int = 9) -> list[str]:
    found = store.rank_tables(TableFilter(), order, is_descending=down, offset=offset, limit=limit)
    return [each.table_name for each in found]


def test_tables_are_ranked_and_paged_by_the_database(store: SqlJobStore, store_clock: StoreClock) -> None:
    fill(store, store_clock.ms)
    assert ranked(store, TableOrder.BEHIND_FOR, down=True) == ["b", "a", "d", "e", "c"]
    assert ranked(store, TableOrder.BEHIND, down=True, limit=2) == ["e", "d"]
    assert ranked(store, TableOrder.BEHIND, down=True, offset=2, limit=2) == ["c", "b"]
    assert ranked(store, TableOrder.NAME, down=False) == ["a", "b", "d", "e", "c"]


def test_every_table_is_counted_once_and_only_where_the_caller_may_look(
    store: SqlJobStore, store_clock: StoreClock
) -> None:
    fill(store, store_clock.ms)
    counts = store.table_counts(TableFilter())
    assert (counts.tables, counts.behind, counts.paused, counts.quarantined) == (5, 2, 1, 1)
    assert store.table_counts(TableFilter(databases=("other",))).tables == 1
    assert store.table_counts(TableFilter(path_prefixes=("/lake/a", "/LAKE/b", "/lak"))).tables == 1
    assert [row[0] for row in store.tables_behind(after=0, limit=9)] == [1, 2]
    assert [row[0] for row in store.tables_behind(after=1, limit=9)] == [2]


def test_operations_that_ended_are_counted_in_buckets(store: SqlJobStore, store_clock: StoreClock) -> None:
    table, _ = store.register_table(NewTable("db", "a", "/lake/a"))
    for number in range(3):
        made = store.submit(Submission(table.table_id, f"2026111812000000{number}", ServiceAction.COMPACTION)).operation
        store.settle_waiting(made.operation_id, Signal.COMPLETE if number else Signal.CANCEL, note="")
        store_clock.advance(60)
    found = {(each.status, each.operations) for each in store.finished_operations(bucket_s=3600, buckets=2)}
    assert sum(each[1] for each in found) == 3
    assert {status for status, _ in found} == {Status.COMPLETED, Status.CANCELLED}
    store_clock.advance(10 * 3600)
    assert store.finished_operations(bucket_s=3600, buckets=2) == []


def test_a_minute_has_one_sample_whoever_takes_it(store: SqlJobStore) -> None:
    sample = Sample(100, waiting=1, running=2, behind=3, late=4, longest_behind_s=5)
    assert store.add_sample(sample)
    assert not store.add_sample(replace(sample, waiting=9))
    store.add_sample(replace(sample, minute=99))
    assert [each.minute for each in store.list_samples(since_minute=0)] == [99, 100]
    assert store.list_samples(since_minute=100) == [sample]
    assert store.prune_samples(before_minute=100) == 1


def test_the_loop_samples_the_lake_with_the_targets_of_its_tables(tmp_path: Path) -> None:
    settings = ServerSettings(work_dir=tmp_path, allow=(str(tmp_path),), limits=Limits(slots=0))
    service = open_service(settings, runtime=SYSTEM_RUNTIME)
    try:
        fill(service.store, service.store.now_ms())
        assert service.sample.run_once()
        assert not service.sample.run_once(), "it is there"
        (sample,) = service.store.list_samples(since_minute=0)
        assert (sample.behind, sample.late) == (2, 1)
        assert 3600 <= sample.longest_behind_s < 3700
    finally:
        service.stop()


def test_a_table_is_late_once_it_is_behind_for_longer_than_its_target() -> None:
    behind = [(0, 10), (0, 9), (5_000, None), (9_999, 0)]
    assert judge_freshness(behind, now_ms=10_000) == Freshness(behind=4, late=1, longest_behind_s=10)
    assert judge_freshness([], now_ms=0) == Freshness()


def test_what_comes_next_is_told_with_its_reason(table: Table) -> None:
    summary = table.timeline_summary()
    seen = {each.action: each for each in foresee(summary, DEFAULT_POLICY, now_ms=summary.behind_since_ms or 0)}
    compaction = seen[ServiceAction.COMPACTION]
    assert (compaction.is_due, compaction.count, compaction.least) == (False, 3, 5)
    assert compaction.why == "3 of 5 delta commits since the last compaction"
    assert not seen[ServiceAction.CLUSTERING].is_hosted
    eager = foresee(summary, Policy(compact_after_commits=3).over(DEFAULT_POLICY), now_ms=0)
    assert eager[0].is_due


def test_metrics_have_the_names_that_hudi_gives_them(
    client: TestClient, jobs: SqlJobStore, lake: Path, table: Table
) -> None:
    plan = table.schedule_compaction()
    assert plan is not None
    registered, _ = jobs.register_table(NewTable("db", "trips", str(lake / "trips")))
    jobs.finish_look(registered.table_id, table_facts(table.timeline_summary()), next_in_s=60, is_idle=False)
    text = client.get("/metrics").text
    assert 'compaction_pendingCompactionInstantCount{table="db.trips"} 1.0' in text
    told = next(line for line in text.splitlines() if line.startswith("compaction_earliestInflightCompactionInstant{"))
    assert float(told.split()[1]) == float(str(plan.instant))
    for name in ("compaction_duration_count", "clean_numFilesDeleted_total", 'tablekeeper_tables{state="behind"} 1.0'):
        assert name in text


def test_plots_begin_at_nothing_end_at_a_round_number_and_say_what_they_show() -> None:
    names = {"waiting": "waiting", "running": "running"}
    points = [(minute * 60_000, {"waiting": minute, "running": 1, "minute": 10**9}) for minute in range(8)]
    plot = draw_lines(points, begin_ms=0, end_ms=8 * 60_000, names=names)
    assert [text for _, text in plot.ticks_y] == ["0", "2", "4", "6", "8"]
    assert plot.told == "at most 7; 00:07 UTC: waiting 7, running 1"
    assert len(plot.hovers) == 8
    assert draw_lines(points[:1], begin_ms=0, end_ms=1, names=names).is_empty, "one point is no line"
    buckets = [(0, {"completed": 3, "failed": 1}), (60_000, {"completed": 2})]
    bars = draw_bars(buckets, begin_ms=0, end_ms=120_000, bucket_ms=60_000, names={"completed": "ok", "failed": "bad"})
    assert bars.told == "in all 5 ok, 1 bad"
    assert len(bars.bars) == 3


def test_moments_on_an_axis_have_names_of_their_own() -> None:
    for seconds in (2, 90, 3600):
        plot = draw_steps([(0, 1.0)], end_ms=seconds * 1000, style="reads", what="files")
        names = [text for _, text in plot.ticks_x]
        assert len(set(names)) == len(names) > 1, seconds


def test_a_small_part_of_a_whole_is_wide_enough_to_be_seen() -> None:
    parts = draw_parts((("good", "good", 99_999), ("bad", "bad", 1), ("none", "wait", 0)))
    assert [each.width > 5 for each in parts] == [True, True, False]
    assert sum(each.width for each in parts) == pytest.approx(1000, abs=0.2)
    assert draw_parts((("good", "good", 0),)) == ()


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3600, "1 h"), (12_000, "3 h 20 min"), (90_000, "1 d 1 h")],
)
def test_spans_have_two_units_at_most(seconds: float, told: str) -> None:
    assert span(seconds) == told


def test_sizes_have_units() -> None:
    assert [size(count) for count in (0, 1023, 1536, 200 << 20)] == ["0 B", "1023 B", "1.5 KiB", "200 MiB"]
