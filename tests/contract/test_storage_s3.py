"""The S3 store when answers get lost, and what it costs in requests. Against moto's application."""

from __future__ import annotations

import os
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tablekeeper.errors import InvalidRequestError, StorageError
from tablekeeper.storage import open_storage
from tablekeeper.storage.object_store import ObjectStorage
from tests.support.fake_runtime import FakeClock, fake_runtime
from tests.support.moto_server import MotoServer, moto_server


@pytest.fixture(scope="module")
def running() -> Iterator[MotoServer]:
    with moto_server() as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture
def server(running: MotoServer) -> MotoServer:
    running.faults.clear()
    running.requests.clear()
    return running


@pytest.fixture
def store_and_clock(server: MotoServer) -> tuple[ObjectStorage, FakeClock]:
    runtime, clock = fake_runtime()
    return ObjectStorage(f"s3://lake/{uuid4()}", options=server.options, runtime=runtime), clock


@pytest.fixture
def store(store_and_clock: tuple[ObjectStorage, FakeClock]) -> ObjectStorage:
    return store_and_clock[0]


LOST_ANSWERS = pytest.mark.parametrize("status", [0, 500, 503])
"""A connection that is cut, and two answers that do not say whether the request was executed."""


# Conditional puts in doubt


@LOST_ANSWERS
def test_a_creation_whose_answer_got_lost_is_known_as_won(
    server: MotoServer, store: ObjectStorage, status: int
) -> None:
    server.fail("PUT", "/a", after=True, status=status)
    assert store.put_if_absent("a", b"") is True
    assert store.put_if_absent("a", b"") is False


@LOST_ANSWERS
def test_a_creation_that_was_not_carried_out_is_tried_again(
    server: MotoServer, store_and_clock: tuple[ObjectStorage, FakeClock], status: int
) -> None:
    store, clock = store_and_clock
    server.fail("PUT", "/a", status=status, times=2)
    assert store.put_if_absent("a", b"mine") is True
    assert store.read("a") == b"mine"
    assert clock.slept_s == [0.05, 0.1]


def test_a_creation_in_doubt_is_lost_if_someone_else_was_first_even_with_the_same_bytes(
    server: MotoServer, store: ObjectStorage
) -> None:
    other = ObjectStorage(store.spec.uri, options=store.spec.options)
    assert other.put_if_absent("a", b"same")
    server.fail("PUT", "/a", status=503)
    assert store.put_if_absent("a", b"same") is False


def test_a_creation_whose_answers_all_get_lost_is_settled_by_looking(server: MotoServer, store: ObjectStorage) -> None:
    server.fail("PUT", "/a", after=True, status=500, times=100)
    assert store.put_if_absent("a", b"x") is True


def test_a_creation_that_never_succeeds_ends_with_an_open_outcome_after_bounded_tries(
    server: MotoServer, store_and_clock: tuple[ObjectStorage, FakeClock]
) -> None:
    store, clock = store_and_clock
    server.fail("PUT", "/a", status=503, times=100)
    with pytest.raises(StorageError, match="answered 503") as caught:
        store.put_if_absent("a", b"x")
    assert caught.value.transient
    assert server.requests.count(f"PUT /{store.spec.uri.removeprefix('s3://')}/a") == 6
    assert sum(clock.slept_s) < 10


@LOST_ANSWERS
def test_a_replacement_whose_answer_got_lost_is_known_as_won(
    server: MotoServer, store: ObjectStorage, status: int
) -> None:
    store.put("lock", b"0")
    seen = store.read_versioned("lock")
    assert seen is not None
    server.fail("PUT", "/lock", after=True, status=status)
    version = store.replace("lock", b"1", version=seen.version)
    now = store.read_versioned("lock")
    assert now is not None
    assert (now.data, now.version) == (b"1", version)


