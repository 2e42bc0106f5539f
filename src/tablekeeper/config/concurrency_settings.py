"""How writers share a table: the concurrency mode, what becomes of failed writes, and early conflict detection.

Under Java's keys. One default differs: Java assumes a single writer and no lock unless told otherwise; here a table
is always locked and open to many writers, so that the mode in effect is OPTIMISTIC_CONCURRENCY_CONTROL.

| mode | commits | failed writes by default |
|---|---|---|
| SINGLE_WRITER | are checked all the same: a mistaken second writer costs an error, not rows | EAGER |
| OPTIMISTIC_CONCURRENCY_CONTROL | the second of two that touch a file group loses | LAZY |
| NON_BLOCKING_CONCURRENCY_CONTROL | log files of several writers share a file group | LAZY |

What does not go together is refused, as in Java: EAGER with more than one writer, early detection in any mode but the
optimistic one, and the non-blocking mode on anything but a merge-on-read table with the simple bucket index.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.errors import InvalidRequestError

__all__ = [
    "CONCURRENCY_OPTIONS",
    "ConcurrencyMode",
    "ConcurrencySettings",
    "EarlyDetection",
    "FailedWrites",
]

_PREFIX = "hoodie.write.concurrency."
_MODE = _PREFIX + "mode"
_FAILED = "hoodie.clean.failed.writes.policy"
_FAILED_OLD = "hoodie.cleaner.policy.failed.writes"
_EARLY = _PREFIX + "early.conflict.detection.enable"
_STRATEGY = _PREFIX + "early.conflict.detection.strategy"
_COMMITS = _PREFIX + "early.conflict.check.commit.conflict"
_ASYNC_DELAY = _PREFIX + "async.conflict.detector.initial_delay_ms"
_ASYNC_PERIOD = _PREFIX + "async.conflict.detector.period_ms"

_ANNOUNCEMENT = "tablekeeper.planning.announcement.wait.ms"

_UNLOCKED = "SimpleDirectMarkerBasedDetectionStrategy"
_LOCKED = "SimpleTransactionDirectMarkerBasedDetectionStrategy"
# What Java uses with markers that its timeline server keeps: the same look at markers, by another process.
_SERVER = "AsyncTimelineServerBasedDetectionStrategy"
_STRATEGIES = {_UNLOCKED: False, _LOCKED: True, _SERVER: False}


class ConcurrencyMode(enum.Enum):
    """How many writers there are, and what two of them do to each other; the value is Java's name."""

    SINGLE_WRITER = "SINGLE_WRITER"
    OPTIMISTIC = "OPTIMISTIC_CONCURRENCY_CONTROL"
    NON_BLOCKING = "NON_BLOCKING_CONCURRENCY_CONTROL"


class FailedWrites(enum.Enum):
    """What the next writer does with pending writes.

    EAGER rolls all of them back at once, LAZY those whose heartbeat has lapsed, NEVER none.
    """

    EAGER = "EAGER"
    LAZY = "LAZY"
    NEVER = "NEVER"


CONCURRENCY_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (
        _MODE,
        ConcurrencyMode.OPTIMISTIC.value,
        str,
        "SINGLE_WRITER, OPTIMISTIC_CONCURRENCY_CONTROL or NON_BLOCKING_CONCURRENCY_CONTROL (MOR, bucket index).",
    ),
    (
        _FAILED,
        None,
        str,
        "Pending writes that a new one rolls back: EAGER all, LAZY the dead ones, NEVER none. "
        "LAZY by default, EAGER with a single writer.",
    ),
    (_FAILED_OLD, None, str, "Older name of the same."),
    (_EARLY, "false", bool, "Look for writers at work on the same file groups before writing, not only at the commit."),
    (_STRATEGY, None, str, f"{_UNLOCKED}, or {_LOCKED} to look and announce under the table lock."),
    (_COMMITS, "false", bool, "Early detection also looks at what was committed since this write began."),
    (_ASYNC_DELAY, "0", int, "Accepted for Java's sake; markers are looked at before the tasks of a write start."),
    (_ASYNC_PERIOD, "30000", int, "Accepted for Java's sake; see the key above."),
    (
        _ANNOUNCEMENT,
        "60000",
        int,
        "How long the scheduling of a plan waits for a running Java writer to say which file groups it touches.",
    ),
)
"""Known options as (name, default, type, meaning)."""


