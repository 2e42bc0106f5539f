"""Compaction and log compaction across programs: each runs the plans of the other, and everybody reads the same rows.

Java's log compaction has no SQL procedure, so that its write client is called directly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.format.log_blocks import HeaderKey, decode_blocks
from tablekeeper.model import RequestedTime
from tests.interop.peers import Panel, engine_of, java_step, our_step, our_table
from tests.support.history import History, Model, Step, make_history
from tests.support.java_hudi import JavaTable
from tests.support.rows import exact_rows
from tests.support.table_services import compact, compact_logs, compaction, execute, log_compaction, schedule

__all__: list[str] = []

# Every odd seed is a MOR table; the two of a test differ in merge mode, index and metadata table, and all eight occur.
RUN_BY_JAVA, RUN_BY_US, MERGED_BY_US, MERGED_IN_TURN = (1, 15), (5, 11), (7, 9), (3, 13)
STEPS = 6


class World:
    """A table that a history is played into, with all programs around it."""

    def __init__(self, spark: Any, path: Path, seed: int, test: str) -> None:
        self.spark = spark
        self.path = path
        self.history: History = make_history(seed, steps=STEPS)
        self.engine = engine_of(seed)
        self.panel = Panel(spark, path, self.history, test)
        self.model = Model(self.history.shape)
        self.written = 0

    @property
    def java(self) -> JavaTable:
        return self.panel.java

    @property
    def ours(self) -> tk.Table:
        return our_table(self.spark, self.path, self.history.shape, engine=self.engine)

    def write(self, *, by_java: bool = False) -> None:
        """The next step of the history."""
        # A metadata table is made by Java only; we keep it in step.
        by_java = by_java or (self.written == 0 and self.history.shape.metadata)
        self._apply(self.history.steps[self.written], by_java=by_java)
        self.written += 1

    def touch(self, *, by_java: bool = False) -> None:
        """Update every other row, so that each file group gets a log: rows trade their values, the moment stays."""
        shape, rows = self.history.shape, self.model.rows[::2]
        own = {*shape.key, *shape.partition_by, "ts", "_hoodie_is_deleted"}
        traded = [
            {name: (row if name in own else other)[name] for name in row}
            for row, other in zip(rows, rows[1:] + rows[:1], strict=True)
        ]
        assert traded
        self._apply(Step("upsert", tuple(traded)), by_java=by_java)

    def _apply(self, step: Step, *, by_java: bool) -> None:
        shape = self.history.shape
        if by_java:
            java_step(self.java, shape, step)
        else:
            our_step(self.ours, self.java, shape, step, engine=self.engine)
        self.model.apply(step)

    def check(self) -> None:
        self.panel.check_snapshot(self.model, self.written - 1)

    def check_compacted(self) -> None:
        """Base files alone hold everything."""
        self.check()
        self.panel.check_read_optimized(self.model, self.written - 1)

    def pending(self, action: str) -> list[RequestedTime]:
        names = {file.name for file in (self.path / ".hoodie" / "timeline").iterdir()}
        requested = [name.split(".")[0] for name in names if name.endswith(f".{action}.requested")]
        done = {name.split("_")[0] for name in names if "_" in name}
        return sorted(RequestedTime(instant) for instant in requested if instant not in done)

    def log_compaction_by_java(self, *, run: str | None = None) -> str | None:
        """Schedule a log compaction with Java's client, or run the one of this instant; its instant if there is one."""
        jvm = self.spark._jvm
        options = {
            **self.java.options,
            "hoodie.log.compaction.enable": "true",
            "hoodie.log.compaction.blocks.threshold": "2",
            "hoodie.embed.timeline.server": "false",
            "hoodie.write.markers.type": "DIRECT",
            "hoodie.clean.automatic": "false",
            "hoodie.archive.automatic": "false",
        }
        client = jvm.org.apache.hudi.DataSourceUtils.createHoodieClient(
            self.spark._jsc, None, str(self.path), self.history.shape.name, jvm.java.util.HashMap(options)
        )
        try:
            if run is not None:
                client.logCompact(run, True)
                return run
            found = client.scheduleLogCompaction(jvm.org.apache.hudi.common.util.Option.empty())
            return str(found.get()) if found.isPresent() else None
        finally:
            client.close()


@pytest.mark.parametrize("seed", RUN_BY_JAVA)
def test_java_runs_the_compaction_that_we_scheduled(seed: int, spark: Any, tmp_path: Path) -> None:
    world = World(spark, tmp_path / "t", seed, "test_java_runs_the_compaction")
    for _ in range(3):
        world.write()
    world.touch()
    plan = schedule(world.ours, compaction())
    assert plan is not None
    assert world.pending("compaction") == [plan.instant]
    assert world.java.run_compaction() == 1
    assert world.pending("compaction") == []
    world.check_compacted()
    world.write()
    world.write(by_java=True)
    world.check()


@pytest.mark.parametrize("seed", RUN_BY_US)
def test_we_run_the_compaction_that_java_scheduled(seed: int, spark: Any, tmp_path: Path) -> None:
    world = World(spark, tmp_path / "t", seed, "test_we_run_the_compaction")
    for number in range(3):
        world.write(by_java=number % 2 == 1)
    world.touch(by_java=True)
    world.java.schedule_compaction()
    (instant,) = world.pending("compaction")
    assert execute(world.ours, compaction(), instant).outcome == "completed"
    world.check_compacted()
    world.write(by_java=True)
    world.write()
    world.check()