def test_a_replacement_in_doubt_is_lost_if_someone_else_was_first(server: MotoServer, store: ObjectStorage) -> None:
    store.put("lock", b"0")
    seen = store.read_versioned("lock")
    assert seen is not None
    other = ObjectStorage(store.spec.uri, options=store.spec.options)
    assert other.replace("lock", b"other", version=seen.version)
    server.fail("PUT", "/lock", status=503)
    assert store.replace("lock", b"mine", version=seen.version) is None
    assert store.read("lock") == b"other"


def test_a_replacement_that_never_succeeds_ends_with_an_open_outcome(server: MotoServer, store: ObjectStorage) -> None:
    store.put("lock", b"0")
    seen = store.read_versioned("lock")
    assert seen is not None
    server.fail("PUT", "/lock", status=503, times=100)
    with pytest.raises(StorageError) as caught:
        store.replace("lock", b"1", version=seen.version)
    assert caught.value.transient
    assert store.read("lock") == b"0"


# Plain requests in trouble


def test_reads_and_puts_are_tried_again_while_the_store_is_at_fault(server: MotoServer, store: ObjectStorage) -> None:
    server.fail("PUT", "/a", status=503, times=3)
    store.put("a", b"abc")
    server.fail("GET", "/a", status=500, times=2)
    assert store.read("a") == b"abc"
    server.fail("GET", "/a", status=0, times=2)
    assert store.read_range("a", start=1, length=1) == b"b"
    server.fail("HEAD", "/a", status=503, times=2)
    facts = store.stat("a")
    assert facts is not None
    assert facts.size == 3


def test_a_fault_that_stays_is_raised_after_bounded_tries(server: MotoServer, store: ObjectStorage) -> None:
    store.put("a", b"abc")
    server.fail("GET", "/a", status=500, times=100)
    with pytest.raises(StorageError, match=r"/a: cannot read: the store answered 500"):
        store.read("a")
    assert server.faults[0].times == 94


def test_refused_access_is_raised_at_once(server: MotoServer, store: ObjectStorage) -> None:
    server.fail("GET", "/a", status=403, times=100)
    with pytest.raises(StorageError, match=r"access denied\. Check the credentials"):
        store.read("a")
    assert server.faults[0].times == 99


def test_a_missing_bucket_is_named_in_the_error(server: MotoServer) -> None:
    store = ObjectStorage("s3://no-such-bucket/t", options=server.options)
    with pytest.raises(StorageError, match="the bucket does not exist"):
        store.put("a", b"")
    with pytest.raises(StorageError, match="the bucket does not exist"):
        store.put_if_absent("a", b"")
    with pytest.raises(StorageError, match="the bucket does not exist"):
        store.list_files("")
    with pytest.raises(StorageError, match="the bucket does not exist"):
        list(store.walk(""))


def test_a_plain_endpoint_needs_to_be_allowed(server: MotoServer) -> None:
    options = {name: value for name, value in server.options.items() if name != "allow_http"}
    store = ObjectStorage("s3://lake/t", options=options)
    with pytest.raises(StorageError, match="allow_http=true"):
        store.read("a")


def test_an_unreachable_endpoint_is_reported_after_bounded_tries(server: MotoServer) -> None:
    runtime, clock = fake_runtime()
    options = {**server.options, "endpoint": "http://127.0.0.1:9"}
    store = ObjectStorage("s3://lake/t", options=options, runtime=runtime)
    with pytest.raises(StorageError, match="cannot be reached") as caught:
        store.read("a")
    assert caught.value.transient
    assert len(clock.slept_s) == 5


def test_a_name_that_object_stores_do_not_allow_is_refused(store: ObjectStorage) -> None:
    with pytest.raises(InvalidRequestError, match="Use a name that object stores allow"):
        store.put("tab\tname", b"")


def test_options_come_in_any_case_and_from_the_environment(
    server: MotoServer, store: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"1")
    shouted = {f"AWS_{name.removeprefix('aws_').upper()}": value for name, value in server.options.items()}
    assert open_storage(store.spec.uri, options=shouted).read("a") == b"1"
    for name, value in shouted.items():
        monkeypatch.setenv(name, value)
    assert open_storage(store.spec.uri).read("a") == b"1"


