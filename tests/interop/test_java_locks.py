"""Locks and heartbeats that Java Hudi and tablekeeper share: each must take the other's for what it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tablekeeper.config.concurrency_settings import HeartbeatSettings, LockSettings
from tablekeeper.errors import FencedError, LockNotAcquiredError
from tablekeeper.model import RequestedTime
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage.local import LocalStorage
from tablekeeper.txn.heartbeat import load_heartbeats, start_heartbeat
from tablekeeper.txn.locks.file_system import FileSystemLock
from tablekeeper.txn.locks.storage_based import StorageBasedLock

LOCK_OBJECT = ".hoodie/.locks/table_lock.json"
INSTANT = RequestedTime("20240101000000000")


class Java:
    """The classes of Java Hudi that deal with the table at `path`."""

    def __init__(self, spark: Any, path: Path) -> None:
        self._jvm = spark._jvm
        self._path = path
        self.hudi = spark._jvm.org.apache.hudi
        self.conf = self.hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
        self._providers: list[Any] = []

    def lock(self, *, expire_minutes: int = 0) -> Any:
        """A `FileSystemBasedLockProvider` of the table."""
        properties = self.hudi.common.config.TypedProperties()
        properties.setProperty("hoodie.base.path", str(self._path))
        properties.setProperty("hoodie.write.lock.filesystem.expire", str(expire_minutes))
        configuration = self.hudi.common.config.LockConfiguration(properties)
        return self.hudi.client.transaction.lock.FileSystemBasedLockProvider(configuration, self.conf)

    def try_lock(self, provider: Any) -> bool:
        return bool(provider.tryLock(1, self._jvm.java.util.concurrent.TimeUnit.SECONDS))

    def storage_lock_file(self, content: bytes) -> Any:
        stream = self._jvm.java.io.ByteArrayInputStream(content)
        return self.hudi.client.transaction.lock.models.StorageLockFile.createFromStream(stream, "version")

    def storage_lock_content(self, *, expired: bool, valid_until_ms: int, owner: str) -> bytes:
        models = self.hudi.client.transaction.lock.models
        data = models.StorageLockData(expired, valid_until_ms, owner)
        return bytes(models.StorageLockFile.toByteArray(data))

    def is_heartbeat_expired(self, instant: RequestedTime, *, tolerance_ms: int) -> bool:
        path = str(self._path)
        storage = self.hudi.storage.HoodieStorageUtils.getStorage(path, self.conf)
        utils = self.hudi.common.heartbeat.HoodieHeartbeatUtils
        return bool(utils.isHeartbeatExpired(instant.value, tolerance_ms, storage, path))

    def heartbeat_client(self) -> Any:
        path = str(self._path)
        storage = self.hudi.storage.HoodieStorageUtils.getStorage(path, self.conf)
        return self.hudi.client.heartbeat.HoodieHeartbeatClient(storage, path, 60_000, 2)


@pytest.fixture
def java(spark: Any, tmp_path: Path) -> Java:
    (tmp_path / ".hoodie").mkdir()
    return Java(spark, tmp_path)


def file_lock(path: Path, **settings: Any) -> FileSystemLock:
    return FileSystemLock(LocalStorage(path), settings=LockSettings(**settings), runtime=SYSTEM_RUNTIME)


def age(file: Path, seconds: float) -> None:
    """Let a file look as if it had been written that long ago."""
    then_s = SYSTEM_RUNTIME.clock.now_ms() / 1000 - seconds
    os.utime(file, (then_s, then_s))


def test_our_lock_keeps_java_out_and_java_can_name_its_owner(java: Java, tmp_path: Path) -> None:
    provider = java.lock()
    with file_lock(tmp_path).acquire(timeout_s=0) as lease:
        assert not java.try_lock(provider)
        owner = json.loads(provider.getCurrentOwnerLockInfo())["owner"]
        assert owner == json.loads((tmp_path / ".hoodie/lock").read_text())["owner"]
        lease.check()
    assert java.try_lock(provider)
    provider.unlock()


def test_the_lock_of_java_keeps_us_out_until_java_releases_it(java: Java, tmp_path: Path) -> None:
    provider = java.lock()
    assert java.try_lock(provider)
    with pytest.raises(LockNotAcquiredError, match="such as Java Hudi"):
        file_lock(tmp_path).acquire(timeout_s=0)
    provider.unlock()
    with file_lock(tmp_path).acquire(timeout_s=0) as lease:
        lease.check()
        assert not java.try_lock(provider)
    assert java.try_lock(provider)
    provider.close()


def test_java_that_gives_up_deletes_our_lock_and_the_check_finds_out(java: Java, tmp_path: Path) -> None:
    provider = java.lock()
    with file_lock(tmp_path).acquire(timeout_s=0) as lease:
        assert not java.try_lock(provider)
        provider.close()
        with pytest.raises(FencedError, match="removed while it was held"):
            lease.check()


def test_java_breaks_our_lock_only_after_the_configured_expiry_and_fences_us(java: Java, tmp_path: Path) -> None:
    provider = java.lock(expire_minutes=1)
    with file_lock(tmp_path, file_system_expire_minutes=1).acquire(timeout_s=0) as lease:
        age(tmp_path / ".hoodie/lock", 50)
        assert not java.try_lock(provider)
        age(tmp_path / ".hoodie/lock", 61)
        assert java.try_lock(provider)
        with pytest.raises(FencedError, match="taken the lock over"):
            lease.check()
    assert (tmp_path / ".hoodie/lock").exists()
    provider.unlock()


def test_we_break_the_lock_of_java_only_after_the_configured_expiry(java: Java, tmp_path: Path) -> None:
    assert java.try_lock(java.lock())
    age(tmp_path / ".hoodie/lock", 3_600)
    with pytest.raises(LockNotAcquiredError):
        file_lock(tmp_path).acquire(timeout_s=0)
    with file_lock(tmp_path, file_system_expire_minutes=1).acquire(timeout_s=0) as lease:
        lease.check()
        assert not java.try_lock(java.lock())


def test_java_reads_our_lock_object_and_we_read_the_one_of_java(java: Java, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    lock = StorageBasedLock(storage, settings=LockSettings(), runtime=SYSTEM_RUNTIME)
    with lock.acquire(timeout_s=0):
        held = java.storage_lock_file(storage.read(LOCK_OBJECT))
        holder = lock.describe()
        assert holder is not None
        assert held.getOwner() == holder.owner
        assert not held.isExpired()
        assert held.getValidUntilMs() > SYSTEM_RUNTIME.clock.now_ms()
    assert java.storage_lock_file(storage.read(LOCK_OBJECT)).isExpired()
    until_ms = SYSTEM_RUNTIME.clock.now_ms() + 60_000
    storage.put(LOCK_OBJECT, java.storage_lock_content(expired=False, valid_until_ms=until_ms, owner="java-owner"))
    with pytest.raises(LockNotAcquiredError, match="java-owner"):
        lock.acquire(timeout_s=0)
    storage.put(LOCK_OBJECT, java.storage_lock_content(expired=True, valid_until_ms=until_ms, owner="java-owner"))
    lock.acquire(timeout_s=0).release()


def test_java_takes_our_heartbeat_for_alive_until_it_is_silent(java: Java, tmp_path: Path) -> None:
    settings = HeartbeatSettings()
    with start_heartbeat(LocalStorage(tmp_path), INSTANT, settings=settings, runtime=SYSTEM_RUNTIME) as heartbeat:
        assert not java.is_heartbeat_expired(INSTANT, tolerance_ms=settings.tolerance_ms)
        age(tmp_path / ".hoodie/.heartbeat" / INSTANT.value, 121)
        assert java.is_heartbeat_expired(INSTANT, tolerance_ms=settings.tolerance_ms)
        heartbeat.renew()
        assert not java.is_heartbeat_expired(INSTANT, tolerance_ms=settings.tolerance_ms)
    assert java.is_heartbeat_expired(INSTANT, tolerance_ms=settings.tolerance_ms)


def test_we_take_the_heartbeat_of_java_for_alive_until_it_is_silent(java: Java, tmp_path: Path) -> None:
    def is_active() -> bool:
        storage = LocalStorage(tmp_path)
        return load_heartbeats(storage, settings=HeartbeatSettings(), runtime=SYSTEM_RUNTIME).is_active(INSTANT)

    client = java.heartbeat_client()
    client.start(INSTANT.value)
    assert is_active()
    age(tmp_path / ".hoodie/.heartbeat" / INSTANT.value, 131)
    assert not is_active()
    client.stop(INSTANT.value)
    assert not is_active()
