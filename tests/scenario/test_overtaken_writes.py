"""Keys that a compaction left out because they were deleted, and that came back before it was done.

A write while a compaction waits looks keys up in the earlier base file, which still has them. The row goes
into a log of that file group, and lies on top of a base file without the key once the compaction is done. Those who
come later have to find it there: another row for the key would double it, and a deletion would pass it by.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tablekeeper as tk
from tests.support.crew import Crew, calls_before
from tests.support.recovery_world import World
from tests.support.table_builder import trips

__all__: list[str] = []


@pytest.fixture
def world() -> Iterator[World]:
    """A key is deleted, a compaction waits that will leave it out."""
    made = World(table_type="mor", options={"hoodie.parquet.small.file.limit": "0"})
    made.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    made.clock.advance(10)
    made.table.delete(trips(("a", "sf")))
    made.clock.advance(10)
    assert made.table.schedule_compaction() is not None
    made.clock.advance(10)
    yield made
    made.forget()


def compact(table: tk.Table) -> object:
    (plan,) = table.plans()
    return table.execute(plan.instant)


def test_a_key_that_came_back_before_a_compaction_was_done_is_updated_where_it_is(world: World) -> None:
    world.upsert(trips(("a", "sf", 2, 2.0)))
    compact(world.table)
    assert world.rows() == [("a", 2.0), ("b", 1.0)]
    world.upsert(trips(("a", "sf", 3, 3.0)))
    assert world.rows() == [("a", 3.0), ("b", 1.0)]


def test_a_key_that_came_back_before_a_compaction_was_done_can_be_deleted(world: World) -> None:
    world.upsert(trips(("a", "sf", 2, 2.0)))
    compact(world.table)
    world.clock.advance(10)
    world.table.delete(trips(("a", "sf")))
    assert world.rows() == [("b", 1.0)]


def test_it_is_found_after_the_compaction_has_been_archived(world: World) -> None:
    world.upsert(trips(("a", "sf", 2, 2.0)))
    compact(world.table)
    for number in range(6):
        world.upsert(trips(("n", "ny", number, 1.0)))
    world.clock.advance(10)
    few = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3, "hoodie.clean.commits.retained": 1}
    world.table.archive(options={**few, "tablekeeper.archive.keep.last.plans": False})
    world.upsert(trips(("a", "sf", 3, 3.0)))
    assert world.rows() == [("a", 3.0), ("b", 1.0), ("n", 1.0)]


def test_two_writers_that_looked_the_key_up_on_either_side_of_the_compaction_do_not_both_bring_it(world: World) -> None:
    """One looked into the base file of before, and is still running; the other one finds the key nowhere."""

    def bring(value: float, table: tk.Table) -> object:
        return table.upsert(trips(("a", "sf", 2, value)), retries=3)

    crew = Crew(world)
    crew.add("early", lambda table: bring(2.0, table))
    crew.add("compaction", compact)
    crew.add("late", lambda table: bring(3.0, table))
    # The early one has looked, and is about to write; the late one looks after the compaction and commits last.
    begun = calls_before(world, lambda table: bring(2.0, table), lambda _, path: path.startswith("sf/.fa4e"))
    looked = calls_before(
        world, lambda table: bring(3.0, table), lambda _, path: path.endswith(".deltacommit.inflight")
    )
    outcomes = crew.run(("early", begun), ("compaction", 1_000), ("late", looked), ("early", 1_000), ("late", 1_000))
    assert [outcome.error for outcome in outcomes.values()] == [None, None, None]
    assert world.rows() == [("a", 3.0), ("b", 1.0)]
