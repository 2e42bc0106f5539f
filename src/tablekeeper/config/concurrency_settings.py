"""How writers share a table: the concurrency mode, locks, heartbeats and conflict detection, under Java's keys.

Two defaults differ. Java assumes a single writer and no lock unless told otherwise; here a table is always locked and
open to many writers, so that the mode in effect is OPTIMISTIC_CONCURRENCY_CONTROL. And `client.num_retries` is 0 where
Java has 50, so that a lock that is stuck is reported after a minute and not after an hour.

| mode | commits | failed writes by default |
|---|---|---|
| SINGLE_WRITER | are checked anyway: a mistaken second writer causes an error, not lost rows | EAGER |
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
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = [
    "CandidateStrategy",
    "ConcurrencyMode",
    "ConcurrencySettings",
    "ConflictSettings",
    "EarlyDetection",
    "FailedWrites",
    "HeartbeatSettings",
    "LockProvider",
    "LockSettings",
    "ZookeeperSettings",
]


_LOCK = "hoodie.write.lock."
_PROVIDER = _LOCK + "provider"
_VALIDITY = _LOCK + "storage.validity.timeout.secs"
_RENEWAL = _LOCK + "storage.renew.interval.secs"
_ZK_URL = _LOCK + "zookeeper.url"
_ZK_PORT = _LOCK + "zookeeper.port"
_ZK_BASE_PATH = _LOCK + "zookeeper.base_path"
_ZK_LOCK_KEY = _LOCK + "zookeeper.lock_key"
_UPDATES = "hoodie.clustering.updates.strategy"

_ZK_DEFAULT_PORT = 2181
_SIMPLE = "SimpleConcurrentFileWritesConflictResolutionStrategy"
_END_TIMESTAMP = "EndTimestampBasedConcurrentFileWritesConflictResolutionStrategy"
_REJECT_UPDATES = "SparkRejectUpdateStrategy"
_ALLOW_UPDATES = "SparkAllowUpdateStrategy"


class LockProvider(enum.Enum):
    """Kinds of lock that exist here; the value is the name of Java's class."""

    IN_PROCESS = "InProcessLockProvider"
    FILE_SYSTEM = "FileSystemBasedLockProvider"
    STORAGE_BASED = "StorageBasedLockProvider"
    ZOOKEEPER = "ZookeeperBasedLockProvider"
    ZOOKEEPER_BY_TABLE_PATH = "ZookeeperBasedImplicitBasePathLockProvider"


@dataclass(frozen=True, slots=True)
class ZookeeperSettings(Settings):
    """Where a lock is in ZooKeeper, and how long its sessions live. None: not given."""

    url: str | None = setting(
        _ZK_URL, None, "ZooKeeper servers as host:port, separated by commas; needed for the ZooKeeper lock."
    )
    port: int | None = setting(
        _ZK_PORT,
        None,
        "Ignored, as in Java: the port belongs in the URL; the default is 2181.",
        takes=int,
    )
    base_path: str | None = setting(
        _ZK_BASE_PATH, None, "Path in ZooKeeper below which the locks are, the same for all writers."
    )
    lock_key: str | None = setting(
        _ZK_LOCK_KEY, None, "Name of the table's lock below that path; the name of the table by default."
    )
    session_timeout_ms: int = setting(
        _LOCK + "zookeeper.session_timeout_ms",
        60_000,
        "Milliseconds after which ZooKeeper frees the lock of a writer that went silent.",
        least=1_000,
    )
    connection_timeout_ms: int = setting(
        _LOCK + "zookeeper.connection_timeout_ms",
        15_000,
        "Milliseconds to wait for a connection with ZooKeeper.",
        least=1,
    )

    def servers(self) -> str:
        """What to connect to. A port that Java would not use is refused: the two would meet at different servers."""
        if self.url is None:
            raise InvalidRequestError(
                f"the ZooKeeper lock needs {_ZK_URL}, for example zk1:2181,zk2:2181. Add it to the options."
            )
        hosts = self.url.partition("/")[0].split(",")
        if self.port not in (None, _ZK_DEFAULT_PORT) and any(":" not in host for host in hosts):
            raise InvalidRequestError(
                f"{_ZK_PORT} is {self.port}, but Java takes ports from {_ZK_URL} alone, and would look for {self.url} "
                f"at {_ZK_DEFAULT_PORT}. Write the port into the URL, for all writers: {hosts[0]}:{self.port}"
            )
        return self.url

    def lock_path(self, *, table_name: str | None) -> str:
        """The node whose children are the writers that want the lock."""
        key = self.lock_key or table_name
        if self.base_path is None or key is None:
            missing = _ZK_BASE_PATH if self.base_path is None else _ZK_LOCK_KEY
            raise InvalidRequestError(f"the ZooKeeper lock needs {missing}, the same as that of the other writers.")
        path = f"{self.base_path}/{key}"
        if not path.startswith("/") or any(part in {"", ".", ".."} for part in path[1:].split("/")):
            raise InvalidRequestError(
                f"{path!r} is no path in ZooKeeper, and Java would refuse it too. Let {_ZK_BASE_PATH} begin with a "
                f"slash and end without one, and leave no part of it or of {_ZK_LOCK_KEY} empty."
            )
        return path


