"""Random histories end in the rows that the plain model predicts, on both engines, with file sizes far too small.

The sizes make every mechanism run on a few rows: many row groups in a file, many files in a partition, small
files that are filled up, input that does not fit into one task. A failing seed replays with
`TK_SEED=… pytest tests/property/test_histories.py`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tests.support.history import History, Model, Step, history_seeds, make_history
from tests.support.rows import describe_difference, exact_rows

__all__: list[str] = []

_SIZES = {
    "hoodie.parquet.block.size": (200, 2_000, 10**8),
    "hoodie.parquet.max.file.size": (2_000, 8_000, 10**8),
    "hoodie.parquet.small.file.limit": (0, 4_000, 10**8),
    "hoodie.copyonwrite.record.size.estimate": (50, 1_024),
    "tablekeeper.write.task.memory.bytes": (500, 5_000, 10**8),
}


def _create(history: History, path: Path, schema: Any, **engine: Any) -> tk.Table:
    rng = random.Random(f"sizes {history.seed}")
    shape = history.shape
    return tk.Table.create(
        str(path),
        name=shape.name,
        schema=schema,
        key=shape.key,
        partition_by=shape.partition_by or None,
        ordering=shape.ordering,
        table_type=shape.table_type,
        options={**shape.options, **{name: rng.choice(sizes) for name, sizes in _SIZES.items()}},
        **engine,
    )


def _rows(history: History, step: Step) -> pa.Table:
    rows = history.shape.table(step.rows)
    if step.operation != "delete":
        return rows
    return rows.select(sorted({*history.shape.key, *history.shape.partition_by}))


def _check(history: History, what: str, *, expected: pa.Table, actual: pa.Table) -> None:
    difference = describe_difference(expected=exact_rows(expected), actual=exact_rows(actual))
    assert not difference, f"{what} of {history}\n{difference}"


@pytest.mark.parametrize("seed", history_seeds())
def test_the_local_engine_keeps_the_rows_of_the_model(seed: int, tmp_path: Path) -> None:
    history = make_history(seed, steps=7, metadata=False)
    table = _create(history, tmp_path / "t", history.shape.schema, engine="local")
    model, past = Model(history.shape), []
    for number, step in enumerate(history.steps):
        if step.operation == "delete_partitions":
            result = table.delete_partitions([history.shape.partition_path(values) for values in step.partitions])
        else:
            result = getattr(table, step.operation)(_rows(history, step))
        model.apply(step)
        _check(history, f"snapshot after step {number}", expected=model.table(), actual=table.read())
        past.append((result.instant, model.table()))
    for instant, expected in past:
        _check(history, f"as of {instant}", expected=expected, actual=table.read(as_of=instant.value))


@pytest.mark.parametrize("seed", history_seeds()[:4])
def test_the_spark_engine_keeps_the_rows_of_the_model(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_history(seed, steps=4, metadata=False)
    first = spark.createDataFrame(history.shape.table(history.steps[0].rows))
    table = _create(history, tmp_path / "t", first.schema, spark=spark)
    model = Model(history.shape)
    for number, step in enumerate(history.steps):
        if step.operation == "delete_partitions":
            table.delete_partitions([history.shape.partition_path(values) for values in step.partitions])
        else:
            getattr(table, step.operation)(spark.createDataFrame(_rows(history, step)))
        model.apply(step)
        _check(history, f"snapshot after step {number}", expected=model.table(), actual=table.read().toArrow())
