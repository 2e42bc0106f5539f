"""Log compaction: the log files of a slice are merged into one, and the base file is left alone.

Only a prefix of a slice's logs is planned: those before the first write that is still under way. The merged blocks
stand where the newest of the originals stood, so that a write which is older than some of them but completes later
would otherwise come to lie before changes that it is newer than. Partitions where logs had to wait come back.

What an earlier log compaction merged counts as one log when slices are chosen, so that slices are not merged again
and again for nothing. It is read all the same: a merged block counts only beside the originals.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from tablekeeper.model import Action, FileGroupId, FileSlice, Plan, RequestedTime, ServiceKind
from tablekeeper.services.log_compaction.kernels import LogCompactionTask, compact_logs
from tablekeeper.services.plans.service import Attempt, Draft, Rewritten
from tablekeeper.services.plans.strategies import StrategyService, leave_out_slices
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.timeline import Timeline

__all__ = ["LogCompaction"]

_LOG_WRITES = frozenset({Action.COMMIT, Action.DELTA_COMMIT})


class LogCompaction(StrategyService):
    """The service."""

    kind = ServiceKind.LOG_COMPACTION

    def plan(self, snapshot: Snapshot, *, planned: frozenset[FileGroupId]) -> Draft:
        limit = _first_pending_write(snapshot.timeline)
        settled = {each.group: _settled(each, before=limit) for each in snapshot.latest}
        merged = {each: _merged(settled[each], snapshot.timeline) for each in settled}
        worth = [each for each in merged.values() if len(each.logs) != 1]
        draft = self.strategy.plan(worth, planned=planned)
        work = tuple(replace(each, slices=tuple(settled[s.group] for s in each.slices)) for each in draft.work)
        single = leave_out_slices(
            (settled[group] for group, each in merged.items() if len(each.logs) == 1),
            reason="one log, or merged already",
            comes_back=False,
        )
        waiting = leave_out_slices(
            (each for each in snapshot.latest if len(settled[each.group].logs) < len(each.logs)),
            reason=f"logs that are newer than {limit}, which is under way",
            comes_back=True,
        )
        return Draft(work, (*draft.left_out, *single, *waiting))

    def rewrite(self, attempt: Attempt, plan: Plan) -> Rewritten:
        slices = [file_slice for work in plan.work for file_slice in work.slices]
        tasks = [LogCompactionTask(attempt.context, file_slice, number) for number, file_slice in enumerate(slices)]
        weights = [float(sum(log.size for log in file_slice.logs)) for file_slice in slices]
        written = attempt.engine.run(compact_logs, tasks, label="compact logs", weights=weights)
        return Rewritten(tuple(file for files in written for file in files))


def _first_pending_write(timeline: Timeline) -> RequestedTime | None:
    pending = [instant.requested_at for instant in timeline if instant.is_pending and instant.action in _LOG_WRITES]
    return min(pending, default=None)


def _merged(file_slice: FileSlice, timeline: Timeline) -> FileSlice:
    """The slice with the newest log compaction and what came after it."""
    logs = file_slice.logs
    last = max((number for number, log in enumerate(logs) if log.instant in timeline.log_compactions), default=0)
    return replace(file_slice, logs=logs[last:])


def _settled(file_slice: FileSlice, *, before: RequestedTime | None) -> FileSlice:
    """The slice with its logs up to the first one that is not older than `before`."""
    if before is None:
        return file_slice
    return replace(file_slice, logs=tuple(takewhile(lambda log: log.instant < before, file_slice.logs)))
