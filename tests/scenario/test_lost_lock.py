"""Who lost the table lock while it thought to hold it changes nothing any more, though its heartbeat is in order.

The lock is taken over at a moment at which the process holds it: when it has loaded, or is about to load, the timeline
on which it is going to decide. The thief keeps it. From then on no instant file and no data file may change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import tablekeeper as tk
from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import CommitOutcomeUnknownError, FencedError, LockNotAcquiredError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.format.plans import InstantInfo, RestorePlan, encode_restore_plan
from tablekeeper.model import Action, RequestedTime
from tablekeeper.services.plans.hold import hold_plan
from tablekeeper.storage import MemoryStorage, Storage
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.timeline import create_requested, following_time, load_timeline, start_inflight
from tablekeeper.txn.environment import LockedEnvironment
from tests.support.cleaning import schedule
from tests.support.meanwhile import Interrupted
from tests.support.recovery_world import World
from tests.support.scopeless import ScopelessStorage
from tests.support.table_builder import trips

__all__: list[str] = []

LOCK = ".hoodie/.locks/table_lock.json"
TIMELINE = ".hoodie/timeline"
CANCEL = ".hoodie/.cancel/"
METADATA = ".hoodie/metadata/"
PROPERTIES = ".hoodie/hoodie.properties"
OPTIONS = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}
AT_ONCE = {"hoodie.table.service.rollback.delay.minutes": 0}

Act = Callable[[tk.Table], object]
When = Callable[[str, str], bool]
ACTS: dict[str, tuple[str, Act]] = {
    "upsert": ("cow", lambda table: table.upsert(trips(("a", "sf", 1, 9.0), ("n", "ny", 1, 9.0)))),
    "bulk_insert": ("cow", lambda table: table.bulk_insert(trips(("n", "ny", 1, 9.0)))),
    "delete_partitions": ("cow", lambda table: table.delete_partitions(["la"])),
    "compact": ("mor", lambda table: table.compact()),
    "cluster": ("cow", lambda table: table.cluster(order_by="ts")),
    "clean": ("cow", lambda table: table.clean()),
    "clean_partition": ("cow", lambda table: table.clean()),
    "archive": ("cow", lambda table: table.archive()),
    "rollback": ("cow", lambda table: table.rollback(table.timeline()[-1].requested_at)),
    "savepoint": ("cow", lambda table: table.savepoint()),
    "delete_savepoint": ("cow", lambda table: table.delete_savepoint(table.savepoints()[0].instant)),
    "execute_again": ("mor", lambda table: table.execute(table.plans()[0].instant)),
    "execute": ("mor", lambda table: table.execute(table.plans()[0].instant)),
    "restore": ("cow", lambda table: table.restore(table.savepoints()[0].instant)),
    "resume_restore": ("cow", lambda table: table.restore(table.savepoints()[0].instant)),
    "cancel": ("cow", lambda table: table.cancel(table.plans()[0].instant, wait=0)),
    "clean_cancellable_plan": ("cow", lambda table: table.clean(options=AT_ONCE)),
    "clean_mutable_plan": ("cow", lambda table: table.clean(options=AT_ONCE)),
    "clean_that_was_never_planned": ("cow", lambda table: table.clean()),
    "create_index": ("cow", lambda table: table.create_index("record")),
    "compact_metadata_table": ("cow", lambda table: table.compact_metadata_table()),
}


# What decides on what the metadata table holds.
BY_METADATA_TABLE = ("compact_metadata_table",)


def _looks_at_timeline(kind: str, path: str) -> bool:
    return path == TIMELINE


def _looks_at_metadata_table(kind: str, path: str) -> bool:
    return kind == "list_files" and path.startswith(METADATA)


def _looks_for_attempt(kind: str, path: str) -> bool:
    return kind == "walk" and path.startswith(".hoodie/.temp/")


def _publishes_archived_timeline(kind: str, path: str) -> bool:
    return kind == "put_if_absent" and path == f"{TIMELINE}/history/_version_"


def _removes_instants(kind: str, path: str) -> bool:
    return kind == "delete_many" and path.startswith(f"{TIMELINE}/2")


class Thief:
    """Takes the lock over at the n-th call for the timeline that is made under it, or at such calls.

    `left` is what is there then.
    """

    def __init__(self, world: World, storage: Interrupted, nth: int, *, at: When = _looks_at_timeline) -> None:
        self._world = world
        self._nth = nth
        self._at = at
        self.seen = 0
        self.left: dict[str, bytes] | None = None
        storage.watch = self._watch

    def _watch(self, kind: str, path: str) -> None:
        if not self._at(kind, path) or self._world.table.lock_holder() is None:
            return
        self.seen += 1
        if self.seen == self._nth:
            valid_until = self._world.clock.now_ms() + 10 * 86_400_000
            stolen = {"expired": False, "validUntil": valid_until, "owner": "fa4e1d00-0000-4000-8000-0000000000ff"}
            self._world.storage.put(LOCK, json.dumps(stolen).encode())
            self.left = content(self._world)


def content(world: World) -> dict[str, bytes]:
    """Instant files, current and archived, requests to cancel a plan, properties, data files and the metadata table."""
    paths = [file.path for file in world.storage.walk("")]
    told = (f"{TIMELINE}/", CANCEL, METADATA, PROPERTIES)
    seen = [path for path in paths if not path.startswith(".hoodie/") or path.startswith(told)]
    return {path: world.storage.read(path) for path in seen}


def new_world(name: str) -> World:
    """Some commits; for a restore also a savepoint with a commit after it, for what is about plans a plan."""
    world = World(table_type=ACTS[name][0], options=OPTIONS)
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        world.upsert(trips(("a", "sf", 1, value), ("b", "sf", 1, value), ("c", "la", 1, value)))
    world.clock.advance(10)
    if name == "cluster":
        world.table.bulk_insert(trips(("d", "sf", 1, 1.0)))
    if name == "clean_partition":
        world.table.delete_partitions(["la"])
        world.upsert(trips(("a", "sf", 1, 6.0)))
        world.upsert(trips(("a", "sf", 1, 7.0)))
    if name == "delete_savepoint":
        world.table.savepoint()
    if name in ("execute", "execute_again"):
        world.table.schedule_compaction()
    if name == "execute_again":
        begin_plan(world)
    if name in ("restore", "resume_restore"):
        saved = world.table.savepoint().instant
        later = world.upsert(trips(("a", "sf", 1, 6.0))).instant
        if name == "resume_restore":
            request_restore(world, saved, later)
    if name in ("cancel", "clean_cancellable_plan", "clean_mutable_plan"):
        is_mutable = name == "clean_mutable_plan"
        plan = world.table.schedule_clustering(order_by="ts", mutable=is_mutable, cancellable=not is_mutable)
        assert plan is not None
    if name == "compact_metadata_table":
        make_metadata_table(world)
    if name == "clean_that_was_never_planned":
        request_clean(world)
    world.clock.advance(10)
    return world


def make_metadata_table(world: World) -> None:
    """One that is due for compaction."""
    world.table.create_index("record")
    for value in range(12):
        world.upsert(trips(("a", "sf", 1, float(value))))


def request_clean(world: World) -> None:
    """What a process leaves that died when it was about to write the plan of its clean."""
    begun = RequestedTime(following_time(world.timeline.newest_time))
    create_requested(world.storage, world.table.config, requested_at=begun, action=Action.CLEAN)


def begin_plan(world: World) -> None:
    """What an executor leaves that died when it had just begun."""
    start_inflight(world.storage, world.table.config, world.timeline.pending_plans[0])


def request_restore(world: World, saved: RequestedTime, later: RequestedTime) -> None:
    """What a process leaves that died just after it had asked for the restore."""
    plan = RestorePlan((InstantInfo(later.value, Action.COMMIT.value),), savepoint=saved.value)
    requested_at = RequestedTime(following_time(world.timeline.newest_time))
    create_requested(
        world.storage,
        world.table.config,
        requested_at=requested_at,
        action=Action.RESTORE,
        content=encode_restore_plan(plan),
    )


def client(world: World, *, has_scopes: bool = True) -> tuple[tk.Table, Interrupted]:
    runtime = world.new_runtime()
    store: Storage = MemoryStorage(f"memory://{world.name}/table", runtime=runtime)
    storage = Interrupted(store if has_scopes else ScopelessStorage(store).as_storage)
    options = Options(None).merged_over(load_writer_options(world.storage))
    return tk.Table(storage, LocalEngine(threads=1, runtime=runtime), options, runtime=runtime), storage


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[World]:
    made = new_world(request.param)
    yield made
    made.forget()


@pytest.mark.parametrize(("name", "start"), [(name, name) for name in ACTS], ids=list(ACTS), indirect=["start"])
def test_a_process_that_lost_the_lock_changes_nothing_any_more(name: str, start: World) -> None:
    act = ACTS[name][1]
    undisturbed = start.copy()
    table, storage = client(undisturbed)
    at = _looks_at_metadata_table if name in BY_METADATA_TABLE else _looks_at_timeline
    times = Thief(undisturbed, storage, nth=0, at=at)
    act(table)
    undisturbed.forget()
    assert times.seen > 0
    for nth in range(1, times.seen + 1):
        world = start.copy()
        table, storage = client(world)
        thief = Thief(world, storage, nth, at=at)
        with pytest.raises((FencedError, LockNotAcquiredError, CommitOutcomeUnknownError)) as raised:
            act(table)
        raised.value.add_note(f"taken over at look {nth} of {times.seen}")
        # A rollback that has hidden its commit goes on, whoever finishes it: that is no failure that changed nothing.
        is_half_done = name == "rollback" and len(world.timeline.completed_writes) < 5
        assert isinstance(raised.value, CommitOutcomeUnknownError) == is_half_done
        assert thief.left is not None
        assert content(world) == thief.left, f"look {nth} of {times.seen}"
        world.forget()


def test_who_lost_the_lock_while_it_looked_for_an_earlier_attempt_leaves_the_heartbeat_to_others() -> None:
    """The plan may be another executor's by now."""
    world = new_world("execute_again")
    table, storage = client(world)
    Thief(world, storage, nth=1, at=_looks_for_attempt)
    with pytest.raises(FencedError):
        ACTS["execute_again"][1](table)
    assert list(world.storage.list_files(".hoodie/.heartbeat")) == []
    world.forget()


