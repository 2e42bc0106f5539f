"""What runs inside a job: one service on one table, and a report of what came of it.

The timeline is read again before anything else, by the table itself: a plan that is held, done or gone is no failure.
Run as `python -m tablekeeper.server.engines.worker JOB` (or `… JOB spark` and `… JOB java` under spark-submit, and
`… JOB flink` under `flink run`).
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tablekeeper.config.keys import INDEX_DROP, METADATA_ENABLE
from tablekeeper.engine.protocol import Engine
from tablekeeper.errors import (
    ConflictError,
    InvalidRequestError,
    PlanCancelledError,
    PlanHeldError,
    TablekeeperError,
    UnsupportedFeatureError,
)
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.files import load_job, save_report
from tablekeeper.server.engines.java_services import execute_in_java
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.model import AttemptOutcome, ServiceAction
from tablekeeper.table import Table
from tablekeeper.tracing import span, start_tracing

__all__ = ["execute_job", "main", "open_table"]

_LOG = logging.getLogger("tablekeeper.worker")
_MAX_MESSAGE = 1000


def execute_job(table: Table, job: Job, tell_plan: Callable[[str], None]) -> JobReport:
    """Do it. `tell_plan` hears of the plan as soon as there is one. Our errors become outcomes."""
    try:
        with span(job.action.value, parent=job.trace, operation=job.operation_id, attempt=job.number):
            return _execute(table, job, tell_plan)
    except TablekeeperError as error:
        return _ended(_outcome_of(error, table, job), error=error)


def _execute(table: Table, job: Job, tell_plan: Callable[[str], None]) -> JobReport:
    if job.action is ServiceAction.CLEAN:
        cleaned = table.clean(**job.planning)
        return _ended(
            AttemptOutcome.NOTHING_TO_DO if cleaned is None else AttemptOutcome.COMPLETED, _result_of(cleaned)
        )
    if job.action is ServiceAction.ARCHIVE:
        archived = table.archive()
        outcome = AttemptOutcome.COMPLETED if archived.instants else AttemptOutcome.NOTHING_TO_DO
        return _ended(outcome, _result_of(archived))
    if job.action is ServiceAction.METADATA_COMPACTION:
        return _compact_metadata_table(table)
    instant = job.instant or _plan(table, job)
    if instant is None:
        return _ended(AttemptOutcome.NOTHING_TO_DO)
    tell_plan(instant)
    return _ended(AttemptOutcome.COMPLETED, _result_of(table.execute(instant)), plan=instant)


def _compact_metadata_table(table: Table) -> JobReport:
    done = table.compact_metadata_table(executes_plans=True)
    if done.is_held_up:
        return _ended(AttemptOutcome.FAILED, _result_of(done), message=done.reason)
    return _ended(AttemptOutcome.NOTHING_TO_DO if done.instant is None else AttemptOutcome.COMPLETED, _result_of(done))


def _outcome_of(error: TablekeeperError, table: Table, job: Job) -> AttemptOutcome:
    match error:
        case PlanHeldError():
            return AttemptOutcome.ELSEWHERE
        case PlanCancelledError() | ConflictError():
            return AttemptOutcome.GONE
        case UnsupportedFeatureError():
            return AttemptOutcome.REFUSED
        case InvalidRequestError():
            is_gone = job.instant is not None and _has_left(table, job.instant)
            return AttemptOutcome.GONE if is_gone else AttemptOutcome.REFUSED
        case _:
            return AttemptOutcome.FAILED


def open_table(job: Job, *, spark: Any = None, engine: str | Engine = "local") -> Table:
    """The table of the job on the engine of this process. Nothing that a service runs for takes an index away."""

    def opened(options: Mapping[str, str]) -> Table:
        storage_options = dict(job.storage_options) or None
        if spark is not None:
            return Table.open(job.base_path, spark=spark, storage_options=storage_options, options=options)
        return Table.open(job.base_path, engine=engine, storage_options=storage_options, options=options)

    options = {**job.options, INDEX_DROP: "false"}
    table = opened(options)
    return opened({**options, METADATA_ENABLE: "true"}) if table.config.metadata_partitions else table


def main(path: str, engine: str = "local", driver_bytes: str = "") -> int:
    """Run the job of this file; its report lies where the job says."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stdout)
    job = load_job(Path(path))
    end_tracing = start_tracing("tablekeeper-worker")
    _LOG.info("%s: %s of %s", job.name, job.action.value, job.base_path)

    def tell_plan(instant: str) -> None:
        save_report(Path(job.result_path), JobReport(JobState.RUNNING, plan=instant))

    try:
        report = _run(job, engine, driver_bytes, tell_plan)
    except (UnsupportedFeatureError, InvalidRequestError) as error:
        report = _ended(AttemptOutcome.REFUSED, error=error)
    except TablekeeperError as error:
        report = _ended(AttemptOutcome.FAILED, error=error)
    except Exception as error:  # noqa: BLE001 (the outermost place: it is reported with its trace, and retried)
        traceback.print_exc(file=sys.stdout)
        report = _ended(AttemptOutcome.FAILED, error=error)
    save_report(Path(job.result_path), report)
    end_tracing()
    _LOG.info("%s: %s %s", job.name, report.outcome.value if report.outcome else "", report.message)
    return 0


def _run(job: Job, engine: str, driver_bytes: str, tell_plan: Callable[[str], None]) -> JobReport:
    if engine == "java":
        return execute_in_java(_session(job), job, tell_plan, runtime=SYSTEM_RUNTIME)
    if engine == "flink":
        return execute_job(open_table(job, engine=_flink(job, driver_bytes)), job, tell_plan)
    return execute_job(open_table(job, spark=_session(job) if engine == "spark" else None), job, tell_plan)


def _session(job: Job) -> Any:
    # PySpark is there only where Spark started this process.
    from tablekeeper.engine.spark_session import submitted_session  # noqa: PLC0415

    return submitted_session(job.name)


def _flink(job: Job, driver_bytes: str) -> Engine:
    # PyFlink is there only where Flink started this process.
    from tablekeeper.engine.flink import submitted_engine  # noqa: PLC0415

    return submitted_engine(job.name, driver_bytes=int(driver_bytes) if driver_bytes else None)


def _plan(table: Table, job: Job) -> str | None:
    """A plan of this action that waits, else a new one; None if there is nothing to do."""
    waiting = [each.instant for each in table.timeline_summary().pending if each.service == job.action.value]
    if waiting:
        return waiting[0]
    schedule: dict[ServiceAction, Callable[..., Any]] = {
        ServiceAction.COMPACTION: table.schedule_compaction,
        ServiceAction.LOG_COMPACTION: table.schedule_log_compaction,
        ServiceAction.CLUSTERING: table.schedule_clustering,
    }
    scheduled = schedule[job.action](**job.planning)
    return None if scheduled is None else str(scheduled.instant)


def _has_left(table: Table, instant: str) -> bool:
    return table.timeline_summary().find_pending(instant) is None


def _result_of(result: Any) -> dict[str, Any]:
    shown = result.to_dict() if hasattr(result, "to_dict") else {}
    return dict(shown) if isinstance(shown, dict) else {}


def _ended(
    outcome: AttemptOutcome,
    result: dict[str, Any] | None = None,
    *,
    plan: str | None = None,
    error: Exception | None = None,
    message: str = "",
) -> JobReport:
    message = message if error is None else f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
    return JobReport(JobState.ENDED, plan=plan, outcome=outcome, message=message, result=result or {})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
