"""The judges agree among themselves: before they judge tablekeeper, the model, Java Hudi and hudi-rs are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import check_rows, java_step, java_table
from tests.support.history import Model, history_seeds, make_history
from tests.support.java_hudi import JavaTable, rust_read
from tests.support.rows import describe_difference, spark_json_rows

__all__: list[str] = []

TEST = "test_judges.py"


@pytest.mark.parametrize("seed", history_seeds())
def test_java_and_rust_agree_with_the_model_about_what_java_wrote(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_history(seed)
    java = java_table(spark, tmp_path / "t", history.shape)
    model = Model(history.shape)
    for number, step in enumerate(history.steps):
        java_step(java, history.shape, step)
        model.apply(step)
        check_rows("java snapshot", java.read(), model.table(), history=history, step=number, test=TEST)
        check_rows("hudi-rs", rust_read(java.path), model.table(), history=history, step=number, test=TEST)


@pytest.mark.parametrize("seed", history_seeds())
def test_our_conversion_to_spark_json_is_the_one_of_spark(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_history(seed)
    rows = history.shape.table([row for step in history.steps for row in step.rows])
    frame = JavaTable(spark, str(tmp_path / "t")).frame(rows)
    plain = [name for name in frame.columns if not name.startswith("_hoodie_")]
    of_spark = [row["row"] for row in frame.selectExpr(f"to_json(struct({','.join(plain)})) as row").collect()]
    assert not describe_difference(expected=sorted(of_spark), actual=spark_json_rows(rows))
