"""Rolling back on request: what goes, what is refused and why, and what a rollback that dies leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.plans import (
    CompactionOperation,
    CompactionPlan,
    decode_rollback_metadata,
    encode_compaction_plan,
)
from tablekeeper.model import Action, RequestedTime, State
from tablekeeper.storage import hadoop_path
from tablekeeper.timeline import create_requested, load_content, start_inflight
from tablekeeper.txn.heartbeat import load_heartbeats
from tablekeeper.txn.markers import MarkerKind, create_marker, load_marked_instants
from tests.support.recovery_world import FIRST, LAPSED_S, ROWS_OF_FIRST, SHAPES, World, for_every_death, shape_name
from tests.support.table_builder import trips

__all__: list[str] = []

SECOND = trips(("a", "sf", 2, 2.0), ("d", "ny", 2, 2.0))
ROWS_OF_SECOND = [("a", 2.0), ("b", 1.0), ("c", 1.0), ("d", 2.0)]


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """A copy-on-write table with one commit."""
    made = make()
    made.upsert(FIRST)
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
def test_the_newest_commit_goes_with_its_files_and_the_rows_before_it_come_back(
    shape: dict[str, Any], make: Callable[..., World]
) -> None:
    world = make(**shape)
    world.upsert(FIRST)
    before = world.data_files()
    unwanted = world.upsert(SECOND)
    assert world.rows() == ROWS_OF_SECOND
    result = world.table.rollback(unwanted.instant)
    assert set(result.files) == set(unwanted.files)
    assert world.rows() == ROWS_OF_FIRST
    assert world.data_files() == before
    assert world.timeline.find(unwanted.instant) is None
    assert not world.timeline.pending
    world.refuse_stale_metadata_table()
    world.upsert(SECOND)
    assert world.rows() == ROWS_OF_SECOND
    world.refuse_stale_metadata_table()


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
def test_a_rollback_of_a_commit_that_dies_anywhere_is_finished_by_the_next_writer(
    shape: dict[str, Any], make: Callable[..., World]
) -> None:
    world = make(**shape)
    world.upsert(FIRST)
    unwanted = world.upsert(SECOND)

    def check(after: World) -> None:
        assert after.rows() in (ROWS_OF_FIRST, ROWS_OF_SECOND)
        if after.timeline.find(unwanted.instant) is not None:
            after.clock.advance(LAPSED_S)
            found = after.timeline.find(unwanted.instant)
            if found is not None and found.is_completed:
                after.table.rollback(unwanted.instant)
        after.upsert(trips(("z", "sf", 1, 9.0)))
        assert after.rows() == [*ROWS_OF_FIRST, ("z", 9.0)]
        assert not set(unwanted.files) & after.data_files()
        assert after.timeline.find(unwanted.instant) is None
        assert unwanted.instant.value not in load_marked_instants(after.storage)
        after.refuse_stale_metadata_table()

    assert for_every_death(world, lambda table: table.rollback(unwanted.instant), check) > 5


def test_a_dry_run_names_the_files_and_changes_nothing(world: World) -> None:
    unwanted = world.upsert(SECOND)
    before = {file.path for file in world.storage.walk("")}
    result = world.table.rollback(unwanted.instant, dry_run=True)
    assert result.dry_run
    assert set(result.files) == set(unwanted.files)
    assert "would be rolled back" in repr(result)
    assert {file.path for file in world.storage.walk("")} == before


def test_the_completed_rollback_says_what_went(world: World) -> None:
    unwanted = world.upsert(SECOND)
    result = world.table.rollback(unwanted.instant)
    instant = world.timeline.completed[-1]
    assert (instant.action, instant.requested_at) == (Action.ROLLBACK, result.rollback)
    content = load_content(world.storage, world.table.config, instant)
    metadata = decode_rollback_metadata(content, file="rollback")
    assert metadata.commits == (unwanted.instant.value,)
    gone = {path for partition in metadata.partitions.values() for path in partition.succeeded}
    assert gone == {hadoop_path(world.storage.spec, path) for path in unwanted.files}


def test_a_commit_that_others_came_after_is_refused_with_their_names(world: World) -> None:
    middle = world.upsert(SECOND)
    last = world.upsert(trips(("x", "la", 1, 1.0)))
    with pytest.raises(InvalidRequestError, match=f"{last.instant}.*newest first, or restore"):
        world.table.rollback(middle.instant)
    world.table.rollback(last.instant)
    world.table.rollback(middle.instant)
    assert world.rows() == ROWS_OF_FIRST


def test_a_commit_with_a_savepoint_is_refused_until_the_savepoint_is_deleted(world: World) -> None:
    unwanted = world.upsert(SECOND)
    world.table.savepoint()
    with pytest.raises(InvalidRequestError, match="protected by a savepoint"):
        world.table.rollback(unwanted.instant)
    world.table.delete_savepoint(unwanted.instant)
    world.table.rollback(unwanted.instant)
    assert world.rows() == ROWS_OF_FIRST


def test_a_commit_is_refused_while_somebody_writes_on_top_of_it(world: World) -> None:
    unwanted = world.upsert(SECOND)
    pending = world.crash(trips(("a", "sf", 5, 5.0)))
    with pytest.raises(InvalidRequestError, match=f"{pending}.*is being written"):
        world.table.rollback(unwanted.instant)
    world.clock.advance(LAPSED_S)
    world.table.rollback(unwanted.instant)
    assert world.rows() == ROWS_OF_FIRST


def test_a_commit_is_refused_if_what_it_replaced_has_been_cleaned_away(world: World) -> None:
    unwanted = world.upsert(SECOND)
    old = [path for path in world.data_files() if path.startswith("sf/") and path not in unwanted.files]
    world.storage.delete_many(old)
    with pytest.raises(InvalidRequestError, match="cleaned away"):
        world.table.rollback(unwanted.instant)
    assert world.rows() == ROWS_OF_SECOND


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_a_commit_is_refused_if_only_what_a_savepoint_names_is_left_of_what_it_replaced(
    make: Callable[..., World], table_type: str
) -> None:
    """The file of the savepoint is older than the one that is needed."""
    world = make(table_type=table_type)
    world.upsert(FIRST)
    world.table.savepoint()
    for time in (2, 3):
        world.upsert(trips(("a", "sf", time, float(time))))
        if table_type == "mor":
            world.clock.advance(10)
            world.table.compact()
    newest = world.timeline.completed_writes[-1]
    before = world.rows()
    world.clock.advance(10)
    assert world.table.clean(keep_file_versions=1) is not None
    with pytest.raises(InvalidRequestError, match="cleaned away"):
        world.table.rollback(newest.requested_at)
    assert world.rows() == before


def test_what_was_cleaned_of_older_versions_does_not_keep_a_commit_from_being_rolled_back(world: World) -> None:
    for time in (2, 3, 4):
        world.upsert(trips(("a", "sf", time, float(time))))
    unwanted = world.upsert(trips(("b", "sf", 5, 5.0)))
    world.clock.advance(10)
    assert world.table.clean(keep_file_versions=2) is not None
    world.table.rollback(unwanted.instant)
    assert world.rows() == [("a", 4.0), ("b", 1.0), ("c", 1.0)]


def test_a_replace_commit_brings_the_replaced_rows_back(world: World) -> None:
    world.clock.advance(10)
    unwanted = world.table.insert_overwrite(trips(("n", "sf", 1, 7.0)))
    assert world.rows() == [("c", 1.0), ("n", 7.0)]
    world.table.rollback(unwanted.instant)
    assert world.rows() == ROWS_OF_FIRST


def test_a_deleted_partition_comes_back(world: World) -> None:
    world.clock.advance(10)
    unwanted = world.table.delete_partitions(["sf"])
    assert world.rows() == [("c", 1.0)]
    world.table.rollback(unwanted)
    assert world.rows() == ROWS_OF_FIRST


def test_the_only_commit_can_go(world: World) -> None:
    world.table.rollback(world.timeline.completed_writes[0].requested_at)
    assert world.rows() == []
    assert not world.data_files()


def test_a_dead_write_goes_and_a_live_one_is_refused(world: World) -> None:
    pending = world.crash(SECOND)
    with pytest.raises(InvalidRequestError, match="its writer is alive"):
        world.table.rollback(pending)
    world.clock.advance(LAPSED_S)
    result = world.table.rollback(pending)
    assert result.files
    assert result.state == "inflight"
    assert not world.timeline.pending
    assert not set(result.files) & world.data_files()
    assert world.rows() == ROWS_OF_FIRST


def test_a_dead_write_without_markers_is_found_by_the_names_of_its_files(world: World) -> None:
    pending = world.crash(SECOND)
    world.storage.delete_tree(f".hoodie/.temp/{pending}")
    world.clock.advance(LAPSED_S)
    before = world.data_files()
    result = world.table.rollback(pending)
    assert result.files
    assert world.data_files() == before - set(result.files)


@pytest.mark.parametrize("instant", ["20200101000000000", "29990101000000000"])
def test_an_instant_that_is_not_there_is_an_error_with_a_hint(world: World, instant: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"archived|has no instant"):
        world.table.rollback(instant)


def test_a_rollback_or_savepoint_cannot_be_rolled_back(world: World) -> None:
    unwanted = world.upsert(SECOND)
    done = world.table.rollback(unwanted.instant)
    with pytest.raises(InvalidRequestError, match="is a rollback and cannot be rolled back"):
        world.table.rollback(done.rollback)


def _plan_compaction(world: World) -> RequestedTime:
    """A compaction of one file group, planned and not begun."""
    group = next(s for s in world.table.files() if s.base is not None)
    plan = CompactionPlan(
        (CompactionOperation(group=group.group, base_instant=group.base_instant.value, log_files=(), base_file=None),)
    )
    instant = RequestedTime(f"{int(world.timeline.newest_time) + 1}")
    create_requested(
        world.storage,
        world.table.config,
        requested_at=instant,
        action=Action.COMPACTION,
        content=encode_compaction_plan(plan),
    )
    return instant


def test_an_inflight_compaction_goes_back_to_requested_and_its_plan_stays(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    world.upsert(FIRST)
    instant = _plan_compaction(world)
    planned = world.timeline.pending[-1]
    content = load_content(world.storage, world.table.config, planned)
    with pytest.raises(InvalidRequestError, match="nothing to roll back"):
        world.table.rollback(instant)
    start_inflight(world.storage, world.table.config, planned)
    left = f"sf/aaaa-0_0-0-0_{instant}.parquet"
    create_marker(world.storage, instant=instant.value, partition="sf", file_name=left[3:], kind=MarkerKind.CREATE)
    world.storage.put(left, b"half a file")
    result = world.table.rollback(instant)
    assert result.plan_stays
    assert result.files == (left,)
    assert left not in world.data_files()
    found = world.timeline.find(instant)
    assert found is not None
    assert found.state is State.REQUESTED
    assert load_content(world.storage, world.table.config, found) == content


def test_a_commit_that_a_planned_compaction_counts_on_is_refused(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    first = world.upsert(FIRST)
    instant = _plan_compaction(world)
    with pytest.raises(InvalidRequestError, match=f"the plan {instant}"):
        world.table.rollback(first.instant)


def test_a_writer_whose_instant_is_rolled_back_is_fenced_and_leaves_no_heartbeat(world: World) -> None:
    pending = world.crash(SECOND)
    world.clock.advance(LAPSED_S)
    world.table.rollback(pending)
    _, storage, _ = world.client()
    environment = world.table._load_environment()
    view = load_heartbeats(storage, settings=environment.heartbeat_settings, runtime=environment.runtime)
    assert RequestedTime(pending) not in view.ages


def test_an_argument_that_is_no_instant_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="is not an instant"):
        world.table.rollback("yesterday")
    assert isinstance(world.table, tk.Table)
