"""The only place where an instant of the table becomes completed. A tidy rule guards it.

To complete an instant a process takes the lock, loads the timeline and decides whether it may; this differs between
actions. The rest is the same for all, and is `Publication`: take a completion time, update the metadata table, check
heartbeat and lease, publish, and check once more that the lock was held until then.

On a store without scopes, a process that lost the lock may change the metadata table after another process did. It
undoes its late change and ends with `FencedError`.

Why the final check: between the last check and the completed file a process may sleep for a long time. Its lease
expires, another writer takes the lock, finds the instant pending and rolls it back; then the sleeper publishes it.
Therefore the lease is checked again once the completed file is there. If it is still valid, nobody else can have held
the lock in between. If not, the lock is taken again, and the timeline shows what happened to the instant.

On a store without scopes a plan, or the beginning of its execution, can be published too late as well: after a rollback
or restore deleted files that it names. `confirm_pending` removes it again, unless somebody has begun to execute it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CommitOutcomeUnknownError, FencedError, LockNotAcquiredError, StorageError
from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.metadata_table.delta_commit import withdraw_late_update
from tablekeeper.metadata_table.index_changes import IndexChanges
from tablekeeper.metadata_table.update import MetadataPolicy, sync_clean, sync_commit, sync_rollback, take_back_update
from tablekeeper.model import Action, CommitMetadata, CompletionTime, Instant, RequestedTime, State
from tablekeeper.timeline import (
    Timeline,
    complete_instant,
    instant_path,
    load_instant_files,
    refuse_gone_instant,
    remove_instant_files,
)
from tablekeeper.timeline.history import find_archived
from tablekeeper.timeline.plans import find_rollback, load_rollback_target
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment, next_time

__all__ = [
    "CleanUpdate",
    "CommitUpdate",
    "MetadataUpdate",
    "Publication",
    "Published",
    "RollbackUpdate",
    "confirm_pending",
]


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitUpdate:
    """What a commit changes in the metadata table. `known_ranges` are those statistics of its files that are known.

    `properties` are those of the table, if they were already read under the lock.
    """

    policy: MetadataPolicy
    metadata: CommitMetadata
    changes: IndexChanges
    known_ranges: Mapping[str, Sequence[ColumnRange]] = field(default_factory=dict)
    properties: TableConfig | None = None


@dataclass(frozen=True, slots=True)
class RollbackUpdate:
    """Removes the `files` that `target` wrote, and what `target` itself wrote to the metadata table."""

    target: RequestedTime
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CleanUpdate:
    """Names of deleted files by partition, and partitions that no longer exist."""

    deleted: Mapping[str, Sequence[str]]
    removed_partitions: tuple[str, ...] = ()


MetadataUpdate = CommitUpdate | RollbackUpdate | CleanUpdate


@dataclass(frozen=True, slots=True)
class Published:
    """A completed instant. `holds_lock`: the lease is still valid, so that the caller may continue under it."""

    instant: Instant
    holds_lock: bool


class Publication:
    """Completes `inflight`. The caller holds the lock; `known` is the timeline that it loaded under the lock.

    `check` raises if another process may own the instant by now; it is called directly before the instant completes.
    """

    def __init__(
        self, held: LockedEnvironment, inflight: Instant, *, known: Timeline, check: Callable[[], None] = lambda: None
    ) -> None:
        self._held = held
        self._inflight = inflight
        self._known = known
        self._check = check
        self._updated_at = ""

    def update_metadata_table(self, update: MetadataUpdate) -> tuple[str, ...]:
        """Update the metadata table with what is about to complete. Returns notes for the caller."""
        self._updated_at = next_time(self._held, self._known)
        with self._taking_back_what_is_late():
            return _update(self._held, update, self._inflight.requested_at, CompletionTime(self._updated_at))

    def check(self) -> None:
        """Raise `FencedError` unless the instant and the lock are still ours."""
        with self._taking_back_what_is_late():
            self._refuse_if_over()

    def complete(self, content: bytes, *, gives_lock_back: bool = False) -> Published:
        """Publish the completed instant: from here on others see what it did. `gives_lock_back` also releases the lock.

        `FencedError` if another process completed it first or rolled it back; `CommitOutcomeUnknownError` if that
        cannot be determined.
        """
        held = self._held
        completed_at = CompletionTime(next_time(held, self._known, after=self._updated_at))
        with self._taking_back_what_is_late():
            held.runtime.threads.together(
                self._refuse_if_over, lambda: refuse_gone_instant(held.storage, held.config, self._inflight)
            )
            completed = complete_instant(
                held.storage,
                held.config,
                self._inflight,
                completed_at=completed_at,
                content=content,
                looks_first=False,
            )
        holds_lock = _confirm_completed(held, completed, known=self._known, gives_lock_back=gives_lock_back)
        return Published(completed, holds_lock)

    def _refuse_if_over(self) -> None:
        self._check()
        self._held.lease.check()

    @contextmanager
    def _taking_back_what_is_late(self) -> Iterator[None]:
        try:
            yield
        except FencedError:
            if self._updated_at and not self._held.storage.has_scopes:
                _take_late_update_back(self._held, self._inflight)
            raise


def confirm_pending(held: LockedEnvironment, published: Instant) -> None:
    """Check that the lock was held until `published`, a requested or inflight state, was there.

    If not, the state is removed unless another process built on it, and `FencedError` is raised.
    `CommitOutcomeUnknownError` if the lock cannot be taken for this.
    """
    if held.storage.has_scopes:
        return
    try:
        held.lease.look()
    except FencedError as doubt:
        held.lease.release()
        try:
            with held.unlocked.locked() as again:
                is_away = _take_away_alone(again, published)
        except (FencedError, LockNotAcquiredError, StorageError) as error:
            raise CommitOutcomeUnknownError(
                f"the lock was lost while {published} was being published, and what became of it is "
                f"unknown ({error}); reload the table to see whether it is there.",
                instant=published.requested_at.value,
            ) from doubt
        if is_away:
            raise FencedError(
                f"the lock was lost while {published} was being published; it was removed again. Reload the table."
            ) from doubt


def _update(
    held: LockedEnvironment, update: MetadataUpdate, requested_at: RequestedTime, completed_at: CompletionTime
) -> tuple[str, ...]:
    known = update.properties if isinstance(update, CommitUpdate) else None
    # Read under this lock: another writer may have built or dropped indexes since the action began.
    config = known or load_table_config(held.storage)
    if not config.metadata_partitions and not config.metadata_partitions_inflight:
        return ()
    match update:
        case CommitUpdate(policy, metadata, changes, known_ranges):
            return sync_commit(
                held,
                config,
                policy,
                metadata,
                known_ranges=known_ranges,
                changes=changes,
                requested_at=requested_at,
                completed_at=completed_at,
            )
        case RollbackUpdate(target, files):
            sync_rollback(
                held, config, target=target, deleted=files, requested_at=requested_at, completed_at=completed_at
            )
        case CleanUpdate(deleted, removed_partitions):
            sync_clean(
                held,
                config,
                deleted=deleted,
                removed_partitions=removed_partitions,
                requested_at=requested_at,
                completed_at=completed_at,
            )
    return ()


def _take_late_update_back(held: LockedEnvironment, inflight: Instant) -> None:
    """The lock was lost, and with it the right to change the metadata table: undo what was written since then."""
    try:
        held.lease.check()
    except (FencedError, StorageError):
        held.lease.release()
    else:
        return
    try:
        with held.unlocked.locked() as again:
            config = load_table_config(again.storage)
            if config.has_metadata_table:
                withdraw_late_update(
                    again.storage,
                    config,
                    target=inflight.requested_at,
                    is_completed=_is_completed(again, inflight),
                    runtime=again.runtime,
                )
    except (FencedError, LockNotAcquiredError, StorageError) as error:
        _LOG.warning("what %s wrote to the metadata table too late could not be taken back: %s", inflight, error)


def _is_completed(environment: TableEnvironment, instant: Instant) -> bool:
    timeline = environment.load_timeline()
    found = timeline.find(instant.requested_at)
    if found is not None:
        return found.is_completed
    return find_archived(environment.storage, environment.config, instant) is not None


def _confirm_completed(
    held: LockedEnvironment, completed: Instant, *, known: Timeline, gives_lock_back: bool = False
) -> bool:
    """Confirm that `completed`, just published under the lock, is valid. Returns whether the lock is still held.

    With `gives_lock_back` one call of the store does both, and the lock is released. `known` is the timeline that was
    loaded under the lock. If another process rolled the instant back or completed it in the meantime, our completed
    file is removed and `FencedError` is raised; `CommitOutcomeUnknownError` if the lock cannot be taken to find out.
    """
    try:
        if gives_lock_back:
            held.lease.end()
        else:
            held.lease.check()
    except (FencedError, StorageError) as doubt:
        held.lease.release()
        _decide(held.unlocked, completed, known, doubt)
        return False
    return not gives_lock_back


def _decide(environment: TableEnvironment, completed: Instant, known: Timeline, doubt: Exception) -> None:
    try:
        with environment.locked() as held:
            if _stands(held, completed, known):
                return
            held.lease.check()
            remove_instant_files(held.storage, held.config, completed)
            if completed.action.writes_data and not _own_files(held, completed):
                take_back_update(held, completed.requested_at)
    except (FencedError, LockNotAcquiredError, StorageError) as error:
        raise CommitOutcomeUnknownError(
            f"the lock was lost while {completed} was being completed, and what became of it is unknown "
            f"({error}); reload the table to see whether it is completed.",
            instant=completed.requested_at.value,
        ) from doubt
    raise FencedError(
        f"instant {completed} was rolled back or completed by another process while this one did not answer. Nothing "
        "of it remains; reload the table and write again."
    ) from doubt


def _stands(environment: TableEnvironment, completed: Instant, known: Timeline) -> bool:
    """Whether nobody has rolled the instant back or completed it too. The caller holds the lock."""
    storage, config = environment.storage, environment.config
    mine = _own_files(environment, completed)
    own_path = instant_path(config, completed)
    paths = {instant_path(config, i) for i in mine if i.is_completed}
    if own_path not in paths or not any(i.state is State.INFLIGHT for i in mine):
        # An archive takes the earlier states first, after the archived timeline has the instant.
        archived = find_archived(storage, config, completed)
        return archived is not None and archived.instant.completed_at == completed.completed_at
    if len(paths) > 1:
        return False
    timeline = environment.load_timeline()
    if find_rollback(environment.storage, environment.config, timeline, completed) is not None:
        return False
    before = {i.requested_at for i in known}
    return not any(
        load_rollback_target(storage, config, rollback) == completed.requested_at
        for rollback in timeline.completed
        if rollback.action is Action.ROLLBACK and rollback.requested_at not in before
    )


def _take_away_alone(held: LockedEnvironment, published: Instant) -> bool:
    """Remove a plan that nobody has begun to execute, or an inflight state whose plan is gone."""
    others = {i.state for i in _own_files(held, published)} - {published.state}
    if published.state is State.REQUESTED and not others:
        is_alone = not held.load_heartbeats().is_active(published.requested_at)
    else:
        is_alone = published.state is State.INFLIGHT and not others
    if is_alone:
        held.lease.check()
        remove_instant_files(held.storage, held.config, published)
    return is_alone


def _own_files(environment: TableEnvironment, target: Instant) -> list[Instant]:
    files = load_instant_files(environment.storage, environment.config)
    same = [i for i in files if i.requested_at == target.requested_at]
    return [i for i in same if i.action.completed_as is target.action.completed_as]