@dataclass(frozen=True, slots=True)
class EarlyDetection:
    """Whether and how a write looks for others before it writes."""

    is_enabled: bool = False
    is_locked: bool = False
    checks_commits: bool = False


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """How this writer gets along with others."""

    mode: ConcurrencyMode = ConcurrencyMode.OPTIMISTIC
    failed_writes: FailedWrites = FailedWrites.LAZY
    early: EarlyDetection = field(default_factory=EarlyDetection)
    announcement_wait_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.announcement_wait_ms < 0:
            raise InvalidRequestError(f"{_ANNOUNCEMENT}: {self.announcement_wait_ms} is negative. Give 0 or more.")
        if self.failed_writes is FailedWrites.EAGER and self.mode is not ConcurrencyMode.SINGLE_WRITER:
            raise InvalidRequestError(
                f"{_FAILED}=EAGER rolls back writes that are still running, so that it needs {_MODE}=SINGLE_WRITER; "
                f"the mode is {self.mode.value}. Use LAZY, or say that there is no other writer."
            )
        if self.early.is_enabled and self.mode is not ConcurrencyMode.OPTIMISTIC:
            raise InvalidRequestError(
                f"{_EARLY} needs {_MODE}={ConcurrencyMode.OPTIMISTIC.value}: in mode {self.mode.value} there is no "
                "conflict to be found early. Turn it off, or change the mode."
            )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ConcurrencySettings:
        """From options by name; the defaults where they say nothing."""
        mode = _mode(options.get(_MODE, ConcurrencyMode.OPTIMISTIC.value))
        return cls(
            mode=mode,
            failed_writes=_failed_writes(options, mode),
            early=EarlyDetection(
                is_enabled=_flag(options, _EARLY),
                is_locked=_is_locked(options.get(_STRATEGY) or _UNLOCKED),
                checks_commits=_flag(options, _COMMITS),
            ),
            announcement_wait_ms=int(options.get(_ANNOUNCEMENT, "60000")),
        )

    @property
    def is_non_blocking(self) -> bool:
        return self.mode is ConcurrencyMode.NON_BLOCKING

    def refuse_unfit_table(self, *, table: str, is_mor: bool, has_buckets: bool) -> None:
        """Raise `InvalidRequestError` if a table of this kind cannot be written in this mode."""
        if self.is_non_blocking and not (is_mor and has_buckets):
            kind = "has no bucket index" if is_mor else "is copy on write"
            raise InvalidRequestError(
                f"{_MODE}={self.mode.value} needs a merge-on-read table with the simple bucket index, because writers "
                f"share file groups by adding log files to them; table {table} {kind}. "
                f"Use {ConcurrencyMode.OPTIMISTIC.value}."
            )

    def refuse_overwrite(self, *, operation: str) -> None:
        """Raise `InvalidRequestError` if an operation that replaces file groups does not go with this mode."""
        if self.is_non_blocking:
            raise InvalidRequestError(
                f"{operation} replaces the file groups that others are adding to, and is not possible with "
                f"{_MODE}={self.mode.value}. Delete the partitions and insert, or stop the other writers and open "
                f"the table with {ConcurrencyMode.OPTIMISTIC.value}."
            )


def _mode(name: str) -> ConcurrencyMode:
    try:
        return ConcurrencyMode(name.upper())
    except ValueError:
        known = ", ".join(mode.value for mode in ConcurrencyMode)
        raise InvalidRequestError(f"{_MODE}: {name!r} is not known. Use one of {known}.") from None


def _failed_writes(options: Mapping[str, str], mode: ConcurrencyMode) -> FailedWrites:
    key = _FAILED if _FAILED in options or _FAILED_OLD not in options else _FAILED_OLD
    default = FailedWrites.EAGER if mode is ConcurrencyMode.SINGLE_WRITER else FailedWrites.LAZY
    name = options.get(key, default.value)
    try:
        return FailedWrites(name.upper())
    except ValueError:
        known = ", ".join(policy.value for policy in FailedWrites)
        raise InvalidRequestError(f"{key}: {name!r} is not known. Use one of {known}.") from None


def _is_locked(strategy: str) -> bool:
    name = strategy.rpartition(".")[2]
    if name not in _STRATEGIES:
        raise InvalidRequestError(f"{_STRATEGY}: {name!r} is not known. Use one of {', '.join(_STRATEGIES)}.")
    return _STRATEGIES[name]


def _flag(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"
