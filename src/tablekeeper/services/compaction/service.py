"""Compaction: the log files of file slices are merged into new base files, one piece of work a slice.

Which slices, the strategy decides. A slice without logs needs no compaction, and a log that is not committed is not in
the snapshot that plans are made from: whatever completes later lies on top of the new base file.
"""

from __future__ import annotations

from tablekeeper.model import FileGroupId, Plan, ServiceKind
from tablekeeper.services.compaction.kernels import CompactionTask, compact_slice
from tablekeeper.services.plans.service import Attempt, Draft, Rewritten
from tablekeeper.services.plans.strategies import StrategyService
from tablekeeper.snapshot.snapshot import Snapshot

__all__ = ["Compaction"]


class Compaction(StrategyService):
    """The service."""

    kind = ServiceKind.COMPACTION

    def plan(self, snapshot: Snapshot, *, planned: frozenset[FileGroupId]) -> Draft:
        return self.strategy.plan(snapshot.latest, planned=planned)

    def rewrite(self, attempt: Attempt, plan: Plan) -> Rewritten:
        slices = [file_slice for work in plan.work for file_slice in work.slices]
        tasks = [CompactionTask(attempt.context, file_slice, number) for number, file_slice in enumerate(slices)]
        weights = [float(file_slice.size) for file_slice in slices]
        return Rewritten(tuple(attempt.engine.run(compact_slice, tasks, label="compact", weights=weights)))
