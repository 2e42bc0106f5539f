"""Plans for the metadata table that a Java writer made and left to a service: dropped, and compacted instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.format.plans import CompactionPlan, encode_compaction_plan
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY
from tablekeeper.model import RequestedTime
from tablekeeper.timeline.properties_file import change_properties
from tests.support.metadata_content import load_content
from tests.support.recovery_world import World
from tests.support.table_builder import trips

__all__: list[str] = []

TIMELINE = f"{METADATA_DIRECTORY}/.hoodie/timeline"
WAITING = "20240310000000000"


def written(make: Callable[..., World]) -> World:
    world = make(metadata=True)
    for n in range(6):
        world.upsert(trips((f"k{n % 5}", ("sf", "la")[n % 2], n, float(n)), (f"m{n}", "ny", n, float(n))))
    return world


@pytest.mark.parametrize(("action", "content"), [("compaction", True), ("logcompaction", True), ("clean", False)])
def test_plans_that_java_left_to_a_service_give_way_to_a_compaction(
    make: Callable[..., World], action: str, content: bool
) -> None:
    world = written(make)
    world.storage.put(
        f"{TIMELINE}/{WAITING}.{action}.requested", encode_compaction_plan(CompactionPlan()) if content else b""
    )
    before = load_content(world.storage)
    assert world.table.compact_metadata_table().is_held_up
    done = world.table.compact_metadata_table(takes_over=True)
    assert done.removed_attempts == (RequestedTime(WAITING),)
    assert done.instant is not None
    assert not any(WAITING in file.path for file in world.storage.walk(TIMELINE))
    assert load_content(world.storage) == before
    world.refuse_stale_metadata_table()
    assert world.table.compact_metadata_table(takes_over=True).instant is None


@pytest.mark.parametrize("state", ["inflight", "index"])
def test_a_plan_that_java_executes_or_that_only_java_can_execute_is_not_dropped(
    make: Callable[..., World], state: str
) -> None:
    world = written(make)
    world.storage.put(f"{TIMELINE}/{WAITING}.compaction.requested", encode_compaction_plan(CompactionPlan()))
    if state == "inflight":
        world.storage.put(f"{TIMELINE}/{WAITING}.compaction.inflight", b"")
    else:
        change_properties(world.storage, {METADATA_PARTITIONS_KEY: "files,bloom_filters"})
    done = world.table.compact_metadata_table(takes_over=True)
    assert (done.instant, done.is_held_up, done.removed_attempts) == (None, True, ())
    assert world.storage.stat(f"{TIMELINE}/{WAITING}.compaction.requested") is not None
