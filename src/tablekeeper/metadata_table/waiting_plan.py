"""Compactions of the metadata table that a Java writer has planned and left to a service.

Such a plan names the files that it merges. Its time says what its base files must contain: every log whose delta
commit completed before it, and no other. So a plan is executed as it is, or not at all: not if a log of it no longer
counts, if a log that it does not name would be hidden by its base file, or if its file group was compacted since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tablekeeper.config.table_config import TableConfig
from tablekeeper.format.data_files import decode_log_name
from tablekeeper.format.plans import CompactionOperation, CompactionPlan
from tablekeeper.metadata_table.compaction_plan import MetadataState
from tablekeeper.metadata_table.layout import (
    MetadataSlice,
    load_metadata_timeline,
    metadata_config,
    plan_metadata_slices,
)
from tablekeeper.metadata_table.plan_content import load_plan
from tablekeeper.model import Action, RequestedTime
from tablekeeper.storage import Storage

__all__ = ["WaitingMerge", "find_waiting", "plan_waiting"]


@dataclass(frozen=True, slots=True)
class WaitingMerge:
    """What a plan asks to merge, by metadata partition, and the number of delta commits."""

    requested_at: RequestedTime
    slices: tuple[tuple[str, MetadataSlice], ...]
    commits: int


def find_waiting(storage: Storage, config: TableConfig) -> tuple[RequestedTime, CompactionPlan] | None:
    """The oldest compaction that is pending on the timeline of the metadata table, with its plan."""
    pending = [i for i in load_metadata_timeline(storage, config).pending if i.action is Action.COMPACTION]
    if not pending:
        return None
    at = pending[0].requested_at
    return at, load_plan(storage, metadata_config(config), at)


def plan_waiting(found: tuple[RequestedTime, CompactionPlan], state: MetadataState) -> WaitingMerge | str:
    """What to merge, or why the plan cannot be executed."""
    at, plan = found
    slices: list[tuple[str, MetadataSlice]] = []
    there = {partition: _slices(state, partition) for partition in state.listings}
    for operation in plan.operations:
        slice_ = there.get(operation.group.partition, {}).get(operation.group.file_id)
        why_not = "its file group is gone" if slice_ is None else _find_difference(at, operation, slice_, state)
        if slice_ is None or why_not:
            return f"{at} of its timeline cannot be executed: {operation.group.partition}: {why_not}"
        named = frozenset(operation.log_files)
        logs = tuple(log for log in slice_.logs if log.name in named)
        slices.append((operation.group.partition, replace(slice_, logs=logs)))
    commits = {name.instant for _, each in slices for log in each.logs if (name := decode_log_name(log.name))}
    return WaitingMerge(at, tuple(slices), len(commits))


def _slices(state: MetadataState, partition: str) -> Mapping[str, MetadataSlice]:
    slices = plan_metadata_slices(
        state.listings[partition],
        metadata_timeline=state.timeline,
        data_timeline=state.data_timeline,
        archived_completion=state.archived_completion,
    )
    return {each.file_id: each for each in slices}


def _find_difference(
    at: RequestedTime, operation: CompactionOperation, slice_: MetadataSlice, state: MetadataState
) -> str:
    if (slice_.base.name if slice_.base is not None else None) != (operation.base_file or None):
        return "it was compacted since"
    lost = set(operation.log_files) - {log.name for log in slice_.logs}
    if lost:
        return f"{min(lost)} does not count any more"
    for log in slice_.logs:
        name = decode_log_name(log.name)
        if log.name in operation.log_files or name is None:
            continue
        completed_at = state.timeline.completion_of(RequestedTime(name.instant))
        if completed_at is None or completed_at.order < at.order:
            return f"{log.name} counts before it, and is not named in it"
    return ""
