"""An archive goes wrong at every storage call, readers look between any two, and archives overtake each other.

After each fault no instant is lost and none is loaded twice, reads give what they gave before, and the next archives
finish the work and leave no litter.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import pytest

import tablekeeper as tk
from tablekeeper.config.archive_settings import ArchiveSettings
from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import TablekeeperError
from tablekeeper.format.history import decode_history_file, decode_manifest
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.runtime import Runtime
from tablekeeper.services.archive import ArchiveResult, execute_archive
from tablekeeper.storage import FileInfo, MemoryStorage, Storage, forget_memory
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.timeline import load_content, load_timeline
from tablekeeper.timeline.history import load_history
from tablekeeper.txn.environment import load_environment
from tests.support.fake_runtime import FakeClock
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
from tests.support.table_builder import TRIPS, rows_of, trips

__all__: list[str] = []

T = TypeVar("T")
Key = tuple[RequestedTime, Action]

HISTORY = ".hoodie/timeline/history"
TIMELINE = ".hoodie/timeline"
SETTINGS = ArchiveSettings(
    keep_min=2,
    keep_max=3,
    clean=CleanSettings(commits=1),
    compact_after=1,
    merge_files=3,
    manifests_kept=1,
    keep_last_plans=False,
)
STORE_LOCK = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.write.lock.wait_time_ms": "900000",
}
LOCK_LAPSED_S = 600.0
SPACES = itertools.count()


class World:
    """One copy of a table with a clock of its own; every client is a process."""

    def __init__(self, objects: dict[str, bytes], now_ms: int) -> None:
        self.clock = FakeClock(now_ms)
        self.name = f"archive-{next(SPACES)}"
        self._processes = itertools.count(1)
        self.storage = self._open(self.runtime())
        for path, data in objects.items():
            self.storage.put(path, data)
        self.clock.advance(1)

    def _open(self, runtime: Runtime) -> Storage:
        return MemoryStorage(f"memory://{self.name}/table", runtime=runtime)

    def runtime(self) -> Runtime:
        return one_thread_runtime(self.clock, process=next(self._processes))

    def table(self, wrap: Callable[[Storage], Storage] = lambda storage: storage) -> tk.Table:
        runtime = self.runtime()
        options = Options(None).merged_over(load_writer_options(self.storage))
        return tk.Table(wrap(self._open(runtime)), LocalEngine(threads=1, runtime=runtime), options, runtime=runtime)

    def archive(
        self, wrap: Callable[[Storage], Storage] = lambda storage: storage, runtime: Runtime | None = None
    ) -> ArchiveResult:
        runtime = runtime or self.runtime()
        options = Options(None).merged_over(load_writer_options(self.storage))
        return execute_archive(load_environment(wrap(self._open(runtime)), options, runtime=runtime), SETTINGS)

    def write(self, count: int) -> None:
        table = self.table()
        for _ in range(count):
            moment = self.clock.now_ms() % 1000
            table.upsert(trips((f"k{moment % 4}", "sf", moment, float(moment))))
            self.clock.advance(1.001)

    def answers(self, table: tk.Table | None = None) -> list[Any]:
        """What readers get: now, at every commit there ever was, and since each of them."""
        table = table or self.table()
        commits = sorted({key[0].value for key in self.instants() if key[1].writes_data})
        sample = [commits[0], commits[len(commits) // 2], commits[-1]]
        moments = [rows_of(table.read(as_of=commit)) for commit in sample]
        changes = [rows_of(table.changes(since=commit)) for commit in sample]
        return [rows_of(table.read()), rows_of(table.changes()), *moments, *changes]

    def instants(self) -> Counter[Key]:
        """Every completed instant, with the number of times that it lies in a live file or on the active timeline."""
        config = self.table().config
        found = Counter(key_of(i) for i in load_timeline(self.storage, config).completed)
        for path in live_files(self.storage):
            found.update(key_of(a.instant) for a in decode_history_file(self.storage.read(path), file=path))
        return found


def key_of(instant: Instant) -> Key:
    return instant.requested_at, instant.action.completed_as


def live_files(storage: Storage) -> list[str]:
    version = storage.read(f"{HISTORY}/_version_").decode()
    manifest = f"{HISTORY}/manifest_{version}"
    return [f"{HISTORY}/{file.name}" for file in decode_manifest(storage.read(manifest), file=manifest)]


@cache
def base_objects(kind: str) -> tuple[dict[str, bytes], int]:
    """A table with a history of two files, five commits and a rollback: the next archive merges and cleans too."""
    table_type, _, lock = kind.partition("_")
    clock = FakeClock(1_710_000_000_000)
    runtime = one_thread_runtime(clock, process=999)
    world = World({}, clock.now_ms())
    tk.Table.create(
        world.storage.spec.uri,
        name="trips",
        schema=TRIPS,
        key="id",
        partition_by="city",
        ordering="ts",
        table_type=table_type,
        engine="local",
        options=STORE_LOCK if lock else {},
        runtime=runtime,
    )
    world.write(4)
    world.archive()
    world.write(2)
    assert len(world.archive().instants) == 2
    world.write(1)
    newest = load_timeline(world.storage, world.table().config).completed_writes[-1]
    world.table().rollback(newest.requested_at.value)
    world.clock.advance(1)
    world.write(4)
    objects = {file.path: world.storage.read(file.path) for file in world.storage.walk("")}
    forget_memory(world.name)
    return objects, world.clock.now_ms()


@pytest.fixture
def worlds() -> Iterator[Callable[[str], World]]:
    made: list[World] = []

    def make(kind: str) -> World:
        made.append(World(*base_objects(kind)))
        return made[-1]

    yield make
    for world in made:
        forget_memory(world.name)


@dataclass(frozen=True)
class Expected:
    """What must hold whatever happens, and the calls of an archive that goes well."""

    answers: list[Any]
    instants: frozenset[Key]
    contents: dict[Key, bytes]
    calls: list[tuple[str, str]]


@cache
def expected_of(kind: str) -> Expected:
    world = World(*base_objects(kind))
    config = world.table().config
    timeline = load_timeline(world.storage, config)
    contents = {key_of(i): load_content(world.storage, config, i) for i in timeline.completed}
    contents |= {key_of(a.instant): a.metadata or b"" for a in load_history(world.storage, config)}
    answers, instants = world.answers(), frozenset(world.instants())
    steps: list[StepStorage] = []

    def counted(storage: Storage) -> Storage:
        steps.append(StepStorage(storage))
        return steps[-1]

    result = world.archive(counted)
    assert [i.action for i in result.instants].count(Action.ROLLBACK) == 1
    assert len(result.instants) == 5
    assert [path[-10:] for path in result.files] == ["_0.parquet", "_1.parquet"]
    assert world.answers() == answers
    assert {kind for kind, _ in steps[0].calls} >= {"put_if_absent", "replace", "publish", "delete", "delete_many"}
    forget_memory(world.name)
    return Expected(answers, instants, contents, list(steps[0].calls))


@pytest.mark.parametrize("fault", ONE_CALL, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("kind", ["cow", "mor_locked"])
def test_no_instant_is_lost_or_doubled_whatever_call_of_an_archive_goes_wrong(
    kind: str, fault: Fault, worlds: Callable[[str], World]
) -> None:
    expected = expected_of(kind)
    steps = [n for n, (call, _) in enumerate(expected.calls, 1) if fault is Fault.ERROR_BEFORE or call in WRITES]
    assert len(steps) > 10
    for step in steps:
        world = worlds(kind)
        try:
            check_step(world, FaultPoint(step, fault), expected)
        except Exception as error:
            error.add_note(f"{fault.value} call {step} of {len(expected.calls)}, {expected.calls[step - 1]}")
            raise
        forget_memory(world.name)


def check_step(world: World, point: FaultPoint, expected: Expected) -> None:
    runtime = world.runtime()
    try:
        world.archive(lambda storage: StepStorage(storage, point), runtime)
    except ProcessDied:
        assert point.fault.is_death
        assert isinstance(runtime.threads, OneThread)
        runtime.threads.kill()
    except TablekeeperError:
        assert not point.fault.is_death
    check_whole(world, expected)
    world.clock.advance(LOCK_LAPSED_S)
    world.archive()
    check_whole(world, expected)
    if expected.calls[point.step - 1][0] in WRITES:
        check_repaired(world)


def check_whole(world: World, expected: Expected) -> None:
    assert expected.instants <= world.instants().keys()
    config = world.table().config
    history = load_history(world.storage, config)
    assert len({key_of(archived.instant) for archived in history}) == len(history)
    for archived in history:
        if key_of(archived.instant) in expected.contents:
            assert archived.metadata == expected.contents[key_of(archived.instant)]
    assert load_timeline(world.storage, config).pending == ()
    assert world.answers() == expected.answers


def check_repaired(world: World) -> None:
    """Some archives later every instant lies in one place, and no file is there that no reader can want."""
    for _ in range(3):
        world.write(2)
        before = world.instants().keys()
        world.clock.advance(LOCK_LAPSED_S)
        world.archive()
        assert world.instants().keys() == before
    assert set(world.instants().values()) == {1}
    assert len(load_timeline(world.storage, world.table().config).completed_writes) <= SETTINGS.keep_max
    named = set()
    for file in world.storage.list_files(HISTORY):
        if file.name.startswith("manifest_"):
            named |= {entry.name for entry in decode_manifest(world.storage.read(file.path), file=file.path)}
    files = {file.name for file in world.storage.list_files(HISTORY) if file.name.endswith(".parquet")}
    assert files == named
    versions = [file.name for file in world.storage.list_files(HISTORY) if file.name.startswith("manifest_")]
    assert len(versions) <= SETTINGS.manifests_kept + 2


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_readers_get_the_same_rows_between_any_two_calls_of_an_archive(
    kind: str, worlds: Callable[[str], World]
) -> None:
    expected = expected_of(kind)
    seen: list[str] = []

    class Watched(WatchedStorage):
        def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
            result = call()
            if kind in WRITES:
                assert world.answers() == expected.answers, (kind, path)
                seen.append(path)
            return result

    world = worlds(kind)
    world.archive(Watched)
    assert len(seen) > 10


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_an_archive_between_any_two_calls_of_a_reader_changes_nothing(
    kind: str, worlds: Callable[[str], World]
) -> None:
    expected = expected_of(kind)
    steps: list[Between] = []

    def watched(storage: Storage, step: int, action: Callable[[], object]) -> Storage:
        steps.append(Between(storage, step, action))
        return steps[-1]

    idle = worlds(kind)
    assert idle.answers(idle.table(partial(watched, step=0, action=idle.archive))) == expected.answers
    total = steps[-1].calls
    assert total > 50
    for step in range(1, total + 1):
        world = worlds(kind)
        assert world.answers(world.table(partial(watched, step=step, action=world.archive))) == expected.answers, step
        forget_memory(world.name)


def test_a_listing_that_names_any_part_of_what_an_archive_removes_gives_a_whole_timeline(
    worlds: Callable[[str], World],
) -> None:
    """A listing of many files takes time: of files that go meanwhile it names some and misses others."""
    world = worlds("mor")
    config = world.table().config
    before = {file.path: file for file in world.storage.list_files(TIMELINE)}
    committed = [i.requested_at for i in load_timeline(world.storage, config).completed_writes]
    removed: list[str] = []

    class Removing(WatchedStorage):
        def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
            if kind == "delete" and path in before:
                check()
                removed.append(path)
            return call()

    class Smeared(WatchedStorage):
        """What is there, and of what was removed a random share."""

        def __init__(self, share: float) -> None:
            super().__init__(world.storage)
            self._share = share

        def list_files(self, directory: str) -> list[FileInfo]:
            there = self.storage.list_files(directory)
            if directory != TIMELINE:
                return there
            paths = {file.path for file in there}
            gone = [file for path, file in before.items() if path not in paths and chance.random() < self._share]
            return sorted([*there, *gone], key=lambda file: file.path)

    def check() -> None:
        for trial in range(20):
            timeline = load_timeline(Smeared(trial / 20), config)
            assert all(timeline.is_completed(time) for time in committed), (removed, trial)
            assert timeline.pending == ()

    chance = random.Random(7)
    world.archive(Removing)
    check()
    assert len(removed) == 5


@pytest.mark.parametrize("kind", ["cow_locked", "mor_locked"])
def test_an_archive_that_wakes_up_after_others_have_gone_on_harms_nothing(
    kind: str, worlds: Callable[[str], World]
) -> None:
    """It stops before any of its calls, loses the lock, and goes on when others have written and archived."""
    expected = expected_of(kind)
    steps = [n for n, (call, path) in enumerate(expected.calls, 1) if call in WRITES and path.startswith(TIMELINE)]
    assert len(steps) > 10
    for step in steps:
        world, answers = worlds(kind), list[Any]()
        runtime = world.runtime()
        asleep = partial(go_on, world, runtime, answers)
        with suppress(TablekeeperError):
            world.archive(partial(Between, step=step, action=asleep), runtime)
        note = (step, expected.calls[step - 1])
        assert len(answers) == 1, note
        assert expected.instants <= world.instants().keys(), note
        assert world.answers() == answers[0], note
        world.clock.advance(LOCK_LAPSED_S)
        check_repaired(world)
        forget_memory(world.name)


def go_on(world: World, sleeper: Runtime, answers: list[Any]) -> None:
    """What others do while an archive sleeps, its timers too: the lock lapses, they write and archive twice."""
    assert isinstance(sleeper.threads, OneThread)
    sleeper.threads.kill()
    world.clock.advance(LOCK_LAPSED_S)
    for _ in range(2):
        world.write(2)
        world.clock.advance(LOCK_LAPSED_S)
        world.archive()
    answers.append(world.answers())


def test_an_instant_that_lies_in_both_timelines_is_removed_and_not_written_again(
    worlds: Callable[[str], World],
) -> None:
    world = worlds("cow")
    config = world.table().config
    files = {f.path: world.storage.read(f.path) for f in world.storage.list_files(TIMELINE)}
    first = world.archive()
    for path, data in files.items():
        world.storage.put_if_absent(path, data)
    assert max(world.instants().values()) == 2
    world.clock.advance(1)
    second = world.archive()
    assert second.instants == first.instants
    assert second.files == ()
    assert set(world.instants().values()) == {1}
    assert not [i for i in load_timeline(world.storage, config) if i.state is not State.COMPLETED]
