"""What the service decides: tables of cases, and the laws of the order of work."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.server.decisions.alarms import BACKLOG, World, plan_alarms
from tablekeeper.server.decisions.choose import AGING_S, choose_next, urgencies
from tablekeeper.server.decisions.due import first_deadline_s, foresee, plan_due, seconds_until_due, table_facts
from tablekeeper.server.decisions.explain import explain_operation
from tablekeeper.server.decisions.outcomes import back_off_s, judge_attempt
from tablekeeper.server.decisions.reconcile import plan_corrections, should_revive
from tablekeeper.server.model import (
    Attempt,
    AttemptOutcome,
    Instance,
    ManagedTable,
    Operation,
    ServiceAction,
    Signal,
    Status,
)
from tablekeeper.server.policy import DEFAULT_POLICY, DayWindow, Policy
from tablekeeper.server.settings import Limits, Timing
from tablekeeper.server.store.protocol import Load, Queued, QueueDepth, RunningLoad
from tablekeeper.table.summary import PendingAction, TimelineSummary

COMPACTION, CLUSTERING, CLEAN = ServiceAction.COMPACTION, ServiceAction.CLUSTERING, ServiceAction.CLEAN
NOW_MS = 1_795_000_000_000
ALL = Policy(services=tuple(ServiceAction)).over(DEFAULT_POLICY)
QUIET = TimelineSummary("t", True, "20261118120000000", 3, 0, 0, 0, 0, None, ())
TABLE = ManagedTable(7, "db", "t", "/lake/t")
TIMING = Timing()


def an_operation(**more: Any) -> Operation:
    fields: dict[str, Any] = {"status": Status.PENDING, "instant": "20261118110000000", "action": COMPACTION}
    return Operation(operation_id=1, table_id=7, **{**fields, **more})


@pytest.mark.parametrize(
    ("summary", "policy", "actions"),
    [
        ({}, ALL, []),
        ({"deltas_since_compaction": 4}, ALL, []),
        ({"deltas_since_compaction": 5}, ALL, [COMPACTION]),
        ({"deltas_since_compaction": 5, "is_mor": False}, ALL, []),
        ({"deltas_since_compaction": 5}, replace(ALL, services=(CLEAN,)), []),
        ({"deltas_since_compaction": 2}, replace(ALL, max_log_files=2), [COMPACTION]),
        ({"deltas_since_compaction": 2}, replace(ALL, max_read_amplification=2.5), [COMPACTION]),
        ({"deltas_since_compaction": 1}, replace(ALL, max_read_amplification=2.5), []),
        (
            {"deltas_since_compaction": 1, "behind_since_ms": NOW_MS - 60_000},
            replace(ALL, compact_after_s=60),
            [COMPACTION],
        ),
        ({"deltas_since_compaction": 1, "behind_since_ms": NOW_MS - 59_000}, replace(ALL, compact_after_s=60), []),
        ({"deltas_since_compaction": 1, "behind_since_ms": NOW_MS - 2_699_000}, ALL, []),
        ({"deltas_since_compaction": 1, "behind_since_ms": NOW_MS - 2_700_000}, ALL, [COMPACTION]),
        ({"deltas_since_log_compaction": 5}, ALL, [ServiceAction.LOG_COMPACTION]),
        ({"commits_since_clustering": 20}, ALL, [CLUSTERING]),
        ({"commits_since_clean": 10}, ALL, [CLEAN]),
        ({"pending": (PendingAction("1", "clean", "inflight"),)}, ALL, [CLEAN]),
        ({"instants": 30}, ALL, [ServiceAction.ARCHIVE]),
    ],
)
def test_what_is_due_follows_from_timeline_and_policy(
    summary: dict[str, Any], policy: Policy, actions: list[ServiceAction]
) -> None:
    due = plan_due(replace(QUIET, **summary), policy, now_ms=NOW_MS)
    assert [each.action for each in due] == actions
    assert all(each.instant == f"{each.action.value}@{QUIET.newest_time}" for each in due)


@pytest.mark.parametrize(
    ("behind_s", "policy", "left_s"),
    [
        (100, ALL, 2600.0),
        (100, replace(ALL, compact_after_s=160), 60.0),
        # Where it is due already, or never by itself, no look is hurried.
        (2700, ALL, None),
        (100, replace(ALL, services=(CLEAN,)), None),
    ],
)
def test_the_moment_at_which_time_alone_makes_a_compaction_due(
    behind_s: int, policy: Policy, left_s: float | None
) -> None:
    behind = replace(QUIET, deltas_since_compaction=1, behind_since_ms=NOW_MS - 1000 * behind_s)
    assert seconds_until_due(behind, policy, now_ms=NOW_MS) == left_s
    assert seconds_until_due(replace(behind, is_mor=False), policy, now_ms=NOW_MS) is None
    assert seconds_until_due(QUIET, policy, now_ms=NOW_MS) is None


def test_a_plan_that_waits_is_due_whatever_the_policy_hosts_and_no_second_one_is_made() -> None:
    plan = PendingAction("20261118110000000", "compaction", "requested")
    (due,) = plan_due(replace(QUIET, deltas_since_compaction=9, pending=(plan,)), Policy(), now_ms=NOW_MS)
    assert (due.action, due.instant) == (COMPACTION, plan.instant)
    hosted = plan_due(replace(QUIET, deltas_since_compaction=9, pending=(plan,)), ALL, now_ms=NOW_MS)
    assert [each.instant for each in hosted] == [plan.instant]


def test_nothing_more_is_due_while_an_operation_is_about_to_have_a_plan() -> None:
    plan = PendingAction("20261118110000000", "compaction", "requested")
    summary = replace(QUIET, deltas_since_compaction=9, pending=(plan,))
    assert plan_due(summary, ALL, now_ms=NOW_MS, active=frozenset({COMPACTION})) == []


@pytest.mark.parametrize(
    ("action", "times", "is_due"),
    [
        (CLEAN, {"write_times": ("1",) * 10 + ("3",) * 9}, False),
        (CLEAN, {"write_times": ("1",) * 10 + ("3",) * 10}, True),
        (CLUSTERING, {"write_times": ("1",) * 20 + ("3",) * 19}, False),
        (CLUSTERING, {"write_times": ("1",) * 20 + ("3",) * 20}, True),
        (ServiceAction.ARCHIVE, {"completion_times": ("1",) * 30 + ("3",) * 29}, False),
        (ServiceAction.ARCHIVE, {"completion_times": ("1",) * 30 + ("3",) * 30}, True),
    ],
)
def test_what_found_nothing_to_do_is_due_again_after_as_many_further_commits(
    action: ServiceAction, times: dict[str, Any], is_due: bool
) -> None:
    summary = replace(QUIET, is_mor=False, commits_since_clustering=99, commits_since_clean=99, instants=99, **times)
    policy = replace(ALL, services=(action,))
    assert [each.action for each in plan_due(summary, policy, now_ms=NOW_MS)] == [action]
    due = plan_due(summary, policy, now_ms=NOW_MS, found_nothing={action: "2"})
    assert [each.action for each in due] == [action] * is_due
    (seen,) = [each for each in foresee(summary, policy, now_ms=0, found_nothing={action: "2"}) if each.is_hosted]
    assert (seen.is_due, "which found nothing to do" in seen.why) == (is_due, True)
    # One that found something since then counts from there.
    recent = replace(summary, commits_since_clustering=1, commits_since_clean=1, instants=1)
    assert plan_due(recent, policy, now_ms=NOW_MS, found_nothing={action: "2"}) == []


def test_work_outside_of_the_window_waits_for_it_and_has_a_deadline() -> None:
    minute = NOW_MS // 60_000 % (24 * 60)
    policy = replace(ALL, windows=(DayWindow((minute + 10) % 1440, (minute + 70) % 1440),), fresh_within_s=300)
    (due,) = plan_due(
        replace(QUIET, deltas_since_compaction=5, behind_since_ms=NOW_MS - 100_000), policy, now_ms=NOW_MS
    )
    # Until the window opens nobody can do anything about it: a table that waits for it is not late.
    assert (due.delay_s, due.deadline_in_s) == (600.0, 600.0 + 75.0)
    assert first_deadline_s(policy, now_ms=NOW_MS) == 675.0
    assert first_deadline_s(ALL, now_ms=NOW_MS) == 0.0


def test_facts_of_a_table_say_how_far_reads_are_behind() -> None:
    facts = table_facts(replace(QUIET, deltas_since_compaction=4, behind_since_ms=5))
    assert (facts.commits_behind, facts.behind_since_ms, facts.read_amplification) == (4, 5, 5.0)
    assert table_facts(replace(QUIET, is_mor=False)).read_amplification is None


def queued(number: int, **more: Any) -> Queued:
    fields: dict[str, Any] = {
        "table_id": number,
        "action": COMPACTION,
        "queue": "q",
        "owner": "o",
        "priority": 5,
        "deadline_in_s": None,
        "waited_s": 0.0,
    }
    return Queued(operation_id=number, **{**fields, **more})


def chosen(waiting: list[Queued], limits: Limits | None = None, *, slots: int = 1, **running: Any) -> list[int]:
    load = Load(tuple(waiting), RunningLoad(**running))
    return [each.operation_id for each in choose_next(load, limits or Limits(), slots=slots)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"priority": 6}, {"deadline_in_s": -5.0}),
        ({"queue": "idle"}, {"deadline_in_s": 1.0}),
        ({"owner": "idle"}, {"deadline_in_s": 1.0}),
        ({"deadline_in_s": 10.0}, {"deadline_in_s": 20.0}),
        ({"deadline_in_s": 10.0}, {"waited_s": 100.0}),
        ({"waited_s": 10.0}, {"waited_s": 5.0}),
        ({"waited_s": AGING_S}, {}),
    ],
)
def test_the_order_of_work(first: dict[str, Any], second: dict[str, Any]) -> None:
    running: dict[str, Any] = {"by_queue": {"q": 1}, "by_owner": {"o": 1}, "by_share": {("q", "o"): 1}}
    assert chosen([queued(2, **second), queued(1, **first)], **running) == [1]
    assert chosen([queued(1, **first), queued(2, **second)], **running) == [1]


def test_queues_share_what_starts_at_once() -> None:
    waiting = [queued(n, queue="many") for n in range(1, 6)] + [queued(n, queue="few") for n in (6, 7)]
    assert chosen(waiting, slots=4) == [1, 6, 2, 7]


def test_one_action_of_a_table_runs_once() -> None:
    waiting = [queued(1, table_id=7), queued(2, table_id=7), queued(3, table_id=7, action=CLEAN)]
    assert chosen(waiting, slots=3) == [1, 3]
    assert chosen(waiting, slots=3, busy=frozenset({(7, COMPACTION)})) == [3]


WAITING = st.lists(
    st.builds(
        queued,
        st.integers(1, 1000),
        table_id=st.integers(1, 6),
        queue=st.sampled_from("ab"),
        owner=st.sampled_from("xy"),
        priority=st.integers(0, 9),
        deadline_in_s=st.none() | st.floats(-100, 100),
        waited_s=st.floats(0, 5000),
    ),
    unique_by=lambda each: each.operation_id,
    max_size=15,
)


@given(WAITING, st.integers(0, 6), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_limits_are_kept_and_no_slot_stays_free_for_nothing(
    waiting: list[Queued], slots: int, queue_limit: int, owner_limit: int, already: int
) -> None:
    limits = Limits(default_queue_limit=queue_limit, default_owner_limit=owner_limit)
    load = Load(tuple(waiting), RunningLoad({"a": already}, {"x": already}))
    starts = choose_next(load, limits, slots=slots)
    assert len(starts) <= slots
    assert len({(each.table_id, each.action) for each in starts}) == len(starts)
    for name in "ab":
        count = len([each for each in starts if each.queue == name])
        assert not queue_limit or not count or count + (already if name == "a" else 0) <= queue_limit
    for name in "xy":
        count = len([each for each in starts if each.owner == name])
        assert not owner_limit or not count or count + (already if name == "x" else 0) <= owner_limit
    if len(starts) < slots:
        after = Load(
            tuple(each for each in waiting if each not in starts),
            RunningLoad(
                {name: len([e for e in starts if e.queue == name]) + (already if name == "a" else 0) for name in "ab"},
                {name: len([e for e in starts if e.owner == name]) + (already if name == "x" else 0) for name in "xy"},
                busy=frozenset((each.table_id, each.action) for each in starts),
            ),
        )
        assert choose_next(after, limits, slots=1) == []


SHARES = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))
OTHERS = st.lists(st.tuples(SHARES, st.integers(0, 9), st.sampled_from([None, 60.0, -1e6])), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(SHARES, st.integers(0, 9), OTHERS, st.integers(1, 3), st.integers(1, 4))
def test_nothing_starves(
    share: tuple[str, str],
    priority: int,
    others: list[tuple[tuple[str, str], int, float | None]],
    slots: int,
    run_steps: int,
) -> None:
    """However many urgent and late operations keep coming, and from whomever: what waits starts within hours."""
    step_s = AGING_S / 2
    running: list[tuple[str, str, int]] = []
    for step in range(1000):
        running = [(queue, owner, left - 1) for queue, owner, left in running if left > 1]
        waiting = [queued(1, queue=share[0], owner=share[1], priority=priority, waited_s=step * step_s)]
        for number, ((queue, owner), rank, deadline_s) in enumerate(others * slots, start=2):
            waiting.append(queued(number, queue=queue, owner=owner, priority=rank, deadline_in_s=deadline_s))
        load = Load(
            tuple(waiting),
            RunningLoad(
                Counter(queue for queue, _, _ in running),
                Counter(owner for _, owner, _ in running),
                Counter((queue, owner) for queue, owner, _ in running),
            ),
        )
        starts = choose_next(load, Limits(), slots=slots - len(running))
        if 1 in [each.operation_id for each in starts]:
            assert step * step_s <= AGING_S * (9 - priority + 1) + 2 * 3600 + 6 * run_steps * step_s
            return
        running += [(each.queue, each.owner, run_steps) for each in starts]
    raise AssertionError("it never started")


def test_a_long_backlog_of_one_owner_does_not_keep_the_slots_from_another() -> None:
    backlog = [queued(n, owner="flood", waited_s=7200.0 - n) for n in range(1, 50)]
    fresh = queued(100, owner="quiet", waited_s=1.0)
    started = chosen([*backlog, fresh], slots=1, by_queue={"q": 2}, by_owner={"flood": 2}, by_share={("q", "flood"): 2})
    assert started == [100]
    assert urgencies([*backlog, fresh]) == {5: 5 + 7199 // int(AGING_S)}


@pytest.mark.parametrize(
    ("outcome", "more", "signal", "counts"),
    [
        (AttemptOutcome.COMPLETED, {}, Signal.COMPLETE, False),
        (AttemptOutcome.NOTHING_TO_DO, {}, Signal.COMPLETE, False),
        (AttemptOutcome.GONE, {}, Signal.CANCEL, False),
        (AttemptOutcome.CANCELLED, {}, Signal.CANCEL, False),
        (AttemptOutcome.ELSEWHERE, {"failures": 9}, Signal.RETRY, False),
        (AttemptOutcome.REFUSED, {}, Signal.FAIL, True),
        (AttemptOutcome.FAILED, {"failures": 1}, Signal.RETRY, True),
        (AttemptOutcome.FAILED, {"failures": 2}, Signal.FAIL, True),
        (AttemptOutcome.FAILED, {"retry_on_error": False}, Signal.FAIL, True),
        (AttemptOutcome.LOST, {"failures": 1}, Signal.RETRY, True),
        (AttemptOutcome.LOST, {"failures": 2}, Signal.QUARANTINE, True),
        (AttemptOutcome.TIMED_OUT, {"failures": 2}, Signal.QUARANTINE, True),
    ],
)
def test_what_becomes_of_an_operation(
    outcome: AttemptOutcome, more: dict[str, Any], signal: Signal, counts: bool
) -> None:
    verdict = judge_attempt(
        an_operation(status=Status.RUNNING, **more), outcome, "so", max_failures=3, timing=TIMING, jitter=0.5
    )
    assert (verdict.signal, verdict.counts_as_failure) == (signal, counts)


def test_a_run_that_found_nothing_to_do_says_so() -> None:
    operation = an_operation(status=Status.RUNNING)
    for outcome, note in ((AttemptOutcome.NOTHING_TO_DO, "it found nothing to do"), (AttemptOutcome.COMPLETED, "")):
        verdict = judge_attempt(operation, outcome, "", max_failures=3, timing=TIMING, jitter=0.5)
        assert (verdict.signal, verdict.note) == (Signal.COMPLETE, note)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_back_off_grows_and_is_bounded(failures: int, jitter: float) -> None:
    assert TIMING.back_off_s <= back_off_s(failures, TIMING, jitter=jitter) <= TIMING.back_off_max_s * 1.5
    assert back_off_s(failures, TIMING) <= back_off_s(failures + 1, TIMING)


def test_operations_of_plans_that_ended_elsewhere_are_settled() -> None:
    summary = replace(
        QUIET,
        pending=(PendingAction("20261118110000000", "compaction", "requested"),),
        completed=frozenset({"20261118100000000"}),
        first_time="20261118090000000",
    )
    instants = {
        "20261118110000000": None,
        "20261118100000000": Signal.COMPLETE,
        "20261118080000000": Signal.COMPLETE,
        # Older than the timeline too, but taken off it before anything was archived.
        "20261118070000000": Signal.CANCEL,
        "20261118105000000": Signal.CANCEL,
        "compaction@20261118105000000": None,
    }
    archived = {"20261118080000000"}
    for instant, signal in instants.items():
        found = plan_corrections([an_operation(instant=instant)], summary, archived.__contains__)
        assert [each.signal for each in found] == ([] if signal is None else [signal])
    held = an_operation(instant="20261118105000000", status=Status.RUNNING)
    assert plan_corrections([held], summary, archived.__contains__) == []


def test_only_what_was_ended_for_want_of_its_plan_is_revived() -> None:
    assert should_revive(an_operation(status=Status.CANCELLED))
    assert not should_revive(an_operation(status=Status.CANCELLED, cancel_reason="by ann"))
    assert not should_revive(an_operation(status=Status.CANCELLED, is_deleted=True))
    assert not should_revive(an_operation(status=Status.COMPLETED))


def test_alarms_fire_by_rule_and_subject() -> None:
    at_work = an_operation(status=Status.RUNNING, schedule_ms=NOW_MS - 5 * 3600 * 1000)
    world = World(
        NOW_MS,
        (
            an_operation(status=Status.FAILED, note="disk full", run_times=5),
            replace(an_operation(status=Status.QUARANTINED), operation_id=2),
            replace(an_operation(deadline_ms=NOW_MS - 60_000), operation_id=3),
            replace(an_operation(deadline_ms=NOW_MS + 60_000), operation_id=4, table_id=8),
            replace(at_work, operation_id=5),
            replace(an_operation(status=Status.FAILED), operation_id=6),
        ),
        {7: TABLE.name},
        recovered=frozenset({6}),
        quarantined=(replace(TABLE, quarantine="unreadable"),),
        depths=(QueueDepth("q", Status.PENDING, BACKLOG), QueueDepth("r", Status.PENDING, BACKLOG - 1)),
        instances=(
            Instance("gone", "h", 1, "", 1, 0, NOW_MS - 61_000),
            Instance("here", "h", 1, "", 1, 0, NOW_MS - 59_000),
        ),
    )
    assert [each.key for each in plan_alarms(world, TIMING)] == [
        "failed:1",
        "quarantined:2",
        "late:7",
        "stuck:5",
        "table-quarantined:7",
        "backlog:q",
        "instance-gone:gone",
    ]


@pytest.mark.parametrize(("tables", "alarms"), [(50, 50), (51, 1)])
def test_a_lake_of_which_many_tables_are_late_has_one_alarm(tables: int, alarms: int) -> None:
    late = an_operation(deadline_ms=NOW_MS - 60_000)
    world = World(
        NOW_MS, tuple(replace(late, operation_id=n, table_id=n) for n in range(1, tables + 1)), {1: "db.first"}
    )
    firing = plan_alarms(world, TIMING)
    assert len({each.key for each in firing}) == alarms
    assert all(each.rule == "late" for each in firing)
    assert "db.first" in firing[0].text


@pytest.mark.parametrize(
    ("operation", "table", "running", "sentence"),
    [
        ({}, {"quarantine": "unreadable"}, {}, "quarantined: unreadable"),
        ({}, {"is_paused": True}, {}, "paused"),
        (
            {"not_before_ms": NOW_MS + 5000, "failures": 2, "note": "disk full"},
            {},
            {},
            "5 s more after 2 failures: disk full",
        ),
        ({}, {}, {"busy": frozenset({(7, COMPACTION)})}, "another compaction of the table"),
        ({}, {}, {"by_queue": {"default": 3}}, "queue default runs 3 of at most 3"),
        (
            {"not_before_ms": NOW_MS - int(AGING_S * 2000)},
            {},
            {},
            "0 operations are more urgent. Its turn comes by priority 5, plus 2 for the age of what waits with it "
            "(running in queue default: 0, of owner default: 0), after 20 min.",
        ),
        ({"status": Status.RUNNING, "instance_id": "i", "lease_until_ms": NOW_MS + 9000}, {}, {}, "lasts 9 s"),
        ({"status": Status.FAILED, "note": "disk full"}, {}, {}, "It has failed: disk full."),
        ({"status": Status.FAILED, "note": "disk full."}, {}, {}, "It has failed: disk full."),
    ],
)
def test_an_operation_explains_itself(
    operation: dict[str, Any], table: dict[str, Any], running: dict[str, Any], sentence: str
) -> None:
    told = explain_operation(
        an_operation(**{"not_before_ms": NOW_MS, "why": "5 delta commits", **operation}),
        replace(TABLE, **table),
        [Attempt(1, 1, "arrow", "i", AttemptOutcome.TIMED_OUT, message="slow")],
        Load((), RunningLoad(**running)),
        Limits(default_queue_limit=3),
        now_ms=NOW_MS,
    )
    assert sentence in told[0]
    assert told[1:] == ["Why it is here: 5 delta commits.", "Attempt 1 on arrow: timed out: slow."]
