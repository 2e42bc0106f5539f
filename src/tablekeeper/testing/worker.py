"""What the jobs of actors work with: the table as one process has it, and a report of what it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.engine.protocol import Frame, Kernel, SourceKernel
from tablekeeper.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    EmptyWriteError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PlanCancelledError,
    PlanHeldError,
    StorageError,
    TablekeeperError,
)
from tablekeeper.storage.protocol import Storage
from tablekeeper.table import Table
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.testing.chance import Chance
from tablekeeper.testing.process import Process
from tablekeeper.testing.store import SimulatedStorage
from tablekeeper.testing.story import NAME_KEY, Effect, Story, Write

if TYPE_CHECKING:
    from tablekeeper.testing.world import World

__all__ = ["CITIES", "KEYS", "SCHEMA", "Worker", "open_table", "own_rows", "rows_of", "rows_of_unsorted", "trips"]

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("fare", pa.float64())])
KEYS = {"a": "sf", "b": "sf", "c": "sf", "d": "la", "e": "la"}
"""Keys that all writers know, with the partition that each lives in."""

CITIES = ("sf", "la")

_REFUSED = (ConflictError, FencedError, PlanHeldError, PlanCancelledError)


def trips(rows: Mapping[str, tuple[str, float]]) -> pa.Table:
    """Rows by key. All have one ordering value, so that the later commit wins."""
    columns = {"id": list(rows), "city": [c for c, _ in rows.values()], "ts": [1] * len(rows)}
    return pa.table({**columns, "fare": [fare for _, fare in rows.values()]}, schema=SCHEMA)


def rows_of(frame: pa.Table) -> list[tuple[str, str, float]]:
    """What a read returned, in an order that can be compared."""
    return sorted(rows_of_unsorted(frame))


def rows_of_unsorted(frame: pa.Table) -> list[tuple[str, str, float]]:
    """The same in the order in which it came."""
    return list(zip(*(frame.column(name).to_pylist() for name in ("id", "city", "fare")), strict=True))


def open_table(
    storage: Storage,
    process: Process,
    *,
    options_in: Storage | None = None,
    options: Mapping[str, str] | None = None,
    repeats_tasks: bool = False,
) -> Table:
    """The table as this process has it, with the options that are remembered in it, and `options` over them."""
    kind = _RepeatingEngine if repeats_tasks else _SimulatedEngine
    merged = Options(options).merged_over(load_writer_options(options_in or storage))
    return Table(storage, kind(process), merged, runtime=process.runtime)


class Worker:
    """One process at work. `is_disturbed` once a fault has happened to it, `is_hurt` once one of the store has."""

    def __init__(
        self, table: Table, storage: SimulatedStorage, *, process: Process, world: World, chance: Chance, name: str
    ) -> None:
        self.table = table
        self.storage = storage
        self.process = process
        self.world = world
        self.story: Story = world.story
        self.chance = chance
        self.name = name
        self.is_disturbed = False
        self.is_hurt = False

    def write(
        self,
        do: Callable[[Mapping[str, str]], Any],
        effect: Effect,
        *,
        may: Sequence[type[TablekeeperError]] = (),
    ) -> Any:
        """Make a write, and note what was said of it. `do` gets the extra metadata that names it."""
        # Two drivers of a stream make the same write: what one of them was told says nothing about it.
        is_shared = self.name in self.story.writes
        write = self.story.writes.setdefault(self.name, Write(self.name, effect, is_shared=is_shared))
        write.is_shared |= is_shared
        try:
            result = do({NAME_KEY: write.name})
        except TablekeeperError as error:
            write.said = "" if self._is_open(error) or write.said == "committed" else "refused"
            self.told(error, write.name, may=may)
            return None
        write.said, write.instant = "committed", result.instant.value
        self.story.counts["write committed"] += 1
        return result

    def attempt(self, what: str, do: Callable[[], T], *, may: Sequence[type[TablekeeperError]] = ()) -> T | None:
        """Do it, and note what was said. Errors besides refusals and those of `may` are complaints."""
        try:
            result = do()
        except TablekeeperError as error:
            self.told(error, what, may=may)
            return None
        word = getattr(result, "outcome", "nothing" if result is None else "done")
        self.story.counts[f"{what} {word}"] += 1
        return result

    def told(self, error: TablekeeperError, what: str, *, may: Sequence[type[TablekeeperError]] = ()) -> None:
        """An error reached the caller."""
        kind = what.partition(" ")[0].rpartition("-")[0] or what
        self.story.counts[f"{kind} {type(error).__name__}"] += 1
        if isinstance(error, FencedError) and what in self.story.writes:
            self.story.fenced.append(what)
        if isinstance(error, ConflictError):
            self.story.lost_to.append((what, error.beaten_by))
        if isinstance(error, (*_REFUSED, EmptyWriteError, *may)) or (self.is_hurt and self._is_open(error)):
            return
        if self.is_disturbed and isinstance(error, CommitOutcomeUnknownError):
            return
        is_gone = isinstance(error, InvalidRequestError) and "there is no plan" in str(error)
        # Whoever sleeps in the middle of a read may find that its files were cleaned or rolled back.
        is_late = self.is_disturbed and isinstance(error, StorageError) and "Read the table again" in str(error)
        if not (is_gone or is_late):
            self.story.complain("errors", f"{what} was told {type(error).__name__}: {error}")

    def _is_open(self, error: TablekeeperError) -> bool:
        return isinstance(error, (StorageError, CommitOutcomeUnknownError)) and not isinstance(error, NotFoundError)


def own_rows(worker: Worker) -> dict[str, tuple[str, float]]:
    """Keys that nobody else inserts: an insert does not look for them."""
    return {f"{worker.name}-{city}": (city, float(len(worker.story.writes))) for city in CITIES}


class _SimulatedEngine(LocalEngine):
    """Runs tasks in the fibers of its process."""

    def __init__(self, process: Process) -> None:
        super().__init__(threads=2 if process.parallel else 1, runtime=process.runtime)
        self._process = process


class _RepeatingEngine(_SimulatedEngine):
    """Runs every other task twice: the attempt whose result does not count goes on beside, and may end late."""

    may_repeat_tasks = True

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._count = 0

    def run(self, kernel: Kernel[T, R], tasks: Sequence[T], *, label: str, weights: Sequence[float] = ()) -> list[R]:
        def twice(task: T) -> R:
            if label != "read":
                self._start_straggler(partial(kernel, task))
            return kernel(task)

        return super().run(twice, tasks, label=label, weights=weights)

    def consume(self, kernel: SourceKernel[C, R], context: C, source: Frame, *, label: str, parts: int = 0) -> list[R]:
        def twice(context: C, number: int, batches: Iterator[pa.RecordBatch]) -> list[R]:
            rows = list(batches)
            self._start_straggler(lambda: kernel(context, number, iter(rows)))
            return kernel(context, number, iter(rows))

        return super().consume(twice, context, source, label=label, parts=parts)

    def _start_straggler(self, work: Callable[[], Any]) -> None:
        self._count += 1
        if self._count % 2 == 0:
            return

        def run() -> None:
            try:
                work()
            except TablekeeperError:
                # It was told that it is too late; whoever waits for its result has another one.
                return

        self._process.loop.spawn(self._process, f"{self._process.name}/straggler", run, is_main=True)
