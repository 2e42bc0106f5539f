"""The cost of a call follows its work: one partition of two thousand is listed and read, and no other is touched.

Every call to the store is counted. What is asked of the timeline and of the table's properties is counted too:
an upsert loads the timeline once to check the rows, and twice inside the transaction (when it begins, when it
commits). Planning asks as much of a table with many partitions as of one with few, if as many were touched.

On an object store the time is in the calls in a row. What does not depend on each other is asked for at once, and
every look that guards a change stays where it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.concurrency_settings import LockProvider
from tablekeeper.config.table_config import TableConfig
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.metadata_table.listing import MetadataTable
from tablekeeper.model import (
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Operation,
    RequestedTime,
    WriteStat,
)
from tablekeeper.storage import Storage
from tablekeeper.timeline import complete_instant, create_requested, format_time, start_inflight
from tests.support.chained_calls import Chain, ChainedStorage
from tests.support.fake_runtime import FakeClock
from tests.support.step_faults import one_thread_runtime
from tests.support.storage_wrappers import CountingStorage
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips
from tests.support.wide_table import WideTable, make_wide_table

PARTITIONS = 2_000
HOME = "p00077"


@pytest.fixture(scope="module")
def tables() -> Iterator[TableBuilder]:
    builder = TableBuilder()
    yield builder
    builder.forget()


@pytest.fixture(scope="module", params=["cow", "mor"])
def counted(request: pytest.FixtureRequest, tables: TableBuilder) -> tuple[tk.Table, CountingStorage]:
    """A table with one row in each of two thousand partitions, on a store that counts."""
    options = {"hoodie.bloom.index.write": "false"}
    table = tables.create(table_type=request.param, options=options)
    numbers = np.arange(PARTITIONS)
    rows = pa.table(
        {
            "id": [f"k{n}" for n in numbers],
            "city": [f"p{n:05d}" for n in numbers],
            "ts": np.ones(PARTITIONS, np.int64),
            "fare": numbers.astype(float),
        },
        schema=TRIPS,
    )
    assert table.bulk_insert(rows).rows_inserted == PARTITIONS
    store = CountingStorage(tables.storage(table))
    return tables.through(table, store), store


@pytest.fixture
def table(counted: tuple[tk.Table, CountingStorage]) -> tk.Table:
    return counted[0]


@pytest.fixture
def store(counted: tuple[tk.Table, CountingStorage]) -> CountingStorage:
    counted[1].reset()
    return counted[1]


def touched(store: CountingStorage) -> set[str]:
    """Partitions whose directory or files were asked for in any way."""
    return {path.split("/")[0] for _, path in store.calls if path and not path.startswith(".hoodie")}


def timeline_loads(store: CountingStorage) -> int:
    return sum(call == ("list_files", ".hoodie/timeline") for call in store.calls)


@pytest.mark.parametrize("operation", ["upsert", "insert", "delete", "insert_overwrite", "bulk_insert"])
def test_a_write_to_one_partition_touches_that_partition_only(
    table: tk.Table, store: CountingStorage, operation: str
) -> None:
    write = getattr(table, operation)
    write(trips(("k77", HOME, 2, 2.0), ("new", HOME, 2, 2.0)))
    assert touched(store) == {HOME}
    assert len(store.calls) <= 40, store.counts
    # One to see whether the rows fit, one for the newest time, and the two loads of the transaction.
    assert timeline_loads(store) == 4
    assert store.counts["list_files"] <= 7


def test_deleting_one_partition_touches_that_partition_only(table: tk.Table, store: CountingStorage) -> None:
    table.delete_partitions(["p00099"])
    assert touched(store) <= {"p00099"}
    assert len(store.calls) <= 25, store.counts


@pytest.mark.parametrize("where", ["city = 'p00123'", "city in ('p00123', 'nowhere')", "city like 'p00123%'"])
def test_a_read_of_one_partition_lists_and_reads_that_partition_only(
    table: tk.Table, store: CountingStorage, where: str
) -> None:
    assert rows_of(table.read(where=where)) == [("k123", "p00123", 1, 123.0)]
    assert touched(store) == {"p00123"}
    assert len(store.calls) <= 15, store.counts
    assert timeline_loads(store) == 1


def test_changes_of_one_partition_read_its_files_only(table: tk.Table, store: CountingStorage) -> None:
    assert rows_of(table.changes(where="city = 'p00124'"), "id") == [("k124",)]
    assert touched(store) == {"p00124"}
    assert store.counts["list_files"] <= 2


def test_the_files_of_one_partition_are_listed_at_one_stroke(table: tk.Table, store: CountingStorage) -> None:
    assert len(table.files(partitions=["p00125"])) == 1
    assert touched(store) == {"p00125"}


def test_a_read_of_everything_lists_each_partition_once(table: tk.Table, store: CountingStorage) -> None:
    slices = table.files()
    assert len(slices) >= PARTITIONS - 10
    assert store.counts["list_files"] <= PARTITIONS + 5
    assert store.counts["list_directories"] == 1
    assert store.counts["open_input"] == 0


def _planned_table(tables: TableBuilder, *, partitions: int, metadata: bool) -> WideTable:
    """A table of so many partitions with a plan of every service behind it, since which ten partitions were touched."""
    wide = make_wide_table(tables.new_place(), spread=partitions // 10)
    wide.touch()
    wide.run_services()
    wide.widen(partitions, metadata=metadata)
    wide.touch()
    return wide


def _calls_of_planning(wide: WideTable) -> dict[str, Counter[str]]:
    """Storage calls by kind, for each service. What is scheduled is executed before the next one is planned."""
    table = wide.table
    spent: dict[str, Counter[str]] = {}

    def count(service: str, call: Callable[[], Any]) -> Any:
        wide.store.reset()
        result = call()
        spent[service] = wide.store.counts
        assert touched(wide.store) <= set(wide.lived_in)
        return result

    for service in ("log_compaction", "compaction", "clustering"):
        plan = count(service, getattr(table, f"schedule_{service}"))
        assert plan.partitions == wide.lived_in
        assert len(count(f"plans after {service}", table.plans).plans) == 1
        table.execute(plan)
    wide.touch()
    count("explain_clean", lambda: table.explain_clean(keep_commits=1))
    assert count("clean", lambda: table.clean(keep_commits=1)) is not None
    return spent


@pytest.mark.parametrize("metadata", [False, True], ids=["listing", "metadata table"])
def test_planning_makes_as_many_storage_calls_for_many_partitions_as_for_few(
    metadata: bool, tables: TableBuilder
) -> None:
    few = _calls_of_planning(_planned_table(tables, partitions=100, metadata=metadata))
    many = _calls_of_planning(_planned_table(tables, partitions=2_000, metadata=metadata))
    assert many == few
    assert max(calls.total() for service, calls in many.items() if service != "clean") <= 60


def _commit_elsewhere(storage: Storage, config: TableConfig, number: int, *, since_ms: int) -> None:
    """Put so many commits to another partition on the timeline."""
    for at in range(number):
        time = format_time(since_ms + at, zone="UTC")
        stat = WriteStat(FileGroupId("elsewhere", "f-0"), f"elsewhere/f-0_0-0-0_{time}.parquet", 1)
        content = encode_commit_metadata(CommitMetadata(Operation.UPSERT, stats=(stat,)))
        requested = create_requested(storage, config, requested_at=RequestedTime(time), action=Action.DELTA_COMMIT)
        inflight = start_inflight(storage, config, requested)
        complete_instant(storage, config, inflight, completed_at=CompletionTime(time), content=content)


def test_a_plan_asks_for_the_commits_of_its_files_and_no_others() -> None:
    """Also if there are many others since the oldest of its files was written."""
    spent = []
    for number in (1, 1_000):
        clock = FakeClock(1_710_000_000_000)
        tables = TableBuilder(runtime=one_thread_runtime(clock, process=number), threads=1)
        table = tables.create(table_type="mor", options={"hoodie.bloom.index.write": "false"})
        for time in (1, 2, 3):
            if time == 2:
                _commit_elsewhere(tables.storage(table), table.config, number, since_ms=clock.now_ms() + 1_000)
                clock.advance(10)
            table.upsert(trips(*((f"k{n}", f"p{n}", time, 1.0) for n in range(20))))
        plan = table.schedule_compaction(partitions="city = 'p7'")
        store = CountingStorage(tables.storage(table))
        assert tables.through(table, store).execute(plan).outcome == "completed"
        assert touched(store) == {"p7"}
        spent.append(store.counts)
        tables.forget()
    assert spent[0] == spent[1]


def test_a_clean_does_not_read_the_list_of_all_partitions(
    tables: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = _planned_table(tables, partitions=100, metadata=True)

    def refuse(_: MetadataTable) -> list[str]:
        raise AssertionError("all partitions were asked for")

    monkeypatch.setattr(MetadataTable, "partitions", refuse)
    assert wide.table.explain_clean(keep_commits=1).partitions == wide.lived_in


@dataclass(frozen=True)
class _Remote:
    """A table on a store where a call takes long, with the lock of object stores, and who counts calls in a row."""

    table: tk.Table
    chain: Chain

    def spent(self, call: Callable[[], Any]) -> int:
        """Calls in a row."""
        self.chain.reset()
        assert call() is not None
        return self.chain.depth


@pytest.fixture
def remote(tables: TableBuilder) -> _Remote:
    """Two partitions of five rows each, and twenty logs on each of the two slices."""
    table = tables.create(table_type="mor", options={"hoodie.bloom.index.write": "false"})
    for time in range(21):
        table.upsert(_ten_rows(time))
    chain = Chain()
    storage = ChainedStorage(tables.storage(table), chain)
    options = {"hoodie.write.lock.provider": LockProvider.STORAGE_BASED.value}
    remote = _Remote(tables.through(table, storage, runtime=chain.runtime, options=options), chain)
    # The first writer makes the object of the lock, and all others find it.
    remote.table.delete(trips(("nobody", "p0")))
    return remote


def _ten_rows(time: int) -> pa.Table:
    return trips(*((f"k{n}", f"p{n % 2}", time, 1.0) for n in range(10)))


def test_a_small_upsert_is_22_calls_in_a_row_and_holds_the_lock_for_5(remote: _Remote) -> None:
    assert remote.spent(lambda: remote.table.upsert(_ten_rows(22))) <= 22, str(remote.chain)
    *_, acquired, given_back = remote.chain.depths("replace", "table_lock.json")
    assert given_back - acquired <= 5, str(remote.chain)


def test_an_insert_is_as_many_calls_in_a_row_as_an_upsert(remote: _Remote) -> None:
    assert remote.spent(lambda: remote.table.insert(_ten_rows(22))) <= 22, str(remote.chain)


def test_a_read_of_twenty_logs_a_slice_is_10_calls_in_a_row(remote: _Remote) -> None:
    assert remote.spent(remote.table.read) <= 10, str(remote.chain)
    assert len(remote.chain.calls) > 40


def test_a_compaction_of_twenty_logs_a_slice_is_35_calls_in_a_row(remote: _Remote) -> None:
    assert remote.spent(remote.table.compact) <= 35, str(remote.chain)
