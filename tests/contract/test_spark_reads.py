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


@pytest.mark.parametrize("rebase", ["EXCEPTION", "LEGACY", "CORRECTED"])
def test_times_before_1900_are_read_as_they_were_written(rebase: str, spark: Any, tmp_path: Path) -> None:
    day, moment = dt.date(1066, 10, 14), dt.datetime(1, 1, 1, 12, 30)
    schema = pa.schema([("id", pa.string()), ("day", pa.date32()), ("at", pa.timestamp("us"))])
    make(tmp_path / "t", schema, table_type="cow").upsert(rows(("1", day, moment), schema=schema))
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", rebase)
    try:
        assert spark_rows(spark, tmp_path / "t") == [{"id": "1", "day": day, "at": moment}]
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


@pytest.mark.parametrize("group_bytes", [2000, 10**6], ids=["several row groups", "one row group"])
@pytest.mark.parametrize("where", ["x > 5", "x != 1", "not x <= 1", "deep.y >= 7"])
def test_not_a_number_is_above_every_number_in_files_that_spark_prunes(
    where: str, group_bytes: int, spark: Any, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.string()), ("x", pa.float64()), ("deep", pa.struct([("y", pa.float32())]))])
    options = {"hoodie.parquet.block.size": group_bytes}
    nan = float("nan")
    table = make(tmp_path / "t", schema, table_type="cow", options=options)
    plain = [(f"{number:02}", 1.0, {"y": 1.0}) for number in range(90)]
    table.upsert(rows(*plain, ("90", None, None), ("91", nan, {"y": nan}), ("92", 1.0, None), schema=schema))
    frame = tk.Table.open(str(tmp_path / "t"), spark=spark).read()
    assert [row["id"] for row in frame.where(where).collect()] == ["91"]


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
