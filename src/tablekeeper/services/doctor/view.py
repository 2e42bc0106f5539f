"""What the doctor looks at, loaded once, in an order that keeps running writers from looking like wreckage.

Data files come before the timeline: whatever wrote a file is on the timeline by the time that is read. The timeline is
read before the heartbeats and after them: a write that completed in between has taken its heartbeat away and is not
dead, and one that began in between is left for the next examination.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.partition_metadata import PARTITION_METADATA_NAME
from tablekeeper.model import Instant, RequestedTime
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline import Timeline, load_instant_files, load_timeline, parse_time
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.heartbeat import HeartbeatView, load_heartbeats
from tablekeeper.txn.markers import load_marked_instants

__all__ = ["TableView", "load_data_files", "load_view"]


@dataclass(frozen=True)
class TableView:
    """A table at one moment. `files` are all objects outside `.hoodie` but for sidecars and partition metadata."""

    environment: TableEnvironment
    files: tuple[FileInfo, ...]
    timeline: Timeline
    instant_files: tuple[Instant, ...]
    heartbeats: HeartbeatView
    marked: tuple[str, ...]
    now_ms: int
    safe_age_s: float

    def age_s(self, instant: RequestedTime) -> float:
        """Seconds since the instant was requested, negative for one from the future; endless for what is no time."""
        try:
            requested_ms = parse_time(instant.value, zone=self.environment.config.time_zone)
        except CorruptTableError:
            return math.inf
        return (self.now_ms - requested_ms) / 1000

    def is_old(self, file: FileInfo) -> bool:
        """True if nobody can be about to finish the file."""
        return self.now_ms - file.modified_ms > self.safe_age_s * 1000

    def is_dead(self, instant: Instant) -> bool:
        """No heartbeat, and not so young that it may be about to have one."""
        requested_at = instant.requested_at
        if self.heartbeats.is_active(requested_at):
            return False
        return requested_at in self.heartbeats.ages or self.age_s(requested_at) > self.heartbeats.patience_s


def load_view(environment: TableEnvironment, *, safe_age_s: float) -> TableView:
    """Look at the table as it is now."""
    storage, config = environment.storage, environment.config
    files = tuple(load_data_files(storage))
    marked = tuple(load_marked_instants(storage))
    before = {i.requested_at for i in load_timeline(storage, config)}
    heartbeats = load_heartbeats(storage, settings=environment.heartbeat_settings, runtime=environment.runtime)
    after = load_timeline(storage, config)
    return TableView(
        environment=environment,
        files=files,
        timeline=Timeline(tuple(i for i in after if i.requested_at in before)),
        instant_files=load_instant_files(storage, config),
        heartbeats=heartbeats,
        marked=marked,
        now_ms=environment.runtime.clock.now_ms(),
        safe_age_s=safe_age_s,
    )


def load_data_files(storage: Storage) -> Iterable[FileInfo]:
    """Everything outside `.hoodie`, also in directories that are no partitions yet."""
    roots = [name for name in storage.list_directories("") if name != ".hoodie"]
    found = [*storage.list_files(""), *(file for root in roots for file in storage.walk(root))]
    for file in found:
        if not file.name.endswith(".crc") and not file.name.startswith(PARTITION_METADATA_NAME):
            yield file
