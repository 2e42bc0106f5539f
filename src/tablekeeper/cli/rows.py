"""Rows for the terminal: slice after slice, and no slice more than the limit needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tablekeeper.read.incremental import load_change_tasks
from tablekeeper.read.query import load_slice_tasks
from tablekeeper.read.slice_rows import read_slice
from tablekeeper.table import Table
from tablekeeper.table.times import load_window

__all__ = ["RowRequest", "load_rows"]


@dataclass(frozen=True, slots=True)
class RowRequest:
    """What to read; `since` or `until` make it an incremental read."""

    columns: tuple[str, ...] | None
    where: str | None
    as_of: str | None
    since: str | None
    until: str | None
    mode: str
    meta_columns: bool


def load_rows(table: Table, request: RowRequest, *, limit: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the rows asked for, at most `limit` of them (0: all), read as they are drawn."""
    query = table._load_query(
        columns=request.columns,
        where=request.where,
        as_of=request.as_of,
        mode=request.mode,
        meta_columns=request.meta_columns,
    )
    if request.since or request.until:
        tasks = load_change_tasks(query, load_window(query, since=request.since, until=request.until))
    else:
        tasks = load_slice_tasks(query)
    batches = (batch for task in tasks for batch in read_slice(task))
    return query.output, _first(batches, limit) if limit else batches


def _first(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        # Arrow takes no number that is longer than its own.
        yield batch.slice(0, min(limit, batch.num_rows))
        limit -= batch.num_rows
        if limit <= 0:
            return
