"""The common workload: input data, the steps and how a contender reports them.

Data is made once per size with a fixed seed and kept as plain Parquet, so that every contender reads the same
rows: 12 columns, ten partitions, and three updates of 10 % each, spread over all partitions. A contender is a
module with a `run(job)` function; it times each step alone and writes one JSON line a step as it goes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

__all__ = ["PARTITIONS", "STEPS", "UPDATES", "Check", "Job", "aggregate", "generate", "java_logs", "load", "main"]

PARTITIONS = 10
UPDATES = (1, 2, 3)
STEPS = (
    "cow_bulk_insert",
    "cow_upsert",
    "cow_read",
    "mor_bulk_insert",
    "mor_upsert_1",
    "mor_upsert_2",
    "mor_upsert_3",
    "mor_read",
    "compact_schedule",
    "compact_run",
    "mor_read_compacted",
    "compact_java_logs",
    "cluster",
    "cow_read_clustered",
)
_FILES = 8
_SEED = 20261116


@dataclass(frozen=True)
class Check:
    """The aggregate that all contenders must agree on."""

    rows: int
    sum_f1: float
    max_s1: str

    def agrees(self, other: Check) -> bool:
        """Same rows, and the same sum but for the order of floating point additions."""
        close = abs(self.sum_f1 - other.sum_f1) <= 1e-6 * max(abs(self.sum_f1), 1.0)
        return self.rows == other.rows and self.max_s1 == other.max_s1 and close


@dataclass
class Job:
    """What one contender has to do, and where its figures go."""

    data: Path
    tables: Path
    results: Path
    steps: frozenset[str]
    done: list[str] = field(default_factory=list)

    def wants(self, step: str) -> bool:
        return step in self.steps

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[Check], None]]:
        """Time the body. A step that reads hands its aggregate to the function it is given."""
        checks: list[Check] = []
        self._write({"step": name, "state": "started"})
        started = time.perf_counter()
        yield checks.append
        seconds = time.perf_counter() - started
        entry: dict[str, Any] = {"step": name, "state": "done", "seconds": round(seconds, 3)}
        if checks:
            entry["check"] = vars(checks[-1])
        self.done.append(name)
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        with self.results.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(entry) + "\n")


def main(run: Callable[[Job], None]) -> None:
    """Entry point of a contender's own process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--steps", required=True)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.tables, ignore_errors=True)
    arguments.tables.mkdir(parents=True)
    run(Job(arguments.data, arguments.tables, arguments.results, frozenset(arguments.steps.split(","))))


def generate(rows: int, home: Path) -> Path:
    """Make the input of this size below `home`, or take what an earlier run left; its directory."""
    target = home / f"rows-{rows}"
    if (target / "complete").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    rng = np.random.default_rng(_SEED)
    bounds = np.linspace(0, rows, _FILES + 1, dtype=np.int64)
    for number in range(_FILES):
        _write(_rows(np.arange(bounds[number], bounds[number + 1]), rng), target / "base" / f"{number}.parquet")
    for update in UPDATES:
        ids = np.sort(rng.choice(rows, size=rows // 10, replace=False))
        changed = _rows(ids, rng)
        moment = pa.array(np.full(len(ids), update + 1, dtype=np.int64))
        changed = changed.set_column(changed.schema.get_field_index("ts"), "ts", moment)
        for number, part in enumerate(np.array_split(np.arange(len(ids)), 4)):
            _write(changed.take(pa.array(part)), target / f"update{update}" / f"{number}.parquet")
    (target / "complete").touch()
    return target


def load(directory: Path) -> pa.Table:
    """All rows of one input, in memory."""
    return ds.dataset(directory, format="parquet").to_table()


def java_logs(tables: Path) -> Path:
    """Where the Java contender leaves a copy of its MOR table as it is before the compaction, with Avro logs."""
    return tables.parent / "java" / "mor_with_logs"


def aggregate(table: pa.Table) -> Check:
    """The common aggregate over an Arrow table with the columns f1 and s1."""
    total = pc.sum(table.column("f1")).as_py()
    return Check(table.num_rows, total, pc.max(table.column("s1")).as_py())


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy", store_schema=False)


def _rows(ids: Any, rng: np.random.Generator) -> pa.Table:
    count = len(ids)
    cents = rng.integers(0, 10_000, count)
    return pa.table(
        {
            "id": pa.array(ids).cast(pa.string()),
            "p": pa.array(ids % PARTITIONS).cast(pa.string()),
            "ts": pa.array(np.ones(count, dtype=np.int64)),
            "f1": pa.array(rng.random(count)),
            "f2": pa.array(rng.random(count)),
            "i1": pa.array(rng.integers(0, 1_000_000, count, dtype=np.int32)),
            "l1": pa.array(rng.integers(0, 1_000_000, count, dtype=np.int64)),
            "s1": pa.array([hashlib.md5(str(i).encode()).hexdigest() for i in ids.tolist()]),
            "s2": pa.array([f"city_{n}" for n in rng.integers(0, 1000, count).tolist()]),
            "t1": pa.array(1_700_000_000_000_000 + 1000 * ids).cast(pa.timestamp("us", tz="UTC")),
            "d1": pa.array(cents / 100).cast(pa.decimal128(12, 2)),
            "b1": pa.array(rng.random(count) < 0.5),
        }
    )
