"""Bare pyarrow: the work of the services without any table around it, as the limit to measure ours against.

Two threads, one file group a partition: read the base file and its three logs, keep the newest row of a key
with `index_in` and `take`, write zstd. Clustering is a sort by one column.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.workload import PARTITIONS, UPDATES, Job, aggregate, load, main

__all__ = ["run"]


def run(job: Job) -> None:
    """Bulk insert, upserts as plain files, snapshot, compaction and clustering."""
    home = job.tables
    _store(job, "mor_bulk_insert", source="base", target=home / "base")
    for update in UPDATES:
        _store(job, f"mor_upsert_{update}", source=f"update{update}", target=home / f"log{update}")
    with job.step("mor_read") as check:
        columns = ["id", "f1", "s1"]
        check(aggregate(pa.concat_tables(_each(lambda p: _merged(home, p, columns)))))
    with job.step("compact_run"):
        _each(lambda p: _write(_merged(home, p, None), home / "compacted" / f"{p}.parquet"))
    with job.step("mor_read_compacted") as check:
        parts = _each(lambda p: pq.read_table(home / "compacted" / f"{p}.parquet", columns=["f1", "s1"]))
        check(aggregate(pa.concat_tables(parts)))
    with job.step("cluster"):
        _each(lambda p: _cluster(home, p))


def _store(job: Job, step: str, *, source: str, target: Path) -> None:
    rows = load(job.data / source)
    with job.step(step):
        _each(lambda p: _write(_partition(rows, p), target / f"{p}.parquet"))


def _each(work: Callable[[int], pa.Table | None]) -> list[pa.Table]:
    with ThreadPoolExecutor(2) as pool:
        return [result for result in pool.map(work, range(PARTITIONS)) if result is not None]


def _partition(table: pa.Table, partition: int) -> pa.Table:
    return table.filter(pc.equal(table.column("p"), str(partition)))


def _merged(home: Path, partition: int, columns: list[str] | None) -> pa.Table:
    newest = pq.read_table(home / "base" / f"{partition}.parquet", columns=columns)
    for update in UPDATES:
        log = pq.read_table(home / f"log{update}" / f"{partition}.parquet", columns=columns)
        newest = _overlay(newest, log)
    return newest


def _overlay(old: pa.Table, new: pa.Table) -> pa.Table:
    """`old` with the rows of `new` in place of those with the same id, in the order of `old`."""
    at = pc.index_in(old.column("id"), value_set=new.column("id"))
    own = pa.array(range(old.num_rows), pa.int64())
    chosen = pc.if_else(pc.is_null(at), own, pc.add(at.cast(pa.int64()), old.num_rows))
    return pa.concat_tables([old, new]).take(chosen)


def _cluster(home: Path, partition: int) -> None:
    rows = pq.read_table(home / "compacted" / f"{partition}.parquet").sort_by("i1")
    _write(rows, home / "clustered" / f"{partition}.parquet")


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


if __name__ == "__main__":
    main(run)
