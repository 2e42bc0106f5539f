"""Java Hudi 1.2.0 on Spark 3.5: the contender that all ratios are taken against."""

from __future__ import annotations

import shutil
from typing import Any

from bench.spark_session import aggregate_frame, hudi_jar, start_session
from bench.workload import UPDATES, Job, java_logs, main

__all__ = ["run"]

_SETTINGS = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}
_OPTIONS = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.table.ordering.fields": "ts",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.metadata.enable": "false",
    "hoodie.bulkinsert.shuffle.parallelism": "4",
    "hoodie.upsert.shuffle.parallelism": "4",
    "hoodie.clean.automatic": "false",
    "hoodie.compact.inline": "false",
}
_SERVICES = "hoodie.metadata.enable=false,hoodie.clean.automatic=false,hoodie.compact.inline.max.delta.commits=1"


def run(job: Job) -> None:
    """Every step, in order, in one warm session."""
    spark = start_session("bench-java", {**_SETTINGS, "spark.jars": hudi_jar()})
    small = spark.read.parquet(str(job.data / "base")).limit(1000)
    _write(small, str(job.tables / "warm"), "bulk_insert", "COPY_ON_WRITE")
    cow, mor = str(job.tables / "cow"), str(job.tables / "mor")
    base = spark.read.parquet(str(job.data / "base"))
    _copy_on_write(job, spark, base, cow)
    _merge_on_read(job, spark, base, mor)
    if job.wants("cluster"):
        options = f"{_SERVICES},hoodie.clustering.plan.strategy.small.file.limit=629145600"
        with job.step("cluster"):
            spark.sql(f"call run_clustering(path => '{cow}', order => 'i1', options => '{options}')").collect()
    if job.wants("cow_read_clustered"):
        with job.step("cow_read_clustered") as check:
            check(aggregate_frame(_read(spark, cow)))
    spark.stop()


def _copy_on_write(job: Job, spark: Any, base: Any, path: str) -> None:
    if job.wants("cow_bulk_insert"):
        with job.step("cow_bulk_insert"):
            _write(base, path, "bulk_insert", "COPY_ON_WRITE")
    if job.wants("cow_upsert"):
        with job.step("cow_upsert"):
            _write(spark.read.parquet(str(job.data / "update1")), path, "upsert", "COPY_ON_WRITE")
    if job.wants("cow_read"):
        with job.step("cow_read") as check:
            check(aggregate_frame(_read(spark, path)))


def _merge_on_read(job: Job, spark: Any, base: Any, path: str) -> None:
    if job.wants("mor_bulk_insert"):
        with job.step("mor_bulk_insert"):
            _write(base, path, "bulk_insert", "MERGE_ON_READ")
    for update in UPDATES:
        if job.wants(f"mor_upsert_{update}"):
            with job.step(f"mor_upsert_{update}"):
                _write(spark.read.parquet(str(job.data / f"update{update}")), path, "upsert", "MERGE_ON_READ")
    if job.wants("mor_read"):
        with job.step("mor_read") as check:
            check(aggregate_frame(_read(spark, path)))
    if job.wants("compact_java_logs"):
        shutil.copytree(path, java_logs(job.tables))
    for operation, step in (("schedule", "compact_schedule"), ("run", "compact_run")):
        if job.wants(step):
            with job.step(step):
                spark.sql(
                    f"call run_compaction(op => '{operation}', path => '{path}', options => '{_SERVICES}')"
                ).collect()
    if job.wants("mor_read_compacted"):
        with job.step("mor_read_compacted") as check:
            check(aggregate_frame(_read(spark, path)))


def _write(frame: Any, path: str, operation: str, table_type: str) -> None:
    options = {
        **_OPTIONS,
        "hoodie.table.name": path.rsplit("/", 1)[-1],
        "hoodie.datasource.write.table.type": table_type,
        "hoodie.datasource.write.operation": operation,
    }
    frame.write.format("hudi").options(**options).mode("append").save(path)


def _read(spark: Any, path: str) -> Any:
    return spark.read.format("hudi").option("hoodie.metadata.enable", "false").load(path)


if __name__ == "__main__":
    main(run)
