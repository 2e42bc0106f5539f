"""Whether the files are there that readers need: what the commits say they wrote, in the slices that are read now.

Only the newest slice of each file group is looked at: a clean leaves that one alone, so that a file which is missing
from it was lost, and not cleaned away. Whoever rewrites a file group while its newest version is missing makes a slice
that is whole and lacks rows; the version that it says it was made from gives that away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tablekeeper.errors import TablekeeperError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.model import CommitMetadata, FileGroupId, Instant, Operation, RequestedTime, WriteStat
from tablekeeper.services.doctor.file_checks import slice_rules
from tablekeeper.services.doctor.report import Finding, Severity
from tablekeeper.services.doctor.view import TableView, load_view
from tablekeeper.snapshot.integrity import Damage, committed_files, plan_damage
from tablekeeper.timeline import load_commit_metadata
from tablekeeper.timeline.history import load_history

__all__ = ["check_presence"]

_LOST, _CUT, _OTHER = "lost-files", "cut-files", "replaced-files"
_KINDS = {Damage.LOST: _LOST, Damage.CUT: _CUT, Damage.OTHER: _OTHER}
_MEANINGS = {
    _LOST: "that commits of the active timeline wrote and readers need are not there: rows are missing, or reads fail.",
    _CUT: "are shorter than their commits say: they were cut off, and rows are missing, or reads fail.",
    _OTHER: "are longer than their commits say: other files lie in their place, and rows are wrong.",
}


def check_presence(view: TableView) -> Iterator[Finding]:
    """Files of committed rows that are gone, or not whole. Nothing is repaired: the rows are not here any more."""
    if view.environment.config.version < 8:
        return
    commits = _load_commits(view)
    yield from _check_versions(commits)
    damage = _load_damage(view, commits)
    if damage:
        # A commit or a clean between the two listings looks the same; what two looks see is really so.
        again = load_view(view.environment, view.settings)
        second = _load_damage(again, _load_commits(again))
        damage = {path: what for path, what in damage.items() if second.get(path) == what}
    for kind, meaning in _MEANINGS.items():
        paths = tuple(sorted(path for path, what in damage.items() if what == kind))
        if paths:
            yield Finding(
                kind,
                Severity.ERROR,
                view.environment.config.name,
                f"{len(paths)} files {meaning}",
                "Bring them back from a backup, go back to a savepoint, or write the rows again.",
                paths=paths,
            )


def _check_versions(commits: Sequence[tuple[Instant, CommitMetadata]]) -> Iterator[Finding]:
    """Base files that were not made from the version before them."""
    by_group: dict[FileGroupId, list[tuple[Instant, WriteStat]]] = defaultdict(list)
    for instant, commit in commits:
        for stat in commit.stats:
            if not stat.is_log:
                by_group[stat.group].append((instant, stat))
    for versions in by_group.values():
        for (before, skipped), (after, stat) in pairwise(versions):
            made_from = stat.previous_commit
            if _is_seen(before, after) and made_from.isdigit() and made_from < before.requested_at.value:
                yield Finding(
                    "skipped-version",
                    Severity.ERROR,
                    after.requested_at.value,
                    f"It made {stat.path} from the version of {stat.previous_commit}, as if {before.requested_at} had "
                    f"not written {skipped.path} in between, which was missing then: rows of that version are lost.",
                    "Write the rows of that commit again, or go back to a savepoint. This is reported until the commit "
                    "is archived.",
                    paths=(skipped.path,),
                )


def _is_seen(before: Instant, after: Instant) -> bool:
    return before.completed_at is not None and before.completed_at.value < after.requested_at.value


def _load_damage(view: TableView, commits: Iterable[tuple[Instant, CommitMetadata]]) -> dict[str, str]:
    """What is wrong with files in the slices that readers see, by path."""
    listed: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file in view.files:
        listed[file.path.rpartition("/")[0]].append((file.name, file.size))
    archived = _load_archived(view)
    rules = slice_rules(view)
    # What archived commits replaced has been cleaned away.
    replaced = {group: instant for instant, commit in archived for group in commit.replaced_groups}
    active = committed_files(commit for _, commit in commits)
    named = {**committed_files(commit for _, commit in archived), **active}
    damage = plan_damage(listed, named, replace(rules, replaced={**replaced, **rules.replaced}))
    return {path: _KINDS[what] for path, what in damage.items()}


def _load_archived(view: TableView) -> list[tuple[RequestedTime, CommitMetadata]]:
    """The archived commits, which know what files were there when they left the active timeline."""
    environment = view.environment
    return [
        (each.instant.requested_at, decode_commit_metadata(each.metadata, file=f"archived {each.instant}"))
        for each in load_history(environment.storage, environment.config)
        if each.instant.action.writes_data and each.metadata and view.timeline.is_archived(each.instant.requested_at)
    ]


def _load_commits(view: TableView) -> list[tuple[Instant, CommitMetadata]]:
    """What the completed writes on the active timeline say, by requested time; others have checks of their own."""
    environment = view.environment

    def load(instant: Instant) -> CommitMetadata:
        try:
            return load_commit_metadata(environment.storage, environment.config, instant)
        except TablekeeperError:
            # Reported as an unreadable commit.
            return CommitMetadata(Operation.UNKNOWN)

    writes = view.timeline.completed_writes
    return list(zip(writes, environment.runtime.threads.map(load, writes), strict=True))
