"""Rows of the database as values, and back. Lists and maps are kept as JSON text."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Row

from tablekeeper.server.model import (
    Alarm,
    Attempt,
    AttemptOutcome,
    Event,
    ManagedTable,
    Operation,
    Role,
    RunParameters,
    ServiceAction,
    Status,
    TableFacts,
    Token,
)

__all__ = [
    "actions_text",
    "alarm_of",
    "attempt_of",
    "event_of",
    "facts_of",
    "facts_text",
    "json_text",
    "operation_of",
    "parameters_text",
    "path_digest",
    "shown_again",
    "table_of",
    "token_of",
]

_FACTS = frozenset(each.name for each in fields(TableFacts))


def json_text(value: Any) -> str:
    """Compact JSON; what JSON does not know is shown as text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, default=str)


def path_digest(base_path: str) -> str:
    """Paths are longer than what databases can index."""
    return hashlib.sha256(base_path.encode()).hexdigest()


def actions_text(actions: tuple[ServiceAction, ...]) -> str:
    return ",".join(action.value for action in actions)


def facts_text(facts: TableFacts) -> str:
    return json_text(asdict(facts))


def facts_of(text: str) -> TableFacts:
    """Fields that another release knows are passed over."""
    return TableFacts(**{name: value for name, value in json.loads(text).items() if name in _FACTS})


def parameters_text(parameters: RunParameters) -> str:
    return json_text(
        {
            "resource": parameters.resource,
            "parallelism": parameters.parallelism,
            "extra_params": dict(parameters.extra_params),
        }
    )


def shown_again(status: Status) -> dict[str, bool]:
    """What changes of a removed operation when it ends: one that has completed after all belongs to the history."""
    return {"isDeleted": False} if status is Status.COMPLETED else {}


def table_of(row: Row[Any]) -> ManagedTable:
    """A row of `tbl` joined with `tbl_state`."""
    fields = row._mapping
    return ManagedTable(
        table_id=fields["id"],
        db_name=fields["db_name"],
        table_name=fields["table_name"],
        base_path=fields["base_path"],
        owner=fields["owner"],
        queue=fields["queue"],
        action_types=tuple(ServiceAction(each) for each in fields["action_types"].split(",") if each),
        priority=int(fields["priority"]),
        policy=json.loads(fields["policy"]),
        is_paused=bool(fields["is_paused"]),
        quarantine=fields["quarantine"],
        look_at_ms=fields["look_at_ms"],
        idle_looks=fields["idle_looks"],
        failed_looks=fields["failed_looks"],
        facts=facts_of(fields["facts"]),
    )


def operation_of(row: Row[Any]) -> Operation:
    fields = row._mapping
    same = (
        "operation_id instant engine run_times failures priority queue owner not_before_ms deadline_ms lease_token "
        "lease_until_ms instance_id cancel_reason why note"
    )
    return Operation(
        **{name: fields[name] for name in same.split()},
        table_id=fields["tbl_id"],
        action=ServiceAction(fields["action"]),
        status=Status(fields["status"]),
        retry_on_error=bool(fields["retry_on_error"]),
        is_deleted=bool(fields["isDeleted"]),
        schedule_ms=_epoch_ms(fields["schedule_time"]),
        create_ms=_epoch_ms(fields["create_time"]),
        update_ms=_epoch_ms(fields["update_time"]),
        parameters=RunParameters(**json.loads(fields["parameters"])),
        trace=fields["trace"] or "",
    )


def attempt_of(row: Row[Any]) -> Attempt:
    fields = dict(row._mapping)
    fields["outcome"] = AttemptOutcome(fields["outcome"])
    fields["result"] = json.loads(fields["result"])
    fields["why"] = fields["why"] or ""
    return Attempt(**fields)


def event_of(row: Row[Any]) -> Event:
    fields = dict(row._mapping)
    fields["table_id"] = fields.pop("tbl_id")
    return Event(**fields)


def alarm_of(row: Row[Any]) -> Alarm:
    fields = row._mapping
    return Alarm(
        alarm_id=fields["alarm_id"],
        key=fields["alarm_key"],
        rule=fields["rule"],
        text=fields["text"],
        opened_ms=fields["opened_ms"],
        resolved_ms=fields["resolved_ms"],
        table_id=fields["tbl_id"],
        operation_id=fields["operation_id"],
    )


def token_of(row: Row[Any]) -> Token:
    fields = row._mapping
    scopes = json.loads(fields["scopes"])
    return Token(
        token_id=fields["token_id"],
        name=fields["name"],
        digest=fields["digest"],
        role=Role(fields["role"]),
        databases=tuple(scopes["databases"]),
        path_prefixes=tuple(scopes["path_prefixes"]),
        created_ms=fields["created_ms"],
        revoked_ms=fields["revoked_ms"],
    )


def _epoch_ms(moment: dt.datetime | None) -> int:
    return 0 if moment is None else int(moment.replace(tzinfo=dt.UTC).timestamp() * 1000)
