"""`tablekeeper service …`: look at and operate a running Table Management Service.

Each command prints a table for people, or with `--json` what the service answered. The address comes from `--url` or
the variable TABLEKEEPER_SERVICE, the token from TABLEKEEPER_TOKEN only: what stands on a command line can be seen by
everybody on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress

from tablekeeper.cli.arguments import AsJson, StorageOption, command_with, option_pairs, parameter
from tablekeeper.cli.escapes import escaped
from tablekeeper.cli.json_text import json_document
from tablekeeper.cli.service_views import (
    show_alarms,
    show_events,
    show_fields,
    show_log,
    show_operation,
    show_operations,
    show_table,
    show_tables,
    show_tokens,
    tell,
)
from tablekeeper.client.http import ServiceClient, ServiceRefusedError, path_of
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.table.discovery import MOST_FOLDERS, find_tables

__all__ = ["ServiceCall", "management_commands", "service_command"]

management_commands = typer.Typer(
    name="service", help="Inspect and operate a running Table Management Service.", no_args_is_help=True
)

F = TypeVar("F", bound=Callable[..., None])
_PAGE = 500

Url = Annotated[
    str,
    typer.Option(envvar="TABLEKEEPER_SERVICE", metavar="URL", help="Where the service listens."),
]
TableName = Annotated[str, typer.Argument(metavar="DB.TABLE", help="A registered table.", show_default=False)]
OperationId = Annotated[int, typer.Argument(metavar="ID", help="An operation.", min=1, show_default=False)]
Most = Annotated[int, typer.Option(min=1, help="Maximum number.")]


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """What every command of the service is told: where it listens, and how to print."""

    url: str
    as_json: bool

    @property
    def client(self) -> ServiceClient:
        """A client of the service at these addresses, with the token of the environment."""
        return ServiceClient(self.url.split(","), token=os.environ.get("TABLEKEEPER_TOKEN", ""))


def service_command(*lines: str) -> Callable[[F], F]:
    """Make a function a command of the service, with `lines` as the examples of its help.

    The command takes --url, --json and --debug after the function's own parameters; the function gets a `ServiceCall`.
    """
    shared = [parameter("url", Url, "http://localhost:9091"), parameter("as_json", AsJson, False)]
    return command_with(management_commands, *lines, name=None, call_of=ServiceCall, shared=shared)


@service_command("tablekeeper service tables", "tablekeeper service tables --search trips --json")
def tables(
    call: ServiceCall,
    *,
    search: Annotated[str, typer.Option(help="A part of the name or path.")] = "",
    quarantined: Annotated[bool, typer.Option("--quarantined", help="Only those in quarantine.")] = False,
    limit: Most = 100,
) -> None:
    """The registered tables."""
    query = {"search": search, "quarantined": True if quarantined else None}
    found = list(_pages(call.client, "/v1/tables", "tables", query, limit=limit))
    show_tables(found, as_json=call.as_json)


@service_command(
    "tablekeeper service add /lake/trips --db sales --queue nightly",
    "tablekeeper service add /lake --recursive",
    "tablekeeper service add s3://lake/sales --recursive --db sales --storage-option region=eu-west-1",
)
def add(
    call: ServiceCall,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A table, or with --recursive a folder of tables.")],
    *,
    recursive: Annotated[bool, typer.Option("--recursive", help="Every table below the path.")] = False,
    db: Annotated[str, typer.Option(help="Name of the database.")] = "default",
    name: Annotated[str, typer.Option(help="Name of the table; by default the last part of its path.")] = "",
    owner: Annotated[str, typer.Option(help="Who the table belongs to.")] = "",
    queue: Annotated[str, typer.Option(help="The queue for its work.")] = "",
    priority: Annotated[str, typer.Option(help="0 to 9, or low, normal, high.")] = "",
    most_folders: Annotated[
        int, typer.Option(min=1, help="With --recursive: give up where there are more folders than this.")
    ] = MOST_FOLDERS,
    storage_option: StorageOption = None,
) -> None:
    """Register a table, or every table below a folder or a prefix of an object store.

    With --recursive this command lists the folders, with the settings of the store that it is given; the service reads
    each table once, with its own. Tables that cannot be registered are named at the end, and the others are registered.
    """
    if recursive and name:
        raise InvalidRequestError("--name is for one table: leave it out with --recursive")
    absolute = path if "://" in path else str(Path(path).absolute())
    paths = [absolute]
    if recursive:
        options = option_pairs(storage_option)
        paths = find_tables(absolute, storage_options=options, most_folders=most_folders, runtime=SYSTEM_RUNTIME)
    client = call.client
    shared = {"db_name": db, "owner": owner, "queue": queue, "priority": priority}
    added, failed = [], []
    with _progress(is_shown=recursive) as progress:
        task = progress.add_task("registering", total=len(paths))
        for each in paths:
            try:
                added.append(client.post("/v1/tables", {**shared, "base_path": each, "table_name": name}))
            except ServiceRefusedError as error:
                if not recursive:
                    raise
                failed.append(f"{each}: {error}")
            progress.advance(task)
    show_tables(added, as_json=call.as_json)
    if failed:
        for line in failed:
            typer.echo(escaped(line), err=True)
        raise InvalidRequestError(f"{len(failed)} of {len(paths)} tables were not registered, for the reasons above")


@service_command("tablekeeper service rebuild /lake/sales --db sales", "tablekeeper service rebuild s3://lake/web")
def rebuild(
    call: ServiceCall,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A folder of tables, or a prefix of an object store.")],
    *,
    db: Annotated[str, typer.Option(help="Name of the database.")] = "default",
    storage_option: StorageOption = None,
) -> None:
    """Fill a database that was lost from the tables below a path.

    Registers every table, takes the history of its services from its timeline and has it looked at: plans that wait
    there become operations. Doing it twice changes nothing. Policies, tokens and failures are not on any timeline.
    """
    absolute = path if "://" in path else str(Path(path).absolute())
    paths = find_tables(absolute, storage_options=option_pairs(storage_option), runtime=SYSTEM_RUNTIME)
    client = call.client
    recorded = waiting = 0
    failed = []
    with _progress() as progress:
        task = progress.add_task("rebuilding", total=len(paths))
        for each in paths:
            try:
                table = client.post("/v1/tables", {"db_name": db, "base_path": each})
                told = client.post(path_of("v1", "tables", table["db_name"], table["table_name"], "rebuild"))
                recorded += told["recorded"]
                waiting += told["waiting"]
            except ServiceRefusedError as error:
                failed.append(f"{each}: {error}")
            progress.advance(task)
    done = {"tables": len(paths) - len(failed), "recorded": recorded, "waiting": waiting}
    told = f"{done['tables']} tables registered, {recorded} completed operations noted, {waiting} plans wait"
    tell(told, done, as_json=call.as_json)
    if failed:
        raise InvalidRequestError(f"{len(failed)} of {len(paths)} tables were not rebuilt:\n" + "\n".join(failed))


@service_command("tablekeeper service remove sales.trips")
def remove(
    call: ServiceCall,
    table: TableName,
) -> None:
    """Forget a table. Its files are not touched."""
    done = call.client.delete(_table_path(table))
    tell(f"{table} is not looked after any more", done, as_json=call.as_json)


@service_command("tablekeeper service pause sales.trips", "tablekeeper service pause sales.trips --resume")
def pause(
    call: ServiceCall,
    table: TableName,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="The end of a pause, or of a quarantine.")] = False,
) -> None:
    """Start nothing on a table until it is resumed. What runs goes on."""
    client = call.client
    shown = client.post(f"{_table_path(table)}/{'resume' if resume else 'pause'}")
    if resume and shown["quarantine"]:
        shown = client.post(f"{_table_path(table)}/release")
    tell(f"{table} is {'looked after again' if resume else 'paused'}", shown, as_json=call.as_json)


@service_command("tablekeeper service run sales.trips compaction", "tablekeeper service run sales.trips clean")
def run(
    call: ServiceCall,
    table: TableName,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="compaction, clustering, clean, archive, …")],
) -> None:
    """Ask for a service now, whether it is due or not."""
    answer = call.client.post(f"{_table_path(table)}{path_of('run', service)}")
    show_operations([answer], as_json=call.as_json)


@service_command(
    "tablekeeper service operations --status failed",
    "tablekeeper service operations --table sales.trips --limit 20 --json",
)
def operations(
    call: ServiceCall,
    *,
    table: Annotated[str, typer.Option(metavar="DB.TABLE", help="Only those of this table.")] = "",
    status: Annotated[str | None, typer.Option(help="pending, claimed, running, completed, failed, …")] = None,
    action: Annotated[str | None, typer.Option(help="compaction, clustering, clean, …")] = None,
    queue: Annotated[str | None, typer.Option(help="Only those of this queue.")] = None,
    limit: Most = 50,
) -> None:
    """What waits, runs and ran, the newest first."""
    db_name, table_name = _split(table) if table else ("", "")
    query = {"db_name": db_name, "table_name": table_name, "status": status, "action": action, "queue": queue}
    found = list(_pages(call.client, "/v1/operations", "operations", query, limit=limit))
    show_operations(found, as_json=call.as_json)


@service_command("tablekeeper service show 42", "tablekeeper service show sales.trips")
def show(
    call: ServiceCall,
    what: Annotated[str, typer.Argument(metavar="ID|DB.TABLE", help="An operation, or a table.")],
) -> None:
    """All about an operation with its attempts, or about a table with its policy."""
    is_operation = what.isascii() and what.isdigit()
    found = call.client.get(path_of("v1", "operations", int(what)) if is_operation else _table_path(what))
    if call.as_json:
        typer.echo(json_document(found))
    elif is_operation:
        show_operation(found)
    else:
        show_table(found)


@service_command("tablekeeper service explain 42")
def explain(
    call: ServiceCall,
    operation: OperationId,
) -> None:
    """Why an operation waits, or why it ran when it did."""
    answer = call.client.get(path_of("v1", "operations", operation, "explain"))
    tell("\n".join(map(escaped, answer["reasons"])), answer, as_json=call.as_json)


@service_command("tablekeeper service logs 42", "tablekeeper service logs 42 --attempt 1")
def logs(
    call: ServiceCall,
    operation: OperationId,
    *,
    attempt: Annotated[int | None, typer.Option(min=1, help="The newest one if left out.")] = None,
) -> None:
    """The end of what an attempt printed, also while it runs."""
    text = call.client.get(path_of("v1", "operations", operation, "log"), {"attempt": attempt})
    show_log(operation, text, as_json=call.as_json)


@service_command('tablekeeper service cancel 42 --reason "wrong table"')
def cancel(
    call: ServiceCall,
    operation: OperationId,
    *,
    reason: Annotated[str, typer.Option(help="Shown with the operation later.")] = "",
) -> None:
    """Cancel what waits; ask what runs to stop."""
    answer = call.client.post(path_of("v1", "operations", operation, "cancel"), {"reason": reason})
    show_operations([answer], as_json=call.as_json)


@service_command("tablekeeper service retry 42")
def retry(
    call: ServiceCall,
    operation: OperationId,
) -> None:
    """Try a failed, cancelled or quarantined operation again."""
    answer = call.client.post(path_of("v1", "operations", operation, "retry"))
    show_operations([answer], as_json=call.as_json)


@service_command("tablekeeper service clear sales.trips")
def clear(
    call: ServiceCall,
    table: TableName,
) -> None:
    """Remove a table's waiting and finished operations from the service. The timeline keeps its plans."""
    answer = call.client.post(path_of("v1", "operations", "clear", *_split(table)))
    tell(f"{answer['cleared']} operations of {table} were removed", answer, as_json=call.as_json)


