"""What every store promises: atomic publish, read your writes, and what listings mean."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tablekeeper.errors import FencedError, InvalidRequestError, NotFoundError
from tablekeeper.storage import Storage, open_storage
from tests.support.storage_places import (
    STORES_BETWEEN_PROCESSES,
    Opener,
    names_below,
    run_script,
    spec_argument,
    top_directories,
)

ODD_NAMES = [
    "with space",
    "percent%",
    "escaped%2Fslash",
    "escaped%20space",
    "city=San José",
    "日本",
    "plus+and&and;",
    "hash#and?",
    "~tilde",
    ".hidden",
    "quote'and\"",
    "<[{|}]>^`",
    "back\\slash",
]


def abandon_output(store: Storage, path: str, data: bytes, error: BaseException) -> None:
    with store.open_output(path) as sink:
        sink.write(data)
        raise error


# Reading what was written


def test_a_written_object_is_read_back_by_every_client_at_once(open_store: Opener) -> None:
    writer, reader = open_store(), open_store()
    writer.put("p/a", b"one")
    assert reader.read("p/a") == b"one"
    assert [info.path for info in reader.list_files("p")] == ["p/a"]
    writer.put("p/a", b"two!")
    assert reader.read("p/a") == b"two!"
    facts = reader.stat("p/a")
    assert facts is not None
    assert (facts.path, facts.name, facts.size) == ("p/a", "a", 4)
    writer.delete("p/a")
    assert reader.stat("p/a") is None
    assert reader.list_files("p") == []


def test_an_empty_object_is_an_object(store: Storage) -> None:
    store.put("empty", b"")
    assert store.read("empty") == b""
    assert [(info.path, info.size) for info in store.list_files("")] == [("empty", 0)]
    assert [(info.path, info.size) for info in store.walk("")] == [("empty", 0)]
    with store.open_input("empty") as stream:
        assert stream.read() == b""


def test_the_time_of_a_change_is_close_to_now_in_milliseconds(store: Storage) -> None:
    store.put("a", b"")
    [info] = store.list_files("")
    facts = store.stat("a")
    assert facts is not None
    assert facts.modified_ms == info.modified_ms
    assert 1_600_000_000_000 < info.modified_ms < 9_999_999_999_999


def test_a_missing_object_is_reported_with_its_place(store: Storage) -> None:
    for read in (
        store.read,
        lambda path: store.read_range(path, start=0, length=1),
        lambda path: store.read_range(path, start=0, length=0),
        store.open_input,
    ):
        with pytest.raises(NotFoundError, match="missing/object: no such file"):
            read("missing/object")
    assert store.stat("missing/object") is None
    assert store.read_versioned("missing/object") is None


def test_a_directory_is_not_an_object(store: Storage) -> None:
    store.put("p/q/a", b"1")
    assert store.stat("p/q") is None
    assert store.read_versioned("p/q") is None
    with pytest.raises(NotFoundError):
        store.read("p/q")
    with pytest.raises(NotFoundError):
        store.open_input("p/q")
    store.delete("p/q")
    assert store.read("p/q/a") == b"1"


@pytest.mark.parametrize("path", ["", "/abs", "a//b", "a/", "../up", "a/../../up", "./a", "a\0b"])
def test_a_path_that_could_leave_the_store_is_refused(store: Storage, path: str) -> None:
    for use in (store.stat, store.read, store.delete, store.open_input, store.open_output):
        with pytest.raises(InvalidRequestError):
            use(path)
    with pytest.raises(InvalidRequestError):
        store.put(path, b"")
    if path:
        with pytest.raises(InvalidRequestError):
            store.list_files(path)
        with pytest.raises(InvalidRequestError):
            store.delete_tree(path)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_kept_as_they_are(store: Storage, name: str) -> None:
    path = f"{name}/{name}"
    store.put(path, name.encode())
    assert store.read(path) == name.encode()
    assert top_directories(store) == [name]
    assert [info.path for info in store.list_files(name)] == [path]
    assert names_below(store) == [path]
    assert not store.put_if_absent(path, b"")
    store.delete(path)
    assert names_below(store) == []


# Ranges and streams


def test_a_range_is_cut_at_the_end_of_the_object(store: Storage) -> None:
    store.put("a", bytes(range(100)))
    assert store.read_range("a", start=0, length=3) == bytes([0, 1, 2])
    assert store.read_range("a", start=97, length=50) == bytes([97, 98, 99])
    assert store.read_range("a", start=50, length=0) == b""
    assert store.read_range("a", start=100, length=5) == b""
    assert store.read_range("a", start=1000, length=5) == b""
    store.put("empty", b"")
    assert store.read_range("empty", start=0, length=5) == b""


def test_a_range_below_zero_is_refused(store: Storage) -> None:
    store.put("a", b"abc")
    with pytest.raises(InvalidRequestError):
        store.read_range("a", start=-1, length=1)
    with pytest.raises(InvalidRequestError):
        store.read_range("a", start=0, length=-1)


def test_an_input_seeks_and_reads_anywhere(store: Storage) -> None:
    data = os.urandom(3_000_000)
    store.put("a", data)
    with store.open_input("a") as stream:
        assert stream.read(10) == data[:10]
        assert stream.read(100_000) == data[10:100_010]
        stream.seek(2_999_990)
        assert stream.read(100) == data[2_999_990:]
        stream.seek(-2_000_000, os.SEEK_END)
        assert stream.read(1_500_000) == data[1_000_000:2_500_000]
        assert stream.tell() == 2_500_000
        stream.seek(0)
        assert stream.read() == data


def test_parquet_goes_out_and_in_through_streams(store: Storage) -> None:
    table = pa.table({"id": list(range(200_000)), "text": [f"row {i}" for i in range(200_000)]})
    with store.open_output("p/data.parquet") as sink:
        pq.write_table(table, sink, row_group_size=30_000)
    with store.open_input("p/data.parquet") as source:
        assert pq.read_table(source).equals(table)
    with store.open_input("p/data.parquet") as source:
        file = pq.ParquetFile(source)
        assert file.metadata.num_row_groups == 7
        assert file.read_row_group(6, columns=["id"])["id"].to_pylist()[-1] == 199_999
    facts = store.stat("p/data.parquet")
    assert facts is not None
    assert facts.size == len(store.read("p/data.parquet"))


def test_a_parquet_writer_writes_batch_by_batch(store: Storage) -> None:
    table = pa.table({"id": list(range(1000))})
    with store.open_output("data.parquet") as sink, pq.ParquetWriter(sink, table.schema) as writer:
        for _ in range(5):
            writer.write_table(table)
    with store.open_input("data.parquet") as source:
        assert pq.read_table(source).num_rows == 5000


def test_an_output_larger_than_one_part_arrives_whole(store: Storage) -> None:
    chunk = os.urandom(1_000_000)
    with store.open_output("big") as sink:
        for _ in range(20):
            sink.write(chunk)
    assert store.read("big") == chunk * 20


# Atomic publish


def test_an_output_shows_nothing_before_it_is_closed(open_store: Opener) -> None:
    writer, reader = open_store(), open_store()
    with writer.open_output("p/a") as sink:
        sink.write(b"x" * 10_000_000)
        sink.flush()
        assert reader.stat("p/a") is None
        assert names_below(reader) == []
    assert reader.read("p/a") == b"x" * 10_000_000


@pytest.mark.parametrize("size", [0, 10, 20_000_000])
def test_an_output_left_by_an_exception_publishes_nothing(store: Storage, size: int) -> None:
    with pytest.raises(KeyError, match="stop"):
        abandon_output(store, "p/a", b"x" * size, KeyError("stop"))
    assert store.stat("p/a") is None
    assert names_below(store) == []


def test_an_abandoned_output_leaves_the_old_object_alone(store: Storage) -> None:
    store.put("a", b"old")
    with pytest.raises(KeyboardInterrupt):
        abandon_output(store, "a", b"new", KeyboardInterrupt())
    assert store.read("a") == b"old"
    with store.open_output("a") as sink:
        sink.write(b"new")
    assert store.read("a") == b"new"


def test_an_output_that_is_never_entered_publishes_nothing(store: Storage) -> None:
    store.open_output("a")
    assert names_below(store) == []


def test_a_reader_never_sees_half_an_object(open_store: Opener) -> None:
    contents = {bytes([letter]) * size for letter, size in ((65, 2_000_000), (66, 1_000_000), (67, 3))}
    open_store().put("a", b"A" * 2_000_000)
    done = Event()

    def write() -> None:
        store = open_store()
        for turn in range(8):
            for data in contents:
                if turn % 2:
                    store.put("a", data)
                else:
                    with store.open_output("a") as sink:
                        for start in range(0, len(data), 100_000):
                            sink.write(data[start : start + 100_000])
        done.set()

    def read() -> int:
        store, seen = open_store(), 0
        while not done.is_set():
            assert store.read("a") in contents
            seen += 1
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        pool.submit(write).result(timeout=60)
        assert all(reader.result(timeout=60) > 0 for reader in readers)


KILLED = """
import json, os, signal, sys
from tablekeeper.storage import StorageSpec, open_storage
store = open_storage(StorageSpec(*json.loads(sys.argv[1])))
with store.open_output("p/a") as sink:
    sink.write(b"x" * 20_000_000)
    sink.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("open_store", STORES_BETWEEN_PROCESSES, indirect=True)
