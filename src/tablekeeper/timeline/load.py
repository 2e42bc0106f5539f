"""Reading the timeline: one listing gives all instants, contents are read on demand."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from zoneinfo import ZoneInfo

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.commit_metadata import decode_commit_metadata, decode_written_paths
from tablekeeper.format.timeline_names import decode_instant_name, encode_instant_name
from tablekeeper.model import CommitMetadata, CompletionTime, Instant, State, join_path
from tablekeeper.storage import Storage
from tablekeeper.timeline.timeline import Timeline

__all__ = [
    "format_time",
    "instant_path",
    "load_commit_metadata",
    "load_content",
    "load_instant_files",
    "load_timeline",
    "load_written_paths",
    "parse_time",
]

# A write loads the timeline several times, twice under the lock, and finds almost the same names each time.
_decode = lru_cache(maxsize=1 << 14)(decode_instant_name)


def load_timeline(storage: Storage, config: TableConfig) -> Timeline:
    """The active timeline as it is now."""
    instants = []
    for file in storage.list_files(config.timeline_directory):
        instant = _decode(file.name, layout=config.layout)
        if instant is None:
            continue
        if instant.is_completed and instant.completed_at is None:
            # Tables upgraded from version 6 have completed files without a completion time.
            completed_at = CompletionTime(format_time(file.modified_ms, zone=config.time_zone))
            instant = Instant(instant.requested_at, instant.action, State.COMPLETED, completed_at)
        instants.append(instant)
    return Timeline.of(instants)


def load_instant_files(storage: Storage, config: TableConfig) -> tuple[Instant, ...]:
    """Every instant file there is, earlier states included, as its name says and in the order of names.

    A completed file without a completion time in its name has none here either, so that `instant_path` gives the name.
    """
    found = (
        decode_instant_name(file.name, layout=config.layout) for file in storage.list_files(config.timeline_directory)
    )
    return tuple(instant for instant in found if instant is not None)


def instant_path(config: TableConfig, instant: Instant) -> str:
    """Where the file of this instant in this state lies."""
    return join_path(config.timeline_directory, encode_instant_name(instant, layout=config.layout))


def load_content(storage: Storage, config: TableConfig, instant: Instant) -> bytes:
    """The bytes of the instant's file."""
    path = instant_path(config, instant)
    try:
        return storage.read(path)
    except NotFoundError:
        # Completed files of upgraded tables carry no completion time in their names.
        bare = _find_by_prefix(storage, config, instant)
        if bare is None:
            raise
        return storage.read(bare)


def load_commit_metadata(storage: Storage, config: TableConfig, instant: Instant) -> CommitMetadata:
    """What a completed commit, delta commit or replace commit says it wrote."""
    path = instant_path(config, instant)
    return decode_commit_metadata(load_content(storage, config, instant), file=path)


def load_written_paths(storage: Storage, config: TableConfig, instant: Instant) -> frozenset[str]:
    """Every file that a completed commit, delta commit or replace commit says it wrote, relative to the table."""
    path = instant_path(config, instant)
    return decode_written_paths(load_content(storage, config, instant), file=path)


def _find_by_prefix(storage: Storage, config: TableConfig, instant: Instant) -> str | None:
    for file in storage.list_files(config.timeline_directory):
        found = decode_instant_name(file.name, layout=config.layout)
        if (
            found is not None
            and found.requested_at == instant.requested_at
            and found.action is instant.action
            and found.state is instant.state
        ):
            return file.path
    return None


def format_time(epoch_ms: int, *, zone: str) -> str:
    """Epoch milliseconds as `yyyyMMddHHmmssSSS` in the timeline's zone (`UTC`, or `LOCAL` for this machine's)."""
    moment = dt.datetime.fromtimestamp(epoch_ms / 1000, tz=_zone(zone))
    return moment.strftime("%Y%m%d%H%M%S") + f"{epoch_ms % 1000:03d}"


def parse_time(text: str, *, zone: str) -> int:
    """Epoch milliseconds of a time written as an instant time has it."""
    try:
        moment = dt.datetime.strptime(text[:14], "%Y%m%d%H%M%S")
    except ValueError as error:
        raise CorruptTableError(file=text, reason="not a time of the form yyyyMMddHHmmssSSS") from error
    local = moment.replace(tzinfo=_zone(zone)) if zone == "UTC" else moment.astimezone()
    return int(local.timestamp()) * 1000 + int((text[14:17] or "0").ljust(3, "0"))


def _zone(zone: str) -> dt.tzinfo | None:
    return ZoneInfo("UTC") if zone == "UTC" else None
