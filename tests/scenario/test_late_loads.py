"""Writers that take their time first and load the timeline later, beside services that begin and end in between.

A base file with a time of before a completed compaction or clustering lies below the newer base file of its file group,
and its rows are never seen. Java's writers can write such a file; ours load late as well, and must not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.errors import ConflictError
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.model import Action, CommitMetadata, FileGroupId, Instant, Operation, RequestedTime, State, WriteStat
from tablekeeper.timeline import create_requested, following_time, remove_instant_files, start_inflight
from tablekeeper.txn.heartbeat import load_heartbeat_owner
from tests.support.meanwhile import Interrupted
from tests.support.recovery_world import World
from tests.support.table_builder import trips

__all__: list[str] = []

Write = Callable[[tk.Table], object]
Service = Callable[[tk.Table], object]

WRITES: dict[str, Write] = {
    "insert": lambda table: table.insert(trips(("n", "sf", 9, 9.0)), retries=3),
    "upsert": lambda table: table.upsert(trips(("n", "sf", 9, 9.0)), retries=3),
    "update": lambda table: table.upsert(trips(("a", "sf", 9, 9.0)), retries=3),
}
SERVICES: dict[str, Service] = {
    "compaction": lambda table: table.compact(),
    "clustering": lambda table: table.cluster(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("metadata", [False, True], ids=["listed", "metadata"])
def test_rows_of_a_writer_of_ours_that_loads_after_a_service_has_completed_are_there(
    write: str, service: str, metadata: bool
) -> None:
    world = World(table_type="mor", metadata=metadata)
    world.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    world.clock.advance(10)
    world.upsert(trips(("a", "sf", 2, 2.0)))
    world.clock.advance(10)
    other = world.table
    storage = Interrupted(world.storage)
    writer = tk.Table(storage, other._engine, other._options, runtime=other._runtime)
    began: list[str] = []

    def has_begun(kind: str, path: str) -> bool:
        """The instant is on the timeline and the lock is free: the timeline is about to be loaded."""
        if kind.startswith("put") and path.endswith("deltacommit.requested"):
            began.append(path)
        return bool(began) and kind.startswith("list_") and other.lock_holder() is None

    done: list[object] = []

    def serve() -> None:
        world.clock.advance(10)
        done.append(SERVICES[service](other))
        world.clock.advance(10)

    storage.when, storage.action = has_begun, serve
    WRITES[write](writer)
    assert len(done) == 1
    assert done[0] is not None
    expected = {"a": 9.0 if write == "update" else 2.0, "b": 1.0} | ({} if write == "update" else {"n": 9.0})
    assert dict(world.rows()) == expected
    assert len(world.rows()) == len(expected)
    # Nothing is hidden that a later service would bring back, or lose.
    world.clock.advance(10)
    other.compact()
    assert dict(world.rows()) == expected
    world.forget()


class JavaWriter:
    """A writer as Java's: its heartbeat is empty, its time comes first, and what it touches when it has loaded."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.config = world.table.config
        self.at = RequestedTime(following_time(world.timeline.newest_time))
        self.beat()
        create_requested(world.storage, self.config, requested_at=self.at, action=Action.DELTA_COMMIT, content=b"")

    def beat(self) -> None:
        self.world.storage.put(f".hoodie/.heartbeat/{self.at}", b"")

    def announce(self, *partitions: str) -> None:
        """Load the timeline, and say that the file groups of these partitions are to be written."""
        slices = [each for each in self.world.table.files() if each.group.partition in partitions]
        self._go_inflight(*(WriteStat(group=each.group, path="", size=0) for each in slices))

    def announce_inserts(self, *partitions: str) -> None:
        """The same of rows for small files of these partitions, which Java does not name."""
        self._go_inflight(*(WriteStat(group=FileGroupId(each, ""), path="", size=0, inserts=1) for each in partitions))

    def _go_inflight(self, *stats: WriteStat) -> None:
        content = encode_commit_metadata(CommitMetadata(Operation.INSERT, stats))
        requested = Instant(self.at, Action.DELTA_COMMIT, State.REQUESTED)
        start_inflight(self.world.storage, self.config, requested, content=content)


