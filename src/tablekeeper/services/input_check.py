"""Before a plan is executed: are the files that it rewrites all there, and whole?

A rewrite of a slice that has lost a file would seal the loss: the new file looks right, and the commit that knew
better is archived some day. So the input of a plan is compared with what the commits on the active timeline say, and
with the plan itself. Whatever does not fit ends the attempt with `CorruptTableError`, before anything is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tablekeeper.errors import CorruptTableError
from tablekeeper.model import FileGroupId, FileSlice, Instant, LogFile
from tablekeeper.services.plans import Plan
from tablekeeper.snapshot.integrity import committed_files, files_of, plan_damage, plan_whole_slices, refuse_damage
from tablekeeper.snapshot.listing import load_files_by_listing
from tablekeeper.snapshot.slices import SliceRules
from tablekeeper.snapshot.snapshot import load_replaced
from tablekeeper.timeline import Timeline, load_commit_metadata, load_timeline
from tablekeeper.timeline.history import archived_completions
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["refuse_damaged_input"]


def refuse_damaged_input(environment: TableEnvironment, plan: Plan, instant: Instant, timeline: Timeline) -> None:
    """Raise `CorruptTableError` if a file that the plan rewrites is missing or cut off, or missing from the plan."""
    try:
        _check(environment, plan, instant, timeline)
    except CorruptTableError:
        # A commit, rollback or clean between timeline and listing looks the same; what two looks see is really so.
        _check(environment, plan, instant, load_timeline(environment.storage, environment.config))


def _check(environment: TableEnvironment, plan: Plan, instant: Instant, timeline: Timeline) -> None:
    storage, config, runtime = environment.storage, environment.config, environment.runtime
    planned = {each.group: each for work in plan.work for each in work.slices}
    # Plans hold estimates of sizes.
    named = {path: 0 for each in planned.values() for path in files_of(each)}
    writes = timeline.completed_writes
    commits = runtime.threads.map(lambda write: load_commit_metadata(storage, config, write), writes)
    for path, size in committed_files(commits).items():
        named[path] = max(size, named.get(path, 0))
    partitions = sorted({group.partition for group in planned})
    named = {path: size for path, size in named.items() if path.rpartition("/")[0] in set(partitions)}
    listed = load_files_by_listing(storage, partitions, runtime=runtime)
    rules = SliceRules(
        timeline=timeline,
        version=config.version,
        replaced=load_replaced(storage, config, timeline, runtime=runtime),
        archived_completion=archived_completions(storage, config),
    )
    refuse_damage(plan_damage(listed, named, rules, groups=planned))
    _refuse_missing_from_plan(planned, plan_whole_slices(listed, named, rules), instant, timeline)
    _refuse_lost_input(planned, listed)


def _refuse_lost_input(planned: Mapping[FileGroupId, FileSlice], listed: Mapping[str, list[tuple[str, int]]]) -> None:
    """Files that only the plan names, because their commits are archived."""
    there: dict[str, set[str]] = defaultdict(set)
    for partition, files in listed.items():
        there[partition].update(name for name, _ in files)
    for group, file_slice in planned.items():
        for path in files_of(file_slice):
            if path.rpartition("/")[2] not in there[group.partition]:
                raise CorruptTableError(file=path, reason="it is gone, and a plan counts on it")


def _refuse_missing_from_plan(
    planned: Mapping[FileGroupId, FileSlice],
    whole: Mapping[FileGroupId, FileSlice],
    instant: Instant,
    timeline: Timeline,
) -> None:
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
                reason = (
                    f"the plan {instant} was made while it was missing, and would seal the loss. Take the plan off the "
                    "timeline (cancel it, or delete its requested file while no writer runs) and schedule another"
                )
                raise CorruptTableError(file=path, reason=reason)


def _was_complete(log: LogFile, instant: Instant, timeline: Timeline) -> bool:
    completed_at = timeline.completion_of(log.instant)
    return completed_at is None or completed_at.value < instant.requested_at.value
