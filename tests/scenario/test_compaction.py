"""Compaction and log compaction from end to end: rows and their history stay what they were, and writers go on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.config.write_settings import LogBlockFormat
from tablekeeper.engine.spark import SparkEngine
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.bloom import might_contain
from tablekeeper.format.data_files import decode_footer
from tablekeeper.format.log_blocks import BlockType, HeaderKey, decode_blocks
from tablekeeper.format.log_deletes import decode_deletes
from tablekeeper.model import Action, CommitMetadata, Operation, RequestedTime
from tablekeeper.snapshot.snapshot import Snapshot, load_snapshot
from tablekeeper.storage import Storage
from tablekeeper.timeline import load_commit_metadata, load_timeline
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips
from tests.support.table_services import compact, compact_logs, compaction, execute, log_compaction, schedule

META = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]
SHARED_BUCKETS = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
}
TOMBSTONES = pa.schema([*TRIPS, ("_hoodie_is_deleted", pa.bool_())])


@pytest.fixture(params=["parquet", "avro"])
def logs(request: pytest.FixtureRequest) -> dict[str, str]:
    """Both kinds of log blocks."""
    return {"hoodie.logfile.data.block.format": LogBlockFormat(request.param).value}


def snapshot(tables: TableBuilder, table: tk.Table) -> Snapshot:
    storage = tables.storage(table)
    return load_snapshot(
        storage, table.config, load_timeline(storage, table.config), runtime=tables.runtime, partitions=None
    )


def metadata_of(tables: TableBuilder, table: tk.Table, instant: RequestedTime) -> CommitMetadata:
    storage = tables.storage(table)
    found = load_timeline(storage, table.config).find(instant)
    assert found is not None
    return load_commit_metadata(storage, table.config, found)


def everything(table: tk.Table) -> list[tuple[Any, ...]]:
    """All rows with the meta columns that a service has to keep."""
    return rows_of(table.read(meta_columns=True), *META, *table.schema.names)


def busy_table(tables: TableBuilder, **options: str) -> tk.Table:
    """Base files, updates, deletes by key and by row, and new rows in two partitions."""
    table = tables.create(table_type="mor", schema=TOMBSTONES, options=options)
    table.insert(trips(*[(f"k{n}", "sf" if n % 2 else "la", 10, float(n)) for n in range(40)], schema=TOMBSTONES))
    table.upsert(trips(*[(f"k{n}", "sf" if n % 2 else "la", 20, -1.0) for n in range(0, 40, 3)], schema=TOMBSTONES))
    table.delete(trips(("k1", "sf"), ("k2", "la")))
    table.upsert(
        trips(
            ("k3", "sf", 30, 3.5, False),
            ("k5", "sf", 5, 0.0, False),  # late: a newer version is there
            ("k7", "sf", 30, 0.0, True),
            ("new", "sf", 30, 7.0, False),
            schema=TOMBSTONES,
        )
    )
    return table


def test_a_compacted_table_has_the_same_rows_with_their_commit_times(
    tables: TableBuilder, logs: dict[str, str]
) -> None:
    table = busy_table(tables, **logs)
    before, changed = everything(table), rows_of(table.changes(since=None))
    result = compact(table)
    assert everything(table) == before
    assert rows_of(table.read(mode="read_optimized")) == rows_of(table.read())
    slices = snapshot(tables, table).latest
    assert all(not each.logs for each in slices)
    # The new row lies in a file group of its own, which had no logs.
    assert (result.file_groups, result.rows) == (2, len(before) - 1)
    assert rows_of(table.changes(since=None)) == changed
    names = set(table.read(meta_columns=True).column("_hoodie_file_name").to_pylist())
    assert names == {each.base.name for each in slices if each.base is not None}
    assert set(result.files) < {each.base.path for each in slices if each.base is not None}


def test_the_past_of_a_compacted_table_reads_as_before(tables: TableBuilder, logs: dict[str, str]) -> None:
    table = busy_table(tables, **logs)
    moments = [each.requested_at for each in table.timeline() if each.action is Action.DELTA_COMMIT]
    before = {moment: rows_of(table.read(as_of=moment)) for moment in moments}
    compact(table)
    assert len(moments) == 4
    assert {moment: rows_of(table.read(as_of=moment)) for moment in moments} == before


def test_the_commit_says_what_was_compacted(tables: TableBuilder) -> None:
    table = busy_table(tables)
    slices = {each.group: each for each in snapshot(tables, table).latest if each.logs}
    plan = schedule(table, compaction())
    assert plan is not None
    execute(table, compaction(), plan.instant)
    metadata = metadata_of(tables, table, plan.instant)
    assert (metadata.operation, metadata.compacted) == (Operation.COMPACT, True)
    assert {stat.group for stat in metadata.stats} == set(slices)
    for stat in metadata.stats:
        base = slices[stat.group].base
        assert base is not None
        assert (stat.previous_commit, stat.previous_base_file) == (base.instant.value, base.name)
        assert stat.size == len(tables.storage(table).read(stat.path))
    counts = [(s.group.partition, s.writes, s.inserts, s.updates, s.deletes) for s in metadata.stats]
    # Updated are the multiples of three; k3 counts once, and of k5, which came late, the base row stays.
    assert sorted(counts) == [("la", 19, 0, 7, 1), ("sf", 18, 0, 7, 2)]


def test_a_file_group_of_logs_alone_keeps_the_commit_time_of_each_row(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor", options=SHARED_BUCKETS)
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 2.0), ("d", "sf", 2, 2.0)))
    assert all(each.base is None for each in snapshot(tables, table).latest)
    before = everything(table)
    assert len({row[0] for row in before}) == 2
    result = compact(table)
    assert everything(table) == before
    assert all(each.base is not None and not each.logs for each in snapshot(tables, table).latest)
    stats = metadata_of(tables, table, result.instant).stats
    assert {(stat.previous_commit, stat.previous_base_file) for stat in stats} == {("null", None)}
    assert sum(stat.inserts for stat in stats) == 4


def test_a_slice_whose_rows_were_all_deleted_becomes_a_file_without_rows(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor", partition_by=None)
    table.insert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    table.delete(trips(("a", "sf"), ("b", "sf")))
    result = compact(table)
    assert rows_of(table.read()) == []
    (only,) = snapshot(tables, table).latest
    assert only.base is not None
    assert (only.base.path,) == result.files
    with tables.storage(table).open_input(only.base.path) as stream:
        assert pq.read_metadata(stream).num_rows == 0
    table.upsert(trips(("a", "sf", 1, 5.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 5.0)]


def test_a_compacted_file_has_the_latest_schema_of_the_table(tables: TableBuilder, logs: dict[str, str]) -> None:
    table = tables.create(table_type="mor", options=logs)
    table.insert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    wider = pa.schema([*TRIPS, ("tip", pa.float64()), ("tags", pa.list_(pa.field("element", pa.string())))])
    table.upsert(trips(("b", "sf", 3, 3.0, 0.5, ["x", "y"]), schema=wider))
    before = everything(table)
    (path,) = compact(table).files
    assert everything(table) == before
    with tables.storage(table).open_input(path) as stream:
        assert pq.read_schema(stream).names[5:] == wider.names


def test_a_compacted_file_tells_its_keys_to_the_index_of_java(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor", partition_by=None)
    table.insert(trips(*[(f"k{n:03d}", "sf", 1, 1.0) for n in range(100)]))
    table.delete(trips(("k000", "sf"), ("k099", "sf")))
    (path,) = compact(table).files
    keys = table.read(meta_columns=True).column("_hoodie_record_key").to_pylist()
    with tables.storage(table).open_input(path) as stream:
        footer = decode_footer(pq.read_metadata(stream).metadata, file=path)
    assert (footer.min_key, footer.max_key) == (min(keys), max(keys))
    assert footer.bloom is not None
    others = [f"other{n}" for n in range(1000)]
    found = might_contain(footer.bloom, pa.array(keys + others), bloom_type=footer.bloom_type, file=path)
    assert list(found) == [True] * len(keys) + [False] * len(others)


def test_what_completes_after_the_plan_lies_on_top_of_the_compacted_file(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor", partition_by=None)
    table.insert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    plan = schedule(table, compaction())
    assert plan is not None
    table.upsert(trips(("a", "sf", 3, 3.0)))
    execute(table, compaction(), plan.instant)
    table.upsert(trips(("b", "sf", 4, 4.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 3.0), ("b", 4.0)]
    assert rows_of(table.read(mode="read_optimized"), "id", "fare") == [("a", 2.0), ("b", 1.0)]
    (only,) = snapshot(tables, table).latest
    assert only.base_instant == plan.instant
    assert len(only.logs) == 2


def test_a_plan_executed_twice_is_done_once(tables: TableBuilder) -> None:
    table = busy_table(tables)
    result = compact(table)
    again = execute(table, compaction(), result.instant)
    assert (again.outcome, sorted(again.files)) == ("already completed", sorted(result.files))
    assert schedule(table, compaction()) is None


def test_merged_logs_read_as_the_logs_did_and_keep_commit_times(tables: TableBuilder, logs: dict[str, str]) -> None:
    table = busy_table(tables, **logs)
    before, changed = everything(table), rows_of(table.changes(since=None))
    moments = [each.requested_at for each in table.timeline() if each.action is Action.DELTA_COMMIT]
    past = {moment: rows_of(table.read(as_of=moment)) for moment in moments}
    result = compact_logs(table)
    assert everything(table) == before
    assert rows_of(table.changes(since=None)) == changed
    assert {moment: rows_of(table.read(as_of=moment)) for moment in moments} == past
    metadata = metadata_of(tables, table, result.instant)
    assert metadata.operation is Operation.LOG_COMPACT
    assert next(i for i in table.timeline() if i.requested_at == result.instant).action is Action.DELTA_COMMIT
    # And everything goes on on top of it.
    table.upsert(trips(("k3", "sf", 40, 4.5, False), ("k9", "sf", 40, 0.0, True), schema=TOMBSTONES))
    expected = everything(table)
    compact_logs(table)
    assert everything(table) == expected
    compact(table)
    assert everything(table) == expected


def test_the_merged_blocks_name_their_originals_and_hold_one_change_a_key(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor", partition_by=None)
    table.insert(trips(*[(f"k{n}", "sf", 1, 1.0) for n in range(9)]))
    first = table.upsert(trips(("k1", "sf", 2, 2.0), ("k2", "sf", 2, 2.0)))
    second = table.delete(trips(("k2", "sf"), ("k3", "sf")))
    third = table.upsert(trips(("k1", "sf", 3, 3.0)))
    (path,) = compact_logs(table).files
    blocks = list(decode_blocks(tables.storage(table).read(path), file=path))
    originals = ",".join(each.instant.value for each in (first, second, third))
    assert [block.header[HeaderKey.COMPACTED_BLOCK_TIMES] for block in blocks] == [originals] * 2
    assert [block.type for block in blocks] == [BlockType.PARQUET_DATA, BlockType.DELETE]
    assert pq.read_table(pa.BufferReader(blocks[0].content)).column("id").to_pylist() == ["k1"]
    assert sorted(decode_deletes(blocks[1], file=path).column("key").to_pylist()) == ["k2", "k3"]


def test_logs_that_were_merged_are_not_merged_again_for_nothing(tables: TableBuilder) -> None:
    table = busy_table(tables)
    compact_logs(table)
    assert schedule(table, log_compaction()) is None
    assert schedule(table, log_compaction(), incremental=False) is None
    table.upsert(trips(("k3", "sf", 40, 4.5, False), schema=TOMBSTONES))
    plan = schedule(table, log_compaction())
    assert plan is not None
    assert plan.partitions == ("sf",)


def test_logs_newer_than_a_write_under_way_wait_for_it(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor", partition_by=None)
    table.insert(trips(("a", "sf", 1, 1.0)))
    for n in (2, 3):
        table.upsert(trips(("a", "sf", n, float(n))))
    storage = tables.storage(table)
    _begin_write(storage, table)
    table.upsert(trips(("a", "sf", 4, 4.0)))
    plan = schedule(table, log_compaction())
    assert plan is not None
    (left,) = [each for each in plan.left_out if "under way" in each.reason]
    assert left.comes_back
    execute(table, log_compaction(), plan.instant)
    assert rows_of(table.read(), "fare") == [(4.0,)]
    (only,) = snapshot(tables, table).latest
    merged = next(log for log in only.logs if log.instant == plan.instant)
    blocks = decode_blocks(storage.read(merged.path), file=merged.path)
    times = next(iter(blocks)).header[HeaderKey.COMPACTED_BLOCK_TIMES].split(",")
    assert times == [log.instant.value for log in only.logs[:2]]


def _begin_write(storage: Storage, table: tk.Table) -> None:
    """Somebody else's delta commit that goes on and on."""
    last = load_timeline(storage, table.config).newest_time
    name = f"{int(last) + 1}.deltacommit"
    for state in ("requested", "inflight"):
        storage.put(f".hoodie/timeline/{name}.{state}", b"")
    storage.put(f".hoodie/.heartbeat/{int(last) + 1}", b"")


