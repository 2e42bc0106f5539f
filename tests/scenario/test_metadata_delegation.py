"""Plans for the metadata table that a Java writer made and left to a service: executed as they stand, or dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.format.plans import CompactionOperation, CompactionPlan, encode_compaction_plan
from tablekeeper.metadata_table import compaction
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY
from tablekeeper.model import FileGroupId, RequestedTime
from tablekeeper.timeline.properties_file import change_properties
from tests.support.metadata_content import load_content, load_slices, metadata_timeline
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
        change_properties(world.storage, {METADATA_PARTITIONS_KEY: "files,expr_index_day"})
    done = world.table.compact_metadata_table(takes_over=True)
    assert (done.instant, done.is_held_up, done.removed_attempts) == (None, True, ())
    assert world.storage.stat(f"{TIMELINE}/{WAITING}.compaction.requested") is not None


def plan_like_java(world: World, *, names_logs: int | None = None) -> None:
    """All file groups as they are now, with so many of their logs; nobody has begun to execute it."""
    operations = tuple(
        CompactionOperation(
            group=FileGroupId(partition, each.file_id),
            base_instant=each.base_instant.value if each.base_instant is not None else "",
            base_file=each.base.name if each.base is not None else None,
            log_files=tuple(log.name for log in each.logs[:names_logs]),
        )
        for partition, slices in load_slices(world.storage).items()
        for each in slices
    )
    content = encode_compaction_plan(CompactionPlan(operations))
    world.storage.put(f"{TIMELINE}/{WAITING}.compaction.requested", content)


def base_instants(world: World) -> set[str]:
    return {
        each.base_instant.value
        for slices in load_slices(world.storage).values()
        for each in slices
        if each.base_instant is not None
    }


def test_a_plan_that_java_left_to_a_service_is_executed_as_it_stands(make: Callable[..., World]) -> None:
    world = written(make)
    plan_like_java(world)
    before = load_content(world.storage)
    assert world.table.compact_metadata_table().is_held_up
    done = world.table.compact_metadata_table(executes_plans=True)
    assert (done.instant, done.is_held_up) == (RequestedTime(WAITING), False)
    assert done.delta_commits >= 6
    assert metadata_timeline(world.storage).pending == ()
    assert world.storage.stat(f"{TIMELINE}/{WAITING}.compaction.requested") is not None
    assert load_content(world.storage) == before
    assert base_instants(world) == {WAITING}
    world.refuse_stale_metadata_table()


def test_commits_after_a_plan_lie_on_top_of_what_it_merges(make: Callable[..., World]) -> None:
    world = written(make)
    plan_like_java(world)
    world.clock.advance(24 * 3600.0)
    world.upsert(trips(("late", "sf", 9, 9.0)))
    before = load_content(world.storage)
    assert world.table.compact_metadata_table(executes_plans=True).instant == RequestedTime(WAITING)
    assert load_content(world.storage) == before
    world.refuse_stale_metadata_table()


def test_an_attempt_that_died_leaves_nothing_in_the_way_of_the_next(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = written(make)
    plan_like_java(world)
    before = load_content(world.storage)

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "complete_instant", die)
        with pytest.raises(Killed):
            world.table.compact_metadata_table(executes_plans=True)
    assert load_content(world.storage) == before
    assert world.storage.stat(f"{TIMELINE}/{WAITING}.compaction.inflight") is not None
    assert world.table.compact_metadata_table(executes_plans=True).instant == RequestedTime(WAITING)
    assert load_content(world.storage) == before


@pytest.mark.parametrize("what", ["a log that it does not name", "a log that is gone", "compacted since", "index"])
def test_a_plan_that_does_not_fit_any_more_is_left_alone(make: Callable[..., World], what: str) -> None:
    world = written(make)
    plan_like_java(world, names_logs=1 if what == "a log that it does not name" else None)
    if what == "a log that is gone":
        world.storage.delete(next(each.logs[-1].path for each in load_slices(world.storage)["files"] if each.logs))
    elif what == "compacted since":
        waiting = world.storage.read(f"{TIMELINE}/{WAITING}.compaction.requested")
        world.storage.delete(f"{TIMELINE}/{WAITING}.compaction.requested")
        assert world.table.compact_metadata_table().instant is not None
        world.storage.put(f"{TIMELINE}/{WAITING}.compaction.requested", waiting)
    elif what == "index":
        change_properties(world.storage, {METADATA_PARTITIONS_KEY: "files,bloom_filters"})
    timeline = metadata_timeline(world.storage)
    done = world.table.compact_metadata_table(executes_plans=True)
    assert (done.instant, done.is_held_up) == (None, True), done
    assert metadata_timeline(world.storage) == timeline
