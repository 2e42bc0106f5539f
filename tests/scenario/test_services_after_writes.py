"""Services that run after a write: by which trigger, what they leave to others, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tablekeeper.services.plans.schedule import ScheduledPlan
from tablekeeper.services.plans.service import ServiceResult
from tests.support.recovery_world import FIRST, World
from tests.support.table_builder import trips

__all__: list[str] = []


def _ran(world: World, *, writes: int, inline: list[str] | None = None) -> list[list[str]]:
    """The services after each of several writes."""
    services = []
    for time in range(1, writes + 1):
        world.clock.advance(10)
        result = world.table.upsert(trips(("a", "sf", time, float(time))), inline=inline or [])
        assert not result.notes
        done = [each for each in result.services if isinstance(each, ServiceResult)]
        services.append([each.service for each in done])
    return services


def test_a_clustering_after_writes_goes_by_the_option_for_those(make: Callable[..., World]) -> None:
    options = {"hoodie.clustering.inline.max.commits": "2", "hoodie.clustering.async.max.commits": "100"}
    world = make(options=options)
    assert _ran(world, writes=4, inline=["clustering"]) == [[], ["clustering"], [], ["clustering"]]
    world.upsert(FIRST)
    world.upsert(FIRST)
    assert world.table._run_if_due("clustering") == []


@pytest.mark.parametrize("service", ["compact", "clustering"])
def test_a_plan_that_is_only_scheduled_after_a_write_waits_for_others(make: Callable[..., World], service: str) -> None:
    due = {"hoodie.compact.inline.max.delta.commits": "2", "hoodie.clustering.inline.max.commits": "2"}
    world = make(table_type="mor", options={f"hoodie.{service}.schedule.inline": "true", **due})
    world.upsert(FIRST)
    (plan,) = world.upsert(trips(("a", "sf", 2, 2.0))).services
    assert isinstance(plan, ScheduledPlan)
    assert [each.instant for each in world.table.plans()] == [plan.instant]
    # One at a time, as in Java.
    world.clock.advance(10)
    assert world.table.insert(trips(("n", "ny", 1, 1.0))).services == ()
    assert len(world.table.plans()) == 1
    assert world.table.execute(plan).outcome == "completed"
    assert world.rows() == [("a", 2.0), ("b", 1.0), ("c", 1.0), ("n", 1.0)]


def test_whoever_asks_for_a_compaction_and_for_its_plan_gets_the_compaction(make: Callable[..., World]) -> None:
    world = make(
        table_type="mor",
        options={
            "hoodie.compact.inline": "true",
            "hoodie.compact.schedule.inline": "true",
            "hoodie.compact.inline.max.delta.commits": "2",
        },
    )
    assert _ran(world, writes=3) == [[], ["compaction"], []]
    assert not world.timeline.pending


def test_a_service_that_cannot_run_is_a_note_and_the_write_stays(make: Callable[..., World]) -> None:
    world = make(options={"hoodie.compact.inline.max.delta.commits": "1", "hoodie.clustering.inline.max.commits": "1"})
    world.clock.advance(10)
    bad = world.table.upsert(FIRST, inline=["archive", "clustering"])
    assert [each.service for each in bad.services] == ["clustering"]
    options = {"hoodie.index.type": "BUCKET", "hoodie.clustering.inline.max.commits": "1"}
    buckets = make(table_type="mor", options=options)
    result = buckets.table.upsert(FIRST, inline=["clustering"])
    assert result.services == ()
    assert "clustering after the write failed" in result.notes[0]
    assert buckets.rows() == world.rows()


def test_a_loop_of_services_survives_a_failing_round_and_tells_of_it(make: Callable[..., World]) -> None:
    world = make(table_type="mor", options={"hoodie.compact.inline.max.delta.commits": "2"})
    world.upsert(FIRST)
    world.upsert(trips(("a", "sf", 2, 2.0)))
    properties = ".hoodie/hoodie.properties"
    loop = world.table.services(["compaction", "clean"], every="1h")
    content = world.storage.read(properties)
    world.storage.delete(properties)
    loop.run_once()
    assert len(loop.failures) == 3
    assert loop.results == []
    world.storage.put(properties, content)
    loop.run_once()
    assert len(loop.failures) == 3
    assert [each.service for each in loop.results] == ["compaction"]
    loop.run_once()
    assert len(loop.results) == 1
