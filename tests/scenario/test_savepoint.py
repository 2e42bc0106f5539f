"""Savepoints and restore: what is protected, the way back, and what a restore that dies leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tablekeeper.errors import ConflictError, CorruptTableError, InvalidRequestError
from tablekeeper.format.plans import (
    CleanMetadata,
    CompactionPlan,
    decode_restore_metadata,
    decode_savepoint_metadata,
    encode_clean_metadata,
    encode_compaction_plan,
)
from tablekeeper.model import Action, CompletionTime, RequestedTime, State
from tablekeeper.timeline import complete_instant, create_requested, load_content, start_inflight
from tests.support.recovery_world import FIRST, LAPSED_S, ROWS_OF_FIRST, SHAPES, World, for_every_death, shape_name
from tests.support.table_builder import trips

__all__: list[str] = []


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """A copy-on-write table with one commit."""
    made = make()
    made.upsert(FIRST)
    return made


def _three_more(world: World) -> None:
    """An update with a new partition, an overwrite and a deleted partition."""
    world.upsert(trips(("a", "sf", 2, 2.0), ("d", "ny", 2, 2.0)))
    world.clock.advance(10)
    world.table.insert_overwrite(trips(("n", "sf", 3, 3.0)))
    world.clock.advance(10)
    world.table.delete_partitions(["la"])
    assert world.rows() == [("d", 2.0), ("n", 3.0)]


def test_a_savepoint_names_every_file_that_a_reader_sees(world: World) -> None:
    saved = world.table.savepoint(comment="before the migration")
    assert {f"{partition}/{name}" for partition, names in saved.files.items() for name in names} == world.data_files()
    instant = next(i for i in world.timeline.completed if i.action is Action.SAVEPOINT)
    content = load_content(world.storage, world.table.config, instant)
    assert decode_savepoint_metadata(content, file="savepoint").comments == "before the migration"
    assert list(world.table.savepoints()) == [saved]
    assert "before the migration" in repr(world.table.savepoints())


def test_a_savepoint_of_an_older_commit_names_the_files_of_then(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    first = world.upsert(FIRST)
    files = world.data_files()
    world.upsert(trips(("a", "sf", 2, 2.0)))
    saved = world.table.savepoint(first.instant)
    assert {f"{partition}/{name}" for partition, names in saved.files.items() for name in names} == files


def test_a_second_savepoint_of_the_same_commit_is_refused(world: World) -> None:
    world.table.savepoint()
    with pytest.raises(InvalidRequestError, match="has a savepoint at"):
        world.table.savepoint()


def test_a_savepoint_needs_a_completed_commit(make: Callable[..., World], world: World) -> None:
    with pytest.raises(InvalidRequestError, match="no commit"):
        make().table.savepoint()
    with pytest.raises(InvalidRequestError, match="no completed commit"):
        world.table.savepoint(world.crash(trips(("x", "sf", 1, 1.0))))


def test_a_commit_whose_files_may_have_been_cleaned_cannot_be_saved(world: World) -> None:
    first = world.timeline.completed_writes[0]
    second = world.upsert(trips(("a", "sf", 2, 2.0)))
    config, storage = world.table.config, world.storage
    instant = RequestedTime(f"{int(world.timeline.newest_time) + 1}")
    requested = create_requested(storage, config, requested_at=instant, action=Action.CLEAN)
    metadata = CleanMetadata(instant.value, 1, 1, second.instant.value)
    complete_instant(
        storage,
        config,
        start_inflight(storage, config, requested),
        completed_at=CompletionTime(f"{int(instant.value) + 1}"),
        content=encode_clean_metadata(metadata),
    )
    with pytest.raises(InvalidRequestError, match="may have been cleaned"):
        world.table.savepoint(first.requested_at)
    assert world.table.savepoint(second).instant == second.instant


def test_making_a_savepoint_that_dies_anywhere_can_be_repeated(world: World) -> None:
    def check(after: World) -> None:
        if not after.table.savepoints():
            after.table.savepoint()
        assert len(after.table.savepoints()) == 1
        assert not after.timeline.pending

    assert for_every_death(world, lambda table: table.savepoint(), check) >= 2


def test_deleting_a_savepoint_that_dies_anywhere_can_be_repeated(world: World) -> None:
    instant = world.table.savepoint().instant

    def check(after: World) -> None:
        if any(i.action is Action.SAVEPOINT for i in after.timeline):
            after.table.delete_savepoint(instant)
        assert not any(i.action is Action.SAVEPOINT for i in after.timeline)
        assert after.rows() == ROWS_OF_FIRST

    assert for_every_death(world, lambda table: table.delete_savepoint(instant), check) >= 2


def test_deleting_a_savepoint_that_is_not_there_names_those_that_are(world: World) -> None:
    instant = world.table.savepoint().instant
    with pytest.raises(InvalidRequestError, match=f"It has: {instant}"):
        world.table.delete_savepoint("20200101000000000")


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
def test_a_restore_brings_rows_and_files_of_the_savepoint_back(
    shape: dict[str, Any], make: Callable[..., World]
) -> None:
    world = make(**shape)
    world.upsert(FIRST)
    saved = world.table.savepoint()
    files = world.data_files()
    _three_more(world)
    plan = world.table.restore(saved, dry_run=True)
    assert len(plan.instants) == 3
    assert world.rows() == [("d", 2.0), ("n", 3.0)]
    result = world.table.restore(saved)
    assert [instant.split(".")[0] for instant in result.instants] == [i.split(".")[0] for i in plan.instants]
    assert list(result.instants) == sorted(result.instants, reverse=True)
    assert world.rows() == ROWS_OF_FIRST
    assert world.data_files() == files
    world.refuse_stale_metadata_table()
    done = next(i for i in world.timeline.completed if i.action is Action.RESTORE)
    metadata = decode_restore_metadata(load_content(world.storage, world.table.config, done), file="restore")
    assert len(metadata.rollbacks) == 3
    world.upsert(trips(("z", "ny", 1, 9.0)))
    assert world.rows() == [*ROWS_OF_FIRST, ("z", 9.0)]
    world.refuse_stale_metadata_table()


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]], ids=shape_name)
def test_a_restore_that_dies_anywhere_keeps_writers_out_until_it_is_finished(
    shape: dict[str, Any], make: Callable[..., World]
) -> None:
    world = make(**shape)
    world.upsert(FIRST)
    saved = world.table.savepoint()
    _three_more(world)
    half_done: list[bool] = []

    def check(after: World) -> None:
        pending = [i for i in after.timeline.pending if i.action is Action.RESTORE]
        half_done.append(bool(pending))
        if pending:
            with pytest.raises(ConflictError, match="is being restored"):
                after.upsert(trips(("z", "sf", 1, 9.0)))
        if not any(i.action is Action.RESTORE and i.is_completed for i in after.timeline):
            after.table.restore(saved)
        assert after.rows() == ROWS_OF_FIRST
        assert not after.timeline.pending
        assert len([i for i in after.timeline if i.action is Action.RESTORE]) == 1
        after.upsert(trips(("z", "sf", 1, 9.0)))
        assert after.rows() == [*ROWS_OF_FIRST, ("z", 9.0)]
        after.refuse_stale_metadata_table()

    assert for_every_death(world, lambda table: table.restore(saved), check) > 10
    assert any(half_done)


def test_a_restore_takes_back_what_began_before_the_savepoint_and_completed_after_it(
    make: Callable[..., World],
) -> None:
    world = make(table_type="mor")
    world.upsert(FIRST)
    config, storage = world.table.config, world.storage
    early = RequestedTime(f"{int(world.timeline.newest_time) + 1}")
    middle = world.upsert(trips(("b", "sf", 2, 2.0)))
    rows = world.rows()
    late = world.upsert(trips(("a", "sf", 5, 5.0)))
    # The late write's files under the early instant: as a slow writer leaves them that commits last.
    found = world.timeline.find(late.instant)
    assert found is not None
    content = load_content(storage, config, found).replace(late.instant.value.encode(), early.value.encode())
    for path in late.files:
        storage.put(path.replace(late.instant.value, early.value), storage.read(path))
    world.table.rollback(late.instant)
    requested = create_requested(storage, config, requested_at=early, action=Action.DELTA_COMMIT)
    inflight = start_inflight(storage, config, requested)
    completed_at = CompletionTime(f"{int(world.timeline.newest_time) + 1}")
    complete_instant(storage, config, inflight, completed_at=completed_at, content=content)
    saved = world.table.savepoint(middle.instant)
    assert not any(early.value in name for names in saved.files.values() for name in names)
    result = world.table.restore(saved)
    assert [instant.split(".")[0] for instant in result.instants] == [early.value]
    assert world.rows() == rows


def test_a_restore_without_savepoint_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="has no savepoint at"):
        world.table.restore(world.timeline.completed_writes[0].requested_at)


def test_a_restore_is_refused_while_somebody_writes_and_takes_a_dead_write_with_it(world: World) -> None:
    saved = world.table.savepoint()
    files = world.data_files()
    world.crash(trips(("x", "sf", 1, 1.0)))
    with pytest.raises(InvalidRequestError, match="is being written"):
        world.table.restore(saved)
    world.clock.advance(LAPSED_S)
    world.table.restore(saved)
    assert world.data_files() == files
    assert not world.timeline.pending


def test_a_restore_past_a_later_savepoint_is_refused(world: World) -> None:
    first = world.table.savepoint()
    world.upsert(trips(("x", "sf", 1, 1.0)))
    second = world.table.savepoint()
    with pytest.raises(InvalidRequestError, match=f"{second.instant}, which a savepoint protects"):
        world.table.restore(first)


def test_a_restore_is_refused_if_a_protected_file_is_gone(world: World) -> None:
    saved = world.table.savepoint()
    world.upsert(trips(("a", "sf", 2, 2.0)))
    partition, names = next(iter(saved.files.items()))
    world.storage.delete(f"{partition}/{names[0]}")
    with pytest.raises(CorruptTableError, match="nothing was restored"):
        world.table.restore(saved)
    assert not world.timeline.pending


def test_a_planned_compaction_from_after_the_savepoint_goes_and_one_from_before_stays(
    make: Callable[..., World],
) -> None:
    world = make(table_type="mor")
    world.upsert(FIRST)
    config, storage = world.table.config, world.storage
    before = RequestedTime(f"{int(world.timeline.newest_time) + 1}")
    plan = encode_compaction_plan(CompactionPlan(()))
    create_requested(storage, config, requested_at=before, action=Action.COMPACTION, content=plan)
    world.clock.advance(10)
    world.table.insert(trips(("n", "ny", 1, 1.0)))
    saved = world.table.savepoint()
    after = RequestedTime(f"{int(world.timeline.newest_time) + 1}")
    create_requested(storage, config, requested_at=after, action=Action.COMPACTION, content=plan)
    world.table.restore(saved)
    assert [(i.requested_at, i.state) for i in world.timeline.pending] == [(before, State.REQUESTED)]
