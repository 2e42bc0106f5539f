"""Plans that were cancelled while somebody held them leave the timeline without a clean: with writers and the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tablekeeper.model import RequestedTime
from tablekeeper.txn.cancel_requests import load_cancel_requests
from tests.support.recovery_world import FIRST, LAPSED_S, World
from tests.support.storage_wrappers import CountingStorage
from tests.support.table_builder import TableBuilder, trips

__all__: list[str] = []

SECOND = trips(("a", "sf", 2, 2.0), ("c", "la", 2, 2.0))
THIRD = trips(("n", "ny", 3, 3.0))


@pytest.fixture
def world() -> Iterator[World]:
    made = World(table_type="mor")
    made.upsert(FIRST)
    made.clock.advance(10)
    made.upsert(SECOND)
    made.clock.advance(10)
    yield made
    made.forget()


def cancelled_while_held(world: World) -> RequestedTime:
    """A plan with an executor that does not let go of it in time."""
    plan = world.table.schedule_compaction(cancellable=True)
    assert plan is not None
    world.storage.put(f".hoodie/.heartbeat/{plan.instant}", b"executor")
    assert world.table.cancel(plan, wait=0).outcome == "requested"
    return plan.instant


def write(world: World) -> None:
    world.upsert(THIRD)


def run_loop(world: World) -> None:
    loop = world.table.services(["archive"])
    loop.run_once()
    assert not loop.failures


@pytest.mark.parametrize("act", [write, run_loop])
def test_a_cancelled_plan_goes_once_its_executor_is_gone(world: World, act: Callable[[World], None]) -> None:
    before = world.rows()
    cancelled_while_held(world)
    world.clock.advance(LAPSED_S)
    act(world)
    assert len(world.table.plans()) == 0
    assert load_cancel_requests(world.storage) == []
    assert not world.timeline.pending
    assert [row for row in world.rows() if row[0] != "n"] == before


@pytest.mark.parametrize("act", [write, run_loop])
def test_a_cancelled_plan_that_is_held_is_left_to_its_executor(world: World, act: Callable[[World], None]) -> None:
    plan = cancelled_while_held(world)
    act(world)
    assert [each.instant for each in world.table.plans()] == [plan]
    assert [each.instant for each in load_cancel_requests(world.storage)] == [plan]


@pytest.mark.parametrize("act", [write, run_loop])
def test_a_plan_that_nobody_cancelled_stays(world: World, act: Callable[[World], None]) -> None:
    plan = world.table.schedule_compaction()
    assert plan is not None
    world.clock.advance(LAPSED_S)
    act(world)
    assert [each.instant for each in world.table.plans()] == [plan.instant]


def test_a_write_takes_the_file_groups_of_a_clustering_that_was_cancelled(world: World) -> None:
    plan = world.table.schedule_clustering(cancellable=True)
    assert plan is not None
    world.storage.put(f".hoodie/.heartbeat/{plan.instant}", b"executor")
    world.table.cancel(plan, wait=0)
    world.clock.advance(LAPSED_S)
    world.upsert(trips(("a", "sf", 5, 5.0)))
    assert ("a", 5.0) in world.rows()
    assert len(world.table.plans()) == 0


def test_a_writer_looks_for_cancelled_plans_only_where_plans_wait() -> None:
    builder = TableBuilder()
    table = builder.create(table_type="mor")
    table.upsert(FIRST)
    table.upsert(SECOND)
    store = CountingStorage(builder.storage(table))
    counted = builder.through(table, store)
    counted.upsert(THIRD)
    assert not [path for _, path in store.calls if ".cancel" in path]
    assert table.schedule_compaction() is not None
    store.calls.clear()
    counted.upsert(trips(("n", "ny", 4, 4.0)))
    assert [kind for kind, path in store.calls if ".cancel" in path] == ["list_files"]
    builder.forget()
