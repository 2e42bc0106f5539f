"""Which data files may be deleted: those whose story is known.

A file of an instant that is not on the timeline was written by a write that was rolled back, or by one whose instant
was lost. Only a rollback or restore that names the instant tells the two apart. A timeline without any completed write
beside data files explains nothing at all: it was lost, or hoodie.properties names another directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.format.plans import decode_restore_metadata, decode_rollback_metadata
from tablekeeper.model import Action, Instant, RequestedTime
from tablekeeper.services.doctor.report import Finding, RepairKind, Severity
from tablekeeper.services.doctor.view import TableView
from tablekeeper.storage.local import find_linked
from tablekeeper.timeline import instant_path, load_content
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.plans import load_rollback_plan

__all__ = ["check_timeline_is_there", "load_rolled_back", "without_unsafe_repairs"]

_LOST_TIMELINE = "implausible-timeline"
_UNDOING = frozenset({Action.ROLLBACK, Action.RESTORE})
_HOODIE = ".hoodie"
_EXECUTED = frozenset(
    {
        RepairKind.FINISH_RESTORE,
        RepairKind.FINISH_ROLLBACK,
        RepairKind.ROLL_BACK,
        RepairKind.ROLL_BACK_ATTEMPT,
        RepairKind.REMOVE_PLAN,
        RepairKind.FINISH_CLEAN,
    }
)
"""Repairs that execute a plan, which says itself what is deleted."""


def check_timeline_is_there(view: TableView) -> Iterator[Finding]:
    """Data files beside a timeline that has no completed write, and no write at all that could have made them."""
    if view.timeline.completed_writes:
        return
    begun = {instant.requested_at for instant in view.timeline} | load_rolled_back(view)
    strange = [file.path for file in view.files if _instant_of(file.name) not in {None, *begun}]
    if strange:
        directory = view.environment.config.timeline_directory
        yield Finding(
            _LOST_TIMELINE,
            Severity.ERROR,
            directory,
            f"{len(strange)} data files are there, and no completed write: the timeline was lost, or hoodie.properties "
            "names another directory than the writers used. Readers see no rows, or fail.",
            "Bring the directory back from a backup, or correct the path of the timeline in the properties. "
            "Do not write to the table before, and delete nothing: nothing is repaired until then.",
            paths=tuple(strange),
        )


def load_rolled_back(view: TableView) -> frozenset[RequestedTime]:
    """Instants that a rollback or restore, on the active or the archived timeline, names as its target."""
    environment = view.environment
    found: set[str] = set()
    for instant in view.timeline:
        if instant.action is Action.ROLLBACK:
            found.update(_targets_of_plan(view, instant))
        if instant.action in _UNDOING and instant.is_completed:
            content = load_content(environment.storage, environment.config, instant)
            found.update(_targets(instant, content, file=instant_path(environment.config, instant)))
    for archived in load_history(environment.storage, environment.config):
        if archived.instant.action in _UNDOING:
            found.update(_targets(archived.instant, archived.metadata or b"", file=f"archived {archived.instant}"))
    return frozenset(RequestedTime(time) for time in found)


def without_unsafe_repairs(view: TableView, findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings with those repairs only that delete nothing behind a symbolic link, or beside a lost timeline."""
    found = list(findings)
    spec = view.environment.storage.spec
    is_lost = any(finding.kind == _LOST_TIMELINE for finding in found)
    is_linked = bool(find_linked(spec, [_HOODIE]))
    # Asked only where a rollback or a clean is to be executed: every file of the table is looked at.
    is_any_linked = cache(lambda: bool(find_linked(spec, (file.path for file in view.files))))
    for finding in found:
        repair = finding.repair
        if repair is None:
            yield finding
        elif is_lost or is_linked:
            why = "the timeline is implausible" if is_lost else f"{_HOODIE} is a symbolic link"
            yield replace(finding, repair=None, advice=f"{finding.advice} Nothing is repaired here, because {why}.")
        elif repair.kind is RepairKind.DELETE_MARKERS and find_linked(spec, repair.paths):
            yield replace(finding, repair=None, advice=f"{finding.advice} Some lie behind a symbolic link.")
        elif repair.kind in (RepairKind.DELETE_FILES, RepairKind.DELETE_LEFTOVERS) and repair.paths:
            linked = find_linked(spec, repair.paths)
            kept = tuple(path for path in repair.paths if path not in linked)
            advice = f"{finding.advice} {len(linked)} of them lie behind a symbolic link and are left alone."
            repaired = replace(repair, paths=kept) if kept else None
            yield replace(finding, repair=repaired, advice=advice) if linked else finding
        elif repair.kind in _EXECUTED and is_any_linked():
            advice = f"{finding.advice} A directory of the table is a symbolic link, and what it deletes may lie there."
            yield replace(finding, repair=None, advice=advice)
        else:
            yield finding


def _targets_of_plan(view: TableView, rollback: Instant) -> Iterator[str]:
    try:
        plan = load_rollback_plan(view.environment.storage, view.environment.config, rollback)
    except CorruptTableError:
        # Reported as an unreadable plan; it explains nothing.
        return
    if plan is not None and plan.instant is not None:
        yield plan.instant.commit_time


def _targets(instant: Instant, content: bytes, *, file: str) -> Iterator[str]:
    try:
        if instant.action is Action.ROLLBACK:
            yield from decode_rollback_metadata(content, file=file).commits
        else:
            restored = decode_restore_metadata(content, file=file)
            yield from (*restored.commits, *restored.rollbacks)
    except CorruptTableError:
        # What cannot be read explains nothing, and what is not explained is not deleted.
        return


def _instant_of(name: str) -> RequestedTime | None:
    decoded = decode_base_name(name) or decode_log_name(name)
    return RequestedTime(decoded.instant) if decoded is not None else None
