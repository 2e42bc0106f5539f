"""What a compaction of the metadata table merges, and at which time it takes place. Pure.

As Java forms slices, a delta commit is merged if it completed before the compaction was requested. So the time of a
compaction says what it contains: it is after the completion of the last delta commit that is merged and before that of
the first one that is not. Here it is the first free millisecond after the former, in the past, so that later delta
commits are on top of it, even if a clock is a little behind.

A delta commit whose action is pending on the table's own timeline may still be rolled back, with its log files. It must
never get into a base file: as in Java, the time of the compaction is before the first of these was requested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tablekeeper.format.data_files import decode_log_name
from tablekeeper.metadata_table.layout import MetadataSlice, plan_metadata_slices
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime
from tablekeeper.storage import FileInfo
from tablekeeper.timeline import Timeline, following_time, format_time

__all__ = [
    "Merge",
    "MetadataState",
    "choose_time",
    "last_compaction",
    "plan_merge",
    "uncompacted_commits",
]


@dataclass(frozen=True)
class MetadataState:
    """A metadata table at one moment: both timelines, and the files of the metadata partitions in use.

    `archived_completion` gives the completion times of delta commits that were archived.
    """

    data_timeline: Timeline
    timeline: Timeline
    listings: Mapping[str, Sequence[FileInfo]]
    zone: str
    archived_completion: Callable[[RequestedTime], CompletionTime | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Merge:
    """What a compaction merges: delta commits by completion, and by metadata partition the slices with their logs."""

    commits: tuple[Instant, ...]
    slices: tuple[tuple[str, MetadataSlice], ...]

    @property
    def newest(self) -> CompletionTime:
        """When the last of the delta commits completed."""
        return max(_completions(self.commits), key=lambda time: time.order)


def uncompacted_commits(timeline: Timeline) -> tuple[Instant, ...]:
    """The completed delta commits that are not in the last compaction of the metadata table, by completion."""
    base = last_compaction(timeline)
    deltas = [i for i in timeline.completed if i.action is Action.DELTA_COMMIT and i.completed_at is not None]
    later = [i for i in deltas if base is None or _order(i) >= base.order]
    return tuple(sorted(later, key=_order))


def last_compaction(timeline: Timeline) -> RequestedTime | None:
    """The time of the newest completed compaction of the metadata table."""
    compactions = [i.requested_at for i in timeline.completed if i.action in (Action.COMMIT, Action.REPLACE_COMMIT)]
    return compactions[-1] if compactions else None


def plan_merge(state: MetadataState, *, among: Sequence[Instant] | None = None) -> Merge | None:
    """What can be merged now, None if nothing; with `among` only these delta commits."""
    limit = _first_half_done(state)
    commits = [i for i in uncompacted_commits(state.timeline) if limit is None or _order(i) < limit.order]
    if among is not None:
        commits = [i for i in commits if i in among]
    if not commits:
        return None
    times = {i.requested_at for i in commits}
    slices = [
        (partition, replace(each, logs=logs))
        for partition, files in sorted(state.listings.items())
        for each in _slices(state, files)
        if (logs := tuple(log for log in each.logs if _is_merged(state, log, times)))
    ]
    return Merge(tuple(commits), tuple(slices)) if slices else None


def choose_time(merge: Merge, state: MetadataState, *, now_ms: int) -> RequestedTime | None:
    """The time of a compaction of exactly `merge`; None if there is no such moment yet.

    It is in the past, so that no action of the table can get the same time later.
    """
    bounds = [_order(i) for i in uncompacted_commits(state.timeline) if i not in merge.commits]
    limit = _first_half_done(state)
    if limit is not None:
        bounds.append(limit.order)
    taken = _times(state.data_timeline) | _times(state.timeline)
    end = min([*bounds, format_time(now_ms, zone=state.zone)])
    at = following_time(merge.newest.value)
    while at < end:
        if at not in taken:
            return RequestedTime(at)
        at = following_time(at)
    return None


def _slices(state: MetadataState, files: Sequence[FileInfo]) -> tuple[MetadataSlice, ...]:
    return plan_metadata_slices(
        files,
        metadata_timeline=state.timeline,
        data_timeline=state.data_timeline,
        archived_completion=state.archived_completion,
    )


def _is_merged(state: MetadataState, log: FileInfo, commits: set[RequestedTime]) -> bool:
    name = decode_log_name(log.name)
    if name is None:
        return False
    instant = RequestedTime(name.instant)
    # Every delta commit that is left out must be newer than what readers count as archived.
    return instant in commits or state.timeline.completion_of(instant) is None


def _first_half_done(state: MetadataState) -> RequestedTime | None:
    """The first action that is completed on the timeline of the metadata table and pending on the table's own."""
    unfinished = state.data_timeline.unfinished
    found = [i.requested_at for i in uncompacted_commits(state.timeline) if i.requested_at in unfinished]
    return min(found, key=lambda time: time.order, default=None)


def _times(timeline: Timeline) -> set[str]:
    completions = {i.completed_at.value for i in timeline.completed if i.completed_at is not None}
    return completions | {i.requested_at.value for i in timeline}


def _completions(instants: Sequence[Instant]) -> list[CompletionTime]:
    return [i.completed_at for i in instants if i.completed_at is not None]


def _order(instant: Instant) -> str:
    return instant.completed_at.order if instant.completed_at is not None else ""
