"""A savepoint has the time of the commit that it protects. That commit conflicts with nobody for it, and
stands while the savepoint is made.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.recovery_world import FIRST, World
from tests.support.step_faults import Fault, FaultPoint, ProcessDied
from tests.support.table_builder import trips

__all__: list[str] = []


@pytest.fixture
def world() -> Iterator[World]:
    made = World(table_type="cow", options={"hoodie.parquet.small.file.limit": "0"})
    made.upsert(FIRST)
    made.upsert(trips(("d", "sf", 1, 1.0)))
    made.clock.advance(10)
    yield made
    made.forget()


def die_in_a_savepoint(world: World) -> None:
    """Leave a savepoint of the newest commit inflight."""
    trial = world.copy()
    table, storage, _ = trial.client()
    table.savepoint()
    inflight = next(n for n, (_, path) in enumerate(storage.calls, 1) if path.endswith(".savepoint.inflight"))
    trial.forget()
    table, _, threads = world.client(FaultPoint(inflight, Fault.DEATH_AFTER))
    with pytest.raises(ProcessDied):
        table.savepoint()
    threads.kill()
    assert [i.action.value for i in world.timeline.pending] == ["savepoint"]


def test_writers_and_services_pass_by_a_savepoint_whose_process_died(world: World) -> None:
    die_in_a_savepoint(world)
    result = world.upsert(trips(("a", "sf", 1, 2.0), ("d", "sf", 1, 2.0)))
    assert result.rows_updated == 2
    clustered = world.table.cluster(order_by="ts")
    assert clustered is not None
    assert clustered.outcome == "completed"


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_the_metadata_table_lists_a_commit_whose_savepoint_is_unfinished(table_type: str) -> None:
    world = World(table_type=table_type, metadata=True)
    world.upsert(FIRST)
    world.upsert(trips(("a", "sf", 1, 2.0), ("n", "sf", 1, 2.0)))
    rows = world.rows()
    assert ("n", 2.0) in rows
    die_in_a_savepoint(world)
    assert world.rows() == rows
    world.clock.advance(10)
    world.upsert(trips(("o", "sf", 1, 3.0)))
    assert world.rows() == sorted([*rows, ("o", 3.0)])
    world.refuse_stale_metadata_table()
    world.forget()


def test_a_savepoint_made_while_a_plan_waits_does_not_hold_the_plan_up(world: World) -> None:
    plan = world.table.schedule_clustering(order_by="ts")
    assert plan is not None
    world.clock.advance(10)
    world.table.savepoint()
    world.clock.advance(10)
    assert world.table.execute(plan).outcome == "completed"
