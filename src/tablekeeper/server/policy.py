"""What the service does for a table: which services, when, how, and how fresh reads have to be.

A policy is a value with a JSON form (`to_json`, `parse_policy`). A field that is None is left to the database's
default policy, and then to `DEFAULT_POLICY`; `over` combines them. Unknown fields are refused, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tablekeeper.config.keys import INDEX_DROP, METADATA_ENABLE
from tablekeeper.config.options import Options
from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.model import ServiceAction

__all__ = ["DEFAULT_POLICY", "MINUTES_PER_DAY", "DayWindow", "Policy", "parse_policy"]

MINUTES_PER_DAY = 24 * 60
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class DayWindow:
    """A part of each day, in minutes since midnight UTC. If it ends before it begins, it includes midnight."""

    begin_minute: int
    end_minute: int

    @classmethod
    def parse(cls, text: str) -> DayWindow:
        """From `22:00-06:00`."""
        found = _WINDOW.fullmatch(text.strip())
        if found is None:
            raise InvalidRequestError(f"window {text!r}: write it as 22:00-06:00, in UTC")
        begin_h, begin_m, end_h, end_m = map(int, found.groups())
        if (begin_h, begin_m) == (end_h, end_m):
            raise InvalidRequestError(f"window {text!r} is empty: leave windows out to allow the whole day")
        return cls(begin_h * 60 + begin_m, end_h * 60 + end_m)

    def holds(self, minute: int) -> bool:
        """Whether this minute of the day is in the window, without its end."""
        if self.begin_minute < self.end_minute:
            return self.begin_minute <= minute < self.end_minute
        return minute >= self.begin_minute or minute < self.end_minute

    def minutes_until(self, minute: int) -> int:
        """Minutes from this minute of the day until the window is open; 0 if it is."""
        return 0 if self.holds(minute) else (self.begin_minute - minute) % MINUTES_PER_DAY

    def __str__(self) -> str:
        begin, end = divmod(self.begin_minute, 60), divmod(self.end_minute, 60)
        return f"{begin[0]:02d}:{begin[1]:02d}-{end[0]:02d}:{end[1]:02d}"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the service does for one table. None means: as the default says.

    Triggers: `compact_after_commits`, `compact_after_s` (either makes a compaction due), `log_compact_after_commits`,
    `cluster_after_commits`, `clean_after_commits`, `archive_after_instants`.
    How: `order_by` and `layout` of clusterings, `keep_commits` or `keep_hours` of cleans, `cancellable` plans,
    `windows` of the day outside which only requested runs start.
    Freshness: `fresh_within_s`, `max_log_files` (delta commits not yet compacted) and `max_read_amplification`;
    operations with the earliest deadline run first, within their priority and share.
    Runs: `engine`, `fallback_engine` (for what the engine refuses), `max_failures`, `time_limit_s`, and `options` in
    Hudi's names.
    """

    services: tuple[ServiceAction, ...] | None = None
    compact_after_commits: int | None = None
    compact_after_s: int | None = None
    log_compact_after_commits: int | None = None
    cluster_after_commits: int | None = None
    clean_after_commits: int | None = None
    archive_after_instants: int | None = None
    order_by: tuple[str, ...] | None = None
    layout: str | None = None
    keep_commits: int | None = None
    keep_hours: int | None = None
    cancellable: bool | None = None
    windows: tuple[DayWindow, ...] | None = None
    fresh_within_s: int | None = None
    max_log_files: int | None = None
    max_read_amplification: float | None = None
    engine: str | None = None
    fallback_engine: str | None = None
    max_failures: int | None = None
    time_limit_s: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def over(self, other: Policy) -> Policy:
        """This policy, with `other` for fields that are not set. Options are combined one by one."""
        chosen = {
            each.name: getattr(self, each.name) if getattr(self, each.name) is not None else getattr(other, each.name)
            for each in fields(Policy)
            if each.name != "options"
        }
        return Policy(**chosen, options={**other.options, **self.options})

    def hosts(self, action: ServiceAction) -> bool:
        """Whether the service itself decides when this is due. Requests by writers are always served."""
        return action in (self.services or ())

    def minutes_until_window(self, minute_of_day: int) -> int:
        """Minutes until something may start; 0 inside a window, or if there are none."""
        return min((window.minutes_until(minute_of_day) for window in self.windows or ()), default=0)

    @property
    def outside_windows(self) -> str:
        """What is said of an operation that waits for a window."""
        return f"outside of {', '.join(map(str, self.windows or ()))} UTC"

    def to_json(self) -> dict[str, Any]:
        """What is set, as JSON values."""
        shown: dict[str, Any] = {
            each.name: getattr(self, each.name) for each in fields(Policy) if getattr(self, each.name) is not None
        }
        if self.services is not None:
            shown["services"] = [action.value for action in self.services]
        if self.windows is not None:
            shown["windows"] = [str(window) for window in self.windows]
        if self.order_by is not None:
            shown["order_by"] = list(self.order_by)
        if not self.options:
            del shown["options"]
        return shown


