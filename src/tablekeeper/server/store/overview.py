"""`OverviewStore`: the lake as a whole, for pages, metrics and rankings. A part of the job store (`protocol.py`)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tablekeeper.server.model import ManagedTable, Sample, Status
from tablekeeper.server.store.wanted import TableFilter

__all__ = ["Finished", "OverviewStore", "TableCounts", "TableOrder"]


class TableOrder(enum.Enum):
    """What tables are ranked by."""

    NAME = "name"
    BEHIND = "behind"
    BEHIND_FOR = "behind_for"
    PLANS = "plans"
    AMPLIFICATION = "amplification"
    QUEUE = "queue"
    PRIORITY = "priority"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Registered tables in numbers, each counted once: in quarantine, else paused, else behind, else none of these.

    Behind is what has delta commits that no compaction has seen.
    """

    tables: int
    paused: int
    quarantined: int
    behind: int


@dataclass(frozen=True, slots=True)
class Finished:
    """How many operations ended with a status in a bucket of time, which is counted from the epoch."""

    bucket: int
    status: Status
    operations: int


class OverviewStore(Protocol):
    """The lake as a whole."""

    def rank_tables(
        self, wanted: TableFilter, order: TableOrder, *, is_descending: bool, offset: int, limit: int
    ) -> list[ManagedTable]: ...

    def load_tables(self, table_ids: Sequence[int]) -> dict[int, ManagedTable]:
        """Those that there are, by their numbers."""
        ...

    def table_counts(self, wanted: TableFilter) -> TableCounts: ...

    def tables_behind(self, *, after: int, limit: int) -> list[tuple[int, str, str, int]]:
        """By number: the number, the database, the own policy as JSON text, and since when it is behind.

        Tables that are paused or in quarantine are left out.
        """
        ...

    def databases_with_policies(self) -> list[str]: ...

    def finished_operations(self, *, bucket_s: int, buckets: int) -> list[Finished]:
        """Operations that ended lately, counted in buckets of time."""
        ...

    def add_sample(self, sample: Sample) -> bool:
        """Keep it; False if another instance was faster with this minute."""
        ...

    def has_sample(self, minute: int) -> bool: ...

    def list_samples(self, *, since_minute: int) -> list[Sample]:
        """The oldest first."""
        ...

    def prune_samples(self, *, before_minute: int) -> int:
        """How many were deleted."""
        ...
