"""Strategies that rank partitions, where the partitions of the window are not those of the table."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.recovery_world import World
from tests.support.table_builder import trips

__all__: list[str] = []

DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
NEWEST_ONLY = {
    "hoodie.compaction.strategy": "DayBasedCompactionStrategy",
    "hoodie.compaction.daybased.target.partitions": "1",
}
FULL = {"hoodie.table.services.incremental.enabled": "false"}


def upsert(world: World, time: int, *days: str) -> None:
    world.upsert(trips(*((f"k{day}", day, time, float(time)) for day in days)))
    world.clock.advance(10)


def test_a_partition_that_is_gone_takes_no_rank_from_those_that_are_there(make: Callable[..., World]) -> None:
    world = make(table_type="mor", options=NEWEST_ONLY)
    upsert(world, 1, *DAYS)
    upsert(world, 2, *DAYS)
    assert world.table.compact() is not None
    world.clock.advance(10)
    upsert(world, 3, *DAYS)
    # The newest day was touched since the plan, and is deleted with everything in it.
    world.table.delete_partitions([DAYS[2]])
    world.clock.advance(10)
    for time in (4, 5, 6):
        upsert(world, time, DAYS[0])
    world.table.clean(keep_commits=1)
    world.storage.delete_tree(DAYS[2])
    incremental, full = world.table.explain_compaction(), world.table.explain_compaction(options=FULL)
    assert not incremental.is_full
    assert DAYS[2] in incremental.partitions
    assert {work.partition for work in full.work} == {DAYS[1]}
    assert {work.partition for work in incremental.work} == {DAYS[1]}
