"""The life of a clean: planned, published beside others, executed once, taken over, and cheap the next time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

import tablekeeper as tk
from tablekeeper.engine.spark import SparkEngine
from tablekeeper.errors import ConflictError, InvalidRequestError, PlanHeldError
from tablekeeper.format.plans import (
    RestorePlan,
    decode_clean_plan,
    encode_restore_plan,
)
from tablekeeper.model import Action, Instant, PlanFlags, RequestedTime, State
from tablekeeper.services.clean import execute as execution
from tablekeeper.services.clean import finish_cleans, is_clean_due, publish, view
from tablekeeper.services.recovery import savepoint
from tablekeeper.timeline import Timeline, create_requested, load_content
from tablekeeper.txn.savepoints import savepoints_of
from tests.support.cleaning import (
    busy_past,
    by_versions,
    clean,
    environment_of,
    explain,
    keep,
    rows_by_moment,
    schedule,
    update,
)
from tests.support.recovery_world import LAPSED_S, SHAPES, World, for_every_death, shape_name
from tests.support.step_faults import ProcessDied
from tests.support.table_builder import TableBuilder, rows_of, trips
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


def test_an_empty_clean_is_recorded_where_the_settings_ask_for_it(make: Callable[..., World]) -> None:
    world = make()
    for number in range(4):
        world.clock.advance(10)
        world.table.insert(trips((f"k{number}", f"c{number}", 1, 1.0)))
    assert clean(world.table, keep(2)) is None
    result = clean(world.table, keep(2, empty_interval_hours=2))
    assert result is not None
    assert result.files_deleted == 0
    assert "left the window" in explain(world.table, keep(2)).window
    assert clean(world.table, keep(2, empty_interval_hours=2)) is None
    world.clock.advance(3 * 3_600)
    assert clean(world.table, keep(2, empty_interval_hours=2)) is not None


@pytest.mark.parametrize("metadata", [False, True], ids=["listed", "metadata"])
def test_many_partitions_are_not_listed_in_vain_twice(metadata: bool, make: Callable[..., World]) -> None:
    world = make(metadata=metadata)
    many = trips(*[(f"k{number}", f"c{number:03d}", 1, 1.0) for number in range(120)])
    first = world.upsert(many)
    for number in range(3):
        world.clock.advance(10)
        world.table.insert(trips((f"n{number}", f"d{number}", 1, 1.0)))
    result = clean(world.table, keep(2))
    assert result is not None
    assert (result.files_deleted, result.partitions) == (0, ())
    assert world.table.read(as_of=first.instant.value).num_rows == 120, "nothing was deleted"
    assert world.table.savepoint(first.instant.value).instant == first.instant
    update(world, 4, city="c007")
    table, storage, _ = world.client()
    result = clean(table, keep(2))
    assert result is not None
    assert result.partitions == ("c007",)
    listed = {path for kind, path in storage.calls if kind == "list_files" and not path.startswith(".hoodie")}
    assert listed <= {"c007"}
    world.refuse_stale_metadata_table()


def test_a_clean_is_due_after_enough_commits(world: World) -> None:
    def is_due(commits: int) -> bool:
        return is_clean_due(environment_of(world.table), keep(2, trigger_commits=commits))

    assert is_due(6)
    assert not is_due(7)
    assert clean(world.table, keep(2)) is not None
    assert not is_due(1)
    update(world, 2, first=30)
    assert is_due(2)
    assert not is_due(3)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]], ids=shape_name)
def test_a_clean_that_dies_anywhere_is_finished_by_the_next_one(
    shape: dict[str, Any], make: Callable[..., World]
) -> None:
    world = make(**shape)
    moments = busy_past(world)
    rows = world.rows()
    kept = rows_by_moment(world.table, moments[-2:])
    whole = world.copy()
    assert clean(whole.table, keep(2)) is not None
    wanted = {path.rpartition("/")[2] for path in whole.data_files()}
    whole.forget()
    resumed: list[bool] = []

    def check(after: World) -> None:
        assert after.rows() == rows
        after.clock.advance(LAPSED_S)
        result = clean(after.table, keep(2))
        resumed.append(result is not None and result.was_resumed)
        assert not after.timeline.pending
        assert len([i for i in after.timeline if i.action is Action.CLEAN]) == 1
        assert {path.rpartition("/")[2] for path in after.data_files()} == wanted
        assert "la" not in after.storage.list_directories("")
        assert after.rows() == rows
        assert rows_by_moment(after.table, moments[-2:]) == kept
        after.refuse_stale_metadata_table()
        after.upsert(trips(("z", "la", 1, 1.0)))
        assert ("z", 1.0) in after.rows()

    assert for_every_death(world, lambda table: clean(table, keep(2)), check) > 5
    assert any(resumed)
    assert not all(resumed)


def test_a_clean_that_another_process_carries_out_is_left_to_it(world: World) -> None:
    _, storage, threads = world.client()
    table = world.client()[0]
    blocked: list[str] = []

    def delete(task: execution.DeleteTask) -> int:
        with pytest.raises(PlanHeldError, match="is executing it") as held:
            clean(world.table, keep(1))
        blocked.append(held.value.instant)
        return len(task.paths)

    with patch.object(execution, "delete_files", delete):
        result = clean(table, keep(2))
    assert result is not None
    assert blocked == [result.instant.value]
    del storage, threads


def test_of_two_cleaners_that_planned_the_same_one_publishes(world: World) -> None:
    drafting = publish.load_draft
    other: list[Any] = []

    def draft(*arguments: Any) -> Any:
        drafted = drafting(*arguments)
        if not other:
            other.append(None)
            other.append(clean(world.table, keep(2)))
        return drafted

    with patch.object(publish, "load_draft", draft):
        result = clean(world.table, keep(2))
    assert other[1] is not None
    # The second finds the same files in its draft. They are gone, and deleting them again does no harm.
    assert result is None or result.files_deleted == other[1].files_deleted
    assert not world.timeline.pending


def _schedule_while(world: World, news: Callable[[], object]) -> Instant | None:
    """Plan a clean, let something happen, then publish."""
    drafting = publish.load_draft
    happened: list[object] = []

    def draft(*arguments: Any) -> Any:
        drafted = drafting(*arguments)
        if not happened:
            happened.append(news())
        return drafted

    with patch.object(publish, "load_draft", draft):
        return schedule(world.table, keep(2))


def _planned(world: World, clean_instant: Instant) -> set[str]:
    requested = Instant(clean_instant.requested_at, Action.CLEAN, State.REQUESTED)
    plan = decode_clean_plan(load_content(world.storage, world.table.config, requested), file="clean")
    return {file.path.rpartition("/")[2] for files in plan.files.values() for file in files}


def test_a_savepoint_that_comes_while_a_clean_is_planned_keeps_its_files(world: World) -> None:
    first = world.timeline.completed_writes[0].requested_at
    instant = _schedule_while(world, lambda: world.table.savepoint(first.value))
    assert instant is not None
    saved = {name for names in world.table.savepoints()[0].files.values() for name in names}
    assert saved
    assert not _planned(world, instant) & saved
    assert finish_cleans(environment_of(world.table), keep(2))[0].files_deleted == 2
    assert saved <= {path.rpartition("/")[2] for path in world.data_files()}


def test_a_savepoint_that_is_deleted_while_others_read_the_table_is_no_error_for_them(world: World) -> None:
    first = world.timeline.completed_writes[0].requested_at

    def look(reader: ModuleType, act: Callable[[], object]) -> object:
        """Do it; the savepoint goes when the timeline was loaded and its contents were not."""
        saved = [world.table.savepoint(first.value).instant]

        def listed(timeline: Timeline) -> tuple[Instant, ...]:
            found = savepoints_of(timeline)
            while saved:
                world.table.delete_savepoint(saved.pop())
            return found

        with patch.object(reader, "savepoints_of", listed):
            return act()

    assert look(savepoint, lambda: tuple(world.table.savepoints())) == ()
    assert look(view, lambda: schedule(world.table, keep(2))) is not None
    assert finish_cleans(environment_of(world.table), keep(2))
    assert world.rows() == [("a", 6.0)]


def test_a_commit_that_is_taken_back_while_a_clean_is_planned_makes_it_plan_anew(world: World) -> None:
    last = world.timeline.completed_writes[-1].requested_at
    instant = _schedule_while(world, lambda: world.table.rollback(last.value))
    assert instant is not None
    assert len(_planned(world, instant)) == 2, "five commits are left: two in the window, one before it"
    assert finish_cleans(environment_of(world.table), keep(2))
    assert world.rows() == [("a", 5.0)]


def test_a_compaction_that_is_planned_meanwhile_keeps_its_slice(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    update(world, 7)
    plans: list[Any] = []

    def plan() -> None:
        plans.append(schedule_plan(world.table, compaction(), flags=PlanFlags()))

    instant = _schedule_while(world, plan)
    assert plans[0] is not None
    assert instant is not None
    rows = world.rows()
    assert finish_cleans(environment_of(world.table), keep(2))
    world.clock.advance(10)
    execute_plan(world.table, compaction(), plans[0].instant)
    assert world.rows() == rows


def test_a_commit_is_not_rolled_back_onto_files_that_a_clean_is_about_to_delete(world: World) -> None:
    last = world.timeline.completed_writes[-1].requested_at
    assert schedule(world.table, by_versions(1)) is not None
    with pytest.raises(InvalidRequestError, match="cleaned away"):
        world.table.rollback(last.value)
    assert finish_cleans(environment_of(world.table), keep(2))
    assert world.rows() == [("a", 6.0)]


def test_a_clean_waits_for_a_restore_to_finish(world: World) -> None:
    content = encode_restore_plan(RestorePlan((), savepoint="20240101000000000"))
    at = RequestedTime(f"{int(world.timeline.newest_time) + 1}")
    create_requested(world.storage, world.table.config, requested_at=at, action=Action.RESTORE, content=content)
    files = world.data_files()
    with pytest.raises(ConflictError, match="is being restored"):
        clean(world.table, keep(1))
    assert world.data_files() == files


def test_a_clean_without_a_plan_is_taken_off_the_timeline(world: World) -> None:
    at = RequestedTime(f"{int(world.timeline.newest_time) + 1}")
    create_requested(world.storage, world.table.config, requested_at=at, action=Action.CLEAN)
    world.clock.advance(10)
    result = clean(world.table, keep(2))
    assert result is not None
    assert result.instant != at
    assert [i.requested_at for i in world.timeline if i.action is Action.CLEAN] == [result.instant]


def test_a_scheduled_clean_is_carried_out_as_planned_before_a_new_one(world: World) -> None:
    instant = schedule(world.table, keep(4))
    assert instant is not None
    planned = _planned(world, instant)
    assert schedule(world.table, keep(1)) is None, "one clean at a time"
    update(world, 1, first=70)
    files = world.data_files()
    result = clean(world.table, keep(1))
    assert result is not None
    assert result.finished_before == (instant.requested_at,)
    assert planned <= {path.rpartition("/")[2] for path in files - world.data_files()}
    assert len([i for i in world.timeline.completed if i.action is Action.CLEAN]) == 2


def test_a_clean_that_lost_its_heartbeat_completes_nothing(world: World) -> None:
    def sleep(task: execution.DeleteTask) -> int:
        world.clock.stall(LAPSED_S)
        return len(task.paths)

    with patch.object(execution, "delete_files", sleep), pytest.raises(tk.errors.FencedError):
        clean(world.table, keep(2))
    assert [i.state for i in world.timeline.pending] == [State.INFLIGHT]
    result = clean(world.table, keep(2))
    assert result is not None
    assert result.was_resumed


def test_progress_is_told_file_by_file_until_all_are_gone(world: World) -> None:
    seen: list[tuple[int, int]] = []
    with patch.object(execution, "_BATCH", 1):
        assert clean(world.table, keep(2), progress=lambda done, total: seen.append((done, total))) is not None
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_death_in_the_middle_of_many_deletions_is_made_good(world: World) -> None:
    deleting = execution.delete_files
    done: list[int] = []

    def die(task: execution.DeleteTask) -> int:
        if done:
            raise ProcessDied
        done.append(deleting(task))
        return done[-1]

    rows = world.rows()
    with (
        patch.object(execution, "_BATCH", 1),
        patch.object(execution, "delete_files", die),
        pytest.raises(ProcessDied),
    ):
        clean(world.table, keep(2))
    assert len(world.data_files()) == 5
    result = clean(world.table, keep(2))
    assert result is not None
    assert result.was_resumed
    assert result.files_deleted == 3
    assert world.rows() == rows
    assert len(world.data_files()) == 3


def test_very_many_files_are_deleted_by_the_tasks_of_the_engine(spark: Any, tmp_path: Path) -> None:
    table = TableBuilder().create(str(tmp_path / "t"))
    for number in range(6):
        table.upsert(trips(("a", "sf", number, float(number))))
    engine = SparkEngine(spark)
    seen: list[tuple[int, int]] = []
    labels: list[str] = []
    running = engine.run

    def run(*arguments: Any, label: str, **more: Any) -> list[Any]:
        labels.append(label)
        return running(*arguments, label=label, **more)

    with patch.object(execution, "_MANY", 2), patch.object(execution, "_BATCH", 1), patch.object(engine, "run", run):
        result = clean(table, keep(2), engine=engine, progress=lambda done, total: seen.append((done, total)))
    assert result is not None
    assert result.files_deleted == 3
    assert labels == ["clean"]
    assert seen == [(3, 3)]
    assert len(list((tmp_path / "t" / "sf").glob("*.parquet"))) == 3
    assert rows_of(table.read(), "id", "fare") == [("a", 5.0)]


def test_the_second_clean_looks_only_into_partitions_that_were_touched(make: Callable[..., World]) -> None:
    world = make()
    for number in range(30):
        world.table.insert(trips((f"k{number}", f"c{number:02d}", 1, 1.0)))
    update(world, 4, city="c07")
    assert clean(world.table, keep(2)) is not None
    update(world, 4, city="c11", first=9)
    table, storage, _ = world.client()
    result = clean(table, keep(2))
    assert result is not None
    assert result.partitions == ("c07", "c11")
    listed = {path for kind, path in storage.calls if kind == "list_files" and not path.startswith(".hoodie")}
    assert listed == {"c07", "c11"}


def test_after_an_overwrite_was_taken_back_the_old_versions_that_it_hid_are_found(world: World) -> None:
    assert clean(world.table, keep(5)) is None
    update(world, 3, city="ny")
    world.clock.advance(10)
    overwrite = world.table.insert_overwrite(trips(("n", "sf", 9, 9.0)))
    assert clean(world.table, keep(1)) is not None
    assert len([path for path in world.data_files() if path.startswith("sf/")]) == 7
    world.table.rollback(overwrite.instant.value)
    assert "rollback of a replace commit" in explain(world.table, keep(1)).window
    rows = world.rows()
    assert clean(world.table, keep(1)) is not None
    assert len([path for path in world.data_files() if path.startswith("sf/")]) == 1
    assert world.rows() == rows


def test_after_an_archived_timeline_all_partitions_are_looked_into(world: World) -> None:
    assert clean(world.table, keep(4)) is not None
    update(world, 3, first=30)
    archived = world.table.archive(options={"hoodie.keep.min.commits": "5", "hoodie.keep.max.commits": "6"})
    assert len(archived.instants) >= 4
    said = explain(world.table, keep(2))
    assert "archived" in said.window
    rows = world.rows()
    assert clean(world.table, keep(2)) is not None
    assert world.rows() == rows
    assert len(world.data_files()) == 3
