"""What table services do when others are faster: found by the stress run, told here one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError, FencedError, InvalidRequestError, StorageError
from tablekeeper.model import RequestedTime, ServiceKind
from tablekeeper.services.plans.schedule import ScheduledPlan
from tablekeeper.snapshot.slices import load_files_of_instant, load_partitions_by_listing
from tablekeeper.timeline import load_commit_metadata
from tests.support.crew import TO_THE_END, Crew, calls_before
from tests.support.meanwhile import Interrupted, writes_data
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


def test_a_plan_that_is_cancelled_between_listing_and_execution_does_not_stop_the_others(world: World) -> None:
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
    done = table._execute_waiting(ServiceKind.COMPACTION)
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
    """Its heartbeat lapsed, and another one executes the plan."""

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
    def test_and_wakes_up_to_publish_a_file_leaves_nothing_that_the_commit_does_not_name(
        self, busy: World, service: str
    ) -> None:
        plan = schedule(busy, service)

        def execute(table: tk.Table) -> object:
            return table.execute(plan)

        asleep = calls_before(busy, execute, publishes)
        crew = Crew(busy)
        crew.add("sleeper", execute)
        crew.add("time", time_passes(busy))
        crew.add("other", execute)
        # The other one has rolled the first attempt back and is about to publish a file of its own.
        later = calls_before(left_inflight(busy, execute, calls=asleep), execute, publishes, idle_s=LAPSED_S)
        ended = crew.run(("sleeper", asleep), ("time", TO_THE_END), ("other", later), ("sleeper", TO_THE_END))
        assert isinstance(ended["sleeper"].error, FencedError)
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


SHARED_BUCKETS = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "1",
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
}
ARCHIVE_EARLY = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.clean.commits.retained": "1",
    "hoodie.compact.inline.trigger.strategy": "TIME_ELAPSED",
    "tablekeeper.archive.keep.last.plans": "false",
}


def upserts(rows: pa.Table) -> Callable[[tk.Table], object]:
    return lambda table: table.upsert(rows)


def commits(world: World, count: int, *, city: str = "city") -> Callable[[tk.Table], object]:
    """So many commits, each of a partition of its own."""

    def work(table: tk.Table) -> None:
        for number in range(count):
            world.clock.advance(1)
            table.upsert(trips((f"n{number}", f"{city}{number}", 1, 1.0)))

    return work


def archives(world: World) -> Callable[[tk.Table], object]:
    """One more commit; then everything is archived that may go but three commits; and then a minute passes."""

    def work(table: tk.Table) -> None:
        world.clock.advance(1)
        table.upsert(trips(("last", "last", 1, 1.0)))
        table.archive(options=ARCHIVE_EARLY)
        world.clock.advance(60)

    return work


def commits_itself(kind: str, path: str) -> bool:
    """A moment: everything is written, and the commit is about to begin."""
    return path.endswith(".hoodie_partition_metadata")


class TestAPlanThatIsMadeWhileTheTimelineChanges:
    @pytest.mark.parametrize("service", ["compaction", "clustering"])
    def test_holds_the_logs_of_a_commit_that_completed_and_was_archived_meanwhile(
        self, busy: World, service: str
    ) -> None:
        write = upserts(trips(("a", "sf", 4, 4.0)))

        def plan(table: tk.Table) -> ScheduledPlan | None:
            return table.schedule_compaction() if service == "compaction" else table.schedule_clustering()

        crew = Crew(busy)
        crew.add("writer", write)
        crew.add("others", commits(busy, 5))
        crew.add("planner", plan)
        crew.add("archiver", archives(busy))
        # The planner has loaded the timeline, on which the writer is running, and is about to list partitions.
        drafting = calls_before(busy, plan, lambda kind, path: kind == "list_files" and not path.startswith(".hoodie"))
        ended = crew.run(
            ("writer", calls_before(busy, write, commits_itself)),
            ("others", TO_THE_END),
            ("planner", drafting),
            ("writer", TO_THE_END),
            ("archiver", TO_THE_END),
        )
        assert [each.error for each in ended.values()] == [None] * 4
        assert busy.rows()[0] == ("a", 4.0)
        assert busy.table.execute(ended["planner"].value).outcome == "completed"
        assert busy.rows()[0] == ("a", 4.0)

    @pytest.mark.parametrize("service", ["compaction", "log compaction", "clustering"])
    def test_does_not_hold_the_logs_of_a_commit_that_is_being_rolled_back(self, busy: World, service: str) -> None:
        busy.upsert(trips(("a", "sf", 4, 4.0), ("c", "la", 4, 4.0)))
        newest = busy.timeline.completed_writes[-1].requested_at

        def plan(table: tk.Table) -> ScheduledPlan | None:
            methods = {
                "compaction": table.schedule_compaction,
                "log compaction": table.schedule_log_compaction,
                "clustering": table.schedule_clustering,
            }
            return methods[service]()

        def roll_back(table: tk.Table) -> object:
            return table.rollback(newest)

        crew = Crew(busy)
        crew.add("planner", plan)
        crew.add("other", roll_back)
        listed = calls_before(busy, plan, lambda kind, path: kind == "list_files" and path == "sf", nth=-1)
        # The commit is hidden, and its files are about to be deleted, without the lock.
        hidden = calls_before(busy, roll_back, lambda kind, _: kind == "delete_many")
        ended = crew.run(("planner", listed), ("other", hidden), ("planner", TO_THE_END))
        assert [each.error for each in ended.values()] == [None] * 2
        assert busy.rows() == ROWS
        assert busy.table.execute(ended["planner"].value).outcome == "completed"
        assert busy.rows() == ROWS


def test_a_clean_is_planned_anew_when_the_oldest_commit_of_the_timeline_is_taken_back() -> None:
    """It completed last, and is missing from the front of the timeline as if it had been archived."""
    world = World()
    world.upsert(trips(("z", "zz", 1, 1.0)))
    world.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    write = upserts(trips(("a", "sf", 2, 2.0)))
    crew = Crew(world)
    crew.add("writer", write)
    crew.add("others", commits(world, 2))
    crew.run(("writer", calls_before(world, write, commits_itself)), ("others", TO_THE_END))
    world.table.archive(options=ARCHIVE_EARLY)
    newest = world.timeline.completed_writes_by_completion[-1]
    assert newest.requested_at == world.timeline.first_active_write
    world.clock.advance(60)

    def clean(table: tk.Table) -> object:
        return table.clean(keep_file_versions=1)

    crew = Crew(world)
    crew.add("cleaner", clean)
    crew.add("other", lambda table: table.rollback(newest.requested_at))
    # Partitions are listed in order: what the clean is about has been looked at by then.
    looked = calls_before(world, clean, lambda kind, path: kind == "list_files" and path == "zz")
    ended = crew.run(("cleaner", looked), ("other", TO_THE_END))
    assert [each.error for each in ended.values()] == [None] * 2
    assert world.rows()[:2] == [("a", 1.0), ("b", 1.0)]
    world.forget()


@pytest.fixture(params=["tablekeeper", "Java"])
def archiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose archive is running: Java's goes by requested times alone."""
    name = str(request.param)
    if name == "Java":
        monkeypatch.setattr("tablekeeper.services.archive.plan._completion_bounds", lambda view: iter(()))
    return name


