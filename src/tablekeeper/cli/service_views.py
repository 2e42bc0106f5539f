"""What `tablekeeper service …` prints: tables and facts for people, or what the service answered, as JSON.

Texts come from the writers of tables and from the output of jobs: none of them may move the cursor of a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from tablekeeper.cli.escapes import escaped
from tablekeeper.cli.json_text import json_document
from tablekeeper.cli.screen import show_facts, show_records

__all__ = [
    "show_alarms",
    "show_events",
    "show_fields",
    "show_log",
    "show_operation",
    "show_operations",
    "show_table",
    "show_tables",
    "show_tokens",
    "tell",
]

_TABLE_COLUMNS = ("table", "path", "queue", "priority", "state", "behind", "plans")
_OPERATION_COLUMNS = ("id", "table", "action", "instant", "status", "runs", "queue", "note")
_ATTEMPT_COLUMNS = ("attempt", "outcome", "engine", "instance", "started", "took", "message")
Record = Mapping[str, Any]


def tell(text: str, answer: Record, *, as_json: bool) -> None:
    """What was done: a sentence, or the service's answer."""
    typer.echo(json_document(answer) if as_json else text)


def show_tables(found: Sequence[Record], *, as_json: bool) -> None:
    """Registered tables, one a line."""
    _show(found, as_json=as_json, columns=_TABLE_COLUMNS, row=_table_row)


def show_operations(found: Sequence[Record], *, as_json: bool) -> None:
    """Operations, one a line."""
    _show(found, as_json=as_json, columns=_OPERATION_COLUMNS, row=_operation_row)


def show_alarms(found: Sequence[Record], *, as_json: bool) -> None:
    """Alarms, one a line."""
    _show(found, as_json=as_json, columns=("id", "rule", "text", "opened", "resolved"), row=_alarm_row)


def show_events(found: Sequence[Record], *, as_json: bool) -> None:
    """Events, one a line."""
    _show(found, as_json=as_json, columns=("at", "table", "operation", "what", "why"), row=_event_row)


def show_tokens(found: Sequence[Record], *, as_json: bool) -> None:
    """Tokens without what they are, one a line."""
    columns = ("id", "name", "role", "databases", "path prefixes", "revoked")
    _show(found, as_json=as_json, columns=columns, row=_token_row)


def show_fields(found: Sequence[Record], columns: Sequence[str], *, as_json: bool) -> None:
    """These fields of each record; a count that is not there is 0."""
    _show(found, as_json=as_json, columns=columns, row=lambda each: [str(each.get(name, 0)) for name in columns])


def show_table(table: Record) -> None:
    """All about a table, and what waits or runs on it."""
    facts = table["facts"]
    amplification = facts["read_amplification"]
    shown = {
        "table": f"{table['db_name']}.{table['table_name']}",
        "path": table["base_path"],
        "state": _state_of(table),
        "quarantine": table["quarantine"],
        "queue, owner": f"{table['queue']}, {table['owner']}",
        "priority": str(table["priority"]),
        "behind": _count(facts["commits_behind"], "commit"),
        "since": _moment(facts["behind_since_ms"]),
        "read amplification": "" if amplification is None else f"{amplification:g}x",
        "pending plans": str(facts["pending_plans"]),
        "next look": _moment(table["look_at_ms"]),
        "own policy": json.dumps(table["policy"], ensure_ascii=False),
        "policy": json.dumps(table["effective_policy"], ensure_ascii=False),
    }
    show_facts({name: text for name, text in shown.items() if text})
    if table["operations"]:
        typer.echo()
        show_operations(table["operations"], as_json=False)


def show_operation(operation: Record) -> None:
    """All about an operation, and its attempts."""
    shown = {
        "operation": str(operation["operation_id"]),
        "table": operation["table"],
        "action": operation["action"],
        "instant": operation["instant"],
        "status": operation["status"],
        "note": operation["note"],
        "why": operation["why"],
        "queue, owner": f"{operation['queue']}, {operation['owner']}",
        "priority": str(operation["priority"]),
        "engine": operation["engine"],
        "failures": f"{operation['failures']} in {_count(operation['run_times'], 'run')}",
        "created": _moment(operation["create_ms"]),
        "changed": _moment(operation["update_ms"]),
        "deadline": _moment(operation["deadline_ms"]),
        "asked to stop": operation["cancel_reason"],
        "saves": operation["estimate"]["saves"],
    }
    show_facts({name: text for name, text in shown.items() if text})
    if operation["attempts"]:
        typer.echo()
        show_records(_ATTEMPT_COLUMNS, [_attempt_row(each) for each in operation["attempts"]])


def show_log(operation_id: int, text: str, *, as_json: bool) -> None:
    """The output of an attempt, line by line."""
    if as_json:
        typer.echo(json_document({"operation_id": operation_id, "log": text}))
        return
    lines = text.removesuffix("\n").split("\n") if text else []
    for line in lines:
        typer.echo("\t".join(map(escaped, line.removesuffix("\r").split("\t"))))


def _show(
    found: Sequence[Record], *, as_json: bool, columns: Sequence[str], row: Callable[[Record], Sequence[str]]
) -> None:
    if as_json:
        for each in found:
            typer.echo(json_document(each))
    else:
        show_records(columns, [row(each) for each in found])


def _table_row(table: Record) -> list[str]:
    facts = table["facts"]
    return [
        f"{table['db_name']}.{table['table_name']}",
        table["base_path"],
        table["queue"],
        str(table["priority"]),
        _state_of(table),
        _count(facts["commits_behind"], "commit"),
        str(facts["pending_plans"]),
    ]


def _state_of(table: Record) -> str:
    """In the words of the pages."""
    if table["quarantine"]:
        return "quarantined"
    if table["paused"]:
        return "paused"
    return "behind" if table["facts"]["behind_since_ms"] else "active"


def _operation_row(operation: Record) -> list[str]:
    return [
        str(operation["operation_id"]),
        operation["table"],
        operation["action"],
        operation["instant"],
        operation["status"],
        str(operation["run_times"]),
        operation["queue"],
        operation["note"] or operation["why"],
    ]


def _attempt_row(attempt: Record) -> list[str]:
    took = "" if attempt["ended_ms"] is None else f"{(attempt['ended_ms'] - attempt['started_ms']) / 1000:.1f} s"
    return [
        str(attempt["number"]),
        attempt["outcome"],
        attempt["engine"],
        attempt["instance"],
        _moment(attempt["started_ms"]),
        took,
        attempt["message"],
    ]


def _alarm_row(alarm: Record) -> list[str]:
    times = (_moment(alarm["opened_ms"]), _moment(alarm["resolved_ms"]))
    return [str(alarm["alarm_id"]), alarm["rule"], alarm["text"], *times]


def _event_row(event: Record) -> list[str]:
    about = (event["table"], str(event["operation_id"] or ""))
    return [_moment(event["at_ms"]), *about, event["kind"], event["text"]]


def _token_row(token: Record) -> list[str]:
    limits = (", ".join(token["databases"]) or "all", ", ".join(token["path_prefixes"]) or "all")
    return [str(token["token_id"]), token["name"], token["role"], *limits, _moment(token["revoked_ms"])]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _moment(moment_ms: int | None) -> str:
    return "" if not moment_ms else datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