def test_who_sleeps_while_it_gives_the_lock_file_back_does_not_take_the_lock_from_its_successor() -> None:
    provider = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
    world = World(options={"hoodie.write.lock.provider": provider})
    table, storage = client(world)
    successors: list[LockedEnvironment] = []
    with ExitStack() as stack:

        def sleep() -> None:
            world.clock.stall(3_600)
            successors.append(stack.enter_context(world.table._load_environment().locked()))

        storage.when = lambda kind, path: kind == "delete" and path == ".hoodie/lock"
        storage.action = sleep
        with table._load_environment().locked():
            pass
        successors[0].lease.check()
    world.forget()


@pytest.mark.parametrize("has_scopes", [True, False])
def test_a_clean_that_sleeps_while_it_removes_a_partition_hides_no_rows_written_there_since(has_scopes: bool) -> None:
    world = new_world("clean_partition")
    table, storage = client(world, has_scopes=has_scopes)

    def sleep() -> None:
        world.clock.stall(3_600)
        world.upsert(trips(("n", "la", 1, 9.0)))

    storage.when = lambda kind, path: kind == "delete_many" and path == f"la/{PARTITION_METADATA_NAME}"
    storage.action = sleep
    with pytest.raises(FencedError):
        table.clean()
    assert storage.action is None
    assert world.rows() == [("a", 7.0), ("b", 5.0), ("n", 9.0)]
    world.forget()


