"""What a table knows about its own past in a stress run: the commits and the plans, active and archived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tablekeeper as tk
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.format.plans import decode_outline
from tablekeeper.model import Action, CommitMetadata, Instant, Operation, PlanFlags, RequestedTime, ServiceKind, State
from tablekeeper.timeline import load_commit_metadata, load_instant_files, load_timeline
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.plans import load_pending_outline

__all__ = ["SERVICE_OPERATIONS", "Past", "find_flags", "flags_text", "load_past"]

SERVICE_OPERATIONS = frozenset(kind.operation for kind in ServiceKind)
_ACTIONS = tuple(kind.action for kind in ServiceKind)


@dataclass(frozen=True)
class Past:
    """Completed writes with their metadata, each once; `plans` has the flags of those that were planned."""

    commits: tuple[tuple[Instant, CommitMetadata], ...]
    plans: Mapping[str, str]
    archived: int
    rollbacks: int

    @property
    def ingestion(self) -> list[tuple[Instant, CommitMetadata]]:
        return [each for each in self.commits if each[1].operation not in SERVICE_OPERATIONS]


def load_past(table: tk.Table) -> Past:
    """Everything that completed and was not rolled back."""
    storage, config = table._storage, table.config
    found: dict[RequestedTime, tuple[Instant, CommitMetadata]] = {}
    plans: dict[str, str] = {}
    history = load_history(storage, config)
    for archived in history:
        at = archived.instant.requested_at
        if not archived.instant.action.writes_data:
            continue
        name = f"archived {archived.instant}"
        metadata = decode_commit_metadata(archived.metadata or b"", file=name)
        found[at] = archived.instant, metadata
        if archived.plan and metadata.operation in SERVICE_OPERATIONS:
            is_clustering = metadata.operation is Operation.CLUSTER
            plans[at.value] = flags_text(decode_outline(archived.plan, file=name, is_clustering=is_clustering).extra)
    timeline = load_timeline(storage, config)
    for instant in timeline.completed_writes:
        found[instant.requested_at] = instant, load_commit_metadata(storage, config, instant)
    for instant in load_instant_files(storage, config):
        if instant.action in _ACTIONS and instant.state is State.REQUESTED:
            plans[instant.requested_at.value] = find_flags(table, instant.requested_at)
    commits = tuple(found[at] for at in sorted(found, key=lambda at: at.order))
    rollbacks = {i.requested_at for i in (*timeline, *(a.instant for a in history)) if i.action is Action.ROLLBACK}
    return Past(commits, plans, archived=len(history), rollbacks=len(rollbacks))


def find_flags(table: tk.Table, instant: RequestedTime) -> str:
    """What may become of the plan of this instant on the active timeline, completed or not; empty if there is none."""
    environment = table._load_environment()
    for action in _ACTIONS:
        plan = load_pending_outline(
            environment.storage, environment.config, Instant(instant, Action(action), State.REQUESTED), with_groups=True
        )
        if plan.file_groups:
            return flags_text(plan.extra)
    return ""


def flags_text(extra: Mapping[str, str]) -> str:
    """The flags in one word or two."""
    flags = PlanFlags.from_metadata(extra)
    words = [word for word, is_so in (("cancellable", flags.cancellable), ("mutable", flags.mutable)) if is_so]
    return " ".join(words) or "firm"
