"""Settings of locks, heartbeats and conflict detection, under the keys that Java users know.

Defaults are Java's but for one: `client.num_retries` is 0 where Java has 50, so that a lock that is
stuck is reported after a minute and not after an hour.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from tablekeeper.config.registry import Setting, Settings, group, setting
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = [
    "CandidateStrategy",
    "ConflictSettings",
    "HeartbeatSettings",
    "LockProvider",
    "LockSettings",
    "ZookeeperSettings",
]

_PREFIX = "hoodie.write.lock."
_PROVIDER = _PREFIX + "provider"
_VALIDITY = _PREFIX + "storage.validity.timeout.secs"
_RENEWAL = _PREFIX + "storage.renew.interval.secs"
_ZK_URL = _PREFIX + "zookeeper.url"
_ZK_PORT = _PREFIX + "zookeeper.port"
_ZK_BASE_PATH = _PREFIX + "zookeeper.base_path"
_ZK_LOCK_KEY = _PREFIX + "zookeeper.lock_key"
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
        "As in Java not looked at: the port belongs into the URL, and 2181 is taken if it has none.",
        takes=int,
    )
    base_path: str | None = setting(
        _ZK_BASE_PATH, None, "Path in ZooKeeper below which the locks are, the same for all writers."
    )
    lock_key: str | None = setting(
        _ZK_LOCK_KEY, None, "Name of the table's lock below that path; the name of the table by default."
    )
    session_timeout_ms: int = setting(
        _PREFIX + "zookeeper.session_timeout_ms",
        60_000,
        "Milliseconds after which ZooKeeper frees the lock of a writer that went silent.",
        least=1_000,
    )
    connection_timeout_ms: int = setting(
        _PREFIX + "zookeeper.connection_timeout_ms",
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
        _PREFIX + "filesystem.path", None, "Directory of the file system lock; `.hoodie` of the table by default."
    )
    file_system_expire_minutes: int = setting(
        _PREFIX + "filesystem.expire",
        0,
        "Minutes after which a file system lock that is not renewed counts as abandoned; 0 is never.",
        least=0,
    )
    wait_ms: int = setting(
        _PREFIX + "wait_time_ms", 60_000, "Milliseconds that one attempt waits for the lock.", least=0
    )
    pause_ms: int = setting(
        _PREFIX + "wait_time_ms_between_retry",
        1_000,
        "Longest pause between two looks at a lock that is held, in milliseconds.",
        least=1,
    )
    retries: int = setting(
        _PREFIX + "client.num_retries", 0, "How many more attempts follow one that waited in vain.", least=0
    )
    retry_pause_ms: int = setting(
        _PREFIX + "client.wait_time_ms_between_retry", 5_000, "Milliseconds between such attempts.", least=0
    )
    validity_s: int = setting(_VALIDITY, 300, "Seconds that a lock is good for without being renewed.", least=10)
    renew_interval_s: int = setting(
        _RENEWAL,
        30,
        "Seconds between renewals of a lock that is held.",
        least=1,
        older=_PREFIX + "storage.heartbeat.poll.secs",
    )
    zookeeper: ZookeeperSettings = group(ZookeeperSettings)

    besides: ClassVar[tuple[Setting, ...]] = (
        Setting(
            _PREFIX + "max_wait_time_ms_between_retry",
            16_000,
            "Accepted for Java's sake; pauses are bounded by the key without `max_`.",
        ),
        Setting(
            _PREFIX + "num_retries",
            15,
            "Accepted for Java's sake; waiting for a lock is bounded by time alone.",
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
        _PREFIX + "conflict.resolution.strategy",
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
