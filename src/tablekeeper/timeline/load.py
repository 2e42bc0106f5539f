"""Reading the timeline: one listing gives all instants, contents are read on demand.

An archive may be running at the same time. It removes the completed files of the oldest instants one by one, the
oldest first, once the archived timeline has them. A listing is not atomic: it can still name an instant that was
removed during the listing, and miss a later one that was removed after it. Readers would regard the missing one as
uncommitted. So after the listing the oldest completed instant is checked again; if it is gone, everything before the
first existing one is left out, since these instants were archived.

Contents that have moved to the archived timeline are read there.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, NotFoundError, TablekeeperError
from tablekeeper.format.commit_metadata import decode_commit_metadata, decode_written_paths
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.model import Action, CommitMetadata, CompletionTime, Instant, RequestedTime, State, join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.timeline.history import load_archive_reach, load_archived_content
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.timeline.timeline import Timeline, decode_instant_name, encode_instant_name

__all__ = [
    "FirstLook",
    "following_time",
    "format_time",
    "instant_path",
    "later_time",
    "load_commit_metadata",
    "load_content",
    "load_first_look",
    "load_instant_files",
    "load_newest_time",
    "load_timeline",
    "load_timeline_beside",
    "load_written_paths",
    "parse_time",
    "time_bounds",
]

T = TypeVar("T")

# In tables of the version that we write.
_USUAL_DIRECTORY = ".hoodie/timeline"

_ARCHIVED = frozenset({Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT, Action.CLEAN, Action.ROLLBACK})
"""Completed actions that an archive removes."""

# A write loads the timeline several times, twice under the lock, and finds almost the same names each time.
_decode = lru_cache(maxsize=1 << 14)(decode_instant_name)


class _Listed(NamedTuple):
    """An instant and its file."""

    instant: Instant
    path: str


def load_timeline(storage: Storage, config: TableConfig) -> Timeline:
    """The active timeline as it is now."""
    return _timeline(storage, config, _without_archived(storage, _load_listed(storage, config)))


@dataclass(frozen=True, slots=True)
class FirstLook:
    """The table's properties and the names on its timeline, loaded at the same time."""

    config: TableConfig
    names: tuple[str, ...]


def load_first_look(storage: Storage, *, runtime: Runtime) -> FirstLook:
    """Properties and timeline of a table, for the beginning of an operation."""
    config, names = runtime.threads.together(
        lambda: load_table_config(storage), lambda: storage.list_names(_USUAL_DIRECTORY)
    )
    if config.timeline_directory != _USUAL_DIRECTORY:
        names = storage.list_names(config.timeline_directory)
    return FirstLook(config, tuple(names))


def load_timeline_beside(
    storage: Storage,
    config: TableConfig,
    load: Callable[[Timeline], T],
    *,
    runtime: Runtime,
    names: Sequence[str] | None = None,
) -> tuple[Timeline, T]:
    """The timeline, and the result of `load` for it, which starts before the listing is known to be complete.

    If the listing was not complete, or an instant has left the timeline since, `load` is repeated. `names` are those of
    a first look.
    """
    listed = _load_listed(storage, config, names)
    hasty = _timeline(storage, config, listed)

    def attempt() -> T | TablekeeperError:
        try:
            return load(hasty)
        except TablekeeperError as error:
            return error

    whole, loaded = runtime.threads.together(lambda: _without_archived(storage, listed), attempt)
    if len(whole) < len(listed):
        timeline = _timeline(storage, config, whole)
        return timeline, load(timeline)
    if isinstance(loaded, NotFoundError):
        # A commit was rolled back after it had been listed.
        timeline = load_timeline(storage, config)
        return timeline, load(timeline)
    if isinstance(loaded, TablekeeperError):
        raise loaded
    return hasty, loaded


def _load_listed(storage: Storage, config: TableConfig, names: Sequence[str] | None = None) -> list[_Listed]:
    directory, layout = config.timeline_directory, config.layout
    listed = [
        _Listed(instant, f"{directory}/{name}")
        for name in (storage.list_names(directory) if names is None else names)
        if (instant := _decode(name, layout=layout)) is not None
    ]
    if any(instant.completed_at is None and instant.state is State.COMPLETED for instant, _ in listed):
        return _listed_with_times(storage, config)
    return listed


def _timeline(storage: Storage, config: TableConfig, listed: Iterable[_Listed]) -> Timeline:
    instants = [instant for instant, _ in listed]
    return Timeline.of(instants, archive=partial(load_archive_reach, storage, config))


def load_newest_time(storage: Storage, config: TableConfig) -> str:
    """The greatest requested or completion time on the active timeline, `""` if it is empty: one listing of names.

    Completed files of upgraded tables have no completion time in their names; these are old.
    """
    layout = config.layout
    instants = [_decode(name, layout=layout) for name in storage.list_names(config.timeline_directory)]
    times = [
        instant.requested_at.value
        if instant.completed_at is None
        else max(instant.requested_at.value, instant.completed_at.value)
        for instant in instants
        if instant is not None
    ]
    return max(times, default="")


def load_instant_files(storage: Storage, config: TableConfig) -> tuple[Instant, ...]:
    """Every instant file, earlier states included, as its name says and in the order of names.

    A completed file without a completion time in its name has none here either, so that `instant_path` returns the
    name.
    """
    found = (_decode(name, layout=config.layout) for name in storage.list_names(config.timeline_directory))
    return tuple(instant for instant in found if instant is not None)


def instant_path(config: TableConfig, instant: Instant) -> str:
    """The path of the file of this instant in this state."""
    return join_path(config.timeline_directory, encode_instant_name(instant, layout=config.layout))


