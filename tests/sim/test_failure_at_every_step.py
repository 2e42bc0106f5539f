"""Every storage call of every write goes wrong once; the table must come out whole each time.

A call that only looks can fail; one that changes something can fail before or after it has happened, and the process
can die before or after it (between two looks nothing changes, so a death there is one of these). Afterwards

- reads give the rows of before or of after the write, never a mix, and the latter if success was reported;
- the next writer succeeds at once;
- once the heartbeat of the dead has lapsed, a writer leaves nothing pending, no marker and no stray data file;
- the doctor removes what litter there is, and is content.
"""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import TablekeeperError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.metadata_table.layout import load_metadata_timeline
from tablekeeper.metadata_table.listing import open_metadata_table
from tablekeeper.model import RequestedTime
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.snapshot.slices import load_files_by_listing
from tablekeeper.storage import MemoryStorage, Storage, forget_memory
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.timeline import format_time, load_commit_metadata, load_timeline
from tablekeeper.timeline.properties_file import change_properties
from tests.support.fake_runtime import FakeClock
from tests.support.metadata_builder import MetadataBuilder
from tests.support.step_faults import (
    ONE_CALL,
    WRITES,
    Fault,
    FaultPoint,
    OneThread,
    ProcessDied,
    StepStorage,
    one_thread_runtime,
)
from tests.support.table_builder import TRIPS, rows_of, trips

__all__: list[str] = []

BUILD_TIME_MS = 1_710_000_000_000
# Names of files, and with them the calls, follow from the ids of the process.
WRITER = 500
HEARTBEAT_LAPSED_S = 2 * 86_400.0
GOLDEN = Path(__file__).parents[1] / "golden" / "tables"
SPACES = itertools.count()

Rows = list[tuple[Any, ...]]
Write = Callable[[tk.Table], object]


@dataclass(frozen=True)
class Case:
    """A write on a table, and a write of somebody else that follows it."""

    base: str
    write: Write
    after: Write


class World:
    """One copy of a table with a clock of its own; every client is a process."""

    def __init__(self, objects: dict[str, bytes], now_ms: int) -> None:
        self.begun_ms = now_ms
        self.clock = FakeClock(now_ms)
        self.name = f"steps-{next(SPACES)}"
        self._processes = itertools.count(1)
        self.storage = self._open(one_thread_runtime(self.clock, process=0))
        for path, data in objects.items():
            self.storage.put(path, data)

    def _open(self, runtime: Runtime) -> Storage:
        return MemoryStorage(f"memory://{self.name}/table", runtime=runtime)

    def client(
        self, point: FaultPoint | None = None, *, process: int | None = None
    ) -> tuple[tk.Table, StepStorage, Runtime]:
        runtime = one_thread_runtime(self.clock, process=process or next(self._processes))
        storage = StepStorage(self._open(runtime), point)
        # Java's table has indexes that nobody keeps here: one of our writes needs the consent to drop them.
        options = Options({"tablekeeper.metadata.index.drop": "true"}).merged_over(load_writer_options(self.storage))
        return tk.Table(storage, LocalEngine(threads=1, runtime=runtime), options, runtime=runtime), storage, runtime

    @property
    def table(self) -> tk.Table:
        """The table as a process without faults sees it."""
        return self.client()[0]

    def rows(self) -> Rows:
        return rows_of(self.table.read())


@pytest.fixture
def worlds() -> Iterator[Callable[[str], World]]:
    made: list[World] = []

    def make(base: str) -> World:
        made.append(World(*base_objects(base)))
        return made[-1]

    yield make
    for world in made:
        forget_memory(world.name)


@cache
def base_objects(base: str) -> tuple[dict[str, bytes], int]:
    """The files of the table on which a write goes wrong, and the time at which that happens."""
    if base in BUILT:
        return build(base)
    with zipfile.ZipFile(GOLDEN / f"{base}.zip") as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        root = min((n for n in names if n.endswith(".hoodie/hoodie.properties")), key=len)
        prefix = root.removesuffix(".hoodie/hoodie.properties")
        objects = {name.removeprefix(prefix): archive.read(name) for name in names if name.startswith(prefix)}
    return objects, 1_790_000_000_000


def build(base: str) -> tuple[dict[str, bytes], int]:
    """A table of two commits of ours."""
    table_type, options = BUILT[base]
    clock = FakeClock(BUILD_TIME_MS)
    runtime = one_thread_runtime(clock, process=999)
    storage = MemoryStorage(f"memory://base-{base}/table", runtime=runtime)
    table = tk.Table.create(
        storage.spec.uri,
        name="trips",
        schema=TRIPS,
        key="id",
        partition_by="city",
        ordering="ts",
        table_type=table_type,
        engine="local",
        options=options,
        runtime=runtime,
    )
    if base.endswith("_metadata"):
        add_metadata_table(storage)
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    clock.advance(60)
    table.upsert(trips(("a", "sf", 2, 2.0), ("d", "la", 2, 2.0)))
    clock.advance(60)
    objects = {file.path: storage.read(file.path) for file in storage.walk("")}
    forget_memory(f"base-{base}")
    return objects, clock.now_ms()


