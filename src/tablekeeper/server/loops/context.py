"""What all loops of an instance share, and the attempts that it watches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tablekeeper.runtime import Runtime
from tablekeeper.server.decisions.alarms import failure_alarm
from tablekeeper.server.decisions.outcomes import Verdict
from tablekeeper.server.engines.parameters import hudi_settings
from tablekeeper.server.engines.protocol import Job
from tablekeeper.server.engines.registry import Engines
from tablekeeper.server.model import ManagedTable, Operation, ServiceAction, Signal, Status, transition
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import EndedAttempt, JobStore, NewInstance
from tablekeeper.storage.shared_options import options_for
from tablekeeper.table.summary import TimelineSummary
from tablekeeper.tracing import current_trace

__all__ = ["LoopContext", "Watched", "about", "make_job", "settle"]

_LOG = logging.getLogger(__name__)
_LABEL_LENGTH = 8


@dataclass(slots=True)
class Watched:
    """An attempt that this instance watches. Only the watching loop changes it."""

    operation: Operation
    number: int
    job: Job
    job_id: str
    engine: str
    max_failures: int
    has_fallback: bool
    renewed_s: float
    since_s: float
    is_planned: bool
    is_cancelling: bool = False


@dataclass(frozen=True, slots=True)
class LoopContext:
    """Handed to every loop.

    `look` loads the summary of a table's timeline, `is_held` tells whether a plan is held, and `was_archived` whether
    the archive of the table has it, as completed.
    """

    store: JobStore
    engines: Engines
    settings: ServerSettings
    runtime: Runtime
    instance: NewInstance
    look: Callable[[ManagedTable], TimelineSummary]
    is_held: Callable[[ManagedTable, str], bool]
    was_archived: Callable[[ManagedTable, str], bool]
    metrics: ServiceMetrics
    watched: dict[int, Watched] = field(default_factory=dict)

    @property
    def instance_id(self) -> str:
        return self.instance.instance_id


def about(operation: Operation) -> dict[str, object]:
    """The fields of a log line about an operation."""
    return {"operation_id": operation.operation_id, "table_id": operation.table_id}


def settle(context: LoopContext, operation: Operation, verdict: Verdict, ended: EndedAttempt | None = None) -> None:
    """End the claim as the verdict says. The alarm of a failed or quarantined operation opens at once."""
    store = context.store
    alarm = None
    if verdict.signal in (Signal.FAIL, Signal.QUARANTINE):
        over = replace(operation, status=transition(Status.RUNNING, verdict.signal), note=verdict.note)
        name = store.load_table(operation.table_id).name
        told = (operation.operation_id, operation.action.value, name, over.status.word, verdict.note)
        _LOG.warning("operation %d, %s of %s, is %s: %s", *told, extra=about(operation))
        firing = failure_alarm(over, name)
        channels = tuple(channel.name for channel in context.settings.channels)
        alarm = firing.alarm(channels) if firing is not None else None
    store.settle(
        operation.lease,
        verdict.signal,
        note=verdict.note,
        delay_s=verdict.delay_s,
        counts_as_failure=verdict.counts_as_failure,
        ended=ended,
        alarm=alarm,
    )


def make_job(
    context: LoopContext, operation: Operation, table: ManagedTable, policy: Policy, number: int, *, log_path: str = ""
) -> Job:
    """The attempt as an engine gets it. One that was begun before is known by the `log_path` of its record.

    Numbers of operations are reused after a table's history was cleared, and in a new database. So an attempt has a
    unique name: otherwise the files of another operation's attempt could be taken for its own.
    """
    if log_path:
        log = Path(log_path)
    else:
        label = f"{operation.operation_id}-{number}-{context.runtime.ids.uuid()[:_LABEL_LENGTH]}"
        log = Path(context.settings.work_dir) / "attempts" / f"{label}.log"
    return Job(
        operation_id=operation.operation_id,
        number=number,
        base_path=table.base_path,
        action=operation.action,
        instant=operation.instant if operation.is_planned and operation.action.has_plan else None,
        log_path=str(log),
        result_path=str(log.with_suffix(".json")),
        time_limit_s=policy.time_limit_s or 0.0,
        parameters=operation.parameters,
        options={**policy.options, **hudi_settings(operation.parameters)},
        planning=_planning(operation.action, policy),
        storage_options=options_for(table.base_path, context.settings.storage_options),
        trace=current_trace() or operation.trace,
        label=log.stem,
    )


def _planning(action: ServiceAction, policy: Policy) -> dict[str, object]:
    """Arguments of the call that plans."""
    if action in (ServiceAction.ARCHIVE, ServiceAction.METADATA_COMPACTION):
        return {}
    if action is ServiceAction.CLEAN:
        return {"keep_hours": policy.keep_hours} if policy.keep_hours else {"keep_commits": policy.keep_commits}
    arguments: dict[str, object] = {"cancellable": bool(policy.cancellable)}
    if action is ServiceAction.CLUSTERING:
        arguments["order_by"] = list(policy.order_by) if policy.order_by else None
        arguments["strategy"] = policy.layout
    return arguments