@service_command("tablekeeper service instances")
def instances(call: ServiceCall) -> None:
    """The instances of the service and when each was seen."""
    found = call.client.get("/v1/instances")["instances"]
    columns = ("instance_id", "host", "pid", "address", "slots", "running", "seen_s_ago", "is_draining")
    show_fields(found, columns, as_json=call.as_json)


@service_command("tablekeeper service queues")
def queues(call: ServiceCall) -> None:
    """What waits and runs in each queue."""
    found = call.client.get("/v1/queues")["queues"]
    show_fields(found, ("queue", "pending", "claimed", "running", "quarantined"), as_json=call.as_json)


@service_command("tablekeeper service alarms", "tablekeeper service alarms --resolved --json")
def alarms(
    call: ServiceCall,
    *,
    resolved: Annotated[bool, typer.Option("--resolved", help="Include resolved alarms.")] = False,
) -> None:
    """Open alarms."""
    found = call.client.get("/v1/alarms", {"resolved": "true" if resolved else None})["alarms"]
    show_alarms(found, as_json=call.as_json)


@service_command("tablekeeper service events sales.trips", "tablekeeper service events --operation 42 --json")
def events(
    call: ServiceCall,
    table: Annotated[str, typer.Argument(metavar="[DB.TABLE]", help="Only those of this table.")] = "",
    *,
    operation: Annotated[int | None, typer.Option(metavar="ID", min=1, help="Only those of this operation.")] = None,
    limit: Most = 50,
) -> None:
    """What happened to operations and tables, the newest first."""
    db_name, table_name = _split(table) if table else ("", "")
    query = {"db_name": db_name, "table_name": table_name, "operation": operation}
    found = list(_pages(call.client, "/v1/events", "events", query, limit=limit))
    show_events(found, as_json=call.as_json)


