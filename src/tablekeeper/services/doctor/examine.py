"""Examining a table, and making the repairs that need nobody's consent.

A repair that fails does not keep the others from being tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tablekeeper.errors import CorruptTableError, NotFoundError, TablekeeperError
from tablekeeper.services.doctor.content_checks import (
    check_base_files,
    check_log_files,
    check_partition_metadata,
    check_schema,
)
from tablekeeper.services.doctor.explained import check_timeline_is_there, without_unsafe_repairs
from tablekeeper.services.doctor.file_checks import check_data_files, check_leftovers, check_metadata_table
from tablekeeper.services.doctor.growth_checks import check_metadata_growth, check_old_versions, check_timeline_length
from tablekeeper.services.doctor.plan_checks import check_cancel_requests, check_cleans, check_plans
from tablekeeper.services.doctor.presence_checks import check_presence
from tablekeeper.services.doctor.repairs import Remedies, execute_repair
from tablekeeper.services.doctor.report import DoctorReport, Finding, Repair, Severity
from tablekeeper.services.doctor.timeline_checks import (
    check_heartbeats,
    check_lock,
    check_markers,
    check_oddities,
    check_pending,
)
from tablekeeper.services.doctor.view import DoctorSettings, TableView, load_data_files, load_view
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["examine_table", "repair_table"]

_SMALL_SHARE = 0.1
_FEW_FILES = 10
_FEW_BYTES = 64 << 20

_CHECKS: tuple[Callable[[TableView], Iterable[Finding]], ...] = (
    check_pending,
    check_plans,
    check_cancel_requests,
    check_cleans,
    check_lock,
    check_heartbeats,
    check_markers,
    check_timeline_is_there,
    check_data_files,
    check_presence,
    check_schema,
    check_partition_metadata,
    check_log_files,
    check_base_files,
    check_metadata_table,
    check_metadata_growth,
    check_leftovers,
    check_oddities,
    check_timeline_length,
    check_old_versions,
)


def examine_table(environment: TableEnvironment, settings: DoctorSettings) -> DoctorReport:
    """What is wrong with the table, the worst first. Changes nothing."""
    view = load_view(environment, settings)
    findings = list(without_unsafe_repairs(view, _examine(view)))
    findings.sort(key=lambda finding: finding.severity.rank)
    return DoctorReport(environment.storage.spec.uri, tuple(findings))


def repair_table(
    environment: TableEnvironment, report: DoctorReport, settings: DoctorSettings, remedies: Remedies
) -> DoctorReport:
    """Execute the repairs of `report`, and look the table over again."""
    repaired: list[Repair] = []
    failed: list[tuple[Repair, str]] = []
    refusal = None if settings.deletes_many else _too_much(environment, report)
    for repair in report.repairs:
        if refusal is not None and repair.deletes_data:
            failed.append((repair, refusal))
            continue
        try:
            execute_repair(environment, repair, settings, remedies)
        except TablekeeperError as error:
            failed.append((repair, str(error)))
        else:
            repaired.append(repair)
    now = replace(environment, config=load_table_config(environment.storage))
    left = examine_table(now, settings)
    return DoctorReport(left.path, left.findings, tuple(repaired), tuple(failed))


def _too_much(environment: TableEnvironment, report: DoctorReport) -> str | None:
    """Why the data files of the report are not deleted unasked: they are neither few nor a small share of the table."""
    doomed = {path for repair in report.repairs if repair.deletes_data for path in repair.paths}
    files = list(load_data_files(environment.storage))
    size = sum(file.size for file in files)
    lost = sum(file.size for file in files if file.path in doomed)
    is_small = len(doomed) <= _SMALL_SHARE * len(files) and lost <= _SMALL_SHARE * size
    if is_small or (len(doomed) <= _FEW_FILES and lost <= _FEW_BYTES):
        return None
    return (
        f"{len(doomed):,} of {len(files):,} data files would go, {lost:,} of {size:,} bytes: too much to delete "
        "unasked. Look at the list first; then run `tablekeeper doctor PATH --fix --yes`, or `doctor(fix=True, "
        "yes=True)`"
    )


def _examine(view: TableView) -> Iterator[Finding]:
    """What the checks find. One that meets a file which it cannot read names that; the others go on."""
    unreadable: set[str] = set()
    for check in _CHECKS:
        try:
            yield from check(view)
        except (CorruptTableError, NotFoundError) as error:
            file = error.file if isinstance(error, CorruptTableError) else error.path
            if file not in unreadable:
                unreadable.add(file)
                yield Finding(
                    "unreadable-file",
                    Severity.ERROR,
                    file,
                    f"{error} What rests on it was not examined.",
                    "Bring the file back from a backup.",
                    paths=(file,),
                )
