"""Services executed by Java Hudi, through its SQL procedures, for tables that need what tablekeeper refuses.

Runs inside a job of the engine `hudi-java`, in a session that has Hudi's bundle. Nothing of the table is touched by us.
"""

from __future__ import annotations

from typing import Any

from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.model import AttemptOutcome, ServiceAction

__all__ = ["execute_in_java", "procedure_call"]

_TABLE = "tablekeeper_job"


def execute_in_java(spark: Any, job: Job) -> JobReport:
    """Call the procedure. What it returns is kept as text: its columns differ between releases of Hudi."""
    if job.action is ServiceAction.CLEAN:
        # This procedure knows tables by name only.
        spark.sql(f"create table if not exists {_TABLE} using hudi location {_text(job.base_path)}")
    rows = [str(row.asDict()) for row in spark.sql(procedure_call(job)).collect()]
    outcome = AttemptOutcome.COMPLETED if rows else AttemptOutcome.NOTHING_TO_DO
    return JobReport(JobState.ENDED, plan=job.instant, outcome=outcome, result={"rows": rows[:100]})


def procedure_call(job: Job) -> str:
    """The statement. Values are quoted; what cannot be quoted safely is refused."""
    arguments = {"path": job.base_path}
    match job.action:
        case ServiceAction.COMPACTION:
            name = "run_compaction"
            arguments["op"] = "execute" if job.instant else "scheduleandexecute"
            if job.instant:
                arguments["timestamp"] = job.instant
        case ServiceAction.CLUSTERING:
            name = "run_clustering"
            arguments["op"] = "execute" if job.instant else "scheduleandexecute"
            if job.instant:
                arguments["instants"] = job.instant
            elif job.planning.get("order_by"):
                arguments["order"] = ",".join(job.planning["order_by"])
        case ServiceAction.CLEAN:
            name, arguments = "run_clean", {"table": _TABLE}
        case _:
            raise UnsupportedFeatureError(f"Hudi has no procedure for {job.action.value}: use another engine for it")
    if job.options:
        arguments["options"] = ",".join(f"{key}={value}" for key, value in sorted(job.options.items()))
    shown = ", ".join(f"{key} => {_text(str(value))}" for key, value in arguments.items())
    return f"call {name}({shown})"


def _text(value: str) -> str:
    if any(character in value for character in "'\\\n\r\0"):
        raise InvalidRequestError(f"{value[:60]!r} has quotes or line breaks, which a SQL procedure cannot take")
    return f"'{value}'"
