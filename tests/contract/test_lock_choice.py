"""Which lock a table gets, and the settings of locks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tablekeeper.config.concurrency_settings import LockSettings, ZookeeperSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import InvalidRequestError, LockNotAcquiredError, UnsupportedFeatureError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage.local import LocalStorage
from tablekeeper.storage.memory import MemoryStorage
from tablekeeper.storage.object_store import ObjectStorage
from tablekeeper.txn.locks.choose import choose_lock
from tablekeeper.txn.locks.file_system import FileSystemLock
from tablekeeper.txn.locks.in_process import InProcessLock
from tablekeeper.txn.locks.storage_based import StorageBasedLock
from tablekeeper.txn.locks.zookeeper import ZookeeperLock
from tests.support.lock_arena import LOCK_FILE

ZOOKEEPER = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
ZOOKEEPER_BY_PATH = "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider"
S3_OPTIONS = {"aws_access_key_id": "tester", "aws_secret_access_key": "secret", "region": "us-east-1"}


def test_the_path_decides_which_lock_is_used(tmp_path: Path) -> None:
    runtime = SYSTEM_RUNTIME
    memory = MemoryStorage("memory://choice/table")
    assert isinstance(choose_lock(LocalStorage(tmp_path), options=LockSettings(), runtime=runtime), FileSystemLock)
    bucket = ObjectStorage("s3://bucket/table", options=S3_OPTIONS)
    assert isinstance(choose_lock(bucket, options=LockSettings(), runtime=runtime), StorageBasedLock)
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
        "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider",
        "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",
        "com.example.OurOwnLockProvider",
    ],
)
def test_a_provider_that_only_java_has_is_refused_with_what_to_do(provider: str, tmp_path: Path) -> None:
    settings = LockSettings.from_options({"hoodie.write.lock.provider": provider})
    with pytest.raises(UnsupportedFeatureError, match=f"{provider} is not supported.*all writers"):
        choose_lock(LocalStorage(tmp_path), options=settings, runtime=SYSTEM_RUNTIME)


def test_the_lock_file_is_refused_on_an_object_store_with_what_to_use_there() -> None:
    bucket = ObjectStorage("s3://bucket/table", options=S3_OPTIONS)
    for settings in (
        LockSettings(provider="FileSystemBasedLockProvider"),
        LockSettings(provider="FileSystemBasedLockProvider", file_system_path="s3://bucket/locks"),
    ):
        with pytest.raises(UnsupportedFeatureError, match=r"s3 is an object store\. Leave the lock provider out"):
            choose_lock(bucket, options=settings, runtime=SYSTEM_RUNTIME)


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


# --- the lock in ZooKeeper


def zookeeper_lock(*, provider: str = ZOOKEEPER, table: str = "memory://choice/table", **settings: str) -> str:
    """The name of the lock that these settings lead to."""
    options = {"hoodie.write.lock.provider": provider}
    options |= {f"hoodie.write.lock.zookeeper.{key}": value for key, value in settings.items()}
    storage = ObjectStorage(table, options=S3_OPTIONS) if table.startswith("s3") else MemoryStorage(table)
    chosen = LockSettings.from_options(Options(options).given)
    lock = choose_lock(storage, options=chosen, runtime=SYSTEM_RUNTIME, table_name="trips")
    assert isinstance(lock, ZookeeperLock)
    return lock.name


def test_the_lock_in_zookeeper_is_the_key_below_the_base_path_and_the_key_is_the_table_name_by_default() -> None:
    assert zookeeper_lock(url="zk:2181", base_path="/hudi", lock_key="a/b") == "zookeeper://zk:2181/hudi/a/b"
    assert zookeeper_lock(url="zk", base_path="/hudi") == "zookeeper://zk/hudi/trips"


def test_the_lock_in_zookeeper_by_table_path_lies_where_java_looks_for_it() -> None:
    for spelled in ("s3://lake/trips", "s3a://lake/trips/"):
        name = zookeeper_lock(provider=ZOOKEEPER_BY_PATH, table=spelled, url="zk:2181")
        assert name == "zookeeper://zk:2181/tmp/52B6F91537859B95/lock_key"
    with pytest.raises(UnsupportedFeatureError, match=r"many spellings\. Give all writers ZookeeperBasedLockProvider"):
        zookeeper_lock(provider=ZOOKEEPER_BY_PATH, url="zk:2181")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_path": "/hudi"}, r"needs hoodie\.write\.lock\.zookeeper\.url, for example zk1:2181"),
        ({"url": "zk:2181"}, r"needs hoodie\.write\.lock\.zookeeper\.base_path, the same as"),
        ({"url": "zk", "port": "2182", "base_path": "/hudi"}, r"Java takes ports from .*url alone.*: zk:2182$"),
        ({"url": "zk:2181", "base_path": "hudi"}, r"'hudi/trips' is no path in ZooKeeper"),
        ({"url": "zk:2181", "base_path": "/hudi/"}, r"'/hudi//trips' is no path in ZooKeeper"),
        ({"url": "zk:2181", "base_path": "/hudi", "lock_key": "../x"}, r"'/hudi/\.\./x' is no path in ZooKeeper"),
    ],
)
def test_settings_with_which_java_would_not_find_the_same_lock_are_refused(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        zookeeper_lock(**settings)


def test_a_port_beside_a_url_with_ports_is_not_looked_at() -> None:
    assert zookeeper_lock(url="zk:2182", port="2181", base_path="/hudi") == "zookeeper://zk:2182/hudi/trips"


def test_the_lock_in_zookeeper_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tablekeeper.txn.locks.zookeeper")
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(InvalidRequestError, match=r"needs the kazoo package.*pip install 'tablekeeper\[zookeeper\]'"):
        zookeeper_lock(url="zk:2181", base_path="/hudi")


# --- settings


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
            prefix + "zookeeper.url": "zk1:2181,zk2:2181",
            prefix + "zookeeper.port": "2181",
            prefix + "zookeeper.base_path": "/hudi",
            prefix + "zookeeper.lock_key": "trips",
            prefix + "zookeeper.session_timeout_ms": "30000",
            prefix + "zookeeper.connection_timeout_ms": "5000",
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
        zookeeper=ZookeeperSettings("zk1:2181,zk2:2181", 2181, "/hudi", "trips", 30_000, 5_000),
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
        ("zookeeper.port", "many"),
        ("zookeeper.session_timeout_ms", "999"),
        ("zookeeper.connection_timeout_ms", "0"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_key(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"hoodie\.write\.lock\.{name}"):
        LockSettings.from_options({f"hoodie.write.lock.{name}": value})
