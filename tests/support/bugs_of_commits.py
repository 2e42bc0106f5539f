"""Deliberate bugs of commits and conflicts, of readers, and of rollbacks, cleans and archives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tablekeeper.metadata_table import compaction as metadata_compaction
from tablekeeper.metadata_table.compaction_plan import plan_merge
from tablekeeper.metadata_table.index_changes import NO_INDEX_CHANGES
from tablekeeper.metadata_table.update import sync_commit
from tablekeeper.model import CommitMetadata, CompletionTime, Instant, Operation
from tablekeeper.read import incremental
from tablekeeper.services.archive import execute as archive_execute
from tablekeeper.services.clean import execute as clean_execute
from tablekeeper.services.clean import leftovers
from tablekeeper.services.clean import publish as clean_publish
from tablekeeper.services.clean import view as clean_view
from tablekeeper.services.clean.plan import Holds
from tablekeeper.services.compaction import kernels as compaction_kernels
from tablekeeper.services.plans import execute
from tablekeeper.services.recovery import rollback as recovery_rollback
from tablekeeper.timeline import Timeline, complete_instant
from tablekeeper.txn import commit, concurrent_commits, conflict, environment, publish, rollback
from tablekeeper.txn.locks.leased import LeasedLock
from tablekeeper.write import finish, operation
from tests.support.bug_registry import (
    BUCKETS,
    METADATA,
    MOR,
    OBJECTS,
    RECORD_INDEX,
    SMALL_FILES,
    Patch,
    both,
    bug,
    nothing,
    says,
    without_lock,
)

__all__: list[str] = []


# ---- commits and conflicts


@bug("meeting")
def a_commit_is_compared_with_nobody() -> Patch:
    return both(
        patch.object(concurrent_commits.ConflictCheck, "refuse_conflict", says([])),
        patch.object(concurrent_commits.ConflictCheck, "refuse_phantoms", nothing),
    )


@bug("meeting")
def a_commit_does_not_load_the_timeline_again() -> Patch:
    check = concurrent_commits.ConflictCheck.refuse_conflict
    original = commit._with_archived
    begun: list[Timeline] = []

    def at_start(env: Any, write: Any, timeline: Timeline) -> Timeline:
        begun[:] = [write.at_start]
        return original(env, write, timeline)

    return both(
        patch.object(commit, "_with_archived", at_start),
        patch.object(
            concurrent_commits.ConflictCheck,
            "refuse_conflict",
            lambda self, now: check(self, begun.pop() if begun else now),
        ),
    )


@bug("newcomers")
def phantoms_are_not_looked_for() -> Patch:
    return patch.object(concurrent_commits.ConflictCheck, "refuse_phantoms", nothing)


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

    return both(
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
    return patch.object(concurrent_commits.ConflictCheck, "_is_cancellable", says(False))


@bug("yielding")
def a_cancellable_plan_does_not_yield() -> Patch:
    original = commit._own_write
    return patch.object(commit, "_own_write", lambda *rest: replace(original(*rest), is_cancellable=False))


@bug("meeting")
def the_commit_takes_no_lock() -> Patch:
    return without_lock(finish, "commit_write")


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
    return both(
        patch.object(environment, "time_after", lambda env, newest: original(env, "20000101000000000")),
        patch.object(commit, "time_after", lambda env, newest: original(env, "20000101000000000")),
    )


@bug("meeting")
def the_lock_is_taken_from_whoever_holds_it() -> Patch:
    return patch.object(LeasedLock, "_is_lapsed", says(True))


# ---- rollbacks, cleans, archives


@bug("slow work")
def live_writers_are_rolled_back() -> Patch:
    def all_of_them(env: Any, timeline: Timeline) -> list[Instant]:
        del env
        return [i for i in timeline.pending if i.action.is_ingestion]

    return both(
        patch.object(operation, "failed_writes", all_of_them), patch.object(leftovers, "failed_writes", all_of_them)
    )


@bug("sleeping writer")
def a_rollback_does_not_find_files_by_markers() -> Patch:
    return patch.object(rollback, "load_markers", says([]))


@bug("dying twice")
def a_rollback_begins_anew_instead_of_going_on() -> Patch:
    return patch.object(rollback, "find_rollback", says(None))


@bug("dying in a rollback")
def a_rollback_forgets_the_files_of_its_plan() -> Patch:
    return patch.object(rollback, "_planned_files", says(()))


@bug("dying twice", METADATA)
def a_rollback_passes_over_the_metadata_table() -> Patch:
    return patch.object(publish, "sync_rollback", nothing)


@bug("services", METADATA)
def a_clean_passes_over_the_metadata_table() -> Patch:
    return patch.object(publish, "sync_clean", nothing)


@bug("slow restore")
def writers_go_on_during_a_restore() -> Patch:
    return both(
        patch.object(commit, "refuse_during_restore", nothing),
        patch.object(execute, "refuse_during_restore", nothing),
    )


@bug("old plans")
def a_clean_passes_over_pending_plans_and_savepoints() -> Patch:
    return patch.object(Holds, "fate_of", says(None))


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


@bug("dying twice")
def readers_take_files_of_unknown_instants() -> Patch:
    original = Timeline.is_completed
    return patch.object(Timeline, "is_completed", lambda self, time: original(self, time) or self.find(time) is None)


@bug("meeting", METADATA)
def a_commit_passes_over_the_metadata_table() -> Patch:
    return patch.object(publish, "sync_commit", says(()))


@bug("meeting", RECORD_INDEX)
def a_commit_forgets_the_record_index() -> Patch:
    original = sync_commit
    return patch.object(
        publish, "sync_commit", lambda *given, **named: original(*given, **{**named, "changes": NO_INDEX_CHANGES})
    )


@bug("dying twice")
def the_dead_are_not_rolled_back() -> Patch:
    return both(patch.object(operation, "failed_writes", says([])), patch.object(leftovers, "failed_writes", says([])))


@bug("ways back")
def a_commit_is_taken_back_from_under_others() -> Patch:
    return patch.object(recovery_rollback, "_refuse_completed", nothing)


@bug("sleeping writer", OBJECTS, repeats_tasks=True)
def late_files_are_not_swept() -> Patch:
    return patch.object(clean_execute, "sweep_late_files", says(()))


@bug("services")
def an_archive_keeps_nothing_of_what_it_takes_off() -> Patch:
    return patch.object(archive_execute, "append_history", lambda storage, before, fresh, **_: before)


@bug("old plans")
def a_clean_knows_no_savepoints() -> Patch:
    return both(
        patch.object(clean_publish, "savepoints_of", says(())), patch.object(clean_view, "savepoints_of", says(()))
    )


@bug("yielding")
def pending_writers_touch_nothing() -> Patch:
    return patch.object(concurrent_commits, "load_inflight", says(CommitMetadata(Operation.UNKNOWN)))


@bug("services", MOR)
def a_compaction_leaves_out_the_newest_log() -> Patch:
    original = compaction_kernels._read_task

    def read(task: Any) -> Any:
        return original(replace(task, file_slice=replace(task.file_slice, logs=task.file_slice.logs[:-1])))

    return patch.object(compaction_kernels, "_read_task", read)


@bug("followers")
def changes_are_found_by_the_time_of_their_request() -> Patch:
    original = incremental._Window.holds

    def holds(self: Any, instant: Instant) -> bool:
        early = CompletionTime(instant.requested_at.value)
        return original(self, instant if instant.completed_at is None else replace(instant, completed_at=early))

    return patch.object(incremental._Window, "holds", holds)


@bug("meeting")
def readers_see_what_is_pending() -> Patch:
    return patch.object(Timeline, "is_completed", says(True))
