"""A short stress run: processes write to one table, one of them is killed every now and then, nothing is lost.

Table services run beside them, and are killed too. `make stress` runs the long ones, on local files and on S3, with
both indexes and a process for each service.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stress import BUCKETS, NON_BLOCKING, make_table, run_writers
from tests.support.stress_judge import judge
from tests.support.stress_worker import StressPlan

__all__: list[str] = []

SECONDS = 4.0
# On a busy machine it takes longer until every service has succeeded.
MOST_S = 60.0
CASES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "cow_simple": ("cow", {}, ["clustering"]),
    "mor_simple": ("mor", {}, ["compaction", "log_compaction", "clustering"]),
    "mor_bucket": ("mor", BUCKETS, ["compaction", "log_compaction"]),
}
OTHERS = ["cancel", "clean", "archive", "read"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_writers_and_services_that_are_killed_at_random_leave_a_table_that_tells_the_truth(
    name: str, tmp_path: Path
) -> None:
    table_type, options, jobs = CASES[name]
    plan = StressPlan(table=str(tmp_path / "table"), folder=str(tmp_path)).beside([*jobs[:1], "clean"], rest_s=0.3)
    make_table(plan, table_type=table_type, options=options)
    services = [[*jobs, "executor"], OTHERS]
    kills = run_writers(plan, writers=2, seconds=SECONDS, kill_every_s=1.5, seed=1, services=services, most_s=MOST_S)
    report = judge(plan, seconds=SECONDS, kills=kills)
    assert report.faults == [], report
    assert report.outcomes["committed"] > 0


def test_writers_in_the_non_blocking_mode_never_lose_and_are_killed_without_harm(tmp_path: Path) -> None:
    plan = StressPlan(table=str(tmp_path / "table"), folder=str(tmp_path), non_blocking=True)
    make_table(plan, table_type="mor", options={**BUCKETS, **NON_BLOCKING})
    kills = run_writers(plan, writers=3, seconds=SECONDS, kill_every_s=1.5, seed=1)
    report = judge(plan, seconds=SECONDS, kills=kills)
    assert report.faults == [], report
    assert report.outcomes["committed"] > 0
