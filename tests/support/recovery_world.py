"""One table in memory with a clock of its own, which any number of processes use and any of them may die on.

Everything runs on one thread, so that the n-th storage call is the same in every run. `World.copy` gives a second
table in the same state: what is tried on it leaves the first one as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pyarrow as pa

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.engine.local import LocalEngine
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.metadata_table.listing import open_metadata_table
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.snapshot.slices import load_files_by_listing
from tablekeeper.storage import MemoryStorage, Storage, forget_memory
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.timeline import Timeline, load_timeline
from tablekeeper.timeline.properties_file import change_properties
from tablekeeper.write import operation
from tests.support.fake_runtime import FakeClock
from tests.support.metadata_builder import MetadataBuilder
from tests.support.scopeless import ScopelessStorage
from tests.support.step_faults import WRITES, Fault, FaultPoint, OneThread, ProcessDied, StepStorage, one_thread_runtime
from tests.support.table_builder import TRIPS, rows_of, trips

__all__ = ["FIRST", "LAPSED_S", "ROWS_OF_FIRST", "SHAPES", "World", "for_every_death", "shape_name", "worlds"]

LAPSED_S = 3_600.0
"""Longer than any heartbeat, and than the age from which what is left behind may be deleted."""

FIRST = trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0))
ROWS_OF_FIRST = [("a", 1.0), ("b", 1.0), ("c", 1.0)]
"""What most tables here begin with, and what `World.rows` says of it."""

SHAPES: list[dict[str, Any]] = [
    {"table_type": "cow"},
    {"table_type": "mor"},
    {"table_type": "cow", "metadata": True},
    {"table_type": "mor", "metadata": True},
]
"""The kinds of tables for which a way back is tried out."""

_NAMES = itertools.count()
_START_MS = 1_710_000_000_000


class World:
    """A table of trips. `metadata` gives it a metadata table as Java makes one in an empty table."""

    def __init__(
        self, *, table_type: str = "cow", metadata: bool = False, options: Mapping[str, str] | None = None
    ) -> None:
        self.name = f"recovery-{next(_NAMES)}"
        self.has_scopes = True
        self.clock = FakeClock(_START_MS)
        self._processes = itertools.count(1)
        tk.Table.create(
            f"memory://{self.name}/table",
            name="trips",
            schema=TRIPS,
            key="id",
            partition_by="city",
            ordering="ts",
            table_type=table_type,
            engine="local",
            options=options,
            runtime=one_thread_runtime(self.clock, process=next(self._processes)),
        )
        if metadata:
            built = MetadataBuilder()
            for file in built.storage.walk(""):
                self.storage.put(file.path, built.storage.read(file.path))
            change_properties(self.storage, {METADATA_PARTITIONS_KEY: built.properties[METADATA_PARTITIONS_KEY]})

    @property
    def storage(self) -> Storage:
        runtime = one_thread_runtime(self.clock, process=next(self._processes))
        return self.open_store(runtime)

    def open_store(self, runtime: Runtime) -> Storage:
        """The store as the process of this runtime has it."""
        store = MemoryStorage(f"memory://{self.name}/table", runtime=runtime)
        return store if self.has_scopes else ScopelessStorage(store).as_storage

    def copy(self, *, has_scopes: bool = True) -> World:
        """The same table elsewhere, at the same moment."""
        other = object.__new__(World)
        other.has_scopes = has_scopes
        other.name = f"recovery-{next(_NAMES)}"
        other.clock = FakeClock(self.clock.now_ms())
        other._processes = itertools.count(1_000)
        for file in self.storage.walk(""):
            other.storage.put(file.path, self.storage.read(file.path))
        return other

    def new_runtime(self) -> Runtime:
        """That of one more process."""
        return one_thread_runtime(self.clock, process=next(self._processes))

    def client(self, point: FaultPoint | None = None) -> tuple[tk.Table, StepStorage, OneThread]:
        """The table as one process has it, with its store and its threads."""
        runtime = self.new_runtime()
        storage = StepStorage(self.open_store(runtime), point)
        options = Options(None).merged_over(load_writer_options(self.storage))
        table = tk.Table(storage, LocalEngine(threads=1, runtime=runtime), options, runtime=runtime)
        assert isinstance(runtime.threads, OneThread)
        return table, storage, runtime.threads

    @property
    def table(self) -> tk.Table:
        return self.client()[0]

    @property
    def timeline(self) -> Timeline:
        return load_timeline(self.storage, self.table.config)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return rows_of(self.table.read(), *(columns or ("id", "fare")))

    def upsert(self, rows: pa.Table) -> tk.WriteResult:
        self.clock.advance(10)
        return self.table.upsert(rows)

    def crash(self, rows: pa.Table) -> str:
        """A writer that dies with all its files written and nothing committed; its instant."""
        table, storage, threads = self.client()

        def die(*_: object, **__: object) -> None:
            storage._die()

        with patch.object(operation, "finish_write", die), suppress(ProcessDied):
            table.upsert(rows)
        threads.kill()
        return self.timeline.pending[-1].requested_at.value

    def data_files(self) -> set[str]:
        paths = {file.path for file in self.storage.walk("") if not file.path.startswith(".hoodie/")}
        return {path for path in paths if not path.rpartition("/")[2].startswith(PARTITION_METADATA_NAME)}

    def refuse_stale_metadata_table(self) -> None:
        """The metadata table lists exactly the files that lie in the partitions."""
        config = self.table.config
        listed = open_metadata_table(self.storage, config, self.timeline, runtime=SYSTEM_RUNTIME)
        if listed is None:
            assert not config.has_metadata_table
            return
        runtime = one_thread_runtime(self.clock, process=0)
        partitions = sorted({path.rpartition("/")[0] for path in self.data_files()} | set(listed.partitions()))
        there = load_files_by_listing(self.storage, partitions, runtime=runtime)
        for partition in partitions:
            wanted = [(n, s) for n, s in there[partition] if not n.startswith(PARTITION_METADATA_NAME)]
            assert sorted(listed.files([partition])[partition]) == sorted(wanted), partition

    def forget(self) -> None:
        forget_memory(self.name)


def shape_name(shape: dict[str, Any]) -> str:
    """What a test of this shape is called."""
    return str(shape["table_type"]) + ("_metadata" if shape.get("metadata") else "")


@contextmanager
def worlds() -> Iterator[Callable[..., World]]:
    """Makes empty worlds, and forgets them at the end."""
    made: list[World] = []

    def new(**shape: Any) -> World:
        made.append(World(**shape))
        return made[-1]

    yield new
    for world in made:
        world.forget()


def for_every_death(world: World, action: Callable[[tk.Table], object], check: Callable[[World], None]) -> int:
    """Let the process that runs `action` die before and after each of its changes, and check a copy each time."""
    trial = world.copy()
    table, storage, _ = trial.client()
    action(table)
    steps = [number for number, (kind, _) in enumerate(storage.calls, start=1) if kind in WRITES]
    trial.forget()
    for step in steps:
        for fault in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER):
            copy = world.copy()
            table, _, threads = copy.client(FaultPoint(step, fault))
            try:
                action(table)
            except ProcessDied:
                threads.kill()
            check(copy)
            copy.forget()
    return len(steps)
