"""Incremental reads: the rows changed by commits that completed inside a window.

As Java does it, the slices are formed from the files of those commits alone: a row that a later commit of the
window replaced shows its last version, and base rows from before the window do not take part. File groups that a
commit of the window replaced are left out; what happened after the window does not matter. A window that begins
before the active timeline takes the archived commits in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tablekeeper.engine.protocol import Engine, Frame
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.model import CommitMetadata, CompletionTime, FileGroupId, FileSlice, Instant, RequestedTime
from tablekeeper.read.query import Query, partition_pruner, plan_slice_tasks, read_tasks, refuse_bad_query
from tablekeeper.read.slice_rows import SliceTask
from tablekeeper.snapshot.slices import SliceRules, decode_partition_files, plan_slices
from tablekeeper.timeline import load_commit_metadata
from tablekeeper.timeline.history import archived_completions, load_history

__all__ = ["WindowCommit", "load_change_tasks", "load_commits", "read_changes"]


@dataclass(frozen=True, slots=True)
class WindowCommit:
    """A commit inside the window, and what it wrote."""

    instant: Instant
    metadata: CommitMetadata


@dataclass(frozen=True, slots=True)
class _Window:
    """After `since`, up to and including `until`."""

    since: CompletionTime | None
    until: CompletionTime | None

    def holds(self, instant: Instant) -> bool:
        done = instant.completed_at
        if done is None or not instant.action.writes_data:
            return False
        return (self.since is None or done > self.since) and (self.until is None or done <= self.until)


def load_commits(query: Query, *, since: str | None, until: str | None) -> list[WindowCommit]:
    """Writes that completed after `since`, up to and including `until`, in the order in which they completed.

    A bound is the requested time of a commit, which stands for its completion, or a completion time.
    """
    window = _Window(_resolve_bound(query, since), _resolve_bound(query, until))
    instants = [i for i in query.timeline.completed_writes_by_completion if window.holds(i)]
    contents = query.runtime.threads.map(lambda i: load_commit_metadata(query.storage, query.config, i), instants)
    active = [WindowCommit(i, metadata) for i, metadata in zip(instants, contents, strict=True)]
    return _load_archived(query, window) + active


def read_changes(query: Query, engine: Engine, commits: Sequence[WindowCommit]) -> Frame:
    """The rows that these commits changed."""
    _refuse_bad_query(query)
    return read_tasks(_narrowed(query, commits), engine, _plan_slices(query, commits))


def load_change_tasks(query: Query, commits: Sequence[WindowCommit]) -> list[SliceTask]:
    """The same as tasks for `read_slice`, for those who run them in workers of their own."""
    _refuse_bad_query(query)
    return plan_slice_tasks(_narrowed(query, commits), _plan_slices(query, commits))


def _refuse_bad_query(query: Query) -> None:
    refuse_bad_query(query)
    if not query.config.has_meta_columns:
        raise UnsupportedFeatureError(
            f"table {query.config.name} does not keep the commit of each row: it was made without Hudi's meta columns. "
            "Compare two reads with as_of instead."
        )


def _resolve_bound(query: Query, text: str | None) -> CompletionTime | None:
    if text is None:
        return None
    requested_at = RequestedTime(text)
    completed_at = query.timeline.completion_of(requested_at)
    if completed_at is None and query.timeline.is_archived(requested_at):
        completed_at = archived_completions(query.storage, query.config)(requested_at)
    return completed_at if completed_at is not None else CompletionTime(text)


def _load_archived(query: Query, window: _Window) -> list[WindowCommit]:
    """Commits of the window that have left the active timeline; the history is read only if it can hold any."""
    active = query.timeline.completed_writes_by_completion
    oldest = active[0].completed_at if active else None
    if window.since is not None and oldest is not None and oldest <= window.since:
        return []
    known = {instant.requested_at for instant in active}
    found = [
        WindowCommit(each.instant, decode_commit_metadata(each.metadata or b"", file=f"archived {each.instant}"))
        for each in load_history(query.storage, query.config)
        if window.holds(each.instant) and each.instant.requested_at not in known
    ]
    return sorted(found, key=lambda commit: (commit.instant.completed_at, commit.instant.requested_at))


def _narrowed(query: Query, commits: Sequence[WindowCommit]) -> Query:
    return replace(query, commit_times=frozenset(c.instant.requested_at.value for c in commits))


def _plan_slices(query: Query, commits: Sequence[WindowCommit]) -> list[FileSlice]:
    files: dict[str, dict[str, int]] = defaultdict(dict)
    replaced: dict[FileGroupId, RequestedTime] = {}
    for commit in commits:
        for stat in commit.metadata.stats:
            files[stat.group.partition][stat.file_name] = stat.size
        for partition, file_ids in (commit.metadata.replaced or {}).items():
            replaced |= {FileGroupId(partition, file_id): commit.instant.requested_at for file_id in file_ids}
    rules = SliceRules(
        timeline=query.timeline,
        version=query.config.version,
        replaced=replaced,
        archived_completion=archived_completions(query.storage, query.config),
    )
    pruner = partition_pruner(query)
    slices: list[FileSlice] = []
    for partition, sizes in sorted(files.items()):
        if pruner is None or pruner.may_match(partition):
            groups = plan_slices(decode_partition_files(partition, sizes.items()), rules)
            slices += [group[0] for group in groups.values()]
    return slices