def add_metadata_table(storage: Storage) -> None:
    """As Java leaves one in a table that is still empty."""
    metadata = MetadataBuilder()
    for file in metadata.storage.walk(""):
        storage.put(file.path, metadata.storage.read(file.path))
    change_properties(storage, {METADATA_PARTITIONS_KEY: metadata.properties[METADATA_PARTITIONS_KEY]})


STORE_LOCK = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.write.lock.wait_time_ms": "600000",
}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
NON_BLOCKING = {**BUCKETS, "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
EARLY = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
BUILT: dict[str, tuple[str, dict[str, str]]] = {
    "cow": ("cow", {}),
    "mor": ("mor", {}),
    "mor_bucket": ("mor", BUCKETS),
    "mor_shared": ("mor", NON_BLOCKING),
    "mor_early": ("mor", {**BUCKETS, **EARLY}),
    "cow_store_lock": ("cow", STORE_LOCK),
    "cow_metadata": ("cow", {}),
    "mor_metadata": ("mor", {}),
}
SWITCHING = (".hoodie/hoodie.properties", ".hoodie/.index_defs", ".hoodie/metadata/record", ".hoodie/metadata/second")
JAVA_MADE = "cow_v9_txns_simple_meta"

CHANGES = trips(("a", "sf", 3, 3.0), ("e", "sf", 3, 3.0), ("f", "ny", 3, 3.0))


def later(table: tk.Table) -> object:
    return table.upsert(trips(("b", "sf", 9, 9.0), ("z", "la", 9, 9.0)))


@cache
def golden_row(base: str) -> tuple[dict[str, Any], pa.Schema]:
    """The first row of a table that Java made."""
    world = World(*base_objects(base))
    rows = world.table.read().sort_by("txn_id")
    forget_memory(world.name)
    return rows.slice(0, 1).to_pylist()[0], rows.schema


def golden_case(base: str) -> Case:
    """An update of one row and a new one on a table that Java made; then another new row."""

    def upsert(table: tk.Table, *changes: dict[str, Any]) -> object:
        row, schema = golden_row(base)
        rows = [row | {"txn_ts": 1_900_000_000_000} | change for change in changes]
        return table.upsert(pa.Table.from_pylist(rows, schema=schema))

    return Case(
        base,
        lambda table: upsert(table, {"currency": "XXX"}, {"txn_id": "NEW-1"}),
        lambda table: upsert(table, {"txn_id": "LATER-1"}),
    )


CASES = {
    "upsert_cow": Case("cow", lambda t: t.upsert(CHANGES), later),
    "upsert_mor": Case("mor", lambda t: t.upsert(CHANGES), later),
    "upsert_mor_bucket": Case("mor_bucket", lambda t: t.upsert(CHANGES), later),
    "upsert_mor_shared": Case("mor_shared", lambda t: t.upsert(CHANGES), later),
    "upsert_mor_early": Case("mor_early", lambda t: t.upsert(CHANGES), later),
    "upsert_cow_store_lock": Case("cow_store_lock", lambda t: t.upsert(CHANGES), later),
    "insert": Case("cow", lambda t: t.insert(trips(("g", "sf", 3, 3.0), ("h", "ny", 3, 3.0))), later),
    "bulk_insert": Case("mor", lambda t: t.bulk_insert(trips(("g", "sf", 3, 3.0), ("h", "ny", 3, 3.0))), later),
    "delete_cow": Case("cow", lambda t: t.delete(trips(("a", "sf"), ("c", "la"))), later),
    "delete_mor": Case("mor", lambda t: t.delete(trips(("a", "sf"), ("c", "la"))), later),
    "insert_overwrite": Case("cow", lambda t: t.insert_overwrite(trips(("i", "sf", 3, 3.0))), later),
    "delete_partitions": Case("mor", lambda t: t.delete_partitions(["la"]), later),
    "upsert_cow_metadata_table": Case("cow_metadata", lambda t: t.upsert(CHANGES), later),
    "delete_mor_metadata_table": Case("mor_metadata", lambda t: t.delete(trips(("a", "sf"), ("c", "la"))), later),
    "delete_partitions_metadata_table": Case("cow_metadata", lambda t: t.delete_partitions(["la"]), later),
    # A table of Java's with indexes that the first write has to switch off.
    "upsert_switching_indexes_off": golden_case(JAVA_MADE),
}


@dataclass(frozen=True)
class Expected:
    """Rows before and after the write, each also with the rows of the next writer; and the calls of the write."""

    before: Rows
    after: Rows
    before_and_next: Rows
    after_and_next: Rows
    calls: list[tuple[str, str]]


def expected_of(case: Case, worlds: Callable[[str], World]) -> Expected:
    plain = worlds(case.base)
    before = plain.rows()
    table, storage, _ = plain.client(process=WRITER)
    case.write(table)
    calls, after = list(storage.calls), plain.rows()
    case.after(plain.table)
    skipped = worlds(case.base)
    case.after(skipped.table)
    assert before != after
    return Expected(before, after, skipped.rows(), plain.rows(), calls)


# The store does not change between two writing calls, so that to die before one is to die after the one before it:
# all four faults for two cases, three for the others.
FAULTS = [
    (name, fault)
    for name in CASES
    for fault in ONE_CALL
    if fault is not Fault.DEATH_BEFORE or name.startswith("upsert_m")
]


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}-{fault.name.lower()}" for name, fault in FAULTS])
def test_a_write_lands_whole_or_not_at_all_whatever_call_goes_wrong(
    name: str, fault: Fault, worlds: Callable[[str], World]
) -> None:
    case = CASES[name]
    expected = expected_of(case, worlds)
    steps = [n for n, call in enumerate(expected.calls, 1) if concerns(case, call, fault)]
    assert len(steps) >= 5
    for step in steps:
        world = worlds(case.base)
        try:
            check_step(case, world, FaultPoint(step, fault), expected)
        except Exception as error:
            kind, path = expected.calls[step - 1]
            error.add_note(f"{name}: {fault.value} call {step} of {len(expected.calls)}, {kind} {path}")
            raise
        forget_memory(world.name)


