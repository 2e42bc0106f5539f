"""Looking a table over, and mending what can be mended without asking anybody.

Every repair looks again under the table lock before it deletes anything, so that what changed since the examination is
left alone; each can be repeated, and one that fails does not keep the others from being tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from tablekeeper.config.lock_settings import ConflictSettings, HeartbeatSettings, LockSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import TablekeeperError
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.runtime import Runtime
from tablekeeper.services.doctor.file_checks import check_data_files, check_leftovers, check_metadata_table
from tablekeeper.services.doctor.report import DoctorReport, Finding, Repair, RepairKind
from tablekeeper.services.doctor.timeline_checks import (
    check_heartbeats,
    check_lock,
    check_markers,
    check_oddities,
    check_pending,
)
from tablekeeper.services.doctor.view import TableView, load_view
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, load_timeline, remove_instant_files
from tablekeeper.txn.candidates import load_rollback_plan
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.heartbeat import delete_heartbeat, load_heartbeats
from tablekeeper.txn.locks.choose import choose_lock
from tablekeeper.txn.markers import delete_markers
from tablekeeper.txn.metadata_step import switch_off_metadata_table
from tablekeeper.txn.properties_file import change_properties, load_table_config
from tablekeeper.txn.restore import execute_restore, load_restore_plan
from tablekeeper.txn.rollback import resume_rollback, rollback_approved, rollback_instant
from tablekeeper.write.finish import metadata_rollback

__all__ = ["examine_table", "load_examination", "mend_table"]

_CHECKS: tuple[Callable[[TableView], Iterable[Finding]], ...] = (
    check_pending,
    check_lock,
    check_heartbeats,
    check_markers,
    check_data_files,
    check_metadata_table,
    check_leftovers,
    check_oddities,
)


def load_examination(storage: Storage, options: Options, *, runtime: Runtime) -> TableEnvironment:
    """What an examination works with, also for tables that are read-only here."""
    settings = LockSettings.from_options(options.given)
    config = load_table_config(storage)
    return TableEnvironment(
        storage=storage,
        config=config,
        lock=choose_lock(storage, options=settings, runtime=runtime, table_name=config.name),
        lock_settings=settings,
        heartbeat_settings=HeartbeatSettings.from_options(options.given),
        conflict_settings=ConflictSettings.from_options(options.given),
        runtime=runtime,
    )


def examine_table(environment: TableEnvironment, *, safe_age_s: float) -> DoctorReport:
    """What is wrong with the table, the worst first. Changes nothing."""
    findings = list(_examine(load_view(environment, safe_age_s=safe_age_s)))
    findings.sort(key=lambda finding: finding.severity.rank)
    return DoctorReport(environment.storage.spec.uri, tuple(findings))


def mend_table(environment: TableEnvironment, report: DoctorReport, *, safe_age_s: float) -> DoctorReport:
    """Carry out the repairs of `report`, and look the table over again."""
    mended: list[Repair] = []
    failed: list[tuple[Repair, str]] = []
    for repair in report.repairs:
        try:
            _REPAIRS[repair.kind](environment, repair, safe_age_s)
        except TablekeeperError as error:
            failed.append((repair, str(error)))
        else:
            mended.append(repair)
    now = replace(environment, config=load_table_config(environment.storage))
    left = examine_table(now, safe_age_s=safe_age_s)
    return DoctorReport(left.path, left.findings, tuple(mended), tuple(failed))


def _examine(view: TableView) -> Iterator[Finding]:
    return chain.from_iterable(check(view) for check in _CHECKS)


def _finish_properties(environment: TableEnvironment, _: Repair, __: float) -> None:
    with environment.locked():
        change_properties(environment.storage, {})


def _finish_restore(environment: TableEnvironment, repair: Repair, _: float) -> None:
    restore = Instant(RequestedTime(repair.subject), Action.RESTORE, State.INFLIGHT)
    plan = load_restore_plan(environment, restore)
    if plan.savepoint is None:
        raise TablekeeperError(f"{restore} does not say which savepoint it goes back to: finish it in Java")

    def approve(_: Timeline) -> Instant:
        raise TablekeeperError(f"{restore} was finished meanwhile")

    commit = RequestedTime(plan.savepoint)
    execute_restore(environment, commit, approve=approve, before_publish=metadata_rollback(environment))


def _finish_rollback(environment: TableEnvironment, repair: Repair, _: float) -> None:
    rollback = Instant(RequestedTime(repair.subject), Action.ROLLBACK, State.INFLIGHT)
    plan = load_rollback_plan(environment, rollback)
    before_publish = metadata_rollback(environment)

    def approve(timeline: Timeline, current: Instant) -> bool:
        if current.is_pending:
            return True
        later = timeline.completed_writes_by_completion
        if later[-1] != current:
            raise TablekeeperError(
                f"{current} was to be rolled back and is completed, and others completed after it. "
                "Roll those back first, or restore to a savepoint."
            )
        return True

    if plan is not None and plan.instant is not None:
        target = RequestedTime(plan.instant.commit_time)
        if rollback_approved(environment, target, approve=approve, before_publish=before_publish) is not None:
            return
    resume_rollback(environment, rollback, before_publish=before_publish)


def _roll_back(environment: TableEnvironment, repair: Repair, _: float) -> None:
    found = load_timeline(environment.storage, environment.config).find(RequestedTime(repair.subject))
    if found is not None and not _is_alive(environment, found.requested_at):
        rollback_instant(environment, found, before_publish=metadata_rollback(environment))


def _delete_savepoint(environment: TableEnvironment, repair: Repair, _: float) -> None:
    with environment.locked():
        timeline = load_timeline(environment.storage, environment.config)
        mine = Instant(RequestedTime(repair.subject), Action.SAVEPOINT, State.INFLIGHT)
        if mine in timeline.pending:
            remove_instant_files(environment.storage, environment.config, mine)


def _delete_files(environment: TableEnvironment, repair: Repair, safe_age_s: float) -> None:
    """Only what is still an orphan, now that nobody can commit."""
    with environment.locked() as lease:
        view = load_view(environment, safe_age_s=safe_age_s)
        repairs = [finding.repair for finding in check_data_files(view) if finding.repair is not None]
        still = {path for each in repairs for path in each.paths if each.kind is RepairKind.DELETE_FILES}
        lease.check()
        environment.storage.delete_many(path for path in repair.paths if path in still)


def _delete_markers(environment: TableEnvironment, repair: Repair, _: float) -> None:
    with environment.locked():
        timeline = load_timeline(environment.storage, environment.config)
        if repair.subject not in {i.requested_at.value for i in timeline.pending}:
            delete_markers(environment.storage, instant=repair.subject)


def _delete_heartbeat(environment: TableEnvironment, repair: Repair, _: float) -> None:
    instant = RequestedTime(repair.subject)
    with environment.locked():
        timeline = load_timeline(environment.storage, environment.config)
        if instant not in {i.requested_at for i in timeline.pending} and not _is_alive(environment, instant):
            delete_heartbeat(environment.storage, instant)


def _delete_leftovers(environment: TableEnvironment, repair: Repair, _: float) -> None:
    environment.storage.delete_many(repair.paths)


def _switch_off_metadata_table(environment: TableEnvironment, _: Repair, safe_age_s: float) -> None:
    with environment.locked() as lease:
        if list(check_metadata_table(load_view(environment, safe_age_s=safe_age_s))):
            lease.check()
            switch_off_metadata_table(environment)


def _is_alive(environment: TableEnvironment, instant: RequestedTime) -> bool:
    heartbeats = load_heartbeats(
        environment.storage, settings=environment.heartbeat_settings, runtime=environment.runtime
    )
    return heartbeats.is_active(instant)


_REPAIRS: dict[RepairKind, Callable[[TableEnvironment, Repair, float], None]] = {
    RepairKind.FINISH_PROPERTIES: _finish_properties,
    RepairKind.FINISH_RESTORE: _finish_restore,
    RepairKind.FINISH_ROLLBACK: _finish_rollback,
    RepairKind.ROLL_BACK: _roll_back,
    RepairKind.DELETE_SAVEPOINT: _delete_savepoint,
    RepairKind.DELETE_FILES: _delete_files,
    RepairKind.DELETE_MARKERS: _delete_markers,
    RepairKind.DELETE_HEARTBEAT: _delete_heartbeat,
    RepairKind.DELETE_LEFTOVERS: _delete_leftovers,
    RepairKind.SWITCH_OFF_METADATA_TABLE: _switch_off_metadata_table,
}
