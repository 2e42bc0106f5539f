"""What other instants touch: looked up in their metadata and plans, for conflict detection."""

from __future__ import annotations

from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.format.plans import (
    RollbackPlan,
    decode_rollback_plan,
)
from tablekeeper.model import Action, CommitMetadata, FileGroupId, Instant, Operation, PlanOutline, State
from tablekeeper.timeline import Timeline, instant_path, load_commit_metadata, load_content
from tablekeeper.timeline.plans import load_plan_outline
from tablekeeper.txn.conflict import Touched, WriteKind
from tablekeeper.txn.environment import TableEnvironment

__all__ = [
    "find_rollback",
    "load_inflight",
    "load_is_cancellable",
    "load_pending_outline",
    "load_planned_groups",
    "load_rollback_plan",
    "load_touched",
    "touched_by_commit",
]


def load_touched(environment: TableEnvironment, instant: Instant) -> Touched:
    """File groups that the instant wrote, replaced or plans to rewrite."""
    if instant.is_completed:
        return touched_by_commit(load_commit_metadata(environment.storage, environment.config, instant))
    if instant.action.is_plan:
        groups = load_pending_outline(environment, instant, with_groups=True).file_groups
        return Touched(groups, WriteKind.of(instant.action.service))
    return Touched(load_inflight(environment, instant).file_groups, WriteKind.INGESTION)


def load_inflight(environment: TableEnvironment, instant: Instant) -> CommitMetadata:
    """What a pending write says that it touches: nothing as long as it is requested."""
    file = instant_path(environment.config, instant)
    try:
        content = load_content(environment.storage, environment.config, instant)
    except NotFoundError:
        return CommitMetadata(Operation.UNKNOWN)
    if instant.state is State.REQUESTED:
        return CommitMetadata(Operation.UNKNOWN)
    return decode_commit_metadata(content, file=file)


def touched_by_commit(metadata: CommitMetadata) -> Touched:
    """The same for a completed instant whose metadata is at hand."""
    return Touched(metadata.file_groups, WriteKind.of(metadata.operation.service))


def load_planned_groups(
    environment: TableEnvironment, timeline: Timeline, *, with_cancellable: bool = True
) -> frozenset[FileGroupId]:
    """File groups that pending plans of table services are about to rewrite."""
    plans = [load_pending_outline(environment, instant, with_groups=True) for instant in timeline.pending_plans]
    counting = (plan for plan in plans if with_cancellable or not plan.flags.cancellable)
    return frozenset(group for plan in counting for group in plan.file_groups)


def load_is_cancellable(environment: TableEnvironment, instant: Instant) -> bool:
    """Whether the pending plan of a table service yields to ingestion."""
    return instant.action.is_plan and load_pending_outline(environment, instant).flags.cancellable


def load_pending_outline(environment: TableEnvironment, instant: Instant, *, with_groups: bool = False) -> PlanOutline:
    """The plan of a compaction, log compaction or clustering; an empty one if it has left the timeline."""
    try:
        return load_plan_outline(environment.storage, environment.config, instant, with_groups=with_groups)
    except NotFoundError:
        # Rolled back since the timeline was listed: it touches nothing any more.
        return PlanOutline()


def find_rollback(environment: TableEnvironment, timeline: Timeline, target: Instant) -> Instant | None:
    """A rollback of `target` that somebody began and did not finish."""
    for instant in timeline.pending:
        if instant.action is not Action.ROLLBACK:
            continue
        plan = load_rollback_plan(environment, instant)
        if plan is not None and plan.instant is not None and plan.instant.commit_time == target.requested_at.value:
            return instant
    return None


def load_rollback_plan(environment: TableEnvironment, rollback: Instant) -> RollbackPlan | None:
    """What a rollback set out to do; None if its requested file is gone, or was cut short before the rollback began.

    Java makes that file and fills it in two steps on some stores, and drops one that does not decode as well.
    """
    requested = Instant(rollback.requested_at, Action.ROLLBACK, State.REQUESTED)
    try:
        content = load_content(environment.storage, environment.config, requested)
    except NotFoundError:
        return None
    try:
        return decode_rollback_plan(content, file=instant_path(environment.config, requested))
    except CorruptTableError:
        if rollback.state is State.REQUESTED:
            return None
        raise
