"""Writers of Java and ours on one table at the same time, in the modes that Java has: what both wrote, both read.

Where one of our writes is interrupted, its files and markers are there and its commit is not: Java acts in between.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import ConflictError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import open_storage
from tablekeeper.table.writer_options import load_writer_options
from tests.support.java_hudi import JavaTable, rust_read
from tests.support.meanwhile import Interrupted, tasks_have_ended
from tests.support.table_builder import TRIPS, rows_of, trips

__all__: list[str] = []

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
NON_BLOCKING = {**BUCKETS, "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
EARLY = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}
LOCK = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "300",
    "hoodie.write.lock.client.num_retries": "400",
    "hoodie.clean.failed.writes.policy": "LAZY",
}
METADATA = "hoodie.metadata.enable"


class Peers:
    """One table, as we and as Java have it."""

    def __init__(self, spark: Any, path: Path, options: dict[str, str], *, ordering: str | None = "ts") -> None:
        self.ours = tk.Table.create(
            str(path),
            name="trips",
            schema=TRIPS,
            key="id",
            partition_by="city",
            ordering=ordering,
            table_type="mor",
            engine="local",
            options=options,
        )
        described = JavaTable.options_for(
            name="trips", key=["id"], partition_by=["city"], ordering=ordering, table_type="mor", extra=options
        )
        self.java = JavaTable(spark, str(path), {**described, **LOCK})

    def interrupted(self, action: Callable[[], object]) -> tk.Table:
        """Our table, on which the next write is interrupted by `action` before its commit."""
        storage = Interrupted(open_storage(self.ours.path))
        storage.when, storage.action = tasks_have_ended, action
        options = load_writer_options(storage)
        return tk.Table(storage, LocalEngine(threads=1), options, runtime=SYSTEM_RUNTIME)

    def check(self, *expected: tuple[Any, ...]) -> None:
        """We and Java read these (id, ts, fare); nothing is left to repair."""
        assert rows_of(self.ours.read(), "id", "ts", "fare") == sorted(expected), "tablekeeper"
        assert rows_of(self.java.read(), "id", "ts", "fare") == sorted(expected), "java"

    def check_rust(self, *expected: tuple[Any, ...]) -> None:
        assert rows_of(rust_read(self.java.path), "id", "ts", "fare") == sorted(expected), "hudi-rs"


@pytest.fixture
def peers(spark: Any, tmp_path: Path) -> Peers:
    return Peers(spark, tmp_path / "t", NON_BLOCKING)


def file_ids(table: tk.Table) -> set[str]:
    return {str(s.group) for s in table.files()}


def test_java_and_we_give_a_new_bucket_the_same_file_group_and_read_each_others_logs(peers: Peers) -> None:
    peers.ours.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "sf", 1, 1.0)))
    ours = file_ids(peers.ours)
    peers.java.write(
        trips(("a", "sf", 2, 2.0), ("d", "sf", 1, 1.0), ("e", "la", 1, 1.0), ("f", "la", 1, 1.0)), "upsert"
    )
    assert {group for group in file_ids(peers.ours) if group.startswith("sf/")} == ours
    assert all(group.endswith("-0000-0000-0000-000000000000-0") for group in file_ids(peers.ours))
    peers.ours.upsert(trips(("e", "la", 2, 2.0), ("a", "sf", 1, 9.0)))
    peers.ours.delete(trips(("b", "sf")))
    peers.java.write(trips(("c", "sf", 0, 0.0)), "delete")
    peers.check(("a", 2, 2.0), ("d", 1, 1.0), ("e", 2, 2.0), ("f", 1, 1.0))


@pytest.mark.parametrize("metadata", ["true", "false"])
@pytest.mark.parametrize("ordering", ["ts", None], ids=["event_time", "commit_time"])
def test_writers_that_overlap_never_conflict_and_the_order_is_the_same_for_java_and_us(
    spark: Any, tmp_path: Path, ordering: str | None, metadata: str
) -> None:
    peers = Peers(spark, tmp_path / "t", {**NON_BLOCKING, METADATA: metadata}, ordering=ordering)
    ours = peers.interrupted(lambda: peers.java.write(trips(("a", "sf", 5, 5.0), ("b", "sf", 5, 5.0)), "upsert"))
    ours.upsert(trips(("a", "sf", 5, 1.0), ("b", "sf", 7, 1.0), ("c", "sf", 1, 1.0)))
    assert len(file_ids(peers.ours)) == 2
    # Java began later: it wins where the ordering value does not say otherwise.
    later = ("b", 7, 1.0) if ordering else ("b", 5, 5.0)
    peers.check(("a", 5, 5.0), later, ("c", 1, 1.0))
    if metadata == "false":
        # With a metadata table hudi-rs does not find file groups that have no base file.
        peers.check_rust(("a", 5, 5.0), later, ("c", 1, 1.0))


def test_a_delete_reaches_a_row_that_java_is_bringing_into_a_new_bucket(peers: Peers) -> None:
    """Our delete begins after the other write of ours, finds no bucket yet, and Java reads its log all the same."""
    ours = peers.interrupted(lambda: peers.ours.delete(trips(("a", "sf"), ("x", "ny"))))
    ours.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    peers.java.write(trips(("c", "sf", 1, 1.0)), "upsert")
    peers.check(("b", 1, 1.0), ("c", 1, 1.0))


def test_java_finds_the_file_group_under_which_a_bucket_goes_on_after_its_deletion(peers: Peers) -> None:
    peers.ours.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("k", "la", 1, 1.0)))
    peers.ours.delete_partitions(["sf"])
    peers.ours.upsert(trips(("a", "sf", 2, 2.0), ("b", "sf", 2, 2.0)))
    peers.java.write(trips(("a", "sf", 3, 3.0)), "upsert")
    assert {group[-2:] for group in file_ids(peers.ours) if group.startswith("sf/")} == {"-1"}
    peers.check(("a", 3, 3.0), ("b", 2, 2.0), ("k", 1, 1.0))


def test_a_compaction_by_java_keeps_what_we_commit_after_it_was_scheduled(peers: Peers) -> None:
    peers.ours.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    peers.java.write(trips(("a", "sf", 2, 2.0)), "upsert")
    peers.interrupted(peers.java.schedule_compaction).upsert(trips(("a", "sf", 3, 3.0), ("c", "sf", 1, 1.0)))
    ours = peers.interrupted(peers.java.run_compaction)
    ours.upsert(trips(("b", "sf", 3, 3.0), ("d", "sf", 1, 1.0)))
    expected = [("a", 3, 3.0), ("b", 3, 3.0), ("c", 1, 1.0), ("d", 1, 1.0)]
    assert all(s.base is not None and s.logs for s in peers.ours.files())
    peers.check(*expected)
    peers.check_rust(*expected)


@pytest.mark.parametrize("makes_rows", ["false", "true"])
def test_a_bulk_insert_of_java_meanwhile_doubles_no_row(peers: Peers, makes_rows: str) -> None:
    """Java's writer of Spark rows makes up file ids in this mode as well: two groups for one bucket are a conflict."""
    rows = trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0))
    by_rows = {"hoodie__datasource__write__row__writer__enable": makes_rows}
    ours = peers.interrupted(lambda: peers.java.write(rows, "bulk_insert", **by_rows))
    mine = trips(("a", "sf", 2, 2.0), ("c", "sf", 1, 1.0))
    if makes_rows == "true":
        with pytest.raises(ConflictError):
            ours.upsert(mine)
        ours.upsert(mine)
    else:
        ours.upsert(mine)
        assert all(group.endswith("-0000-0000-0000-000000000000-0") for group in file_ids(peers.ours))
    assert {s.base is not None for s in peers.ours.files()} == {True}
    peers.check(("a", 2, 2.0), ("b", 1, 1.0), ("c", 1, 1.0))


