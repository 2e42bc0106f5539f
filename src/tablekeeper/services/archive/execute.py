"""Moving instants from the active to the archived timeline.

A run reads what it is going to move without the lock. Under the lock it looks at the timeline again, plans again, and
moves those of the prepared instants that the new plan begins with:

    history file → manifest → version file → earlier states of the instants → completed files, oldest first → markers

Before the version file has moved, nothing has happened. From then on every instant of the run is in the archived
timeline, and removing the files of the active one can be repeated: the next archive finds instants in both, writes
none of them again, and removes what is left. Then files of the archived timeline are merged and old versions deleted;
what is not done there is left to the next archive that moves something.

The work under one hold of the lock is bounded by the settings, and so is the number of holds in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tablekeeper.config.archive_settings import ArchiveSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.format.history import ArchivedInstant
from tablekeeper.metadata_table.layout import metadata_config
from tablekeeper.model import Action, Instant, RequestedTime
from tablekeeper.services.archive.evidence import find_replaced_leftovers
from tablekeeper.services.archive.load import load_archive_view, load_contents, load_metadata_archive_view
from tablekeeper.services.archive.plan import ActiveAction, ArchivePlan, ArchiveView, plan_archive
from tablekeeper.services.archive.result import ArchiveResult
from tablekeeper.snapshot.integrity import refuse_lost_timeline
from tablekeeper.timeline import load_timeline
from tablekeeper.timeline.history import HistorySnapshot, load_history, load_history_snapshot
from tablekeeper.timeline.history_writer import MergeLimits, append_history, clean_history, merge_history
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.timeline.transition import remove_archived_files
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.late_files import sweep_late_files

__all__ = ["execute_archive", "explain_archive"]

_MAX_RUNS = 20
_OLDEST_VERSION = 8

_Key = tuple[RequestedTime, Action]


@dataclass(frozen=True)
class _Target:
    """A timeline to archive: that of the table, or that of its metadata table."""

    config: TableConfig
    settings: ArchiveSettings
    load_view: Callable[[], ArchiveView]
    is_table: bool


@dataclass(frozen=True, slots=True)
class _Draft:
    """What one run is going to move, read without the lock."""

    plan: ArchivePlan
    contents: tuple[ArchivedInstant, ...]


def execute_archive(environment: TableEnvironment, settings: ArchiveSettings) -> ArchiveResult:
    """Move the oldest completed instants into the archived timeline, if there are more commits than should stay.

    The timeline of the metadata table is archived too. If the process dies at any point, no instant is lost or
    archived twice; the next archive continues.
    """
    clock = environment.runtime.clock
    begun_s = clock.monotonic_s()
    target = _table_target(environment, settings)
    # Before they are archived: afterwards readers would take late files of a failed write for committed.
    sweep_late_files(environment)
    result = _archive(environment, target)
    if target.config.has_metadata_table:
        of_metadata = _archive(environment, _metadata_target(environment, target.config, settings))
        result = replace(
            result,
            metadata_instants=of_metadata.instants,
            files=result.files + of_metadata.files,
            bytes_written=result.bytes_written + of_metadata.bytes_written,
            lock_held_s=result.lock_held_s + of_metadata.lock_held_s,
        )
    return replace(result, seconds=clock.monotonic_s() - begun_s)


def explain_archive(environment: TableEnvironment, settings: ArchiveSettings) -> ArchiveResult:
    """What `execute_archive` would move, and what holds it back. Changes nothing and takes no lock."""
    clock = environment.runtime.clock
    begun_s = clock.monotonic_s()
    target = _table_target(environment, replace(settings, max_instants=_MAX_RUNS * settings.max_instants))
    result = replace(_result_of(_plan(environment, target)), dry_run=True)
    if target.config.has_metadata_table:
        of_metadata = _metadata_target(environment, target.config, settings)
        moved = plan_archive(of_metadata.load_view(), of_metadata.settings).actions
        result = replace(result, metadata_instants=tuple(action.instant for action in moved))
    return replace(result, seconds=clock.monotonic_s() - begun_s)


def _table_target(environment: TableEnvironment, settings: ArchiveSettings) -> _Target:
    config = load_table_config(environment.storage)
    if config.version < _OLDEST_VERSION:
        raise UnsupportedFeatureError(
            f"table {config.name} has version {config.version}, whose archived timeline only Java writes. "
            "Upgrade the table with Java Hudi first."
        )
    storage = environment.storage
    # The properties are read with every view: another writer may have built or dropped the metadata table.
    return _Target(config, settings, lambda: load_archive_view(storage, load_table_config(storage)), is_table=True)


def _metadata_target(environment: TableEnvironment, config: TableConfig, settings: ArchiveSettings) -> _Target:
    storage = environment.storage
    return _Target(
        metadata_config(config),
        settings.for_metadata_table(),
        lambda: load_metadata_archive_view(storage, config, load_timeline(storage, config)),
        is_table=False,
    )


def _archive(environment: TableEnvironment, target: _Target) -> ArchiveResult:
    """Runs until nothing is left to move, or enough was done for one call."""
    total = ArchiveResult()
    for _ in range(_MAX_RUNS):
        draft = _prepare(environment, target)
        if target.is_table and not draft.plan.commits:
            refuse_lost_timeline(environment.storage, target.config, load_timeline(environment.storage, target.config))
        run = _result_of(draft.plan)
        if draft.plan.actions:
            with environment.locked() as held:
                run = _move(held, target, draft)
            run = replace(run, lock_held_s=held.lease.held_s)
        total = replace(
            run,
            instants=total.instants + run.instants,
            files=total.files + run.files,
            bytes_written=total.bytes_written + run.bytes_written,
            lock_held_s=total.lock_held_s + run.lock_held_s,
        )
        if not run.instants or not draft.plan.left:
            break
    return total


def _result_of(plan: ArchivePlan) -> ArchiveResult:
    commits = sum(action.instant.action.writes_data for action in plan.actions)
    return ArchiveResult(
        instants=tuple(action.instant for action in plan.actions),
        active=plan.commits - commits,
        reason=plan.reason,
        bounds=plan.bounds,
    )


def _plan(environment: TableEnvironment, target: _Target) -> ArchivePlan:
    """The part of the plan for which the files that replace commits hid are gone."""
    plan = plan_archive(target.load_view(), target.settings)
    replaces = [action for action in plan.actions if action.instant.action is Action.REPLACE_COMMIT]
    if not target.is_table or not replaces:
        return plan
    stop = find_replaced_leftovers(environment, load_contents(environment, target.config, replaces))
    if stop is None:
        return plan
    kept = tuple(action for action in plan.actions if action.instant.requested_at < stop.at)
    bounds = tuple(sorted((stop, *plan.bounds), key=lambda bound: bound.at.order))
    return replace(plan, actions=kept, bounds=bounds, left=0)


def _prepare(environment: TableEnvironment, target: _Target) -> _Draft:
    plan = _plan(environment, target)
    return _Draft(plan, load_contents(environment, target.config, plan.actions))


def _move(held: LockedEnvironment, target: _Target, draft: _Draft) -> ArchiveResult:
    storage, config, settings = held.storage, target.config, target.settings
    plan = plan_archive(target.load_view(), settings)
    actions, contents = _still_planned(plan, draft)
    plan = replace(plan, actions=actions, bounds=draft.plan.bounds)
    if not actions:
        return _result_of(plan)
    before = load_history_snapshot(storage, config.history_directory)
    known = _known_in_history(held, config, before, actions)
    fresh = [archived for archived in contents if _key(archived.instant) not in known]
    held.lease.check()
    snapshot = before
    if fresh:
        snapshot = append_history(storage, before, fresh, row_group_instants=settings.row_group_instants)
    held.lease.check()
    remove_archived_files(
        storage,
        config,
        pending=[file for action in actions for file in action.pending_files],
        completed=[file for action in actions for file in action.completed_files],
    )
    held.lease.check()
    merged = merge_history(storage, snapshot, MergeLimits(settings.merge_files, settings.merge_max_bytes))
    clean_history(storage, merged, manifests_kept=settings.manifests_kept + merged.version - snapshot.version)
    return _with_files(_result_of(plan), (before, snapshot, merged))


def _still_planned(plan: ArchivePlan, draft: _Draft) -> tuple[tuple[ActiveAction, ...], tuple[ArchivedInstant, ...]]:
    """The instants that both the new plan and the prepared one begin with, so that archiving leaves no gap."""
    prepared = {_key(archived.instant): archived for archived in draft.contents}
    actions: list[ActiveAction] = []
    for action in plan.actions:
        archived = prepared.get(_key(action.instant))
        if archived is None or archived.instant != action.instant:
            break
        actions.append(action)
    return tuple(actions), tuple(prepared[_key(action.instant)] for action in actions)


def _known_in_history(
    environment: TableEnvironment, config: TableConfig, history: HistorySnapshot, actions: Sequence[ActiveAction]
) -> frozenset[_Key]:
    """Instants that are already in the archived timeline, because an archive died before it removed them."""
    times = [action.instant.requested_at for action in actions]
    if not history.overlapping(times[0], times[-1]):
        return frozenset()
    found = load_history(environment.storage, config, first=times[0], last=times[-1], with_contents=False)
    return frozenset(_key(archived.instant) for archived in found)


def _with_files(result: ArchiveResult, snapshots: Sequence[HistorySnapshot]) -> ArchiveResult:
    """The result with the files that each snapshot has and the one before it does not."""
    written = {
        later.path_of(file): file.size
        for earlier, later in pairwise(snapshots)
        for file in later.files
        if file not in earlier.files
    }
    return replace(result, files=tuple(written), bytes_written=sum(written.values()))


def _key(instant: Instant) -> _Key:
    return instant.requested_at, instant.action.completed_as
