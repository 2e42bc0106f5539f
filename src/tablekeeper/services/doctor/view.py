"""What the doctor looks at, loaded once, in an order that keeps running writers from looking like wreckage.

Data files come before the timeline: whatever wrote a file is on the timeline by the time that is read. The timeline is
read before the heartbeats and after them: a write that completed in between has taken its heartbeat away and is not
dead, and one that began in between is left for the next examination. Requests to cancel plans come before the
timeline too: the plan of each was there when it was made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.model import Instant, RequestedTime
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline import Timeline, instant_path, load_instant_files, parse_time
from tablekeeper.txn.cancel_requests import CancelRequest, load_cancel_requests
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.heartbeat import HeartbeatView
from tablekeeper.txn.lost_completions import load_files_of_lost_completion
from tablekeeper.txn.markers import load_marked_instants

__all__ = ["DoctorSettings", "TableView", "load_data_files", "load_view"]


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """From which age on what is left behind may be deleted, and how plans and cleans are dealt with.

    Data files are deleted only if they are few, or a small share of the table; with `deletes_many` also beyond that.
    `deep` reads every base file.
    """

    safe_age_s: float = 3600.0
    lifecycle: LifecycleSettings = field(default_factory=LifecycleSettings)
    clean: CleanSettings = field(default_factory=CleanSettings)
    deletes_many: bool = False
    deep: bool = False

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, safe_age_s: float, deletes_many: bool = False, deep: bool = False
    ) -> DoctorSettings:
        return cls(
            safe_age_s,
            LifecycleSettings.from_options(options),
            CleanSettings.from_options(options),
            deletes_many,
            deep,
        )


@dataclass(frozen=True)
class TableView:
    """A table at one moment. `files` are all objects outside `.hoodie` but for sidecars and partition metadata."""

    environment: TableEnvironment
    files: tuple[FileInfo, ...]
    timeline: Timeline
    instant_files: tuple[Instant, ...]
    heartbeats: HeartbeatView
    marked: tuple[str, ...]
    cancel_requests: tuple[CancelRequest, ...]
    now_ms: int
    settings: DoctorSettings

    @cached_property
    def paths(self) -> frozenset[str]:
        """Where `files` lie."""
        return frozenset(file.path for file in self.files)

    @cached_property
    def lost_completions(self) -> Mapping[RequestedTime, frozenset[str]]:
        """The data files of pending writes that had completed, by instant."""
        found = {i.requested_at: load_files_of_lost_completion(self.environment, i) for i in self.timeline.pending}
        return {instant: files for instant, files in found.items() if files}

    def age_s(self, instant: RequestedTime) -> float:
        """Seconds since the instant was requested, negative for one from the future; endless for what is no time."""
        try:
            requested_ms = parse_time(instant.value, zone=self.environment.config.time_zone)
        except CorruptTableError:
            return math.inf
        return (self.now_ms - requested_ms) / 1000

    def age_text(self, instant: RequestedTime) -> str:
        """The same for people."""
        seconds = self.age_s(instant)
        for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
            if seconds >= 2 * size:
                return f"{seconds / size:.0f} {unit}"
        return f"{seconds:.0f} s"

    def is_old(self, file: FileInfo) -> bool:
        """True if nobody can be about to finish the file."""
        return self.now_ms - file.modified_ms > self.settings.safe_age_s * 1000

    def is_dead(self, instant: Instant) -> bool:
        """No heartbeat, and not so young that it may be about to have one."""
        requested_at = instant.requested_at
        if self.heartbeats.is_active(requested_at):
            return False
        return requested_at in self.heartbeats.ages or self.age_s(requested_at) > self.heartbeats.lapses_after_s

    def is_abandoned(self, instant: Instant) -> bool:
        """For services, which Java runs without a heartbeat where it writes alone: nobody has touched it for long.

        A heartbeat that lapsed is proof enough; without one the attempt has to have been silent for the safe age.
        """
        requested_at = instant.requested_at
        if self.heartbeats.is_active(requested_at):
            return False
        has_beaten = requested_at in self.heartbeats.ages
        limit_s = self.heartbeats.lapses_after_s if has_beaten else self.settings.safe_age_s
        return self._silent_s(instant) > limit_s

    def _silent_s(self, instant: Instant) -> float:
        """Seconds since the last state of the instant, or the last data file of that time, was written."""
        environment = self.environment
        state = environment.storage.stat(instant_path(environment.config, instant))
        if state is None:
            # It has moved on since the timeline was loaded.
            return 0.0
        mark = instant.requested_at.value
        times = [file.modified_ms for file in self.files if mark in file.name]
        return (self.now_ms - max([state.modified_ms, *times])) / 1000


def load_view(environment: TableEnvironment, settings: DoctorSettings) -> TableView:
    """Look at the table as it is now."""
    storage, config = environment.storage, environment.config
    files = tuple(load_data_files(storage))
    marked = tuple(load_marked_instants(storage))
    requests = tuple(load_cancel_requests(storage))
    before = {i.requested_at for i in environment.load_timeline()}
    heartbeats = environment.load_heartbeats()
    after = environment.load_timeline()
    return TableView(
        environment=environment,
        files=files,
        timeline=replace(after, instants=tuple(i for i in after if i.requested_at in before)),
        instant_files=load_instant_files(storage, config),
        heartbeats=heartbeats,
        marked=marked,
        cancel_requests=requests,
        now_ms=environment.runtime.clock.now_ms(),
        settings=settings,
    )


def load_data_files(storage: Storage) -> Iterable[FileInfo]:
    """Everything outside `.hoodie`, also in directories that are no partitions yet."""
    roots = [name for name in storage.list_directories("") if name != ".hoodie"]
    found = [*storage.list_files(""), *(file for root in roots for file in storage.walk(root))]
    for file in found:
        if not file.name.endswith(".crc") and not file.name.startswith(PARTITION_METADATA_NAME):
            yield file