@service_command(
    "tablekeeper service tokens",
    "tablekeeper service tokens --add ingest --role writer --database sales",
    "tablekeeper service tokens --revoke 3",
)
def tokens(
    call: ServiceCall,
    *,
    add: Annotated[str, typer.Option(metavar="NAME", help="Make a token. It is shown once.")] = "",
    role: Annotated[str, typer.Option(help="viewer, writer, operator or admin.")] = "viewer",
    database: Annotated[list[str] | None, typer.Option(help="Only for this database. Can be repeated.")] = None,
    path_prefix: Annotated[list[str] | None, typer.Option(help="Only below this path. Can be repeated.")] = None,
    revoke: Annotated[int, typer.Option(metavar="ID", help="Make a token worthless.")] = 0,
) -> None:
    """The tokens of the service; make and revoke them."""
    client = call.client
    if add:
        body = {"name": add, "role": role, "databases": database or [], "path_prefixes": path_prefix or []}
        made = client.post("/v1/tokens", body)
        tell(made["token"], made, as_json=call.as_json)
        return
    if revoke:
        done = client.delete(path_of("v1", "tokens", revoke))
        tell(f"token {revoke} is revoked", done, as_json=call.as_json)
        return
    show_tokens(client.get("/v1/tokens")["tokens"], as_json=call.as_json)


def _pages(
    client: ServiceClient, path: str, field: str, query: Mapping[str, object], *, limit: int
) -> Iterator[dict[str, Any]]:
    after, left = 0, limit
    while left > 0:
        answer = client.get(path, {**query, "after": after, "limit": min(_PAGE, left)})
        yield from answer[field]
        left -= len(answer[field])
        if answer["next"] is None:
            return
        after = answer["next"]


def _progress(*, is_shown: bool = True) -> Progress:
    # Standard output is for what was done: programs read it.
    return Progress(console=Console(stderr=True), disable=not is_shown, transient=True)


def _split(table: str) -> tuple[str, str]:
    db_name, dot, table_name = table.partition(".")
    return (db_name, table_name) if dot else ("default", db_name)


def _table_path(table: str) -> str:
    return path_of("v1", "tables", *_split(table))
