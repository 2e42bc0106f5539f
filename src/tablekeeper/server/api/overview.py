"""What is asked about the lake as a whole, and what is foreseen for one table. Answers are plain JSON values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.api.shown import shown_table
from tablekeeper.server.decisions.due import REMEMBERED, foresee
from tablekeeper.server.model import ManagedTable, Role
from tablekeeper.server.store.fruitless import load_found_nothing
from tablekeeper.server.store.overview import TableOrder
from tablekeeper.server.store.protocol import JobStore
from tablekeeper.server.store.wanted import TableFilter
from tablekeeper.table.summary import TimelineSummary

__all__ = ["OverviewCalls", "within"]

MOST_BUCKETS = 96
_MINUTES_PER_HOUR = 60
_MOST_HOURS = 14 * 24


def within(caller: Caller, wanted: TableFilter) -> TableFilter:
    """The same tables as far as the caller may see them."""
    return replace(wanted, databases=caller.databases, path_prefixes=caller.path_prefixes)


class OverviewCalls:
    """The calls behind the overview, the ranking of tables and `tablekeeper service top`."""

    def __init__(self, store: JobStore, look: Callable[[str], TimelineSummary]) -> None:
        self._store = store
        self._look = look

    def health(self, caller: Caller) -> dict[str, Any]:
        """Tables that the caller may see, each counted once, and the work on them.

        `late` is of the newest sample, at most a minute old.
        """
        caller.require(Role.VIEWER)
        counts = asdict(self._store.table_counts(within(caller, TableFilter())))
        work = {"waiting": 0, "running": 0, "quarantined_operations": 0}
        names = {
            "pending": "waiting",
            "claimed": "running",
            "running": "running",
            "quarantined": "quarantined_operations",
        }
        for depth in self._store.queue_depths(within(caller, TableFilter())):
            if depth.status.word in names:
                work[names[depth.status.word]] += depth.operations
        newest = self._store.list_samples(since_minute=self._store.now_ms() // 60_000 - 2)
        late = min(newest[-1].late, counts["behind"]) if newest and caller.sees_everything else 0
        return {**counts, "late": late, **work}

    def history(self, caller: Caller, *, hours: int) -> dict[str, Any]:
        """Samples of the last hours, and operations that ended in them by bucket of time.

        They are of the whole lake, so that a caller with limits gets none.
        """
        caller.require(Role.VIEWER)
        hours = max(1, min(hours, _MOST_HOURS))
        now_ms = self._store.now_ms()
        minutes = hours * _MINUTES_PER_HOUR
        bucket_s = max(60, minutes * 60 // MOST_BUCKETS // 60 * 60)
        sees_lake = caller.sees_everything
        samples = self._store.list_samples(since_minute=now_ms // 60_000 - minutes) if sees_lake else []
        every = max(1, len(samples) // (2 * MOST_BUCKETS))
        buckets = minutes * 60 // bucket_s
        finished = self._store.finished_operations(bucket_s=bucket_s, buckets=buckets) if sees_lake else []
        return {
            "now_ms": now_ms,
            "hours": hours,
            "bucket_s": bucket_s,
            # The newest of each group stays, so that the end of a plot is what the tiles say.
            "samples": [asdict(each) for each in samples[::-1][::every][::-1]],
            "finished": [
                {"bucket": each.bucket, "status": each.status.word, "operations": each.operations} for each in finished
            ],
        }

    def rank_tables(
        self, caller: Caller, wanted: TableFilter, order: TableOrder, *, is_descending: bool, offset: int, limit: int
    ) -> dict[str, Any]:
        """A part of the tables that the caller may see in this order, and whether there are more."""
        caller.require(Role.VIEWER)
        seen = within(caller, wanted)
        found = self._store.rank_tables(
            seen, order, is_descending=is_descending, offset=max(0, offset), limit=limit + 1
        )
        return {
            "tables": [shown_table(each) for each in found[:limit]],
            "total": self._store.table_counts(seen).tables,
            "has_more": len(found) > limit,
        }

    def outlook(self, caller: Caller, table: ManagedTable) -> list[dict[str, Any]]:
        """What is due on the table by its policy and what is not yet, from a look at its timeline."""
        caller.require(Role.VIEWER)
        caller.require_table(table)
        policy = self._store.effective_policy(table)
        seen = foresee(
            self._look(table.base_path),
            policy,
            now_ms=self._store.now_ms(),
            found_nothing=load_found_nothing(self._store, table.table_id, REMEMBERED),
        )
        return [{**asdict(each), "action": each.action.value} for each in seen]