DEFAULT_POLICY = Policy(
    services=(ServiceAction.COMPACTION, ServiceAction.CLEAN, ServiceAction.ARCHIVE),
    compact_after_commits=5,
    log_compact_after_commits=5,
    cluster_after_commits=20,
    clean_after_commits=10,
    archive_after_instants=30,
    keep_commits=10,
    cancellable=False,
    windows=(),
    fresh_within_s=3600,
    max_failures=5,
    time_limit_s=6 * 3600,
)
"""The policy for everything that neither the table's policy nor its database's sets."""

_WHOLE = {
    "compact_after_commits": 1,
    "compact_after_s": 1,
    "log_compact_after_commits": 1,
    "cluster_after_commits": 1,
    "clean_after_commits": 1,
    "archive_after_instants": 2,
    "keep_commits": 1,
    "keep_hours": 1,
    "fresh_within_s": 1,
    "max_log_files": 1,
    "max_failures": 1,
    "time_limit_s": 1,
}
_MAX_WHOLE = 2**31 - 1
_MAX_ITEMS = 64
_MAX_TEXT = 1000


def parse_policy(given: Mapping[str, Any]) -> Policy:
    """A policy from JSON values; `InvalidRequestError` names the field that is wrong."""
    known = {each.name for each in fields(Policy)}
    unknown = sorted(str(name)[:60] for name in set(given) - known)
    if unknown:
        raise InvalidRequestError(f"policy has no field {', '.join(unknown)}. It has {', '.join(sorted(known))}.")
    values = {name: _parse_field(name, value) for name, value in given.items() if value is not None}
    if "keep_commits" in values and "keep_hours" in values:
        raise InvalidRequestError("policy: give keep_commits or keep_hours, not both")
    return Policy(**values)


def _parse_field(name: str, value: Any) -> Any:
    if name in _WHOLE:
        return _parse_whole(name, value)
    parse: Callable[[str, Any], Any] = _PARSERS.get(name, _parse_text)
    return parse(name, value)


def _parse_whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not _WHOLE[name] <= value <= _MAX_WHOLE:
        raise InvalidRequestError(f"policy: {name} is a whole number from {_WHOLE[name]} on")
    return value


def _parse_services(name: str, value: Any) -> tuple[ServiceAction, ...]:
    return tuple(ServiceAction.parse(each) for each in _texts(name, value))


def _parse_windows(name: str, value: Any) -> tuple[DayWindow, ...]:
    return tuple(map(DayWindow.parse, _texts(name, value)))


def _parse_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"policy: {name} is true or false")
    return value


def _parse_factor(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value < _MAX_WHOLE:
        raise InvalidRequestError(f"policy: {name} is a number above 1")
    return float(value)


def _parse_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > _MAX_TEXT:
        raise InvalidRequestError(f"policy: {name} is a short text")
    return value


def _parse_layout(name: str, value: Any) -> str:
    if value not in ("sort", "zorder", "hilbert"):
        raise InvalidRequestError(f"policy: {name} is sort, zorder or hilbert")
    return str(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    is_texts = isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value)
    if not is_texts or len(value) > _MAX_ITEMS or any(len(each) > _MAX_TEXT for each in value):
        raise InvalidRequestError(f"policy: {name} is a list of at most {_MAX_ITEMS} short texts")
    return tuple(value)


def _parse_options(name: str, value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or len(value) > _MAX_ITEMS or not all(isinstance(key, str) for key in value):
        raise InvalidRequestError(f"policy: {name} is an object of at most {_MAX_ITEMS} settings")
    # Refuses unknown names, and suggests the nearest known one.
    given = dict(Options(value).given)
    taken = next((key for key in (INDEX_DROP, METADATA_ENABLE) if key in given), None)
    if taken is not None:
        raise InvalidRequestError(f"policy: {taken} is not for a service to set: it would take indexes away")
    return given


_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "services": _parse_services,
    "windows": _parse_windows,
    "order_by": _texts,
    "options": _parse_options,
    "cancellable": _parse_flag,
    "max_read_amplification": _parse_factor,
    "layout": _parse_layout,
}
