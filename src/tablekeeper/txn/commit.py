"""How a write begins, and how it becomes visible.

A write begins (requested, inflight, heartbeat), does its work without a lock, and commits: under the lock the timeline
is loaded again, conflicts are detected, the heartbeat, the inflight file and the lease are checked, the metadata table
is updated, and the completed instant is published. A failure before that last step leaves the table unchanged; leftover
files are rolled back, here or by the next writer.

A table service commits in the same way. If its plan is cancellable, it yields to every ingestion, also to one that is
still running: it commits only when all of these have announced their file groups, which they do when they go inflight,
and waits for that without the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from tablekeeper.errors import ConflictError, FencedError, LockNotAcquiredError, StorageError
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.metadata_table.index_changes import IndexChanges
from tablekeeper.metadata_table.update import MetadataPolicy
from tablekeeper.model import (
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Instant,
    Operation,
    RequestedTime,
    State,
    WriteStat,
)
from tablekeeper.timeline import (
    Timeline,
    create_requested,
    load_newest_time,
    load_timeline_beside,
    remove_instant_files,
    start_inflight,
)
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.plans import find_rollback
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.attempts import AttemptId, begin_attempt, fence_attempts
from tablekeeper.txn.concurrent_commits import ConflictCheck, NoPhantoms, Phantoms, load_touched
from tablekeeper.txn.conflict import OwnWrite, WriteKind
from tablekeeper.txn.environment import TableEnvironment, time_after
from tablekeeper.txn.heartbeat import Heartbeat
from tablekeeper.txn.late_files import sweep_late_files
from tablekeeper.txn.markers import Marker, delete_markers, load_markers
from tablekeeper.txn.publish import CommitUpdate, Publication

_LOG = logging.getLogger(__name__)
_UNLOCKED_ROUNDS = 3
_LONGEST_WAIT_S = 30.0
_PAUSE_S = 0.2

__all__ = ["Committed", "OpenWrite", "announce_write", "begin_write", "commit_write", "refuse_during_restore"]


@dataclass(frozen=True)
class OpenWrite:
    """A write that has begun. `at_start` is the timeline when it began, without itself.

    For the plan of a table service that is the timeline when its execution began; conflicts count from when it was
    scheduled. `planned_beside` are the writes that were pending then, if the plan records them.
    """

    inflight: Instant
    operation: Operation
    at_start: Timeline
    heartbeat: Heartbeat
    attempt: AttemptId
    kind: WriteKind = WriteKind.INGESTION
    is_cancellable: bool = False
    planned_beside: frozenset[RequestedTime] = frozenset()


@dataclass(frozen=True, slots=True)
class Committed:
    """A visible write. `lock_held_s` is how long the commit held the lock; `notes` are for the caller."""

    instant: Instant
    lock_held_s: float
    notes: tuple[str, ...] = ()


def begin_write(
    environment: TableEnvironment,
    *,
    action: Action,
    operation: Operation,
    plan: bytes = b"",
    announces: bool = False,
) -> OpenWrite:
    """Put a new write on the timeline, and load the timeline without the lock: the one load before the write.

    A write that `announces` stays requested until `announce_write` names the file groups that it touches; it must not
    write data before. Other writes go inflight at once.
    """
    config, threads = environment.config, environment.runtime.threads
    with environment.locked() as held:
        newest, _ = threads.together(lambda: load_newest_time(held.storage, config), held.lease.check)
        requested_at = RequestedTime(time_after(held, newest))
        # The heartbeat comes first: a pending instant without one counts as dead.
        attempt, heartbeat = begin_attempt(held, requested_at)
        requested = Instant(requested_at, action, State.REQUESTED)
        inflight = Instant(requested_at, action, State.INFLIGHT)
        try:
            create_requested(held.storage, config, requested_at=requested_at, action=action, content=plan)
            if not announces:
                start_inflight(held.storage, config, requested)
        except BaseException:
            heartbeat.stop()
            with suppress(StorageError):
                fence_attempts(held.storage, requested_at)
            raise
        unlocked = held.unlocked
        try:
            # Once the write is on the timeline: a write that is not on this timeline begins after ours.
            # Others may hold the lock by then.
            _, timeline = threads.together(held.lease.release, unlocked.load_timeline)
            refuse_during_restore(unlocked, timeline, requested_at)
        except BaseException:
            # A failing store must not hide the cause; the next writer rolls back the rest.
            with suppress(StorageError):
                remove_instant_files(unlocked.storage, config, inflight, requested)
            heartbeat.stop()
            with suppress(StorageError):
                fence_attempts(unlocked.storage, requested_at)
            raise
    return OpenWrite(inflight, operation, timeline.without(requested_at), heartbeat, attempt)


def announce_write(environment: TableEnvironment, write: OpenWrite, file_groups: Iterable[FileGroupId]) -> None:
    """Go inflight and announce the file groups of the write, as Java does, for plans that yield.

    Raises `ConflictError` if a clustering that takes no updates was planned on one of them before the write began: the
    commit would fail, and all the work before it would be wasted.
    """
    groups = frozenset(file_groups)
    own = OwnWrite(write.inflight.requested_at, WriteKind.INGESTION, groups)
    clusterings = Timeline(tuple(i for i in write.at_start.pending if i.action is Action.CLUSTERING))
    ConflictCheck(environment, own, NoPhantoms()).refuse_conflict(clusterings)
    stats = tuple(WriteStat(group=group, path="", size=0) for group in sorted(groups))
    content = encode_commit_metadata(CommitMetadata(write.operation, stats))
    requested = Instant(write.inflight.requested_at, write.inflight.action, State.REQUESTED)
    write.heartbeat.check()
    start_inflight(environment.storage, environment.config, requested, content=content)


def commit_write(
    environment: TableEnvironment,
    write: OpenWrite,
    metadata: CommitMetadata,
    *,
    policy: MetadataPolicy,
    known_ranges: Mapping[str, Sequence[ColumnRange]],
    changes: IndexChanges,
    phantoms: Phantoms | None = None,
    settle: Callable[[CommitMetadata, Timeline], CommitMetadata] = lambda metadata, _: metadata,
    refuse: Callable[[Timeline], None] = lambda _: None,
    may_repeat_tasks: bool = True,
    tidy: Callable[[], None] = lambda: None,
) -> Committed:
    """Make the write visible, or raise and leave it pending.

    `policy`, `known_ranges` and `changes` are for the metadata table. `settle` returns the metadata to publish on the
    timeline just loaded, since parts of it may depend on other commits. `refuse` is called under the lock with that
    timeline, and raises if the write is no longer wanted. Files of other commits that may hold `phantoms` are read
    without the lock, except for those that are new in the last round. Without `may_repeat_tasks` no task of the write
    is still running. `tidy` is called once the write is visible.
    """
    check: ConflictCheck | None = None
    announcements = _Announcements(environment, write)
    rounds_left = _UNLOCKED_ROUNDS
    while True:
        with environment.locked() as held:
            (timeline, _), properties = held.runtime.threads.together(
                partial(_load_fit_timeline, held, write, refuse), partial(load_table_config, held.storage)
            )
            others = _with_archived(held, write, timeline)
            check = check or ConflictCheck(
                held.unlocked,
                _own_write(write, metadata, others),
                phantoms or NoPhantoms(),
                only_adds_logs=metadata.only_adds_logs,
            )
            news = check.refuse_conflict(others)
            missing = announcements.missing(timeline)
            if not missing and (not news or not rounds_left):
                check.refuse_phantoms(news)
                settled = settle(metadata, timeline)
                publication = Publication(held, write.inflight, known=timeline, check=write.heartbeat.check)
                update = CommitUpdate(policy, settled, changes, known_ranges, properties)
                notes = publication.update_metadata_table(update)
                content = encode_commit_metadata(settled)
                instant = publication.complete(content, gives_lock_back=True).instant
                break
        rounds_left = max(0, rounds_left - 1)
        check.refuse_phantoms(news)
        announcements.wait(missing)
    is_sole = write.kind is WriteKind.INGESTION and not may_repeat_tasks
    _tidy_up(environment, write, metadata, may_be_late=not is_sole, tidy=tidy)
    return Committed(instant, held.lease.held_s, notes)


def _load_fit_timeline(
    held: TableEnvironment, write: OpenWrite, refuse: Callable[[Timeline], None]
) -> tuple[Timeline, None]:
    """The timeline, if the write may still be completed on it."""

    def look(timeline: Timeline) -> None:
        _refuse_to_go_on(held, write, timeline)
        refuse(timeline)

    return load_timeline_beside(held.storage, held.config, look, runtime=held.runtime)


def _with_archived(environment: TableEnvironment, write: OpenWrite, timeline: Timeline) -> Timeline:
    """The timeline, with concurrent writes that completed and were archived while this one was running.

    Our archive keeps them; Java's only compares requested times, by which they are older than the pending instants.
    """
    beside = write.planned_beside | {i.requested_at for i in write.at_start.pending if i.action.writes_data}
    gone = [time for time in beside if timeline.is_archived(time) and timeline.find(time) is None]
    if not gone:
        return timeline
    found = load_history(environment.storage, environment.config, first=min(gone), last=max(gone), with_contents=False)
    archived = (each.instant for each in found if each.instant.requested_at in gone and each.instant.action.writes_data)
    return replace(timeline, instants=(*archived, *timeline.instants))


def _own_write(write: OpenWrite, metadata: CommitMetadata, timeline: Timeline) -> OwnWrite:
    requested_at = write.inflight.requested_at
    if write.kind is WriteKind.INGESTION:
        # A savepoint has the time of the commit that it protects, which was there before.
        pending_at_start = frozenset(i.requested_at for i in write.at_start.pending if i.action.writes_data)
    else:
        # Those that were pending when the plan was scheduled, perhaps long before its execution. A completion time
        # is compared with a requested time here: both come from one increasing clock.
        scheduled_at = CompletionTime(requested_at.value)
        pending_at_start = frozenset(
            i.requested_at
            for i in timeline
            if i.action.writes_data
            and i.requested_at < requested_at
            and (i.completed_at is None or i.completed_at > scheduled_at)
        )
    return OwnWrite(
        instant=requested_at,
        kind=write.kind,
        file_groups=metadata.file_groups,
        pending_at_start=pending_at_start,
        is_cancellable=write.is_cancellable,
    )


class _Announcements:
    """Announcements of file groups by running ingestion, for which a cancellable plan waits a limited time."""

    def __init__(self, environment: TableEnvironment, write: OpenWrite) -> None:
        self._environment = environment
        self._write = write
        self._clock = environment.runtime.clock
        self._since_s = self._clock.monotonic_s()

    def missing(self, timeline: Timeline) -> list[Instant]:
        """Live ingestion that is still requested, or is a replace commit without named file groups."""
        if not self._write.is_cancellable:
            return []
        environment = self._environment
        silent = [i for i in timeline.pending_ingestion if self._is_silent(i)]
        if not silent:
            return []
        heartbeats = environment.load_heartbeats()
        return [i for i in silent if heartbeats.is_active(i.requested_at)]

    def _is_silent(self, ingestion: Instant) -> bool:
        if ingestion.state is State.REQUESTED:
            return True
        return ingestion.action is Action.REPLACE_COMMIT and not load_touched(self._environment, ingestion).file_groups

    def wait(self, missing: list[Instant]) -> None:
        """Wait a moment; `ConflictError` if this has taken too long."""
        if not missing:
            return
        if self._clock.monotonic_s() - self._since_s > _LONGEST_WAIT_S:
            first = missing[0]
            raise ConflictError(
                f"plan {self._write.inflight.requested_at} of table {self._environment.config.name} is cancellable, "
                f"and {first} has not said for {_LONGEST_WAIT_S:.0f} s which file groups it touches: the plan "
                "yields. Nothing was committed; schedule a new one.",
                instant=self._write.inflight.requested_at.value,
                beaten_by=first.requested_at.value,
                file_groups=(),
            )
        self._clock.sleep(_PAUSE_S)


def _refuse_to_go_on(environment: TableEnvironment, write: OpenWrite, timeline: Timeline) -> None:
    """Raise if the write is no longer this process's to commit, or the table is being restored."""
    mine = timeline.find(write.inflight.requested_at)
    if (
        mine is None
        or mine.is_completed
        or (timeline.pending_rollbacks and find_rollback(environment.storage, environment.config, timeline, mine))
    ):
        raise FencedError(
            f"instant {write.inflight} is no longer pending: another process rolled it back. "
            "Nothing was committed; write again."
        )
    write.heartbeat.check()
    refuse_during_restore(environment, timeline, write.inflight.requested_at)


