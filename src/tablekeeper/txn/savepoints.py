"""Savepoints on the timeline: which commits they protect, and which files.

A savepoint has the requested time of the commit that it protects. It takes effect when it is completed. A rollback
spares the commit, a clean spares the files, and a restore returns to it.
"""

from __future__ import annotations

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import NotFoundError
from tablekeeper.format.plans import SavepointMetadata, decode_savepoint_metadata
from tablekeeper.model import Action, Instant, RequestedTime
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, instant_path, load_content

__all__ = ["find_savepoint", "load_savepoint", "load_savepoint_if_there", "savepoints_of"]


def savepoints_of(timeline: Timeline) -> tuple[Instant, ...]:
    """Completed savepoints by the time of their commits."""
    return tuple(i for i in timeline.completed if i.action is Action.SAVEPOINT)


def find_savepoint(timeline: Timeline, commit: RequestedTime) -> Instant | None:
    """The savepoint of this commit in its latest state, completed or not."""
    return next((i for i in timeline if i.action is Action.SAVEPOINT and i.requested_at == commit), None)


def load_savepoint(storage: Storage, config: TableConfig, savepoint: Instant) -> SavepointMetadata:
    """What a completed savepoint protects and why it was made."""
    content = load_content(storage, config, savepoint)
    return decode_savepoint_metadata(content, file=instant_path(config, savepoint))


def load_savepoint_if_there(storage: Storage, config: TableConfig, savepoint: Instant) -> SavepointMetadata | None:
    """The same without the lock; None if somebody has deleted the savepoint since the timeline was loaded."""
    try:
        return load_savepoint(storage, config, savepoint)
    except NotFoundError:
        return None
