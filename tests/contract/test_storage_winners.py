"""Of many who create or replace one object, exactly one wins: between threads, and between processes.

The S3 store runs against moto, which enforces If-None-Match and If-Match on a put (a test below says so through plain
requests). What moto cannot show is the real store's own consistency: its answers come from one process.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from tablekeeper.storage import Storage
from tests.support.moto_server import MotoServer
from tests.support.storage_places import (
    STORES_BETWEEN_PROCESSES,
    Opener,
    let_go,
    spec_argument,
    start_script,
)


def test_put_if_absent_leaves_what_is_there(store: Storage) -> None:
    assert store.put_if_absent("p/a", b"first")
    assert not store.put_if_absent("p/a", b"second")
    assert store.read("p/a") == b"first"
    store.delete("p/a")
    assert store.put_if_absent("p/a", b"third")


def test_of_threads_that_create_one_object_exactly_one_wins(open_store: Opener) -> None:
    stores = [open_store() for _ in range(6)]
    for turn in range(10):
        path = f"timeline/{turn}"
        with ThreadPoolExecutor(6) as pool:
            won = list(pool.map(lambda me, p=path: stores[me].put_if_absent(p, str(me).encode()), range(6)))
        assert won.count(True) == 1
        assert stores[0].read(path) == str(won.index(True)).encode()


def test_replace_needs_the_version_that_is_there(store: Storage) -> None:
    store.put("lock", b"0")
    first = store.read_versioned("lock")
    assert first is not None
    assert first.data == b"0"
    second = store.replace("lock", b"1", version=first.version)
    assert second is not None
    assert second != first.version
    assert store.replace("lock", b"late", version=first.version) is None
    now = store.read_versioned("lock")
    assert now is not None
    assert (now.data, now.version) == (b"1", second)
    assert store.replace("lock", b"2", version=second) is not None
    assert store.read("lock") == b"2"


def test_replace_is_refused_after_any_other_change(store: Storage) -> None:
    store.put("lock", b"0")
    seen = store.read_versioned("lock")
    assert seen is not None
    store.put("lock", b"1")
    assert store.replace("lock", b"mine", version=seen.version) is None
    store.delete("lock")
    assert store.replace("lock", b"mine", version=seen.version) is None
    assert store.stat("lock") is None
    assert store.put_if_absent("lock", b"2")
    assert store.replace("lock", b"mine", version=seen.version) is None
    assert store.read("lock") == b"2"


def test_of_threads_that_replace_one_version_exactly_one_wins(open_store: Opener) -> None:
    stores = [open_store() for _ in range(6)]
    stores[0].put("lock", b"start")
    for _ in range(10):
        seen = stores[0].read_versioned("lock")
        assert seen is not None

        def attempt(me: int, version: str = seen.version) -> str | None:
            return stores[me].replace("lock", f"{me} {uuid4()}".encode(), version=version)

        with ThreadPoolExecutor(6) as pool:
            won = [me for me, version in enumerate(pool.map(attempt, range(6))) if version is not None]
        assert len(won) == 1
        assert stores[0].read("lock").startswith(f"{won[0]} ".encode())


def test_counting_with_replace_loses_no_step(open_store: Opener) -> None:
    open_store().put("counter", b"0")

    def count_up(_: int) -> None:
        store = open_store()
        for _ in range(10):
            while True:
                seen = store.read_versioned("counter")
                assert seen is not None
                if store.replace("counter", str(int(seen.data) + 1).encode(), version=seen.version):
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_up, range(4)))
    assert open_store().read("counter") == b"40"


COMPETING = """
import json, sys
from tablekeeper.storage import StorageSpec, open_storage
store, me = open_storage(StorageSpec(*json.loads(sys.argv[1]))), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
won = [turn for turn in range(40) if store.put_if_absent(f"timeline/{turn}", me.encode())]
for _ in range(40):
    while True:
        seen = store.read_versioned("counter")
        if store.replace("counter", str(int(seen.data) + 1).encode(), version=seen.version):
            break
print(json.dumps(won))
"""


@pytest.mark.parametrize("open_store", STORES_BETWEEN_PROCESSES, indirect=True)
def test_of_processes_exactly_one_wins_each_time(store: Storage) -> None:
    store.put("counter", b"0")
    processes = [start_script(COMPETING, spec_argument(store), str(me)) for me in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = [process.communicate(timeout=120)[0] for process in let_go(processes)]
    assert [process.returncode for process in processes] == [0, 0, 0]
    wins = [json.loads(output) for output in outputs]
    assert Counter(turn for won in wins for turn in won) == Counter(range(40))
    for me, won in enumerate(wins):
        assert all(store.read(f"timeline/{turn}") == str(me).encode() for turn in won)
    assert store.read("counter") == b"120"


def test_the_test_server_enforces_the_preconditions_that_the_s3_store_relies_on(s3_server: MotoServer) -> None:
    client = s3_server.client
    first = client.put_object(Bucket="lake", Key="conditions", Body=b"1", IfNoneMatch="*")["ETag"]
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket="lake", Key="conditions", Body=b"2", IfNoneMatch="*")
    client.put_object(Bucket="lake", Key="conditions", Body=b"2", IfMatch=first)
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket="lake", Key="conditions", Body=b"3", IfMatch=first)
    assert client.get_object(Bucket="lake", Key="conditions")["Body"].read() == b"2"