@dataclass(frozen=True, slots=True)
class LockSettings(Settings):
    """How the table lock is chosen, waited for and kept. `provider` is a Java class name, or None: by the path."""

    provider: str | None = setting(
        _PROVIDER, None, "Lock provider class as in Java; chosen by the kind of path if not given."
    )
    file_system_path: str | None = setting(
        _LOCK + "filesystem.path", None, "Directory of the file system lock; `.hoodie` of the table by default."
    )
    file_system_expire_minutes: int = setting(
        _LOCK + "filesystem.expire",
        0,
        "Minutes after which a file system lock that is not renewed counts as abandoned; 0 is never.",
        least=0,
    )
    wait_ms: int = setting(_LOCK + "wait_time_ms", 60_000, "Milliseconds that one attempt waits for the lock.", least=0)
    pause_ms: int = setting(
        _LOCK + "wait_time_ms_between_retry",
        1_000,
        "Longest pause between two looks at a lock that is held, in milliseconds.",
        least=1,
    )
    retries: int = setting(
        _LOCK + "client.num_retries", 0, "How many more attempts follow one that timed out.", least=0
    )
    retry_pause_ms: int = setting(
        _LOCK + "client.wait_time_ms_between_retry", 5_000, "Milliseconds between such attempts.", least=0
    )
    validity_s: int = setting(_VALIDITY, 300, "Seconds that a lock is good for without being renewed.", least=10)
    renew_interval_s: int = setting(
        _RENEWAL,
        30,
        "Seconds between renewals of a lock that is held.",
        least=1,
        older=_LOCK + "storage.heartbeat.poll.secs",
    )
    zookeeper: ZookeeperSettings = group(ZookeeperSettings)

    besides: ClassVar[tuple[Setting, ...]] = (
        Setting(
            _LOCK + "max_wait_time_ms_between_retry",
            16_000,
            "Accepted for compatibility with Java; the key without `max_` limits the pauses.",
        ),
        Setting(
            _LOCK + "num_retries",
            15,
            "Accepted for compatibility with Java; only time limits the wait for a lock.",
        ),
    )

    def _check(self) -> None:
        if self.validity_s < 10 * self.renew_interval_s:
            raise InvalidRequestError(
                f"{_VALIDITY} ({self.validity_s}) must be at least ten times {_RENEWAL} ({self.renew_interval_s}), "
                f"so that a few failed renewals do not cost the lock. Raise the one or lower the other."
            )

    def known_provider(self) -> LockProvider | None:
        """The provider that is named, with or without its package; None if the path decides."""
        if self.provider is None:
            return None
        try:
            return LockProvider(self.provider.rpartition(".")[2])
        except ValueError:
            known = ", ".join(kind.value for kind in LockProvider)
            raise UnsupportedFeatureError(
                f"{_PROVIDER}: {self.provider} is not supported, and another lock would not keep out the writers that "
                f"use it. Give all writers of the table one of {known}, or stop the others and remove the setting."
            ) from None

    @property
    def acquire_timeout_s(self) -> float:
        """How long to wait for the lock in all: every attempt and the pauses between them."""
        return (self.wait_ms + self.retries * (self.retry_pause_ms + self.wait_ms)) / 1000


