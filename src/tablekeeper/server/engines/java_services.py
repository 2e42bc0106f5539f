"""Services executed by Java Hudi, through its SQL procedures, for tables that need what tablekeeper refuses.

Runs inside a job of the engine `hudi-java`, in a session that has Hudi's bundle. What came of it is read from the
timeline: a procedure that returns has not always completed its plan, and one that raises may have.

Java takes the guard of a compaction by itself, and none for a clustering, which is therefore held for it. A heartbeat
that cannot be renewed in time ends the whole job, because Java does not look for it before it commits.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tablekeeper.config.concurrency_settings import (
    ConcurrencySettings,
    ConflictSettings,
    HeartbeatSettings,
    LockSettings,
)
from tablekeeper.config.java_settings import LOCK_PROVIDER, java_settings
from tablekeeper.config.options import Options
from tablekeeper.errors import (
    FencedError,
    InvalidRequestError,
    PlanCancelledError,
    PlanHeldError,
    UnsupportedFeatureError,
)
from tablekeeper.model import Action, Instant, RequestedTime
from tablekeeper.runtime import Runtime
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.model import AttemptOutcome, ServiceAction
from tablekeeper.services.plans.hold import hold_plan, refuse_for_others
from tablekeeper.storage.open import open_storage
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.timeline import Timeline
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.locks.choose import choose_lock

__all__ = ["execute_in_java", "procedure_call"]

_LOG = logging.getLogger("tablekeeper.worker")
_TABLE = "tablekeeper_job"
_OLDEST_VERSION = 8
_WATCH_S = 1.0
# What Java says where its own guard of a compaction finds somebody else. Its failed ones can go on beating for a while.
_HELD = "due to heartbeat by concurrent writer"


def execute_in_java(spark: Any, job: Job, tell_plan: Callable[[str], None], *, runtime: Runtime) -> JobReport:
    """Do it. `tell_plan` hears of the plan as soon as there is one."""
    environment, options = _load_environment(job, runtime)
    settings = java_settings(
        environment.config,
        options,
        locks=environment.lock_settings,
        on_object_store=not environment.storage.spec.uri.startswith("file:"),
    )
    for name, value in settings.items():
        spark.conf.set(name, value)
    match job.action:
        case ServiceAction.COMPACTION | ServiceAction.CLUSTERING:
            return _execute_plan(spark, job, environment, tell_plan)
        case ServiceAction.CLEAN:
            return _clean(spark, job, environment)
        case _:
            raise UnsupportedFeatureError(f"Hudi has no procedure for {job.action.value}: use another engine for it")


def procedure_call(name: str, arguments: Mapping[str, str | int]) -> str:
    """The statement. Values are quoted; what cannot be quoted safely is refused."""
    shown = ", ".join(f"{key} => {_literal(value)}" for key, value in arguments.items())
    return f"call {name}({shown})"


def _load_environment(job: Job, runtime: Runtime) -> tuple[TableEnvironment, Mapping[str, str]]:
    """The table as Java is to find it, also one that is read-only for our own services."""
    storage = open_storage(job.base_path, options=dict(job.storage_options) or None, runtime=runtime)
    config = load_table_config(storage)
    if config.version < _OLDEST_VERSION:
        raise UnsupportedFeatureError(
            f"table {config.name} has version {config.version}, which this Java would upgrade. Upgrade it, or run "
            "its services with the release that writes it."
        )
    options = Options(job.options).merged_over(load_writer_options(storage, config)).given
    locks = LockSettings.from_options(options)
    environment = TableEnvironment(
        storage=storage,
        config=config,
        lock=choose_lock(storage, options=locks, runtime=runtime, table_name=config.name),
        lock_settings=locks,
        heartbeat_settings=HeartbeatSettings.from_options(options),
        conflict_settings=ConflictSettings.from_options(options),
        runtime=runtime,
        concurrency=ConcurrencySettings.from_options(options),
    )
    return environment, options


def _execute_plan(spark: Any, job: Job, environment: TableEnvironment, tell_plan: Callable[[str], None]) -> JobReport:
    instant = job.instant or _waiting_plan(job, environment) or _schedule(spark, job, environment)
    if instant is None:
        return _ended(AttemptOutcome.NOTHING_TO_DO)
    tell_plan(instant)
    try:
        failure = _run_plan(spark, job, environment, instant)
    except PlanHeldError as error:
        return _ended(AttemptOutcome.ELSEWHERE, plan=instant, message=str(error))
    except PlanCancelledError as error:
        return _ended(AttemptOutcome.GONE, plan=instant, message=str(error))
    return _judge(environment, job, instant, failure)


def _run_plan(spark: Any, job: Job, environment: TableEnvironment, instant: str) -> str:
    """Let Java execute the plan, unless the timeline says that there is nothing to execute; why it failed, or `""`."""
    plan = _find(environment, instant)
    if plan is None or plan.is_completed or plan.action.service is not job.action.kind:
        return ""
    arguments = {"path": job.base_path, "op": "execute", "instants": instant, "options": _options(spark)}
    if job.action is ServiceAction.COMPACTION:
        refuse_for_others(environment, plan)
        return _call(spark, procedure_call("run_compaction", arguments))
    with hold_plan(environment, plan) as heartbeat, _ends_with(heartbeat.check, environment.runtime):
        return _call(spark, procedure_call("run_clustering", arguments))


def _judge(environment: TableEnvironment, job: Job, instant: str, failure: str) -> JobReport:
    """What the timeline says of the plan, whatever Java said."""
    plan = _find(environment, instant)
    if plan is None:
        message = f"{instant} is not on the timeline"
        return _ended(AttemptOutcome.GONE, plan=instant, message=message)
    if plan.is_completed:
        return _ended(AttemptOutcome.COMPLETED, plan=instant, result={"instant": instant, "executed_by": "java"})
    if plan.action.service is not job.action.kind:
        raise InvalidRequestError(f"{plan} is no plan of {job.action.value}")
    if _HELD in failure:
        return _ended(AttemptOutcome.ELSEWHERE, plan=instant, message=failure)
    message = failure or f"Java returned, and {plan} is still there; see the output"
    return _ended(AttemptOutcome.FAILED, plan=instant, message=message)


def _waiting_plan(job: Job, environment: TableEnvironment) -> str | None:
    plans = _timeline(environment).pending_plans
    waiting = [each.requested_at.value for each in plans if each.action.service is job.action.kind]
    return waiting[0] if waiting else None


def _schedule(spark: Any, job: Job, environment: TableEnvironment) -> str | None:
    """A plan made by Java; None if it found nothing to do."""
    arguments: dict[str, str | int] = {"path": job.base_path, "op": "schedule", "options": _options(spark)}
    name = "run_compaction" if job.action is ServiceAction.COMPACTION else "run_clustering"
    if job.action is ServiceAction.CLUSTERING and job.planning.get("order_by"):
        arguments["order"] = ",".join(job.planning["order_by"])
        layouts = {"sort": "linear", "zorder": "z-order", "hilbert": "hilbert"}
        if job.planning.get("strategy"):
            arguments["order_strategy"] = layouts[job.planning["strategy"]]
    _LOG.info("%s", procedure_call(name, arguments))
    spark.sql(procedure_call(name, arguments)).collect()
    return _waiting_plan(job, environment)


def _clean(spark: Any, job: Job, environment: TableEnvironment) -> JobReport:
    before = _cleans(environment)
    # This procedure knows tables by name only.
    spark.sql(f"create table if not exists {_TABLE} using hudi location {_literal(job.base_path)}")
    arguments: dict[str, str | int] = {"table": _TABLE, "options": _options(spark)}
    if "keep_hours" in job.planning:
        arguments |= {"clean_policy": "KEEP_LATEST_BY_HOURS", "hours_retained": int(job.planning["keep_hours"])}
    elif "keep_commits" in job.planning:
        arguments |= {"clean_policy": "KEEP_LATEST_COMMITS", "retain_commits": int(job.planning["keep_commits"])}
    failure = _call(spark, procedure_call("run_clean", arguments))
    done = sorted(_cleans(environment) - before)
    if failure:
        return _ended(AttemptOutcome.FAILED, message=failure)
    return _ended(
        AttemptOutcome.COMPLETED if done else AttemptOutcome.NOTHING_TO_DO, result={"cleans": done} if done else {}
    )


def _cleans(environment: TableEnvironment) -> set[str]:
    completed = _timeline(environment).completed
    return {each.requested_at.value for each in completed if each.action is Action.CLEAN}


def _timeline(environment: TableEnvironment) -> Timeline:
    return environment.load_timeline()


def _find(environment: TableEnvironment, instant: str) -> Instant | None:
    return _timeline(environment).find(RequestedTime(instant))


def _options(spark: Any) -> str:
    """The lock once more: without it among the procedure's own options, Java takes one of its choice."""
    return f"{LOCK_PROVIDER}={spark.conf.get(LOCK_PROVIDER)}"


