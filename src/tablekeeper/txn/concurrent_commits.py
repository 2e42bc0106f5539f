"""What others committed while a write was running, and whether it conflicts: RFC-71 on real metadata.

This module loads what an instant touches, from its metadata or plan; `conflict.py` compares it.

File groups alone are not enough. Two writers that insert the same new key put it into different file groups, and an
overwrite of a partition does not know the groups that were added to it in the meantime: if both committed, the table
would be in a state that no order of the two can produce. So a write may say what it should have seen (`Phantoms`), and
a commit that added such rows is a conflict too. Reading files takes time, and the commit does it without the lock.

In the non-blocking mode a write that only adds log files to shared file groups does not conflict with other ingestion
or with compaction: readers and compactions order its log files by its completion time. It does conflict with groups
that were replaced or clustered, and with another file group for the same bucket.

The metadata of a commit is read once for each write, however often the lock has to be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tablekeeper.errors import ConflictError, NotFoundError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.model import CommitMetadata, FileGroupId, Instant, Operation, RequestedTime, State
from tablekeeper.timeline import Timeline, instant_path, load_commit_metadata, load_content
from tablekeeper.timeline.plans import load_pending_outline
from tablekeeper.txn.conflict import OwnWrite, Touched, WriteKind, find_conflict, pending_kind, select_candidates
from tablekeeper.txn.environment import TableEnvironment

__all__ = [
    "ConflictCheck",
    "NoPhantoms",
    "Phantoms",
    "conflict_error",
    "load_inflight",
    "load_planned_groups",
    "load_touched",
]

_SHOWN_GROUPS = 3
# Services that leave rows where a log file with a later completion time finds them.
_COMPACTIONS = frozenset({WriteKind.COMPACTION, WriteKind.LOG_COMPACTION})


def load_touched(environment: TableEnvironment, instant: Instant) -> Touched:
    """File groups that the instant wrote, replaced or plans to rewrite."""
    storage, config = environment.storage, environment.config
    if instant.is_completed:
        return _touched_by_commit(load_commit_metadata(storage, config, instant))
    if instant.action.is_plan:
        groups = load_pending_outline(storage, config, instant, with_groups=True).file_groups
        return Touched(groups, WriteKind.of(instant.action.service))
    return Touched(load_inflight(environment, instant).file_groups, WriteKind.INGESTION)


def load_inflight(environment: TableEnvironment, instant: Instant) -> CommitMetadata:
    """What a pending write has announced that it touches: nothing as long as it is requested."""
    file = instant_path(environment.config, instant)
    try:
        content = load_content(environment.storage, environment.config, instant)
    except NotFoundError:
        return CommitMetadata(Operation.UNKNOWN)
    if instant.state is State.REQUESTED:
        return CommitMetadata(Operation.UNKNOWN)
    return decode_commit_metadata(content, file=file)


def load_planned_groups(
    environment: TableEnvironment, timeline: Timeline, *, with_cancellable: bool = True
) -> frozenset[FileGroupId]:
    """File groups that pending plans of table services are about to rewrite."""
    load = partial(load_pending_outline, environment.storage, environment.config, with_groups=True)
    plans = (load(instant) for instant in timeline.pending_plans)
    counting = (plan for plan in plans if with_cancellable or not plan.flags.cancellable)
    return frozenset(group for plan in counting for group in plan.file_groups)


class Phantoms(Protocol):
    """Rows or file groups that the write should have seen when it began."""

    def concerns(self, other: CommitMetadata) -> bool:
        """False if the other commit cannot contain phantoms. Does no I/O."""
        ...

    def find(self, other: CommitMetadata) -> Sequence[FileGroupId]:
        """File groups in which the other commit added phantoms."""
        ...


class NoPhantoms:
    """For writes that do not depend on existing rows."""

    def concerns(self, other: CommitMetadata) -> bool:
        return False

    def find(self, other: CommitMetadata) -> Sequence[FileGroupId]:
        return ()


class ConflictCheck:
    """Checks one write against the others. `only_adds_logs`: it wrote only log files and replaces nothing."""

    def __init__(
        self, environment: TableEnvironment, own: OwnWrite, phantoms: Phantoms, *, only_adds_logs: bool = False
    ) -> None:
        self._environment = environment
        self._own = own
        self._phantoms = phantoms
        is_ingestion = own.kind is WriteKind.INGESTION
        self._shares_groups = environment.concurrency.is_non_blocking and is_ingestion and only_adds_logs
        self._metadata: dict[RequestedTime, CommitMetadata] = {}
        self._cleared: set[RequestedTime] = set()

    def refuse_conflict(self, timeline: Timeline) -> list[Instant]:
        """Raise `ConflictError` if somebody else touched one of the file groups.

        Returns the commits whose files still have to be searched for phantoms.
        """
        environment = self._environment
        completed = self._completed(timeline)
        self._load(completed)
        conflict = find_conflict(
            self._own,
            timeline=timeline.instants,
            settings=environment.conflict_settings,
            touched_by=self._touched,
            is_cancellable=self._is_cancellable,
            by_bucket=environment.by_bucket,
        )
        if conflict is not None:
            raise self._error(conflict.instant, conflict.file_groups, "which touches the same file groups")
        return [
            instant
            for instant in completed
            if instant.requested_at not in self._cleared
            and self._touched(instant).kind is WriteKind.INGESTION
            and self._phantoms.concerns(self._metadata[instant.requested_at])
        ]

    def refuse_phantoms(self, instants: Sequence[Instant]) -> None:
        """Search these commits. Raises `ConflictError` if one of them added what this write should have seen."""
        for instant in instants:
            groups = tuple(self._phantoms.find(self._metadata[instant.requested_at]))
            if groups:
                raise self._error(instant, groups, "which wrote the same keys or partitions into other file groups")
            self._cleared.add(instant.requested_at)

    def _completed(self, timeline: Timeline) -> tuple[Instant, ...]:
        settings = self._environment.conflict_settings
        return select_candidates(
            self._own, timeline=timeline.completed, settings=settings, is_cancellable=lambda _: False
        ).completed

    def _load(self, instants: Sequence[Instant]) -> None:
        environment = self._environment
        missing = [instant for instant in instants if instant.requested_at not in self._metadata]
        load = partial(load_commit_metadata, environment.storage, environment.config)
        for instant, metadata in zip(missing, environment.runtime.threads.map(load, missing), strict=True):
            self._metadata[instant.requested_at] = metadata

    def _is_cancellable(self, instant: Instant) -> bool:
        """Whether the pending plan of a table service yields to ingestion."""
        if not instant.action.is_plan:
            return False
        return load_pending_outline(self._environment.storage, self._environment.config, instant).flags.cancellable

    def _touched(self, instant: Instant) -> Touched:
        if instant.is_completed:
            metadata = self._metadata[instant.requested_at]
            touched = _touched_by_commit(metadata)
            return self._unshared(touched, metadata) if self._shares_groups else touched
        kind = pending_kind(instant)
        if self._shares_groups and kind in _COMPACTIONS:
            return Touched(frozenset(), kind)
        return load_touched(self._environment, instant)

    def _unshared(self, touched: Touched, metadata: CommitMetadata) -> Touched:
        """The part of a commit that conflicts with this write although it only adds log files."""
        if touched.kind in _COMPACTIONS:
            return Touched(frozenset(), touched.kind)
        if metadata.replaced is not None:
            return touched
        # The same group can be shared. Another group for the same bucket would hold the same keys again.
        return Touched(touched.file_groups - self._own.file_groups, touched.kind)

    def _error(self, instant: Instant, file_groups: Sequence[FileGroupId], reason: str) -> ConflictError:
        return conflict_error(
            self._environment,
            self._own.instant,
            beaten_by=instant,
            file_groups=file_groups,
            reason=f"lost to {instant}, {reason}",
        )


def _touched_by_commit(metadata: CommitMetadata) -> Touched:
    return Touched(metadata.file_groups, WriteKind.of(metadata.operation.service))


def conflict_error(
    environment: TableEnvironment,
    instant: RequestedTime,
    *,
    beaten_by: Instant,
    file_groups: Sequence[FileGroupId],
    reason: str,
) -> ConflictError:
    """The error for the write `instant`: who won, in which file groups, and what to do."""
    groups = tuple(str(group) for group in file_groups)
    more = f" and {len(groups) - _SHOWN_GROUPS} more" if len(groups) > _SHOWN_GROUPS else ""
    shown = ", ".join(groups[:_SHOWN_GROUPS]) + more
    return ConflictError(
        f"instant {instant} of table {environment.config.name} {reason} ({shown}). "
        "Nothing was committed: write again on the new state, or pass retries=…",
        instant=instant.value,
        beaten_by=beaten_by.requested_at.value,
        file_groups=groups,
    )