def refuse_during_restore(
    environment: TableEnvironment, timeline: Timeline, instant: RequestedTime | None = None
) -> None:
    """Raise `ConflictError` if a restore is pending: it is about to roll back what readers see now.

    `instant` is that of the refused action, if it has one.
    """
    restore = next((i for i in timeline.pending if i.action is Action.RESTORE), None)
    if restore is not None:
        raise ConflictError(
            f"table {environment.config.name} is being restored to a savepoint ({restore}). Nothing was changed: try "
            "again when the restore has finished. If its process died, `tablekeeper doctor --fix` finishes it.",
            instant=instant.value if instant is not None else "",
            beaten_by=restore.requested_at.value,
            file_groups=(),
        )


def _tidy_up(
    environment: TableEnvironment,
    write: OpenWrite,
    metadata: CommitMetadata,
    *,
    may_be_late: bool,
    tidy: Callable[[], None],
) -> None:
    """Clean up after the commit: what cannot be deleted now is litter, not a failure.

    `may_be_late`: a repeated task or another attempt may still write files.
    """

    def stop() -> None:
        write.heartbeat.stop(is_completed=True)
        if may_be_late:
            # The heartbeat has ended: a task whose file is not there yet finds that out, unless it dies.
            _discard_markers(environment, write, unless_more_than=metadata)

    def discard() -> None:
        if not may_be_late:
            _discard_markers(environment, write)

    environment.runtime.threads.map(lambda step: step(), [stop, discard, tidy])
    try:
        # Last: the heartbeat was removed through a scope of the attempt.
        fence_attempts(environment.storage, write.inflight.requested_at)
    except (FencedError, StorageError) as error:
        _LOG.warning("instant %s: its scopes were left behind: %s", write.inflight.requested_at, error)


def _discard_markers(
    environment: TableEnvironment, write: OpenWrite, *, unless_more_than: CommitMetadata | None = None
) -> None:
    """Delete the markers. If they name files that `unless_more_than` does not, sweep those files first."""
    storage, instant = environment.storage, write.inflight.requested_at.value
    looks = unless_more_than is not None and not storage.has_scopes
    try:
        if looks and _names_more(load_markers(storage, instant=instant), unless_more_than):
            sweep_late_files(environment, instants=(instant,))
        else:
            delete_markers(storage, instant=instant)
    except (FencedError, LockNotAcquiredError, StorageError) as error:
        _LOG.warning("instant %s: its markers were left behind: %s", write.inflight.requested_at, error)


def _names_more(markers: Iterable[Marker], metadata: CommitMetadata | None) -> bool:
    """Whether there are markers of files that the commit does not name."""
    named = {stat.path for stat in metadata.stats} if metadata is not None else set()
    return not {marker.path for marker in markers} <= named
