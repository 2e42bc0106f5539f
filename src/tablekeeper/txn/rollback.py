"""Rollback of an instant: its files are deleted and it leaves the timeline.

The steps are Java's: a rollback plan is requested and goes inflight; if the target had completed, its completed file is
deleted, which makes it inflight and invisible; the data files are deleted; the rollback completes; last the target's
instant files, markers and heartbeat are deleted. Every step can be repeated: an unfinished rollback is found by its
plan and continued. The plan names every file, because the commit metadata that named them may be gone by then.

A table service that did not complete returns to requested, and its plan stays to be executed again. This happens
without releasing the lock: the next executor of the plan must not find an unfinished rollback. A mutable or cancelled
plan leaves the timeline instead.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tablekeeper.config.concurrency_settings import FailedWrites
from tablekeeper.errors import CommitOutcomeUnknownError, FencedError, StorageError
from tablekeeper.format.plans import (
    InstantInfo,
    RollbackMetadata,
    RollbackPlan,
    RollbackRequest,
    RolledBackPartition,
    encode_rollback_metadata,
    encode_rollback_plan,
)
from tablekeeper.metadata_table.update import take_back_update
from tablekeeper.model import Action, Instant, RequestedTime, State, join_path
from tablekeeper.storage import hadoop_path
from tablekeeper.timeline import (
    Timeline,
    create_requested,
    load_content,
    load_written_paths,
    publish_again,
    remove_instant_files,
    start_inflight,
    unpublish_instant,
)
from tablekeeper.timeline.history import find_archived
from tablekeeper.timeline.plans import find_rollback, load_pending_outline, load_rollback_plan
from tablekeeper.txn.attempts import fence_attempts
from tablekeeper.txn.cancel_requests import delete_cancel_request, load_cancel_request
from tablekeeper.txn.commit import OpenWrite
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment, next_time
from tablekeeper.txn.heartbeat import delete_heartbeat
from tablekeeper.txn.late_files import sweep_late_files
from tablekeeper.txn.lost_completions import refuse_lost_completion
from tablekeeper.txn.markers import delete_markers, load_markers
from tablekeeper.txn.publish import Publication, RollbackUpdate

__all__ = [
    "Approval",
    "RolledBack",
    "failed_writes",
    "leaves_with_attempt",
    "load_files_of",
    "resume_rollback",
    "rollback_approved",
    "rollback_instant",
    "schedule_rollback",
    "withdraw_idle_rollbacks",
    "withdraw_write",
]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An instant that was rolled back by the action `rollback`, and the data files that were deleted."""

    instant: Instant
    rollback: Instant
    files: tuple[str, ...]
    metadata: RollbackMetadata | None = None


Approval = Callable[[LockedEnvironment, Timeline, Instant], bool]
"""Called under the lock before a rollback begins, with the instant as it is now: whether to roll it back."""


def failed_writes(environment: TableEnvironment, timeline: Timeline) -> list[Instant]:
    """Pending writes to roll back: those without an active heartbeat, or as the settings say. No table services."""
    policy = environment.concurrency.failed_writes
    pending = timeline.pending_ingestion
    if not pending or policy is FailedWrites.NEVER:
        return []
    if policy is FailedWrites.EAGER:
        return list(pending)
    heartbeats = environment.load_heartbeats()
    return [i for i in pending if not heartbeats.is_active(i.requested_at)]


def withdraw_write(environment: TableEnvironment, write: OpenWrite, cause: BaseException) -> None:
    """Give up our own write after `cause`. A write that announced no files leaves no trace.

    A write with an unknown outcome is left alone: its last request may still succeed. Its heartbeat is not renewed, and
    once it has expired, the next writer finds the instant completed, or rolls it back.
    """
    if isinstance(cause, CommitOutcomeUnknownError):
        write.heartbeat.abandon()
        return
    markers = load_markers(environment.storage, instant=write.inflight.requested_at.value)
    if markers:
        if rollback_instant(environment, write.inflight) is None:
            _discard_late_files(environment, write.inflight, [marker.path for marker in markers])
    else:
        with environment.locked() as held:
            timeline = held.load_timeline()
            found = timeline.find(write.inflight.requested_at)
            if found is not None and found.is_pending:
                take_back_update(held, write.inflight.requested_at)
                _remove_target(held, write.inflight)
    write.heartbeat.stop()


