"""The lock in ZooKeeper against a real server: the queue as Curator keeps it, and what becomes of lost sessions."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl
from typer.testing import CliRunner

import tablekeeper as tk
from tablekeeper.cli.main import app
from tablekeeper.config.concurrency_settings import ZookeeperSettings
from tablekeeper.errors import FencedError, LockNotAcquiredError, StorageError
from tablekeeper.runtime import SYSTEM_RUNTIME, Processes
from tablekeeper.txn.locks import Lease
from tablekeeper.txn.locks.zookeeper import ZookeeperLock
from tests.support.freezing import freeze, thaw
from tests.support.lock_arena import FakeProcesses
from tests.support.lock_processes import ask, count_in_processes, holding_process
from tests.support.table_builder import TRIPS, trips
from tests.support.zookeeper_server import ZookeeperServer, wait_for_queue, zookeeper_server

CURATOR_NAME = "_c_0f7cb9a5-8a1e-4b7c-9c11-3a2f3ff2d1aa-lock-"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def nodes(server: ZookeeperServer) -> Iterator[KazooClient]:
    with server.client() as client:
        yield client


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"/locks/{tmp_path.name}"


def lock_at(
    path: str, server: ZookeeperServer, *, session_ms: int = 20_000, processes: Processes | None = None
) -> ZookeeperLock:
    settings = ZookeeperSettings(url=server.url, session_timeout_ms=session_ms, connection_timeout_ms=20_000)
    return ZookeeperLock(path, settings=settings, runtime=SYSTEM_RUNTIME, processes=processes)


def fenced(lease: Lease) -> str:
    """What the lease says when it must not be relied on any more."""
    with pytest.raises(FencedError) as caught:
        lease.check()
    return str(caught.value)


# --- the queue


def test_the_nodes_have_the_names_of_curator_and_go_with_the_release(
    server: ZookeeperServer, nodes: KazooClient, path: str
) -> None:
    with lock_at(path, server).acquire(timeout_s=0):
        [name] = nodes.get_children(path)
        assert len(name) == len(CURATOR_NAME) + 10
        assert name.startswith("_c_")
        assert name[39:] == "-lock-0000000000"
        stat = nodes.exists(f"{path}/{name}")
        assert stat is not None
        assert stat.owner_session_id
    assert nodes.get_children(path) == []


@pytest.mark.parametrize(
    ("name", "is_ahead"),
    [
        (f"{CURATOR_NAME}0000000000", True),
        ("zz-lock-0000000000", True),
        (f"{CURATOR_NAME}0000000099", False),
        ("_c_00000000-0000-0000-0000-000000000000-lock-0000000099", False),
        ("something-else", False),
        ("-lock-lock-0000000000", True),
    ],
)
def test_the_number_behind_the_mark_decides_who_is_first(
    server: ZookeeperServer, nodes: KazooClient, path: str, name: str, is_ahead: bool
) -> None:
    nodes.ensure_path(path)
    # The server counts changes of the children: our node gets a number between the two of the other one.
    for _ in range(5):
        nodes.delete(nodes.create(f"{path}/{CURATOR_NAME}", sequence=True))
    nodes.create(f"{path}/{name}", b"application_id=app-7", ephemeral=True)
    lock = lock_at(path, server)
    if is_ahead:
        with pytest.raises(LockNotAcquiredError, match=r"such as Java Hudi that says 'application_id=app-7'"):
            lock.acquire(timeout_s=0)
    else:
        lock.acquire(timeout_s=0).release()
    assert nodes.get_children(path) == [name]


def test_who_gives_up_waiting_leaves_the_queue(server: ZookeeperServer, nodes: KazooClient, path: str) -> None:
    with lock_at(path, server).acquire(timeout_s=0):
        with pytest.raises(LockNotAcquiredError, match=f"process {os.getpid()} on "):
            lock_at(path, server).acquire(timeout_s=0.2)
        assert len(nodes.get_children(path)) == 1


def test_writers_get_the_lock_in_the_order_in_which_they_came(
    server: ZookeeperServer, nodes: KazooClient, path: str
) -> None:
    order: list[int] = []

    def write(number: int) -> None:
        with lock_at(path, server).acquire(timeout_s=60):
            order.append(number)

    with ThreadPoolExecutor(max_workers=4) as pool:
        with lock_at(path, server).acquire(timeout_s=0):
            writers = []
            for number in range(4):
                writers.append(pool.submit(write, number))
                wait_for_queue(nodes, path, length=number + 2)
        for writer in writers:
            writer.result()
    assert order == [0, 1, 2, 3]


def test_processes_exclude_each_other(server: ZookeeperServer, tmp_path: Path) -> None:
    assert count_in_processes(f"zookeeper={server.url}", tmp_path, workers=4, times=10) == 40


def test_a_path_below_a_root_of_its_own_is_the_same_lock(
    server: ZookeeperServer, nodes: KazooClient, path: str
) -> None:
    settings = ZookeeperSettings(url=f"{server.url}/hudi")
    with ZookeeperLock(path, settings=settings, runtime=SYSTEM_RUNTIME).acquire(timeout_s=0) as lease:
        lease.check()
        assert len(nodes.get_children(f"/hudi{path}")) == 1
        with pytest.raises(LockNotAcquiredError):
            lock_at(f"/hudi{path}", server).acquire(timeout_s=0)


# --- sessions


def test_a_node_that_is_removed_or_changed_under_its_holder_fences_it(
    server: ZookeeperServer, nodes: KazooClient, path: str
) -> None:
    with lock_at(path, server).acquire(timeout_s=0) as removed:
        [name] = nodes.get_children(path)
        nodes.delete(f"{path}/{name}")
        assert "removed or taken over" in fenced(removed)
        with lock_at(path, server).acquire(timeout_s=0) as changed:
            [name] = nodes.get_children(path)
            nodes.set(f"{path}/{name}", b"mine")
            assert "removed or taken over" in fenced(changed)


def test_an_interrupted_connection_fences_the_holder_though_its_session_survives(
    server: ZookeeperServer, path: str
) -> None:
    with lock_at(path, server).acquire(timeout_s=0) as lease:
        lease.check()
        server.kill()
        server.start()
        assert re.search(r"was interrupted|did not confirm", fenced(lease))
        # Back again, and still refused: what happened meanwhile is not known.
        fenced(lease)
    with lock_at(path, server).acquire(timeout_s=60) as next_one:
        next_one.check()


def test_a_server_that_does_not_answer_fences_the_holder(server: ZookeeperServer, path: str) -> None:
    with lock_at(path, server, session_ms=3_000).acquire(timeout_s=0) as lease:
        server.freeze()
        try:
            assert "did not confirm" in fenced(lease)
        finally:
            server.thaw()
        fenced(lease)


def test_a_writer_that_waits_outlives_a_restart_of_the_server(
    server: ZookeeperServer, path: str, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(max_workers=1) as pool:
        holder = lock_at(path, server).acquire(timeout_s=0)
        waiter = pool.submit(lock_at(path, server).acquire, timeout_s=60)
        with server.client() as nodes:
            wait_for_queue(nodes, path, length=2)
        server.kill()
        server.start()
        holder.release()
        with waiter.result() as lease:
            lease.check()


def test_a_stopped_process_loses_the_lock_with_its_session_and_wakes_up_fenced(
    server: ZookeeperServer, path: str, tmp_path: Path
) -> None:
    with holding_process(f"zookeeper={server.url}", tmp_path) as process:
        assert ask(process) == "good"
        freeze(process)
        with lock_at(path, server).acquire(timeout_s=60) as lease:
            thaw(process)
            assert ask(process) == "fenced"
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)
            # Its release took nothing from us.
            lease.check()


def test_a_killed_process_loses_the_lock_at_once_on_its_machine_and_with_its_session_elsewhere(
    server: ZookeeperServer, path: str, tmp_path: Path
) -> None:
    with holding_process(f"zookeeper={server.url}", tmp_path) as process:
        with pytest.raises(LockNotAcquiredError, match=f"process {process.pid} on "):
            lock_at(path, server).acquire(timeout_s=0)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        holder = lock_at(path, server).describe()
        assert holder is not None
        assert holder.is_lapsed
        with pytest.raises(LockNotAcquiredError):
            lock_at(path, server, processes=FakeProcesses(1)).acquire(timeout_s=0)
        lock_at(path, server).acquire(timeout_s=0).release()
    with holding_process(f"zookeeper={server.url}", tmp_path) as process:
        process.kill()
        lock_at(path, server, processes=FakeProcesses(1)).acquire(timeout_s=60).release()


def test_of_many_who_wait_behind_a_dead_process_exactly_one_gets_the_lock(
    server: ZookeeperServer, nodes: KazooClient, path: str
) -> None:
    dead: set[int] = set()
    lost = lock_at(path, server, processes=FakeProcesses(0, dead)).acquire(timeout_s=0)
    dead.add(0)

    def take(number: int) -> Lease | None:
        try:
            return lock_at(path, server, processes=FakeProcesses(number, dead)).acquire(timeout_s=0)
        except LockNotAcquiredError:
            return None

    winners = [lease for lease in SYSTEM_RUNTIME.threads.map(take, range(1, 9), width=8) if lease is not None]
    assert len(winners) == 1
    winners[0].check()
    fenced(lost)
    for lease in (*winners, lost):
        lease.release()
    assert nodes.get_children(path) == []


# --- who is not there


def test_a_server_that_is_not_there_is_named_with_host_and_port(path: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = ZookeeperSettings(url=url, connection_timeout_ms=300)
    lock = ZookeeperLock(path, settings=settings, runtime=SYSTEM_RUNTIME)
    with pytest.raises(LockNotAcquiredError, match=rf"no ZooKeeper server answers at {url} \(tried for 0\.3 s\)"):
        lock.acquire(timeout_s=60)
    with pytest.raises(LockNotAcquiredError, match=f"no ZooKeeper server answers at {url}"):
        lock.describe()


def test_a_server_that_only_listens_is_given_up_after_the_connection_timeout(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"127.0.0.1:{mute.getsockname()[1]}"
        settings = ZookeeperSettings(url=url, session_timeout_ms=20_000, connection_timeout_ms=300)
        started_s = SYSTEM_RUNTIME.clock.monotonic_s()
        with pytest.raises(LockNotAcquiredError, match="no ZooKeeper server answers"):
            ZookeeperLock(path, settings=settings, runtime=SYSTEM_RUNTIME).acquire(timeout_s=60)
        assert SYSTEM_RUNTIME.clock.monotonic_s() - started_s < 10


def test_a_server_that_goes_away_while_we_wait_is_reported_as_that(server: ZookeeperServer, path: str) -> None:
    with lock_at(path, server, session_ms=3_000).acquire(timeout_s=0), ThreadPoolExecutor(max_workers=1) as pool:
        waiter = pool.submit(lock_at(path, server, session_ms=3_000).acquire, timeout_s=2)
        with server.client() as nodes:
            wait_for_queue(nodes, path, length=2)
        server.kill()
        try:
            with pytest.raises(LockNotAcquiredError, match=f"the connection with ZooKeeper at {server.url} is lost"):
                waiter.result()
        finally:
            server.start()


def test_a_path_without_access_rights_is_refused_with_what_to_do(
    server: ZookeeperServer, nodes: KazooClient, path: str
) -> None:
    nodes.create(path, acl=[make_acl("world", "anyone", read=True)], makepath=True)
    with pytest.raises(StorageError, match=r"ZooKeeper refused to work on the lock: NoAuthError.*access rights"):
        lock_at(path, server).acquire(timeout_s=60)


# --- a table behind it


def options_of(server_url: str) -> dict[str, str]:
    prefix = "hoodie.write.lock."
    return {
        prefix + "provider": "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
        prefix + "zookeeper.url": server_url,
        prefix + "zookeeper.base_path": "/tables",
        prefix + "zookeeper.connection_timeout_ms": "20000",
    }


def run_command(*arguments: str) -> str:
    return CliRunner(env={"COLUMNS": "400", "NO_COLOR": "1"}).invoke(app, list(arguments)).stdout


@pytest.mark.parametrize("remembered", [True, False])
def test_writes_measure_how_long_they_held_it_and_the_commands_say_who_holds_it(
    server: ZookeeperServer, tmp_path: Path, remembered: bool
) -> None:
    options = options_of(server.url)
    given = [] if remembered else [part for pair in options.items() for part in ("--option", "=".join(pair))]
    name = tmp_path.name
    path = str(tmp_path / "table")
    created = tk.Table.create(
        path, name=name, schema=TRIPS, key="id", engine="local", options=options if remembered else {}
    )
    table = created if remembered else tk.Table.open(path, engine="local", options=options)
    result = table.upsert(trips(("a", "sf", 1, 1.0)))
    assert 0 < result.lock_held_s < 30
    assert "free" in run_command("locks", path, *given)
    with lock_at(f"/tables/{name}", server).acquire(timeout_s=0):
        held = run_command("locks", path, *given)
        assert f"zookeeper://{server.url}/tables/{name} is held by" in held
        assert f"process {os.getpid()} on" in held
        assert [finding.kind for finding in table.doctor().findings] == ["held-lock"]
    assert table.doctor().findings == ()


def test_the_doctor_reports_a_lock_whose_server_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "table"
    tk.Table.create(path, name="trips", schema=TRIPS, key="id", engine="local")
    options = {**options_of("127.0.0.1:1"), "hoodie.write.lock.zookeeper.connection_timeout_ms": "200"}
    [finding] = tk.Table.open(path, engine="local", options=options).doctor().findings
    assert finding.kind == "unreadable-lock"
    assert "no ZooKeeper server answers at 127.0.0.1:1" in finding.meaning
