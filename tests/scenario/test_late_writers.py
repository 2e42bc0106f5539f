"""Writers that slept through the end of their heartbeat, were rolled back by others, and go on when they wake up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.errors import FencedError
from tablekeeper.model import Action
from tablekeeper.services.doctor.report import Severity
from tests.support.crew import TO_THE_END, Crew, calls_before
from tests.support.meanwhile import Interrupted
from tests.support.record_index_content import refuse_wrong_record_index
from tests.support.recovery_world import FIRST, LAPSED_S, ROWS_OF_FIRST, World
from tests.support.step_faults import Fault, FaultPoint, OneThread
from tests.support.table_builder import trips

__all__: list[str] = []

LATE = trips(("a", "sf", 9, 9.0), ("d", "la", 9, 9.0))
LEASED_LOCK = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
NEW_FILES = {"hoodie.parquet.small.file.limit": "0"}
VERSIONS = "KEEP_LATEST_FILE_VERSIONS"
ONE_VERSION = {"hoodie.clean.policy": VERSIONS, "hoodie.clean.fileversions.retained": 1}
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
    assert not [path for kind, path in calls if kind in ("put", "publish") and path.startswith(("sf/", "la/"))]
    assert before <= world.data_files()
    assert world.rows() == [("a", 1.0), ("b", 2.0), ("c", 1.0)]
    assert not list(world.storage.list_directories(".hoodie/.temp"))
    assert world.table.doctor().repairs == ()


def test_on_an_object_store_a_task_that_is_late_looks_before_it_publishes(world: World) -> None:
    world.has_scopes = False
    late, calls = write_late(world, at=".marker.")
    assert isinstance(late.error, FencedError)
    assert not [path for kind, path in calls if kind in ("put", "publish") and path.startswith(("sf/", "la/"))]
    assert world.rows() == [("a", 1.0), ("b", 2.0), ("c", 1.0)]


def test_on_an_object_store_who_lost_the_lock_makes_no_further_change() -> None:
    world = World(options={"hoodie.write.lock.provider": LEASED_LOCK})
    world.has_scopes = False
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        world.upsert(trips(("a", "sf", 1, value)))
    few = {name: value for name, value in FEW.items() if "compact" not in name}
    world.table.clean(options={"hoodie.clean.commits.retained": 1})

    def is_removal(kind: str, path: str) -> bool:
        return kind == "delete" and path.startswith(".hoodie/timeline/")

    crew = Crew(world)
    crew.add("late", lambda table: table.archive(options=few))
    crew.add("others", lambda table: world.clock.stall(LAPSED_S))
    asleep = calls_before(world, lambda table: table.archive(options=few), is_removal)
    outcomes = crew.run(("late", asleep), ("others", TO_THE_END), ("late", TO_THE_END))
    assert isinstance(outcomes["late"].error, FencedError)
    assert [call for call in crew.stage.actors["late"].calls if is_removal(*call)] == [
        crew.stage.actors["late"].calls[asleep]
    ]
    world.forget()


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


def test_a_write_whose_heartbeat_ends_in_the_middle_of_its_commit_is_not_completed() -> None:
    world = World(metadata=True)
    world.upsert(FIRST)
    runtime = world.new_runtime()
    storage = Interrupted(world.open_store(runtime))

    def end_heartbeat(kind: str, path: str) -> None:
        if kind == "put_if_absent" and path.startswith(".hoodie/metadata/"):
            world.storage.delete_tree(".hoodie/.heartbeat")
            assert isinstance(runtime.threads, OneThread)
            for periodic in runtime.threads.periodics:
                if periodic.is_running:
                    periodic.fire()

    storage.watch = end_heartbeat
    table = tk.Table(storage, world.table._engine, world.table._options, runtime=runtime)
    with pytest.raises(FencedError, match="heartbeat"):
        table.upsert(LATE)
    assert world.rows() == ROWS_OF_FIRST
    world.forget()


@pytest.mark.parametrize("way_back", ["rollback", "restore"])
def test_a_clean_that_is_planned_late_deletes_nothing_that_has_come_back(way_back: str) -> None:
    """On an object store the plan lands after others took back the commit because of which its files were old."""
    world = World(options={"hoodie.write.lock.provider": LEASED_LOCK})
    world.has_scopes = False
    world.upsert(FIRST)
    world.clock.advance(10)
    saved = world.table.savepoint().instant if way_back == "restore" else None
    newest = world.upsert(LATE).instant
    world.clock.advance(10)
    if saved is not None:
        # The plan is drafted without the savepoint in mind, as if it were made while the process sleeps.
        world.table.delete_savepoint(saved)

    def others(table: Any) -> None:
        world.clock.stall(LAPSED_S)
        if saved is None:
            table.rollback(newest)
            return
        table.savepoint(saved)
        table.restore(saved)

    def is_plan(kind: str, path: str) -> bool:
        return kind == "put_if_absent" and path.endswith(".clean.requested")

    asleep = calls_before(world, lambda table: table.clean(options=ONE_VERSION), is_plan)
    crew = Crew(world)
    # It dies before it can take its plan away again.
    dies = FaultPoint(asleep + 1, Fault.DEATH_AFTER)
    crew.add("late", lambda table: table.clean(options=ONE_VERSION), point=dies)
    crew.add("others", others)
    outcomes = crew.run(("late", asleep), ("others", TO_THE_END), ("late", TO_THE_END))
    assert outcomes["others"].error is None
    assert [i.action for i in world.timeline.pending] == [Action.CLEAN]
    world.clock.stall(LAPSED_S)
    world.table.clean(options=ONE_VERSION)
    assert world.rows() == ROWS_OF_FIRST
    assert not world.timeline.pending
    world.forget()


LATE_PLANS: dict[str, tuple[str, str, Callable[[tk.Table], object]]] = {
    "compaction": ("mor", ".compaction.requested", lambda table: table.schedule_compaction()),
    "clustering": ("cow", ".clustering.requested", lambda table: table.schedule_clustering(order_by="ts")),
    "clean": ("cow", ".clean.requested", lambda table: table.clean(options=ONE_VERSION)),
    "restore": ("cow", ".restore.requested", lambda table: table.restore(table.savepoints()[0].instant)),
    "executor": ("mor", ".compaction.inflight", lambda table: table.execute(table.plans()[0].instant)),
}


@pytest.mark.parametrize("name", LATE_PLANS)
def test_a_plan_that_lands_after_its_files_were_taken_back_is_taken_away(name: str) -> None:
    table_type, at, act = LATE_PLANS[name]
    world = World(table_type=table_type, options={"hoodie.write.lock.provider": LEASED_LOCK, **NEW_FILES})
    world.has_scopes = False
    world.upsert(FIRST)
    world.clock.advance(10)
    if name in ("restore", "executor"):
        world.table.savepoint()
    newest = world.upsert(trips(("a", "sf", 9, 9.0), ("e", "sf", 9, 9.0))).instant
    world.clock.advance(10)
    if name == "executor":
        assert world.table.schedule_compaction() is not None
        world.clock.advance(10)

    def others(table: Any) -> None:
        world.clock.stall(LAPSED_S)
        if name == "executor":
            table.restore(table.savepoints()[0].instant)
            return
        table.rollback(newest)
        # It is not part of what a late restore would take back.
        table.upsert(trips(("b", "sf", 2, 2.0)))

    crew = Crew(world)
    crew.add("late", act)
    crew.add("others", others)
    asleep = calls_before(world, act, lambda kind, path: kind == "put_if_absent" and path.endswith(at))
    outcomes = crew.run(("late", asleep), ("others", TO_THE_END), ("late", TO_THE_END))
    assert outcomes["others"].error is None
    assert isinstance(outcomes["late"].error, FencedError)
    assert not world.timeline.pending
    assert world.rows() == (ROWS_OF_FIRST if name == "executor" else [("a", 1.0), ("b", 2.0), ("c", 1.0)])
    assert not [finding for finding in world.table.doctor().findings if finding.severity is Severity.ERROR]
    world.forget()


@pytest.mark.parametrize("at", [".deltacommit", "rome/.hoodie_partition_metadata"], ids=["lock", "attempt"])
def test_a_store_with_scopes_lets_no_change_through_that_a_driver_makes_too_late(at: str) -> None:
    """The driver would die directly after the change, before it could take it back."""
    world = World(table_type="mor", options={"hoodie.write.lock.provider": LEASED_LOCK})
    world.upsert(FIRST)
    rows = trips(("a", "sf", 9, 9.0), ("d", "rome", 9, 9.0))
    known: set[str] = set()

    def others(table: Any) -> None:
        known.update(file.path for file in world.storage.walk(""))
        world.clock.stall(LAPSED_S)
        table.upsert(trips(("b", "sf", 2, 2.0)))
        known.update(file.path for file in world.storage.walk(""))

    asleep = calls_before(
        world, lambda table: table.upsert(rows), lambda kind, path: kind == "put_if_absent" and path.endswith(at)
    )
    crew = Crew(world)
    crew.add("late", lambda table: table.upsert(rows), point=FaultPoint(asleep + 1, Fault.DEATH_AFTER))
    crew.add("others", others)
    outcomes = crew.run(("late", asleep), ("others", TO_THE_END), ("late", TO_THE_END))
    assert outcomes["others"].error is None
    assert isinstance(outcomes["late"].error, FencedError)
    assert not [file.path for file in world.storage.walk("") if file.path not in known]
    assert world.rows() == [("a", 1.0), ("b", 2.0), ("c", 1.0)]
    world.forget()


def test_whoever_hides_a_commit_late_on_an_object_store_brings_it_back() -> None:
    """Others have withdrawn the rollback by then, and written on top of the commit."""
    world = World(options={"hoodie.write.lock.provider": LEASED_LOCK})
    world.has_scopes = False
    world.upsert(FIRST)
    newest = world.upsert(LATE).instant
    world.clock.advance(10)

    def others(table: Any) -> None:
        world.clock.stall(LAPSED_S)
        table.upsert(trips(("b", "sf", 2, 2.0)))

    def is_hidden(kind: str, path: str) -> bool:
        return kind == "delete" and path.endswith(".commit")

    crew = Crew(world)
    crew.add("late", lambda table: table.rollback(newest))
    crew.add("others", others)
    asleep = calls_before(world, lambda table: table.rollback(newest), is_hidden)
    outcomes = crew.run(("late", asleep), ("others", TO_THE_END), ("late", TO_THE_END))
    assert outcomes["others"].error is None
    assert isinstance(outcomes["late"].error, FencedError)
    assert world.rows() == [("a", 9.0), ("b", 2.0), ("c", 1.0), ("d", 9.0)]
    assert not world.timeline.pending
    world.forget()


def test_a_record_index_that_others_have_built_is_not_overwritten_by_whoever_was_building_it() -> None:
    """The files of a record index have the same names, whoever builds it, and an object store keeps nobody out."""
    world = World(options={"hoodie.write.lock.provider": LEASED_LOCK})
    world.has_scopes = False
    world.upsert(FIRST)
    world.clock.advance(10)
    ones = {"hoodie.metadata.record.index.min.filegroup.count": "1"}

    def create(table: Any) -> object:
        return table.create_index("record", options=ones)

    def others(table: Any) -> None:
        world.clock.stall(LAPSED_S)
        table.upsert(trips(("d", "sf", 2, 2.0)))
        create(table)

    crew = Crew(world)
    crew.add("late", create)
    crew.add("others", others)
    asleep = calls_before(world, create, lambda kind, path: "/record_index/" in path and path.endswith(".hfile"))
    outcomes = crew.run(("late", asleep), ("others", TO_THE_END), ("late", TO_THE_END))
    assert outcomes["others"].error is None
    assert isinstance(outcomes["late"].error, FencedError)
    world.clock.advance(10)
    refuse_wrong_record_index(world.table)
    world.upsert(trips(("d", "sf", 3, 3.0)))
    assert world.rows() == [*ROWS_OF_FIRST, ("d", 3.0)]
    world.forget()
