"""The results of the kernels of a write, and the result for the caller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.model import CompletionTime, RequestedTime, WriteStat

__all__ = ["WriteResult", "WrittenFile"]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task wrote, with the ranges of the columns that the metadata table wants."""

    stat: WriteStat
    column_ranges: tuple[ColumnRange, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class WriteResult:
    """The result of a write: one commit, even if nothing changed (a delete of keys that do not exist).

    Rows marked as deleted count as deleted; rows that lost against a newer version in the table are not counted.
    `counts_are_exact` is False if rows went into logs on top of others: only the merge of the logs shows which of them
    win, and in a bucket which of them are new. Until then they count as updated or deleted, which may be too many.
    `rows_deleted` is None if whole files were replaced, whose rows are not counted.

    `services` are the results of table services that ran after the write, and plans that it only scheduled.
    """

    operation: str
    instant: RequestedTime
    completed_at: CompletionTime | None
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int | None = 0
    files: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    bytes_written: int = 0
    seconds: float = 0.0
    lock_held_s: float = 0.0
    notes: tuple[str, ...] = field(default=())
    services: tuple[Any, ...] = ()
    counts_are_exact: bool = True

    def __repr__(self) -> str:
        most = "" if self.counts_are_exact else "up to "
        deleted = "all rows of the replaced files" if self.rows_deleted is None else f"{most}{self.rows_deleted:,}"
        rows = f"{self.rows_inserted:,} inserted, {most}{self.rows_updated:,} updated, {deleted} deleted"
        return f"{self.operation} {self.instant}: {rows}, {len(self.files)} files, {self.seconds:.2f} s"