def test_a_killed_process_publishes_nothing(store: Storage) -> None:
    assert run_script(KILLED, spec_argument(store)).returncode == -signal.SIGKILL
    assert store.stat("p/a") is None
    assert names_below(store) == []
    assert store.list_directories("p") == []


# Listings and removal


def test_a_listing_shows_one_level_in_order(store: Storage) -> None:
    for path in ("p/b", "p/a", "p/c/d", "p/c/e/f", "p-q/x", "pq", "p/.hidden/x"):
        store.put(path, path.encode())
    assert [info.path for info in store.list_files("p")] == ["p/a", "p/b"]
    assert store.list_names("p") == ["a", "b"]
    assert store.list_names("") == ["pq"]
    assert store.list_directories("p") == [".hidden", "c"]
    assert [info.path for info in store.list_files("")] == ["pq"]
    assert top_directories(store) == ["p", "p-q"]
    assert [(info.path, info.size) for info in store.list_files("p/c")] == [("p/c/d", 5)]


def test_a_missing_directory_is_an_empty_one(store: Storage) -> None:
    store.put("file", b"")
    for directory in ("nowhere", "no/where", "file"):
        assert store.list_files(directory) == []
        assert store.list_names(directory) == []
        assert store.list_directories(directory) == []
        assert list(store.walk(directory)) == []
        store.delete_tree(directory)
    assert store.read("file") == b""


