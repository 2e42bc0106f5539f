"""Files that come after their write is over, on a store that cannot keep them out.

Speculative attempts, and writers that were rolled back, publish when nobody expects them any more. On a store without
scopes a task notices that itself and takes its file back; if it dies before it does, its marker tells the next clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.errors import FencedError
from tablekeeper.model import RequestedTime
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.timeline import load_written_paths
from tablekeeper.txn.attempts import AttemptGuard
from tablekeeper.txn.commit import Committed, commit_write
from tablekeeper.txn.environment import load_environment
from tablekeeper.txn.late_files import sweep_late_files
from tablekeeper.txn.markers import MarkerKind, create_marker, load_marked_instants, load_markers
from tablekeeper.write import finish
from tests.support.damage import as_written_to
from tests.support.recovery_world import LAPSED_S, World, worlds
from tests.support.scopeless import ScopelessStorage
from tests.support.sleeper import LateAttempts, RepeatingEngine, SleeperStorage
from tests.support.step_faults import OneThread, ProcessDied, StepStorage
from tests.support.table_builder import trips

FIRST = trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0))
NEWS = trips(("a", "sf", 2, 2.0), ("d", "la", 2, 2.0))
DAY_S = 90_000.0
OPTIONS = {"hoodie.parquet.small.file.limit": "0"}


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    with worlds() as new:
        yield new


def open_table(world: World, *, late: LateAttempts | None = None, has_scopes: bool = False) -> tk.Table:
    """The table as one process has it on an object store; with `late`, on an engine that runs every task twice."""
    runtime = world.new_runtime()
    assert isinstance(runtime.threads, OneThread)
    store = MemoryStorage(f"memory://{world.name}/table", runtime=runtime)
    memory: Any = store if has_scopes else ScopelessStorage(store)
    options = Options(OPTIONS)
    if late is None:
        return tk.Table(StepStorage(memory), world.table._engine, options, runtime=runtime)
    storage = SleeperStorage(memory, threads=runtime.threads, clock=world.clock, late=late)
    return tk.Table(storage, RepeatingEngine(runtime=runtime, late=late), options, runtime=runtime)


@contextmanager
def dying_after_publication() -> Iterator[None]:
    """Tasks do not get to their look at the heartbeat after a publication."""

    @contextmanager
    def publishing(self: AttemptGuard, path: str) -> Iterator[None]:
        yield

    with patch.object(AttemptGuard, "publishing", publishing):
        yield


def strays(world: World) -> set[str]:
    """Files of completed instants that no commit names: what readers see who take every file of a completed one."""
    config, storage = world.table.config, world.storage
    named: set[str] = set()
    for instant in world.timeline.completed_writes:
        named |= load_written_paths(storage, config, instant)
    return world.data_files() - named


CASES: dict[str, tuple[str, Callable[[tk.Table], Any]]] = {
    "upsert": ("cow", lambda table: table.upsert(NEWS)),
    "upsert_logs": ("mor", lambda table: table.upsert(NEWS)),
    "bulk_insert": ("cow", lambda table: table.bulk_insert(NEWS)),
    "insert_overwrite_table": ("cow", lambda table: table.insert_overwrite_table(NEWS)),
    "compaction": ("mor", lambda table: table.compact()),
    "clustering": ("cow", lambda table: table.cluster(order_by="ts")),
}


def prepare(world: World, name: str) -> None:
    world.upsert(FIRST)
    world.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    if name == "clustering":
        open_table(world).bulk_insert(trips(("e", "sf", 1, 1.0)))
    world.clock.advance(10)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("at_publish", [False, True], ids=["before_its_marker", "before_its_file"])
def test_a_repeated_task_that_is_late_takes_its_file_back(
    make: Callable[..., World], name: str, at_publish: bool
) -> None:
    table_type, act = CASES[name]
    world = make(table_type=table_type)
    prepare(world, name)
    late = LateAttempts(at_publish=at_publish)
    act(open_table(world, late=late))
    rows = world.rows()
    assert late.release()
    assert late.fenced
    assert not late.broken
    assert world.rows() == rows
    assert not strays(world)


@pytest.mark.parametrize("name", CASES)
def test_a_store_with_scopes_keeps_a_task_out_that_is_late_for_the_commit(
    make: Callable[..., World], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_type, act = CASES[name]
    world = make(table_type=table_type)
    prepare(world, name)
    late = LateAttempts(at_publish=name != "upsert_logs")

    def commit(*args: Any, **named: Any) -> Committed:
        assert late.release()
        return commit_write(*args, **named)

    monkeypatch.setattr(finish, "commit_write", commit)
    with dying_after_publication():
        act(open_table(world, late=late, has_scopes=True))
    assert late.fenced
    assert not late.broken
    assert not strays(world)


@pytest.mark.parametrize(
    ("name", "at_publish"),
    # The content of a log is published by one call, which has no beginning to stop after.
    [
        (name, at_publish)
        for name in CASES
        for at_publish in (False, True)
        if (name, at_publish) != ("upsert_logs", True)
    ],
)
def test_what_a_late_task_left_goes_with_the_next_clean(
    make: Callable[..., World], name: str, at_publish: bool
) -> None:
    table_type, act = CASES[name]
    world = make(table_type=table_type)
    prepare(world, name)
    late = LateAttempts(at_publish=at_publish)
    with dying_after_publication():
        act(open_table(world, late=late))
        rows = world.rows()
        before = strays(world)
        assert late.release()
    left = strays(world) - before
    assert left
    open_table(world).clean()
    assert not strays(world) & left
    assert world.rows() == rows
    assert load_marked_instants(world.storage) == []


def world_with_stray(make: Callable[..., World]) -> tuple[World, str, str]:
    """A table with a file that its commit does not name, and a marker of it."""
    world = make()
    instant = world.upsert(FIRST).instant.value
    base = next(path for path in world.data_files() if path.startswith("sf/"))
    stray = base.replace("sf/", "sf/0")
    world.storage.put(stray, as_written_to(stray, world.storage.read(base)))
    announce(world, stray, instant)
    return world, instant, stray


def announce(world: World, path: str, instant: str) -> None:
    partition, _, name = path.rpartition("/")
    create_marker(world.storage, instant=instant, partition=partition, file_name=name, kind=MarkerKind.CREATE)


def sweep(world: World) -> tuple[str, ...]:
    table = open_table(world)
    return sweep_late_files(load_environment(table._storage, Options(None), runtime=world.new_runtime()))


def test_a_sweep_leaves_what_the_commit_names_and_what_has_another_time_in_its_name(
    make: Callable[..., World],
) -> None:
    world, instant, stray = world_with_stray(make)
    later = world.upsert(NEWS).instant.value
    for path in world.data_files() - {stray}:
        announce(world, path, instant)
        announce(world, path, later)
    kept = world.data_files() - {stray}
    assert sweep(world) == (stray,)
    assert world.data_files() == kept
    assert load_marked_instants(world.storage) == []


def test_a_sweep_of_an_archived_commit_asks_the_archived_timeline(make: Callable[..., World]) -> None:
    world, instant, stray = world_with_stray(make)
    few = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3, "hoodie.clean.commits.retained": 1}
    hidden = {file.path: world.storage.read(file.path) for file in world.storage.walk(".hoodie/.temp")}
    world.storage.delete_tree(".hoodie/.temp")
    for number in range(6):
        world.upsert(trips(("x", "ny", number, 1.0)))
    world.table.archive(options=few)
    assert world.timeline.find(RequestedTime(instant)) is None
    for path, content in hidden.items():
        world.storage.put(path, content)
    for path in [path for path in world.data_files() if instant in path]:
        announce(world, path, instant)
    kept = world.data_files() - {stray}
    assert sweep(world) == (stray,)
    assert world.data_files() == kept


def test_a_sweep_leaves_instants_alone_that_are_pending_active_or_not_understood(make: Callable[..., World]) -> None:
    world, instant, _ = world_with_stray(make)
    completed = next(f.path for f in world.storage.list_files(".hoodie/timeline") if f.name.endswith(".commit"))
    content = world.storage.read(completed)
    files = world.data_files()
    # A writer may be running.
    world.storage.put(f".hoodie/.heartbeat/{instant}", b"")
    assert sweep(world) == ()
    world.storage.delete(f".hoodie/.heartbeat/{instant}")
    # The commit cannot be read, or does not say what it wrote.
    for broken in (b"{", b""):
        world.storage.put(completed, broken)
        assert sweep(world) == ()
    # It is pending.
    world.storage.delete(completed)
    assert sweep(world) == ()
    # The timeline is gone altogether.
    world.storage.delete_tree(".hoodie/timeline")
    assert sweep(world) == ()
    assert world.data_files() == files
    assert load_marked_instants(world.storage) == [instant]
    world.storage.put(completed, content)
    assert len(sweep(world)) == 1


def test_a_marker_stays_for_as_long_as_its_file_may_come(make: Callable[..., World]) -> None:
    world, instant, stray = world_with_stray(make)
    content = world.storage.read(stray)
    world.storage.delete(stray)
    assert sweep(world) == ()
    assert len(load_markers(world.storage, instant=instant)) == 1
    world.storage.put(stray, content)
    assert sweep(world) == (stray,)
    assert load_marked_instants(world.storage) == []
    announce(world, stray, instant)
    world.clock.stall(DAY_S)
    assert sweep(world) == ()
    assert load_marked_instants(world.storage) == []


def test_where_nothing_is_late_a_sweep_is_one_listing(make: Callable[..., World]) -> None:
    world = make()
    world.upsert(FIRST)
    table = open_table(world)
    environment = load_environment(table._storage, Options(None), runtime=world.new_runtime())
    storage = environment.storage
    assert isinstance(storage, StepStorage)
    storage.calls.clear()
    assert sweep_late_files(environment) == ()
    assert storage.calls == [("list_directories", ".hoodie/.temp")]


class LateStorage(StepStorage):
    """The store of a process that sleeps before it publishes its first data file; it may die directly after that."""

    def __init__(self, storage: Any, *, meanwhile: Callable[[], object], dies: bool) -> None:
        super().__init__(storage)
        self._meanwhile: Callable[[], object] | None = meanwhile
        self._dies = dies

    def around(self, kind: str, path: str, call: Callable[[], Any]) -> Any:
        if kind != "publish" or path.startswith(".hoodie") or self._meanwhile is None:
            return super().around(kind, path, call)
        meanwhile, self._meanwhile = self._meanwhile, None
        meanwhile()
        result = super().around(kind, path, call)
        if self._dies:
            self._die()
        return result


@pytest.mark.parametrize("dies", [False, True], ids=["takes_it_back", "dies"])
def test_a_writer_that_was_rolled_back_and_publishes_late_adds_nothing(make: Callable[..., World], dies: bool) -> None:
    world = make()
    world.upsert(FIRST)
    before = world.data_files()

    def others() -> None:
        world.clock.stall(LAPSED_S)
        open_table(world).upsert(trips(("b", "sf", 3, 3.0)))

    runtime = world.new_runtime()
    memory = ScopelessStorage(MemoryStorage(f"memory://{world.name}/table", runtime=runtime))
    storage = LateStorage(memory, meanwhile=others, dies=dies)
    table = tk.Table(storage, world.table._engine, Options(OPTIONS), runtime=runtime)
    with pytest.raises(ProcessDied if dies else FencedError):
        table.upsert(NEWS)
    assert isinstance(runtime.threads, OneThread)
    runtime.threads.kill()
    rows = [("a", 1.0), ("b", 3.0), ("c", 1.0)]
    assert world.rows() == rows
    assert bool(strays(world)) == dies
    open_table(world).clean()
    assert not strays(world)
    assert before < world.data_files()
    assert world.rows() == rows


def test_a_store_with_scopes_keeps_a_writer_out_that_was_rolled_back(make: Callable[..., World]) -> None:
    """It would die directly after its file is there, before it could take it back."""
    world = make()
    world.upsert(FIRST)

    def others() -> None:
        world.clock.stall(LAPSED_S)
        open_table(world, has_scopes=True).upsert(trips(("b", "sf", 3, 3.0)))

    runtime = world.new_runtime()
    storage = LateStorage(MemoryStorage(f"memory://{world.name}/table", runtime=runtime), meanwhile=others, dies=True)
    table = tk.Table(storage, world.table._engine, Options(OPTIONS), runtime=runtime)
    with pytest.raises(FencedError):
        table.upsert(NEWS)
    assert not strays(world)
    assert world.rows() == [("a", 1.0), ("b", 3.0), ("c", 1.0)]
