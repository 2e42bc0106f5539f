"""Every program's answer to the same question about a table, compared with the rows that must be there.

A mismatch names the program, the query, the step and the command that replays the history.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

import tablekeeper as tk
from tests.support.history import History, Model, Shape, Step
from tests.support.java_hudi import JavaTable, rust_read
from tests.support.rows import describe_difference, exact_rows

__all__ = [
    "ENGINES",
    "Engine",
    "Panel",
    "check_rows",
    "engine_of",
    "java_step",
    "java_table",
    "last_completion",
    "our_rows",
    "our_step",
    "our_table",
    "panel_at",
    "replay_command",
]

Engine = Literal["local", "spark"]
ENGINES: tuple[Engine, ...] = ("local", "spark")


def engine_of(seed: int) -> Engine:
    """The engine that writes a seed's history: half of them on each, whatever their shape."""
    return random.Random(f"engine {seed}").choice(ENGINES)


def java_table(spark: Any, path: Path, shape: Shape) -> JavaTable:
    """The table as Java sees it, with writer options for its shape."""
    options = JavaTable.options_for(
        name=shape.name,
        key=shape.key,
        partition_by=shape.partition_by,
        ordering=shape.ordering,
        table_type=shape.table_type,
        extra=shape.options,
    )
    return JavaTable(spark, str(path), options)


def java_step(table: JavaTable, shape: Shape, step: Step) -> None:
    """Let Java execute one step of a history."""
    if step.operation == "delete_partitions":
        table.delete_partitions([shape.partition_path(values) for values in step.partitions], shape.table([]))
    else:
        table.write(shape.table(step.rows), step.operation)


def our_table(spark: Any, path: Path, shape: Shape, *, engine: Engine) -> tk.Table:
    """The table as tablekeeper opens it, made if it is not there yet."""
    chosen = {"spark": spark} if engine == "spark" else {"engine": "local"}
    if (path / ".hoodie").exists():
        return tk.Table.open(str(path), options=shape.options, **chosen)
    return tk.Table.create(
        str(path),
        name=shape.name,
        schema=shape.schema if engine == "local" else from_arrow_schema(shape.schema),
        key=shape.key,
        partition_by=shape.partition_by or None,
        ordering=shape.ordering,
        table_type=shape.table_type,
        options=shape.options,
        **chosen,
    )


def our_step(table: tk.Table, java: JavaTable, shape: Shape, step: Step, *, engine: Engine) -> tk.WriteResult:
    """Let tablekeeper execute one step. Deletes get the key and partition columns only."""
    if step.operation == "delete_partitions":
        return table.delete_partitions([shape.partition_path(values) for values in step.partitions])
    rows = shape.table(step.rows)
    if step.operation == "delete":
        rows = rows.select([*shape.key, *(name for name in shape.partition_by if name not in shape.key)])
    write: Callable[[Any], tk.WriteResult] = getattr(table, step.operation)
    return write(java.frame(rows) if engine == "spark" else rows)


def our_rows(spark: Any, path: Path, *, engine: Engine, **query: Any) -> pa.Table:
    """What `Table.read` gives for this query, or `Table.changes` if it says `since`, as Arrow."""
    chosen = {"spark": spark} if engine == "spark" else {"engine": "local"}
    table = tk.Table.open(str(path), **chosen)
    rows = table.changes(**query) if "since" in query else table.read(**query)
    return JavaTable(spark, str(path)).collect(rows) if engine == "spark" else rows


@dataclass(frozen=True)
class Panel:
    """All programs around one table, asked after each step; of tablekeeper these engines."""

    spark: Any
    path: Path
    history: History
    test: str
    engines: tuple[Engine, ...] = ENGINES

    @property
    def java(self) -> JavaTable:
        return java_table(self.spark, self.path, self.history.shape)

    def check_snapshot(self, model: Model, step: int) -> None:
        """Java, hudi-rs and both engines of tablekeeper read exactly the model's rows."""
        expected = model.table()
        self._check("java snapshot", self.java.read(), expected, step)
        self._check("hudi-rs snapshot", rust_read(str(self.path)), expected, step)
        for engine in self.engines:
            self._check(f"tablekeeper {engine}", our_rows(self.spark, self.path, engine=engine), expected, step)

    def check_read_optimized(self, model: Model, step: int) -> None:
        """Base files only: the snapshot on COW; on MOR all programs see the same part of it."""
        of_java = self.java.read_optimized()
        expected = model.table()
        if self.history.shape.table_type == "mor":
            expected = of_java.select(expected.column_names)
        self._check("java read optimized", of_java, expected, step)
        for engine in self.engines:
            rows = our_rows(self.spark, self.path, engine=engine, mode="read_optimized")
            self._check(f"tablekeeper {engine} read optimized", rows, expected, step)

    def check_changes(self, expected: pa.Table | None, step: int, *, since: str | None) -> None:
        """Incremental queries of Java and both engines give `expected`, or what Java gives if it is None."""
        shape, of_java = self.history.shape, self.java.changes(since=since or "000")
        # Java takes partition values of an incremental query from the path, and leaves them escaped.
        unreliable = set(shape.partition_by) if shape.url_encode else set()
        reliable = [name for name in shape.schema.names if name not in unreliable]
        if expected is None:
            expected = of_java.select(reliable)
        self._check("java incremental", of_java, expected.select(reliable), step)
        for engine in self.engines:
            rows = our_rows(self.spark, self.path, engine=engine, since=since)
            self._check(f"tablekeeper {engine} changes", rows, expected, step)

    def _check(self, who: str, actual: pa.Table, expected: pa.Table, step: int) -> None:
        check_rows(who, actual, expected, history=self.history, step=step, test=self.test)


def panel_at(panel: Panel, step: int) -> Panel:
    """The panel with one of our engines, now this, now that, and after the last step of the history with both."""
    if step == len(panel.history.steps) - 1:
        return panel
    return replace(panel, engines=(random.Random(f"engine {panel.history.seed} {step}").choice(ENGINES),))


def last_completion(path: Path) -> str:
    """The newest completion time on the timeline, from the file names alone."""
    names = [file.name for file in (path / ".hoodie" / "timeline").iterdir() if not file.name.startswith(".")]
    return max(name.split("_")[1].split(".")[0] for name in names if "_" in name)


def check_rows(who: str, actual: pa.Table, expected: pa.Table, *, history: History, step: int, test: str) -> None:
    """Fail with the difference and the replay command unless `actual` holds exactly the rows of `expected`."""
    if actual.num_rows == 0 and expected.num_rows == 0:
        return
    columns = sorted(expected.column_names)
    missing = [name for name in columns if name not in actual.column_names]
    difference = (
        f"columns {missing} are missing"
        if missing
        else describe_difference(expected=exact_rows(expected, columns), actual=exact_rows(actual, columns))
    )
    assert not difference, (
        f"{who} after step {step} ({history.steps[step]}) of {history}\n{difference}\n{replay_command(history, test)}"
    )


def replay_command(history: History, test: str) -> str:
    """How to play this history again."""
    return f'replay: TK_SEED={history.seed} make interop PYTEST_ARGS="-k {test}"'
