"""What a transaction works with: the store, the table's configuration, the lock and the clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from tablekeeper.config.concurrency_settings import ConcurrencySettings
from tablekeeper.config.lock_settings import ConflictSettings, HeartbeatSettings, LockSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.model import RequestedTime
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, following_time, format_time
from tablekeeper.txn.locks import Lease, TableLock

__all__ = ["TableEnvironment", "next_time", "time_after"]


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

    def locked(self) -> Lease:
        """The table lock, waited for as long as the settings say. Use it in a `with` statement."""
        return self.lock.acquire(timeout_s=self.lock_settings.acquire_timeout_s)


def next_time(environment: TableEnvironment, timeline: Timeline, *, after: str = "") -> str:
    """A time that no action of the table has yet. It is also later than `after`, where that is given.

    Only to be called under the lock, with a timeline that was loaded under it.
    """
    return time_after(environment, max(timeline.newest_time, after))


def time_after(environment: TableEnvironment, newest: str) -> str:
    """Now, or just after the newest time of the table where that is later. Under the lock that it was read under.

    Clocks may disagree, and local time goes back an hour in autumn. Times are ordered by their digits, so these are
    compared and counted on, whatever moments they stand for.
    """
    now = format_time(environment.runtime.clock.now_ms(), zone=environment.config.time_zone)
    return now if not newest or now > RequestedTime(newest).order else following_time(newest)
