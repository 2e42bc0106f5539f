"""Rollback of an instant that did not complete: its files are deleted and it leaves the timeline.

The steps are Java's: a rollback plan is requested, goes inflight, the data files are deleted, the rollback
completes, and last the target's instant files, markers and heartbeat go. Every step can be repeated: a rollback
that died half way is found by its plan and carried on, and one whose target completed meanwhile is not begun.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from tablekeeper.errors import CommitOutcomeUnknownError
from tablekeeper.format.plans import (
    InstantInfo,
    RollbackMetadata,
    RollbackPlan,
    RollbackRequest,
    RolledBackPartition,
    encode_rollback_metadata,
    encode_rollback_plan,
)
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.storage import hadoop_path
from tablekeeper.timeline import (
    Timeline,
    complete_instant,
    create_requested,
    load_timeline,
    remove_instant_files,
    start_inflight,
)
from tablekeeper.txn.candidates import find_rollback
from tablekeeper.txn.commit import OpenWrite
from tablekeeper.txn.environment import TableEnvironment, next_time
from tablekeeper.txn.heartbeat import delete_heartbeat, load_heartbeats
from tablekeeper.txn.markers import Marker, delete_markers, load_markers

__all__ = ["BeforeRollback", "RolledBack", "failed_writes", "rollback_instant", "withdraw_write"]

_LOG = logging.getLogger(__name__)
_INGESTION = frozenset({Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT})


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An instant that was rolled back by the action `rollback`, and the data files that went with it."""

    instant: Instant
    rollback: Instant
    files: tuple[str, ...]


BeforeRollback = Callable[[RolledBack, CompletionTime], None]
"""Runs under the lock before a rollback completes: where the metadata table is brought up to date."""


def failed_writes(environment: TableEnvironment, timeline: Timeline) -> list[Instant]:
    """Pending writes whose writer shows no sign of life. Table services are not among them."""
    pending = [i for i in timeline.pending if i.action in _INGESTION]
    if not pending:
        return []
    heartbeats = load_heartbeats(
        environment.storage, settings=environment.heartbeat_settings, runtime=environment.runtime
    )
    return [i for i in pending if not heartbeats.is_active(i.requested_at)]


def withdraw_write(
    environment: TableEnvironment, write: OpenWrite, cause: BaseException, *, before_publish: BeforeRollback
) -> None:
    """Give up a write of our own after `cause`. One that announced no files leaves without a trace.

    A write whose outcome is unknown is left alone: its last request may still land. Its heartbeat is not
    renewed, and once it has lapsed the next writer finds the instant either completed or to be rolled back.
    """
    if isinstance(cause, CommitOutcomeUnknownError):
        write.heartbeat.abandon()
        return
    if load_markers(environment.storage, instant=write.inflight.requested_at.value):
        rollback_instant(environment, write.inflight, before_publish=before_publish)
    else:
        with environment.locked():
            timeline = load_timeline(environment.storage, environment.config)
            if _is_pending(timeline, write.inflight):
                _remove_target(environment, write.inflight)
    write.heartbeat.stop()


def rollback_instant(
    environment: TableEnvironment, target: Instant, *, before_publish: BeforeRollback
) -> RolledBack | None:
    """Delete the files that the target's markers name, then the target. None if it is not pending any more."""
    storage, config = environment.storage, environment.config
    with environment.locked():
        timeline = load_timeline(storage, config)
        if not _is_pending(timeline, target):
            _LOG.info("instant %s is not pending any more: nothing to roll back", target)
            return None
        markers = load_markers(storage, instant=target.requested_at.value)
        rollback = find_rollback(environment, timeline, target)
        if rollback is None:
            rollback = create_requested(
                storage,
                config,
                requested_at=RequestedTime(next_time(environment, timeline)),
                action=Action.ROLLBACK,
                content=encode_rollback_plan(_plan(environment, target, markers)),
            )
        if rollback.state is State.REQUESTED:
            rollback = start_inflight(storage, config, rollback)
    started_ms = environment.runtime.clock.now_ms()
    storage.delete_many(marker.path for marker in markers)
    outcome = RolledBack(target, rollback, tuple(marker.path for marker in markers))
    with environment.locked() as lease:
        timeline = load_timeline(storage, config)
        mine = timeline.find(rollback.requested_at)
        if mine is not None and mine.is_pending:
            first = next_time(environment, timeline)
            before_publish(outcome, CompletionTime(first))
            duration_ms = environment.runtime.clock.now_ms() - started_ms
            lease.check()
            complete_instant(
                storage,
                config,
                rollback,
                completed_at=CompletionTime(next_time(environment, timeline, after=first)),
                content=encode_rollback_metadata(_metadata(environment, rollback, duration_ms, target, markers)),
            )
        _remove_target(environment, target)
    return outcome


def _is_pending(timeline: Timeline, target: Instant) -> bool:
    found = timeline.find(target.requested_at)
    return found is not None and found.is_pending


def _remove_target(environment: TableEnvironment, target: Instant) -> None:
    """Latest state first: at no moment does an earlier state stand there as if work were still to come."""
    files = [Instant(target.requested_at, target.action, state) for state in (State.INFLIGHT, State.REQUESTED)]
    remove_instant_files(environment.storage, environment.config, *files)
    delete_markers(environment.storage, instant=target.requested_at.value)
    delete_heartbeat(environment.storage, target.requested_at)


def _plan(environment: TableEnvironment, target: Instant, markers: list[Marker]) -> RollbackPlan:
    requests = tuple(
        RollbackRequest(partition=marker.partition, files_to_delete=(_full_path(environment, marker),))
        for marker in markers
    )
    return RollbackPlan(InstantInfo(target.requested_at.value, target.action.value), requests)


def _metadata(
    environment: TableEnvironment, rollback: Instant, duration_ms: int, target: Instant, markers: list[Marker]
) -> RollbackMetadata:
    files: dict[str, list[str]] = defaultdict(list)
    for marker in markers:
        files[marker.partition].append(_full_path(environment, marker))
    partitions = {p: RolledBackPartition(partition=p, succeeded=tuple(paths)) for p, paths in files.items()}
    return RollbackMetadata(
        started_at=rollback.requested_at.value,
        duration_ms=duration_ms,
        files_deleted=len(markers),
        commits=(target.requested_at.value,),
        partitions=partitions,
        instants=(InstantInfo(target.requested_at.value, target.action.value),),
    )


def _full_path(environment: TableEnvironment, marker: Marker) -> str:
    return hadoop_path(environment.storage.spec, marker.path)