def concerns(case: Case, call: tuple[str, str], fault: Fault) -> bool:
    """Whether the fault makes a difference at this call."""
    kind, path = call
    if case.base == JAVA_MADE and not path.startswith(SWITCHING):
        return False
    return fault is Fault.ERROR_BEFORE or kind in WRITES


def check_step(case: Case, world: World, point: FaultPoint, expected: Expected) -> None:
    table, storage, runtime = world.client(point, process=WRITER)
    succeeded = False
    try:
        case.write(table)
        succeeded = True
    except ProcessDied:
        assert point.fault.is_death
        assert isinstance(runtime.threads, OneThread)
        runtime.threads.kill()
    except TablekeeperError:
        assert not point.fault.is_death
    assert len(storage.calls) >= point.step
    seen = world.rows()
    assert seen in ([expected.after] if succeeded else [expected.before, expected.after])
    world.clock.advance(1)
    case.after(world.table)
    final = expected.after_and_next if seen == expected.after else expected.before_and_next
    world.clock.advance(HEARTBEAT_LAPSED_S)
    case.after(world.table)
    assert world.rows() == final
    assert_tidy(world)
    if litter(world):
        repaired = world.table.doctor(fix=True)
        assert repaired.failed == ()
        assert repaired.is_healthy
        assert repaired.repairs == ()
        assert litter(world) == []
        assert world.rows() == final


def litter(world: World) -> list[str]:
    """What misleads nobody, but should not lie around for ever."""
    places = (".hoodie/.temp", ".hoodie/.heartbeat", ".hoodie/.tablekeeper/staging")
    return [file.path for place in places for file in world.storage.walk(place)]


def assert_tidy(world: World) -> None:
    config = world.table.config
    timeline = load_timeline(world.storage, config)
    assert timeline.pending == ()
    # Markers whose deletion went wrong after the commit had landed are litter that misleads nobody.
    assert {RequestedTime(name) for name in world.storage.list_directories(".hoodie/.temp")} <= {
        instant.requested_at for instant in timeline.completed_writes
    }
    committed = {
        stat.path
        for instant in timeline.completed_writes
        for stat in load_commit_metadata(world.storage, config, instant).stats
    }
    data = {f.path for f in world.storage.walk("") if not f.path.startswith(".hoodie/") and "_metadata" not in f.path}
    assert data - committed == set()
    metadata_table = open_metadata_table(world.storage, config, timeline, runtime=SYSTEM_RUNTIME)
    if metadata_table is not None:
        partitions = metadata_table.partitions()
        listed = load_files_by_listing(world.storage, partitions, runtime=SYSTEM_RUNTIME)
        assert names_of(metadata_table.files(partitions)) == names_of(listed)
        metadata_timeline = load_metadata_timeline(world.storage, config)
        assert metadata_timeline.pending == ()
        times = {i.requested_at for i in timeline}
        ours = {
            i.requested_at for i in metadata_timeline if i.requested_at.value >= format_time(world.begun_ms, zone="UTC")
        }
        assert ours <= times


def names_of(files: Mapping[str, Iterable[tuple[str, int]]]) -> dict[str, list[tuple[str, int]]]:
    """Data files with their sizes, by partition."""
    return {p: sorted(f for f in each if f[0] != PARTITION_METADATA_NAME) for p, each in files.items()}
