"""Conflict detection before a commit: what to compare with, and what counts as a conflict (RFC-71).

Values in, values out: the timeline as loaded under the lock, and two functions that read the
candidates' metadata. Three steps:

1. **Completed candidates.** By start: those that were pending when this write started and have
   completed, and those that started later and have completed. By end: those that completed after this
   write started. In either case instants that completed before the start do not count.
2. **Pending candidates**, by the kind of this write and of the pending one:

   | this write | pending ingestion | pending clustering | pending compaction |
   |---|---|---|---|
   | ingestion | no | unless updates are allowed | yes |
   | clustering | if updates are allowed | no | no |
   | compaction | no | no | no |

   A cancellable pending plan is no candidate: it yields. A write that executes a cancellable plan
   yields to all pending writes that are not cancellable.
3. **Overlap** of the file groups touched; of buckets where the table has a bucket index, because two
   writers that create the same bucket give it different file ids.

A compaction that was requested before this write is no conflict: the write saw its plan and put its
rows on top of it. Log compaction rewrites log blocks that readers replace by name, and does not affect
writers. Plans of table services are checked against each other when they are scheduled.

For clustering, completed candidates count even if updates are not allowed, although no writer should have
touched its file groups then: one that did so under other settings must not lose its rows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tablekeeper.config.concurrency_settings import CandidateStrategy, ConflictSettings
from tablekeeper.model import CompletionTime, FileGroupId, Instant, RequestedTime, ServiceKind

__all__ = [
    "Conflict",
    "ConflictCandidates",
    "OwnWrite",
    "Touched",
    "WriteKind",
    "find_conflict",
    "overlapping_groups",
    "pending_kind",
    "select_candidates",
]

_BUCKET_DIGITS = 8


class WriteKind(enum.Enum):
    """What a write does, as far as conflicts are concerned."""

    INGESTION = "ingestion"
    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    LOG_COMPACTION = "log compaction"

    @classmethod
    def of(cls, service: ServiceKind | None) -> WriteKind:
        """The kind of a service's write; None stands for a write of rows."""
        return cls.INGESTION if service is None else cls(service.value)


@dataclass(frozen=True, slots=True)
class OwnWrite:
    """The write that wants to commit.

    `pending_at_start` are the requested times of all instants that were pending when it started.
    """

    instant: RequestedTime
    kind: WriteKind
    file_groups: frozenset[FileGroupId]
    pending_at_start: frozenset[RequestedTime] = frozenset()
    is_cancellable: bool = False


@dataclass(frozen=True, slots=True)
class Touched:
    """What another instant writes, replaces or plans to rewrite.

    The kind is given here because the action of a completed compaction or clustering does not show it.
    """

    file_groups: frozenset[FileGroupId]
    kind: WriteKind


