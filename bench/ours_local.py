"""tablekeeper on the local engine: Arrow tables in memory, no JVM, like delta-rs."""

from __future__ import annotations

from typing import Any

import tablekeeper as tk
from bench.our_services import cluster, compact, compact_java_logs
from bench.workload import UPDATES, Job, aggregate, load, main

__all__ = ["run"]

_OPTIONS = {"hoodie.datasource.write.hive_style_partitioning": "true", "hoodie.metadata.enable": "false"}


def run(job: Job) -> None:
    """Every step that the local engine has."""
    base = load(job.data / "base")
    _create(job, "warm", "cow", base.schema).bulk_insert(base.slice(0, 1000))
    cow = _create(job, "cow", "cow", base.schema)
    mor = _create(job, "mor", "mor", base.schema)
    for table, step in ((cow, "cow_bulk_insert"), (mor, "mor_bulk_insert")):
        if job.wants(step):
            with job.step(step):
                table.bulk_insert(base)
    del base
    if job.wants("cow_upsert"):
        update = load(job.data / "update1")
        with job.step("cow_upsert"):
            cow.upsert(update)
    _read(job, cow, "cow_read")
    for number in UPDATES:
        if job.wants(f"mor_upsert_{number}"):
            update = load(job.data / f"update{number}")
            with job.step(f"mor_upsert_{number}"):
                mor.upsert(update)
    _read(job, mor, "mor_read")
    compact(job, mor)
    _read(job, mor, "mor_read_compacted")
    cluster(job, cow)
    _read(job, cow, "cow_read_clustered")
    compact_java_logs(job, lambda path: tk.Table.open(path, engine="local"))


def _create(job: Job, name: str, table_type: str, schema: Any) -> Any:
    return tk.Table.create(
        str(job.tables / name),
        name=name,
        schema=schema,
        key="id",
        partition_by="p",
        ordering="ts",
        table_type=table_type,
        engine="local",
        options=_OPTIONS,
    )


def _read(job: Job, table: Any, step: str) -> None:
    if job.wants(step):
        with job.step(step) as check:
            check(aggregate(table.read(columns=["f1", "s1"])))


if __name__ == "__main__":
    main(run)