@dataclass(frozen=True, slots=True)
class HeartbeatSettings(Settings):
    """How often a running write shows that it lives, and when silence means that it is dead.

    `skew_allowance_ms` is granted to others on top, for clocks that differ between us, them and the store.
    """

    interval_ms: int = setting(
        "hoodie.client.heartbeat.interval_in_ms",
        60_000,
        "Milliseconds between heartbeats of a running write.",
        least=1_000,
    )
    tolerable_misses: int = setting(
        "hoodie.client.heartbeat.tolerable.misses",
        2,
        "Heartbeats that may be missed before a write counts as dead.",
        least=1,
    )
    skew_allowance_ms: int = setting(
        "tablekeeper.heartbeat.skew.allowance.ms",
        10_000,
        "Milliseconds that are granted to others on top, for clocks that differ.",
        least=0,
    )

    @property
    def tolerance_ms(self) -> int:
        """Silence that is still no proof of death."""
        return self.interval_ms * self.tolerable_misses


class CandidateStrategy(enum.Enum):
    """Which completed instants a commit is checked against."""

    START_TIMESTAMP = _SIMPLE
    END_TIMESTAMP = _END_TIMESTAMP


_REMOVED = {
    "BucketIndexConcurrentFileWritesConflictResolutionStrategy": (
        "tables with a bucket index are recognised and compared by bucket without it"
    ),
    "IngestionPrimaryWriterBasedConflictResolutionStrategy": (
        f"set {_UPDATES}={_ALLOW_UPDATES} to let ingestion win over clustering"
    ),
    "PreferWriterConflictResolutionStrategy": (
        f"use {_END_TIMESTAMP} and set {_UPDATES}={_ALLOW_UPDATES} to let ingestion win over clustering"
    ),
}


def _strategy(class_name: str) -> CandidateStrategy:
    name = class_name.rpartition(".")[2]
    if name in _REMOVED:
        raise ValueError(f"remove {name}, it is no strategy of its own: {_REMOVED[name]}.")
    try:
        return CandidateStrategy(name)
    except ValueError:
        known = " or ".join(strategy.value for strategy in CandidateStrategy)
        raise ValueError(f"{name!r} is not known. Use {known}.") from None


def _allows_updates(class_name: str) -> bool:
    name = class_name.rpartition(".")[2]
    if name not in (_ALLOW_UPDATES, _REJECT_UPDATES):
        raise ValueError(f"{name!r} is not known. Use {_REJECT_UPDATES} or {_ALLOW_UPDATES}.")
    return name == _ALLOW_UPDATES


@dataclass(frozen=True, slots=True)
class ConflictSettings(Settings):
    """How conflicts are found. With `allow_updates` ingestion wins over clustering that is not completed.

    Class names are taken with or without their package.
    """

    strategy: CandidateStrategy = setting(
        _LOCK + "conflict.resolution.strategy",
        CandidateStrategy.START_TIMESTAMP,
        "Which completed instants a commit is checked against.",
        shown=f"org.apache.hudi.client.transaction.{_SIMPLE}",
        parse=_strategy,
    )
    allow_updates: bool = setting(
        _UPDATES,
        False,
        "Whether writers may update files that are being clustered.",
        takes=str,
        shown=f"org.apache.hudi.client.clustering.update.strategy.{_REJECT_UPDATES}",
        parse=_allows_updates,
    )


_CONCURRENCY = "hoodie.write.concurrency."
_MODE = _CONCURRENCY + "mode"
_FAILED = "hoodie.clean.failed.writes.policy"
_EARLY = _CONCURRENCY + "early.conflict.detection.enable"

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
        _EARLY, False, "Look for writers of the same file groups before writing, not only at the commit."
    )
    is_locked: bool = setting(
        _CONCURRENCY + "early.conflict.detection.strategy",
        False,
        f"{_UNLOCKED}, or {_LOCKED} to look and announce under the table lock.",
        takes=str,
        parse=_is_locked,
        shown=_UNLOCKED,
    )
    checks_commits: bool = setting(
        _CONCURRENCY + "early.conflict.check.commit.conflict",
        False,
        "Early detection also checks commits since this write began.",
    )

    besides: ClassVar[tuple[Setting, ...]] = (
        Setting(
            _CONCURRENCY + "async.conflict.detector.initial_delay_ms",
            0,
            "Accepted for compatibility with Java; markers are checked before the tasks of a write start.",
        ),
        Setting(
            _CONCURRENCY + "async.conflict.detector.period_ms",
            30_000,
            "Accepted for compatibility with Java; see the key above.",
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
                f"{_FAILED}=EAGER rolls back writes that are still running, and therefore needs {_MODE}=SINGLE_WRITER; "
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