def test_a_store_nobody_wrote_to_is_empty(store: Storage) -> None:
    assert store.list_files("") == []
    assert store.list_directories("") == []
    assert list(store.walk("")) == []
    store.delete("a")
    store.delete_many(["a", "b"])
    store.delete_tree("")
    assert store.list_directories("") == []


def test_walk_finds_objects_at_every_depth_and_nothing_beside(store: Storage) -> None:
    paths = ["a", "p/a", "p/q/r/s/t", "p/q-r/a", "pq/a", ".hoodie/timeline/1.commit"]
    for path in paths:
        store.put(path, path.encode())
    assert names_below(store) == sorted(paths)
    assert names_below(store, "p") == ["p/a", "p/q-r/a", "p/q/r/s/t"]
    assert names_below(store, "p/q") == ["p/q/r/s/t"]
    assert {info.path: info.size for info in store.walk("")} == {path: len(path) for path in paths}


def test_a_long_listing_is_complete(store: Storage) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"p/{number:04d}", b""), range(1100)))
    expected = [f"p/{number:04d}" for number in range(1100)]
    assert [info.path for info in store.list_files("p")] == expected
    assert names_below(store) == expected
    store.delete_many(expected[:-1])
    assert names_below(store) == expected[-1:]


def test_deleting_what_is_not_there_is_no_error(store: Storage) -> None:
    store.put("a", b"")
    store.delete("b")
    store.delete("x/y/z")
    store.delete("a/b")
    store.delete_many(["a", "b", "x/y/z"])
    assert names_below(store) == []


def test_a_removed_tree_takes_nothing_else_with_it(store: Storage) -> None:
    for path in ("p/a", "p/q/b", "p/q/c", "p/qq/d", "p/q.txt", "z"):
        store.put(path, b"")
    store.delete_tree("p/q")
    assert names_below(store) == ["p/a", "p/q.txt", "p/qq/d", "z"]
    assert store.list_directories("p") == ["qq"]
    store.delete_tree("p/q")
    store.delete_tree("")
    assert names_below(store) == []
    assert store.list_directories("") == []
    store.put("p/a", b"again")
    assert store.read("p/a") == b"again"


# Elsewhere


def test_a_spec_opens_the_same_place(store: Storage) -> None:
    store.put("p/a", b"1")
    again = open_storage(store.spec)
    assert again.read("p/a") == b"1"
    assert again.spec == store.spec
    assert open_storage(store.spec) is again


