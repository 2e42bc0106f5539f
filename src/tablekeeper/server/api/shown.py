"""Values of the service as JSON: the one place that says which fields the outside sees, and under which names."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tablekeeper.server.model import Alarm, Attempt, Event, Instance, ManagedTable, Operation

__all__ = ["shown_alarm", "shown_attempt", "shown_event", "shown_instance", "shown_operation", "shown_table"]


def shown_table(table: ManagedTable) -> dict[str, Any]:
    """A registered table, with the columns of RFC-43 under their names."""
    return {
        "id": table.table_id,
        "db_name": table.db_name,
        "table_name": table.table_name,
        "base_path": table.base_path,
        "owner": table.owner,
        "queue": table.queue,
        "action_types": [action.value for action in table.action_types],
        "priority": table.priority,
        "policy": dict(table.policy),
        "paused": table.is_paused,
        "quarantine": table.quarantine,
        "look_at_ms": table.look_at_ms,
        "facts": asdict(table.facts),
    }


def shown_operation(operation: Operation, table: ManagedTable) -> dict[str, Any]:
    """An operation, with the columns of RFC-43 under their names."""
    return {
        "operation_id": operation.operation_id,
        "table": table.name,
        "tbl_id": operation.table_id,
        "instant": operation.instant,
        "action": operation.action.value,
        "status": operation.status.word,
        "engine": operation.engine,
        "retry_on_error": operation.retry_on_error,
        "run_times": operation.run_times,
        "is_deleted": operation.is_deleted,
        "schedule_ms": operation.schedule_ms,
        "create_ms": operation.create_ms,
        "update_ms": operation.update_ms,
        "failures": operation.failures,
        "priority": operation.priority,
        "queue": operation.queue,
        "owner": operation.owner,
        "not_before_ms": operation.not_before_ms,
        "deadline_ms": operation.deadline_ms,
        "instance": operation.instance_id,
        "lease_until_ms": operation.lease_until_ms,
        "cancel_reason": operation.cancel_reason,
        "why": operation.why,
        "note": operation.note,
    }


def shown_attempt(attempt: Attempt) -> dict[str, Any]:
    """One try of an operation. Where its output lies is the service's own business."""
    return {
        "number": attempt.number,
        "engine": attempt.engine,
        "instance": attempt.instance_id,
        "outcome": attempt.outcome.value,
        "job_id": attempt.job_id,
        "started_ms": attempt.started_ms,
        "ended_ms": attempt.ended_ms,
        "why": attempt.why,
        "message": attempt.message,
        "result": dict(attempt.result),
    }


def shown_instance(instance: Instance, *, now_ms: int) -> dict[str, Any]:
    """A running service, and how long ago it was seen."""
    return {**asdict(instance), "seen_s_ago": max(0.0, (now_ms - instance.seen_ms) / 1000)}


def shown_event(event: Event, table: ManagedTable | None) -> dict[str, Any]:
    """Something that happened, and to what; without a table's name if it is about none."""
    return {
        "event_id": event.event_id,
        "at_ms": event.at_ms,
        "kind": event.kind,
        "text": event.text,
        "table": table.name if table is not None else "",
        "operation_id": event.operation_id,
        "instance": event.instance_id,
    }


def shown_alarm(alarm: Alarm) -> dict[str, Any]:
    """An alarm, open as long as `resolved_ms` is null."""
    return asdict(alarm)
