"""What a clean deletes and what it leaves: reads of every kept moment, savepoints, plans and partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.plans import (
    decode_clean_metadata,
)
from tablekeeper.model import Action, CompletionTime, PlanFlags, RequestedTime
from tablekeeper.services.clean import execute as execution
from tablekeeper.timeline import complete_instant, create_requested, load_content, start_inflight
from tests.support.cleaning import (
    busy_past,
    by_hours,
    by_versions,
    clean,
    explain,
    keep,
    rows_by_moment,
    update,
)
from tests.support.recovery_world import LAPSED_S, SHAPES, World, shape_name
from tests.support.table_builder import trips
from tests.support.table_services import compaction
from tests.support.table_services import execute as execute_plan
from tests.support.table_services import schedule as schedule_plan

__all__: list[str] = []


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """A copy-on-write table with six versions of one file group."""
    made = make()
    update(made, 6)
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
@pytest.mark.parametrize("kept", [1, 2, 3, 5])
def test_every_moment_of_the_window_reads_the_same_before_and_after(
    shape: dict[str, Any], kept: int, make: Callable[..., World]
) -> None:
    world = make(**shape)
    moments = busy_past(world)
    before, now = rows_by_moment(world.table, moments), world.rows()
    result = clean(world.table, keep(kept))
    assert result is not None
    assert result.files_deleted > 0
    window = [moment for moment in moments if moment.value >= result.earliest_retained]
    assert len(window) == kept
    assert rows_by_moment(world.table, window) == {m.value: before[m.value] for m in window}
    assert world.rows() == now
    with pytest.raises(InvalidRequestError, match="was cleaned"):
        world.table.read(as_of=moments[0].value)
    world.refuse_stale_metadata_table()
    assert not world.table.doctor().findings
    assert clean(world.table, keep(kept)) is None
    assert clean(world.table, keep(kept, incremental=False)) is None


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
def test_by_versions_the_latest_rows_stay_and_moments_without_files_are_refused(
    shape: dict[str, Any], make: Callable[..., World]
) -> None:
    world = make(**shape)
    moments = busy_past(world)
    before, now = rows_by_moment(world.table, moments), world.rows()
    result = clean(world.table, by_versions(1))
    assert result is not None
    assert world.rows() == now
    readable: dict[str, list[tuple[Any, ...]]] = {}
    for moment in moments:
        try:
            readable |= rows_by_moment(world.table, [moment])
        except InvalidRequestError:
            assert moment not in moments[-1:]
    assert moments[-1].value in readable
    assert readable == {moment: before[moment] for moment in readable}
    world.refuse_stale_metadata_table()
    assert clean(world.table, by_versions(1, incremental=False)) is None


def test_by_hours_what_is_older_goes(world: World) -> None:
    world.clock.advance(5 * 3_600)
    assert clean(world.table, by_hours(4)) is None, "no commit inside the hours: nothing says what to retain"
    last = world.upsert(trips(("a", "sf", 99, 99.0)))
    result = clean(world.table, by_hours(4))
    assert result is not None
    assert result.earliest_retained == last.instant.value
    assert len(world.data_files()) == 2


def test_the_result_and_the_timeline_tell_the_same(world: World) -> None:
    files = world.data_files()
    result = clean(world.table, keep(2))
    assert result is not None
    instant = next(i for i in world.timeline.completed if i.action is Action.CLEAN)
    assert instant.requested_at == result.instant
    content = load_content(world.storage, world.table.config, instant)
    metadata = decode_clean_metadata(content, file="clean")
    deleted = {f"sf/{name}" for name in metadata.partitions["sf"].succeeded}
    assert deleted == files - world.data_files()
    assert metadata.files_deleted == result.files_deleted == len(deleted) == 3
    assert metadata.earliest_commit_to_retain == result.earliest_retained
    assert result.to_dict()["files_deleted"] == 3
    assert "3 files" in repr(result)
    assert result.partitions == ("sf",)
    assert not world.timeline.pending
    assert not list(world.storage.list_files(".hoodie/.heartbeat"))


def test_the_explanation_says_what_the_clean_then_does(world: World) -> None:
    said = explain(world.table, keep(2))
    files = world.data_files()
    assert len(world.timeline.completed_writes) == 6, "an explanation changes nothing"
    result = clean(world.table, keep(2))
    assert result is not None
    assert set(said.files) == files - world.data_files()
    assert said.bytes == result.bytes
    assert said.earliest_retained is not None
    assert said.earliest_retained.value == result.earliest_retained
    assert "older than the retained window" in repr(said)
    assert {each["reason"] for each in said.to_dict()["stays"]} == {
        "the newest version of its file group",
        "the last version from before the retained window",
        "written inside the retained window",
    }


def test_the_explanation_names_what_holds_the_window_back(world: World) -> None:
    crashed = world.crash(trips(("b", "sf", 1, 1.0)))
    update(world, 3, first=50)
    said = explain(world.table, keep(1))
    assert said.held_back_by is not None
    assert crashed in said.held_back_by
    world.clock.advance(LAPSED_S)
    assert [each.value for each in explain(world.table, keep(1)).dead] == [crashed]


def test_a_write_that_died_is_rolled_back_first_and_no_longer_holds_the_window_back(world: World) -> None:
    crashed = world.crash(trips(("b", "sf", 1, 1.0)))
    moments = update(world, 3, first=50)
    result = clean(world.table, keep(1))
    assert result is not None
    assert result.earliest_retained < crashed
    world.clock.advance(LAPSED_S)
    result = clean(world.table, keep(1))
    assert result is not None
    assert [each.value for each in result.rolled_back] == [crashed]
    assert result.earliest_retained == moments[-1].value
    assert not world.timeline.pending


def test_a_partition_of_which_nothing_is_left_goes_with_its_files(make: Callable[..., World]) -> None:
    world = make(metadata=True)
    update(world, 2, city="la")
    world.clock.advance(10)
    world.table.delete_partitions(["la"])
    update(world, 2)
    result = clean(world.table, keep(1))
    assert result is not None
    assert result.deleted_partitions == ("la",)
    assert "la" not in world.storage.list_directories("")
    world.refuse_stale_metadata_table()
    world.upsert(trips(("z", "la", 1, 1.0)))
    assert ("z", 1.0) in world.rows()
    assert ".hoodie_partition_metadata" in {f.name for f in world.storage.list_files("la")}
    world.refuse_stale_metadata_table()


def test_an_empty_partition_stays_while_somebody_writes_and_goes_with_a_later_clean(make: Callable[..., World]) -> None:
    world = make(metadata=True)
    update(world, 2, city="la")
    world.clock.advance(10)
    world.table.delete_partitions(["la"])
    update(world, 3)
    world.crash(trips(("b", "sf", 1, 1.0)))
    result = clean(world.table, keep(2))
    assert result is not None
    assert result.deleted_partitions == ()
    assert [f.name for f in world.storage.list_files("la")] == [".hoodie_partition_metadata"]
    world.clock.advance(LAPSED_S)
    update(world, 2, first=30)
    result = clean(world.table, keep(2))
    assert result is not None
    assert result.deleted_partitions == ("la",)
    world.refuse_stale_metadata_table()


def test_rows_written_into_a_partition_while_it_is_cleaned_stay(make: Callable[..., World]) -> None:
    world = make(metadata=True)
    update(world, 2, city="la")
    world.clock.advance(10)
    world.table.delete_partitions(["la"])
    update(world, 2)
    deleting = execution.delete_files

    def delete(task: execution.DeleteTask) -> int:
        world.table.upsert(trips(("new", "la", 1, 1.0)))
        return deleting(task)

    with patch.object(execution, "delete_files", delete):
        result = clean(world.table, keep(1))
    assert result is not None
    assert result.deleted_partitions == ()
    assert ("new", 1.0) in world.rows()
    world.refuse_stale_metadata_table()


def test_savepointed_files_stay_until_the_savepoint_is_gone(make: Callable[..., World]) -> None:
    world = make()
    moments = update(world, 2)
    update(world, 1, city="ny")
    saved = world.table.savepoint(moments[-1].value)
    update(world, 4, first=10)
    rows = rows_by_moment(world.table, [moments[-1]])
    result = clean(world.table, keep(1))
    assert result is not None
    protected = {f"{partition}/{name}" for partition, names in saved.files.items() for name in names}
    assert protected <= world.data_files()
    assert rows_by_moment(world.table, [moments[-1]]) == rows
    world.table.delete_savepoint(saved)
    update(world, 1, city="ny", first=20)
    said = explain(world.table, keep(1))
    assert "savepoint" in said.window
    assert clean(world.table, keep(1)) is not None
    assert not protected <= world.data_files()


def test_a_restore_after_a_clean_finds_all_files(world: World) -> None:
    saved = world.table.savepoint()
    rows = world.rows()
    update(world, 4, first=40)
    assert clean(world.table, keep(1)) is not None
    world.table.restore(saved)
    assert world.rows() == rows


def test_a_commit_older_than_what_an_earlier_clean_retained_cannot_be_saved(world: World) -> None:
    first = world.timeline.completed_writes[0].requested_at
    assert clean(world.table, keep(1)) is not None
    update(world, 20, first=30)
    kept_more = clean(world.table, keep(18))
    assert kept_more is not None
    with pytest.raises(InvalidRequestError, match="may have been cleaned"):
        world.table.savepoint(first.value)
    with pytest.raises(InvalidRequestError, match="was cleaned"):
        world.table.read(as_of=first.value)


def test_a_commit_cannot_be_saved_once_what_a_later_completion_replaced_is_gone(make: Callable[..., World]) -> None:
    world = make()
    update(world, 1)
    early = RequestedTime(f"{int(world.timeline.newest_time) + 1}")
    middle = world.upsert(trips(("b", "ny", 2, 2.0)))
    late = world.upsert(trips(("a", "sf", 5, 5.0)))
    config, storage = world.table.config, world.storage
    # The late write's file under the early instant: as a slow writer leaves it that commits last.
    found = world.timeline.find(late.instant)
    assert found is not None
    content = load_content(storage, config, found).replace(late.instant.value.encode(), early.value.encode())
    for path in late.files:
        storage.put(path.replace(late.instant.value, early.value), storage.read(path))
    world.table.rollback(late.instant.value)
    inflight = start_inflight(
        storage, config, create_requested(storage, config, requested_at=early, action=Action.COMMIT)
    )
    completed_at = CompletionTime(f"{int(world.timeline.newest_time) + 1}")
    complete_instant(storage, config, inflight, completed_at=completed_at, content=content)
    result = clean(world.table, keep(1))
    assert result is not None
    assert result.earliest_retained == middle.instant.value
    with pytest.raises(InvalidRequestError, match="may have been cleaned"):
        world.table.savepoint(middle.instant.value)


def test_a_pending_compaction_keeps_its_slice_and_completes_after_the_clean(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    update(world, 5)
    plan = schedule_plan(world.table, compaction(), flags=PlanFlags())
    assert plan is not None
    world.clock.advance(10)
    update(world, 1, first=21)
    rows = world.rows()
    assert clean(world.table, by_versions(1)) is not None
    assert world.rows() == rows
    world.clock.advance(10)
    execute_plan(world.table, compaction(), plan.instant)
    assert world.rows() == rows


def test_a_table_without_anything_old_is_left_alone(make: Callable[..., World]) -> None:
    world = make()
    assert clean(world.table, keep(1)) is None
    update(world, 2)
    assert clean(world.table, keep(5)) is None
    assert not [i for i in world.timeline if i.action is Action.CLEAN]


@pytest.mark.parametrize("amount", [1.5, "2", True])
@pytest.mark.parametrize("kept", ["keep_commits", "keep_hours", "keep_file_versions"])
def test_an_amount_that_is_no_whole_number_is_refused(world: World, kept: str, amount: Any) -> None:
    for ask in (world.table.clean, world.table.explain_clean):
        with pytest.raises(InvalidRequestError, match="take whole numbers"):
            ask(**{kept: amount})
