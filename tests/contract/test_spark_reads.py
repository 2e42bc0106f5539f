"""Reads on the Spark engine where Spark itself is particular: types, paths, and errors in its workers."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk

__all__: list[str] = []

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string())])


def make(path: Path, schema: pa.Schema = SCHEMA, **options: Any) -> tk.Table:
    return tk.Table.create(str(path), name="t", schema=schema, key="id", engine="local", **options)


def rows(*values: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, each, strict=True)) for each in values], schema=schema)


def spark_rows(spark: Any, path: Path) -> list[dict[str, Any]]:
    frame = tk.Table.open(str(path), spark=spark).read()
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: str(row["id"]))


@pytest.mark.parametrize("log_format", ["parquet", "avro"])
def test_milliseconds_below_logs_arrive_at_any_depth(log_format: str, spark: Any, tmp_path: Path) -> None:
    moment = dt.datetime(2024, 3, 4, 5, 6, 7, 8000)
    millis = pa.timestamp("ms")
    schema = pa.schema(
        [("id", pa.string()), ("at", millis), ("list", pa.list_(millis)), ("deep", pa.struct([("at", millis)]))]
    )
    options = {"hoodie.logfile.data.block.format": log_format}
    table = make(tmp_path / "t", schema, table_type="mor", options=options)
    full = {"at": moment, "list": [moment], "deep": {"at": moment}}
    table.upsert(rows(("1", moment, [moment], {"at": moment}), ("2", None, None, None), schema=schema))
    table.upsert(rows(("2", moment, [moment], {"at": moment}), schema=schema))
    assert spark_rows(spark, tmp_path / "t") == [{"id": "1", **full}, {"id": "2", **full}]


@pytest.mark.parametrize("name", ["[a]", "a*b", "{x}", "a?c", "a\\b", "a b"])
def test_partitions_that_look_like_patterns_are_read_once(name: str, spark: Any, tmp_path: Path) -> None:
    table = make(tmp_path / "t", partition_by="p")
    table.upsert(rows(("1", name), ("2", "axb"), ("3", "abc")))
    expected = [{"id": "1", "p": name}, {"id": "2", "p": "axb"}, {"id": "3", "p": "abc"}]
    assert spark_rows(spark, tmp_path / "t") == expected


def test_an_error_of_ours_in_a_worker_is_raised_as_itself_by_the_write_that_met_it(spark: Any, tmp_path: Path) -> None:
    source = make(tmp_path / "source", table_type="mor")
    source.upsert(rows(("1", "a")))
    source.upsert(rows(("1", "b")))
    frame = tk.Table.open(str(tmp_path / "source"), spark=spark).read()
    for base in (tmp_path / "source").glob("*.parquet"):
        base.write_bytes(b"no Parquet file")
    make(tmp_path / "target")
    target = tk.Table.open(str(tmp_path / "target"), spark=spark)
    with pytest.raises(tk.CorruptTableError) as raised:
        target.upsert(frame)
    assert raised.value.file.endswith(".parquet")
    assert "not a readable Parquet file" in raised.value.reason
    assert not target.timeline().instants
