"""Late files: what a task publishes after its write is over.

A store with scopes prevents this. On object stores a process that wakes up late can write a file into a partition after
its write was committed without that file, or rolled back. Readers that list directories regard every file of a
completed instant as part of it, and Java's readers also every file older than the active timeline.

A marker is created before its file. So a late task leaves markers of an instant that is not pending, which show where
to look: a marked file with the instant in its name is deleted, unless the commit of that instant names it. Nothing is
deleted if the outcome of an instant is unknown, because its commit cannot be read or may be in an archive that
tablekeeper does not read. A marker without a file stays for a day, because the file may still appear.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.commit_metadata import decode_written_paths
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.model import RequestedTime
from tablekeeper.timeline import Timeline, instant_path, load_content
from tablekeeper.timeline.history import load_history, load_history_snapshot
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.heartbeat import HeartbeatView
from tablekeeper.txn.markers import delete_markers, load_marked_instants, load_markers, load_newest_marker_ms

__all__ = ["LateFiles", "load_late_files", "sweep_late_files"]

_LOG = logging.getLogger(__name__)
_MAY_COME_FOR_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class LateFiles:
    """Existing files that markers of an instant name and its commit does not.

    `are_markers_over`: no more of them can appear, so that the markers can be deleted.
    """

    instant: RequestedTime
    there: tuple[str, ...] = ()
    are_markers_over: bool = False


def sweep_late_files(environment: TableEnvironment, *, instants: Collection[str] | None = None) -> tuple[str, ...]:
    """Delete the late files of finished writes, only of `instants` if given, and their markers. Returns the files.

    Costs one listing if there are only markers of running writes.
    """
    storage, config = environment.storage, environment.config
    if config.version < 8:
        return ()
    marked = [each for each in load_marked_instants(storage) if instants is None or each in instants]
    if not marked or not _over(marked, environment.load_timeline()):
        return ()
    gone: list[str] = []
    with environment.locked() as held:
        # A write begins under the lock, before its first marker: one that is not pending now was over before.
        timeline = held.load_timeline()
        heartbeats = held.load_heartbeats()
        for instant in _over(marked, timeline):
            late = load_late_files(held, timeline, heartbeats, instant)
            if late is None:
                continue
            held.lease.check()
            held.storage.delete_many(late.there)
            if late.are_markers_over:
                delete_markers(held.storage, instant=instant.value)
            gone += late.there
    if gone:
        _LOG.warning("table %s: %d files came after their writes were over, and were deleted", config.name, len(gone))
    return tuple(gone)


def load_late_files(
    environment: TableEnvironment, timeline: Timeline, heartbeats: HeartbeatView, instant: RequestedTime
) -> LateFiles | None:
    """The late files of an instant with markers; None if somebody may be working on it, or its outcome is unknown."""
    storage = environment.storage
    if heartbeats.is_active(instant) or instant in timeline.unfinished:
        return None
    try:
        named = _load_committed_paths(environment, timeline, instant)
        markers = load_markers(storage, instant=instant.value)
    except CorruptTableError as error:
        _LOG.warning("the markers of %s are left alone: %s", instant, error)
        return None
    if named is None:
        return None
    paths = {marker.path for marker in markers if _instant_of(marker.file_name) == instant} - named
    there = tuple(path for path in sorted(paths) if storage.stat(path) is not None)
    may_come = len(there) < len(paths) and not storage.has_scopes
    if may_come:
        age_ms = environment.runtime.clock.now_ms() - load_newest_marker_ms(storage, instant=instant.value)
        may_come = age_ms < _MAY_COME_FOR_MS
    return LateFiles(instant, there, are_markers_over=not may_come)


def _over(marked: list[str], timeline: Timeline) -> list[RequestedTime]:
    times = [RequestedTime(text) for text in marked if text.isascii() and text.isdigit()]
    return [time for time in times if time not in timeline.unfinished]


def _load_committed_paths(
    environment: TableEnvironment, timeline: Timeline, instant: RequestedTime
) -> frozenset[str] | None:
    """The files that the commit of an instant names, none if there was no commit; None if that is unknown."""
    storage, config = environment.storage, environment.config
    found = timeline.find(instant)
    if found is not None:
        if not found.is_completed or not found.action.writes_data:
            return None
        content = load_content(storage, config, found)
        # An empty file is damage: it does not say that nothing was written.
        return decode_written_paths(content, file=instant_path(config, found)) if content else None
    if not timeline.completed:
        # An empty timeline tells nothing: it may have been lost.
        return None
    for each in load_history(storage, config, first=instant, last=instant):
        if each.instant.action.writes_data:
            return decode_written_paths(each.metadata, file=f"archived {each.instant}") if each.metadata else None
    if timeline.is_archived(instant):
        history = load_history_snapshot(storage, config.history_directory)
        return frozenset() if history.reaches_back_to(instant) else None
    return frozenset()


def _instant_of(file_name: str) -> RequestedTime | None:
    name = decode_base_name(file_name) or decode_log_name(file_name)
    return RequestedTime(name.instant) if name is not None else None
