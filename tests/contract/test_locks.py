"""One suite for all table locks; what only locks in a store can promise comes after it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from tablekeeper.config.lock_settings import LockSettings
from tablekeeper.errors import (
    FencedError,
    InvalidRequestError,
    LockNotAcquiredError,
    StorageError,
    UnsupportedFeatureError,
)
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.storage.local import LocalStorage
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.storage.protocol import Storage
from tablekeeper.txn.locks import Lease, TableLock
from tablekeeper.txn.locks.choose import choose_lock
from tablekeeper.txn.locks.file_system import FileSystemLock
from tablekeeper.txn.locks.in_process import InProcessLock
from tablekeeper.txn.locks.processes import LinuxProcesses, ProcessId
from tablekeeper.txn.locks.storage_based import StorageBasedLock
from tests.support.fake_runtime import FakeClock, FakeWorld
from tests.support.faulty_storage import FaultyStorage

ROOT = Path(__file__).resolve().parents[2]
LOCK_FILE = ".hoodie/lock"
LOCK_OBJECT = ".hoodie/.locks/table_lock.json"
PATHS = {"file_system": LOCK_FILE, "storage_based": LOCK_OBJECT}
LEASED = ["file_system-memory", "file_system-local", "storage_based-memory", "storage_based-local"]
SETTINGS = LockSettings(pause_ms=20)
_NUMBERS = itertools.count()


@dataclass
class FakeProcesses:
    """Processes of a test: all are alive but those in `dead`."""

    pid: int
    dead: set[int] = field(default_factory=set)

    def me(self) -> ProcessId:
        return ProcessId(host="host", machine="boot", pid=self.pid, started="1")

    def is_dead(self, process: ProcessId) -> bool:
        return process.pid in self.dead


class Arena:
    """One table and any number of writers that want its lock, on one clock."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, _, self._store = kind.partition("-")
        self._directory = directory
        self.world = FakeWorld()
        self._writers = 0
        self.dead: set[int] = set()
        self.clock: FakeClock = self.world.clock
        self.path = PATHS.get(self.kind, "")
        # The in-process lock has one registry for all tests: a name of its own keeps them apart.
        self._name = f"locks-{next(_NUMBERS)}"
        self.storage = self.open_store(self.world.process())

    def open_store(self, runtime: Runtime) -> Storage:
        if self._store == "local":
            return LocalStorage(self._directory, runtime=runtime)
        return MemoryStorage(f"memory://{self._name}/table", runtime=runtime)

    def writer(
        self, *, storage: Storage | None = None, runtime: Runtime | None = None, settings: LockSettings = SETTINGS
    ) -> TableLock:
        """The lock as a further process sees it."""
        self._writers += 1
        runtime = runtime or self.world.process()
        storage = storage or self.open_store(runtime)
        processes = FakeProcesses(self._writers, self.dead)
        if self.kind == "in_process":
            return InProcessLock(storage.spec.uri, runtime=runtime)
        if self.kind == "file_system":
            return FileSystemLock(storage, settings=settings, runtime=runtime, processes=processes)
        return StorageBasedLock(storage, settings=settings, runtime=runtime, processes=processes)

    def is_taken(self) -> bool:
        """True if a newcomer does not get the lock at once."""
        try:
            self.writer().acquire(timeout_s=0).release()
        except LockNotAcquiredError:
            return True
        return False


@pytest.fixture(params=["in_process", *LEASED])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    return Arena(request.param, tmp_path)