def load_content(storage: Storage, config: TableConfig, instant: Instant) -> bytes:
    """The bytes of the instant's file."""
    path = instant_path(config, instant)
    try:
        return storage.read(path)
    except NotFoundError:
        # Completed files of upgraded tables carry no completion time in their names.
        bare = _find_by_prefix(storage, config, instant)
        if bare is not None:
            return storage.read(bare)
        archived = load_archived_content(storage, config, instant)
        if archived is None:
            raise
        return archived


def load_commit_metadata(storage: Storage, config: TableConfig, instant: Instant) -> CommitMetadata:
    """The metadata of a completed commit, delta commit or replace commit.

    An empty completed file is damage: the files that it replaced would reappear unnoticed. So is one with the contents
    of another commit: the files that it does not name would be regarded as litter.
    """
    path = instant_path(config, instant)
    content = load_content(storage, config, instant)
    if not content and instant.is_completed:
        raise CorruptTableError(file=path, reason="the file of a completed commit is empty")
    metadata = decode_commit_metadata(content, file=path)
    if instant.is_completed:
        _refuse_contents_of_another((stat.path for stat in metadata.stats), config, instant, file=path)
    return metadata


def _refuse_contents_of_another(paths: Iterable[str], config: TableConfig, instant: Instant, *, file: str) -> None:
    """A data file carries the instant that wrote it in its name."""
    for path in paths:
        name = path.rpartition("/")[2]
        decoded = decode_base_name(name) or (None if config.may_have_old_log_names else decode_log_name(name))
        if decoded is not None and decoded.instant != instant.requested_at.value:
            reason = f"it names a file of {decoded.instant}, {path}: these are the contents of another commit"
            raise CorruptTableError(file=file, reason=reason)


def load_written_paths(storage: Storage, config: TableConfig, instant: Instant) -> frozenset[str]:
    """Every file that a completed commit, delta commit or replace commit says it wrote, relative to the table."""
    path = instant_path(config, instant)
    written = decode_written_paths(load_content(storage, config, instant), file=path)
    _refuse_contents_of_another(written, config, instant, file=path)
    return written


def _listed_with_times(storage: Storage, config: TableConfig) -> list[_Listed]:
    """For tables upgraded from version 6: they have completed files without a completion time in their names."""
    listed = []
    for file in storage.list_files(config.timeline_directory):
        instant = _decode(file.name, layout=config.layout)
        if instant is None:
            continue
        if instant.is_completed and instant.completed_at is None:
            completed_at = CompletionTime(format_time(file.modified_ms, zone=config.time_zone))
            instant = Instant(instant.requested_at, instant.action, State.COMPLETED, completed_at)
        listed.append(_Listed(instant, file.path))
    return listed


def _without_archived(storage: Storage, listed: Sequence[_Listed]) -> Sequence[_Listed]:
    """The listing without the instants that an archive removed during it."""
    completed = [entry for entry in listed if entry[0].state is State.COMPLETED and entry[0].action in _ARCHIVED]
    completed.sort(key=lambda entry: entry[0].requested_at.order)
    # An archive leaves at least one commit, which is in the listing: with fewer than two nothing can be missing.
    if len(completed) < 2 or storage.stat(completed[0].path) is not None:
        oldest = completed[0] if completed else None
    else:
        there = bisect_left(completed, True, lo=1, key=lambda entry: storage.stat(entry.path) is not None)
        oldest = completed[there] if there < len(completed) else None
    if oldest is None:
        return listed
    first = oldest.instant.requested_at.order
    return [entry for entry in listed if entry[0].requested_at.order >= first or not _has_gone(storage, entry)]


def _has_gone(storage: Storage, entry: _Listed) -> bool:
    """Whether an instant before the first completed one that still exists has been archived."""
    if entry.instant.action.completed_as not in _ARCHIVED:
        return False
    # Earlier states are removed before completed files: an existing pending instant is really pending.
    return entry.instant.is_completed or storage.stat(entry.path) is None


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


def following_time(time: str) -> str:
    """The next millisecond by its digits, which order instants; in a zone with daylight saving it may not exist."""
    return format_time(parse_time(RequestedTime(time).order, zone="UTC") + 1, zone="UTC")


def later_time(newest: str, *, now_ms: int, zone: str) -> str:
    """Now, or just after the newest time of the table if that is later.

    Clocks may disagree, and local time goes back an hour in autumn. Times are ordered by their digits, so the digits
    are compared and incremented, whatever moment they stand for.
    """
    now = format_time(now_ms, zone=zone)
    return now if not newest or now > RequestedTime(newest).order else following_time(newest)


def time_bounds(epoch_ms: int, *, zone: str) -> tuple[str, str]:
    """A lower bound for instants after this moment, and an upper bound for instants up to it.

    Both are the moment itself, except in the hour that local time repeats: there the digits do not distinguish the
    first time from the second, and the bound moves by that hour, so that nothing is missed.
    """
    text = format_time(epoch_ms, zone=zone)
    local = dt.datetime.fromtimestamp(epoch_ms / 1000, tz=_zone(zone))
    if local.tzinfo is not None:
        return text, text
    repeated_ms = round(1000 * (local.replace(fold=1).timestamp() - local.replace(fold=0).timestamp()))
    if not repeated_ms:
        return text, text
    digits_ms = parse_time(text, zone="UTC")
    if local.fold:
        return text, format_time(digits_ms + repeated_ms, zone="UTC")
    return format_time(digits_ms - repeated_ms, zone="UTC"), text


def _zone(zone: str) -> dt.tzinfo | None:
    return ZoneInfo("UTC") if zone == "UTC" else None