@pytest.mark.parametrize("seed", MERGED_BY_US)
def test_java_goes_on_with_tables_whose_logs_we_merged(seed: int, spark: Any, tmp_path: Path) -> None:
    world = World(spark, tmp_path / "t", seed, "test_java_goes_on_with_tables")
    world.write()
    world.write()
    world.touch(by_java=True)
    world.touch()
    plan = schedule(world.ours, log_compaction())
    assert plan is not None
    execute(world.ours, log_compaction(), plan.instant)
    world.check()
    world.touch(by_java=True)
    world.check()
    world.touch()
    # Java merges ours with its own once more, and then compacts.
    again = world.log_compaction_by_java()
    assert again is not None
    world.log_compaction_by_java(run=again)
    world.check()
    world.java.compact()
    world.check_compacted()
    world.write()
    world.check()


@pytest.mark.parametrize("seed", MERGED_IN_TURN)
def test_each_merges_the_logs_that_the_other_planned(seed: int, spark: Any, tmp_path: Path) -> None:
    world = World(spark, tmp_path / "t", seed, "test_each_merges_the_logs")
    world.write()
    world.touch()
    world.touch(by_java=True)
    planned = world.log_compaction_by_java()
    assert planned is not None
    assert execute(world.ours, log_compaction(), RequestedTime(planned)).outcome == "completed"
    world.check()
    world.touch()
    plan = schedule(world.ours, log_compaction())
    assert plan is not None
    world.log_compaction_by_java(run=plan.instant.value)
    world.check()
    world.write(by_java=True)
    compact(world.ours)
    world.check_compacted()


def _shape_rows(path: Path, spark: Any, *, options: dict[str, str] | None = None) -> JavaTable:
    chosen = JavaTable.options_for(
        name="t", key=["id"], partition_by=["p"], ordering="ts", table_type="mor", extra=options
    )
    return JavaTable(spark, str(path), chosen)


def _rows(ids: range, *, ts: int, v: float) -> pa.Table:
    count = len(ids)
    columns = {"id": [f"k{i:03d}" for i in ids], "p": [f"p{i % 2}" for i in ids], "ts": [ts] * count, "v": [v] * count}
    return pa.table(columns)


@pytest.mark.parametrize("metadata", ["true", "false"])
def test_java_writes_on_where_compaction_left_files_without_rows(metadata: str, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    java = _shape_rows(path, spark, options={"hoodie.metadata.enable": metadata, "hoodie.index.type": "BLOOM"})
    java.write(_rows(range(20), ts=1, v=1.0), "bulk_insert")
    ours = tk.Table.open(str(path), engine="local")
    ours.delete(_rows(range(20), ts=1, v=1.0).select(["id", "p"]))
    files = compact(ours).files
    assert {pq.read_metadata(path / file).num_rows for file in files} == {0}
    assert java.read().num_rows == 0
    java.write(_rows(range(5, 10), ts=2, v=2.0), "upsert")
    found = java.read()
    assert sorted(found.column("id").to_pylist()) == [f"k{i:03d}" for i in range(5, 10)]
    assert sorted(ours.read().column("id").to_pylist()) == sorted(found.column("id").to_pylist())
    java.compact()
    assert java.read_optimized().num_rows == 5


def test_javas_index_and_pruning_trust_what_we_compacted(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    java = _shape_rows(path, spark, options={"hoodie.metadata.enable": "true", "hoodie.index.type": "BLOOM"})
    java.write(_rows(range(100), ts=1, v=1.0), "bulk_insert")
    java.write(_rows(range(0, 100, 4), ts=2, v=50.0), "upsert")
    java.write(_rows(range(0, 100, 10), ts=3, v=90.0), "upsert")
    ours = tk.Table.open(str(path), engine="local")
    compact_logs(ours)
    for where, expected in (("v = 50.0", 20), ("v > 80.0", 10), ("v < 2.0", 70), ("ts = 2", 20)):
        assert java.collect(java.scan(hoodie__enable__data__skipping="true").where(where)).num_rows == expected, where
    compact(ours)
    for where, expected in (("v = 50.0", 20), ("v > 80.0", 10), ("v < 2.0", 70), ("ts = 2", 20), ("v > 95.0", 0)):
        assert java.collect(java.scan(hoodie__enable__data__skipping="true").where(where)).num_rows == expected, where
    # The bloom filters and key ranges of the new files lead Java's index to the rows: no key comes twice.
    java.write(_rows(range(0, 100, 5), ts=9, v=7.0), "upsert")
    found = java.read()
    assert found.num_rows == 100
    assert found.column("v").to_pylist().count(7.0) == 20
    assert ours.read().num_rows == 100


def test_merged_blocks_of_java_logs_name_their_instants_in_order(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    java = _shape_rows(path, spark, options={"hoodie.metadata.enable": "false"})
    java.write(_rows(range(10), ts=1, v=1.0), "bulk_insert")
    for ts in (2, 3, 4):
        java.write(_rows(range(0, 10, ts), ts=ts, v=float(ts)), "upsert")
    ours = tk.Table.open(str(path), engine="local")
    expected = exact_rows(ours.read())
    result = compact_logs(ours)
    # Odd keys, which are the other partition's, were updated once.
    (file,) = result.files
    first = next(iter(decode_blocks((path / file).read_bytes(), file=file)))
    file_id = Path(file).name[1:].split("_")[0]
    logs = sorted(log.name for log in (path / file).parent.glob(f".{file_id}_*.log.*") if log.suffix != ".crc")
    instants = [name.split("_")[1].split(".")[0] for name in logs]
    assert instants.pop() == result.instant.value
    assert len(instants) == 3
    assert first.header[HeaderKey.COMPACTED_BLOCK_TIMES] == ",".join(instants)
    assert exact_rows(java.read().select(ours.schema.names)) == expected
    assert exact_rows(ours.read()) == expected
