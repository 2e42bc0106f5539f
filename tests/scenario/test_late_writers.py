"""Writers that slept through the end of their heartbeat, were rolled back by others, and go on when they wake up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tablekeeper.errors import FencedError
from tests.support.crew import TO_THE_END, Crew, calls_before
from tests.support.recovery_world import LAPSED_S, World
from tests.support.table_builder import trips

__all__: list[str] = []

LATE = trips(("a", "sf", 9, 9.0), ("d", "la", 9, 9.0))
LEASED_LOCK = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
FEW = {
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.clean.commits.retained": 1,
    "hoodie.compact.inline.max.delta.commits": 1,
}


@pytest.fixture
def world() -> Iterator[World]:
    made = World(table_type="mor")
    made.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    yield made
    made.forget()


@pytest.fixture(params=[True, False], ids=["scopes", "no_scopes"])
def leased(request: pytest.FixtureRequest) -> Iterator[World]:
    """The same with a lock whose lease lapses, on a store that keeps late changes out, and on one that cannot."""
    made = World(table_type="mor", options={"hoodie.write.lock.provider": LEASED_LOCK})
    made.has_scopes = request.param
    made.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    yield made
    made.forget()


def write_late(
    world: World, *, at: str, archive: bool = False, completing: bool = False
) -> tuple[Any, list[tuple[str, str]]]:
    """How the late writer ended, and its calls: it is stopped before the first call for such a path.

    When it is `completing`, the path must end so, and be about to be created.
    """

    def is_time(kind: str, path: str) -> bool:
        return kind == "put_if_absent" and path.endswith(at) if completing else at in path

    def others(table: Any) -> None:
        # Nobody runs the periodic actions of the one that sleeps.
        world.clock.stall(LAPSED_S)
        for number in range(6 if archive else 1):
            world.clock.advance(1)
            table.upsert(trips(("b", "sf", 2 + number, 2.0)))
        if archive:
            assert table.archive(options=FEW).instants

    crew = Crew(world)
    crew.add("late", lambda table: table.upsert(LATE))
    crew.add("others", others)
    asleep = calls_before(world, lambda table: table.upsert(LATE), is_time)
    outcomes = crew.run(("late", asleep), ("others", TO_THE_END), ("late", TO_THE_END))
    assert outcomes["others"].error is None
    return outcomes["late"], crew.stage.actors["late"].calls


@pytest.mark.parametrize("archive", [False, True], ids=["rolled_back", "archived_past"])
def test_a_writer_that_was_rolled_back_before_its_marker_writes_no_file(world: World, archive: bool) -> None:
    before = world.data_files()
    late, calls = write_late(world, at=".marker.", archive=archive)
    assert isinstance(late.error, FencedError)
    assert not [path for kind, path in calls if kind == "put" and path.startswith(("sf/", "la/"))]
    assert before <= world.data_files()
    assert world.rows() == [("a", 1.0), ("b", 2.0), ("c", 1.0)]
    assert not list(world.storage.list_directories(".hoodie/.temp"))
    assert world.table.doctor().repairs == ()


def test_a_writer_that_slept_until_its_first_file_writes_none(world: World) -> None:
    late, calls = write_late(world, at=".deltacommit.inflight")
    assert isinstance(late.error, FencedError)
    assert not [path for _, path in calls if path.startswith(("sf/.fa", "la/.fa"))]
    assert world.rows() == [("a", 1.0), ("b", 2.0), ("c", 1.0)]


@pytest.mark.parametrize("calls_on", [0, 1], ids=["before", "after"])
def test_a_writer_that_slept_at_its_completed_file_reports_what_became_of_it(leased: World, calls_on: int) -> None:
    """Before it, others roll the write back, and it must not report success; after it, the write stands."""
    world = leased
    crew = Crew(world)
    crew.add("late", lambda table: table.upsert(LATE))

    def others(table: Any) -> None:
        world.clock.stall(LAPSED_S)
        table.upsert(trips(("b", "sf", 2, 2.0)))

    crew.add("others", others)
    asleep = calls_before(
        world,
        lambda table: table.upsert(LATE),
        lambda kind, path: kind == "put_if_absent" and path.endswith(".deltacommit"),
    )
    outcomes = crew.run(("late", asleep + calls_on), ("others", TO_THE_END), ("late", TO_THE_END))
    assert outcomes["others"].error is None
    if calls_on:
        assert outcomes["late"].error is None
        assert world.rows() == [("a", 9.0), ("b", 2.0), ("c", 1.0), ("d", 9.0)]
    else:
        assert isinstance(outcomes["late"].error, FencedError)
        assert world.rows() == [("a", 1.0), ("b", 2.0), ("c", 1.0)]
    assert world.table.doctor().repairs == ()
