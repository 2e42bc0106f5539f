"""Clustering from end to end, on both engines: the layout changes, the rows and their history do not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.engine.spark import SparkEngine
from tablekeeper.errors import ConflictError, InvalidRequestError, PlanCancelledError, UnsupportedFeatureError
from tablekeeper.model import Action, Operation
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.storage import Storage
from tablekeeper.timeline import load_commit_metadata, load_timeline
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

__all__: list[str] = []

META = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]
ALLOW = {"hoodie.clustering.updates.strategy": "SparkAllowUpdateStrategy"}
APART = {"hoodie.parquet.small.file.limit": "0"}


def busy_table(tables: TableBuilder, place: str | None = None, **changes: Any) -> tk.Table:
    """Several files in two partitions, with updates, deletes and nulls."""
    table = tables.create(place, **{"table_type": "mor", "options": APART, **changes})
    for turn in range(3):
        rows = [(f"k{n}", "sf" if n % 2 else "la", 10, float(n * 37 % 50)) for n in range(turn, 60, 3)]
        table.insert(trips(*rows))
    table.upsert(trips(*[(f"k{n}", "sf" if n % 2 else "la", 20, None) for n in range(0, 60, 11)]))
    table.delete(trips(("k1", "sf"), ("k2", "la")))
    return table


def everything(table: tk.Table) -> list[tuple[Any, ...]]:
    """All rows with the meta columns that a service has to keep."""
    return rows_of(table.read(meta_columns=True), *META, *TRIPS.names)


def base_files(storage: Storage, table: tk.Table) -> list[pa.Table]:
    timeline = load_timeline(storage, table.config)
    latest = load_snapshot(storage, table.config, timeline, runtime=table._runtime).latest
    assert all(not each.logs for each in latest)
    return [pq.read_table(storage.open_input(each.base.path)) for each in latest if each.base is not None]


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_a_clustered_table_has_the_same_rows_with_their_history(tables: TableBuilder, table_type: str) -> None:
    table = busy_table(tables, table_type=table_type)
    writes = [each for each in table.timeline() if each.action in (Action.COMMIT, Action.DELTA_COMMIT)]
    past = {each.requested_at: rows_of(table.read(as_of=each.requested_at)) for each in writes}
    before, changed = everything(table), rows_of(table.changes(since=None))

    result = table.cluster(order_by="fare")

    assert result is not None
    assert result.rows == len(before)
    assert everything(table) == before
    assert rows_of(table.read(mode="read_optimized")) == rows_of(table.read())
    assert rows_of(table.changes(since=None)) == changed
    assert table.changes(since=str(writes[-1].completed_at)).num_rows == 0
    assert {moment: rows_of(table.read(as_of=moment)) for moment in past} == past
    files = base_files(tables.storage(table), table)
    assert len(files) == 2
    for rows in files:
        fares = rows.column("fare").to_pylist()
        assert fares == sorted(fares, key=lambda fare: (fare is not None, fare))


def test_the_commit_says_what_was_replaced_by_what(tables: TableBuilder) -> None:
    table = busy_table(tables)
    storage = tables.storage(table)
    timeline = load_timeline(storage, table.config)
    old = load_snapshot(storage, table.config, timeline, runtime=tables.runtime).latest
    result = table.cluster(order_by="fare")
    assert result is not None
    instant = load_timeline(storage, table.config).find(result.instant)
    assert instant is not None
    assert instant.action is Action.REPLACE_COMMIT
    metadata = load_commit_metadata(storage, table.config, instant)
    assert metadata.operation is Operation.CLUSTER
    assert metadata.replaced is not None
    named = {(partition, file_id) for partition, ids in metadata.replaced.items() for file_id in ids}
    assert named == {(each.group.partition, each.group.file_id) for each in old}
    assert not named & {(stat.group.partition, stat.group.file_id) for stat in metadata.stats}
    assert all(stat.size == len(storage.read(stat.path)) for stat in metadata.stats)


@pytest.mark.parametrize("strategy", ["sort", "zorder", "hilbert"])
def test_writers_go_on_after_a_clustering(tables: TableBuilder, strategy: str) -> None:
    table = busy_table(tables)
    expected = {row[0]: row for row in rows_of(table.read())}
    for turn in range(2):
        assert table.cluster(order_by=["ts", "fare"], strategy=strategy) is not None
        rows = [(f"k{n}", "sf" if n % 2 else "la", 30 + turn, 99.0) for n in range(3, 60, 7)]
        table.upsert(trips(*rows, (f"new{turn}", "sf", 1, 1.0)))
        expected |= {row[0]: row for row in [*rows, (f"new{turn}", "sf", 1, 1.0)]}
    assert rows_of(table.read()) == sorted(expected.values(), key=repr)


def test_a_target_size_makes_several_files_whose_ranges_do_not_overlap(tables: TableBuilder) -> None:
    table = tables.create(partition_by=None, options=APART)
    for turn in range(4):
        rows = [(f"{n:06}", "sf", n, float(n * 7919 % 20011)) for n in range(turn, 20_000, 4)]
        table.insert(trips(*rows))
    result = table.cluster(order_by="fare", target_file_size="60KB")
    assert result is not None
    files = base_files(tables.storage(table), table)
    assert len(files) > 2
    ranges = sorted((min(fares), max(fares)) for fares in (rows.column("fare").to_pylist() for rows in files))
    assert all(left[1] < right[0] for left, right in itertools.pairwise(ranges))
    assert table.read().num_rows == 20_000


def test_a_condition_leaves_other_partitions_alone(tables: TableBuilder) -> None:
    table = busy_table(tables)
    before = everything(table)
    result = table.cluster(order_by="fare", partitions="city = 'sf'")
    assert result is not None
    assert {file.split("/")[0] for file in result.files} == {"sf"}
    assert everything(table) == before


@pytest.mark.parametrize("metadata", ["true", "false"])
def test_a_selected_partition_that_is_not_there_has_nothing_to_cluster(tables: TableBuilder, metadata: str) -> None:
    table = busy_table(tables, options={**APART, "hoodie.metadata.enable": metadata})
    selected = {"hoodie.clustering.plan.strategy.partition.selected": "nowhere,sf"}
    result = table.cluster(order_by="fare", options=selected)
    assert result is not None
    assert {file.split("/")[0] for file in result.files} == {"sf"}


def test_a_clustering_by_an_unknown_column_leaves_no_plan(tables: TableBuilder) -> None:
    table = busy_table(tables)
    with pytest.raises(InvalidRequestError, match="did you mean fare"):
        table.cluster(order_by="fair")
    assert not [each for each in table.timeline() if each.action is Action.CLUSTERING]


def test_a_table_with_buckets_is_not_clustered_and_no_plan_is_left(tables: TableBuilder) -> None:
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    table = busy_table(tables, options=options)
    with pytest.raises(UnsupportedFeatureError, match="bucket"):
        table.cluster(order_by="fare")
    assert not [each for each in table.timeline() if each.action is Action.CLUSTERING]


class TestUpdatesOfFilesInAPendingClustering:
    """`hoodie.clustering.updates.strategy`."""

    def test_are_rejected_by_default_and_the_plan_can_be_carried_out(self, tables: TableBuilder) -> None:
        table = busy_table(tables)
        plan = table.schedule_clustering(order_by="fare")
        before = everything(table)
        with pytest.raises(ConflictError):
            table.upsert(trips(("k3", "sf", 99, 0.0)))
        # New rows go into files of their own, which are in no plan.
        table.insert(trips(("new", "sf", 1, 1.0)))
        result = table.execute(plan)
        assert result.outcome == "completed"
        assert [row for row in everything(table) if row[2] != "new"] == before

    def test_win_if_they_are_allowed_and_the_plan_gives_way(self, tables: TableBuilder) -> None:
        table = busy_table(tables, options={**APART, **ALLOW})
        plan = table.schedule_clustering(order_by="fare")
        table.upsert(trips(("k3", "sf", 99, 0.0)))
        before = everything(table)
        with pytest.raises(ConflictError):
            table.execute(plan)
        assert everything(table) == before
        assert ("k3", "sf", 99, 0.0) in rows_of(table.read())

    def test_win_over_a_plan_that_is_cancellable_which_is_gone_then(self, tables: TableBuilder) -> None:
        table = busy_table(tables)
        plan = table.schedule_clustering(order_by="fare", cancellable=True)
        table.upsert(trips(("k3", "sf", 99, 0.0)))
        before = everything(table)
        with pytest.raises((ConflictError, PlanCancelledError)):
            table.execute(plan)
        assert everything(table) == before
        assert not [each for each in table.timeline() if each.action is Action.CLUSTERING]
        assert table.cluster(order_by="fare") is not None
        assert everything(table) == before


@pytest.mark.parametrize("metadata", ["false", "true"])
def test_spark_clusters_as_the_local_engine_does(
    tables: TableBuilder, spark: Any, tmp_path: Path, metadata: str
) -> None:
    place = str(tmp_path / "t")
    local = busy_table(tables, place, options={**APART, "hoodie.metadata.enable": metadata})
    before = everything(local)
    storage = tables.storage(local)
    on_spark = tk.Table(storage, SparkEngine(spark, driver_bytes=0), local._options, runtime=tables.runtime)

    result = on_spark.cluster(order_by=["fare", "id"])

    assert result is not None
    assert everything(local) == before
    for rows in base_files(storage, local):
        order = [(fare is not None, fare, key) for fare, key in zip(*_columns(rows, "fare", "id"), strict=True)]
        assert order == sorted(order)
    assert local.doctor().is_healthy


def _columns(rows: pa.Table, *names: str) -> list[list[Any]]:
    return [rows.column(name).to_pylist() for name in names]


def test_a_plan_executed_twice_tells_the_same(tables: TableBuilder) -> None:
    table = busy_table(tables)
    plan = table.schedule_clustering()
    assert plan is not None
    first, again = table.execute(plan), table.execute(plan)
    assert (first.outcome, again.outcome) == ("completed", "already completed")
    assert again.file_groups == first.file_groups == plan.file_groups
    assert sorted(again.files) == sorted(first.files)
