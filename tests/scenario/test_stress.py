"""A short stress run: processes write to one table, one of them is killed every now and then, nothing is lost.

`make stress` runs the long ones, on local files and on S3, with both indexes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stress import NON_BLOCKING, judge, make_table, run_writers
from tests.support.stress_worker import StressPlan

__all__: list[str] = []

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
SECONDS = 7.0


@pytest.mark.parametrize(
    ("table_type", "options"),
    [("cow", {}), ("mor", BUCKETS), ("mor", {**BUCKETS, **NON_BLOCKING})],
    ids=["cow_simple", "mor_bucket", "mor_non_blocking"],
)
def test_writers_that_are_killed_at_random_leave_a_table_that_tells_the_truth(
    table_type: str, options: dict[str, str], tmp_path: Path
) -> None:
    is_shared = NON_BLOCKING.items() <= options.items()
    plan = StressPlan(table=str(tmp_path / "table"), folder=str(tmp_path), non_blocking=is_shared)
    make_table(plan, table_type=table_type, options=options)
    kills = run_writers(plan, writers=3, seconds=SECONDS, kill_every_s=1.5, seed=1)
    report = judge(plan, seconds=SECONDS, kills=kills)
    assert report.faults == []
    assert report.outcomes["committed"] > 0
