"""Checks that the files of a plan exist and are complete, when it is scheduled and before it is executed.

Rewriting a slice that has lost a file would make the loss permanent: the new file looks right, and the commit that
proves the loss is archived some day. So the input of a plan is compared with the commits on the active timeline and
with the plan itself. A mismatch is a `CorruptTableError`, before anything is published or written.

Only the relevant commits are loaded. The names of files contain their instants, so the commits of the planned files are
known. A lost file is in no slice: when a plan is scheduled, lost files are found by the commits of the planning window,
for partitions that an earlier plan left open, and without a window, by the commits since the oldest planned file. The
plan records this check, and its execution does not repeat it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from tablekeeper.errors import CorruptTableError
from tablekeeper.model import BaseFile, CommitMetadata, FileGroupId, FileSlice, Instant, LogFile, Plan, RequestedTime
from tablekeeper.services.plans.service import Draft
from tablekeeper.services.plans.window import PlanningWindow
from tablekeeper.snapshot.integrity import committed_files, files_of, plan_damage, plan_whole_slices, refuse_damage
from tablekeeper.snapshot.slices import SliceRules, load_files_by_listing
from tablekeeper.snapshot.snapshot import Snapshot, load_replaced
from tablekeeper.timeline import Timeline, load_commit_metadata
from tablekeeper.timeline.history import archived_completions
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.lost_completions import refuse_lost_completions

__all__ = ["CHECKED", "refuse_damaged_draft", "refuse_damaged_input"]

CHECKED = {"tablekeeper.input.checked": "true"}
"""Extra metadata of plans that were compared with the commits when they were scheduled."""

Planned = Mapping[FileGroupId, FileSlice]
Listed = Mapping[str, Iterable[tuple[str, int]]]


def refuse_damaged_draft(
    environment: TableEnvironment, draft: Draft, snapshot: Snapshot, window: PlanningWindow
) -> None:
    """Raise `CorruptTableError` if a file of the drafted slices is missing or cut off, or a commit was lost."""
    planned = {each.group: each for work in draft.work for each in work.slices}
    timeline = snapshot.timeline
    refuse_lost_completions(environment, timeline.pending)
    known = {instant.requested_at: commit for instant, commit in window.commits}
    wanted = _writers(planned) if not window.is_full else _since(timeline, planned.values())
    left_open = [each for group, each in planned.items() if group.partition in window.left_open]
    wanted |= _since(timeline, left_open)
    loaded = _load_commits(environment, timeline, wanted - known.keys())
    named = _named(planned, [*known.values(), *loaded])
    if environment.config.has_metadata_table:
        # The slices and their sizes come from the metadata table; only a listing says whether the files exist.
        if environment.config.version >= 8:
            for each in planned.values():
                named |= {path: max(size, named[path]) for path, size in files_of(each).items()}
        listed: Listed = _load_listing(environment, planned)
    else:
        listed = _listing_of(snapshot)
    rules = _rules(environment, timeline)
    if plan_damage(listed, named, rules, groups=planned):
        # A commit, rollback or clean between timeline and listing looks like damage: only a second look proves it.
        now = environment.load_timeline()
        listed = _load_listing(environment, planned)
        refuse_damage(plan_damage(listed, named, _rules(environment, now, with_replaced=True), groups=planned))


def refuse_damaged_input(environment: TableEnvironment, plan: Plan, instant: Instant, timeline: Timeline) -> None:
    """Raise `CorruptTableError` if a file that the plan rewrites is missing or cut off, or missing from the plan."""
    try:
        _check(environment, plan, instant, timeline)
    except CorruptTableError:
        # As above; and the file groups may have been replaced and cleaned since the plan was made.
        now = environment.load_timeline()
        _check(environment, plan, instant, now, with_replaced=True)


def _check(
    environment: TableEnvironment, plan: Plan, instant: Instant, timeline: Timeline, *, with_replaced: bool = False
) -> None:
    planned = {each.group: each for work in plan.work for each in work.slices}
    was_checked = CHECKED.items() <= plan.extra.items()
    wanted = _writers(planned) if was_checked else _since(timeline, planned.values())
    commits, listed = environment.runtime.threads.together(
        lambda: _load_commits(environment, timeline, wanted), lambda: _load_listing(environment, planned)
    )
    named = _named(planned, commits)
    rules = _rules(environment, timeline, with_replaced=with_replaced)
    refuse_damage(plan_damage(listed, named, rules, groups=planned))
    _refuse_pending_input(planned, timeline)
    _refuse_missing_from_plan(planned, plan_whole_slices(listed, named, rules), instant, timeline)
    _refuse_lost_input(planned, listed)


def _writers(planned: Planned) -> set[RequestedTime]:
    """Instants whose files are planned."""
    bases = {each.base.instant for each in planned.values() if each.base is not None}
    return bases | {log.instant for each in planned.values() for log in each.logs}


def _since(timeline: Timeline, slices: Iterable[FileSlice]) -> set[RequestedTime]:
    """Writes that completed since the oldest file of these slices was written: only they can have added files."""
    instants = _writers({each.group: each for each in slices})
    if not instants:
        return set()
    oldest = min(instants).order
    return {i.requested_at for i in timeline.completed_writes if i.completed_at and i.completed_at.value >= oldest}


def _load_commits(
    environment: TableEnvironment, timeline: Timeline, wanted: Collection[RequestedTime]
) -> list[CommitMetadata]:
    """Those of the commits that are on the active timeline."""
    writes = [write for write in timeline.completed_writes if write.requested_at in wanted]
    storage, config = environment.storage, environment.config
    return environment.runtime.threads.map(lambda write: load_commit_metadata(storage, config, write), writes)


def _named(planned: Planned, commits: Iterable[CommitMetadata]) -> dict[str, int]:
    """Path and size of what was written to the partitions of a plan. Plans hold estimates of sizes."""
    named = {path: 0 for each in planned.values() for path in files_of(each)}
    partitions = {group.partition for group in planned}
    for path, size in committed_files(commits).items():
        if path.rpartition("/")[0] in partitions:
            named[path] = max(size, named.get(path, 0))
    return named


def _load_listing(environment: TableEnvironment, planned: Planned) -> Mapping[str, list[tuple[str, int]]]:
    partitions = sorted({group.partition for group in planned})
    return load_files_by_listing(environment.storage, partitions, runtime=environment.runtime)


def _listing_of(snapshot: Snapshot) -> Listed:
    """The visible files that a snapshot found by listing."""
    listed: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for group, slices in snapshot.groups.items():
        for path, size in (entry for each in slices for entry in files_of(each).items()):
            listed[group.partition].append((path.rpartition("/")[2], size))
    return listed


def _rules(environment: TableEnvironment, timeline: Timeline, *, with_replaced: bool = False) -> SliceRules:
    storage, config = environment.storage, environment.config
    return SliceRules(
        timeline=timeline,
        version=config.version,
        replaced=load_replaced(storage, config, timeline, runtime=environment.runtime) if with_replaced else {},
        archived_completion=archived_completions(storage, config),
    )


def _refuse_pending_input(planned: Planned, timeline: Timeline) -> None:
    """A plan names what was committed when it was made: a commit that is pending now has lost its completed file."""
    for file_slice in planned.values():
        base = [file_slice.base] if file_slice.base is not None else []
        files: list[BaseFile | LogFile] = [*base, *file_slice.logs]
        for file in files:
            written_by = timeline.find(file.instant)
            if written_by is not None and written_by.is_pending:
                reason = f"a plan counts on it, and {written_by} is not complete: its completed file was lost"
                raise CorruptTableError(file=file.path, reason=reason)


def _refuse_lost_input(planned: Planned, listed: Mapping[str, list[tuple[str, int]]]) -> None:
    """Files that only the plan names, because their commits are archived."""
    there: dict[str, set[str]] = defaultdict(set)
    for partition, files in listed.items():
        there[partition].update(name for name, _ in files)
    for group, file_slice in planned.items():
        for path in files_of(file_slice):
            if path.rpartition("/")[2] not in there[group.partition]:
                raise CorruptTableError(file=path, reason="it is missing, and a plan needs it")


def _refuse_missing_from_plan(planned: Planned, whole: Planned, instant: Instant, timeline: Timeline) -> None:
    """Files that were lost when the plan was made, and have been brought back since."""
    for group, mine in planned.items():
        now = whole.get(group)
        if now is None or not mine.logs:
            continue
        last = mine.logs[-1].order
        passed_over = [
            log.path
            for log in now.logs
            if log not in mine.logs and log.order < last and _was_complete(log, instant, timeline)
        ]
        if mine.base is None and now.base is not None and now.base.instant < instant.requested_at:
            passed_over.append(now.base.path)
        known = {name.rpartition("/")[2] for name in files_of(mine)}
        for path in passed_over:
            if path.rpartition("/")[2] not in known:
                reason = f"the plan {instant} was made while it was missing, and would seal the loss"
                raise CorruptTableError(file=path, reason=reason)


def _was_complete(log: LogFile, instant: Instant, timeline: Timeline) -> bool:
    completed_at = timeline.completion_of(log.instant)
    return completed_at is None or completed_at.value < instant.requested_at.value