def test_a_writer_is_compared_with_a_commit_that_was_there_before_it_whatever_is_archived_meanwhile(
    archiver: str,
) -> None:
    world = World()
    world.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    first, second = upserts(trips(("a", "sf", 2, 2.0))), upserts(trips(("b", "sf", 2, 2.0)))
    crew = Crew(world)
    crew.add("first", first)
    crew.add("between", commits(world, 3))
    crew.add("second", second)
    crew.add("others", commits(world, 5))
    crew.add("archiver", archives(world))
    ended = crew.run(
        ("first", calls_before(world, first, commits_itself)),
        ("between", TO_THE_END),
        ("second", calls_before(world, second, commits_itself)),
        ("first", TO_THE_END),
        ("others", TO_THE_END),
        ("archiver", TO_THE_END),
    )
    assert isinstance(ended["second"].error, ConflictError)
    assert world.timeline.is_completed(instant := RequestedTime(ended["second"].error.beaten_by))
    assert (world.timeline.find(instant) is None) == (archiver == "Java")
    assert world.rows()[:2] == [("a", 2.0), ("b", 1.0)]
    world.forget()


def test_a_plan_yields_to_a_commit_that_was_under_way_when_it_was_made_whatever_is_archived_meanwhile(
    archiver: str, busy: World
) -> None:
    write = upserts(trips(("a", "sf", 4, 4.0)))
    crew = Crew(busy)
    crew.add("writer", write)
    crew.add("others", commits(busy, 3))
    crew.add("planner", lambda table: table.schedule_clustering(cancellable=True))
    crew.add("later", commits(busy, 5, city="later"))
    crew.add("archiver", archives(busy))
    ended = crew.run(
        ("writer", calls_before(busy, write, commits_itself)),
        ("others", TO_THE_END),
        ("planner", TO_THE_END),
        ("writer", TO_THE_END),
        ("later", TO_THE_END),
        ("archiver", TO_THE_END),
    )
    assert [each.error for each in ended.values()] == [None] * 5
    instant = ended["writer"].value.instant
    assert (busy.timeline.find(instant) is None) == (archiver == "Java")
    with pytest.raises(ConflictError):
        busy.table.execute(ended["planner"].value)
    assert busy.rows()[0] == ("a", 4.0)


