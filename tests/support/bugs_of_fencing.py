"""Deliberate bugs of fencing, of the guard, and of plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tablekeeper.model import Instant, PlanFlags
from tablekeeper.services.clean import execute as clean_execute
from tablekeeper.services.plans import cancel, execute, schedule, window
from tablekeeper.services.plans.foreign_plans import load_executable_plan
from tablekeeper.services.plans.foreign_writes import ForeignWrites
from tablekeeper.services.plans.service import Draft
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.table import streaming
from tablekeeper.txn import publish, rollback
from tablekeeper.txn.attempts import AttemptGuard, AttemptId
from tablekeeper.txn.heartbeat import Heartbeat, HeartbeatView
from tablekeeper.txn.locks.leased import RenewedLease
from tablekeeper.txn.markers import load_markers
from tablekeeper.write import finish
from tests.support.bug_registry import (
    MOR,
    OBJECTS,
    SMALL_FILES,
    Patch,
    both,
    bug,
    nothing,
    says,
    without_lock,
)

__all__: list[str] = []


# ---- parts of fencing, removed


@bug("takeover", OBJECTS, repeats_tasks=True)
def an_executor_deletes_the_files_of_its_successor() -> Patch:
    def delete(env: Any, write: Any, stats: Any) -> None:
        kept = {stat.path for stat in stats}
        markers = load_markers(env.storage, instant=write.inflight.requested_at.value)
        env.storage.delete_many([marker.path for marker in markers if marker.path not in kept])

    return patch.object(finish, "_delete_files_of_repeated_tasks", delete)


@bug("meeting", OBJECTS, repeats_tasks=True)
def tasks_do_not_look_at_their_heartbeat() -> Patch:
    return patch.object(AttemptGuard, "check_now", nothing)


@bug("sleeping writer")
def scopes_fence_nothing() -> Patch:
    original = MemoryStorage._changing
    return patch.object(MemoryStorage, "_changing", lambda self, scope: original(self, None))


@bug("meeting", repeats_tasks=True)
def stragglers_are_not_fenced() -> Patch:
    return patch.object(AttemptId, "end_tasks", nothing)


@bug("asleep in a renewal", OBJECTS)
def a_heartbeat_is_renewed_without_a_condition() -> Patch:
    def put(self: Heartbeat) -> bool:
        self._storage.put(self._path, self._content)
        return True

    return patch.object(Heartbeat, "_replace", put)


@bug("sleeping writer", OBJECTS)
def the_lease_is_not_checked() -> Patch:
    return both(patch.object(RenewedLease, "check", nothing), patch.object(RenewedLease, "look", nothing))


@bug("sleeping writer", OBJECTS)
def nobody_looks_once_more_after_the_commit() -> Patch:
    return patch.object(publish, "_confirm_completed", says(True))


@bug("sleeping writer", OBJECTS)
def the_last_look_finds_everything_in_order() -> Patch:
    return patch.object(publish, "_stands", says(True))


@bug("emptied partitions")
def a_clean_removes_partitions_under_writers() -> Patch:
    return patch.object(clean_execute, "_is_written", says(False))


@bug("drivers")
def a_stream_asks_for_its_batch_before_the_lock_only() -> Patch:
    return patch.object(streaming.BatchGuard, "__call__", nothing)


# ---- the guard, and plans


@bug("beside Java", SMALL_FILES)
def plans_do_not_wait_for_writers_of_others() -> Patch:
    return patch.object(schedule, "load_foreign_writes", says(ForeignWrites()))


@bug("race for a plan")
def the_guard_has_no_transaction() -> Patch:
    return without_lock(execute, "_pass_guard")


@bug("many executors")
def the_guard_passes_over_heartbeats() -> Patch:
    return patch.object(execute, "refuse_held", nothing)


@bug("many executors")
def every_heartbeat_counts_as_over() -> Patch:
    return patch.object(HeartbeatView, "is_active", says(False))


@bug("begun before")
def a_mutable_plan_is_executed_again() -> Patch:
    original = load_executable_plan

    def load(held: Any, current: Instant) -> Any:
        plan = original(held, current)
        return replace(plan, flags=replace(plan.flags, mutable=False))

    return patch.object(execute, "load_executable_plan", load)


@bug("cancelled at work")
def a_cancelled_plan_is_executed() -> Patch:
    return both(patch.object(execute, "refuse_cancelled", nothing), patch.object(AttemptGuard, "check_now", nothing))


@bug("cancelled at work")
def a_cancellation_does_not_wait_for_the_executor() -> Patch:
    return patch.object(cancel, "_is_held", says(False))


@bug("many executors")
def a_clean_takes_mutable_plans_at_once() -> Patch:
    original = cancel.why_removed

    def why(plan: Instant, flags: PlanFlags, settings: Any, **named: Any) -> str:
        return original(plan, flags, settings, **{**named, "age_s": 1e9})

    return patch.object(cancel, "why_removed", why)


@bug("takeover")
def files_of_an_earlier_attempt_are_forgotten() -> Patch:
    return both(
        patch.object(execute, "_load_files_of_attempts", says(frozenset())),
        patch.object(rollback, "load_markers", says([])),
    )


@bug("meeting")
def two_plans_may_have_one_file_group() -> Patch:
    return patch.object(schedule, "load_planned_groups", says(frozenset()))


@bug("meeting")
def a_plan_is_published_without_the_news() -> Patch:
    return patch.object(schedule, "_with_news", lambda env, service, drafted, now, **_: drafted.draft)


@bug("services", MOR)
def the_window_is_closed_at_the_wrong_end() -> Patch:
    return patch.object(window._LastPlan, "since", property(lambda self: self.instant.completed_at))


@bug("left out", MOR)
def missing_partitions_are_dropped() -> Patch:
    return patch.object(Draft, "missing", property(lambda self: ()))
