"""Restores and rollbacks that leave little of the active timeline, where older commits are archived."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tablekeeper.errors import InvalidRequestError
from tests.support.recovery_world import FIRST, LAPSED_S, ROWS_OF_FIRST, World
from tests.support.table_builder import trips

__all__: list[str] = []

ALL_BUT_TWO = {
    "hoodie.keep.max.commits": 3,
    "hoodie.keep.min.commits": 2,
    "hoodie.clean.commits.retained": 1,
    "hoodie.compact.inline.max.delta.commits": 1,
}
"""Options of an archive that leaves as little as possible."""


@pytest.fixture(params=["cow", "mor"])
def world(request: pytest.FixtureRequest, make: Callable[..., World]) -> World:
    """A table of several commits; the rows of the first are its base."""
    made = make(table_type=request.param)
    made.upsert(FIRST)
    for time in range(2, 6):
        made.upsert(trips(("a", "sf", time, float(time))))
    return made


def test_rows_of_archived_commits_stay_when_a_restore_leaves_only_the_savepointed_one(world: World) -> None:
    saved = world.table.savepoint()
    before = world.rows()
    for time in range(6, 10):
        world.upsert(trips(("b", "sf", time, 9.0), ("n", "ny", time, 9.0)))
    archived = world.table.archive(options=ALL_BUT_TWO)
    assert len(archived.instants) == 4
    world.table.restore(saved)
    assert len(world.timeline.completed_writes) == 1
    assert world.rows() == before == [("a", 5.0), *ROWS_OF_FIRST[1:]]
    world.clock.advance(2 * LAPSED_S)
    assert world.table.doctor(fix=True).is_healthy
    assert world.rows() == before
    world.upsert(trips(("b", "sf", 9, 2.0)))
    assert world.rows() == [("a", 5.0), ("b", 2.0), ("c", 1.0)]


def test_the_last_commit_in_front_of_archived_ones_is_not_rolled_back(world: World) -> None:
    assert world.table.archive(options=ALL_BUT_TWO).instants
    last, newest = world.timeline.completed_writes
    world.table.rollback(newest.requested_at)
    before = world.rows()
    for dry_run in (True, False):
        with pytest.raises(InvalidRequestError, match="older ones are archived"):
            world.table.rollback(last.requested_at, dry_run=dry_run)
    assert world.rows() == before == [("a", 4.0), *ROWS_OF_FIRST[1:]]


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_a_savepoint_names_no_file_that_was_cleaned_after_its_commit(
    make: Callable[..., World], table_type: str
) -> None:
    """The replace commit that hid the file is archived, and only the clean tells the metadata table of its end."""
    world = make(table_type=table_type, metadata=True)
    world.upsert(FIRST)
    world.clock.advance(10)
    clustering = world.table.cluster(order_by="ts")
    assert clustering is not None
    for time in range(2, 6):
        world.upsert(trips(("a", "sf", time, float(time))))
    options = {**ALL_BUT_TWO, "tablekeeper.archive.keep.last.plans": "false"}
    world.clock.advance(10)
    # The metadata table is compacted, and has the clean in a log on top.
    world.table.archive(options={**options, "hoodie.metadata.compact.max.delta.commits": 1})
    world.clock.advance(10)
    assert world.table.clean(keep_commits=1) is not None
    world.table.archive(options=options)
    assert world.timeline.is_archived(clustering.instant)
    saved = world.table.savepoint()
    assert {f"{partition}/{name}" for partition, names in saved.files.items() for name in names} <= world.data_files()
    before = world.rows()
    world.upsert(trips(("b", "sf", 9, 9.0)))
    world.table.restore(saved)
    assert world.rows() == before
