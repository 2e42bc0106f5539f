"""How each repair is made.

Every repair looks again under the table lock before it deletes anything, so that what changed since the examination is
left alone; each can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from tablekeeper.config.clean_settings import CleanSettings
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.errors import CorruptTableError, InvalidRequestError, TablekeeperError
from tablekeeper.metadata_table.compaction import compact_metadata_table
from tablekeeper.metadata_table.update import switch_off_metadata_table
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.services.doctor.explained import check_timeline_is_there, without_unsafe_repairs
from tablekeeper.services.doctor.file_checks import check_data_files, check_metadata_table
from tablekeeper.services.doctor.report import Repair, RepairKind
from tablekeeper.services.doctor.view import DoctorSettings, load_view
from tablekeeper.services.plans.cancel import remove_failed_plan
from tablekeeper.snapshot.slices import load_files_of_instant
from tablekeeper.timeline import Timeline, remove_instant_files
from tablekeeper.timeline.plans import find_rollback, load_pending_outline, load_rollback_plan
from tablekeeper.timeline.properties_file import change_properties
from tablekeeper.txn.cancel_requests import delete_cancel_request
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.heartbeat import delete_heartbeat
from tablekeeper.txn.late_files import sweep_late_files
from tablekeeper.txn.restore import execute_restore, load_restore_plan
from tablekeeper.txn.rollback import (
    resume_rollback,
    rollback_approved,
    rollback_instant,
    withdraw_idle_rollbacks,
)

__all__ = ["Remedies", "execute_repair"]


@dataclass(frozen=True)
class Remedies:
    """What other services do for a repair: finish the cleans that wait, and undo a completed commit."""

    finish_cleans: Callable[[TableEnvironment, CleanSettings], object]
    execute_rollback: Callable[[TableEnvironment, RequestedTime], object]


def execute_repair(environment: TableEnvironment, repair: Repair, settings: DoctorSettings, remedies: Remedies) -> None:
    """Execute one repair; nothing happens if it is not needed any more. Raises what keeps it from being done."""
    match repair.kind:
        case RepairKind.FINISH_CLEAN:
            remedies.finish_cleans(environment, settings.clean)
        case RepairKind.FINISH_ROLLBACK:
            _finish_rollback(environment, repair, remedies)
        case _:
            _REPAIRS[repair.kind](environment, repair, settings)


def _finish_properties(environment: TableEnvironment, _: Repair, __: DoctorSettings) -> None:
    with environment.locked() as held:
        change_properties(held.storage, {})


def _finish_restore(environment: TableEnvironment, repair: Repair, _: DoctorSettings) -> None:
    restore = Instant(RequestedTime(repair.subject), Action.RESTORE, State.INFLIGHT)
    try:
        plan = load_restore_plan(environment, restore)
    except CorruptTableError:
        _remove_restore_without_plan(environment, restore.requested_at)
        return
    if plan.savepoint is None:
        raise TablekeeperError(f"{restore} does not say which savepoint it goes back to: finish it in Java")

    def approve(_: LockedEnvironment, __: Timeline) -> Instant:
        raise TablekeeperError(f"{restore} was finished meanwhile")

    commit = RequestedTime(plan.savepoint)
    execute_restore(environment, commit, approve=approve)


def _remove_restore_without_plan(environment: TableEnvironment, requested_at: RequestedTime) -> None:
    """Take a restore off the timeline that died while its plan was written; one that was begun is for people."""
    with environment.locked() as held:
        restore = held.load_timeline().find(requested_at)
        if restore is None or restore.action is not Action.RESTORE or restore.is_completed:
            return
        if restore.state is not State.REQUESTED:
            raise TablekeeperError(f"{restore} was begun, and its plan does not decode: finish it in Java")
        held.lease.check()
        remove_instant_files(held.storage, held.config, restore)


def _finish_rollback(environment: TableEnvironment, repair: Repair, remedies: Remedies) -> None:
    rollback = environment.load_timeline().find(RequestedTime(repair.subject))
    if rollback is None or rollback.action is not Action.ROLLBACK:
        return
    plan = load_rollback_plan(environment.storage, environment.config, rollback)

    def approve(_: LockedEnvironment, timeline: Timeline, current: Instant) -> bool:
        if current in timeline.pending_plans and _is_alive(environment, current.requested_at):
            raise TablekeeperError(f"{current} is being executed again: its executor finishes the rollback")
        return current.is_pending

    if plan is not None and plan.instant is not None:
        target = RequestedTime(plan.instant.commit_time)
        if rollback_approved(environment, target, approve=approve) is not None:
            return
        _finish_or_withdraw(environment, target, remedies)
    resume_rollback(environment, rollback)


def _finish_or_withdraw(environment: TableEnvironment, target: RequestedTime, remedies: Remedies) -> None:
    """A rollback that died before it had hidden its commit goes on, unless others have built on the commit since."""
    storage, config = environment.storage, environment.config
    timeline = environment.load_timeline()
    found = timeline.find(target)
    if found is None or not found.is_completed or find_rollback(storage, config, timeline, found) is None:
        return
    try:
        remedies.execute_rollback(environment, target)
    except InvalidRequestError:
        withdraw_idle_rollbacks(environment, timeline)


def _roll_back(environment: TableEnvironment, repair: Repair, _: DoctorSettings) -> None:
    found = environment.load_timeline().find(RequestedTime(repair.subject))
    if found is not None and not _is_alive(environment, found.requested_at):
        rollback_instant(environment, found)


def _roll_back_attempt(environment: TableEnvironment, repair: Repair, _: DoctorSettings) -> None:
    """The attempt goes, with files that no marker names; the plan stays, unless it goes with its attempt."""
    instant = RequestedTime(repair.subject)
    found = environment.load_timeline().find(instant)
    if found is None or not found.is_pending:
        return
    partitions = {
        group.partition
        for group in load_pending_outline(environment.storage, environment.config, found, with_groups=True).file_groups
    }
    left = load_files_of_instant(environment.storage, sorted(partitions), instant, runtime=environment.runtime)

    def approve(_: LockedEnvironment, __: Timeline, current: Instant) -> bool:
        return current.state is State.INFLIGHT and not _is_alive(environment, instant)

    rollback_approved(environment, instant, approve=approve, also_files=left)


def _remove_plan(environment: TableEnvironment, repair: Repair, settings: DoctorSettings) -> None:
    remove_failed_plan(environment, RequestedTime(repair.subject), settings.lifecycle)


def _delete_savepoint(environment: TableEnvironment, repair: Repair, _: DoctorSettings) -> None:
    with environment.locked() as held:
        timeline = held.load_timeline()
        mine = Instant(RequestedTime(repair.subject), Action.SAVEPOINT, State.INFLIGHT)
        if mine in timeline.pending:
            remove_instant_files(held.storage, held.config, mine)


def _delete_files(environment: TableEnvironment, repair: Repair, settings: DoctorSettings) -> None:
    """Only what is still an orphan, now that nobody can commit."""
    with environment.locked() as held:
        view = load_view(held, settings)
        findings = without_unsafe_repairs(view, chain(check_timeline_is_there(view), check_data_files(view)))
        repairs = [finding.repair for finding in findings if finding.repair is not None]
        still = {path for each in repairs for path in each.paths if each.kind is RepairKind.DELETE_FILES}
        held.lease.check()
        held.storage.delete_many(path for path in repair.paths if path in still)


def _delete_markers(environment: TableEnvironment, repair: Repair, _: DoctorSettings) -> None:
    """The files that they name and no commit does go first."""
    sweep_late_files(environment, instants=(repair.subject,))


def _delete_heartbeat(environment: TableEnvironment, repair: Repair, _: DoctorSettings) -> None:
    instant = RequestedTime(repair.subject)
    with environment.locked() as held:
        timeline = held.load_timeline()
        waiting = {plan.requested_at for plan in timeline.pending_plans if plan.state is State.REQUESTED}
        busy = {i.requested_at for i in timeline.pending} - waiting
        if instant not in busy and not _is_alive(held, instant):
            delete_heartbeat(held.storage, instant)


def _delete_cancel_request(environment: TableEnvironment, repair: Repair, _: DoctorSettings) -> None:
    instant = RequestedTime(repair.subject)
    with environment.locked() as held:
        timeline = held.load_timeline()
        if instant not in {plan.requested_at for plan in timeline.pending_plans}:
            delete_cancel_request(held.storage, instant)


def _delete_leftovers(environment: TableEnvironment, repair: Repair, _: DoctorSettings) -> None:
    environment.storage.delete_many(repair.paths)


def _compact_metadata_table(environment: TableEnvironment, _: Repair, __: DoctorSettings) -> None:
    done = compact_metadata_table(environment, MetadataSettings(compact_after=1))
    if done.is_held_up:
        raise TablekeeperError(str(done))


def _switch_off_metadata_table(environment: TableEnvironment, _: Repair, settings: DoctorSettings) -> None:
    with environment.locked() as held:
        if list(check_metadata_table(load_view(held, settings))):
            held.lease.check()
            switch_off_metadata_table(held)


def _is_alive(environment: TableEnvironment, instant: RequestedTime) -> bool:
    heartbeats = environment.load_heartbeats()
    return heartbeats.is_active(instant)


_REPAIRS: dict[RepairKind, Callable[[TableEnvironment, Repair, DoctorSettings], None]] = {
    RepairKind.FINISH_PROPERTIES: _finish_properties,
    RepairKind.FINISH_RESTORE: _finish_restore,
    RepairKind.ROLL_BACK: _roll_back,
    RepairKind.ROLL_BACK_ATTEMPT: _roll_back_attempt,
    RepairKind.REMOVE_PLAN: _remove_plan,
    RepairKind.DELETE_SAVEPOINT: _delete_savepoint,
    RepairKind.DELETE_FILES: _delete_files,
    RepairKind.DELETE_MARKERS: _delete_markers,
    RepairKind.DELETE_HEARTBEAT: _delete_heartbeat,
    RepairKind.DELETE_CANCEL_REQUEST: _delete_cancel_request,
    RepairKind.DELETE_LEFTOVERS: _delete_leftovers,
    RepairKind.COMPACT_METADATA_TABLE: _compact_metadata_table,
    RepairKind.SWITCH_OFF_METADATA_TABLE: _switch_off_metadata_table,
}
