"""What the timeline says about operations that the service remembers. Pure.

They can differ in three ways, which are repaired as follows:
1. The plan is on the timeline, the request was lost: `plan_due` submits every pending plan.
2. The request came, but the plan is not on the timeline (yet): the operation is cancelled, and revived once it is.
3. The plan was rolled back after the request: the operation is cancelled.
And a plan that somebody else executed is a completed operation. That a plan is older than the timeline says nothing: it
may have been taken off before, and only the archive knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tablekeeper.server.model import Operation, Signal, Status
from tablekeeper.table.summary import TimelineSummary

__all__ = ["Correction", "has_completed", "plan_corrections", "should_revive"]


@dataclass(frozen=True, slots=True)
class Correction:
    """How to settle an operation that nobody holds."""

    operation_id: int
    signal: Signal
    note: str


def has_completed(instant: str, summary: TimelineSummary, was_archived: Callable[[str], bool]) -> bool:
    """Whether this plan has. The archive is asked only about what is older than the timeline."""
    if instant in summary.completed:
        return True
    return summary.find_pending(instant) is None and instant < summary.first_time and was_archived(instant)


def plan_corrections(
    active: Iterable[Operation], summary: TimelineSummary, was_archived: Callable[[str], bool]
) -> list[Correction]:
    """For operations of plans that are no longer pending. What is held is left to its holder, who will see it too.

    `was_archived` tells of an instant whether the archive has it, as completed.
    """
    found = []
    for operation in active:
        if operation.status is not Status.PENDING or not operation.is_planned or not operation.action.has_plan:
            continue
        if summary.find_pending(operation.instant) is not None:
            continue
        if has_completed(operation.instant, summary, was_archived):
            found.append(Correction(operation.operation_id, Signal.COMPLETE, "the timeline has it as completed"))
        else:
            found.append(Correction(operation.operation_id, Signal.CANCEL, "its plan is not on the timeline"))
    return found


def should_revive(operation: Operation) -> bool:
    """Whether an operation whose plan waits on the timeline was ended only because the plan had not been seen there."""
    return operation.status is Status.CANCELLED and not operation.cancel_reason and not operation.is_deleted
