"""Looking a table over, and mending what can be mended without asking anybody.

A repair that fails does not keep the others from being tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from tablekeeper.config.lock_settings import ConflictSettings, HeartbeatSettings, LockSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import Runtime
from tablekeeper.services.doctor.file_checks import check_data_files, check_leftovers, check_metadata_table
from tablekeeper.services.doctor.growth_checks import check_metadata_growth, check_old_versions, check_timeline_length
from tablekeeper.services.doctor.plan_checks import check_cancel_requests, check_cleans, check_plans
from tablekeeper.services.doctor.presence_checks import check_presence
from tablekeeper.services.doctor.repairs import mend
from tablekeeper.services.doctor.report import DoctorReport, Finding, Repair
from tablekeeper.services.doctor.timeline_checks import (
    check_heartbeats,
    check_lock,
    check_markers,
    check_oddities,
    check_pending,
)
from tablekeeper.services.doctor.view import DoctorSettings, TableView, load_view
from tablekeeper.storage import Storage
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.locks.choose import choose_lock
from tablekeeper.txn.properties_file import load_table_config

__all__ = ["examine_table", "load_examination", "mend_table"]

_CHECKS: tuple[Callable[[TableView], Iterable[Finding]], ...] = (
    check_pending,
    check_plans,
    check_cancel_requests,
    check_cleans,
    check_lock,
    check_heartbeats,
    check_markers,
    check_data_files,
    check_presence,
    check_metadata_table,
    check_metadata_growth,
    check_leftovers,
    check_oddities,
    check_timeline_length,
    check_old_versions,
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


def examine_table(environment: TableEnvironment, settings: DoctorSettings) -> DoctorReport:
    """What is wrong with the table, the worst first. Changes nothing."""
    findings = list(_examine(load_view(environment, settings)))
    findings.sort(key=lambda finding: finding.severity.rank)
    return DoctorReport(environment.storage.spec.uri, tuple(findings))


def mend_table(environment: TableEnvironment, report: DoctorReport, settings: DoctorSettings) -> DoctorReport:
    """Carry out the repairs of `report`, and look the table over again."""
    mended: list[Repair] = []
    failed: list[tuple[Repair, str]] = []
    for repair in report.repairs:
        try:
            mend(environment, repair, settings)
        except TablekeeperError as error:
            failed.append((repair, str(error)))
        else:
            mended.append(repair)
    now = replace(environment, config=load_table_config(environment.storage))
    left = examine_table(now, settings)
    return DoctorReport(left.path, left.findings, tuple(mended), tuple(failed))


def _examine(view: TableView) -> Iterator[Finding]:
    return chain.from_iterable(check(view) for check in _CHECKS)
