"""How far back a table can be read: a clean deletes files that only older moments need.

Without this check such a moment would read as fewer rows than it had, and nobody would know. Every clean on the
timeline is asked, because a later one may have kept more than an earlier one; a clean says nothing about moments after
its own, so that reads of recent moments ask none. Moments before the active timeline ask the archived cleans too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.plans import CleanMetadata, decode_clean_metadata
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, format_time
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.plans import load_clean_metadata, load_clean_plan

__all__ = ["READABLE_FROM_KEY", "load_readable_from", "plan_retained", "refuse_cleaned_moment"]

READABLE_FROM_KEY = "tablekeeper.clean.readable.from"
"""Key in a clean's extra metadata: the earliest moment whose reads need none of the files that went."""

_HOUR_MS = 3_600_000
_BEGINNING = RequestedTime("00000000000000000")


def plan_retained(
    timeline: Timeline, settings: CleanSettings, *, now_ms: int, zone: str, previous: RequestedTime | None = None
) -> Instant | None:
    """The oldest commit that stays readable; None if there are too few commits, or the policy knows no such thing.

    By commits a pending write or plan holds it back: what began before has to find its files.
    """
    completed = timeline.completed_writes
    earliest: Instant | None = None
    if settings.policy is CleanPolicy.COMMITS and len(completed) > settings.commits:
        earliest = completed[len(completed) - settings.commits]
        pending = next((i for i in timeline.pending if _holds_back(i)), None)
        if pending is not None and earliest.requested_at > pending.requested_at:
            before = [i for i in completed if i.requested_at < pending.requested_at]
            earliest = before[-1] if before else None
    elif settings.policy is CleanPolicy.HOURS:
        oldest = RequestedTime(format_time(max(0, now_ms - settings.hours * _HOUR_MS), zone=zone))
        earliest = next((i for i in completed if i.requested_at >= oldest), None)
    if earliest is None or settings.most_commits is None or previous is None:
        return earliest
    left = [i for i in completed if previous <= i.requested_at < earliest.requested_at]
    return left[settings.most_commits] if len(left) > settings.most_commits else earliest


def refuse_cleaned_moment(storage: Storage, config: TableConfig, timeline: Timeline, as_of: RequestedTime) -> None:
    """Raise `InvalidRequestError` if files that a reader saw at `as_of` may have been cleaned.

    A clean by Java by file versions does not say how far back it reached, and is not checked. Savepointed commits
    keep their files whatever their age.
    """
    if _is_savepointed(timeline, as_of):
        return
    for earliest in _load_earliest_moments(storage, config, timeline, as_of):
        if as_of < earliest:
            raise InvalidRequestError(
                f"table {config.name} was cleaned: files that only moments before {earliest} need are gone, so that "
                f"{as_of} cannot be read any more. Ask for a later moment."
            )


def load_readable_from(storage: Storage, config: TableConfig, clean: Instant) -> RequestedTime | None:
    """The earliest moment that the clean, finished or not, leaves readable; None if it does not say.

    A clean that deleted nothing leaves every moment readable, whatever it says about the window.
    """
    if clean.is_completed:
        return _readable_after(load_clean_metadata(storage, config, clean))
    plan = load_clean_plan(storage, config, clean)
    if plan is None:
        return None
    if not plan.files and not plan.partitions_to_delete:
        return _BEGINNING
    retained = plan.earliest_instant_to_retain
    return _moment(retained.timestamp if retained is not None else "", plan.extra_metadata)


def _load_earliest_moments(
    storage: Storage, config: TableConfig, timeline: Timeline, as_of: RequestedTime
) -> Iterator[RequestedTime]:
    """What each clean after `as_of` left readable, where it says so."""
    for clean in _begun_after(timeline, as_of):
        earliest = load_readable_from(storage, config, clean)
        if earliest is not None:
            yield earliest
    if not timeline.is_archived(as_of):
        return
    for archived in load_history(storage, config, first=as_of):
        if archived.instant.action is Action.CLEAN and archived.metadata:
            metadata = decode_clean_metadata(archived.metadata, file=f"archived {archived.instant}")
            earliest = _readable_after(metadata)
            if earliest is not None:
                yield earliest


def _holds_back(pending: Instant) -> bool:
    """A log compaction takes no file away that a reader of an earlier moment needs."""
    return pending.action.writes_data and pending.action is not Action.LOG_COMPACTION


def _readable_after(metadata: CleanMetadata) -> RequestedTime | None:
    if not metadata.files_deleted and not metadata.partitions:
        return _BEGINNING
    return _moment(metadata.earliest_commit_to_retain, metadata.extra_metadata)


def _moment(retained: str, extra: Mapping[str, str]) -> RequestedTime | None:
    text = retained or extra.get(READABLE_FROM_KEY, "")
    return RequestedTime(text) if text.isascii() and text.isdigit() else None


def _begun_after(timeline: Timeline, as_of: RequestedTime) -> list[Instant]:
    """Cleans that may have deleted something, the newest first."""
    cleans = [i for i in timeline if i.action is Action.CLEAN and i.state is not State.REQUESTED]
    return [i for i in reversed(cleans) if i.requested_at > as_of]


def _is_savepointed(timeline: Timeline, as_of: RequestedTime) -> bool:
    """Whether the newest commit at that moment is savepointed."""
    commits = [i.requested_at for i in timeline.completed_writes if i.requested_at <= as_of]
    savepoints = {i.requested_at for i in timeline.completed if i.action is Action.SAVEPOINT}
    return bool(commits) and commits[-1] in savepoints
