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
from dataclasses import dataclass
from typing import ClassVar, Self

from tablekeeper.config.registry import Setting, Settings, group, named, setting
from tablekeeper.errors import InvalidRequestError

__all__ = ["ConcurrencyMode", "ConcurrencySettings", "EarlyDetection", "FailedWrites"]

_PREFIX = "hoodie.write.concurrency."
_MODE = _PREFIX + "mode"
_FAILED = "hoodie.clean.failed.writes.policy"
_EARLY = _PREFIX + "early.conflict.detection.enable"

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


_FAILED_WRITES = Setting(
    _FAILED,
    None,
    "Pending writes that a new one rolls back: EAGER all, LAZY the dead ones, NEVER none. "
    "LAZY by default, EAGER with a single writer.",
    older="hoodie.cleaner.policy.failed.writes",
    parse=named(FailedWrites),
)


def _is_locked(strategy: str) -> bool:
    name = strategy.rpartition(".")[2]
    if name not in _STRATEGIES:
        raise ValueError(f"{name!r} is not known. Use one of {', '.join(_STRATEGIES)}.")
    return _STRATEGIES[name]


@dataclass(frozen=True, slots=True)
class EarlyDetection(Settings):
    """Whether and how a write looks for others before it writes."""

    is_enabled: bool = setting(
        _EARLY, False, "Look for writers at work on the same file groups before writing, not only at the commit."
    )
    is_locked: bool = setting(
        _PREFIX + "early.conflict.detection.strategy",
        False,
        f"{_UNLOCKED}, or {_LOCKED} to look and announce under the table lock.",
        takes=str,
        parse=_is_locked,
        shown=_UNLOCKED,
    )
    checks_commits: bool = setting(
        _PREFIX + "early.conflict.check.commit.conflict",
        False,
        "Early detection also looks at what was committed since this write began.",
    )

    besides: ClassVar[tuple[Setting, ...]] = (
        Setting(
            _PREFIX + "async.conflict.detector.initial_delay_ms",
            0,
            "Accepted for Java's sake; markers are looked at before the tasks of a write start.",
        ),
        Setting(
            _PREFIX + "async.conflict.detector.period_ms",
            30_000,
            "Accepted for Java's sake; see the key above.",
        ),
    )


@dataclass(frozen=True, slots=True)
class ConcurrencySettings(Settings):
    """How this writer gets along with others."""

    mode: ConcurrencyMode = setting(
        _MODE,
        ConcurrencyMode.OPTIMISTIC,
        "SINGLE_WRITER, OPTIMISTIC_CONCURRENCY_CONTROL or NON_BLOCKING_CONCURRENCY_CONTROL (MOR, bucket index).",
    )
    failed_writes: FailedWrites = FailedWrites.LAZY
    early: EarlyDetection = group(EarlyDetection)
    announcement_wait_ms: int = setting(
        "tablekeeper.planning.announcement.wait.ms",
        60_000,
        "How long the scheduling of a plan waits for a running Java writer to say which file groups it touches.",
        least=0,
    )

    besides: ClassVar[tuple[Setting, ...]] = (_FAILED_WRITES,)

    def _check(self) -> None:
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
    def from_options(cls, options: Mapping[str, str]) -> Self:
        values = cls.read(options)
        default = FailedWrites.EAGER if values["mode"] is ConcurrencyMode.SINGLE_WRITER else FailedWrites.LAZY
        return cls(**values, failed_writes=_FAILED_WRITES.read(options) or default)

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
