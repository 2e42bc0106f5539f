"""What the timeline says about operations that the service remembers. Pure.

The three ways in which the two can come apart, and what repairs them:
1. The plan is on the timeline, the request was lost: `plan_due` submits every plan that waits.
2. The request came, but the plan is not on the timeline (yet): the operation is cancelled, and revived once it is.
3. The plan was rolled back after the request: the operation is cancelled.
And a plan that somebody else executed is a completed operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tablekeeper.server.model import Operation, Signal, Status
from tablekeeper.table.summary import TimelineSummary

__all__ = ["Correction", "plan_corrections", "should_revive"]


@dataclass(frozen=True, slots=True)
class Correction:
    """An operation that nobody holds is to be settled so."""

    operation_id: int
    signal: Signal
    note: str


def plan_corrections(active: Iterable[Operation], summary: TimelineSummary) -> list[Correction]:
    """For operations of plans that are no longer pending. What is held is left to its holder, who will see it too."""
    found = []
    for operation in active:
        if operation.status is not Status.PENDING or not operation.is_planned or not operation.action.has_plan:
            continue
        if summary.find_pending(operation.instant) is not None:
            continue
        if summary.has_completed(operation.instant):
            found.append(Correction(operation.operation_id, Signal.COMPLETE, "the timeline has it as completed"))
        else:
            found.append(Correction(operation.operation_id, Signal.CANCEL, "its plan is not on the timeline"))
    return found


def should_revive(operation: Operation) -> bool:
    """Whether an operation whose plan waits on the timeline was ended only because the plan had not been seen there."""
    return operation.status is Status.CANCELLED and not operation.cancel_reason and not operation.is_deleted
