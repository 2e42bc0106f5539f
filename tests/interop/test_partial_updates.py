"""Partial updates, which Java's MERGE INTO writes on merge-on-read tables, read as Java reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64()), ("w", pa.string())])


def _rows(*rows: tuple[str, str, int, str]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def _as_java_reads(spark: Any, path: Path) -> list[dict[str, Any]]:
    frame = spark.read.format("hudi").load(str(path)).select(*SCHEMA.names)
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: str(row["id"]))


@pytest.mark.parametrize("ordering", ["v", None], ids=["event time", "commit time"])
def test_partial_updates_by_java_read_as_java_reads_them(spark: Any, tmp_path: Path, ordering: str | None) -> None:
    path = tmp_path / "t"
    table = tk.Table.create(
        path, name="partials", schema=SCHEMA, key="id", ordering=ordering, table_type="mor", engine="local"
    )
    table.upsert(_rows(*((f"k{i}", "a", 1, "w") for i in range(5))))
    spark.sql("drop table if exists partials")
    spark.sql(f"create table partials using hudi location '{path}'")
    try:
        for source, change in (
            ("select 'k1' as id, 'merged' as p, 5L as v", "p = s.p, v = s.v"),
            ("select 'k1' as id, 'ww' as w, 6L as v union all select 'k2', 'stale?', 0L", "w = s.w, v = s.v"),
        ):
            spark.sql(
                f"merge into partials using ({source}) s on partials.id = s.id when matched then update set {change}"
            )
        assert any(s.logs for s in table.files()), "Java wrote no log: the test has lost its point"
        assert table.read().sort_by("id").to_pylist() == _as_java_reads(spark, path)
        matching = table.read(where="w = 'ww'").to_pylist()
        assert matching == [{"id": "k1", "p": "merged", "v": 6, "w": "ww"}]
        table.upsert(_rows(("k1", "whole", 7, "again")))
        assert table.read().sort_by("id").to_pylist() == _as_java_reads(spark, path)
    finally:
        spark.sql("drop table if exists partials")


Step = tuple[str, str, int]
"""What Java does, to which key, with which ordering value.

`p` and `w` are statements that update that column, `whole` an upsert of a row, `gone` a delete with an ordering value.
Left out is what Java's own reader fails on: a row after a delete, and half a row where a statement matched nothing.
"""
STEPS: dict[str, tuple[Step, ...]] = {
    "late columns": (("p", "k1", 7), ("w", "k1", 6), ("p", "k2", 3)),
    "early columns": (("p", "k2", 3), ("w", "k2", 8), ("w", "k1", 2)),
    "late deletes": (("p", "k1", 7), ("gone", "k1", 6), ("w", "k2", 6), ("gone", "k2", 7), ("gone", "k3", 4)),
    "whole rows": (("p", "k1", 7), ("whole", "k1", 6), ("whole", "k2", 7), ("w", "k2", 6), ("whole", "k3", 9)),
}


class Merging:
    """A table of five rows that Java changes step by step."""

    def __init__(self, spark: Any, path: Path, *, ordering: str | None) -> None:
        self.spark, self.path = spark, path
        self.table = tk.Table.create(
            path, name="partials", schema=SCHEMA, key="id", ordering=ordering, table_type="mor", engine="local"
        )
        self.table.upsert(_rows(*((f"k{i}", "a", 5, "w") for i in range(5))))
        spark.sql("drop table if exists partials")
        spark.sql(f"create table partials using hudi location '{path}'")

    def change(self, step: Step) -> None:
        kind, key, value = step
        text = f"{kind}{value}"
        if kind in ("p", "w"):
            source = f"select '{key}' as id, '{text}' as {kind}, {value}L as v"
            matched = f"when matched then update set {kind} = s.{kind}, v = s.v"
            self.spark.sql(f"merge into partials using ({source}) s on partials.id = s.id {matched}")
            return
        frame = self.spark.createDataFrame([(key, text, value, text)], "id string, p string, v long, w string")
        options = {
            "hoodie.table.name": "partials",
            "hoodie.compact.inline.max.delta.commits": "100",
            "hoodie.datasource.write.operation": "delete" if kind == "gone" else "upsert",
        }
        frame.write.format("hudi").options(**options).mode("append").save(str(self.path))


@pytest.mark.parametrize("ordering", ["v", None], ids=["event time", "commit time"])
@pytest.mark.parametrize("name", sorted(STEPS))
def test_partial_updates_rows_and_deletes_of_java_read_as_java_reads_them(
    spark: Any, tmp_path: Path, ordering: str | None, name: str
) -> None:
    merging = Merging(spark, tmp_path / "t", ordering=ordering)
    try:
        for step in STEPS[name]:
            merging.change(step)
            rows = merging.table.read().sort_by("id").to_pylist()
            assert rows == _as_java_reads(spark, merging.path), f"after {step}"
        assert merging.table.compact() is not None
        assert merging.table.read().sort_by("id").to_pylist() == rows
        assert _as_java_reads(spark, merging.path) == rows
    finally:
        spark.sql("drop table if exists partials")
