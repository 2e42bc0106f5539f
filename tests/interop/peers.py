"""Every program's answer to the same question about a table, compared with the rows that must be there.

A mismatch names the program, the query, the step and the command that replays the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.history import History, Shape, Step
from tests.support.java_hudi import JavaTable
from tests.support.rows import describe_difference, exact_rows

__all__ = ["check_rows", "java_step", "java_table", "partition_path"]


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
    """Let Java carry out one step of a history."""
    if step.operation == "delete_partitions":
        table.delete_partitions([partition_path(shape, values) for values in step.partitions], shape.table([]))
    else:
        table.write(shape.table(step.rows), step.operation)


_ESCAPED = set("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(0x20)}


def partition_path(shape: Shape, values: Sequence[Any]) -> str:
    """The path that Hudi gives a partition, spelled out here once more so that the judge owes nothing to the judged."""
    parts = []
    for name, value in zip(shape.partition_by, values, strict=True):
        text = str(value)
        if shape.url_encode:
            text = "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)
        parts.append(f"{name}={text}" if shape.hive_style else text)
    return "/".join(parts)


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
        f"{who} after step {step} ({history.steps[step]}) of {history}\n{difference}\n"
        f'replay: TK_SEED={history.seed} make interop PYTEST_ARGS="-k {test}"'
    )
