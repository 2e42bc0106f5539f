"""What table services do when others are faster: found by the stress run, told here one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tablekeeper.services.plans import ServiceKind
from tests.support.meanwhile import Interrupted
from tests.support.recovery_world import World
from tests.support.table_builder import trips

__all__: list[str] = []


@pytest.fixture
def world() -> Iterator[World]:
    made = World(table_type="mor", options={"hoodie.log.compaction.blocks.threshold": "2"})
    made.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    made.upsert(trips(("a", "sf", 2, 2.0), ("c", "la", 2, 2.0)))
    yield made
    made.forget()


def test_a_plan_that_is_called_off_between_listing_and_execution_does_not_stop_the_others(world: World) -> None:
    first = world.table.schedule_compaction(cancellable=True, partitions="city = 'sf'")
    second = world.table.schedule_compaction(partitions="city = 'la'")
    assert first is not None
    assert second is not None
    table = world.table
    watched = Interrupted(table._storage)
    # The timeline has been listed, and the table is looked at again to execute the first plan.
    watched.when = lambda kind, path: watched.counts["list_files"] > 0 and path.endswith("hoodie.properties")
    watched.action = lambda: world.table.cancel(first)
    table._storage = watched
    done = table.execute_waiting(ServiceKind.COMPACTION)
    assert [result.instant for result in done] == [second.instant]
    assert len(world.table.plans()) == 0


def test_a_clean_takes_the_delay_for_plans_that_wait_from_its_own_options(world: World) -> None:
    world.table.schedule_compaction(mutable=True)
    world.table.clean()
    assert len(world.table.plans()) == 1
    world.table.clean(options={"hoodie.table.service.rollback.delay.minutes": 0})
    assert len(world.table.plans()) == 0
