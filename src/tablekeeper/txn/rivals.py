"""What other writers committed while a write was at work, and whether the write can stand beside it.

File groups alone do not tell everything. Two writers that insert the same new key put it into different file groups,
and an overwrite of a partition does not know the groups that appeared in it meanwhile: both would commit, and the table
would be in a state that no order of the two leads to. So a write may say what it should have seen (`Unseen`), and a
commit that brought it is a conflict too. Looking into files takes time, and the commit does it without the lock.

The metadata of a commit is read once for each write, however often the lock has to be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tablekeeper.errors import ConflictError
from tablekeeper.model import CommitMetadata, FileGroupId, Instant, RequestedTime
from tablekeeper.timeline import Timeline, load_commit_metadata
from tablekeeper.txn.candidates import load_is_cancellable, load_touched, touched_by_commit
from tablekeeper.txn.conflict import OwnWrite, Touched, WriteKind, find_conflict, select_candidates
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["NothingUnseen", "Rivals", "Unseen"]

_SHOWN_GROUPS = 3


class Unseen(Protocol):
    """What a write would have treated differently, had it been there when the write began."""

    def concerns(self, other: CommitMetadata) -> bool:
        """False if the other commit cannot matter. Does no I/O."""
        ...

    def find(self, other: CommitMetadata) -> Sequence[FileGroupId]:
        """File groups in which the other commit brought something that matters."""
        ...


class NothingUnseen:
    """For writes that never look at what is there."""

    def concerns(self, other: CommitMetadata) -> bool:
        return False

    def find(self, other: CommitMetadata) -> Sequence[FileGroupId]:
        return ()


class Rivals:
    """The other writers, as seen by one write."""

    def __init__(self, environment: TableEnvironment, own: OwnWrite, unseen: Unseen) -> None:
        self._environment = environment
        self._own = own
        self._unseen = unseen
        self._metadata: dict[RequestedTime, CommitMetadata] = {}
        self._cleared: set[RequestedTime] = set()

    def refuse_conflict(self, timeline: Timeline) -> list[Instant]:
        """Raise `ConflictError` if a file group was touched by somebody else too.

        Returns the commits whose files have to be looked into before this write may stand beside them.
        """
        environment = self._environment
        completed = self._completed(timeline)
        self._load(completed)
        conflict = find_conflict(
            self._own,
            timeline=timeline.instants,
            settings=environment.conflict_settings,
            touched_by=self._touched,
            is_cancellable=partial(load_is_cancellable, environment),
            by_bucket=environment.by_bucket,
        )
        if conflict is not None:
            raise self._error(conflict.instant, conflict.file_groups, "which touches the same file groups")
        return [
            instant
            for instant in completed
            if instant.requested_at not in self._cleared
            and self._touched(instant).kind is WriteKind.INGESTION
            and self._unseen.concerns(self._metadata[instant.requested_at])
        ]

    def refuse_unseen(self, instants: Sequence[Instant]) -> None:
        """Look into these commits. Raises `ConflictError` if one of them brought what this write should have seen."""
        for instant in instants:
            groups = tuple(self._unseen.find(self._metadata[instant.requested_at]))
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

    def _touched(self, instant: Instant) -> Touched:
        if instant.is_completed:
            return touched_by_commit(self._metadata[instant.requested_at])
        return load_touched(self._environment, instant)

    def _error(self, instant: Instant, file_groups: Sequence[FileGroupId], reason: str) -> ConflictError:
        groups = tuple(str(group) for group in file_groups)
        more = f" and {len(groups) - _SHOWN_GROUPS} more" if len(groups) > _SHOWN_GROUPS else ""
        shown = ", ".join(groups[:_SHOWN_GROUPS]) + more
        return ConflictError(
            f"instant {self._own.instant} of table {self._environment.config.name} lost to {instant}, {reason} "
            f"({shown}). Nothing was committed: write again on the new state, or pass retries=…",
            instant=self._own.instant.value,
            beaten_by=instant.requested_at.value,
            file_groups=groups,
        )
