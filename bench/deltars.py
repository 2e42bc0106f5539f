"""delta-rs: the fastest writer of a comparable format from Python. Merges stand for upserts."""

from __future__ import annotations

import shutil
from pathlib import Path

from deltalake import DeltaTable, write_deltalake

from bench.workload import Job, aggregate, load, main

__all__ = ["run"]


def run(job: Job) -> None:
    """The copy-on-write half of the workload: Delta has no logs."""
    base, path = load(job.data / "base"), job.tables / "cow"
    write_deltalake(str(job.tables / "warm"), base.slice(0, 1000), partition_by=["p"])
    shutil.rmtree(job.tables / "warm")
    if job.wants("cow_bulk_insert"):
        with job.step("cow_bulk_insert"):
            write_deltalake(str(path), base, partition_by=["p"])
    del base
    if job.wants("cow_upsert"):
        _upsert(job, path)
    _read(job, path, "cow_read")
    if job.wants("cluster"):
        with job.step("cluster"):
            DeltaTable(str(path)).optimize.z_order(["i1"])
    _read(job, path, "cow_read_clustered")


def _upsert(job: Job, path: Path) -> None:
    update = load(job.data / "update1")
    with job.step("cow_upsert"):
        merge = DeltaTable(str(path)).merge(
            source=update, predicate="t.id = s.id and t.p = s.p", source_alias="s", target_alias="t"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _read(job: Job, path: Path, step: str) -> None:
    if job.wants(step):
        with job.step(step) as check:
            check(aggregate(DeltaTable(str(path)).to_pyarrow_dataset().to_table(columns=["f1", "s1"])))


if __name__ == "__main__":
    main(run)
