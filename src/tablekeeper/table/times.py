"""Moments as callers write them, turned into instant times."""

from __future__ import annotations

import datetime as dt

from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import CompletionTime, RequestedTime
from tablekeeper.read.incremental import WindowCommit, load_commits
from tablekeeper.read.query import Query
from tablekeeper.timeline import format_time

__all__ = ["load_window", "parse_moment"]


def parse_moment(moment: object, *, zone: str) -> str:
    """Digits `yyyyMMddHHmmssSSS` from an instant, a datetime or text.

    Text is an instant time, or an ISO date or time (`2026-11-15T10:00:00`, with or without a zone; without one it
    is in the timeline's). A date means its midnight.
    """
    if isinstance(moment, RequestedTime | CompletionTime):
        return moment.value
    if isinstance(moment, dt.datetime):
        return _from_datetime(moment, zone=zone)
    if isinstance(moment, dt.date):
        return _from_datetime(dt.datetime(moment.year, moment.month, moment.day), zone=zone)
    if isinstance(moment, str):
        text = moment.strip()
        if text.isascii() and text.isdigit() and len(text) >= 14:
            return text
        try:
            return _from_datetime(dt.datetime.fromisoformat(text), zone=zone)
        except ValueError:
            pass
    raise InvalidRequestError(
        f"{moment!r} is not a moment: give an instant such as '20261115100000000', a time such as "
        "'2026-11-15T10:00:00', or a datetime"
    )


def load_window(query: Query, *, since: object, until: object) -> list[WindowCommit]:
    """Writes that completed after `since`, up to and including `until`, given as callers write moments."""
    zone = query.config.time_zone
    return load_commits(
        query,
        since=None if since is None else parse_moment(since, zone=zone),
        until=None if until is None else parse_moment(until, zone=zone),
    )


def _from_datetime(moment: dt.datetime, *, zone: str) -> str:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC) if zone == "UTC" else moment.astimezone()
    epoch_ms = round(moment.timestamp() * 1000)
    return format_time(epoch_ms, zone=zone)
