"""Looks at timelines go wrong in every way that storage can: nobody else waits, and the reason is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME, Event
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.loops.looks import LookLoop
from tablekeeper.server.model import ManagedTable, TableFacts
from tablekeeper.server.settings import Limits, ServerSettings, Timing
from tablekeeper.server.store.protocol import NewTable
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.table.summary import TimelineSummary
from tests.server.conftest import StoreClock

QUIET = TimelineSummary("t", True, "20261118120000000", 3, 0, 0, 0, 0, None, ())
TIMING = Timing(look_timeout_s=0.05, look_hold_s=0.1, look_min_s=0.01, look_max_s=0.01)
TIMEOUT_S = 60.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    settings = ServerSettings(work_dir=tmp_path, timing=TIMING, limits=Limits(failed_looks=2))
    opened = open_service(settings, runtime=SYSTEM_RUNTIME)
    for name in ("bad", "good"):
        opened.store.register_table(NewTable("db", name, f"/lake/{name}"))
    yield opened
    opened.stop()


def looks(service: Service, look_at_bad: Callable[[], TimelineSummary]) -> LookLoop:
    """A loop for which one table is good and the other one as bad as that."""

    def look(table: ManagedTable) -> TimelineSummary:
        return QUIET if table.table_name == "good" else look_at_bad()

    return LookLoop(replace(service.context, look=look))


def load(service: Service, name: str) -> ManagedTable:
    table = service.store.find_table("db", name)
    assert table is not None
    return table


def run_until_quarantined(service: Service, loop: LookLoop) -> ManagedTable:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not load(service, "bad").quarantine:
        assert clock.monotonic_s() < until_s
        loop.run_once()
        clock.sleep(0.01)
    assert load(service, "good").facts.newest_time == QUIET.newest_time
    assert not load(service, "good").quarantine
    return load(service, "bad")


def test_a_look_that_never_comes_back_holds_up_nobody_and_counts_as_failed(service: Service) -> None:
    answered: Event = SYSTEM_RUNTIME.threads.event()

    def never() -> TimelineSummary:
        answered.wait(TIMEOUT_S)
        return QUIET

    quarantined = run_until_quarantined(service, looks(service, never))
    answered.set()
    assert "did not answer within" in quarantined.quarantine


def test_a_look_that_fails_in_a_way_nobody_thought_of_is_a_failed_look(service: Service) -> None:
    def damaged() -> TimelineSummary:
        raise KeyError("metaClient")

    assert "KeyError: 'metaClient'" in run_until_quarantined(service, looks(service, damaged)).quarantine


def test_an_idle_table_is_looked_at_once_an_hour(tmp_path: Path, store: SqlJobStore, store_clock: StoreClock) -> None:
    """With two calls a look, 20,000 idle tables cost 40,000 calls to their storage an hour."""
    tables, hours, minute_s = 5, 10, 60.0
    opened = open_service(ServerSettings(work_dir=tmp_path), runtime=SYSTEM_RUNTIME)
    looked: list[str] = []

    def look(table: ManagedTable) -> TimelineSummary:
        looked.append(table.table_name)
        return QUIET

    loop = LookLoop(replace(opened.context, store=store, look=look))
    for number in range(tables):
        store.register_table(NewTable("db", f"t{number}", f"/lake/t{number}"))
    seen = []
    for _ in range(4 + hours):
        for _ in range(60):
            loop.run_once()
            store_clock.advance(minute_s)
        seen.append(len(looked))
    opened.stop()
    # Registered together they are looked at often, then less and less.
    assert seen[0] >= 5 * tables
    assert 0.85 * tables * hours <= seen[-1] - seen[3] <= 1.15 * tables * hours


def test_an_idle_table_is_looked_at_again_when_its_freshness_target_asks_for_it(tmp_path: Path) -> None:
    opened = open_service(ServerSettings(work_dir=tmp_path), runtime=SYSTEM_RUNTIME)
    try:
        store = opened.store
        table, _ = store.register_table(NewTable("db", "idle", "/lake/idle"))
        # Looked at so often without news that the pause would be the longest there is.
        for _ in range(9):
            store.finish_look(table.table_id, None, next_in_s=0.0, is_idle=True)
        behind = replace(QUIET, deltas_since_compaction=1, behind_since_ms=store.now_ms() - 2_500_000)
        store.finish_look(table.table_id, TableFacts(newest_time=QUIET.newest_time), next_in_s=0.0, is_idle=True)
        LookLoop(replace(opened.context, look=lambda _: behind)).run_once()
        found = store.load_table(table.table_id)
        assert found.facts.commits_behind == 1
        assert 100 < (found.look_at_ms - store.now_ms()) / 1000 <= 200
    finally:
        opened.stop()