def _call(spark: Any, statement: str) -> str:
    """Run the procedure; why it failed, or `""`. The timeline says whether it did what it was to do."""
    _LOG.info("%s", statement)
    try:
        for row in spark.sql(statement).collect():
            _LOG.info("%s", row.asDict())
    except Exception as error:  # noqa: BLE001 (any failure in Java: it is reported, and the timeline decides)
        _LOG.exception("Java failed")
        return f"Java: {error}"
    return ""


@contextmanager
def _ends_with(check: Callable[[], None], runtime: Runtime) -> Iterator[None]:
    """End this process, and the JVM with it, as soon as `check` says that the plan may be another's by now."""

    def look() -> None:
        try:
            check()
        except FencedError as error:
            _LOG.critical("%s; ending at once", error)
            # Minder's child has a process group of its own: Spark's JVM is in it, and nobody else.
            os.killpg(0, signal.SIGKILL)

    watch = runtime.threads.every(_WATCH_S, look, name="tablekeeper-fence")
    try:
        yield
    finally:
        watch.stop()


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    if any(character in value for character in "'\\\n\r\0"):
        raise InvalidRequestError(f"{value[:60]!r} has quotes or line breaks, which a SQL procedure cannot take")
    return f"'{value}'"


def _ended(
    outcome: AttemptOutcome,
    *,
    plan: str | None = None,
    message: str = "",
    result: Mapping[str, Any] | None = None,
) -> JobReport:
    return JobReport(JobState.ENDED, plan=plan, outcome=outcome, message=message[:1000], result=result or {})
