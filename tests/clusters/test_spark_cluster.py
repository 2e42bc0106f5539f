"""The life of a table on a standalone cluster of Spark: every kernel runs in executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.spark_cluster import SparkCluster

LIFE = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
from tablekeeper import Table
from tablekeeper.engine.spark import SparkEngine

spark = SparkSession.builder.master(sys.argv[1]).appName("life").config("spark.ui.enabled", "false").getOrCreate()
engine = SparkEngine(spark, driver_bytes=0)
made = Table.create(sys.argv[2], name="t", schema=pa.schema([("id", pa.int64()), ("v", pa.int64())]), key="id",
    ordering="v", table_type="mor", spark=spark)
table = Table(made._storage, engine, made._options, runtime=made._runtime)
frame = lambda first, last, v: spark.range(first, last).selectExpr("id", f"{v} as v").repartition(4)
table.bulk_insert(frame(0, 1000, 1))
table.upsert(frame(500, 1500, 2))
table.delete(spark.range(0, 10))
table.compact()
table.cluster(order_by=["id"])
table.clean(keep_commits=1)
table.archive()
print("ROWS", table.read().count(), table.read().where("v = 2").count())
print("EXECUTORS", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
spark.stop()
"""


def test_a_table_lives_on_a_cluster_of_two_workers(cluster: SparkCluster, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIFE, cluster.url, str(tmp_path / "t")],
        capture_output=True,
        env=dict(cluster.environment),
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == ["ROWS 1490 1000", "EXECUTORS 2"]
    assert [each.state for each in cluster.applications() if each.name == "life"] == ["FINISHED"]
