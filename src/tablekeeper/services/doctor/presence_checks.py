"""Whether the files are there that readers need: what the commits say they wrote, in the slices that are read now.

Only the newest slice of each file group is looked at: a clean leaves that one alone, so that a file which is missing
from it was lost, and not cleaned away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tablekeeper.errors import TablekeeperError
from tablekeeper.model import Instant, WriteStat
from tablekeeper.services.doctor.file_checks import visible_files
from tablekeeper.services.doctor.report import Finding, Severity
from tablekeeper.services.doctor.view import TableView, load_view
from tablekeeper.timeline import load_commit_metadata

__all__ = ["check_presence"]

_LOST, _CUT = "lost-files", "cut-files"
_MEANINGS = {
    _LOST: "that commits of the active timeline wrote and readers need are not there: rows are missing, or reads fail.",
    _CUT: "are shorter than their commits say: they were cut off, and rows are missing, or reads fail.",
}


def check_presence(view: TableView) -> Iterator[Finding]:
    """Files of committed rows that are gone, or not whole. Nothing is mended: the rows are not here any more."""
    if view.environment.config.version < 8:
        return
    damage = _load_damage(view)
    if damage:
        # A commit or a clean between the two listings looks the same; what two looks see is really so.
        second = _load_damage(load_view(view.environment, view.settings))
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


def _load_damage(view: TableView) -> dict[str, str]:
    """What is wrong with files in the slices that readers see, by path."""
    there = {file.path: file.size for file in view.files}
    named = _load_named(view)
    by_partition: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, size in {**named, **there}.items():
        partition, _, name = path.rpartition("/")
        by_partition[partition].append((name, size))
    damage = {}
    for path in named.keys() & visible_files(view, by_partition).keys():
        if path not in there:
            damage[path] = _LOST
        elif there[path] < named[path]:
            damage[path] = _CUT
    return damage


def _load_named(view: TableView) -> dict[str, int]:
    """Path and size of what the completed writes on the active timeline wrote; others have checks of their own."""
    environment = view.environment

    def load(instant: Instant) -> tuple[WriteStat, ...]:
        try:
            return tuple(load_commit_metadata(environment.storage, environment.config, instant).stats)
        except TablekeeperError:
            # Reported as an unreadable commit.
            return ()

    loaded = environment.runtime.threads.map(load, view.timeline.completed_writes)
    return {stat.path: stat.size for stats in loaded for stat in stats if stat.path and stat.size > 0}
