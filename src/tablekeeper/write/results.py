"""What the kernels of a write bring back, and what the caller of a write gets."""

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


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Outcome of a write: one commit, also where nothing changed (a delete of keys that are not there).

    Rows that go into a log on top of a bucket count as updated, new or not: nobody looks. `services` are the results
    of table services that ran after the write, and plans that it only put on the timeline.
    """

    operation: str
    instant: RequestedTime
    completed_at: CompletionTime | None
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    files: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    bytes_written: int = 0
    seconds: float = 0.0
    lock_held_s: float = 0.0
    notes: tuple[str, ...] = field(default=())
    services: tuple[Any, ...] = ()

    def __str__(self) -> str:
        rows = f"{self.rows_inserted:,} inserted, {self.rows_updated:,} updated, {self.rows_deleted:,} deleted"
        return f"{self.operation} {self.instant}: {rows}, {len(self.files)} files, {self.seconds:.2f} s"
