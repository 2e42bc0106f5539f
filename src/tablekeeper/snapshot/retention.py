"""How far back a table can be read: a clean deletes files that only older moments need.

Without this check such a moment would read as fewer rows than it had, and nobody would know.
"""

from __future__ import annotations

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.plans import decode_clean_metadata, decode_clean_plan
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, instant_path, load_content

__all__ = ["refuse_cleaned_moment"]


def refuse_cleaned_moment(storage: Storage, config: TableConfig, timeline: Timeline, as_of: RequestedTime) -> None:
    """Raise `InvalidRequestError` if files that a reader saw at `as_of` may have been cleaned.

    A clean by commits or hours says what it retained; one by file versions does not, and is not checked.
    Savepointed commits keep their files whatever their age.
    """
    earliest = _earliest_retained(storage, config, timeline)
    if earliest is None or as_of >= earliest or _is_savepointed(timeline, as_of):
        return
    raise InvalidRequestError(
        f"table {config.name} was cleaned: files that only moments before {earliest} need are gone, so that "
        f"{as_of} cannot be read any more. Ask for a later moment."
    )


def _earliest_retained(storage: Storage, config: TableConfig, timeline: Timeline) -> RequestedTime | None:
    cleans = [i for i in timeline if i.action is Action.CLEAN and i.state is not State.REQUESTED]
    if not cleans:
        return None
    text = _retained_by(storage, config, cleans[-1])
    return RequestedTime(text) if text.isascii() and text.isdigit() else None


def _retained_by(storage: Storage, config: TableConfig, clean: Instant) -> str:
    if clean.is_completed:
        content = load_content(storage, config, clean)
        return decode_clean_metadata(content, file=instant_path(config, clean)).earliest_commit_to_retain
    requested = Instant(clean.requested_at, clean.action, State.REQUESTED)
    content = load_content(storage, config, requested)
    retained = decode_clean_plan(content, file=instant_path(config, requested)).earliest_instant_to_retain
    return retained.timestamp if retained is not None else ""


def _is_savepointed(timeline: Timeline, as_of: RequestedTime) -> bool:
    """Whether the newest commit at that moment is savepointed."""
    commits = [i.requested_at for i in timeline.completed_writes if i.requested_at <= as_of]
    savepoints = {i.requested_at for i in timeline.completed if i.action is Action.SAVEPOINT}
    return bool(commits) and commits[-1] in savepoints