# Outputs


def test_an_abandoned_output_leaves_no_parts_behind(server: MotoServer, store: ObjectStorage) -> None:
    def fill() -> None:
        with store.open_output("big") as sink:
            sink.write(b"x" * 20_000_000)
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fill()
    prefix = store.spec.uri.removeprefix("s3://lake/")
    uploads = server.client.list_multipart_uploads(Bucket="lake").get("Uploads", [])
    assert [upload for upload in uploads if upload["Key"].startswith(prefix)] == []


def test_an_output_whose_upload_fails_is_reported_and_publishes_nothing(
    server: MotoServer, store: ObjectStorage
) -> None:
    server.fail("POST", "/big", status=403, times=1)

    def fill() -> None:
        with store.open_output("big") as sink:
            sink.write(b"x" * 20_000_000)

    with pytest.raises(StorageError, match="big: cannot write"):
        fill()
    assert store.stat("big") is None


def test_a_small_output_is_one_request(server: MotoServer, store: ObjectStorage) -> None:
    with store.open_output("small") as sink:
        sink.write(b"x" * 1000)
        sink.write(b"y" * 1000)
    assert [request.split()[0] for request in server.requests] == ["PUT"]
    assert store.read("small") == b"x" * 1000 + b"y" * 1000


# What reading costs


def test_a_parquet_footer_is_read_with_one_request(server: MotoServer, store: ObjectStorage) -> None:
    write_table(store, rows=300_000, columns=8)
    server.requests.clear()
    with store.open_input("t.parquet") as source:
        assert pq.ParquetFile(source).metadata.num_rows == 300_000
    assert [request.split()[0] for request in server.requests] == ["GET"]


def test_a_whole_file_is_read_with_few_requests(server: MotoServer, store: ObjectStorage) -> None:
    size = write_table(store, rows=300_000, columns=8)
    server.requests.clear()
    with store.open_input("t.parquet") as source:
        assert pq.read_table(source).num_rows == 300_000
    assert size > 15_000_000
    assert len(server.requests) <= 8


def test_reading_in_small_steps_fetches_large_pieces(server: MotoServer, store: ObjectStorage) -> None:
    store.put("log", os.urandom(10_000_000))
    server.requests.clear()
    with store.open_input("log") as source:
        total = sum(len(piece) for piece in iter(lambda: source.read(4096), b""))
    assert total == 10_000_000
    assert len(server.requests) <= 8


def test_directory_marks_of_other_programs_are_no_files(server: MotoServer, store: ObjectStorage) -> None:
    prefix = store.spec.uri.removeprefix("s3://lake/")
    for key in ("p/", "p/q/", "p/q/data", "p/empty"):
        server.client.put_object(Bucket="lake", Key=f"{prefix}/{key}", Body=b"")
    assert [info.path for info in store.list_files("p")] == ["p/empty"]
    assert [info.path for info in store.list_files("p/q")] == ["p/q/data"]
    assert store.list_directories("p") == ["q"]
    assert [info.path for info in store.walk("")] == ["p/empty", "p/q/data"]
    assert [info.path for info in store.walk("p/q")] == ["p/q/data"]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_is_told_to_use_spawn_instead_of_hanging(store: ObjectStorage) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.read("a")
        except InvalidRequestError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        assert b"`spawn`" in answer.read()
    os.waitpid(child, 0)


def write_table(store: ObjectStorage, *, rows: int, columns: int) -> int:
    noise = pa.array(memoryview(os.urandom(8 * rows)).cast("d"), type=pa.float64())
    with store.open_output("t.parquet") as sink:
        pq.write_table(pa.table({f"c{n}": noise for n in range(columns)}), sink, row_group_size=rows // 4)
    facts = store.stat("t.parquet")
    assert facts is not None
    return facts.size
