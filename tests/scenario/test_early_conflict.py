"""Early conflict detection: the later of two writers on a file group yields before it writes data.

The earlier writer is in the middle of its work: its files are written, its markers are there, its commit is not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError
from tablekeeper.format.data_files import encode_base_name
from tablekeeper.model import Action, FileGroupId, State
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime, SystemClock
from tablekeeper.storage import Storage
from tablekeeper.txn.markers import MarkerKind, create_marker
from tests.support.fake_runtime import FakeClock
from tests.support.meanwhile import Arena, writes_data
from tests.support.recovery_world import LAPSED_S, World
from tests.support.table_builder import TableBuilder, listing, trips

__all__: list[str] = []

EARLY = "hoodie.write.concurrency.early.conflict.detection.enable"
STRATEGY = "hoodie.write.concurrency.early.conflict.detection.strategy"
COMMITS = "hoodie.write.concurrency.early.conflict.check.commit.conflict"
ON = {EARLY: "true"}
EARLIER = "20200101000000000"
ONE_BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}


@pytest.fixture
def builder() -> Iterator[TableBuilder]:
    builder = TableBuilder()
    yield builder
    builder.forget()


@pytest.fixture(params=["cow", "mor"])
def arena(builder: TableBuilder, request: pytest.FixtureRequest) -> Arena:
    """A table with a row in each of two partitions; `other` looks for conflicts early."""
    table = builder.create(table_type=request.param, options=ON)
    table.upsert(trips(("a", "sf", 1, 1.0), ("l", "la", 1, 1.0)))
    return Arena(builder, table)


class WaitingClock(SystemClock):
    """Says when somebody sleeps, and lets nobody go on before it is told."""

    def __init__(self) -> None:
        self.is_waiting, self.may_go_on = threading.Event(), threading.Event()

    def sleep(self, seconds: float) -> None:
        self.is_waiting.set()
        assert self.may_go_on.wait(30)


def put_writer(storage: Storage, *groups: FileGroupId, instant: str = EARLIER) -> None:
    """A live writer that began long ago, and has announced files of these groups."""
    storage.put(f".hoodie/timeline/{instant}.commit.requested", b"")
    storage.put(f".hoodie/timeline/{instant}.inflight", b"")
    storage.put(f".hoodie/.heartbeat/{instant}", b"")
    for group in groups:
        name = encode_base_name(file_id=group.file_id, write_token="1-2-3", instant=instant)
        create_marker(storage, instant=instant, partition=group.partition, file_name=name, kind=MarkerKind.MERGE)


def data_files(storage: Storage) -> set[str]:
    return {file.path for file in storage.walk("") if not file.path.startswith(".hoodie/")}


def pending(table: tk.Table) -> list[str]:
    return [i.requested_at.value for i in table.timeline() if i.state is not State.COMPLETED]


def test_the_later_writer_gives_way_before_it_writes_and_is_told_to_whom_and_where(arena: Arena) -> None:
    caught: list[ConflictError] = []

    def lose(other: tk.Table) -> None:
        (earlier,) = pending(arena.table)
        before = listing(arena.storage)
        with pytest.raises(ConflictError, match="still writing to the same file groups") as info:
            other.upsert(trips(("a", "sf", 3, 3.0)))
        assert info.value.beaten_by == earlier
        assert info.value.instant > earlier
        assert listing(arena.storage) == before
        caught.append(info.value)

    arena.meanwhile(lose)
    arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    (group,) = {str(s.group) for s in arena.table.files(partitions=["sf"])}
    assert caught[0].file_groups == (group,)
    assert arena.rows() == [("a", "sf", 2), ("l", "la", 1)]
    assert [i.action for i in arena.table.timeline() if i.action is Action.ROLLBACK] == []


def test_a_writer_of_other_file_groups_goes_on(arena: Arena) -> None:
    arena.meanwhile(lambda other: other.upsert(trips(("l", "la", 3, 3.0), ("new", "ny", 3, 3.0))))
    arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "sf", 2), ("l", "la", 3), ("new", "ny", 3)]


def test_it_is_off_by_default_and_the_first_to_commit_wins(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor")
    table.upsert(trips(("a", "sf", 1, 1.0)))
    arena = Arena(builder, table)
    arena.meanwhile(lambda other: other.upsert(trips(("a", "sf", 3, 3.0))))
    with pytest.raises(ConflictError, match="lost to"):
        arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "sf", 3)]


def test_a_bucket_that_both_create_is_found_although_their_file_ids_differ(builder: TableBuilder) -> None:
    arena = Arena(builder, builder.create(table_type="mor", options={**ONE_BUCKET, **ON}))

    def lose(other: tk.Table) -> None:
        with pytest.raises(ConflictError, match="still writing"):
            other.upsert(trips(("b", "sf", 3, 3.0)))
        other.upsert(trips(("b", "la", 3, 3.0)))

    arena.meanwhile(lose)
    arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "sf", 2), ("b", "la", 3)]


def test_the_earlier_writer_does_not_give_way_to_the_later_one(arena: Arena) -> None:
    """It is interrupted while it looks keys up, before it has announced anything."""
    arena.meanwhile(lambda other: other.upsert(trips(("a", "sf", 3, 3.0))), when=".parquet")
    with pytest.raises(ConflictError, match="lost to"):
        arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "sf", 3), ("l", "la", 1)]


def test_all_file_groups_are_announced_before_the_first_data_is_written(builder: TableBuilder) -> None:
    table = builder.create(table_type="cow", options=ON)
    cities = [f"c{number}" for number in range(6)]
    table.upsert(trips(*((city, city, 1, 1.0) for city in cities)))
    arena = Arena(builder, table)
    refused: list[str] = []

    def lose(other: tk.Table) -> None:
        for city in cities:
            with pytest.raises(ConflictError, match="still writing"):
                other.upsert(trips((city, city, 3, 3.0)))
            refused.append(city)

    arena.meanwhile(lose, when=writes_data)
    arena.writer.upsert(trips(*((city, city, 2, 2.0) for city in cities)))
    assert refused == cities


def test_markers_of_a_writer_whose_heartbeat_has_lapsed_stop_nobody() -> None:
    never = {"hoodie.clean.failed.writes.policy": "NEVER"}
    world = World(options={**ON, **never})
    world.upsert(trips(("a", "sf", 1, 1.0)))
    world.crash(trips(("a", "sf", 2, 2.0)))
    with pytest.raises(ConflictError, match="still writing"):
        world.upsert(trips(("a", "sf", 3, 3.0)))
    world.clock.advance(LAPSED_S)
    world.upsert(trips(("a", "sf", 3, 3.0)))
    assert world.rows("id", "ts") == [("a", 3)]
    world.forget()


@pytest.mark.parametrize("tail", ["", "\nsf/torn.mark", "\n\xff\xfe"])
def test_markers_that_the_timeline_server_of_java_keeps_are_seen(builder: TableBuilder, tail: str) -> None:
    table = builder.create(table_type="cow", options=ON)
    table.upsert(trips(("a", "sf", 1, 1.0)))
    storage = builder.storage(table)
    (group,) = {s.group for s in table.files()}
    put_writer(storage)
    name = encode_base_name(file_id=group.file_id, write_token="1-2-3", instant=EARLIER)
    storage.put(f".hoodie/.temp/{EARLIER}/MARKERS.type", b"TIMELINE_SERVER_BASED")
    storage.put(f".hoodie/.temp/{EARLIER}/MARKERS0", f"sf/{name}.marker.MERGE{tail}".encode("latin-1"))
    with pytest.raises(ConflictError, match="still writing") as caught:
        table.upsert(trips(("a", "sf", 2, 2.0)))
    assert caught.value.beaten_by == EARLIER


def test_commits_since_the_start_are_looked_at_only_if_asked_for(builder: TableBuilder) -> None:
    """The other commits while the writer looks keys up."""
    written = {}
    for asked in ("false", "true"):
        table = builder.create(table_type="cow", options={**ON, COMMITS: asked})
        table.upsert(trips(("a", "sf", 1, 1.0)))
        arena = Arena(builder, table)
        before = data_files(arena.storage)
        arena.meanwhile(lambda other: other.upsert(trips(("a", "sf", 3, 3.0))), when=".parquet")
        with pytest.raises(ConflictError, match="lost to"):
            arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
        new = [path for path in arena.storage.paths("open_output", "put") if path not in before]
        written[asked] = [path for path in new if path.endswith(".parquet")]
    assert written["true"] == []
    assert len(written["false"]) == 1


def test_the_transactional_strategy_looks_and_announces_under_the_lock(builder: TableBuilder) -> None:
    strategy = "org.apache.hudi.table.marker.SimpleTransactionDirectMarkerBasedDetectionStrategy"
    table = builder.create(table_type="cow", options={**ON, STRATEGY: strategy})
    table.upsert(trips(("a", "sf", 1, 1.0)))
    put_writer(builder.storage(table))
    arena = Arena(builder, table)
    held: list[tuple[str, bool]] = []

    def watch(kind: str, path: str) -> None:
        if path.startswith(".hoodie/.temp/") and kind in ("walk", "put_if_absent"):
            held.append((kind, table.lock_holder() is not None))

    arena.storage.watch = watch
    arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    # The earlier writer's markers, the announcement, and then the marker of the task.
    assert held == [("walk", True), ("put_if_absent", True), ("put_if_absent", False)]


def test_a_retry_waits_for_the_earlier_writer_and_then_succeeds(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor", options=ON)
    table.upsert(trips(("a", "sf", 1, 1.0)))
    arena = Arena(builder, table)
    clock = WaitingClock()
    results: list[tk.WriteResult] = []

    def write() -> None:
        other = builder.through(table, runtime=Runtime(clock=clock))
        results.append(other.upsert(trips(("a", "sf", 3, 3.0)), retries=1))

    thread = threading.Thread(target=write)

    def let_it_give_way(_: tk.Table) -> None:
        thread.start()
        assert clock.is_waiting.wait(30)

    arena.meanwhile(let_it_give_way)
    arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    clock.may_go_on.set()
    thread.join(30)
    assert [result.rows_updated for result in results] == [1]
    assert arena.rows() == [("a", "sf", 3)]


def test_without_retries_the_conflict_is_raised_at_once(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor", options=ON)
    table.upsert(trips(("a", "sf", 1, 1.0)))
    put_writer(builder.storage(table), *(s.group for s in table.files()))
    clock = FakeClock(SYSTEM_RUNTIME.clock.now_ms())
    with pytest.raises(ConflictError, match="still writing"):
        builder.through(table, runtime=Runtime(clock=clock)).upsert(trips(("a", "sf", 3, 3.0)))
    assert clock.slept_s == []


def test_a_retry_does_not_wait_for_the_earlier_writer_longer_than_for_the_lock(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor", options={**ON, "hoodie.write.lock.wait_time_ms": "20000"})
    table.upsert(trips(("a", "sf", 1, 1.0)))
    put_writer(builder.storage(table), *(s.group for s in table.files()))
    clock = FakeClock(SYSTEM_RUNTIME.clock.now_ms())
    with pytest.raises(ConflictError, match="still writing"):
        builder.through(table, runtime=Runtime(clock=clock)).upsert(trips(("a", "sf", 3, 3.0)), retries=1)
    assert 20 <= sum(clock.slept_s) < 25


def test_a_writer_that_announces_itself_later_is_seen_before_the_next_wave_of_tasks(builder: TableBuilder) -> None:
    table, arena = six_groups(builder)
    put_writer(arena.storage)
    last = next(s.group for s in table.files(partitions=["c5"]))
    arena.meanwhile(lambda _: put_writer(builder.storage(table), last), when=writes_data)
    with pytest.raises(ConflictError, match="still writing") as caught:
        arena.writer.upsert(six_rows(ts=2))
    assert caught.value.file_groups == (str(last),)
    assert len([path for path in arena.storage.paths("open_output") if path.endswith(".parquet")]) == 4
    assert pending(table) == [EARLIER]
    assert {ts for _, _, ts in arena.rows()} == {1}


def test_looking_costs_one_listing_of_heartbeats_and_one_of_each_active_writer_a_wave(builder: TableBuilder) -> None:
    _, arena = six_groups(builder)
    for number in range(3):
        put_writer(arena.storage, instant=f"2020010100000000{number}")
    arena.storage.reset()
    arena.writer.upsert(six_rows(ts=2))
    walked = [path for path in arena.storage.paths("walk") if path.startswith(".hoodie/.temp/2020")]
    assert len(walked) == 2 * 3
    # One more to find writes that died.
    assert arena.storage.paths("list_files").count(".hoodie/.heartbeat") == 2 + 1


def test_nobody_else_being_there_costs_no_listing_at_all(builder: TableBuilder) -> None:
    _, arena = six_groups(builder)
    arena.storage.reset()
    arena.writer.upsert(six_rows(ts=2))
    assert [path for path in arena.storage.paths("walk", "list_directories") if ".temp" in path] == []
    assert ".hoodie/.heartbeat" not in arena.storage.paths("list_files")


def six_rows(*, ts: int) -> pa.Table:
    return trips(*((f"k{number}", f"c{number}", ts, 1.0) for number in range(6)))


def six_groups(builder: TableBuilder) -> tuple[tk.Table, Arena]:
    """A table with a file group in each of six partitions, for a writer with one thread: four tasks in a wave."""
    table = builder.create(table_type="cow", options=ON)
    table.upsert(six_rows(ts=1))
    return table, Arena(TableBuilder(threads=1), table)
