"""A merge-on-read table in memory that is only planned on: its data files have names and sizes, and nothing in them.

Every change is made by hand at the level of timeline and files, so that thousands of histories run in a minute, and so
that things happen that the real code would not do, such as commits which are archived at the wrong moment. One byte of
a data file stands for a megabyte.

Times are seconds: `time_of(7)` is the seventh second of the day on which everything happens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tablekeeper.config.concurrency_settings import ConflictSettings, HeartbeatSettings, LockSettings
from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings, LogCompactionSettings
from tablekeeper.config.table_config import parse_table_config
from tablekeeper.format.commit_metadata import decode_commit_metadata, encode_commit_metadata
from tablekeeper.format.data_files import (
    PARTITION_METADATA_NAME,
    encode_base_name,
    encode_log_name,
    encode_partition_metadata,
)
from tablekeeper.format.history import (
    ArchivedInstant,
    HistoryFile,
    HistoryName,
    encode_history_file,
    encode_history_name,
    encode_manifest,
)
from tablekeeper.format.plans import (
    InstantInfo,
    RollbackMetadata,
    RolledBackPartition,
    encode_rollback_metadata,
)
from tablekeeper.model import (
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Instant,
    Operation,
    Plan,
    PlanFlags,
    RequestedTime,
    ServiceKind,
    State,
    WriteStat,
    join_path,
)
from tablekeeper.services.clustering.service import Clustering
from tablekeeper.services.clustering.strategies import clustering_strategy
from tablekeeper.services.compaction.service import Compaction
from tablekeeper.services.compaction.strategies import compaction_strategy
from tablekeeper.services.log_compaction.service import LogCompaction
from tablekeeper.services.log_compaction.strategies import LogCompactionStrategy
from tablekeeper.services.plans.schedule import Drafted, ScheduledPlan, load_draft, schedule_plan
from tablekeeper.services.plans.service import Service
from tablekeeper.services.plans.strategies import OnlyPartitions
from tablekeeper.services.plans.window import PlanningWindow
from tablekeeper.storage import FileInfo, MemoryStorage, Storage, forget_memory
from tablekeeper.timeline import (
    Timeline,
    complete_instant,
    create_requested,
    instant_path,
    load_content,
    load_instant_files,
    load_timeline,
    start_inflight,
)
from tablekeeper.timeline.plans import load_plan
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.locks.in_process import InProcessLock
from tablekeeper.txn.locks.protocol import Lease, LockHolder, TableLock
from tablekeeper.txn.markers import MarkerKind, create_marker, delete_markers
from tests.support.fake_runtime import FakeClock
from tests.support.step_faults import one_thread_runtime

__all__ = ["DAY_MS", "MB", "PlanningWorld", "Written", "group", "time_of"]

MB = 1 << 20
DAY_MS = 1_767_225_600_000
"""Midnight before everything happens: 2026-01-01."""

Written = Mapping[FileGroupId, int]
"""File groups that a commit writes a log file to, with its size in megabytes."""

_NAMES = itertools.count()
_TOKEN = "0-0-0"
_PROPERTIES = {
    "hoodie.table.name": "planned",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.table.version": "9",
    "hoodie.table.initial.version": "9",
    "hoodie.timeline.layout.version": "2",
    "hoodie.table.recordkey.fields": "id",
    "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
    "hoodie.table.timeline.timezone": "UTC",
}


def group(partition: str, number: int = 0) -> FileGroupId:
    """A file group by its number in the partition."""
    return FileGroupId(partition, f"fa4e1d00-0000-4000-8000-{number:012d}-0")


def time_of(second: int) -> str:
    """An instant time of the day, by its second."""
    return f"20260101{second // 3600:02d}{second // 60 % 60:02d}{second % 60:02d}000"


class _PlannedStorage(MemoryStorage):
    """Sizes of data files are in megabytes."""

    def list_files(self, directory: str) -> list[FileInfo]:
        found = super().list_files(directory)
        if directory.startswith(".hoodie"):
            return found
        return [replace(file, size=file.size * MB) for file in found]


class _BusyLock:
    """The table lock. Somebody else may act once before it is taken: a plan was made, and is about to be published."""

    def __init__(self, lock: TableLock) -> None:
        self._lock = lock
        self.meanwhile: Callable[[], object] | None = None

    def acquire(self, *, timeout_s: float) -> Lease:
        action, self.meanwhile = self.meanwhile, None
        if action is not None:
            action()
        return self._lock.acquire(timeout_s=timeout_s)

    def look_ahead(self) -> None:
        self._lock.look_ahead()

    def describe(self) -> LockHolder | None:
        return self._lock.describe()


class PlanningWorld:
    """One table, its clock, and the hand of whoever writes to it."""

    def __init__(self, *, is_partitioned: bool = True) -> None:
        self._name = f"planning-{next(_NAMES)}"
        self.clock = FakeClock(DAY_MS)
        runtime = one_thread_runtime(self.clock, process=1)
        fields = {"hoodie.table.partition.fields": "city"} if is_partitioned else {}
        uri = f"memory://{self._name}/table"
        self.storage = _PlannedStorage(uri, runtime=runtime)
        self.config = parse_table_config({**_PROPERTIES, **fields}, file="hoodie.properties")
        self._lock = _BusyLock(InProcessLock(uri, runtime=runtime))
        self.environment = TableEnvironment(
            storage=self.storage,
            config=self.config,
            lock=self._lock,
            lock_settings=LockSettings(),
            heartbeat_settings=HeartbeatSettings(),
            conflict_settings=ConflictSettings(),
            runtime=runtime,
        )
        self._history: list[HistoryFile] = []
        self._partitions: set[str] = set()

    def forget(self) -> None:
        """Drop the table."""
        forget_memory(self._name)

    def use(self, storage: Storage) -> None:
        """Plan through this store from now on."""
        self.environment = replace(self.environment, storage=storage)

    @property
    def timeline(self) -> Timeline:
        return load_timeline(self.storage, self.config)

    def now(self) -> int:
        """The second that it is."""
        return (self.clock.now_ms() - DAY_MS) // 1000

    def tick(self) -> int:
        """The next second."""
        self.clock.advance(1)
        return self.now()

    def go_to(self, second: int) -> None:
        """Let time pass up to this second."""
        self.clock.advance(second - self.now())

    # Services

    def compaction(
        self, settings: CompactionSettings | None = None, *, only: Callable[[str], bool] | None = None
    ) -> Service:
        strategy = compaction_strategy(settings or CompactionSettings(), now_ms=self.clock.now_ms())
        return Compaction(strategy if only is None else OnlyPartitions(strategy, only))

    def clustering(
        self, settings: ClusteringSettings | None = None, *, only: Callable[[str], bool] | None = None
    ) -> Service:
        chosen = settings or ClusteringSettings()
        strategy = clustering_strategy(chosen, now_ms=self.clock.now_ms())
        narrowed = strategy if only is None else OnlyPartitions(strategy, only)
        return Clustering(narrowed, chosen.layout)

    def log_compaction(self, *, only: Callable[[str], bool] | None = None) -> Service:
        strategy = LogCompactionStrategy(LogCompactionSettings(blocks_threshold=2))
        return LogCompaction(strategy if only is None else OnlyPartitions(strategy, only))

    def draft(self, service: Service, *, incremental: bool = True, cancellable: bool = False) -> Drafted:
        flags = PlanFlags(cancellable=cancellable)
        return load_draft(self.environment, service, flags=flags, incremental=incremental)

    def schedule(
        self,
        service: Service,
        *,
        incremental: bool = True,
        cancellable: bool = False,
        meanwhile: Callable[[], object] | None = None,
    ) -> ScheduledPlan | None:
        """Put a plan on the timeline; `meanwhile` happens after it was made and before it is published."""
        self.tick()
        self._lock.meanwhile = meanwhile
        flags = PlanFlags(cancellable=cancellable, scheduled_by="test")
        return schedule_plan(self.environment, service, flags=flags, incremental=incremental)

    def window(self, service: Service | None = None) -> PlanningWindow:
        """The window of a plan that is made now; of a compaction by default."""
        return self.draft(service or self.compaction()).window

    def compact(self, settings: CompactionSettings | None = None) -> ScheduledPlan:
        """Schedule and execute a compaction; there has to be something to do."""
        plan = self.schedule(self.compaction(settings))
        assert plan is not None
        self.execute(plan.instant)
        return plan

    def plan_path(self, instant: RequestedTime) -> str:
        """Where the plan of a compaction lies."""
        return instant_path(self.config, Instant(instant, Action.COMPACTION, State.REQUESTED))

    def plan_at(self, instant: RequestedTime, kind: ServiceKind) -> Plan:
        """The plan of this kind that was requested at this time."""
        requested = Instant(instant, kind.action, State.REQUESTED)
        return load_plan(self.storage, self.config, requested)

    def execute(
        self,
        instant: RequestedTime,
        kind: ServiceKind = ServiceKind.COMPACTION,
        *,
        mb: int = 3,
        completed_at: int | None = None,
    ) -> Instant:
        """Execute a plan: each slice gets a new base or log file, or each clustering group a new file group."""
        plan = self.plan_at(instant, kind)
        inflight = start_inflight(self.storage, self.config, Instant(instant, kind.action, State.REQUESTED))
        stats = []
        replaced: dict[str, list[str]] = {}
        for number, work in enumerate(plan.work):
            for file_slice in work.slices:
                replaced.setdefault(file_slice.group.partition, []).append(file_slice.group.file_id)
            new = work.slices[0].group
            if kind is ServiceKind.CLUSTERING:
                new = FileGroupId(work.partition, f"c1u57e4d-{instant.value[-9:]}-4000-8000-{number:012d}-0")
            put = self._put_log if kind is ServiceKind.LOG_COMPACTION else self._put_base
            stats.append(put(new, instant, mb=mb))
        metadata = CommitMetadata(
            kind.operation,
            tuple(stats),
            compacted=kind is ServiceKind.COMPACTION,
            replaced={p: tuple(ids) for p, ids in replaced.items()} if kind is ServiceKind.CLUSTERING else None,
        )
        return self._complete(inflight, encode_commit_metadata(metadata), at=completed_at)

    def give_up(self, instant: RequestedTime, kind: ServiceKind = ServiceKind.COMPACTION) -> None:
        """Remove a plan that was not executed, by a rollback that deletes no file."""
        requested = Instant(instant, kind.action, State.REQUESTED)
        self._roll_back(requested, partitions={})
        self.storage.delete(instant_path(self.config, requested))

    # Writes

    def begin(
        self, written: Written, *, action: Action = Action.DELTA_COMMIT, at: int | None = None
    ) -> Callable[..., Instant]:
        """Start a write whose files are there but do not count. What is returned completes it."""
        second = self.tick() if at is None else at
        requested_at = RequestedTime(time_of(second))
        requested = create_requested(self.storage, self.config, requested_at=requested_at, action=action)
        inflight = start_inflight(self.storage, self.config, requested)
        stats = tuple(self._put_log(each, requested_at, mb=mb) for each, mb in written.items())
        for stat in stats:
            create_marker(
                self.storage,
                instant=requested_at.value,
                partition=stat.group.partition,
                file_name=stat.file_name,
                kind=MarkerKind.CREATE,
            )
        content = encode_commit_metadata(CommitMetadata(Operation.UPSERT, stats))

        def complete(at: int | None = None) -> Instant:
            completed = self._complete(inflight, content, at=at)
            delete_markers(self.storage, instant=requested_at.value)
            return completed

        return complete

    def write(self, written: Written) -> Instant:
        """A delta commit that writes log files."""
        return self.begin(written)()

    def insert(self, *groups: FileGroupId, mb: int = 1) -> Instant:
        """A delta commit that brings base files."""
        requested_at = RequestedTime(time_of(self.tick()))
        action = Action.DELTA_COMMIT
        requested = create_requested(self.storage, self.config, requested_at=requested_at, action=action)
        inflight = start_inflight(self.storage, self.config, requested)
        stats = tuple(self._put_base(each, requested_at, mb=mb) for each in groups)
        return self._complete(inflight, encode_commit_metadata(CommitMetadata(Operation.INSERT, stats)))

    def delete_partition(self, partition: str, groups: Iterable[FileGroupId]) -> Instant:
        """A replace commit that hides file groups and writes nothing."""
        requested_at = RequestedTime(time_of(self.tick()))
        action = Action.REPLACE_COMMIT
        requested = create_requested(self.storage, self.config, requested_at=requested_at, action=action)
        inflight = start_inflight(self.storage, self.config, requested)
        ids = tuple(each.file_id for each in groups)
        metadata = CommitMetadata(Operation.DELETE_PARTITION, replaced={partition: ids})
        return self._complete(inflight, encode_commit_metadata(metadata))

    def roll_back(self, target: Instant) -> None:
        """Undo a write, completed or not: its files and its instant go."""
        partitions: dict[str, RolledBackPartition] = {}
        for partition in sorted(self._partitions):
            names = [f.name for f in self.storage.list_files(partition) if target.requested_at.value in f.name]
            if names:
                partitions[partition] = RolledBackPartition(partition, tuple(names))
                self.storage.delete_many([join_path(partition, name) for name in names])
        self._roll_back(target, partitions=partitions)
        self._remove(target.requested_at)

    def restore(self, *targets: Instant) -> None:
        """Undo these instants, in this order, by a restore."""
        requested_at = RequestedTime(time_of(self.tick()))
        action = Action.RESTORE
        requested = create_requested(self.storage, self.config, requested_at=requested_at, action=action)
        inflight = start_inflight(self.storage, self.config, requested)
        for target in targets:
            for partition in self._partitions:
                names = [f.name for f in self.storage.list_files(partition) if target.requested_at.value in f.name]
                self.storage.delete_many([join_path(partition, name) for name in names])
            self._remove(target.requested_at)
        self._complete(inflight, b"")

    def archive(self, *instants: Instant) -> None:
        """Move completed instants from the active timeline into the history."""
        kept = []
        for instant in instants:
            kept.append(ArchivedInstant(instant, load_content(self.storage, self.config, instant)))
        first, last = min(i.requested_at.order for i in instants), max(i.requested_at.order for i in instants)
        name = encode_history_name(HistoryName(first, last, 0))
        data = encode_history_file(kept)
        directory = self.config.history_directory
        self.storage.put(join_path(directory, name), data)
        self._history.append(HistoryFile(name, len(data)))
        version = len(self._history)
        self.storage.put(join_path(directory, f"manifest_{version}"), encode_manifest(self._history))
        self.storage.put(join_path(directory, "_version_"), str(version).encode())
        for instant in instants:
            self._remove(instant.requested_at)

    def touched(self, instant: Instant) -> frozenset[FileGroupId]:
        """File groups that a completed commit wrote or replaced."""
        content = load_content(self.storage, self.config, instant)
        return decode_commit_metadata(content, file=str(instant)).file_groups

    def _complete(self, inflight: Instant, content: bytes, *, at: int | None = None) -> Instant:
        second = self.tick() if at is None else at
        completed_at = CompletionTime(time_of(second))
        completed = complete_instant(self.storage, self.config, inflight, completed_at=completed_at, content=content)
        delete_markers(self.storage, instant=inflight.requested_at.value)
        return completed

    def _roll_back(self, target: Instant, *, partitions: Mapping[str, RolledBackPartition]) -> None:
        requested_at = RequestedTime(time_of(self.tick()))
        action = Action.ROLLBACK
        requested = create_requested(self.storage, self.config, requested_at=requested_at, action=action)
        inflight = start_inflight(self.storage, self.config, requested)
        info = InstantInfo(target.requested_at.value, target.action.value)
        metadata = RollbackMetadata(
            requested_at.value, 1, len(partitions), (info.commit_time,), partitions, instants=(info,)
        )
        self._complete(inflight, encode_rollback_metadata(metadata))

    def _remove(self, requested_at: RequestedTime) -> None:
        for file in load_instant_files(self.storage, self.config):
            if file.requested_at == requested_at:
                self.storage.delete(instant_path(self.config, file))

    def _put_base(self, file_group: FileGroupId, instant: RequestedTime, *, mb: int) -> WriteStat:
        name = encode_base_name(file_id=file_group.file_id, write_token=_TOKEN, instant=instant.value)
        return self._put(file_group, name, instant, mb=mb, log_version=None)

    def _put_log(self, file_group: FileGroupId, instant: RequestedTime, *, mb: int) -> WriteStat:
        name = encode_log_name(file_id=file_group.file_id, instant=instant.value, version=1, write_token=_TOKEN)
        return self._put(file_group, name, instant, mb=mb, log_version=1)

    def _put(
        self, file_group: FileGroupId, name: str, instant: RequestedTime, *, mb: int, log_version: int | None
    ) -> WriteStat:
        partition = file_group.partition
        if partition not in self._partitions:
            self._partitions.add(partition)
            depth = len([part for part in partition.split("/") if part])
            mark = encode_partition_metadata(commit_time=instant.value, depth=depth)
            self.storage.put(join_path(partition, PARTITION_METADATA_NAME), mark)
        path = join_path(partition, name)
        kind = MarkerKind.CREATE if log_version is None else MarkerKind.APPEND
        create_marker(self.storage, instant=instant.value, partition=partition, file_name=name, kind=kind)
        self.storage.put(path, b"\0" * mb)
        return WriteStat(file_group, path, mb * MB, log_version=log_version)
