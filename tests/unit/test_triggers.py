"""When compaction, log compaction and clustering are due."""

from __future__ import annotations

from typing import Any

import pytest

from tablekeeper.config.service_settings import (
    ClusteringSettings,
    CompactionSettings,
    CompactionTrigger,
    LogCompactionSettings,
)
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.services.plans.triggers import Due, clustering_due, compaction_due, log_compaction_due
from tablekeeper.timeline import Timeline, parse_time

__all__: list[str] = []


def time(second: int) -> str:
    return f"20260101{second // 3600:02d}{second // 60 % 60:02d}{second % 60:02d}000"


def delta(start: int, end: int | None = None) -> Instant:
    at = CompletionTime(time(start + 1 if end is None else end))
    return Instant(RequestedTime(time(start)), Action.DELTA_COMMIT, State.COMPLETED, at)


def done(start: int, end: int, action: Action = Action.COMMIT) -> Instant:
    return Instant(RequestedTime(time(start)), action, State.COMPLETED, CompletionTime(time(end)))


def pending(start: int, action: Action) -> Instant:
    return Instant(RequestedTime(time(start)), action, State.REQUESTED)


def compaction(*instants: Instant, now: int = 100, **settings: Any) -> Due:
    chosen = CompactionSettings(max_delta_commits=2, max_delta_s=60, **settings)
    completed = [i for i in instants if i.action is Action.COMMIT]
    now_ms = parse_time(time(now), zone="UTC")
    return compaction_due(Timeline.of(instants), chosen, completed=completed, now_ms=now_ms, zone="UTC")


def test_without_delta_commits_no_compaction_is_due() -> None:
    assert compaction() == Due(False, "no delta commit yet")


def test_a_compaction_is_due_after_so_many_delta_commits() -> None:
    assert not compaction(delta(1))
    assert compaction(delta(1), delta(3)) == Due(True, "2 delta commits so far, due from 2 on")


def test_delta_commits_count_that_completed_after_the_last_compaction_was_requested() -> None:
    last = done(5, 8)
    assert not compaction(delta(1), delta(3), last, delta(9))
    overlapping = delta(4, end=6)
    assert compaction(overlapping, last, delta(9)) == Due(True, f"2 delta commits since {time(5)}, due from 2 on")


@pytest.mark.parametrize(
    ("trigger", "commits", "now", "due"),
    [
        (CompactionTrigger.TIME_ELAPSED, 1, 62, True),
        (CompactionTrigger.TIME_ELAPSED, 5, 60, False),
        (CompactionTrigger.NUM_AND_TIME, 1, 90, False),
        (CompactionTrigger.NUM_AND_TIME, 2, 60, False),
        (CompactionTrigger.NUM_AND_TIME, 2, 90, True),
        (CompactionTrigger.NUM_OR_TIME, 1, 60, False),
        (CompactionTrigger.NUM_OR_TIME, 2, 60, True),
        (CompactionTrigger.NUM_OR_TIME, 1, 90, True),
    ],
)
def test_time_counts_from_the_first_delta_commit_where_nothing_was_compacted(
    trigger: CompactionTrigger, commits: int, now: int, due: bool
) -> None:
    assert bool(compaction(*(delta(1 + 2 * n) for n in range(commits)), now=now, trigger=trigger)) is due


def test_time_counts_from_the_last_compaction_where_there_is_one() -> None:
    instants = (delta(1), done(50, 55), delta(60))
    decision = compaction(*instants, now=100, trigger=CompactionTrigger.TIME_ELAPSED)
    assert decision == Due(False, f"50 seconds since {time(50)}, due from 60 on")


def test_after_the_last_request_only_later_delta_commits_count() -> None:
    trigger = CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST
    planned = pending(5, Action.COMPACTION)
    assert compaction(delta(1), delta(3), trigger=trigger)
    assert not compaction(delta(1), delta(3), planned, delta(7), trigger=trigger)
    assert compaction(delta(1), delta(3), planned, delta(7), delta(9), trigger=trigger)
    assert compaction(delta(1), delta(3), planned)


def log_compaction(*instants: Instant, merged: tuple[Instant, ...] = ()) -> Due:
    completed = [i for i in instants if i.action is Action.COMMIT]
    return log_compaction_due(
        Timeline.of((*instants, *merged)), LogCompactionSettings(2), completed=merged, compactions=completed
    )


def test_a_log_compaction_is_due_after_so_many_delta_commits_since_either_service() -> None:
    assert not log_compaction(delta(1))
    assert log_compaction(delta(1), delta(3))
    assert not log_compaction(delta(1), delta(3), done(5, 6))
    assert not log_compaction(delta(1), delta(3), delta(7), merged=(done(5, 6, Action.DELTA_COMMIT),))
    assert log_compaction(delta(1), delta(7), delta(9), merged=(done(5, 6, Action.DELTA_COMMIT),))


def test_one_log_compaction_waits_for_the_other() -> None:
    decision = log_compaction(delta(1), delta(3), pending(5, Action.LOG_COMPACTION))
    assert decision == Due(False, f"log compaction {time(5)} is still pending")


def test_a_clustering_is_due_after_so_many_commits_since_the_last_one_was_asked_for() -> None:
    settings = ClusteringSettings(max_inline_commits=2, max_async_commits=3)
    commits = (delta(1), delta(3))
    assert clustering_due(Timeline.of(commits), settings, completed=())
    assert not clustering_due(Timeline.of(commits), settings, completed=(), is_async=True)
    planned = pending(5, Action.CLUSTERING)
    assert not clustering_due(Timeline.of((*commits, planned, delta(7))), settings, completed=())
    last = done(5, 6, Action.REPLACE_COMMIT)
    timeline = Timeline.of((*commits, last, delta(7)))
    assert not clustering_due(timeline, settings, completed=(last,))
    assert clustering_due(Timeline.of((*timeline, delta(9))), settings, completed=(last,))
