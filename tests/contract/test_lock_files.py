"""The two lock files on disk as Java knows them, and what several processes make of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tablekeeper.config.concurrency_settings import LockSettings
from tablekeeper.errors import FencedError, LockNotAcquiredError
from tablekeeper.runtime import SYSTEM_RUNTIME, LinuxProcesses, ProcessId
from tablekeeper.storage.local import LocalStorage
from tablekeeper.txn.locks import Lease, TableLock
from tablekeeper.txn.locks.file_system import FileSystemLock
from tablekeeper.txn.locks.storage_based import StorageBasedLock
from tests.support.lock_arena import LOCK_FILE, LOCK_OBJECT, SETTINGS, Arena
from tests.support.lock_processes import count_in_processes, holding_process
from tests.support.meanwhile import Interrupted
from tests.support.moto_server import MotoServer, moto_server


@pytest.fixture(scope="module")
def s3() -> Iterator[MotoServer]:
    with moto_server() as server:
        server.create_bucket("locks")
        yield server


@pytest.fixture(params=["file_system-memory", "file_system-local"])
def lock_file(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    return Arena(request.param, tmp_path)


@pytest.fixture(params=["storage_based-memory", "storage_based-local", "storage_based-s3"])
def lock_object(request: pytest.FixtureRequest, tmp_path: Path, s3: MotoServer) -> Arena:
    return Arena(request.param, tmp_path, s3)


# --- the lock file


def test_the_lock_file_names_its_owner_and_is_gone_after_the_release(lock_file: Arena) -> None:
    lease = lock_file.writer().acquire(timeout_s=0)
    fields = json.loads(lock_file.storage.read(LOCK_FILE))
    assert fields["by"] == "tablekeeper"
    assert fields["process"]["pid"] == 1
    lease.release()
    assert lock_file.storage.stat(LOCK_FILE) is None


def test_who_sleeps_while_it_gives_the_lock_file_back_leaves_that_of_its_successor_alone(lock_file: Arena) -> None:
    sleeper = lock_file.world.process()
    storage = Interrupted(lock_file.open_store(sleeper))
    late = lock_file.writer(storage=storage, runtime=sleeper).acquire(timeout_s=0)
    storage.take_scope("leases", "late")
    late.change_through("leases/late")
    taken: list[Lease] = []

    def sleep() -> None:
        lock_file.clock.stall(3_600)
        taken.append(lock_file.writer().acquire(timeout_s=0))
        lock_file.storage.take_scope("leases", "next")

    storage.when = lambda kind, path: kind == "delete" and path == LOCK_FILE
    storage.action = sleep
    late.release()
    taken[0].check()


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


@pytest.fixture
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of the kind that the test is run for."""
    with holding_process(request.param, tmp_path) as process:
        yield process


def real_lock(kind: str, directory: Path) -> TableLock:
    make: Callable[..., TableLock] = FileSystemLock if kind == "file_system" else StorageBasedLock
    return make(LocalStorage(directory), settings=SETTINGS, runtime=SYSTEM_RUNTIME)


@pytest.mark.parametrize("kind", ["file_system", "storage_based"])
def test_processes_exclude_each_other(kind: str, tmp_path: Path) -> None:
    assert count_in_processes(kind, tmp_path, workers=4, times=25) == 100


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