@pytest.fixture(params=LEASED)
def leased(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    return Arena(request.param, tmp_path)


@pytest.fixture(params=["file_system-memory", "file_system-local"])
def lock_file(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    return Arena(request.param, tmp_path)


@pytest.fixture(params=["storage_based-memory", "storage_based-local"])
def lock_object(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    return Arena(request.param, tmp_path)


# --- every lock


def test_a_second_writer_gets_the_lock_only_after_the_first_released_it(arena: Arena) -> None:
    lease = arena.writer().acquire(timeout_s=0)
    assert arena.is_taken()
    lease.release()
    assert not arena.is_taken()


def test_a_lock_that_is_never_taken_has_no_holder(arena: Arena) -> None:
    assert arena.writer().describe() is None


def test_a_released_lock_has_no_holder(arena: Arena) -> None:
    arena.writer().acquire(timeout_s=0).release()
    assert arena.writer().describe() is None


def test_a_holder_is_described_with_its_age(arena: Arena) -> None:
    arena.writer().acquire(timeout_s=0)
    arena.clock.advance(42)
    holder = arena.writer().describe()
    assert holder is not None
    assert holder.age_s == 42
    assert holder.since_ms == arena.clock.now_ms() - 42_000
    assert not holder.is_lapsed


def test_waiting_in_vain_ends_in_time_and_names_holder_age_and_next_step(arena: Arena) -> None:
    with arena.writer().acquire(timeout_s=0):
        holder = arena.writer().describe()
        assert holder is not None
        before_s = arena.clock.monotonic_s()
        with pytest.raises(LockNotAcquiredError) as caught:
            arena.writer().acquire(timeout_s=20)
        assert 20 <= arena.clock.monotonic_s() - before_s < 20.1
    message = str(caught.value)
    assert f"held by {holder.owner}" in message
    assert "for 20 s" in message
    assert "Try again" in message


def test_a_waiting_writer_gets_the_lock_when_it_becomes_free(arena: Arena) -> None:
    runtime = arena.world.process()
    lease = arena.writer().acquire(timeout_s=0)
    runtime.threads.every(7, lease.release, name="release")
    waited = arena.writer(runtime=runtime).acquire(timeout_s=60)
    waited.check()
    assert all(pause_s <= 0.15 for pause_s in arena.clock.slept_s)


def test_leaving_the_block_releases_the_lock_also_by_an_error(arena: Arena) -> None:
    def work() -> None:
        with arena.writer().acquire(timeout_s=0):
            raise RuntimeError("work failed")

    with pytest.raises(RuntimeError, match="work failed"):
        work()
    assert not arena.is_taken()


def test_releasing_again_does_not_touch_the_lock_of_the_next_holder(arena: Arena) -> None:
    first = arena.writer().acquire(timeout_s=0)
    first.release()
    second = arena.writer().acquire(timeout_s=0)
    first.release()
    second.check()
    assert arena.is_taken()


def test_a_held_lease_passes_its_check_and_a_released_one_does_not(arena: Arena) -> None:
    with arena.writer().acquire(timeout_s=0) as lease:
        lease.check()
    with pytest.raises(FencedError, match="released"):
        lease.check()


def test_the_time_held_is_measured_until_the_release(arena: Arena) -> None:
    lease = arena.writer().acquire(timeout_s=0)
    arena.clock.advance(3)
    assert lease.held_s == 3
    lease.release()
    arena.clock.advance(100)
    assert lease.held_s == 3


def test_threads_exclude_each_other(arena: Arena) -> None:
    value = 0
    inside = 0

    def add(_: int) -> None:
        nonlocal value, inside
        with arena.writer(runtime=SYSTEM_RUNTIME).acquire(timeout_s=60) as lease:
            inside += 1
            assert inside == 1
            seen = value
            lease.check()
            value = seen + 1
            inside -= 1

    SYSTEM_RUNTIME.threads.map(add, range(40), width=8)
    assert value == 40


# --- locks in a store: leases


def test_a_lease_is_renewed_as_long_as_it_is_held(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    for _ in range(30):
        leased.clock.advance(171)
        lease.check()
        assert leased.is_taken()


def test_a_release_ends_the_renewals(leased: Arena) -> None:
    leased.writer().acquire(timeout_s=0).release()
    before = leased.storage.read_versioned(leased.path)
    leased.clock.advance(1_000)
    assert leased.storage.read_versioned(leased.path) == before


def test_a_stalled_holder_fences_itself_before_anybody_can_take_over(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(269)
    lease.check()
    leased.clock.stall(1)
    assert leased.is_taken()
    with pytest.raises(FencedError, match="not renewed within its 300 s"):
        lease.check()


def test_the_lock_of_a_stalled_holder_is_taken_over_after_its_lease(leased: Arena) -> None:
    stalled = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(300.5)
    assert leased.is_taken()
    leased.clock.stall(0.1)
    taker = leased.writer().acquire(timeout_s=0)
    taker.check()
    with pytest.raises(FencedError):
        stalled.check()


def test_a_holder_that_wakes_up_after_a_take_over_neither_publishes_nor_frees_the_lock(leased: Arena) -> None:
    stalled = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(301)
    taker = leased.writer().acquire(timeout_s=0)
    leased.clock.advance(100)  # the renewals of both run again
    with pytest.raises(FencedError):
        stalled.check()
    stalled.release()
    taker.check()
    assert leased.is_taken()


def test_a_holder_that_wakes_up_late_stays_fenced_though_nobody_took_over(leased: Arena) -> None:
    stalled = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(600)
    leased.clock.advance(600)
    with pytest.raises(FencedError):
        stalled.check()


def test_a_late_release_frees_a_lock_that_nobody_took_over(leased: Arena) -> None:
    stalled = leased.writer().acquire(timeout_s=0)
    leased.clock.stall(280)
    stalled.release()
    assert leased.writer().describe() is None


def test_a_suspended_machine_notices_by_the_wall_clock(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.clock.suspend(3_600)
    with pytest.raises(FencedError):
        lease.check()


def test_a_wall_clock_set_back_an_hour_does_not_prolong_a_lease(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.clock.suspend(-3_600)
    lease.check()
    leased.clock.stall(270)
    with pytest.raises(FencedError):
        lease.check()


def test_a_check_that_hangs_too_long_does_not_pass(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.on_call = lambda _: leased.clock.stall(280)
    with pytest.raises(FencedError):
        lease.check()


def test_a_take_over_during_the_lease_is_noticed_by_content(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.storage.put(leased.path, b'{"expired": false, "validUntil": 9999999999999, "owner": "java"}')
    with pytest.raises(FencedError, match="taken the lock over"):
        lease.check()
    lease.release()
    assert b"java" in leased.storage.read(leased.path)


def test_a_lock_that_was_deleted_under_its_holder_fences_it(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.storage.delete(leased.path)
    with pytest.raises(FencedError, match="removed while it was held"):
        lease.check()
    lease.release()
    assert leased.storage.stat(leased.path) is None


def test_a_renewal_finds_out_about_a_take_over(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    leased.storage.put(leased.path, b"someone else")
    leased.clock.advance(31)
    with pytest.raises(FencedError, match="taken the lock over"):
        lease.check()


def test_the_lock_of_a_dead_process_is_taken_over_at_once(leased: Arena) -> None:
    lease = leased.writer().acquire(timeout_s=0)
    assert leased.is_taken()
    leased.dead.add(1)
    holder = leased.writer().describe()
    assert holder is not None
    assert holder.is_lapsed
    assert holder.detail == "process 1 on host"
    taker = leased.writer().acquire(timeout_s=0)
    taker.check()
    with pytest.raises(FencedError):
        lease.check()


@pytest.mark.parametrize("way", ["dead", "lapsed"])
def test_of_many_takers_exactly_one_wins(leased: Arena, way: str) -> None:
    leased.writer().acquire(timeout_s=0)
    if way == "dead":
        leased.dead.add(1)
    else:
        leased.clock.stall(301)
    writers = [leased.writer() for _ in range(8)]

    def take(lock: TableLock) -> Lease | None:
        try:
            return lock.acquire(timeout_s=0)
        except LockNotAcquiredError:
            return None

    winners = [lease for lease in SYSTEM_RUNTIME.threads.map(take, writers, width=8) if lease is not None]
    assert len(winners) == 1
    winners[0].check()


@pytest.mark.parametrize("operation", ["replace", "read_versioned"])
def test_a_store_that_fails_for_a_while_does_not_cost_the_lock(leased: Arena, operation: str) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.before.add(operation)
    leased.clock.advance(200)
    faulty.before.clear()
    leased.clock.advance(200)
    lease.check()
    assert leased.is_taken()


def test_a_store_that_fails_too_long_fences_the_holder(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.before.add("replace")
    leased.clock.advance(300)
    with pytest.raises(FencedError):
        lease.check()


def test_a_renewal_whose_answer_got_lost_is_recognised(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.after.add("replace")
    leased.clock.advance(31)
    faulty.after.clear()
    leased.clock.advance(300)
    lease.check()
    lease.release()
    assert not leased.is_taken()


@pytest.mark.parametrize("operation", ["put_if_absent", "read_versioned"])
def test_an_acquisition_whose_answer_got_lost_is_recognised(leased: Arena, operation: str) -> None:
    faulty = FaultyStorage(leased.storage)
    faulty.after.add(operation)
    waiting = leased.world.process()
    waiting.threads.every(1, faulty.after.clear, name="recovery")
    lease = leased.writer(storage=cast(Storage, faulty), runtime=waiting).acquire(timeout_s=10)
    lease.check()
    lease.release()
    assert not leased.is_taken()


def test_a_fault_that_does_not_pass_is_raised_at_once(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lock = leased.writer(storage=cast(Storage, faulty))

    def refuse(_: str) -> None:
        raise StorageError("access denied")

    faulty.on_call = refuse
    with pytest.raises(StorageError, match="access denied"):
        lock.acquire(timeout_s=60)
    assert leased.clock.slept_s == []


def test_a_release_that_fails_leaves_the_lock_to_lapse_and_raises_nothing(leased: Arena) -> None:
    faulty = FaultyStorage(leased.storage)
    lease = leased.writer(storage=cast(Storage, faulty)).acquire(timeout_s=0)
    faulty.before |= {"replace", "delete"}
    lease.release()
    assert leased.is_taken()
    leased.clock.advance(301)
    assert not leased.is_taken()


# --- the lock file


def test_the_lock_file_names_its_owner_and_is_gone_after_the_release(lock_file: Arena) -> None:
    lease = lock_file.writer().acquire(timeout_s=0)
    fields = json.loads(lock_file.storage.read(LOCK_FILE))
    assert fields["by"] == "tablekeeper"
    assert fields["process"]["pid"] == 1
    lease.release()
    assert lock_file.storage.stat(LOCK_FILE) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"by": "tablekeeper"}', b'{"lockCreateTime": 1}'])
def test_a_lock_file_of_somebody_else_is_respected_for_ever_whatever_is_in_it(lock_file: Arena, content: bytes) -> None:
    lock_file.storage.put(LOCK_FILE, content)
    lock_file.clock.advance(10 * 86_400)
    assert lock_file.is_taken()
    assert lock_file.storage.read(LOCK_FILE) == content
    holder = lock_file.writer().describe()
    assert holder is not None
    assert not holder.is_lapsed
    assert "such as Java Hudi" in holder.owner


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_lock_file_of_somebody_else_is_broken_after_the_configured_expiry(content: bytes) -> None:
    arena = Arena("file_system-memory", Path())
    expiring = LockSettings(file_system_expire_minutes=5)
    arena.storage.put(LOCK_FILE, content)
    arena.clock.advance(300)
    with pytest.raises(LockNotAcquiredError):
        arena.writer(settings=expiring).acquire(timeout_s=0)
    arena.clock.advance(1)
    arena.writer(settings=expiring).acquire(timeout_s=0).check()


def test_a_file_of_java_expires_by_its_modification_time_on_a_real_file_system(tmp_path: Path) -> None:
    expiring = LockSettings(file_system_expire_minutes=5)
    lock = FileSystemLock(LocalStorage(tmp_path), settings=expiring, runtime=SYSTEM_RUNTIME)
    file = tmp_path / LOCK_FILE
    file.parent.mkdir()
    file.touch()
    (file.parent / ".lock.crc").write_bytes(b"crc\0\0\0\2\0")
    with pytest.raises(LockNotAcquiredError):
        lock.acquire(timeout_s=0)
    past_s = SYSTEM_RUNTIME.clock.now_ms() / 1000 - 301
    os.utime(file, (past_s, past_s))
    with lock.acquire(timeout_s=0) as lease:
        lease.check()
        # Hadoop would refuse to read the new content against the old checksum.
        assert not (file.parent / ".lock.crc").exists()
    assert not file.exists()


def test_a_holder_keeps_its_file_younger_than_the_configured_expiry() -> None:
    arena = Arena("file_system-memory", Path())
    expiring = LockSettings(file_system_expire_minutes=1)
    lease = arena.writer(settings=expiring).acquire(timeout_s=0)
    for _ in range(100):
        arena.clock.advance(7)
        lease.check()
        info = arena.storage.stat(LOCK_FILE)
        assert info is not None
        assert arena.clock.now_ms() - info.modified_ms <= 6_000


def test_a_holder_fences_itself_before_the_configured_expiry() -> None:
    arena = Arena("file_system-memory", Path())
    lease = arena.writer(settings=LockSettings(file_system_expire_minutes=1)).acquire(timeout_s=0)
    arena.clock.stall(54)
    with pytest.raises(FencedError):
        lease.check()


def test_a_lock_won_right_after_java_is_confirmed_because_java_deletes_twice(lock_file: Arena) -> None:
    runtime = lock_file.world.process()
    lock_file.storage.put(LOCK_FILE, b"")
    deletions: list[bytes] = []

    def delete() -> None:
        current = lock_file.storage.read_versioned(LOCK_FILE)
        if len(deletions) < 2 and current is not None:
            deletions.append(current.data)
            lock_file.storage.delete(LOCK_FILE)

    # The first deletion frees Java's own lock, the second one hits ours shortly after it was made.
    runtime.threads.every(0.999, delete, name="java-unlock")
    runtime.threads.every(1.03, delete, name="java-close")
    lease = lock_file.writer(runtime=runtime).acquire(timeout_s=10)
    lease.check()
    assert deletions[0] == b""
    assert b"tablekeeper" in deletions[1]


# --- the lock object


def test_the_lock_object_has_the_fields_of_java_and_is_never_deleted(lock_object: Arena) -> None:
    lease = lock_object.writer().acquire(timeout_s=0)
    held = json.loads(lock_object.storage.read(LOCK_OBJECT))
    assert held["expired"] is False
    assert held["validUntil"] == lock_object.clock.now_ms() + 300_000
    lease.release()
    freed = json.loads(lock_object.storage.read(LOCK_OBJECT))
    assert freed == {**held, "expired": True}


@pytest.mark.parametrize(
    ("fields", "is_free"),
    [
        ({"expired": True, "validUntil": 0, "owner": "java"}, True),
        ({"expired": True, "validUntil": +60_000, "owner": "java"}, True),
        ({"expired": False, "validUntil": -501, "owner": "java"}, True),
        ({"expired": False, "validUntil": -500, "owner": "java"}, False),
        ({"expired": False, "validUntil": +60_000, "owner": "java"}, False),
        ({"expired": False, "validUntil": +60_000, "owner": "java", "added": {"later": 1}}, False),
    ],
)
def test_a_lock_object_of_java_is_read_as_java_reads_it(
    lock_object: Arena, fields: dict[str, object], is_free: bool
) -> None:
    valid_until = lock_object.clock.now_ms() + cast(int, fields["validUntil"])
    lock_object.storage.put(LOCK_OBJECT, json.dumps({**fields, "validUntil": valid_until}).encode())
    assert lock_object.is_taken() is not is_free


def test_a_holder_of_java_is_named_though_its_age_is_not_known(lock_object: Arena) -> None:
    content = {"expired": False, "validUntil": lock_object.clock.now_ms() + 60_000, "owner": "owner-of-java"}
    lock_object.storage.put(LOCK_OBJECT, json.dumps(content).encode())
    with pytest.raises(LockNotAcquiredError, match=r"owner-of-java \(.*Java Hudi\), for an unknown time"):
        lock_object.writer().acquire(timeout_s=0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"expired": false, "owner": "x"}',
        b'{"expired": null, "validUntil": 1, "owner": "x"}',
        b'{"expired": true, "validUntil": "soon", "owner": "x"}',
        b'{"expired": true, "validUntil": 1, "owner": "x", "process": {"pid": "many"}}',
    ],
)
def test_garbage_in_the_lock_object_is_reported_at_once_and_left_as_it_is(lock_object: Arena, content: bytes) -> None:
    lock_object.storage.put(LOCK_OBJECT, content)
    with pytest.raises(LockNotAcquiredError, match=r"table_lock\.json: this is not a lock.*delete this one object"):
        lock_object.writer().acquire(timeout_s=60)
    assert lock_object.clock.slept_s == []
    assert lock_object.storage.read(LOCK_OBJECT) == content


# --- several processes on local files


def spawn(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.lock_worker", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of the kind that the test is run for."""
    process = spawn("hold", request.param, str(tmp_path))
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


def real_lock(kind: str, directory: Path) -> TableLock:
    make: Callable[..., TableLock] = FileSystemLock if kind == "file_system" else StorageBasedLock
    return make(LocalStorage(directory), settings=SETTINGS, runtime=SYSTEM_RUNTIME)


@pytest.mark.parametrize("kind", ["file_system", "storage_based"])
def test_processes_exclude_each_other(kind: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    workers = [spawn("count", kind, str(tmp_path), "25") for _ in range(4)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0, 0]
    for worker in workers:
        worker.communicate()
    assert counter.read_text() == "100"


@pytest.mark.parametrize(
    ("kind", "holder"), [("file_system", "file_system"), ("storage_based", "storage_based")], indirect=["holder"]
)
def test_a_living_process_keeps_its_lock_and_a_killed_one_loses_it_at_once(
    kind: str, holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    lock = real_lock(kind, tmp_path)
    with pytest.raises(LockNotAcquiredError, match=f"process {holder.pid} on "):
        lock.acquire(timeout_s=0)
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, but its remains are still in the process table
    with lock.acquire(timeout_s=0) as lease:
        lease.check()


def test_a_process_is_recognised_by_its_start_and_its_machine() -> None:
    processes = LinuxProcesses()
    me = processes.me()
    assert not processes.is_dead(me)
    assert processes.is_dead(ProcessId(me.host, me.machine, me.pid, me.started + "1"))
    assert processes.is_dead(ProcessId(me.host, me.machine, 2**22 + 1, me.started))
    assert not processes.is_dead(ProcessId(me.host, "another machine", 2**22 + 1, me.started))
    assert not processes.is_dead(ProcessId(me.host, me.machine, 2**22 + 1, ""))


def test_without_a_proc_file_system_nobody_is_declared_dead(tmp_path: Path) -> None:
    processes = LinuxProcesses(tmp_path)
    assert not processes.is_dead(processes.me())
    assert not processes.is_dead(ProcessId("host", "", 2**22 + 1, ""))


# --- the choice


def test_the_path_decides_which_lock_is_used(tmp_path: Path) -> None:
    runtime = SYSTEM_RUNTIME
    memory = MemoryStorage("memory://choice/table")
    assert isinstance(choose_lock(LocalStorage(tmp_path), options=LockSettings(), runtime=runtime), FileSystemLock)
    assert isinstance(choose_lock(memory, options=LockSettings(), runtime=runtime), InProcessLock)


@pytest.mark.parametrize(
    ("provider", "kind"),
    [
        ("org.apache.hudi.client.transaction.lock.InProcessLockProvider", InProcessLock),
        ("org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider", FileSystemLock),
        ("org.apache.hudi.client.transaction.lock.StorageBasedLockProvider", StorageBasedLock),
        ("StorageBasedLockProvider", StorageBasedLock),
    ],
)
def test_the_class_name_of_java_decides_if_it_is_given(provider: str, kind: type, tmp_path: Path) -> None:
    settings = LockSettings.from_options({"hoodie.write.lock.provider": provider})
    assert type(choose_lock(LocalStorage(tmp_path), options=settings, runtime=SYSTEM_RUNTIME)) is kind


@pytest.mark.parametrize(
    "provider",
    [
        "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
        "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider",
        "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",
        "com.example.OurOwnLockProvider",
    ],
)
def test_a_provider_that_only_java_has_is_refused_with_what_to_do(provider: str, tmp_path: Path) -> None:
    settings = LockSettings.from_options({"hoodie.write.lock.provider": provider})
    with pytest.raises(UnsupportedFeatureError, match=f"{provider} is not supported.*all writers"):
        choose_lock(LocalStorage(tmp_path), options=settings, runtime=SYSTEM_RUNTIME)


@pytest.mark.parametrize("inside", [True, False])
def test_the_lock_file_lies_in_the_configured_directory(inside: bool, tmp_path: Path) -> None:
    table = tmp_path / "table"
    directory = table / ".hoodie/.aux" if inside else tmp_path / "locks"
    settings = LockSettings.from_options({"hoodie.write.lock.filesystem.path": str(directory)})
    with choose_lock(LocalStorage(table), options=settings, runtime=SYSTEM_RUNTIME).acquire(timeout_s=0):
        assert (directory / "lock").exists()
        assert not (table / LOCK_FILE).exists()


def test_the_default_directory_spelled_out_is_the_same_lock(tmp_path: Path) -> None:
    spelled = LockSettings(file_system_path=str(tmp_path / ".hoodie"))
    with choose_lock(LocalStorage(tmp_path), options=spelled, runtime=SYSTEM_RUNTIME).acquire(timeout_s=0):
        with pytest.raises(LockNotAcquiredError):
            choose_lock(LocalStorage(tmp_path), options=LockSettings(), runtime=SYSTEM_RUNTIME).acquire(timeout_s=0)
        assert not (tmp_path / ".hoodie/.hoodie").exists()


def test_settings_come_from_the_keys_of_java() -> None:
    prefix = "hoodie.write.lock."
    settings = LockSettings.from_options(
        {
            prefix + "filesystem.path": "/locks",
            prefix + "filesystem.expire": "7",
            prefix + "wait_time_ms": "1000",
            prefix + "wait_time_ms_between_retry": "50",
            prefix + "client.num_retries": "3",
            prefix + "client.wait_time_ms_between_retry": "500",
            prefix + "storage.validity.timeout.secs": "100",
            prefix + "storage.renew.interval.secs": "10",
        }
    )
    assert settings == LockSettings(
        file_system_path="/locks",
        file_system_expire_minutes=7,
        wait_ms=1_000,
        pause_ms=50,
        retries=3,
        retry_pause_ms=500,
        validity_s=100,
        renew_interval_s=10,
    )
    assert settings.acquire_timeout_s == 5.5
    assert LockSettings.from_options({}) == LockSettings()
    assert LockSettings().acquire_timeout_s == 60


def test_the_older_name_of_the_renewal_interval_is_understood() -> None:
    old = "hoodie.write.lock.storage.heartbeat.poll.secs"
    assert LockSettings.from_options({old: "5"}).renew_interval_s == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("filesystem.expire", "-1"),
        ("wait_time_ms", "-1"),
        ("storage.validity.timeout.secs", "9"),
        ("storage.validity.timeout.secs", "299"),
        ("storage.renew.interval.secs", "0"),
        ("storage.renew.interval.secs", "31"),
        ("client.num_retries", "many"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_key(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"hoodie\.write\.lock\.{name}"):
        LockSettings.from_options({f"hoodie.write.lock.{name}": value})
