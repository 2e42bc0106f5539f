"""The only code that writes and removes instant files.

Every file is created with put-if-absent: if two processes try the same transition, one succeeds,
and the other one raises `FencedError` instead of overwriting. Earlier states are kept; Java checks
that they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CommitOutcomeUnknownError, FencedError, NotFoundError, StorageError
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.storage import Storage
from tablekeeper.timeline.load import instant_path, load_instant_files

__all__ = [
    "complete_instant",
    "create_requested",
    "create_timeline_directory",
    "publish_again",
    "refuse_gone_instant",
    "remove_archived_files",
    "remove_instant_files",
    "start_inflight",
    "unpublish_instant",
]


def create_timeline_directory(storage: Storage, directory: str) -> None:
    """Create the empty directory of a new table's timeline: Java lists it before its first commit, and fails otherwise.

    On stores without directories this leaves nothing.
    """
    mark = f"{directory}/.new"
    storage.put(mark, b"")
    storage.delete(mark)


def create_requested(
    storage: Storage, config: TableConfig, *, requested_at: RequestedTime, action: Action, content: bytes = b""
) -> Instant:
    """Put a new action on the timeline."""
    instant = Instant(requested_at, action, State.REQUESTED)
    _create(storage, config, instant, content)
    return instant


def start_inflight(storage: Storage, config: TableConfig, requested: Instant, *, content: bytes = b"") -> Instant:
    """Move a requested action to inflight."""
    instant = Instant(requested.requested_at, requested.action, State.INFLIGHT)
    _create(storage, config, instant, content)
    return instant


def complete_instant(
    storage: Storage,
    config: TableConfig,
    inflight: Instant,
    *,
    completed_at: CompletionTime,
    content: bytes,
    looks_first: bool = True,
) -> Instant:
    """Publish the completed state: from here on readers see what the action did.

    The caller holds the table lock. `looks_first` calls `refuse_gone_instant` before. If the store does not say whether
    the file was written, the file is read back; only if that fails too is the outcome unknown.
    """
    if looks_first:
        refuse_gone_instant(storage, config, inflight)
    completed = Instant(inflight.requested_at, inflight.action.completed_as, State.COMPLETED, completed_at)
    path = instant_path(config, completed)
    try:
        created = storage.put_if_absent(path, content)
    except StorageError as error:
        created = _landed_after_all(storage, path, content, cause=error, instant=completed)
    if not created:
        raise FencedError(f"instant {completed} was completed by another process; reload the table before going on")
    return completed


def refuse_gone_instant(storage: Storage, config: TableConfig, inflight: Instant) -> None:
    """Raise `FencedError` if the action is no longer on the timeline; to be called directly before it completes."""
    if storage.stat(instant_path(config, inflight)) is None:
        raise FencedError(
            f"instant {inflight} is no longer on the timeline: another process rolled it back. "
            "Nothing was committed; retry."
        )


def unpublish_instant(
    storage: Storage, config: TableConfig, completed: Instant, *, check: Callable[[], None] = lambda: None
) -> Instant:
    """Remove the completed state: the action is inflight again, and readers no longer see what it did.

    The caller holds the table lock; `check` raises if it no longer does, and runs before the first change. Missing
    earlier states are restored first, so that the action is always on the timeline: without a file it would count as
    archived some day, and therefore as committed.
    """
    files = load_instant_files(storage, config)
    mine = [i for i in files if i.requested_at == completed.requested_at and i.action is not Action.SAVEPOINT]
    action = next((i.action for i in mine if i.is_pending), completed.action)
    check()
    for state in (State.REQUESTED, State.INFLIGHT):
        storage.put_if_absent(instant_path(config, Instant(completed.requested_at, action, state)), b"")
    remove_instant_files(storage, config, *(i for i in mine if i.is_completed))
    return Instant(completed.requested_at, action, State.INFLIGHT)


def publish_again(storage: Storage, config: TableConfig, completed: Instant, *, content: bytes) -> None:
    """Bring back a completed state that `unpublish_instant` took away. The caller holds the table lock."""
    storage.put_if_absent(instant_path(config, completed), content)


def remove_instant_files(storage: Storage, config: TableConfig, *instants: Instant) -> None:
    """Delete the files of these instants in these states, in the order given. Missing files are no error."""
    for instant in instants:
        storage.delete(instant_path(config, instant))


def remove_archived_files(
    storage: Storage, config: TableConfig, *, pending: Iterable[Instant], completed: Iterable[Instant]
) -> None:
    """Delete the files of completed instants that the archived timeline holds. Missing files are no error.

    First the earlier states, in any order: a completed instant does not need them, and without its completed file it
    would look pending. Then the completed files one by one in the given order, the oldest first, so that the active
    timeline never has a gap.
    """
    storage.delete_many([instant_path(config, instant) for instant in pending])
    remove_instant_files(storage, config, *completed)


def _create(storage: Storage, config: TableConfig, instant: Instant, content: bytes) -> None:
    if not storage.put_if_absent(instant_path(config, instant), content):
        raise FencedError(f"instant {instant} exists already: another process owns it")


def _landed_after_all(storage: Storage, path: str, content: bytes, *, cause: StorageError, instant: Instant) -> bool:
    try:
        return storage.read(path) == content
    except NotFoundError:
        raise cause from None
    except StorageError as error:
        raise CommitOutcomeUnknownError(
            f"the store failed while {instant} was being completed ({error}); reload the table to see whether "
            "it succeeded",
            instant=instant.requested_at.value,
        ) from cause
