"""The measures that tests compare rows by are those of Spark. (`test_java_writes` compares the judges themselves.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.history import history_seeds, make_history
from tests.support.java_hudi import JavaTable
from tests.support.rows import describe_difference, spark_json_rows

__all__: list[str] = []


@pytest.mark.parametrize("seed", history_seeds())
def test_our_conversion_to_spark_json_is_the_one_of_spark(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_history(seed)
    rows = history.shape.table([row for step in history.steps for row in step.rows])
    frame = JavaTable(spark, str(tmp_path / "t")).frame(rows)
    plain = [name for name in frame.columns if not name.startswith("_hoodie_")]
    of_spark = [row["row"] for row in frame.selectExpr(f"to_json(struct({','.join(plain)})) as row").collect()]
    assert not describe_difference(expected=sorted(of_spark), actual=spark_json_rows(rows))