def _discard_late_files(environment: TableEnvironment, target: Instant, files: list[str]) -> None:
    """Delete what our own write wrote after others had rolled it back.

    Otherwise its rows would become visible once the timeline has been archived past the instant.
    """
    with environment.locked() as held:
        timeline = held.load_timeline()
        if timeline.find(target.requested_at) is not None:
            return
        is_old = timeline.is_archived(target.requested_at)
        if is_old and find_archived(held.storage, held.config, target) is not None:
            return
        # A writer that woke up late may also have changed the metadata table.
        take_back_update(held, target.requested_at)
        held.storage.delete_many(files)
        delete_markers(held.storage, instant=target.requested_at.value)


def rollback_instant(environment: TableEnvironment, target: Instant) -> RolledBack | None:
    """Roll back a pending write. None if it is no longer pending."""

    def is_pending(_: LockedEnvironment, __: Timeline, current: Instant) -> bool:
        if current.is_completed:
            _LOG.info("instant %s is not pending any more: nothing to roll back", target)
        return current.is_pending

    return rollback_approved(environment, target.requested_at, approve=is_pending)


def rollback_approved(
    environment: TableEnvironment,
    target: RequestedTime,
    *,
    approve: Approval,
    also_files: Iterable[str] = (),
    removes_plan: bool = False,
    keeps_heartbeat: bool = False,
    is_wanted: bool = False,
) -> RolledBack | None:
    """Roll back the instant requested at this time; None if it is gone, or not approved.

    `also_files` are deleted in addition to those named by the target's metadata, its markers and an earlier plan. With
    `removes_plan` a pending table service leaves the timeline. `keeps_heartbeat`: the heartbeat of the target is the
    caller's, who is about to execute its plan. `CorruptTableError` if a pending target had completed and lost its
    completed file, unless it `is_wanted`: then somebody asked to roll back this very instant.
    """
    with environment.locked() as held:
        timeline = held.load_timeline()
        current = timeline.find(target)
        if current is None or not approve(held, timeline, current):
            return None
        if current.is_pending and not keeps_heartbeat:
            if current.state is State.INFLIGHT and not is_wanted:
                refuse_lost_completion(held, current)
            held.lease.check()
            # Before looking for its files: whoever still works on it can no longer publish, or removes its files.
            fence_attempts(held.storage, target)
            delete_heartbeat(held.storage, target)
        begun = _begin(held, timeline, current, also_files=also_files, removes_plan=removes_plan)
        begun = replace(begun, keeps_heartbeat=keeps_heartbeat)
        if begun.keeps_plan:
            held.storage.delete_many(begun.files)
            return _finish(held, begun)
    return _delete_and_finish(environment, begun)


def schedule_rollback(environment: TableEnvironment, target: RequestedTime, *, approve: Approval) -> Instant | None:
    """Put the rollback of a pending instant on the timeline, to be executed later by `rollback_approved`.

    From then on nobody begins to execute the target. None if it is gone, completed, or not approved.
    """
    with environment.locked() as held:
        timeline = held.load_timeline()
        current = timeline.find(target)
        if current is None or current.is_completed or not approve(held, timeline, current):
            return None
        held.lease.check()
        files = tuple(sorted(load_files_of(held, current)))
        return _find_or_request(held, timeline, current, files)


def resume_rollback(environment: TableEnvironment, rollback: Instant) -> RolledBack | None:
    """Finish a rollback whose target has left the timeline, which is Java's first step. None if there is none."""
    with environment.locked() as held:
        timeline = held.load_timeline()
        mine = timeline.find(rollback.requested_at)
        if mine is None or mine.is_completed:
            return None
        plan = load_rollback_plan(held.storage, held.config, mine)
        if plan is None or plan.instant is None:
            # Without its plan its purpose is unknown; the files that it should have deleted show up as orphans.
            _remove_states(held, mine)
            return None
        target = Instant(RequestedTime(plan.instant.commit_time), Action(plan.instant.action), State.INFLIGHT)
        if timeline.find(target.requested_at) is not None:
            return None
        if mine.state is State.REQUESTED:
            held.lease.check()
            mine = start_inflight(held.storage, held.config, mine)
        started_ms = held.runtime.clock.now_ms()
        begun = _Begun(target, mine, _planned_files(plan), target.action, started_ms, keeps_plan=False)
    return _delete_and_finish(environment, begun)


def withdraw_idle_rollbacks(environment: TableEnvironment, timeline: Timeline) -> None:
    """Remove rollbacks that died before they changed anything: their commits still exist, or they have no plan.

    A rollback holds the lock until it has hidden the commit. One that is left behind would be executed by the next Java
    writer, even if others have built on the commit by then.
    """
    for rollback in timeline.pending_rollbacks:
        if _is_idle(environment, timeline, rollback):
            with environment.locked() as held:
                now = held.load_timeline()
                if rollback in now.pending and _is_idle(held, now, rollback):
                    _remove_states(held, rollback)


