"""Processes on the table of a `World`, run call by call in an order that a test writes down.

A moment in the work of a process is named by what it is about to do: `calls_before` finds out, on a copy of the table,
how many calls come before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import TablekeeperError
from tablekeeper.table.writer_options import load_writer_options
from tests.support.interleaving import ActorStorage, Outcome, Schedule, Stage
from tests.support.recovery_world import World
from tests.support.step_faults import FaultPoint

__all__ = ["TO_THE_END", "Crew", "calls_before"]

TO_THE_END = 1_000_000
_PROCESSES = itertools.count(500)
"""No two processes of a run draw the same ids."""

Work = Callable[[tk.Table], object]


class Crew:
    """The processes of one test."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stage = Stage(world.clock)

    def add(
        self, name: str, work: Work, *, point: FaultPoint | None = None, options: dict[str, str] | None = None
    ) -> None:
        """A process that does this work, unless one of its calls goes wrong."""
        runtime = self.stage.runtime(next(_PROCESSES))
        store = self.world.open_store(runtime)
        storage = ActorStorage(store, self.stage, point)
        merged = Options(options).merged_over(load_writer_options(self.world.storage))
        table = tk.Table(storage, LocalEngine(threads=1, runtime=runtime), merged, runtime=runtime)
        self.stage.add(name, lambda: work(table), storage, runtime)

    def run(self, *runs: tuple[str, int]) -> dict[str, Outcome]:
        """Each process makes so many calls, one after the other; then all go to their ends."""
        # One step more than calls: the first one leads to the first call.
        started: set[str] = set()
        steps = []
        for name, calls in runs:
            steps.append((name, calls if name in started else calls + 1))
            started.add(name)
        return self.stage.run(Schedule(tuple(steps)))


def calls_before(
    world: World,
    work: Work,
    is_it: Callable[[str, str], bool],
    *,
    point: FaultPoint | None = None,
    nth: int = 1,
    idle_s: float = 0.0,
) -> int:
    """How many calls a process makes before the `nth` one for which `is_it(kind, path)` holds, -1 for the last.

    It begins when nobody has done anything for `idle_s`.
    """
    copy = world.copy(has_scopes=world.has_scopes)
    copy.clock.advance(idle_s)
    table, storage, _ = copy.client(point)
    try:
        work(table)
    except TablekeeperError as error:
        if point is None:
            raise AssertionError("the work failed by itself") from error
    copy.forget()
    found = [number for number, (kind, path) in enumerate(storage.calls) if is_it(kind, path)]
    return found[nth if nth < 0 else nth - 1]