@dataclass(frozen=True, slots=True)
class ConflictCandidates:
    """Instants that a commit has to be compared with, each part by requested time."""

    completed: tuple[Instant, ...] = ()
    pending: tuple[Instant, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """The conflicting instant, and the file groups of this write that it touches, sorted."""

    instant: Instant
    file_groups: tuple[FileGroupId, ...]


def pending_kind(instant: Instant) -> WriteKind | None:
    """The kind of a pending instant; None for those that write no data (clean, rollback, savepoint, …)."""
    return WriteKind.of(instant.action.service) if instant.action.writes_data else None


def select_candidates(
    own: OwnWrite,
    *,
    timeline: tuple[Instant, ...],
    settings: ConflictSettings,
    is_cancellable: Callable[[Instant], bool],
) -> ConflictCandidates:
    """The candidates among `timeline`, the instants in their latest state as loaded under the lock.

    `is_cancellable` says whether the pending plan of a table service is; it is called only if it matters.
    """
    if own.kind in (WriteKind.COMPACTION, WriteKind.LOG_COMPACTION) and not own.is_cancellable:
        return ConflictCandidates()
    # Most of a timeline is completed and irrelevant: filter it first, and sort the rest.
    is_later = _later_test(own, strategy=settings.strategy)
    news = [i for i in timeline if (i.completed_at is None or is_later(i)) and i.requested_at != own.instant]
    news.sort(key=lambda i: i.requested_at.order)
    return ConflictCandidates(
        completed=tuple(i for i in news if i.completed_at is not None and i.action.writes_data),
        pending=tuple(
            i
            for i in news
            if i.is_pending
            and _concerns(own, pending_kind(i), allow_updates=settings.allow_updates)
            and not (pending_kind(i) is not WriteKind.INGESTION and is_cancellable(i))
        ),
    )


def overlapping_groups(
    *, own: Iterable[FileGroupId], other: Iterable[FileGroupId], by_bucket: bool
) -> tuple[FileGroupId, ...]:
    """Groups of `own` that `other` touches too, sorted. `by_bucket`: the table has a simple bucket index."""
    identity = _bucket if by_bucket else _itself
    touched = {identity(group) for group in other}
    return tuple(sorted(group for group in own if identity(group) in touched))


def find_conflict(
    own: OwnWrite,
    *,
    timeline: tuple[Instant, ...],
    settings: ConflictSettings,
    touched_by: Callable[[Instant], Touched],
    is_cancellable: Callable[[Instant], bool],
    by_bucket: bool,
) -> Conflict | None:
    """The first candidate that conflicts, completed ones first; None if the write may commit.

    `touched_by` reads a candidate: the metadata of a completed or inflight one, the plan of a table service.
    Ingestion that has not announced its file groups yet touches nothing.
    """
    candidates = select_candidates(own, timeline=timeline, settings=settings, is_cancellable=is_cancellable)
    for instant in (*candidates.completed, *candidates.pending):
        touched = touched_by(instant)
        if _is_harmless(own, instant, kind=touched.kind):
            continue
        groups = overlapping_groups(own=own.file_groups, other=touched.file_groups, by_bucket=by_bucket)
        if groups:
            return Conflict(instant=instant, file_groups=groups)
    return None


def _later_test(own: OwnWrite, *, strategy: CandidateStrategy) -> Callable[[Instant], bool]:
    """A test whether an instant completed, by this strategy, while the write was running."""
    if strategy is CandidateStrategy.END_TIMESTAMP:
        # The one place where a completion time is compared with a requested time: both come from one increasing clock.
        start = CompletionTime(own.instant.value)
        return lambda instant: instant.completed_at is not None and instant.completed_at > start
    began, pending = own.instant.order, {time.value for time in own.pending_at_start}
    return lambda instant: instant.requested_at.order > began or instant.requested_at.value in pending


def _concerns(own: OwnWrite, pending: WriteKind | None, *, allow_updates: bool) -> bool:
    """The table of pending candidates."""
    if own.is_cancellable:
        return pending is not None
    match own.kind, pending:
        case WriteKind.INGESTION, WriteKind.COMPACTION:
            return True
        case WriteKind.INGESTION, WriteKind.CLUSTERING:
            return not allow_updates
        case WriteKind.CLUSTERING, WriteKind.INGESTION:
            return allow_updates
    return False


def _is_harmless(own: OwnWrite, instant: Instant, *, kind: WriteKind) -> bool:
    if own.is_cancellable:
        return False
    if kind is WriteKind.LOG_COMPACTION:
        return True
    return kind is WriteKind.COMPACTION and own.kind is WriteKind.INGESTION and instant.requested_at < own.instant


def _itself(group: FileGroupId) -> tuple[str, str]:
    return group.partition, group.file_id


def _bucket(group: FileGroupId) -> tuple[str, str]:
    """File ids of a bucket index begin with the bucket's number; one that does not stands for itself."""
    number = group.file_id[:_BUCKET_DIGITS]
    has_number = len(number) == _BUCKET_DIGITS and number.isascii() and number.isdigit()
    return group.partition, number if has_number else group.file_id
