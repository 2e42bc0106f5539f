"""What a compaction of the metadata table merges, at which time it takes place, and which files are old. Pure.

A delta commit is merged if it completed before the compaction was requested, as Java slices files. So the time of a
compaction says what it holds: it lies after the completion of the last delta commit that is merged and before that of
the first one that is not. Here it is the first free millisecond after the former, in the past: whoever completes a
delta commit later is on top of it, even with a clock that is a little behind.

A delta commit whose action is pending on the table's own timeline may still be taken back, and with it the log files.
It must never get into a base file: as in Java, the compaction takes place before the first of these was requested.

Old are files below the second newest base file of their group, and so never those of the newest two slices: readers
that began before the last compaction find their files. Nor are those that made up the metadata table at the first
savepoint of the table: Java's restore takes compactions back that came later, and needs what they had merged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tablekeeper.format.log_names import decode_log_name
from tablekeeper.format.metadata_log import decode_metadata_base_name
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
    "plan_old_files",
    "uncompacted_commits",
]

_SLICES_KEPT = 2


@dataclass(frozen=True)
class MetadataState:
    """A metadata table at one moment: both timelines, and the files of the metadata partitions in use.

    `archived_completion` knows when delta commits completed that have left the timeline of the metadata table.
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
    """The completed delta commits that the last compaction of the metadata table did not hold, by completion."""
    base = last_compaction(timeline)
    deltas = [i for i in timeline.completed if i.action is Action.DELTA_COMMIT and i.completed_at is not None]
    later = [i for i in deltas if base is None or _order(i) >= base.order]
    return tuple(sorted(later, key=_order))


def last_compaction(timeline: Timeline) -> RequestedTime | None:
    """When the newest completed compaction of the metadata table takes place."""
    compactions = [i.requested_at for i in timeline.completed if i.action in (Action.COMMIT, Action.REPLACE_COMMIT)]
    return compactions[-1] if compactions else None


def plan_merge(state: MetadataState, *, among: Sequence[Instant] | None = None) -> Merge | None:
    """What can be merged now, None if that is nothing. `among` leaves out all other delta commits."""
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
    """When a compaction of exactly `merge` takes place; None if there is no such moment yet.

    It lies in the past, so that no action of the table can be given the same time later.
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


def plan_old_files(state: MetadataState) -> tuple[str, ...]:
    """Paths of committed files that lie below the two newest slices of their file groups, and below all savepoints."""
    saved = [i.requested_at for i in state.data_timeline if i.action is Action.SAVEPOINT]
    first = min(saved, key=lambda time: time.order, default=None)
    return tuple(path for files in state.listings.values() for path in _old_files(state, files, saved=first))


def _old_files(state: MetadataState, files: Sequence[FileInfo], *, saved: RequestedTime | None) -> Iterator[str]:
    bases: dict[str, list[tuple[RequestedTime, FileInfo]]] = defaultdict(list)
    logs: list[tuple[str, RequestedTime, FileInfo]] = []
    for file in files:
        base, log = decode_metadata_base_name(file.name), decode_log_name(file.name)
        if base is not None and state.timeline.is_completed(RequestedTime(base.instant)):
            bases[base.file_id].append((RequestedTime(base.instant), file))
        elif log is not None and state.timeline.is_completed(RequestedTime(log.instant)):
            logs.append((log.file_id, RequestedTime(log.instant), file))
    kept: dict[str, RequestedTime] = {}
    for file_id, found in bases.items():
        times = sorted({time for time, _ in found}, key=lambda time: time.order)
        spared = [time for time in times[: 1 - _SLICES_KEPT] if saved is None or time <= saved]
        if spared:
            kept[file_id] = spared[-1]
            yield from (file.path for time, file in found if time < kept[file_id])
    for file_id, instant, file in logs:
        if file_id in kept and _completed_before(state, instant, kept[file_id]):
            yield file.path


def _completed_before(state: MetadataState, instant: RequestedTime, base: RequestedTime) -> bool:
    if instant >= base:
        return False
    completed_at = state.timeline.completion_of(instant) or state.archived_completion(instant)
    # One of which nobody knows when it completed stays.
    return completed_at is not None and completed_at.order < base.order


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
    # What readers count as archived is older than every delta commit that is left out.
    return instant in commits or state.timeline.completion_of(instant) is None


def _first_half_done(state: MetadataState) -> RequestedTime | None:
    """The first action that is completed on the timeline of the metadata table and pending on the table's own."""
    pending = {i.requested_at for i in state.data_timeline.pending}
    found = [i.requested_at for i in uncompacted_commits(state.timeline) if i.requested_at in pending]
    return min(found, key=lambda time: time.order, default=None)


def _times(timeline: Timeline) -> set[str]:
    completions = {i.completed_at.value for i in timeline.completed if i.completed_at is not None}
    return completions | {i.requested_at.value for i in timeline}


def _completions(instants: Sequence[Instant]) -> list[CompletionTime]:
    return [i.completed_at for i in instants if i.completed_at is not None]


def _order(instant: Instant) -> str:
    return instant.completed_at.order if instant.completed_at is not None else ""
