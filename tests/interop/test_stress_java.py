"""A short stress run with Java: four processes of ours, some of them killed, and two Java writers on one table.

All share the lock file of Java's file system lock provider. `TK_STRESS_S=120` makes it a long one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.stress import NON_BLOCKING, make_table, run_writers
from tests.support.stress_java import java_writers
from tests.support.stress_judge import judge
from tests.support.stress_worker import StressPlan, open_table
from tests.support.table_builder import rows_of

__all__: list[str] = []

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
SECONDS = float(os.environ.get("TK_STRESS_S", "20"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [OPTIMISTIC, NON_BLOCKING], ids=["optimistic", "non_blocking"])
def test_java_and_killed_writers_of_ours_leave_a_table_that_tells_the_truth(
    spark: Any, tmp_path: Path, mode: dict[str, str]
) -> None:
    plan = StressPlan(table=str(tmp_path / "table"), folder=str(tmp_path), non_blocking=mode is NON_BLOCKING)
    make_table(plan, table_type="mor", options={**BUCKETS, **mode})
    with java_writers(spark, plan, options={**BUCKETS, **mode}, writers=2, seed=1):
        kills = run_writers(plan, writers=4, seconds=SECONDS, kill_every_s=5, seed=1)
    report = judge(plan, seconds=SECONDS, kills=kills)
    assert report.faults == [], report
    assert kills, report
    assert report.outcomes["committed"] > 0
    ours = rows_of(open_table(plan).read(), "id", "ts", "value")
    java = spark.read.format("hudi").load(plan.table).select("id", "ts", "value").collect()
    assert sorted(tuple(row) for row in java) == ours
