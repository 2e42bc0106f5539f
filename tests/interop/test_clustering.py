"""Clustering plans that we make and Java executes, and the other way round; nobody's rows change by it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tests.interop.peers import (
    ENGINES,
    Engine,
    Panel,
    check_rows,
    engine_of,
    java_step,
    last_completion,
    our_rows,
    our_step,
    our_table,
)
from tests.support.history import History, Model, history_seeds, make_history
from tests.support.rows import exact_rows

__all__: list[str] = []

TEST = "test_clustering"
# Tables without buckets. Each set has both types and merge modes, with and without metadata table.
PLANNED_BY_US = [seed for seed in history_seeds() if seed in (0, 9, 11)] or history_seeds()
PLANNED_BY_JAVA = [seed for seed in history_seeds() if seed in (1, 3, 8)] or history_seeds()
BEFORE = 4
pytestmark = pytest.mark.timeout(900)
META = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]


@dataclass
class Play:
    """One history with a clustering in the middle."""

    spark: Any
    path: Path
    history: History
    engine: Engine
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        self.model = Model(self.history.shape)

    @property
    def panel(self) -> Panel:
        return Panel(self.spark, self.path, self.history, TEST)

    @property
    def table(self) -> tk.Table:
        return our_table(self.spark, self.path, self.history.shape, engine=self.engine)

    def write(self, number: int) -> None:
        """Java writes the even steps, we the odd ones."""
        shape, step = self.history.shape, self.history.steps[number]
        if number % 2 == 0:
            java_step(self.panel.java, shape, step)
        else:
            our_step(self.table, self.panel.java, shape, step, engine=self.engine)
        self.model.apply(step)

    def go_on(self) -> None:
        """The rest of the history, by both in turn."""
        for number in range(BEFORE, len(self.history.steps)):
            self.write(number)
        self.panel.check_snapshot(self.model, len(self.history.steps) - 1)

    def meta(self) -> list[str]:
        """The meta columns that a clustering must not touch, as Java reads them."""
        return exact_rows(self.panel.java.read(), [*META, *self.history.shape.key])

    def check_clustered(self, meta: list[str], *, since: str, as_of: str) -> None:
        """Every query by every program gives what it gave before."""
        panel, expected = self.panel, self.model.table()
        panel.check_snapshot(self.model, BEFORE - 1)
        assert self.meta() == meta
        nothing = expected.slice(0, 0)
        panel.check_changes(nothing, BEFORE - 1, since=since)
        panel.check_changes(None, BEFORE - 1, since=None)
        self._check("java as of", panel.java.read_as_of(as_of), expected)
        self._check("java read optimized", panel.java.read_optimized(), expected)
        self._check_filters()
        for engine in ENGINES:
            self._check(f"{engine} as of", our_rows(self.spark, self.path, engine=engine, as_of=as_of), expected)
            rows = our_rows(self.spark, self.path, engine=engine, mode="read_optimized")
            self._check(f"{engine} read optimized", rows, expected)

    def _check_filters(self) -> None:
        """Statistics of the new files, in their footers and in the metadata table, prune no row that matches."""
        moments = sorted({row["ts"] for row in self.model.rows})
        for turn, moment in enumerate(moments[:: max(1, len(moments) // 3)]):
            is_time = isinstance(moment, dt.datetime)
            where = f"ts <= timestamp '{moment:%Y-%m-%d %H:%M:%S.%f}'" if is_time else f"ts <= {moment}"
            expected = self.history.shape.table([row for row in self.model.rows if row["ts"] <= moment])
            java = self.panel.java
            self._check(f"java where {where}", java.collect(java.scan().where(where)), expected)
            engine = ENGINES[turn % len(ENGINES)]
            rows = our_rows(self.spark, self.path, engine=engine, where=where)
            self._check(f"{engine} where {where}", rows, expected)

    def check_files_in_order(self, column: str, instant: str) -> None:
        """The base files of the clustering are sorted by the column, nulls first."""
        files = [file for file in self.path.rglob(f"*_{instant}.parquet") if ".hoodie" not in file.parts]
        assert files
        for file in files:
            values = pq.read_table(file, columns=[column], partitioning=None).column(column).to_pylist()
            assert values == sorted(values, key=lambda value: (value is not None, value))

    def _check(self, who: str, actual: pa.Table, expected: pa.Table) -> None:
        check_rows(who, actual, expected, history=self.history, step=BEFORE - 1, test=TEST)

    def last_instant(self) -> str:
        """Requested time of the newest completed instant."""
        names = [file.name for file in (self.path / ".hoodie" / "timeline").iterdir() if "_" in file.name]
        return max(name.split("_")[0] for name in names if not name.startswith("."))

    def pending(self) -> str:
        """The instant of the clustering plan that waits."""
        [file] = (self.path / ".hoodie" / "timeline").glob("[0-9]*.clustering.requested")
        return file.name.split(".")[0]


def _play(seed: int, spark: Any, tmp_path: Path) -> Play:
    play = Play(spark, tmp_path / "t", make_history(seed, steps=7), engine_of(seed))
    for number in range(BEFORE):
        play.write(number)
    return play


@pytest.mark.parametrize("seed", PLANNED_BY_US)
def test_java_carries_out_a_plan_that_we_made(seed: int, spark: Any, tmp_path: Path) -> None:
    play = _play(seed, spark, tmp_path)
    meta, since, as_of = play.meta(), last_completion(play.path), play.last_instant()
    plan = play.table.schedule_clustering(order_by="ts")
    assert plan is not None
    play.panel.check_snapshot(play.model, BEFORE - 1)

    # Without an order of its own Java takes the plan's.
    assert play.panel.java.execute_clustering()

    assert play.last_instant() == plan.instant.value
    play.check_files_in_order("ts", plan.instant.value)
    play.check_clustered(meta, since=since, as_of=as_of)
    play.go_on()


@pytest.mark.parametrize("seed", PLANNED_BY_JAVA)
def test_we_carry_out_a_plan_that_java_made(seed: int, spark: Any, tmp_path: Path) -> None:
    play = _play(seed, spark, tmp_path)
    meta, since, as_of = play.meta(), last_completion(play.path), play.last_instant()
    play.panel.java.schedule_clustering(order="ts")
    instant = play.pending()

    result = play.table.execute(instant)

    assert result.outcome == "completed"
    assert result.rows == len(play.model.rows)
    play.check_files_in_order("ts", instant)
    play.check_clustered(meta, since=since, as_of=as_of)
    play.go_on()


@pytest.mark.parametrize(("layout", "seed"), [("zorder", 8), ("hilbert", 9)])
def test_everyone_reads_what_we_laid_along_a_curve(seed: int, layout: str, spark: Any, tmp_path: Path) -> None:
    play = _play(seed, spark, tmp_path)
    meta, since, as_of = play.meta(), last_completion(play.path), play.last_instant()
    result = play.table.cluster(order_by=["ts", *play.history.shape.key], strategy=layout)
    assert result is not None
    play.check_clustered(meta, since=since, as_of=as_of)
    play.go_on()
