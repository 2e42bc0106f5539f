"""One lock in ZooKeeper for Java Hudi and tablekeeper: one queue, and two writers of one table that wait in it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kazoo.client import KazooClient

import tablekeeper as tk
from tablekeeper.config.concurrency_settings import LockSettings, ZookeeperSettings
from tablekeeper.errors import LockNotAcquiredError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage.object_store import ObjectStorage
from tablekeeper.txn.locks.choose import choose_lock
from tablekeeper.txn.locks.zookeeper import ZookeeperLock
from tests.support.java_hudi import JavaTable, rust_read
from tests.support.table_builder import rows_of, trips
from tests.support.zookeeper_server import ZookeeperServer, wait_for_queue, zookeeper_server

__all__: list[str] = []

PREFIX = "hoodie.write.lock."
PROVIDER = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
LOCK_PATH = "/hudi/locks/trips"
COMMITS_EACH = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def nodes(server: ZookeeperServer) -> Iterator[KazooClient]:
    with server.client() as client:
        yield client
        assert client.get_children(LOCK_PATH) == [], "somebody left the queue without giving the lock back"


@pytest.fixture
def our_lock(server: ZookeeperServer) -> ZookeeperLock:
    return ZookeeperLock(LOCK_PATH, settings=ZookeeperSettings(url=server.url), runtime=SYSTEM_RUNTIME)


def lock_options(server: ZookeeperServer) -> dict[str, str]:
    """What both sides are told. The key is the name of the table, which both know by themselves."""
    return {
        PREFIX + "provider": PROVIDER,
        PREFIX + "zookeeper.url": server.url,
        PREFIX + "zookeeper.port": str(server.port),
        PREFIX + "zookeeper.base_path": "/hudi/locks",
    }


class JavaLock:
    """Java's provider, with the settings that a Java writer has."""

    def __init__(self, spark: Any, server: ZookeeperServer) -> None:
        self._jvm = spark._jvm
        hudi = spark._jvm.org.apache.hudi
        properties = hudi.common.config.TypedProperties()
        for name, value in {**lock_options(server), PREFIX + "zookeeper.lock_key": "trips"}.items():
            properties.setProperty(name, value)
        conf = hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
        configuration = hudi.common.config.LockConfiguration(properties)
        self._provider = hudi.client.transaction.lock.ZookeeperBasedLockProvider(configuration, conf)

    def take_and_free(self, took: Event, free: Event, *, wait_s: int) -> None:
        """All on one thread of the JVM, as Curator's mutex belongs to the thread that took it."""
        assert self._provider.tryLock(wait_s, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
        took.set()
        assert free.wait(120)
        self._provider.unlock()

    def close(self) -> None:
        self._provider.close()


@pytest.fixture
def java_lock(spark: Any, server: ZookeeperServer) -> Iterator[JavaLock]:
    lock = JavaLock(spark, server)
    yield lock
    lock.close()


def completed(path: Path) -> list[str]:
    return sorted(file.name for file in (path / ".hoodie/timeline").glob("*_*commit"))


@pytest.fixture
def path(tmp_path: Path, server: ZookeeperServer) -> Path:
    """A table with one commit of ours."""
    where = tmp_path / "trips"
    table = tk.Table.create(
        where,
        name="trips",
        schema=trips().schema,
        key="id",
        partition_by="city",
        ordering="ts",
        engine="local",
        options=lock_options(server),
    )
    table.upsert(trips(("first", "both", 1, 1.0)))
    return where


def our_table(path: Path, server: ZookeeperServer, *, wait_ms: int = 60_000) -> tk.Table:
    options = {**lock_options(server), PREFIX + "wait_time_ms": str(wait_ms)}
    return tk.Table.open(path, engine="local", options=options)


def java_table(spark: Any, path: Path, server: ZookeeperServer) -> JavaTable:
    options = JavaTable.options_for(name="trips", key=["id"], partition_by=["city"], ordering="ts", table_type="cow")
    options |= lock_options(server)
    options["hoodie.write.concurrency.mode"] = "OPTIMISTIC_CONCURRENCY_CONTROL"
    options["hoodie.clean.failed.writes.policy"] = "LAZY"
    return JavaTable(spark, str(path), options)


def test_java_and_we_stand_in_one_queue(java_lock: JavaLock, our_lock: ZookeeperLock, nodes: KazooClient) -> None:
    took, free = Event(), Event()
    with ThreadPoolExecutor(max_workers=2) as pool:
        with our_lock.acquire(timeout_s=0) as ours:
            java = pool.submit(java_lock.take_and_free, took, free, wait_s=60)
            wait_for_queue(nodes, LOCK_PATH, length=2)
            waiting = pool.submit(our_lock.acquire, timeout_s=60)
            wait_for_queue(nodes, LOCK_PATH, length=3)
            names = nodes.get_children(LOCK_PATH)
            assert {name[:3] for name in names} == {"_c_"}
            assert {name[39:45] for name in names} == {"-lock-"}
            assert {len(name) for name in names} == {55}
            ours.check()
            assert not took.is_set()
        assert took.wait(60)
        holder = our_lock.describe()
        assert holder is not None
        assert "such as Java Hudi that says 'application_id=" in holder.owner
        assert not waiting.done()
        free.set()
        java.result()
        with waiting.result() as lease:
            lease.check()


def test_a_write_of_ours_waits_for_the_lock_of_java(
    java_lock: JavaLock, server: ZookeeperServer, nodes: KazooClient, path: Path
) -> None:
    took, free = Event(), Event()
    with ThreadPoolExecutor(max_workers=2) as pool:
        java = pool.submit(java_lock.take_and_free, took, free, wait_s=60)
        assert took.wait(60)
        with pytest.raises(
            LockNotAcquiredError, match=r"no lock within 0\.2 s, it is held by a writer such as Java Hudi"
        ):
            our_table(path, server, wait_ms=200).upsert(trips(("late", "ours", 2, 2.0)))
        assert len(completed(path)) == 1
        writing = pool.submit(our_table(path, server).upsert, trips(("in time", "ours", 2, 2.0)))
        wait_for_queue(nodes, LOCK_PATH, length=2)
        free.set()
        java.result()
        writing.result()
    assert rows_of(our_table(path, server).read(columns=["id"])) == [("first",), ("in time",)]


def test_a_write_of_java_waits_for_our_lock(
    spark: Any, our_lock: ZookeeperLock, server: ZookeeperServer, nodes: KazooClient, path: Path
) -> None:
    java = java_table(spark, path, server)
    with ThreadPoolExecutor(max_workers=1) as pool:
        with our_lock.acquire(timeout_s=0) as lease:
            writing = pool.submit(java.write, trips(("java", "java", 2, 2.0)), "upsert")
            wait_for_queue(nodes, LOCK_PATH, length=2)
            assert len(completed(path)) == 1
            lease.check()
        writing.result()
    assert len(completed(path)) == 2
    assert rows_of(java.read().select(["id"])) == [("first",), ("java",)]


@pytest.mark.timeout(600)
def test_java_and_we_write_to_one_table_at_once_and_nothing_is_lost(
    spark: Any, server: ZookeeperServer, nodes: KazooClient, path: Path
) -> None:
    java, ours = java_table(spark, path, server), our_table(path, server)
    expected = [("first", 1.0)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        for number in range(COMMITS_EACH):
            both: list[Future[Any]] = [
                pool.submit(java.write, trips((f"java-{number}", "java", number, float(number))), "upsert"),
                pool.submit(ours.upsert, trips((f"ours-{number}", "ours", number, float(number)))),
            ]
            for write in both:
                write.result()
            expected += [(f"java-{number}", float(number)), (f"ours-{number}", float(number))]
    expected.sort()
    assert rows_of(java.read().select(["id", "fare"])) == expected
    assert rows_of(rust_read(str(path)).select(["id", "fare"])) == expected
    assert rows_of(our_table(path, server).read(columns=["id", "fare"])) == expected
    assert len(completed(path)) == 1 + 2 * COMMITS_EACH
    report = our_table(path, server).doctor()
    assert report.is_healthy, report


@pytest.mark.parametrize("uri", ["s3a://lake/trips", "s3://lake/tr\u00fcps 1"])
def test_the_place_that_java_derives_from_the_path_of_a_table_is_ours_too(spark: Any, uri: str) -> None:
    provider = spark._jvm.org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider
    zookeeper = ZookeeperSettings(url="zk:2181")
    settings = LockSettings(provider="ZookeeperBasedImplicitBasePathLockProvider", zookeeper=zookeeper)
    access = {"aws_access_key_id": "tester", "aws_secret_access_key": "secret", "region": "us-east-1"}
    lock = choose_lock(ObjectStorage(uri, options=access), options=settings, runtime=SYSTEM_RUNTIME)
    assert isinstance(lock, ZookeeperLock)
    assert lock.name == f"zookeeper://zk:2181{provider.getLockBasePath(uri)}/{provider.LOCK_KEY}"