@pytest.fixture
def world() -> Iterator[World]:
    """Two partitions with logs."""
    made = World(table_type="mor")
    made.upsert(trips(("a", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    made.clock.advance(10)
    made.upsert(trips(("a", "sf", 2, 2.0), ("c", "la", 2, 2.0)))
    made.clock.advance(10)
    yield made
    made.forget()


def while_planning(world: World, action: Callable[[], object]) -> tk.Table:
    """The table of a process that sees `action` happen while it waits: when it looks at heartbeats the second time."""
    looks = itertools.count()
    storage = Interrupted(world.storage)
    storage.when = lambda kind, path: kind == "list_files" and path == ".hoodie/.heartbeat" and next(looks) == 1
    storage.action = action
    table = world.table
    return tk.Table(storage, table._engine, table._options, runtime=table._runtime)


@pytest.mark.parametrize("service", ["schedule_compaction", "schedule_clustering"])
def test_no_plan_is_made_beside_a_writer_of_java_that_does_not_say_what_it_touches(world: World, service: str) -> None:
    java = JavaWriter(world)
    world.clock.advance(10)
    options = {"tablekeeper.planning.announcement.wait.ms": "5000"}
    table = tk.Table(
        world.storage,
        world.table._engine,
        Options(options).merged_over(world.table._options),
        runtime=world.table._runtime,
    )
    started_ms = world.clock.now_ms()
    with pytest.raises(ConflictError, match="has not said yet which file groups it touches") as raised:
        getattr(table, service)()
    assert raised.value.beaten_by == java.at.value
    assert 5_000 <= world.clock.now_ms() - started_ms < 6_000
    assert len(table.plans()) == 0


def test_file_groups_that_java_announced_are_left_out_and_come_back(world: World) -> None:
    java = JavaWriter(world)
    world.clock.advance(10)
    plan = while_planning(world, lambda: java.announce("sf")).schedule_compaction()
    assert plan is not None
    assert plan.instant > java.at
    assert plan.partitions == ("la",)
    assert plan.missing_partitions == ("sf",)
    assert any("another program" in each.reason for each in plan.left_out)
    world.table.execute(plan)
    # The writer ends without a trace, and the next plan takes what was left out.
    world.clock.advance(3_600)
    world.table.rollback(java.at)
    following = world.table.schedule_compaction()
    assert following is not None
    assert following.partitions == ("sf",)


def test_base_files_that_java_may_fill_up_are_left_out_and_come_back(world: World) -> None:
    world.table.compact()
    world.clock.advance(10)
    JavaWriter(world).announce_inserts("sf")
    world.clock.advance(10)
    plan = world.table.schedule_clustering()
    assert plan is not None
    assert plan.partitions == ("la",)
    assert plan.missing_partitions == ("sf",)


def test_slices_with_logs_which_java_does_not_fill_up_are_compacted_beside_it(world: World) -> None:
    JavaWriter(world).announce_inserts("sf")
    world.clock.advance(10)
    plan = world.table.schedule_compaction()
    assert plan is not None
    assert plan.partitions == ("la", "sf")


def test_a_writer_of_java_that_died_is_not_waited_for(world: World) -> None:
    JavaWriter(world)
    world.clock.advance(3_600)
    started_ms = world.clock.now_ms()
    assert world.table.schedule_compaction() is not None
    assert world.clock.now_ms() - started_ms < 1_000


def test_a_writer_of_java_that_ends_while_it_is_waited_for_lets_the_plan_go_on(world: World) -> None:
    java = JavaWriter(world)
    requested = Instant(java.at, Action.DELTA_COMMIT, State.REQUESTED)
    plan = while_planning(
        world, lambda: remove_instant_files(world.storage, java.config, requested)
    ).schedule_compaction()
    assert plan is not None
    assert plan.partitions == ("la", "sf")


def test_writers_of_ours_are_told_by_their_heartbeats_and_not_waited_for(world: World) -> None:
    storage = Interrupted(world.storage)
    writer = tk.Table(storage, world.table._engine, world.table._options, runtime=world.table._runtime)
    seen: list[tuple[str | None, int]] = []

    def look() -> None:
        (pending,) = world.timeline.pending
        started_ms = world.clock.now_ms()
        assert world.table.schedule_compaction() is not None
        seen.append((load_heartbeat_owner(world.storage, pending.requested_at), world.clock.now_ms() - started_ms))

    storage.when = lambda kind, path: path.endswith("deltacommit.inflight")
    storage.action = look
    writer.insert(trips(("n", "ny", 1, 1.0)))
    ((owner, waited_ms),) = seen
    assert owner
    assert waited_ms < 1_000
