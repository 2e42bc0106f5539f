"""Settings of locks, heartbeats and conflict detection, under the keys that Java users know.

Defaults are Java's but for one: `client.num_retries` is 0 where Java has 50, so that a lock that is
stuck is reported after a minute and not after an hour.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = [
    "LOCK_OPTIONS",
    "CandidateStrategy",
    "ConflictSettings",
    "HeartbeatSettings",
    "LockProvider",
    "LockSettings",
    "ZookeeperSettings",
]

_PREFIX = "hoodie.write.lock."
_PROVIDER = _PREFIX + "provider"
_PATH = _PREFIX + "filesystem.path"
_EXPIRE = _PREFIX + "filesystem.expire"
_WAIT = _PREFIX + "wait_time_ms"
_PAUSE = _PREFIX + "wait_time_ms_between_retry"
_LONGEST_PAUSE = _PREFIX + "max_wait_time_ms_between_retry"
_PROVIDER_RETRIES = _PREFIX + "num_retries"
_RETRIES = _PREFIX + "client.num_retries"
_RETRY_PAUSE = _PREFIX + "client.wait_time_ms_between_retry"
_VALIDITY = _PREFIX + "storage.validity.timeout.secs"
_RENEWAL = _PREFIX + "storage.renew.interval.secs"
_RENEWAL_OLD = _PREFIX + "storage.heartbeat.poll.secs"
_ZK_URL = _PREFIX + "zookeeper.url"
_ZK_PORT = _PREFIX + "zookeeper.port"
_ZK_BASE_PATH = _PREFIX + "zookeeper.base_path"
_ZK_LOCK_KEY = _PREFIX + "zookeeper.lock_key"
_ZK_SESSION = _PREFIX + "zookeeper.session_timeout_ms"
_ZK_CONNECTION = _PREFIX + "zookeeper.connection_timeout_ms"
_STRATEGY = _PREFIX + "conflict.resolution.strategy"
_UPDATES = "hoodie.clustering.updates.strategy"
_BEAT = "hoodie.client.heartbeat.interval_in_ms"
_MISSES = "hoodie.client.heartbeat.tolerable.misses"
_SKEW = "tablekeeper.heartbeat.skew.allowance.ms"

_ZK_DEFAULT_PORT = 2181
_TRANSACTION = "org.apache.hudi.client.transaction."
_SIMPLE = "SimpleConcurrentFileWritesConflictResolutionStrategy"
_END_TIMESTAMP = "EndTimestampBasedConcurrentFileWritesConflictResolutionStrategy"
_REJECT_UPDATES = "SparkRejectUpdateStrategy"
_ALLOW_UPDATES = "SparkAllowUpdateStrategy"
_UPDATE_PACKAGE = "org.apache.hudi.client.clustering.update.strategy."

LOCK_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (_PROVIDER, None, str, "Lock provider class as in Java; chosen by the kind of path if not given."),
    (_PATH, None, str, "Directory of the file system lock; `.hoodie` of the table by default."),
    (_EXPIRE, "0", int, "Minutes after which a file system lock that is not renewed counts as abandoned; 0 is never."),
    (_WAIT, "60000", int, "Milliseconds that one attempt waits for the lock."),
    (_PAUSE, "1000", int, "Longest pause between two looks at a lock that is held, in milliseconds."),
    (_LONGEST_PAUSE, "16000", int, "Accepted for Java's sake; pauses are bounded by the key without `max_`."),
    (_PROVIDER_RETRIES, "15", int, "Accepted for Java's sake; waiting for a lock is bounded by time alone."),
    (_RETRIES, "0", int, "How many more attempts follow one that waited in vain."),
    (_RETRY_PAUSE, "5000", int, "Milliseconds between such attempts."),
    (_VALIDITY, "300", int, "Seconds that a lock is good for without being renewed."),
    (_RENEWAL, "30", int, "Seconds between renewals of a lock that is held."),
    (_RENEWAL_OLD, None, int, "Older name of the renewal interval."),
    (_ZK_URL, None, str, "ZooKeeper servers as host:port, separated by commas; needed for the ZooKeeper lock."),
    (_ZK_PORT, None, int, "As in Java not looked at: the port belongs into the URL, and 2181 is taken if it has none."),
    (_ZK_BASE_PATH, None, str, "Path in ZooKeeper below which the locks are, the same for all writers."),
    (_ZK_LOCK_KEY, None, str, "Name of the table's lock below that path; the name of the table by default."),
    (_ZK_SESSION, "60000", int, "Milliseconds after which ZooKeeper frees the lock of a writer that went silent."),
    (_ZK_CONNECTION, "15000", int, "Milliseconds to wait for a connection with ZooKeeper."),
    (_STRATEGY, _TRANSACTION + _SIMPLE, str, "Which completed instants a commit is checked against."),
    (
        _UPDATES,
        _UPDATE_PACKAGE + _REJECT_UPDATES,
        str,
        "Whether writers may update files that are being clustered.",
    ),
    (_BEAT, "60000", int, "Milliseconds between heartbeats of a running write."),
    (_MISSES, "2", int, "Heartbeats that may be missed before a write counts as dead."),
    (_SKEW, "10000", int, "Milliseconds that are granted to others on top, for clocks that differ."),
)
"""Known options as (name, default, type, meaning)."""

_DEFAULTS = {name: default for name, default, _, _ in LOCK_OPTIONS}


class LockProvider(enum.Enum):
    """Kinds of lock that exist here; the value is the name of Java's class."""

    IN_PROCESS = "InProcessLockProvider"
    FILE_SYSTEM = "FileSystemBasedLockProvider"
    STORAGE_BASED = "StorageBasedLockProvider"
    ZOOKEEPER = "ZookeeperBasedLockProvider"
    ZOOKEEPER_BY_TABLE_PATH = "ZookeeperBasedImplicitBasePathLockProvider"


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    """Where a lock is in ZooKeeper, and how long its sessions live. None: not given."""

    url: str | None = None
    port: int | None = None
    base_path: str | None = None
    lock_key: str | None = None
    session_timeout_ms: int = 60_000
    connection_timeout_ms: int = 15_000

    def __post_init__(self) -> None:
        _at_least(_ZK_SESSION, self.session_timeout_ms, 1_000)
        _at_least(_ZK_CONNECTION, self.connection_timeout_ms, 1)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ZookeeperSettings:
        """From options by name; the defaults where they say nothing."""
        return cls(
            url=options.get(_ZK_URL) or None,
            port=_whole(options, _ZK_PORT) if options.get(_ZK_PORT) else None,
            base_path=options.get(_ZK_BASE_PATH) or None,
            lock_key=options.get(_ZK_LOCK_KEY) or None,
            session_timeout_ms=_whole(options, _ZK_SESSION),
            connection_timeout_ms=_whole(options, _ZK_CONNECTION),
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
class LockSettings:
    """How the table lock is chosen, waited for and kept. `provider` is a Java class name, or None: by the path."""

    provider: str | None = None
    file_system_path: str | None = None
    file_system_expire_minutes: int = 0
    wait_ms: int = 60_000
    pause_ms: int = 1_000
    retries: int = 0
    retry_pause_ms: int = 5_000
    validity_s: int = 300
    renew_interval_s: int = 30
    zookeeper: ZookeeperSettings = field(default_factory=ZookeeperSettings)

    def __post_init__(self) -> None:
        _at_least(_EXPIRE, self.file_system_expire_minutes, 0)
        _at_least(_WAIT, self.wait_ms, 0)
        _at_least(_PAUSE, self.pause_ms, 1)
        _at_least(_RETRIES, self.retries, 0)
        _at_least(_RETRY_PAUSE, self.retry_pause_ms, 0)
        _at_least(_RENEWAL, self.renew_interval_s, 1)
        _at_least(_VALIDITY, self.validity_s, 10)
        if self.validity_s < 10 * self.renew_interval_s:
            raise InvalidRequestError(
                f"{_VALIDITY} ({self.validity_s}) must be at least ten times {_RENEWAL} ({self.renew_interval_s}), "
                f"so that a few failed renewals do not cost the lock. Raise the one or lower the other."
            )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> LockSettings:
        """From options by name; the defaults where they say nothing."""
        renewal = _RENEWAL if _RENEWAL in options or _RENEWAL_OLD not in options else _RENEWAL_OLD
        return cls(
            provider=options.get(_PROVIDER) or None,
            file_system_path=options.get(_PATH) or None,
            file_system_expire_minutes=_whole(options, _EXPIRE),
            wait_ms=_whole(options, _WAIT),
            pause_ms=_whole(options, _PAUSE),
            retries=_whole(options, _RETRIES),
            retry_pause_ms=_whole(options, _RETRY_PAUSE),
            validity_s=_whole(options, _VALIDITY),
            renew_interval_s=_whole(options, renewal),
            zookeeper=ZookeeperSettings.from_options(options),
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
class HeartbeatSettings:
    """How often a running write shows that it lives, and when silence means that it is dead.

    `skew_allowance_ms` is granted to others on top, for clocks that differ between us, them and the store.
    """

    interval_ms: int = 60_000
    tolerable_misses: int = 2
    skew_allowance_ms: int = 10_000

    def __post_init__(self) -> None:
        _at_least(_BEAT, self.interval_ms, 1_000)
        _at_least(_MISSES, self.tolerable_misses, 1)
        _at_least(_SKEW, self.skew_allowance_ms, 0)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> HeartbeatSettings:
        """From options by name; the defaults where they say nothing."""
        return cls(
            interval_ms=_whole(options, _BEAT),
            tolerable_misses=_whole(options, _MISSES),
            skew_allowance_ms=_whole(options, _SKEW),
        )

    @property
    def tolerance_ms(self) -> int:
        """Silence that is still no proof of death."""
        return self.interval_ms * self.tolerable_misses


class CandidateStrategy(enum.Enum):
    """Which completed instants a commit is checked against."""

    START_TIMESTAMP = _SIMPLE
    END_TIMESTAMP = _END_TIMESTAMP


@dataclass(frozen=True, slots=True)
class ConflictSettings:
    """How conflicts are found. With `allow_updates` ingestion wins over clustering that is not completed."""

    strategy: CandidateStrategy = CandidateStrategy.START_TIMESTAMP
    allow_updates: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ConflictSettings:
        """From options by name; class names are taken with or without their package."""
        return cls(
            strategy=_strategy(options.get(_STRATEGY, _SIMPLE).rpartition(".")[2]),
            allow_updates=_allows_updates(options.get(_UPDATES, _REJECT_UPDATES).rpartition(".")[2]),
        )


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


def _strategy(name: str) -> CandidateStrategy:
    if name in _REMOVED:
        raise InvalidRequestError(f"{_STRATEGY}: remove {name}, it is no strategy of its own: {_REMOVED[name]}.")
    try:
        return CandidateStrategy(name)
    except ValueError:
        known = " or ".join(strategy.value for strategy in CandidateStrategy)
        raise InvalidRequestError(f"{_STRATEGY}: {name!r} is not known. Use {known}.") from None


def _allows_updates(name: str) -> bool:
    if name not in (_ALLOW_UPDATES, _REJECT_UPDATES):
        raise InvalidRequestError(f"{_UPDATES}: {name!r} is not known. Use {_REJECT_UPDATES} or {_ALLOW_UPDATES}.")
    return name == _ALLOW_UPDATES


def _whole(options: Mapping[str, str], name: str) -> int:
    text = options.get(name) or _DEFAULTS[name] or ""
    try:
        return int(text)
    except ValueError:
        raise InvalidRequestError(f"{name}: {text!r} is not a whole number. Correct or remove it.") from None


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidRequestError(f"{name}: {value} is too small, the least is {least}. Raise it.")
