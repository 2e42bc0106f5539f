"""tablekeeper on Spark: the same DataFrames as Java Hudi gets, in the same kind of session, without a jar."""

from __future__ import annotations

from typing import Any

import tablekeeper as tk
from bench.our_services import cluster, compact, compact_java_logs
from bench.spark_session import aggregate_frame, start_session
from bench.workload import UPDATES, Job, main

__all__ = ["run"]

_OPTIONS = {"hoodie.datasource.write.hive_style_partitioning": "true", "hoodie.metadata.enable": "false"}


def run(job: Job) -> None:
    """Every step that the Spark engine has, in one warm session."""
    spark = start_session("bench-ours", {})
    base = spark.read.parquet(str(job.data / "base"))
    _create(job, spark, "warm", "cow", base.schema).bulk_insert(base.limit(1000))
    cow = _create(job, spark, "cow", "cow", base.schema)
    if job.wants("cow_bulk_insert"):
        with job.step("cow_bulk_insert"):
            cow.bulk_insert(base)
    if job.wants("cow_upsert"):
        with job.step("cow_upsert"):
            cow.upsert(spark.read.parquet(str(job.data / "update1")))
    _read(job, cow, "cow_read")
    mor = _create(job, spark, "mor", "mor", base.schema)
    if job.wants("mor_bulk_insert"):
        with job.step("mor_bulk_insert"):
            mor.bulk_insert(base)
    for number in UPDATES:
        if job.wants(f"mor_upsert_{number}"):
            with job.step(f"mor_upsert_{number}"):
                mor.upsert(spark.read.parquet(str(job.data / f"update{number}")))
    _read(job, mor, "mor_read")
    compact(job, mor)
    _read(job, mor, "mor_read_compacted")
    cluster(job, cow)
    _read(job, cow, "cow_read_clustered")
    compact_java_logs(job, lambda path: tk.Table.open(path, spark=spark))
    spark.stop()


def _create(job: Job, spark: Any, name: str, table_type: str, schema: Any) -> Any:
    return tk.Table.create(
        str(job.tables / name),
        name=name,
        schema=schema,
        key="id",
        partition_by="p",
        ordering="ts",
        table_type=table_type,
        spark=spark,
        options=_OPTIONS,
    )


def _read(job: Job, table: Any, step: str) -> None:
    if job.wants(step):
        with job.step(step) as check:
            check(aggregate_frame(table.read(columns=["f1", "s1"])))


if __name__ == "__main__":
    main(run)
