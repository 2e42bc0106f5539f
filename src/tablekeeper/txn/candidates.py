"""What other instants touch: looked up in their metadata and plans, for conflict detection."""

from __future__ import annotations

from tablekeeper.errors import NotFoundError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.format.plans import (
    RollbackPlan,
    decode_compaction_plan,
    decode_requested_replace_metadata,
    decode_rollback_plan,
)
from tablekeeper.model import Action, CommitMetadata, FileGroupId, Instant, Operation, State
from tablekeeper.timeline import Timeline, instant_path, load_commit_metadata, load_content
from tablekeeper.txn.conflict import Touched, WriteKind
from tablekeeper.txn.environment import TableEnvironment

__all__ = [
    "CANCELLABLE_KEY",
    "find_rollback",
    "load_is_cancellable",
    "load_planned_groups",
    "load_rollback_plan",
    "load_touched",
    "touched_by_commit",
]

CANCELLABLE_KEY = "tablekeeper.cancellable"
"""Key in a plan's extra metadata; "true" says that the plan yields to ingestion."""

_KINDS = {
    Operation.COMPACT: WriteKind.COMPACTION,
    Operation.LOG_COMPACT: WriteKind.LOG_COMPACTION,
    Operation.CLUSTER: WriteKind.CLUSTERING,
}
_SERVICES = {
    Action.COMPACTION: WriteKind.COMPACTION,
    Action.LOG_COMPACTION: WriteKind.LOG_COMPACTION,
    Action.CLUSTERING: WriteKind.CLUSTERING,
}


def load_touched(environment: TableEnvironment, instant: Instant) -> Touched:
    """File groups that the instant wrote, replaced or plans to rewrite."""
    if instant.is_completed:
        return touched_by_commit(load_commit_metadata(environment.storage, environment.config, instant))
    if instant.action in _SERVICES:
        groups, _ = _load_plan(environment, instant)
        return Touched(groups, _SERVICES[instant.action])
    return Touched(_load_inflight(environment, instant).file_groups, WriteKind.INGESTION)


def touched_by_commit(metadata: CommitMetadata) -> Touched:
    """The same for a completed instant whose metadata is at hand."""
    return Touched(metadata.file_groups, _KINDS.get(metadata.operation, WriteKind.INGESTION))


def load_planned_groups(environment: TableEnvironment, timeline: Timeline) -> frozenset[FileGroupId]:
    """File groups that pending plans of table services are about to rewrite."""
    plans = [instant for instant in timeline.pending if instant.action in _SERVICES]
    return frozenset(group for instant in plans for group in _load_plan(environment, instant)[0])


def load_is_cancellable(environment: TableEnvironment, instant: Instant) -> bool:
    """Whether the pending plan of a table service yields to ingestion."""
    if instant.action not in _SERVICES:
        return False
    return _load_plan(environment, instant)[1]


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
    """What a rollback set out to do; None if its requested file is gone."""
    requested = Instant(rollback.requested_at, Action.ROLLBACK, State.REQUESTED)
    try:
        content = load_content(environment.storage, environment.config, requested)
    except NotFoundError:
        return None
    return decode_rollback_plan(content, file=instant_path(environment.config, requested))


def _load_plan(environment: TableEnvironment, instant: Instant) -> tuple[frozenset[FileGroupId], bool]:
    requested = Instant(instant.requested_at, instant.action, State.REQUESTED)
    file = instant_path(environment.config, requested)
    try:
        content = load_content(environment.storage, environment.config, requested)
    except NotFoundError:
        # Rolled back since the timeline was listed: it touches nothing any more.
        return frozenset(), False
    if instant.action is Action.CLUSTERING:
        plan = decode_requested_replace_metadata(content, file=file).clustering_plan
        slices = [s for group in plan.input_groups for s in group.slices] if plan is not None else []
        extra = plan.extra_metadata if plan is not None else {}
        return frozenset(s.group for s in slices), extra.get(CANCELLABLE_KEY) == "true"
    compaction = decode_compaction_plan(content, file=file)
    groups = frozenset(operation.group for operation in compaction.operations)
    return groups, compaction.extra_metadata.get(CANCELLABLE_KEY) == "true"


def _load_inflight(environment: TableEnvironment, instant: Instant) -> CommitMetadata:
    file = instant_path(environment.config, instant)
    try:
        content = load_content(environment.storage, environment.config, instant)
    except NotFoundError:
        return CommitMetadata(Operation.UNKNOWN)
    if instant.state is State.REQUESTED:
        return CommitMetadata(Operation.UNKNOWN)
    return decode_commit_metadata(content, file=file)
