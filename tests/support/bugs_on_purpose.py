"""Deliberate bugs, one at a time: what the simulator must find. Each is a context in which the code is wrong.

`@bug` names one, says which theme of histories is about it, and on which tables it can show. To add a bug, write a
function that returns the context. `simulated_bugs.py` looks for seeds that catch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tablekeeper.metadata_table import compaction as metadata_compaction
from tablekeeper.metadata_table.compaction_plan import plan_merge
from tablekeeper.model import CompletionTime, Instant, PlanFlags
from tablekeeper.services.archive import plan as archive_plan
from tablekeeper.services.clean import execute as clean_execute
from tablekeeper.services.clean import leftovers
from tablekeeper.services.clean.plan import Holds
from tablekeeper.services.plans import cancel, execute, schedule, window
from tablekeeper.services.plans.foreign_plans import load_executable_plan
from tablekeeper.services.plans.service import Draft
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.table import streaming
from tablekeeper.testing import Shape
from tablekeeper.timeline import Timeline, complete_instant
from tablekeeper.txn import commit, concurrent_commits, conflict, environment, publish, rollback
from tablekeeper.txn.attempts import AttemptGuard, AttemptId
from tablekeeper.txn.heartbeat import Heartbeat, HeartbeatView
from tablekeeper.txn.locks.leased import LeasedLock, RenewedLease
from tablekeeper.txn.markers import load_markers
from tablekeeper.write import finish, operation

__all__ = ["BUGS", "Bug", "bug"]

OBJECTS = (Shape("mor", has_scopes=False), Shape("cow", has_scopes=False))
METADATA = (Shape("mor", metadata=True), Shape("cow", metadata=True))
MOR = (Shape("mor"),)
SIMPLE = (Shape("mor"), Shape("cow"))
SMALL_FILES = (Shape("mor", options="small files"),)
BUCKETS = (Shape("mor", "bucket"),)

Patch = AbstractContextManager[Any]


@dataclass(frozen=True)
class Bug:
    """One bug. `theme` and `shapes` are those of the histories that look for it."""

    name: str
    make: Callable[[], Patch]
    theme: str
    shapes: tuple[Shape, ...]
    repeats_tasks: bool


BUGS: dict[str, Bug] = {}


def bug(
    theme: str, shapes: tuple[Shape, ...] = SIMPLE, *, repeats_tasks: bool = False
) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    """Register a bug under the name of its function."""

    def register(make: Callable[[], Patch]) -> Callable[[], Patch]:
        name = make.__name__.replace("_", " ")
        BUGS[name] = Bug(name, make, theme, shapes, repeats_tasks)
        return make

    return register


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _says(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


class _NoLease:
    """A lock that admits everybody."""

    held_s = 0.0
    check = look = release = _nothing

    def acquire(self, **_: Any) -> _NoLease:
        return self

    def __enter__(self) -> _NoLease:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _without_lock(module: Any, function: str) -> Patch:
    """The function works in an environment whose lock admits everybody."""
    original = getattr(module, function)

    def unlocked(first: Any, *rest: Any, **named: Any) -> Any:
        return original(replace(first, lock=_NoLease()), *rest, **named)

    return patch.object(module, function, unlocked)


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
    return patch.object(AttemptGuard, "check_now", _nothing)


@bug("sleeping writer")
def scopes_fence_nothing() -> Patch:
    original = MemoryStorage._changing
    return patch.object(MemoryStorage, "_changing", lambda self, scope: original(self, None))


@bug("meeting", repeats_tasks=True)
def stragglers_are_not_fenced() -> Patch:
    return patch.object(AttemptId, "end_tasks", _nothing)


@bug("asleep in a renewal", OBJECTS)
def a_heartbeat_is_renewed_without_a_condition() -> Patch:
    def put(self: Heartbeat) -> bool:
        self._storage.put(self._path, self._content)
        return True

    return patch.object(Heartbeat, "_replace", put)


@bug("sleeping writer", OBJECTS)
def the_lease_is_not_checked() -> Patch:
    return _both(patch.object(RenewedLease, "check", _nothing), patch.object(RenewedLease, "look", _nothing))


@bug("sleeping writer", OBJECTS)
def nobody_looks_once_more_after_the_commit() -> Patch:
    return patch.object(publish, "_confirm_completed", _says(True))


@bug("sleeping writer", OBJECTS)
def the_last_look_finds_everything_in_order() -> Patch:
    return patch.object(publish, "_stands", _says(True))


@bug("emptied partitions")
def a_clean_removes_partitions_under_writers() -> Patch:
    return patch.object(clean_execute, "_is_written", _says(False))


@bug("drivers")
def a_stream_asks_for_its_batch_before_the_lock_only() -> Patch:
    return patch.object(streaming.BatchGuard, "__call__", _nothing)


# ---- the guard, and plans


@bug("many executors")
def the_guard_has_no_transaction() -> Patch:
    return _without_lock(execute, "_pass_guard")


@bug("many executors")
def the_guard_passes_over_heartbeats() -> Patch:
    return patch.object(execute, "refuse_held", _nothing)


@bug("many executors")
def every_heartbeat_counts_as_over() -> Patch:
    return patch.object(HeartbeatView, "is_active", _says(False))


@bug("begun before")
def a_mutable_plan_is_executed_again() -> Patch:
    original = load_executable_plan

    def load(held: Any, current: Instant) -> Any:
        plan = original(held, current)
        return replace(plan, flags=replace(plan.flags, mutable=False))

    return patch.object(execute, "load_executable_plan", load)


@bug("cancelled at work")
def a_cancelled_plan_is_executed() -> Patch:
    return _both(patch.object(execute, "refuse_cancelled", _nothing), patch.object(AttemptGuard, "check_now", _nothing))


@bug("cancelled at work")
def a_cancellation_does_not_wait_for_the_executor() -> Patch:
    return patch.object(cancel, "_is_held", _says(False))


@bug("many executors")
def a_clean_takes_mutable_plans_at_once() -> Patch:
    original = cancel.why_removed

    def why(plan: Instant, flags: PlanFlags, settings: Any, **named: Any) -> str:
        return original(plan, flags, settings, **{**named, "age_s": 1e9})

    return patch.object(cancel, "why_removed", why)


@bug("takeover")
def files_of_an_earlier_attempt_are_forgotten() -> Patch:
    return _both(
        patch.object(execute, "_load_files_of_attempts", _says(frozenset())),
        patch.object(rollback, "load_markers", _says([])),
    )


@bug("meeting")
def two_plans_may_have_one_file_group() -> Patch:
    return patch.object(schedule, "load_planned_groups", _says(frozenset()))


@bug("meeting")
def a_plan_is_published_without_the_news() -> Patch:
    return patch.object(schedule, "_with_news", lambda env, service, drafted, now, **_: drafted.draft)


@bug("upkeep", MOR)
def the_window_is_closed_at_the_wrong_end() -> Patch:
    return patch.object(window._LastPlan, "since", property(lambda self: self.instant.completed_at))


@bug("left out", MOR)
def missing_partitions_are_dropped() -> Patch:
    return patch.object(Draft, "missing", property(lambda self: ()))


# ---- commits and conflicts


@bug("meeting")
def a_commit_is_compared_with_nobody() -> Patch:
    return _both(
        patch.object(concurrent_commits.ConflictCheck, "refuse_conflict", _says([])),
        patch.object(concurrent_commits.ConflictCheck, "refuse_phantoms", _nothing),
    )


@bug("meeting")
def a_commit_does_not_load_the_timeline_again() -> Patch:
    check = concurrent_commits.ConflictCheck.refuse_conflict
    original = commit._with_archived
    begun: list[Timeline] = []

    def at_start(env: Any, write: Any, timeline: Timeline) -> Timeline:
        begun[:] = [write.at_start]
        return original(env, write, timeline)

    return _both(
        patch.object(commit, "_with_archived", at_start),
        patch.object(
            concurrent_commits.ConflictCheck,
            "refuse_conflict",
            lambda self, now: check(self, begun.pop() if begun else now),
        ),
    )


@bug("newcomers")
def phantoms_are_not_looked_for() -> Patch:
    return patch.object(concurrent_commits.ConflictCheck, "refuse_phantoms", _nothing)


@bug("newcomers", BUCKETS)
def conflicts_of_buckets_are_passed_over() -> Patch:
    original = conflict.overlapping_groups
    return patch.object(
        conflict, "overlapping_groups", lambda *, own, other, by_bucket: original(own=own, other=other, by_bucket=False)
    )


@bug("slow work")
def writes_that_were_pending_at_the_start_are_passed_over() -> Patch:
    original = commit._own_write
    return patch.object(commit, "_own_write", lambda *rest: replace(original(*rest), pending_at_start=frozenset()))


@bug("late loads", SMALL_FILES)
def a_compaction_never_conflicts() -> Patch:
    original = conflict._is_harmless

    def is_harmless(own: Any, instant: Instant, *, kind: Any) -> bool:
        return kind is conflict.WriteKind.COMPACTION or original(own, instant, kind=kind)

    return _both(
        patch.object(conflict, "_is_harmless", is_harmless),
    )


@bug("meeting")
def a_clustering_passes_over_writers() -> Patch:
    original = conflict._is_harmless

    def is_harmless(own: Any, instant: Instant, *, kind: Any) -> bool:
        return own.kind is conflict.WriteKind.CLUSTERING or original(own, instant, kind=kind)

    return patch.object(conflict, "_is_harmless", is_harmless)


@bug("meeting")
def ingestion_loses_to_cancellable_plans() -> Patch:
    return patch.object(concurrent_commits.ConflictCheck, "_is_cancellable", _says(False))


@bug("yielding")
def a_cancellable_plan_does_not_yield() -> Patch:
    original = commit._own_write
    return patch.object(commit, "_own_write", lambda *rest: replace(original(*rest), is_cancellable=False))


@bug("meeting")
def the_commit_takes_no_lock() -> Patch:
    return _without_lock(finish, "commit_write")


@bug("meeting")
def the_completion_time_is_taken_before_the_lock() -> Patch:
    original = complete_instant

    def complete(storage: Any, config: Any, inflight: Instant, *, completed_at: Any, content: bytes) -> Any:
        early = CompletionTime(str(int(inflight.requested_at.value) + 1))
        return original(storage, config, inflight, completed_at=min(early, completed_at), content=content)

    return patch.object(publish, "complete_instant", complete)


@bug("wrong clocks")
def times_come_from_the_own_clock_alone() -> Patch:
    original = environment.time_after
    return _both(
        patch.object(environment, "time_after", lambda env, newest: original(env, "20000101000000000")),
        patch.object(commit, "time_after", lambda env, newest: original(env, "20000101000000000")),
    )


@bug("meeting")
def the_lock_is_taken_from_whoever_holds_it() -> Patch:
    return patch.object(LeasedLock, "_is_lapsed", _says(True))


# ---- rollbacks, cleans, archives


@bug("slow work")
def live_writers_are_rolled_back() -> Patch:
    def all_of_them(env: Any, timeline: Timeline) -> list[Instant]:
        del env
        return [i for i in timeline.pending if i.action.is_ingestion]

    return _both(
        patch.object(operation, "failed_writes", all_of_them), patch.object(leftovers, "failed_writes", all_of_them)
    )


@bug("sleeping writer")
def a_rollback_does_not_find_files_by_markers() -> Patch:
    return patch.object(rollback, "load_markers", _says([]))


@bug("dying twice")
def a_rollback_begins_anew_instead_of_going_on() -> Patch:
    return patch.object(rollback, "find_rollback", _says(None))


@bug("dying twice")
def a_rollback_forgets_the_files_of_its_plan() -> Patch:
    return patch.object(rollback, "_planned_files", _says(()))


@bug("dying twice", METADATA)
def a_rollback_passes_over_the_metadata_table() -> Patch:
    return patch.object(publish, "sync_rollback", _nothing)


@bug("upkeep", METADATA)
def a_clean_passes_over_the_metadata_table() -> Patch:
    return patch.object(publish, "sync_clean", _nothing)


@bug("slow restore")
def writers_go_on_during_a_restore() -> Patch:
    return _both(
        patch.object(commit, "refuse_during_restore", _nothing),
        patch.object(execute, "refuse_during_restore", _nothing),
    )


@bug("old plans")
def a_clean_passes_over_pending_plans_and_savepoints() -> Patch:
    return patch.object(Holds, "fate_of", _says(None))


@bug("old plans")
def an_archive_passes_over_what_is_pending() -> Patch:
    return patch.object(archive_plan, "_pending_bounds", _says(()))


@bug("metadata", METADATA)
def a_metadata_compaction_forgets_its_condition() -> Patch:
    original = plan_merge
    merges: list[Any] = []

    def plan(state: Any, **among: Any) -> Any:
        if among:
            return merges[-1]
        merges.append(original(state))
        return merges[-1]

    return patch.object(metadata_compaction, "plan_merge", plan)


@bug("meeting")
def readers_see_what_is_pending() -> Patch:
    return patch.object(Timeline, "is_completed", _says(True))


@contextmanager
def _both(*patches: Patch) -> Iterator[None]:
    if not patches:
        yield
        return
    with patches[0], _both(*patches[1:]):
        yield
