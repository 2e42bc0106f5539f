"""What grows without end if nobody looks after it: the active timeline, old file versions, the metadata table's logs.

Nothing here is wrong, so that most of it is information only. Everything is counted from what was loaded anyway, and
the numbers are estimates: how much really goes, `explain_clean` and `explain_archive` say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tablekeeper.config.clean_settings import CleanPolicy
from tablekeeper.config.keys import METADATA_ENABLE
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.metadata_table.compaction_plan import last_compaction, uncompacted_commits
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY, load_metadata_timeline
from tablekeeper.services.doctor.report import Finding, Repair, RepairKind, Severity
from tablekeeper.services.doctor.view import TableView
from tablekeeper.snapshot.retention import plan_retained
from tablekeeper.storage import FileInfo

__all__ = ["check_metadata_growth", "check_old_versions", "check_timeline_length"]

_LONG_TIMELINE = 500
_MANY_FILES = 100
_MANY_BYTES = 1 << 30
_MANY_METADATA_COMMITS = 200


def check_timeline_length(view: TableView) -> Iterator[Finding]:
    """A long active timeline: every read and every commit lists it."""
    completed = view.timeline.completed
    if len(completed) <= _LONG_TIMELINE:
        return
    yield Finding(
        "long-timeline",
        Severity.INFO,
        view.environment.config.timeline_directory,
        f"{len(completed):,} completed instants in {len(view.instant_files):,} files, the oldest of "
        f"{completed[0].requested_at}. Every read and every commit lists them.",
        "Move the old ones away: `tablekeeper archive PATH`. `Table.explain_archive()` says what holds it back.",
    )


def check_old_versions(view: TableView) -> Iterator[Finding]:
    """Files that a clean would delete, by the names of the files alone."""
    if view.environment.config.version < 8:
        return
    old = _superseded(view)
    size = sum(file.size for file in old)
    if len(old) < _MANY_FILES and size < _MANY_BYTES:
        return
    yield Finding(
        "clean-due",
        Severity.INFO,
        "old file versions",
        f"About {len(old):,} files ({size:,} bytes) that nobody needs who reads {view.settings.clean.kept}.",
        "Delete them: `tablekeeper clean PATH`. `Table.explain_clean()` says which, and what is kept for savepoints.",
    )


def check_metadata_growth(view: TableView) -> Iterator[Finding]:
    """Delta commits of the metadata table that nobody has compacted."""
    environment = view.environment
    if not environment.config.has_metadata_table or environment.config.version < 8:
        return
    timeline = load_metadata_timeline(environment.storage, environment.config)
    later = uncompacted_commits(timeline)
    if len(later) <= _MANY_METADATA_COMMITS:
        return
    files = list(environment.storage.walk(METADATA_DIRECTORY))
    compacted_at = last_compaction(timeline)
    since = f"since its base files of {compacted_at}" if compacted_at is not None else "and was never compacted"
    yield Finding(
        "growing-metadata-table",
        Severity.WARNING,
        METADATA_DIRECTORY,
        f"It has {len(later):,} delta commits {since}: {len(files):,} files, {sum(f.size for f in files):,} bytes. "
        "Reading it gets slower with each write, and nothing that it has not compacted can be archived.",
        "`tablekeeper doctor PATH --fix` compacts it, as every clean and archive does unless something keeps them from "
        f"it, and any write by Java. Or do without it: the next write with the option {METADATA_ENABLE}=false "
        "switches it off, and Java builds it anew when it needs it.",
        repair=Repair(RepairKind.COMPACT_METADATA_TABLE, METADATA_DIRECTORY),
    )


def _superseded(view: TableView) -> list[FileInfo]:
    """Files below the newest base file that a clean would keep for the oldest commit retained."""
    settings = view.settings.clean
    config = view.environment.config
    earliest = plan_retained(view.timeline, settings, now_ms=view.now_ms, zone=config.time_zone)
    by_versions = settings.policy is CleanPolicy.VERSIONS
    if earliest is None and not by_versions:
        return []
    bases: dict[tuple[str, str], list[str]] = defaultdict(list)
    found: list[tuple[tuple[str, str], str, FileInfo]] = []
    for file in view.files:
        base = decode_base_name(file.name)
        name = base or decode_log_name(file.name)
        if name is not None:
            group = (file.path.rpartition("/")[0], name.file_id)
            found.append((group, name.instant, file))
            if base is not None:
                bases[group].append(name.instant)
    kept: dict[tuple[str, str], str] = {}
    for group, instants in bases.items():
        ordered = sorted(set(instants), reverse=True)
        if by_versions:
            kept[group] = ordered[min(settings.versions, len(ordered)) - 1]
        elif earliest is not None:
            kept[group] = next((i for i in ordered if i < earliest.requested_at.value), ordered[-1])
    return [file for group, instant, file in found if group in kept and instant < kept[group]]