def test_one_store_serves_many_threads(store: Storage) -> None:
    def work(me: int) -> list[str]:
        for turn in range(5):
            store.put(f"t{me}/{turn}", f"{me}-{turn}".encode())
            assert store.read(f"t{me}/{turn}") == f"{me}-{turn}".encode()
        return [info.path for info in store.list_files(f"t{me}")]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(8)))
    assert found == [[f"t{me}/{turn}" for turn in range(5)] for me in range(8)]


# Scopes

CHANGES = {
    "put": lambda store: store.put("a", b"2", scope="work/1"),
    "put_if_absent": lambda store: store.put_if_absent("new/b", b"2", scope="work/1"),
    "replace": lambda store: store.replace("a", b"2", version=store.read_versioned("a").version, scope="work/1"),
    "delete": lambda store: store.delete("a", scope="work/1"),
    "delete_many": lambda store: store.delete_many(["a"], scope="work/1"),
    "delete_tree": lambda store: store.delete_tree("tree", scope="work/1"),
    "take_scope": lambda store: store.take_scope("other", "1", scope="work/1"),
    "fence": lambda store: store.fence("work/2", scope="work/1"),
}


def contents(store: Storage) -> dict[str, bytes]:
    return {info.path: store.read(info.path) for info in store.walk("")}


@pytest.mark.parametrize("change", CHANGES)
def test_an_open_scope_lets_every_change_through(store: Storage, change: str) -> None:
    store.put("a", b"1")
    store.put("tree/c", b"1")
    store.take_scope("work", "1", "2")
    before = contents(store)
    CHANGES[change](store)
    assert (contents(store) == before) == (change in ("take_scope", "fence"))


@pytest.mark.parametrize("change", CHANGES)
def test_a_fenced_scope_changes_nothing_where_the_store_has_scopes(store: Storage, change: str) -> None:
    store.put("a", b"1")
    store.put("tree/c", b"1")
    store.take_scope("work", "1", "2")
    store.fence("work/1")
    before = contents(store)
    if not store.has_scopes:
        CHANGES[change](store)
        return
    with pytest.raises(FencedError):
        CHANGES[change](store)
    assert contents(store) == before
    store.put("a", b"3", scope="work/2")
    assert store.read("a") == b"3"


def test_an_output_whose_scope_is_fenced_before_it_is_closed_publishes_nothing(open_store: Opener) -> None:
    store, other = open_store(), open_store()
    store.take_scope("work", "1")

    def write() -> None:
        with store.open_output("dir/a", scope="work/1") as sink:
            sink.write(b"late")
            other.fence("work")

    if not store.has_scopes:
        write()
        assert store.read("dir/a") == b"late"
        return
    with pytest.raises(FencedError):
        write()
    assert names_below(store) == []


def test_taking_a_scope_fences_all_others_of_its_group(open_store: Opener) -> None:
    store, other = open_store(), open_store()
    store.take_scope("work", "1")
    store.take_scope("elsewhere", "1")
    other.take_scope("work", "2", "3")
    for scope in ("work/2", "work/3", "elsewhere/1"):
        store.put("a", scope.encode(), scope=scope)
        assert store.read("a") == scope.encode()
    if store.has_scopes:
        with pytest.raises(FencedError):
            store.put("a", b"late", scope="work/1")
        assert store.read("a") == b"elsewhere/1"


def test_who_takes_a_scope_too_late_fences_nobody(open_store: Opener) -> None:
    store, other = open_store(), open_store()
    other.take_scope("work", "2")

    def look() -> None:
        raise FencedError("another process has taken the lock over")

    with pytest.raises(FencedError, match="taken the lock over"):
        store.take_scope("work", "1", look=look)
    other.put("a", b"1", scope="work/2")
    assert other.read("a") == b"1"
    if store.has_scopes:
        with pytest.raises(FencedError):
            store.put("a", b"late", scope="work/1")


def test_a_scope_that_nobody_opened_gives_no_right(store: Storage) -> None:
    if not store.has_scopes:
        assert store.put_if_absent("a", b"1", scope="work/1")
        return
    with pytest.raises(FencedError):
        store.put("a", b"1", scope="work/1")
    assert store.stat("a") is None


def test_scopes_are_in_no_listing(store: Storage) -> None:
    store.take_scope("work", "1")
    assert list(store.walk("")) == []
