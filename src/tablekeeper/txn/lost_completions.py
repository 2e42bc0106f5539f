"""Writes whose completed file was lost: on the timeline they look like dead writes.

A write creates a marker for every data file, and deletes its markers and its heartbeat only once it has completed. So a
pending instant with data files but without markers and heartbeat had completed. Rolling it back, or rewriting the file
groups that it touched, would turn the loss of a small file into the loss of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.model import Instant, State
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline.plans import find_rollback
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.markers import load_markers

__all__ = ["load_files_of_lost_completion", "refuse_lost_completion", "refuse_lost_completions"]

_OLDEST_VERSION = 8
"""In older versions a log file is named after its base file, and does not show who wrote it."""


def load_files_of_lost_completion(environment: TableEnvironment, instant: Instant) -> frozenset[str]:
    """The data files of a pending instant if it had completed; none if it had not, or if that is unknown."""
    if (
        not instant.action.writes_data
        or instant.state is not State.INFLIGHT
        or environment.config.version < _OLDEST_VERSION
    ):
        return frozenset()
    storage = environment.storage
    heartbeats = environment.load_heartbeats()
    if instant.requested_at in heartbeats.ages or load_markers(storage, instant=instant.requested_at.value):
        return frozenset()
    files = frozenset(file.path for file in _walk_data(storage) if _is_of(instant, file))
    if not files:
        return frozenset()
    # It may have completed, or its rollback may have begun, since the caller loaded the timeline.
    timeline = environment.load_timeline()
    now = timeline.find(instant.requested_at)
    if (
        now is None
        or now.is_completed
        or find_rollback(environment.storage, environment.config, timeline, now) is not None
    ):
        return frozenset()
    return files


def refuse_lost_completion(environment: TableEnvironment, instant: Instant) -> None:
    """Raise `CorruptTableError` if the pending instant had completed."""
    files = load_files_of_lost_completion(environment, instant)
    if files:
        raise CorruptTableError(
            file=min(files),
            reason=f"{instant} wrote it and has neither markers nor a heartbeat left, as only completed writes have: "
            "its completed file was lost from the timeline. Restore that file from a backup; or, if the write "
            f"never completed, undo it with Table.rollback('{instant.requested_at}')",
        )


def refuse_lost_completions(environment: TableEnvironment, instants: Iterable[Instant]) -> None:
    """The same for each of several."""
    for instant in instants:
        refuse_lost_completion(environment, instant)


def _walk_data(storage: Storage) -> Iterator[FileInfo]:
    """All files outside of `.hoodie`."""
    yield from storage.list_files("")
    for directory in storage.list_directories(""):
        if directory != ".hoodie":
            yield from storage.walk(directory)


def _is_of(instant: Instant, file: FileInfo) -> bool:
    name = decode_base_name(file.name) or decode_log_name(file.name)
    return name is not None and name.instant == instant.requested_at.value