def test_a_table_with_a_metadata_table_finds_what_was_compacted(tables: TableBuilder) -> None:
    table = busy_table(tables, **{"hoodie.metadata.enable": "true"})
    before = everything(table)
    compact_logs(table)
    assert everything(table) == before
    compact(table)
    assert everything(table) == before


@pytest.mark.parametrize("service", ["compaction", "log compaction"])
def test_spark_workers_do_the_same(spark: Any, tables: TableBuilder, table_path: str, service: str) -> None:
    local = tables.create(table_path, table_type="mor")
    local.insert(trips(*[(f"k{n}", f"c{n % 4}", 1, float(n)) for n in range(400)]))
    for moment in (3, 5):
        local.upsert(trips(*[(f"k{n}", f"c{n % 4}", moment, -1.0) for n in range(0, 400, moment)]))
    before = everything(local)
    # Little work would be done on the driver otherwise.
    engine = SparkEngine(spark, driver_bytes=0)
    table = tk.Table(tables.storage(local), engine, Options(), runtime=tables.runtime)
    done = compact(table) if service == "compaction" else compact_logs(table)
    assert done.file_groups == 4
    assert everything(local) == before


@pytest.mark.parametrize("service", ["compact", "log_compact", "explain_compaction"])
def test_a_table_without_logs_is_told_to_cluster_instead(tables: TableBuilder, service: str) -> None:
    table = tables.create(table_type="cow")
    table.upsert(trips(("a", "sf", 1, 1.0)))
    with pytest.raises(InvalidRequestError, match="Cluster it"):
        getattr(table, service)()
