"""The tour of `make demo`, on a small table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tablekeeper.errors import TablekeeperError
from tablekeeper.examples.demo import STEPS, Tour, main
from tablekeeper.examples.lake import LAKE_STEPS, served_lake
from tablekeeper.examples.steps import Outcome, Step, run_steps
from tablekeeper.table import Table


def test_the_tour_works_and_says_what_it_did(spark: Any, table_path: str) -> None:
    printed = io.StringIO()
    tour = Tour(spark, table_path, rows=1000)
    run_steps(tour, Console(file=printed, width=160), steps=STEPS)
    text = printed.getvalue()
    assert [f"{number}. {step.title}" in text for number, step in enumerate(STEPS, start=1)] == [True] * len(STEPS)
    assert "1,000 rows inserted" in text
    assert "10 rows inserted, 48 rows updated" in text
    assert "5 rows deleted" in text
    assert "1,005 rows: base files and logs merged" in text
    assert Table.open(table_path, engine="local").read().num_rows == 1005


def test_a_step_that_finds_other_rows_than_it_must_ends_the_tour(table_path: str) -> None:
    def wrong(tour: Tour) -> Outcome:
        raise TablekeeperError("the tour expected 1 rows, and found 2")

    never: Step[Tour] = Step("Never reached", lambda tour: pytest.fail("the tour went on"))
    with pytest.raises(TablekeeperError, match="expected 1 rows"):
        run_steps(Tour(None, table_path, 1000), Console(file=io.StringIO()), steps=[Step("Count", wrong), never])


def test_too_few_rows_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--rows", "10"])
    assert left.value.code == 2
    assert "at least 1000" in capsys.readouterr().err


def test_the_lake_is_kept_by_the_service_and_its_reads_get_faster(tmp_path: Path) -> None:
    printed = io.StringIO()
    with served_lake(tmp_path, rows=2000, rounds=6) as lake:
        run_steps(lake, Console(file=printed, width=200), steps=LAKE_STEPS, first=17)
    text = printed.getvalue()
    assert [f"{number}. {step.title}" in text for number, step in enumerate(LAKE_STEPS, start=17)] == [True] * 7
    assert sum(each.logs for each in lake.after.values()) < sum(each.logs for each in lake.before.values()) / 2
    assert lake.written == 9