def load_files_of(environment: TableEnvironment, target: Instant) -> frozenset[str]:
    """The data files that rolling `target` back deletes: what its metadata says it wrote, and what its markers name."""
    markers = load_markers(environment.storage, instant=target.requested_at.value)
    files = frozenset(marker.path for marker in markers)
    if target.is_completed:
        files |= load_written_paths(environment.storage, environment.config, target)
    return files


def leaves_with_attempt(environment: TableEnvironment, target: Instant) -> bool:
    """Whether the plan of a table service is removed with its attempt: it is mutable, or was cancelled."""
    if not target.action.is_plan:
        return False
    if load_pending_outline(environment.storage, environment.config, target).flags.mutable:
        return True
    return load_cancel_request(environment.storage, target.requested_at) is not None


@dataclass(frozen=True, slots=True)
class _Begun:
    """A rollback that is inflight; `target` is pending, and `action` what it was before."""

    target: Instant
    rollback: Instant
    files: tuple[str, ...]
    action: Action
    started_ms: int
    keeps_plan: bool
    keeps_heartbeat: bool = False


def _begin(
    held: LockedEnvironment,
    timeline: Timeline,
    current: Instant,
    *,
    also_files: Iterable[str],
    removes_plan: bool,
) -> _Begun:
    """Put the rollback on the timeline, or find the existing one, and hide what the target did."""
    started_ms = held.runtime.clock.now_ms()
    rollback = find_rollback(held.storage, held.config, timeline, current)
    files = load_files_of(held, current) | frozenset(also_files)
    action = current.action
    plan = load_rollback_plan(held.storage, held.config, rollback) if rollback is not None else None
    if plan is not None and plan.instant is not None:
        files |= frozenset(_planned_files(plan))
        # An earlier attempt may have hidden a completed service: its plan says that it was a commit.
        action = Action(plan.instant.action)
    ordered = tuple(sorted(files))
    # Determined before the first change: if the process dies, the answer must not change.
    keeps_plan = action.is_plan and not removes_plan and not leaves_with_attempt(held, current)
    held.lease.check()
    rollback = _find_or_request(held, timeline, current, ordered, known=rollback)
    if rollback.state is State.REQUESTED:
        rollback = start_inflight(held.storage, held.config, rollback)
    target = current
    if current.is_completed:
        target = _hide(held, current, rollback)
    return _Begun(target, rollback, ordered, action, started_ms, keeps_plan=keeps_plan)


def _hide(held: LockedEnvironment, current: Instant, rollback: Instant) -> Instant:
    """Remove the completed state of `current`; a process that lost the lock meanwhile restores it.

    By then others may have withdrawn the rollback and built on the commit. A store with scopes prevents such late
    changes.
    """
    if held.storage.has_scopes:
        return unpublish_instant(held.storage, held.config, current, check=held.lease.check)
    content = load_content(held.storage, held.config, current)
    try:
        hidden = unpublish_instant(held.storage, held.config, current, check=held.lease.check)
        held.lease.check()
    except (FencedError, StorageError) as doubt:
        held.lease.release()
        with held.unlocked.locked() as again:
            timeline = again.load_timeline()
            if not _goes_on(timeline, current, rollback):
                publish_again(again.storage, again.config, current, content=content)
                raise
        raise _unknown(current, rollback) from doubt
    return hidden


def _goes_on(timeline: Timeline, target: Instant, rollback: Instant) -> bool:
    """Whether `target` is, or was, rolled back anyway: nobody has withdrawn `rollback`."""
    return timeline.find(rollback.requested_at) is not None or timeline.find(target.requested_at) is None


def _unknown(target: Instant, rollback: Instant) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"the lock was lost while {target} was being rolled back. The rollback {rollback.requested_at} stands: another "
        "process finishes it, or roll the instant back again. Reload the table.",
        instant=target.requested_at.value,
    )


def _find_or_request(
    environment: TableEnvironment,
    timeline: Timeline,
    target: Instant,
    files: tuple[str, ...],
    *,
    known: Instant | None = None,
) -> Instant:
    """The rollback of `target` that is on the timeline, or a new one."""
    rollback = known or find_rollback(environment.storage, environment.config, timeline, target)
    if rollback is not None:
        return rollback
    return create_requested(
        environment.storage,
        environment.config,
        requested_at=RequestedTime(next_time(environment, timeline)),
        action=Action.ROLLBACK,
        content=encode_rollback_plan(_plan(environment, target, files)),
    )


def _delete_and_finish(environment: TableEnvironment, begun: _Begun) -> RolledBack:
    environment.storage.delete_many(begun.files)
    with environment.locked() as held:
        outcome = _finish(held, begun)
    sweep_late_files(environment)
    return outcome


