"""The life of a table with a straggler in every job: `python -m tests.support.straggler_life PLAN`, a `Plan` as JSON.

Prints a line of JSON for each operation: how its stragglers ended, the files of completed instants that no commit
names, and whether the rows are those of a model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tablekeeper as tk
from tablekeeper.snapshot.slices import load_files_by_listing, load_partitions_by_listing
from tablekeeper.timeline import load_timeline, load_written_paths
from tests.support.stragglers import SPECULATION, Stragglers, StragglingEngine

__all__ = ["OPERATIONS", "Plan", "main"]

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("v", pa.int64())])
OPTIONS = {
    "hoodie.block.writes.on.speculative.execution": "false",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.parquet.small.file.limit": "0",
}
CITIES = 3
PARTS = 4

Rows = dict[int, int]


def city_of(key: int) -> str:
    return f"c{key % CITIES}"


class Life:
    """A table and the rows that it must hold."""

    def __init__(self, spark: SparkSession, table: tk.Table) -> None:
        self.spark = spark
        self.table = table
        self.rows: Rows = {}

    def frame(self, first: int, last: int, v: int) -> DataFrame:
        rows = self.spark.range(first, last).selectExpr("id", f"concat('c', id % {CITIES}) as city", f"{v}L as v")
        return rows.repartition(PARTS)

    def put(self, operation: str, first: int, last: int, v: int) -> None:
        getattr(self.table, operation)(self.frame(first, last, v))
        self.rows.update(dict.fromkeys(range(first, last), v))

    def delete(self, first: int, last: int) -> None:
        self.table.delete(self.frame(first, last, 0).select("id", "city"))
        self.drop(lambda key: first <= key < last)

    def overwrite(self, operation: str, first: int, last: int, v: int) -> None:
        touched = {city_of(key) for key in range(first, last)}
        self.drop(lambda key: operation.endswith("table") or city_of(key) in touched)
        self.put(operation, first, last, v)

    def delete_partitions(self) -> None:
        self.table.delete_partitions([city_of(0)])
        self.drop(lambda key: city_of(key) == city_of(0))

    def drop(self, is_dropped: Callable[[int], bool]) -> None:
        self.rows = {key: v for key, v in self.rows.items() if not is_dropped(key)}

    def has_its_rows(self) -> bool:
        found = sorted((row["id"], row["city"], row["v"]) for row in self.table.read().collect())
        return found == sorted((key, city_of(key), v) for key, v in self.rows.items())

    def strays(self) -> list[str]:
        """Files of completed instants that no commit names: readers that list directories, as Java's do, take them."""
        storage, config = self.table._storage, self.table.config
        timeline = load_timeline(storage, config)
        named: set[str] = set()
        for instant in timeline.completed_writes:
            named |= load_written_paths(storage, config, instant)
        completed = {instant.requested_at.value for instant in timeline.completed_writes}
        partitions = load_partitions_by_listing(storage, runtime=self.table._runtime)
        listing = load_files_by_listing(storage, partitions, runtime=self.table._runtime)
        paths = {f"{partition}/{name}" for partition, files in listing.items() for name, _ in files}
        return sorted(path for path in paths - named if any(instant in path for instant in completed))


OPERATIONS: dict[str, Callable[[Life], object]] = {
    "bulk_insert": lambda life: life.put("bulk_insert", 0, 120, 1),
    "insert": lambda life: life.put("insert", 120, 180, 2),
    "upsert": lambda life: life.put("upsert", 60, 150, 3),
    "delete": lambda life: life.delete(0, 90),
    "log_compact": lambda life: life.table.log_compact(),
    "compact": lambda life: life.table.compact(),
    "cluster": lambda life: life.table.cluster(order_by=["id"]),
    "insert_overwrite": lambda life: life.overwrite("insert_overwrite", 300, 360, 4),
    "delete_partitions": lambda life: life.delete_partitions(),
    "insert_overwrite_table": lambda life: life.overwrite("insert_overwrite_table", 400, 460, 5),
}


@dataclass(frozen=True)
class Plan:
    """What a life is to be: on which cluster and store, how Spark treats slow tasks, and which operations it has.

    Stragglers sleep before they publish, and in every other operation after that, which is the first one's if
    `first_after`. They leave their files in `folder`.
    """

    master: str
    folder: str
    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=lambda: SPECULATION)
    operations: Sequence[str] = tuple(OPERATIONS)
    first_after: bool = False

    def encode(self) -> str:
        return json.dumps(asdict(self))


def main(text: str) -> None:
    plan = Plan(**json.loads(text))
    builder = SparkSession.builder.master(plan.master).appName("stragglers").config("spark.ui.enabled", "false")
    for name, value in plan.spark.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    engine = StragglingEngine(spark)
    table = tk.Table.create(
        plan.uri,
        name="t",
        schema=SCHEMA,
        key="id",
        partition_by="city",
        ordering="v",
        table_type="mor",
        options=OPTIONS,
        storage_options=plan.storage_options,
        engine=engine,
    )
    life = Life(spark, table)
    for number, name in enumerate(plan.operations):
        engine.stragglers = Stragglers(Path(plan.folder), after=number % 2 == (not plan.first_after))
        OPERATIONS[name](life)
        late = engine.stragglers.wake()
        engine.stragglers = None
        told = {"operation": name, "late": late, "strays": life.strays(), "has_its_rows": life.has_its_rows()}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
