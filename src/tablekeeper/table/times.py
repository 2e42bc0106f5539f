"""Moments as callers write them, turned into instant times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from tablekeeper.config.table_config import TableConfig
from tablekeeper.engine.protocol import Frame
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import CompletionTime, RequestedTime
from tablekeeper.read.incremental import WindowCommit, load_commits
from tablekeeper.read.query import Query
from tablekeeper.timeline import format_time, time_bounds

__all__ = ["EARLIEST", "Changes", "load_window", "moment_as_of", "next_cursor", "parse_moment"]

EARLIEST = "earliest"
"""As the beginning of a window: before the first commit."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that changed, and the cursor from which the next call continues."""

    rows: Frame
    next: str


def parse_moment(moment: object, *, zone: str) -> str:
    """Digits `yyyyMMddHHmmssSSS` from an instant, a datetime or text.

    Text is an instant time, or an ISO date or time (`2026-11-15T10:00:00`, with or without a zone; without one it
    is in the timeline's). A date means its midnight.
    """
    found = _parse(moment, zone=zone)
    return found if isinstance(found, str) else format_time(found, zone=zone)


def moment_as_of(moment: object, config: TableConfig) -> RequestedTime | None:
    """The moment for a read of the past; None if none was given."""
    return None if moment is None else RequestedTime(parse_moment(moment, zone=config.time_zone))


def load_window(query: Query, *, since: object, until: object) -> list[WindowCommit]:
    """Writes that completed after `since`, up to and including `until`, given as callers write moments."""
    zone = query.config.time_zone
    return load_commits(
        query,
        since=None if _is_earliest(since) else _bounds(since, zone=zone)[0],
        until=None if until is None else _bounds(until, zone=zone)[1],
    )


def next_cursor(commits: Sequence[WindowCommit], *, since: object, zone: str) -> str:
    """Where the window after `commits` begins: at the last of them, by its requested time, which names one commit.

    A completion time would be ambiguous: it could be the requested time of another commit.
    """
    if commits:
        return commits[-1].instant.requested_at.value
    return EARLIEST if _is_earliest(since) else _bounds(since, zone=zone)[0]


def _is_earliest(since: object) -> bool:
    return since is None or (isinstance(since, str) and since.strip().lower() == EARLIEST)


def _bounds(moment: object, *, zone: str) -> tuple[str, str]:
    """The moment as the beginning and as the end of a window. They differ when local time is set back."""
    found = _parse(moment, zone=zone)
    return (found, found) if isinstance(found, str) else time_bounds(found, zone=zone)


def _parse(moment: object, *, zone: str) -> str | int:
    """An instant time as it is; of anything else the milliseconds since the epoch."""
    if isinstance(moment, RequestedTime | CompletionTime):
        return moment.value
    if isinstance(moment, dt.datetime):
        return _epoch_ms(moment, zone=zone)
    if isinstance(moment, dt.date):
        return _epoch_ms(dt.datetime(moment.year, moment.month, moment.day), zone=zone)
    if isinstance(moment, str):
        text = moment.strip()
        if text.isascii() and text.isdigit() and len(text) >= 14:
            return text
        try:
            return _epoch_ms(dt.datetime.fromisoformat(text), zone=zone)
        except ValueError:
            pass
    raise InvalidRequestError(
        f"{moment!r} is not a moment: give an instant such as '20261115100000000', a time such as "
        "'2026-11-15T10:00:00', or a datetime"
    )


def _epoch_ms(moment: dt.datetime, *, zone: str) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC) if zone == "UTC" else moment
    # A year away from both ends of the calendar, so that the moment can be represented in every zone.
    if not dt.MINYEAR + 1 < moment.year < dt.MAXYEAR:
        raise InvalidRequestError(f"{moment} is outside the years that a timeline can have")
    return round(moment.timestamp() * 1000)
