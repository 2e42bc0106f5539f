"""The environment of transactions: the store, the table's configuration, the lock and the clock; and how to load it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

from tablekeeper.config.concurrency_settings import (
    ConcurrencySettings,
    ConflictSettings,
    HeartbeatSettings,
    LockSettings,
)
from tablekeeper.config.keys import INDEX_DROP
from tablekeeper.config.options import Options
from tablekeeper.config.table_config import TableConfig
from tablekeeper.config.write_settings import IndexKind, WriteSettings
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.storage.scoped import ScopedStorage
from tablekeeper.timeline import Timeline, later_time, load_timeline
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.heartbeat import HeartbeatView, load_heartbeats
from tablekeeper.txn.locks import Lease, TableLock
from tablekeeper.txn.locks.choose import choose_lock

__all__ = ["LockedEnvironment", "TableEnvironment", "load_environment", "load_examination", "next_time", "time_after"]

_OLDEST_WRITABLE_VERSION = 8
_LEASES = "leases"


@dataclass(frozen=True)
class TableEnvironment:
    """Components and settings of one open table, shared by its transactions.

    `by_bucket`: the table has a bucket index, so that writers conflict when they touch the same bucket.
    `drops_indexes`: the caller consents to losing indexes of the metadata table that an action would leave wrong.
    """

    storage: Storage
    config: TableConfig
    lock: TableLock
    lock_settings: LockSettings
    heartbeat_settings: HeartbeatSettings
    conflict_settings: ConflictSettings
    runtime: Runtime
    by_bucket: bool = False
    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    drops_indexes: bool = False

    def load_timeline(self) -> Timeline:
        """The active timeline as it is now."""
        return load_timeline(self.storage, self.config)

    def load_heartbeats(self) -> HeartbeatView:
        """All heartbeats of the table as of now."""
        return load_heartbeats(self.storage, settings=self.heartbeat_settings, runtime=self.runtime)

    @contextmanager
    def locked(self) -> Iterator[LockedEnvironment]:
        """Take the table lock; the settings say how long to wait for it.

        Under the lock use only the environment that the `with` statement returns, never this one.
        """
        with self.lock.acquire(timeout_s=self.lock_settings.acquire_timeout_s) as lease:
            name = self.runtime.ids.uuid()
            # From here on a former holder of the lock can change nothing, if the store can enforce that.
            self.storage.take_scope(_LEASES, name, look=lease.look)
            lease.change_through(f"{_LEASES}/{name}")
            guarded = ScopedStorage(self.storage, f"{_LEASES}/{name}", look=lease.look)
            parts = {each.name: getattr(self, each.name) for each in fields(TableEnvironment)}
            yield LockedEnvironment(**{**parts, "storage": guarded}, lease=lease, unlocked=self)


@dataclass(frozen=True, kw_only=True)
class LockedEnvironment(TableEnvironment):
    """The environment while the lock is held: it checks the lease before every change of the store.

    So a process that slept until its lease expired changes nothing more, at whatever step it wakes up. This check costs
    no I/O; `lease.check` also asks the store, and is for the decisive moments. `unlocked` is for work that outlives the
    lock.
    """

    lease: Lease
    unlocked: TableEnvironment


def load_environment(
    storage: Storage, options: Options, *, runtime: Runtime, config: TableConfig | None = None
) -> TableEnvironment:
    """The environment of transactions on the table; refuses tables that tablekeeper cannot write.

    `config` is the content of the properties file, if it was just read.
    """
    config = config or load_table_config(storage)
    _refuse_read_only(config)
    by_bucket = WriteSettings.of_table(options.given, key_fields=config.key_fields).index is IndexKind.BUCKET
    concurrency = ConcurrencySettings.from_options(options.given)
    concurrency.refuse_unfit_table(table=config.name, is_mor=config.is_mor, has_buckets=by_bucket)
    return replace(
        load_examination(storage, options, runtime=runtime, config=config),
        by_bucket=by_bucket,
        concurrency=concurrency,
        drops_indexes=options.flag(INDEX_DROP),
    )


def load_examination(
    storage: Storage, options: Options, *, runtime: Runtime, config: TableConfig | None = None
) -> TableEnvironment:
    """The environment of an examination, also of a table that tablekeeper cannot write. It changes nothing."""
    config = config or load_table_config(storage)
    settings = LockSettings.from_options(options.given)
    return TableEnvironment(
        storage=storage,
        config=config,
        lock=choose_lock(storage, options=settings, runtime=runtime, table_name=config.name),
        lock_settings=settings,
        heartbeat_settings=HeartbeatSettings.from_options(options.given),
        conflict_settings=ConflictSettings.from_options(options.given),
        runtime=runtime,
    )


def next_time(environment: TableEnvironment, timeline: Timeline, *, after: str = "") -> str:
    """A new time, later than all times of the table and than `after`.

    To be called only under the lock, with a timeline that was loaded under it.
    """
    return time_after(environment, max(timeline.newest_time, after))


def time_after(environment: TableEnvironment, newest: str) -> str:
    """Now, or just after the newest time of the table if that is later. Under the lock under which it was read."""
    return later_time(newest, now_ms=environment.runtime.clock.now_ms(), zone=environment.config.time_zone)


def _refuse_read_only(config: TableConfig) -> None:
    if config.version < _OLDEST_WRITABLE_VERSION:
        raise UnsupportedFeatureError(
            f"table {config.name} has version {config.version}, which tablekeeper only reads. "
            "Any write by Java Hudi 1.x upgrades it to version 9."
        )
    if not config.has_meta_columns:
        raise UnsupportedFeatureError(
            f"table {config.name} has no meta columns, and tablekeeper only reads it. Write it in Java."
        )
    if not config.key_fields:
        raise UnsupportedFeatureError(
            f"table {config.name} has generated keys, and tablekeeper only reads it. Write it in Java."
        )
    if config.keeps_change_log:
        raise UnsupportedFeatureError(
            f"table {config.name} keeps a change log (CDC), which tablekeeper does not write: it only reads the table. "
            "Write it in Java."
        )
    if config.drops_partition_columns:
        raise UnsupportedFeatureError(
            f"table {config.name} leaves its partition columns out of the files, and tablekeeper only reads it. "
            "Write it in Java."
        )
