"""A savepoint has the time of the commit that it protects. That commit conflicts with nobody for it."""

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


def test_writers_and_services_pass_by_a_savepoint_whose_process_died(world: World) -> None:
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
    result = world.upsert(trips(("a", "sf", 1, 2.0), ("d", "sf", 1, 2.0)))
    assert result.rows_updated == 2
    clustered = world.table.cluster(order_by="ts")
    assert clustered is not None
    assert clustered.outcome == "completed"


def test_a_savepoint_made_while_a_plan_waits_does_not_hold_the_plan_up(world: World) -> None:
    plan = world.table.schedule_clustering(order_by="ts")
    assert plan is not None
    world.clock.advance(10)
    world.table.savepoint()
    world.clock.advance(10)
    assert world.table.execute(plan).outcome == "completed"
