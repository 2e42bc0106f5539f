"""Incremental reads: the rows changed by commits that completed inside a window.

As Java does it, the slices are formed from the files of those commits alone: a row that a later commit of the
window replaced shows its last version, and base rows from before the window do not take part.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from tablekeeper.engine.protocol import Engine, Frame
from tablekeeper.model import CompletionTime, FileSlice, Instant, RequestedTime, WriteStat
from tablekeeper.read.query import Query, plan_slice_tasks, read_tasks
from tablekeeper.read.slice_rows import SliceTask
from tablekeeper.snapshot.slices import SliceRules, decode_partition_files, plan_slices
from tablekeeper.snapshot.snapshot import load_replaced
from tablekeeper.timeline import Timeline, load_commit_metadata

__all__ = ["commits_between", "load_change_tasks", "read_changes", "resolve_bound"]


def resolve_bound(text: str, timeline: Timeline) -> CompletionTime:
    """A bound of the window: the completion of the instant requested at that time, or the time itself."""
    completed_at = timeline.completion_of(RequestedTime(text))
    return completed_at if completed_at is not None else CompletionTime(text)


def commits_between(timeline: Timeline, *, since: CompletionTime | None, until: CompletionTime | None) -> list[Instant]:
    """Writes that completed after `since`, up to and including `until`."""
    return [
        instant
        for instant in timeline.completed_writes_by_completion
        if instant.completed_at is not None
        and (since is None or instant.completed_at > since)
        and (until is None or instant.completed_at <= until)
    ]


def read_changes(query: Query, engine: Engine, instants: list[Instant]) -> Frame:
    """The rows that these commits changed."""
    return read_tasks(_narrowed(query, instants), engine, _load_slices(query, instants))


def load_change_tasks(query: Query, instants: list[Instant]) -> list[SliceTask]:
    """The same as tasks for `read_slice`, for those who run them in workers of their own."""
    return plan_slice_tasks(_narrowed(query, instants), _load_slices(query, instants))


def _narrowed(query: Query, instants: list[Instant]) -> Query:
    return replace(query, commit_times=frozenset(i.requested_at.value for i in instants))


def _load_slices(query: Query, instants: list[Instant]) -> list[FileSlice]:
    commits = query.runtime.threads.map(lambda i: load_commit_metadata(query.storage, query.config, i), instants)
    files: dict[str, dict[str, WriteStat]] = defaultdict(dict)
    for commit in commits:
        for stat in commit.stats:
            files[stat.group.partition][stat.file_name] = stat
    rules = SliceRules(
        timeline=query.timeline,
        version=query.config.version,
        replaced=load_replaced(query.storage, query.config, query.timeline, runtime=query.runtime),
    )
    slices = []
    for partition, stats in sorted(files.items()):
        named = [(name, stat.size) for name, stat in stats.items()]
        groups = plan_slices(decode_partition_files(partition, named), rules)
        slices += [group[0] for group in groups.values()]
    return slices
