"""Two drivers on one checkpoint: a batch that both run is in the table once, wherever one of them sleeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import pytest

from tablekeeper.engine.protocol import Frame
from tablekeeper.model import Operation
from tablekeeper.storage import Storage
from tablekeeper.table.streaming import BatchWriter
from tablekeeper.table.table import Table
from tests.support.fake_runtime import FakeWorld
from tests.support.meanwhile import Interrupted, writes_data
from tests.support.table_builder import TableBuilder, rows_of, trips

__all__: list[str] = []

BATCH = trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0))
WRITER = "checkpoint"
ONCE = [("a",), ("b",)]
ARCHIVE = {"hoodie.keep.min.commits": "11", "hoodie.keep.max.commits": "12"}
OPERATIONS = (Operation.INSERT, Operation.BULK_INSERT, Operation.UPSERT)


class Drivers:
    """A table, the driver that was taken for dead, and the one that took its checkpoint over."""

    def __init__(self, operation: Operation) -> None:
        world = FakeWorld()
        self.builder = TableBuilder(runtime=world.process())
        self.table = self.builder.create(table_type="cow")
        self.storage = Interrupted(self.builder.storage(self.table))
        self.old = driver(self.builder.through(self.table, self.storage), operation)
        self.new = driver(self.builder.through(self.table), operation)
        self.new(trips(("z", "la", 1, 1.0)), 0)

    def run(self, when: Callable[[str, str], bool], action: Callable[[], object]) -> bool:
        """The old driver runs batch 1, and `action` happens at a call of its; whether it did."""
        self.storage.when, self.storage.action = when, action
        self.old(BATCH, 1)
        return self.storage.action is None

    def rows(self) -> list[tuple[str]]:
        return [row for row in rows_of(self.table.read(), "id") if row != ("z",)]


def driver(table: Table, operation: Operation) -> BatchWriter:
    def write(kind: Operation, rows: Frame, extra: Mapping[str, str]) -> object:
        return table._write(kind, rows, extra, 3)

    storage: Storage = table._storage
    return BatchWriter(storage, operation, WRITER, write)


@pytest.fixture(params=OPERATIONS, ids=lambda operation: operation.value.lower())
def drivers(request: pytest.FixtureRequest) -> Iterator[Drivers]:
    made = Drivers(request.param)
    yield made
    made.builder.forget()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.value.lower())
def test_a_batch_is_committed_once_at_whichever_call_the_other_driver_runs_it(operation: Operation) -> None:
    number = 0
    while run_at_call(operation, number):
        number += 1
    assert number > 10


def run_at_call(operation: Operation, number: int) -> bool:
    """Run the batch by both drivers, the new one at a call of the old one outside of the lock; whether there is one."""
    drivers = Drivers(operation)
    calls = count()

    def is_time(_kind: str, _path: str) -> bool:
        return drivers.table.lock_holder() is None and next(calls) == number

    did_act = drivers.run(is_time, lambda: drivers.new(BATCH, 1))
    assert not did_act or drivers.rows() == ONCE, number
    drivers.builder.forget()
    return did_act


def test_a_batch_that_the_other_driver_committed_and_that_was_archived_meanwhile_is_known(drivers: Drivers) -> None:
    def commit_and_archive() -> None:
        drivers.new(BATCH, 1)
        for number in range(20):
            drivers.table.upsert(trips((f"z{number:02d}", "la", 1, 1.0)))
        drivers.table.clean(keep_commits=1)
        archived = drivers.table.archive(options=ARCHIVE)
        assert archived.instants

    looked = count()

    def has_looked(_kind: str, path: str) -> bool:
        # The last commit is read for the look-up of the batch, and again for its schema: the write has not begun yet.
        return path.endswith(".commit") and next(looked) == 1

    assert drivers.run(has_looked, commit_and_archive)
    assert [row for row in drivers.rows() if row in ONCE] == ONCE


def test_the_next_batch_goes_on_after_one_that_was_skipped(drivers: Drivers) -> None:
    drivers.run(writes_data, lambda: drivers.new(BATCH, 1))
    drivers.old(trips(("c", "sf", 2, 1.0)), 2)
    assert drivers.rows() == [*ONCE, ("c",)]
