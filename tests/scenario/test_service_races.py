"""What table services do when others are faster: found by the stress run, told here one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import tablekeeper as tk
from tablekeeper.errors import FencedError, StorageError
from tablekeeper.model import RequestedTime
from tablekeeper.services.plans import ServiceKind
from tablekeeper.services.scheduling import ScheduledPlan
from tablekeeper.snapshot.listing import load_files_of_instant, load_partitions_by_listing
from tablekeeper.timeline import load_commit_metadata
from tests.support.crew import TO_THE_END, Crew, calls_before
from tests.support.meanwhile import Interrupted
from tests.support.recovery_world import LAPSED_S, World
from tests.support.step_faults import Fault, FaultPoint, ProcessDied
from tests.support.table_builder import trips

__all__: list[str] = []


@pytest.fixture
def world() -> Iterator[World]:
    made = World(table_type="mor", options={"hoodie.log.compaction.blocks.threshold": "2"})
    made.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    made.upsert(trips(("a", "sf", 2, 2.0), ("c", "la", 2, 2.0)))
    yield made
    made.forget()


def test_a_plan_that_is_called_off_between_listing_and_execution_does_not_stop_the_others(world: World) -> None:
    first = world.table.schedule_compaction(cancellable=True, partitions="city = 'sf'")
    second = world.table.schedule_compaction(partitions="city = 'la'")
    assert first is not None
    assert second is not None
    table = world.table
    watched = Interrupted(table._storage)
    # The timeline has been listed, and the table is looked at again to execute the first plan.
    watched.when = lambda kind, path: watched.counts["list_files"] > 0 and path.endswith("hoodie.properties")
    watched.action = lambda: world.table.cancel(first)
    table._storage = watched
    done = table.execute_waiting(ServiceKind.COMPACTION)
    assert [result.instant for result in done] == [second.instant]
    assert len(world.table.plans()) == 0


def test_a_clean_takes_the_delay_for_plans_that_wait_from_its_own_options(world: World) -> None:
    world.table.schedule_compaction(mutable=True)
    world.table.clean()
    assert len(world.table.plans()) == 1
    world.table.clean(options={"hoodie.table.service.rollback.delay.minutes": 0})
    assert len(world.table.plans()) == 0


KINDS = ("compaction", "log compaction", "clustering")
each_service = pytest.mark.parametrize("service", KINDS)
ROWS = [("a", 3.0), ("b", 1.0), ("c", 3.0)]


def schedule(world: World, service: str, *, cancellable: bool = False, mutable: bool = False) -> ScheduledPlan:
    """A plan of everything that there is to do."""
    world.clock.advance(10)
    methods = {
        "compaction": world.table.schedule_compaction,
        "log compaction": world.table.schedule_log_compaction,
        "clustering": world.table.schedule_clustering,
    }
    plan = methods[service](cancellable=cancellable, mutable=mutable)
    assert plan is not None
    return plan


@pytest.fixture
def busy(world: World) -> World:
    """With two logs on each file group."""
    world.upsert(trips(("a", "sf", 3, 3.0), ("c", "la", 3, 3.0)))
    return world


def publishes(kind: str, path: str) -> bool:
    """A moment: a data file is about to become visible to whoever lists its directory."""
    return kind in ("publish", "put") and not path.startswith(".hoodie/")


def time_passes(world: World) -> Callable[[tk.Table], object]:
    """Longer than any heartbeat, while all processes are stopped."""
    return lambda _: world.clock.stall(LAPSED_S)


def files_of(world: World, instant: RequestedTime) -> frozenset[str]:
    runtime = world.table._runtime
    partitions = load_partitions_by_listing(world.storage, runtime=runtime)
    return load_files_of_instant(world.storage, partitions, instant, runtime=runtime)


def assert_commit_names_all_files(world: World, instant: RequestedTime) -> None:
    found = world.timeline.find(instant)
    assert found is not None
    assert found.is_completed
    metadata = load_commit_metadata(world.storage, world.table.config, found)
    assert files_of(world, instant) == {stat.path for stat in metadata.stats}


def left_inflight(world: World, execute: Callable[[tk.Table], object], *, calls: int) -> World:
    """A copy of the table on which an executor died at this call."""
    copy = world.copy()
    table, _, threads = copy.client(FaultPoint(calls + 1, Fault.DEATH_BEFORE))
    with pytest.raises(ProcessDied):
        execute(table)
    threads.kill()
    return copy


class TestAnExecutorThatSleptForLong:
    """Its heartbeat lapsed, and another one carries the plan out."""

    @each_service
    def test_takes_a_file_back_that_it_published_too_late(self, busy: World, service: str) -> None:
        plan = schedule(busy, service)

        def execute(table: tk.Table) -> object:
            return table.execute(plan)

        asleep = calls_before(busy, execute, publishes)
        crew = Crew(busy)
        crew.add("sleeper", execute)
        crew.add("time", time_passes(busy))
        crew.add("other", execute)
        ended = crew.run(("sleeper", asleep), ("time", TO_THE_END), ("other", TO_THE_END))
        assert isinstance(ended["sleeper"].error, FencedError)
        assert ended["other"].error is None
        assert_commit_names_all_files(busy, plan.instant)
        assert busy.rows() == ROWS

    @each_service
    def test_and_dies_with_a_late_file_leaves_nothing_that_the_commit_does_not_name(
        self, busy: World, service: str
    ) -> None:
        plan = schedule(busy, service)

        def execute(table: tk.Table) -> object:
            return table.execute(plan)

        asleep = calls_before(busy, execute, publishes)
        crew = Crew(busy)
        crew.add("sleeper", execute, point=FaultPoint(asleep + 1, Fault.DEATH_AFTER))
        crew.add("time", time_passes(busy))
        crew.add("other", execute)
        # The other one has rolled the first attempt back and is about to publish a file of its own.
        later = calls_before(left_inflight(busy, execute, calls=asleep), execute, publishes, idle_s=LAPSED_S)
        ended = crew.run(("sleeper", asleep), ("time", TO_THE_END), ("other", later), ("sleeper", TO_THE_END))
        assert ended["sleeper"].is_dead
        assert ended["other"].error is None
        assert_commit_names_all_files(busy, plan.instant)
        assert busy.rows() == ROWS

    @each_service
    def test_takes_a_file_back_although_a_clean_has_removed_the_plan(self, busy: World, service: str) -> None:
        plan = schedule(busy, service, mutable=True)

        def execute(table: tk.Table) -> object:
            return table.execute(plan)

        crew = Crew(busy)
        crew.add("sleeper", execute)
        crew.add("time", time_passes(busy))
        crew.add("cleaner", lambda table: table.clean())
        asleep = calls_before(busy, execute, publishes)
        ended = crew.run(("sleeper", asleep), ("time", TO_THE_END), ("cleaner", TO_THE_END))
        assert isinstance(ended["sleeper"].error, FencedError)
        assert ended["cleaner"].error is None
        assert busy.timeline.find(plan.instant) is None
        assert files_of(busy, plan.instant) == frozenset()
        assert busy.rows() == ROWS


class TestAnExecutorThatFails:
    def test_leaves_the_heartbeat_of_the_next_one_alone(self, busy: World) -> None:
        plan = schedule(busy, "compaction")

        def execute(table: tk.Table) -> object:
            return table.execute(plan)

        point = FaultPoint(calls_before(busy, execute, publishes) + 1, Fault.ERROR_BEFORE)
        tidying = calls_before(busy, execute, lambda kind, path: ".heartbeat" in path, point=point, nth=-1)
        begun = calls_before(busy, execute, lambda _, path: path.endswith(".inflight"))
        crew = Crew(busy)
        crew.add("first", execute, point=point)
        crew.add("second", execute)
        ended = crew.run(("first", tidying), ("second", begun + 1), ("first", TO_THE_END))
        assert isinstance(ended["first"].error, StorageError)
        assert ended["second"].error is None
        assert_commit_names_all_files(busy, plan.instant)
        assert busy.rows() == ROWS
