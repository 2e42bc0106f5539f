"""Filters on a table whose metadata table Java made and we kept in step: no program's pruning loses a row."""

from __future__ import annotations

import datetime as dt
import operator
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tests.interop.peers import ENGINES, Panel, check_rows, java_step, our_rows, our_step, our_table
from tests.support.history import History, Model, make_history
from tests.support.java_hudi import JavaTable, rust_read

__all__: list[str] = []

TEST = "test_filters"
# All shapes with a metadata table; each half has every pair of table type, merge mode and index.
ONE_HALF, OTHER_HALF = (8, 11, 13, 14), (9, 10, 12, 15)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {"=": operator.eq, ">": operator.gt, "<=": operator.le}


def _sql(value: Any) -> str | None:
    """A literal that Spark SQL and tablekeeper read the same way; None if this value has no simple one."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return f"timestamp '{value.strftime('%Y-%m-%d %H:%M:%S.%f')}'"
    if isinstance(value, dt.date):
        return f"date '{value.isoformat()}'"
    if isinstance(value, str):
        return f"'{value}'" if not set(value) & set("'\"\\\t") else None
    if isinstance(value, float):
        return f"{value!r}e0" if 1e-3 < abs(value) < 1e6 else None
    return str(value) if isinstance(value, int | Decimal) and -(2**31) < value < 2**31 else None


def _filters(history: History, model: Model, *, step: int, count: int) -> list[tuple[str, str, str, pa.Table]]:
    """Column, operator, literal and the rows that must be found: columns against values that they hold."""
    rng = random.Random(f"{history.seed} {step}")
    found = []
    for field in history.shape.schema:
        held = [(row[field.name], _sql(row[field.name])) for row in model.rows]
        usable = sorted({(sql, value) for value, sql in held if sql is not None}, key=lambda pair: pair[0])
        for sql, value in rng.sample(usable, k=min(2, len(usable))):
            sign = rng.choice(sorted(_COMPARE))
            rows = [r for r in model.rows if r[field.name] is not None and _COMPARE[sign](r[field.name], value)]
            found.append((field.name, sign, sql, history.shape.table(rows)))
    return rng.sample(found, k=min(count, len(found)))


@pytest.mark.parametrize("seed", ONE_HALF)
def test_filters_find_all_rows_after_each_of_our_commits(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_history(seed)
    shape, path = history.shape, tmp_path / "t"
    panel, model = Panel(spark, path, history, TEST), Model(history.shape)
    java_step(panel.java, shape, history.steps[0])
    model.apply(history.steps[0])
    for number, step in enumerate(history.steps[1:], start=1):
        our_step(our_table(spark, path, shape, engine="local"), panel.java, shape, step, engine="local")
        model.apply(step)
        for turn, (column, sign, literal, expected) in enumerate(_filters(history, model, step=number, count=5)):
            where = f"{column} {sign} {literal}"
            engine = ENGINES[turn % len(ENGINES)]
            found = {
                "java": panel.java.collect(panel.java.scan().where(where)),
                engine: our_rows(spark, path, engine=engine, where=where),
            }
            if pa.types.is_integer(shape.schema.field(column).type) or pa.types.is_string(
                shape.schema.field(column).type
            ):
                found["hudi-rs"] = rust_read(str(path), filters=[(column, sign, literal.strip("'"))])
            for who, rows in found.items():
                check_rows(f"{who} where {where}", rows, expected, history=history, step=number, test=TEST)


@pytest.mark.parametrize("seed", OTHER_HALF)
def test_java_keeps_the_metadata_table_that_we_wrote_to(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_history(seed)
    shape, path = history.shape, tmp_path / "t"
    panel, model = Panel(spark, path, history, TEST), Model(history.shape)
    for number, step in enumerate(history.steps):
        if number % 2 == 0:
            java_step(panel.java, shape, step)
        else:
            our_step(our_table(spark, path, shape, engine="local"), panel.java, shape, step, engine="local")
        model.apply(step)
    last = len(history.steps) - 1
    panel.check_snapshot(model, last)
    for column, sign, literal, expected in _filters(history, model, step=last, count=8):
        where = f"{column} {sign} {literal}"
        rows = panel.java.collect(panel.java.scan().where(where))
        check_rows(f"java where {where}", rows, expected, history=history, step=last, test=TEST)


def test_java_finds_not_a_number_above_every_number_in_our_files(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("ratio", pa.float64())])
    columns = {"id": [1, 2, 3], "ratio": [1.0, float("nan"), None]}
    path = str(tmp_path / "t")
    table = tk.Table.create(path, name="t", schema=schema, key="id", table_type="cow", engine="local")
    table.upsert(pa.table(columns, schema=schema))
    for where in ("ratio > 5", "ratio != 1"):
        assert JavaTable(spark, path).scan().where(where).count() == 1


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_java_skips_no_file_of_ours_for_its_statistics_of_not_a_number(
    table_type: str, spark: Any, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("city", pa.string()), ("ratio", pa.float64())])
    statistics = {"hoodie.metadata.enable": "true", "hoodie.metadata.index.column.stats.enable": "true"}
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering=None, table_type=table_type, extra=statistics
    )
    java, nan = JavaTable(spark, str(tmp_path / "t"), options), float("nan")
    java.write(pa.table({"id": [1], "city": ["sf"], "ratio": [1.0]}, schema=schema), "insert", mode="overwrite")
    ours = tk.Table.open(java.path, engine="local")
    cities = ["sf", "sf", "la"]
    ours.bulk_insert(pa.table({"id": [2, 3, 4], "city": cities, "ratio": [1.0, nan, nan]}, schema=schema))
    ours.upsert(pa.table({"id": [2, 5, 6], "city": cities, "ratio": [1.0, nan, nan]}, schema=schema))
    for where, count in {"ratio > 5": 4, "ratio = 1": 2, "ratio <= 1 and id > 0": 2, "not ratio < 5": 4}.items():
        assert java.scan(hoodie__enable__data__skipping="true").where(where).count() == count, where
