"""Steps of the table services that both engines of tablekeeper run the same way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from bench.workload import Job, java_logs

__all__ = ["cluster", "compact", "compact_java_logs"]

_EVERY_FILE = {"hoodie.clustering.plan.strategy.small.file.limit": "629145600"}


def compact(job: Job, table: Any) -> None:
    """Schedule a compaction of everything, and run it."""
    if not job.wants("compact_run"):
        return
    with job.step("compact_schedule"):
        plan = table.schedule_compaction()
    with job.step("compact_run"):
        table.execute(plan)


def cluster(job: Job, table: Any) -> None:
    """Sort every partition by one column, plan and all, as Java's procedure does it."""
    if not job.wants("cluster"):
        return
    with job.step("cluster"):
        result = table.cluster(order_by="i1", options=_EVERY_FILE)
    if result is None:
        raise RuntimeError("cluster: there was nothing to cluster")


def compact_java_logs(job: Job, open_table: Callable[[str], Any]) -> None:
    """Compact the table that Java Hudi left with Avro logs, if it has run before; on a copy, made outside the clock."""
    step, source = "compact_java_logs", java_logs(job.tables)
    if not job.wants(step) or not source.exists():
        return
    target = job.tables / "java_logs"
    shutil.copytree(source, target)
    table = open_table(str(target))
    rows = table.read(columns=["id"])
    expected = rows.count() if hasattr(rows, "toPandas") else rows.num_rows
    plan = table.schedule_compaction()
    with job.step(step):
        result = table.execute(plan)
    if result.rows != expected:
        raise RuntimeError(f"{step}: {result.rows:,} rows were written, but the table has {expected:,}")