def test_writers_of_both_that_run_at_the_same_time_all_succeed(peers: Peers) -> None:
    def of_java(writer: int) -> None:
        for number in range(2):
            rows = [(f"k{key}", "sf", 10 * number + writer, float(writer)) for key in range(6)]
            peers.java.write(trips(*rows), "upsert")

    peers.java.write(trips(("k0", "sf", -1, 0.0)), "upsert")
    written = 0
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(of_java, writer) for writer in (1, 2)]
        while not all(writer.done() for writer in writers):
            peers.ours.upsert(trips(*((f"k{key}", "sf", 10 * (written % 2) + 3, 3.0) for key in range(4, 8))))
            written += 1
            SYSTEM_RUNTIME.clock.sleep(0.3)
        for writer in writers:
            writer.result()
    assert written > 1
    peers.check(*((f"k{key}", 12, 2.0) for key in range(4)), *((f"k{key}", 13, 3.0) for key in range(4, 8)))
    assert peers.ours.doctor().is_healthy


def test_java_gives_way_early_to_a_write_of_ours(spark: Any, tmp_path: Path) -> None:
    peers = Peers(spark, tmp_path / "t", {**BUCKETS, **EARLY})
    peers.ours.upsert(trips(("a", "sf", 1, 1.0)))
    told: list[str] = []

    def lose() -> None:
        mode = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL", **EARLY}
        java = JavaTable(spark, peers.java.path, {**peers.java.options, **mode})
        with pytest.raises(Exception, match="EarlyConflict") as caught:
            java.write(trips(("a", "sf", 3, 3.0)), "upsert")
        told.append(str(caught.value))

    peers.interrupted(lose).upsert(trips(("a", "sf", 2, 2.0)))
    assert len(told) == 1
    peers.check(("a", 2, 2.0))
