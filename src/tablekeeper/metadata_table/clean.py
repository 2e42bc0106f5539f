"""Which files of the metadata table are old, so that a compaction deletes them. Pure.

A file is old if it is below the second newest base file of its group: readers that began before the last compaction
still find their files. Files that made up the metadata table at the first savepoint of the table are kept: Java's
restore rolls back later compactions, and needs what they merged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tablekeeper.format.data_files import decode_log_name
from tablekeeper.format.metadata_log import decode_metadata_base_name
from tablekeeper.metadata_table.compaction_plan import MetadataState
from tablekeeper.model import Action, RequestedTime
from tablekeeper.storage import FileInfo

__all__ = ["plan_old_files"]

_SLICES_KEPT = 2


def plan_old_files(state: MetadataState) -> tuple[str, ...]:
    """Paths of committed files that are older than the two newest slices of their file groups and all savepoints."""
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
    # A file is kept if its completion time is unknown.
    return completed_at is not None and completed_at.order < base.order