def test_a_clean_spares_the_logs_of_a_planned_compaction_in_a_group_without_base_file_that_was_deleted() -> None:
    """The slice is named after its oldest log, which completed after the plan was made."""
    world = World(table_type="mor", options=SHARED_BUCKETS)
    write = upserts(trips(("a", "sf", 1, 1.0)))
    crew = Crew(world)
    crew.add("first", write)
    crew.add("second", upserts(trips(("b", "sf", 1, 1.0))))
    crew.add("planner", lambda table: table.schedule_compaction())
    ended = crew.run(
        ("first", calls_before(world, write, commits_itself)), ("second", TO_THE_END), ("planner", TO_THE_END)
    )
    assert [each.error for each in ended.values()] == [None] * 3
    world.clock.advance(60)
    world.table.delete_partitions(["sf"])
    world.clock.advance(60)
    world.table.clean(keep_file_versions=1)
    assert world.table.execute(ended["planner"].value).outcome == "completed"
    assert world.rows() == []
    world.forget()


def test_a_compaction_of_logs_alone_is_not_rolled_back_once_the_logs_are_cleaned_away() -> None:
    world = World(table_type="mor", options=SHARED_BUCKETS)
    world.upsert(trips(("a", "sf", 1, 1.0)))
    compacted = world.table.compact()
    assert compacted is not None
    world.clock.advance(60)
    world.table.clean(keep_file_versions=1)
    with pytest.raises(InvalidRequestError, match="cleaned away"):
        world.table.rollback(compacted.instant)
    assert world.rows() == [("a", 1.0)]
    world.forget()


class TestARollbackThatACleanLeftOnTheTimeline:
    """The clean died after it had put the rollback of a mutable plan there."""

    @pytest.fixture
    def plan(self, busy: World) -> ScheduledPlan:
        plan = schedule(busy, "clustering", mutable=True)
        busy.clock.advance(86_400)

        def clean(table: tk.Table) -> object:
            return table.clean()

        dies = calls_before(busy, clean, lambda _, path: path.endswith(".rollback.requested")) + 1
        table, _, threads = busy.client(FaultPoint(dies, Fault.DEATH_AFTER))
        with pytest.raises(ProcessDied):
            clean(table)
        threads.kill()
        assert [i.action.value for i in busy.timeline.pending] == ["clustering", "rollback"]
        return plan

    @pytest.mark.parametrize("who", ["the next clean", "the doctor", "a rollback by hand", "cancel"])
    def test_is_finished_by(self, busy: World, plan: ScheduledPlan, who: str) -> None:
        busy.clock.advance(LAPSED_S)
        with pytest.raises(FencedError):
            busy.table.execute(plan)
        match who:
            case "the next clean":
                busy.table.clean()
            case "the doctor":
                busy.table.doctor(fix=True)
            case "a rollback by hand":
                busy.table.rollback(plan.instant)
            case "cancel":
                assert busy.table.cancel(plan).is_removed
        assert not busy.timeline.pending
        assert busy.rows() == ROWS
        assert busy.table.cluster() is not None
        assert busy.rows() == ROWS


def test_a_writer_that_is_stopped_while_it_cleans_up_after_a_failure_stops_its_heartbeat(world: World) -> None:
    table = world.table

    def fail() -> None:
        watched.when = ".rollback.requested"
        watched.action = stop
        raise StorageError("the store is full", path="", transient=False)

    def stop() -> None:
        raise KeyboardInterrupt

    watched = Interrupted(table._storage)
    watched.when = writes_data
    watched.action = fail
    table._storage = watched
    with pytest.raises(KeyboardInterrupt):
        table.upsert(trips(("a", "sf", 9, 9.0)))
    world.clock.advance(LAPSED_S)
    assert not [each for each in world.table.heartbeats() if each.is_active]
    assert world.upsert(trips(("b", "sf", 9, 9.0))).rows_updated == 1
    assert len(world.timeline.pending) == 0