def _finish(held: LockedEnvironment, begun: _Begun) -> RolledBack:
    """Complete the rollback and remove its target. Under the lock, after the files are gone."""
    timeline = held.load_timeline()
    mine = timeline.find(begun.rollback.requested_at)
    is_ours = mine is not None and mine.is_pending
    metadata = _metadata(held, begun)
    outcome = RolledBack(begun.target, begun.rollback, begun.files, metadata)
    # A plan to be removed must not outlive its rollback, since it could be executed: it is removed before the
    # rollback completes. A process that dies in between leaves a rollback without a target; the next clean finishes it.
    goes_first = begun.target.action.is_plan and not begun.keeps_plan
    if is_ours:
        publication = Publication(held, begun.rollback, known=timeline)
        publication.update_metadata_table(RollbackUpdate(begun.target.requested_at, begun.files))
        if goes_first:
            publication.check()
            _remove_target(held, begun.target)
        if not publication.complete(encode_rollback_metadata(metadata)).holds_lock:
            # Without the lock: the next holder removes the rest of the target.
            return outcome
    # If somebody else finished it, a service that returned to requested may be running again by now.
    if (is_ours or not begun.keeps_plan) and not goes_first:
        _remove_target(held, begun.target, keeps_plan=begun.keeps_plan, keeps_heartbeat=begun.keeps_heartbeat)
    return outcome


def _remove_target(
    environment: TableEnvironment, target: Instant, *, keeps_plan: bool = False, keeps_heartbeat: bool = False
) -> None:
    """Instant files are deleted last: if the process dies, a pending instant remains, and the next writer continues.

    Among them the latest state is deleted first, so that no earlier state looks like pending work.
    """
    # If the store cannot stop a sleeping task, its markers stay until `sweep_late_files` has handled its files.
    if keeps_plan or environment.storage.has_scopes:
        delete_markers(environment.storage, instant=target.requested_at.value)
    if not keeps_heartbeat:
        fence_attempts(environment.storage, target.requested_at)
        delete_heartbeat(environment.storage, target.requested_at)
    _remove_states(environment, target, keeps_requested=keeps_plan)
    if target.action.is_plan and not keeps_plan:
        delete_cancel_request(environment.storage, target.requested_at)


def _is_idle(environment: TableEnvironment, timeline: Timeline, rollback: Instant) -> bool:
    plan = load_rollback_plan(environment.storage, environment.config, rollback)
    if plan is None or plan.instant is None:
        # Its purpose is unknown, and it had not begun.
        return rollback.state is State.REQUESTED
    target = timeline.find(RequestedTime(plan.instant.commit_time))
    return target is not None and target.is_completed


def _remove_states(environment: TableEnvironment, target: Instant, *, keeps_requested: bool = False) -> None:
    states = (State.INFLIGHT,) if keeps_requested else (State.INFLIGHT, State.REQUESTED)
    files = [Instant(target.requested_at, target.action, state) for state in states]
    remove_instant_files(environment.storage, environment.config, *files)


def _planned_files(plan: RollbackPlan) -> tuple[str, ...]:
    """Files of a plan relative to the table. Full paths can be spelled in many ways, unlike partition and name."""
    return tuple(
        join_path(request.partition, path.rpartition("/")[2])
        for request in plan.requests
        for path in request.files_to_delete
    )


def _plan(environment: TableEnvironment, target: Instant, files: tuple[str, ...]) -> RollbackPlan:
    requests = tuple(
        RollbackRequest(partition=path.rpartition("/")[0], files_to_delete=(_full_path(environment, path),))
        for path in files
    )
    return RollbackPlan(InstantInfo(target.requested_at.value, target.action.value), requests)


def _metadata(environment: TableEnvironment, begun: _Begun) -> RollbackMetadata:
    paths: dict[str, list[str]] = defaultdict(list)
    for path in begun.files:
        paths[path.rpartition("/")[0]].append(_full_path(environment, path))
    partitions = {p: RolledBackPartition(partition=p, succeeded=tuple(each)) for p, each in paths.items()}
    rollback, target = begun.rollback, begun.target
    return RollbackMetadata(
        started_at=rollback.requested_at.value,
        duration_ms=max(0, environment.runtime.clock.now_ms() - begun.started_ms),
        files_deleted=len(begun.files),
        commits=(target.requested_at.value,),
        partitions=partitions,
        instants=(InstantInfo(target.requested_at.value, begun.action.value),),
    )


def _full_path(environment: TableEnvironment, path: str) -> str:
    return hadoop_path(environment.storage.spec, path)
