"""The one door through which a write begins and becomes visible.

A write is begun (requested, inflight, heartbeat), does its work without any lock, and is committed: under the
lock the timeline is loaded again, conflicts are looked for, the heartbeat, the inflight file and the lease are
checked, the metadata table is brought up to date, and the completed instant is published. Whatever fails before
that last step leaves the table as it was; what is left behind is rolled back, here or by the next writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tablekeeper.errors import ConflictError, FencedError, StorageError
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.model import Action, CommitMetadata, CompletionTime, Instant, Operation, RequestedTime
from tablekeeper.timeline import Timeline, complete_instant, create_requested, load_timeline, start_inflight
from tablekeeper.txn.candidates import find_rollback
from tablekeeper.txn.conflict import OwnWrite, WriteKind
from tablekeeper.txn.environment import TableEnvironment, next_time
from tablekeeper.txn.heartbeat import Heartbeat, start_heartbeat
from tablekeeper.txn.locks import Lease
from tablekeeper.txn.markers import delete_markers
from tablekeeper.txn.rivals import NothingUnseen, Rivals, Unseen

_LOG = logging.getLogger(__name__)
_UNLOCKED_ROUNDS = 3

__all__ = ["Committed", "OpenWrite", "begin_write", "commit_write"]


@dataclass(frozen=True)
class OpenWrite:
    """A write that has begun. `at_start` is the timeline on which it began, without itself."""

    inflight: Instant
    operation: Operation
    at_start: Timeline
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class Committed:
    """A write that readers see. `lock_held_s` is how long the commit kept others out."""

    instant: Instant
    lock_held_s: float


def begin_write(environment: TableEnvironment, *, action: Action, operation: Operation, plan: bytes = b"") -> OpenWrite:
    """Put a new write on the timeline."""
    with environment.locked() as lease:
        timeline = load_timeline(environment.storage, environment.config)
        requested_at = RequestedTime(next_time(environment, timeline))
        _refuse_during_restore(environment, timeline, requested_at)
        lease.check()
        # The heartbeat comes first: a pending instant without one is taken for dead.
        heartbeat = start_heartbeat(
            environment.storage,
            requested_at,
            settings=environment.heartbeat_settings,
            runtime=environment.runtime,
        )
        try:
            requested = create_requested(
                environment.storage, environment.config, requested_at=requested_at, action=action, content=plan
            )
            inflight = start_inflight(environment.storage, environment.config, requested)
        except BaseException:
            heartbeat.stop()
            raise
    return OpenWrite(inflight, operation, timeline, heartbeat)


def commit_write(
    environment: TableEnvironment,
    write: OpenWrite,
    metadata: CommitMetadata,
    *,
    before_publish: Callable[[CompletionTime], None],
    unseen: Unseen | None = None,
    settle: Callable[[CommitMetadata, Timeline], CommitMetadata] = lambda metadata, _: metadata,
) -> Committed:
    """Make the write visible, or raise and leave it pending.

    `before_publish` runs under the lock with a completion time that is earlier than this write's own; it is where
    the metadata table is written. `settle` gives the metadata to publish on the timeline just loaded: the last word
    on what depends on other commits. Files of others that `unseen` wants to look into are looked into without the lock,
    except for those that came in while it was doing so the last time.
    """
    own = OwnWrite(
        instant=write.inflight.requested_at,
        kind=WriteKind.INGESTION,
        file_groups=metadata.file_groups,
        pending_at_start=frozenset(i.requested_at for i in write.at_start.pending),
    )
    rivals = Rivals(environment, own, unseen or NothingUnseen())
    for rounds_left in reversed(range(_UNLOCKED_ROUNDS + 1)):
        with environment.locked() as lease:
            timeline = load_timeline(environment.storage, environment.config)
            _refuse_to_go_on(environment, write, timeline)
            news = rivals.refuse_conflict(timeline)
            if not news or not rounds_left:
                rivals.refuse_unseen(news)
                settled = settle(metadata, timeline)
                instant = _publish(environment, write, settled, timeline, lease=lease, before_publish=before_publish)
                break
        rivals.refuse_unseen(news)
    write.heartbeat.stop()
    _discard_markers(environment, write)
    return Committed(instant, lease.held_s)


def _publish(
    environment: TableEnvironment,
    write: OpenWrite,
    metadata: CommitMetadata,
    timeline: Timeline,
    *,
    lease: Lease,
    before_publish: Callable[[CompletionTime], None],
) -> Instant:
    first = next_time(environment, timeline)
    before_publish(CompletionTime(first))
    completed_at = CompletionTime(next_time(environment, timeline, after=first))
    write.heartbeat.check()
    lease.check()
    return complete_instant(
        environment.storage,
        environment.config,
        write.inflight,
        completed_at=completed_at,
        content=encode_commit_metadata(metadata),
    )


def _refuse_to_go_on(environment: TableEnvironment, write: OpenWrite, timeline: Timeline) -> None:
    """Raise if the write is no longer this process's to commit, or the table is being restored."""
    mine = timeline.find(write.inflight.requested_at)
    if mine is None or mine.is_completed or find_rollback(environment, timeline, write.inflight):
        raise FencedError(
            f"instant {write.inflight} is no longer pending: another process rolled it back. "
            "Nothing was committed; write again."
        )
    write.heartbeat.check()
    _refuse_during_restore(environment, timeline, write.inflight.requested_at)


def _refuse_during_restore(environment: TableEnvironment, timeline: Timeline, instant: RequestedTime) -> None:
    """While instants are being rolled back one by one, a write would stand on rows that are about to go."""
    restores = [i for i in timeline.pending if i.action is Action.RESTORE]
    if restores:
        raise ConflictError(
            f"table {environment.config.name} is being restored to a savepoint ({restores[0]}). Nothing was committed: "
            "write again when the restore has finished. If its process died, `tablekeeper doctor --fix` finishes it.",
            instant=instant.value,
            beaten_by=restores[0].requested_at.value,
            file_groups=(),
        )


def _discard_markers(environment: TableEnvironment, write: OpenWrite) -> None:
    """The commit has landed: markers that cannot be deleted now are litter, not a failure."""
    try:
        delete_markers(environment.storage, instant=write.inflight.requested_at.value)
    except StorageError as error:
        _LOG.warning("instant %s: its markers were left behind: %s", write.inflight.requested_at, error)
