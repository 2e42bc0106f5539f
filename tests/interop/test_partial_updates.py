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