def hold_plan_for_others(table: tk.Table) -> None:
    with hold_plan(table._load_environment(), load_timeline(table._storage, table.config).pending_plans[0]):
        raise AssertionError("another process has the plan")


@pytest.mark.parametrize(
    ("name", "act"),
    [("clean", ACTS["clean"][1]), ("execute_again", ACTS["execute_again"][1]), ("execute", hold_plan_for_others)],
    ids=["clean", "plan", "plan for another program"],
)
def test_who_sleeps_before_it_starts_its_heartbeat_leaves_that_of_its_successor_alone(name: str, act: Act) -> None:
    """On a store without scopes nothing else would stop it."""
    world = new_world(name)
    if name == "clean":
        assert schedule(world.table, CleanSettings(commits=1)) is not None
    pending = world.timeline.pending[0].requested_at
    file = f".hoodie/.heartbeat/{pending}"
    table, storage = client(world, has_scopes=False)

    def sleep() -> None:
        world.clock.stall(3_600)
        world.storage.put(file, b"successor")

    storage.when = lambda kind, path: path == file and kind.startswith("put")
    storage.action = sleep
    with pytest.raises(FencedError):
        act(table)
    assert world.storage.read(file) == b"successor"
    world.forget()


@pytest.mark.parametrize("at", [_publishes_archived_timeline, _removes_instants], ids=lambda at: at.__name__[1:])
def test_an_archive_that_loses_the_lock_half_way_goes_no_further_and_the_next_one_goes_on(at: When) -> None:
    world = new_world("archive")
    before, rows = instant_files(world), world.rows()
    table, storage = client(world)
    Thief(world, storage, nth=1, at=at)
    with pytest.raises(FencedError):
        table.archive()
    assert (instant_files(world) == before) is (at is _publishes_archived_timeline)
    world.storage.delete(LOCK)
    world.upsert(trips(("d", "sf", 1, 6.0)))
    world.table.archive()
    assert len(instant_files(world)) < len(before)
    assert world.rows() == [*rows, ("d", 6.0)]
    world.forget()


def instant_files(world: World) -> list[str]:
    return [file.name for file in world.storage.list_files(TIMELINE)]
