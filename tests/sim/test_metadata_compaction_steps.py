"""Compacting a metadata table goes wrong at every storage call, sleeps through its lock, and meets writers anywhere.

After each of these the metadata table says what it said before, to readers at every moment; the next write and the next
compaction go through, and they leave no base file that no completed compaction stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest

from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import TablekeeperError
from tablekeeper.format.metadata_log import decode_metadata_base_name
from tablekeeper.metadata_table.compaction import compact_metadata_table
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY
from tablekeeper.metadata_table.result import MetadataCompaction
from tablekeeper.model import RequestedTime
from tablekeeper.runtime import Runtime
from tablekeeper.storage import MemoryStorage, Storage
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.txn.environment import load_environment
from tests.support.metadata_content import load_content, metadata_files, metadata_timeline
from tests.support.recovery_world import World, worlds
from tests.support.step_faults import (
    ONE_CALL,
    WRITES,
    Fault,
    FaultPoint,
    OneThread,
    ProcessDied,
    StepStorage,
    one_thread_runtime,
)
from tests.support.storage_wrappers import Between, WatchedStorage
from tests.support.table_builder import trips

__all__: list[str] = []

T = TypeVar("T")

STORE_LOCK = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.write.lock.wait_time_ms": "900000",
}
LOCK_LAPSED_S = 600.0
SETTINGS = MetadataSettings(compact_after=1)


@pytest.fixture(scope="module")
def start() -> Iterator[World]:
    """A table whose metadata table was compacted once, so that the next time there are old files too."""
    with worlds() as new:
        world = new(metadata=True, table_type="mor", options=STORE_LOCK)
        for n in range(3):
            write(world, n)
        keep(world)
        for n in range(3, 6):
            write(world, n)
        yield world


def write(world: World, n: int) -> None:
    world.upsert(trips((f"k{n % 3}", ("sf", "la")[n % 2], n, float(n))))


def keep(
    world: World, wrap: Callable[[Storage], Storage] = lambda storage: storage, runtime: Runtime | None = None
) -> MetadataCompaction:
    world.clock.advance(1)
    runtime = runtime or one_thread_runtime(world.clock, process=5_000 + next(world._processes))
    storage = MemoryStorage(f"memory://{world.name}/table", runtime=runtime)
    options = Options(None).merged_over(load_writer_options(world.storage))
    return compact_metadata_table(load_environment(wrap(storage), options, runtime=runtime), SETTINGS)


def calls_of(world: World) -> list[tuple[str, str]]:
    """The storage calls of a compaction without faults."""
    trial, made = world.copy(), list[StepStorage]()

    def watched(storage: Storage) -> Storage:
        made.append(StepStorage(storage))
        return made[0]

    assert keep(trial, watched).instant is not None
    trial.forget()
    return made[0].calls


def refuse_litter(world: World) -> None:
    """Every base file belongs to a completed compaction, and no compaction is half done."""
    timeline = metadata_timeline(world.storage)
    assert timeline.pending == ()
    for file in metadata_files(world.storage):
        base = decode_metadata_base_name(file.name)
        assert base is None or timeline.is_completed(RequestedTime(base.instant)), file.path


def check_goes_on(world: World) -> None:
    """The next writer and the next compaction, and what they leave."""
    world.clock.advance(LOCK_LAPSED_S)
    write(world, 30)
    world.refuse_stale_metadata_table()
    before = load_content(world.storage)
    done = keep(world)
    assert done.instant is not None, done
    assert load_content(world.storage) == before
    refuse_litter(world)
    assert ("k0", 30.0) in world.rows()


@pytest.mark.parametrize("fault", ONE_CALL, ids=lambda fault: fault.name.lower())
def test_the_metadata_table_says_the_same_whatever_call_of_a_compaction_goes_wrong(start: World, fault: Fault) -> None:
    calls, expected = calls_of(start), load_content(start.storage)
    steps = [n for n, (call, _) in enumerate(calls, 1) if fault is Fault.ERROR_BEFORE or call in WRITES]
    assert len(steps) > 8
    for step in steps:
        world = start.copy()
        runtime = one_thread_runtime(world.clock, process=9)
        try:
            keep(world, partial(StepStorage, point=FaultPoint(step, fault)), runtime)
        except ProcessDied:
            assert fault.is_death
            assert isinstance(runtime.threads, OneThread)
            runtime.threads.kill()
        except TablekeeperError:
            assert not fault.is_death
        try:
            assert load_content(world.storage) == expected
            world.refuse_stale_metadata_table()
            check_goes_on(world)
        except Exception as error:
            error.add_note(f"{fault.value} call {step} of {len(calls)}, {calls[step - 1]}")
            raise
        world.forget()


def test_readers_find_the_same_between_any_two_calls_of_a_compaction(start: World) -> None:
    expected, rows = load_content(start.storage), start.rows()
    world, seen = start.copy(), list[str]()

    class Watched(WatchedStorage):
        def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
            result = call()
            if kind in WRITES:
                assert load_content(world.storage) == expected, (kind, path)
                assert world.rows() == rows, (kind, path)
                seen.append(path)
            return result

    assert keep(world, Watched).instant is not None
    assert len(seen) > 8
    world.forget()


def test_a_compaction_between_any_two_calls_of_a_reader_changes_nothing_for_it(start: World) -> None:
    rows = start.rows()
    _, storage, _ = (client := start.client())
    client[0].read()
    total = len(storage.calls)
    assert total > 5
    for step in range(1, total + 1):
        world = start.copy()

        def twice(world: World = world) -> None:
            keep(world)
            write_nothing_new(world)
            keep(world)

        table = world.table
        table._storage = Between(table._storage, step, twice)
        assert [(row["id"], row["fare"]) for row in sorted(table.read().to_pylist(), key=_key)] == rows, step
        world.forget()


def write_nothing_new(world: World) -> None:
    """A commit that changes no row: a key that is not there is deleted."""
    world.clock.advance(10)
    world.table.upsert(trips(("k0", "sf", -1, -1.0)))


def _key(row: dict[str, object]) -> tuple[object, object]:
    return row["id"], row["fare"]


def unlocked_steps(calls: list[tuple[str, str]]) -> list[int]:
    """Numbers of the calls that are made while the lock is free, those that ask for it included."""
    held, found = False, []
    for number, (kind, path) in enumerate(calls, 1):
        if not held:
            found.append(number)
        if "/.locks/" in path and kind in WRITES:
            held = not held
    return found


def test_a_writer_may_commit_before_any_call_that_is_made_without_the_lock(start: World) -> None:
    steps = unlocked_steps(calls_of(start))
    assert len(steps) > 8
    for step in steps:
        world = start.copy()
        done = keep(world, partial(Between, step=step, action=partial(write, world, 20)))
        assert done.instant is not None, step
        world.refuse_stale_metadata_table()
        refuse_litter(world)
        check_goes_on(world)
        world.forget()


def test_a_commit_may_be_rolled_back_before_any_call_that_is_made_without_the_lock(start: World) -> None:
    for step in unlocked_steps(calls_of(start)):
        world = start.copy()

        def take_back(world: World = world) -> None:
            world.clock.advance(1)
            world.table.rollback(world.timeline.completed_writes[-1].requested_at.value)

        done = keep(world, partial(Between, step=step, action=take_back))
        assert done.instant is not None, step
        world.refuse_stale_metadata_table()
        assert ("k2", 5.0) not in world.rows()
        refuse_litter(world)
        check_goes_on(world)
        world.forget()


def test_a_compaction_that_wakes_up_after_others_have_gone_on_harms_nothing(start: World) -> None:
    """It stops before any of its changes, loses the lock, and goes on when others have written and kept house."""
    calls = calls_of(start)
    steps = [n for n, (kind, path) in enumerate(calls, 1) if kind in WRITES and path.startswith(METADATA_DIRECTORY)]
    assert len(steps) > 6
    for step in steps:
        world = start.copy()
        runtime = one_thread_runtime(world.clock, process=9)
        there: dict[str, bytes] = {}

        def go_on(world: World = world, sleeper: Runtime = runtime, there: dict[str, bytes] = there) -> None:
            assert isinstance(sleeper.threads, OneThread)
            sleeper.threads.kill()
            world.clock.advance(LOCK_LAPSED_S)
            keep(world)
            write(world, 20)
            there.update({file.path: world.storage.read(file.path) for file in metadata_files(world.storage)})

        with suppress(TablekeeperError):
            keep(world, partial(Between, step=step, action=go_on), runtime)
        try:
            left = {file.path for file in metadata_files(world.storage)}
            assert {path: world.storage.read(path) for path in left & there.keys()} == {
                path: data for path, data in there.items() if path in left
            }
            world.refuse_stale_metadata_table()
            assert ("k2", 20.0) in world.rows()
            world.clock.advance(LOCK_LAPSED_S)
            write(world, 30)
            keep(world)
            world.refuse_stale_metadata_table()
            assert ("k0", 30.0) in world.rows()
        except Exception as error:
            error.add_note(f"asleep before call {step}, {calls[step - 1]}")
            raise
        world.forget()
