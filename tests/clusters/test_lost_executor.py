"""A worker that is killed in the middle of a write costs its tasks, and not the write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.spark_cluster import SparkCluster, spark_cluster

UPSERT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tablekeeper import Table
from tests.support.doomed_engine import DoomedEngine

url, place, label, sign = sys.argv[1:]
spark = SparkSession.builder.master(url).appName("lost").config("spark.ui.enabled", "false").getOrCreate()
table = Table.open(place, spark=spark)
table = Table(table._storage, DoomedEngine(spark, label=label, sign=Path(sign)), table._options, runtime=table._runtime)
result = table.upsert(spark.range(500, 1500).selectExpr("id", "2L as v").repartition(6))
print("WRITTEN", result.rows_updated, result.rows_inserted)
spark.stop()
"""
_TIMEOUT_S = 200.0


def _kill_whom_it_names(cluster: SparkCluster, sign: Path, program: subprocess.Popen[str]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + _TIMEOUT_S
    while not (sign.exists() and sign.read_text().endswith("\n")):
        assert program.poll() is None, program.communicate()[1][-3000:]
        assert clock.monotonic_s() < until_s
        clock.sleep(0.05)
    (worker,) = (each for each in cluster.workers if each.process.pid == int(sign.read_text()))
    worker.kill()


@pytest.mark.parametrize("label", ["stage upsert", "look up keys", "upsert"])
def test_a_worker_killed_in_the_middle_of_a_write_costs_its_tasks_and_not_the_write(tmp_path: Path, label: str) -> None:
    place, sign = tmp_path / "t", tmp_path / "sign"
    options = {
        # A hundred rows a file, by an estimate of one byte a row.
        "hoodie.parquet.max.file.size": "100",
        "hoodie.copyonwrite.record.size.estimate": "1",
        "hoodie.parquet.small.file.limit": "0",
    }
    rows = pa.table({"id": pa.array(range(1000)), "v": pa.array([1] * 1000)})
    table = tk.Table.create(
        str(place),
        name="t",
        schema=rows.schema,
        key="id",
        ordering="v",
        table_type="cow",
        engine="local",
        options=options,
    )
    table.insert(rows)
    groups = len(table.files())
    assert groups >= 8
    with spark_cluster(tmp_path / "cluster") as cluster:
        program = subprocess.Popen(
            [sys.executable, "-c", UPSERT, cluster.url, str(place), label, str(sign)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(cluster.environment),
            text=True,
        )
        try:
            _kill_whom_it_names(cluster, sign, program)
            told, errors = program.communicate(timeout=_TIMEOUT_S)
        finally:
            program.kill()
    assert program.returncode == 0, errors[-3000:]
    assert told.splitlines()[-1] == "WRITTEN 500 500"
    read = table.read()
    assert sorted(read.column("id").to_pylist()) == list(range(1500))
    assert read.column("v").to_pylist().count(2) == 1000
    # Nothing is left of the task that died: neither a file that no commit names nor a marker.
    report = table.doctor(safe_age_s=0.0)
    assert not report.repairs, report
