"""Targets in logs and read amplification make a deadline as the one in seconds does, also for what waits already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.decisions.due import plan_due
from tablekeeper.server.loops.looks import LookLoop
from tablekeeper.server.model import ServiceAction, TableFacts
from tablekeeper.server.policy import DEFAULT_POLICY, Policy
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import NewTable, Page, Submission
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.table.summary import TimelineSummary

NOW_MS = 1_795_000_000_000
BEHIND = TimelineSummary("t", True, "20261118120000000", 9, 8, 0, 0, 0, NOW_MS - 60_000, ())


@pytest.mark.parametrize(
    ("policy", "deadline_in_s"),
    [
        (Policy(fresh_within_s=300), 240.0),
        (Policy(fresh_within_s=300, max_log_files=8), 240.0),
        (Policy(fresh_within_s=300, max_log_files=7), 0.0),
        (Policy(fresh_within_s=300, max_read_amplification=9.0), 240.0),
        (Policy(fresh_within_s=300, max_read_amplification=8.5), 0.0),
        (Policy(fresh_within_s=30, max_log_files=7), -30.0),
    ],
)
def test_the_target_that_is_missed_first_is_the_deadline(policy: Policy, deadline_in_s: float) -> None:
    (compaction,) = plan_due(BEHIND, policy.over(DEFAULT_POLICY), now_ms=NOW_MS)
    assert compaction.deadline_in_s == deadline_in_s


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = open_service(ServerSettings(work_dir=tmp_path), runtime=SYSTEM_RUNTIME)
    yield opened
    opened.stop()


def test_what_waits_is_hastened_when_its_table_falls_behind_the_target(service: Service) -> None:
    store = service.store
    policy = Policy(compact_after_commits=2, max_log_files=7)
    table, _ = store.register_table(NewTable("db", "t", "/lake/t", policy=policy))
    table = replace(table, facts=TableFacts(first_look_ms=1))
    behind_ms = store.now_ms()
    deadlines = []
    seen = [replace(BEHIND, deltas_since_compaction=deltas, behind_since_ms=behind_ms) for deltas in (3, 7, 8)]
    loop = LookLoop(replace(service.context, look=lambda _: seen.pop(0)))
    while seen:
        loop.look_at(table)
        (waiting,) = store.list_active(table.table_id)
        deadlines.append((waiting.deadline_ms or 0) - behind_ms)
    assert deadlines[0] == deadlines[1] >= 3_600_000
    assert 0 <= deadlines[2] < 3_600_000


def test_a_table_that_was_behind_when_it_was_registered_has_its_whole_target_from_then_on(service: Service) -> None:
    store = service.store
    policy = Policy(compact_after_commits=2, max_log_files=1, fresh_within_s=60)
    table, _ = store.register_table(NewTable("db", "t", "/lake/t", policy=policy))
    registered_ms = store.now_ms()
    loop = LookLoop(replace(service.context, look=lambda _: BEHIND))
    for _ in range(2):
        loop.look_at(store.load_table(table.table_id))
        (waiting,) = store.list_active(table.table_id)
        assert 59_000 <= (waiting.deadline_ms or 0) - registered_ms < 120_000
    service.alarms.run_once()
    assert store.list_alarms(Page(), only_open=False) == []


@pytest.mark.parametrize(
    ("first_look_s_ago", "deadline_in_s"), [(0, 300.0), (100, 200.0), (299, 1.0), (400, -100.0), (None, -100.0)]
)
def test_the_first_target_ends_when_it_has_passed_since_the_first_look(
    first_look_s_ago: int | None, deadline_in_s: float
) -> None:
    summary = replace(BEHIND, behind_since_ms=NOW_MS - 400_000)
    first_look_ms = 0 if first_look_s_ago is None else NOW_MS - first_look_s_ago * 1000
    policy = Policy(fresh_within_s=300).over(DEFAULT_POLICY)
    (compaction,) = plan_due(summary, policy, now_ms=NOW_MS, first_look_ms=first_look_ms)
    assert compaction.deadline_in_s == deadline_in_s


def test_a_deadline_is_moved_forward_only(store: SqlJobStore) -> None:
    table, _ = store.register_table(NewTable("db", "t", "/lake/t"))
    submission = Submission(table.table_id, "1", ServiceAction.COMPACTION)
    number = store.submit(submission).operation.operation_id
    seen = []
    for deadline_in_s in (60.0, 30.0, 90.0):
        store.hasten(number, deadline_in_s=deadline_in_s)
        seen.append((store.load_operation(number).deadline_ms or 0) - store.now_ms())
    assert seen == [60_000, 30_000, 30_000]
