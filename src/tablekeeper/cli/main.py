"""The command `tablekeeper`: look at a table and its rows from a terminal.

Every command works with the local engine, so neither PySpark nor Java has to be installed. Most only look; the table
services, `index`, `rollback`, `savepoint`, `restore` and `doctor --fix` change the table.
Each prints a table for people, or with `--json` something for programs: `show` one JSON document, the others one
JSON object a line. Field names are those of `to_dict` and `to_dicts` of the values that `Table` returns.
Exit code 0 is success, 1 an error that was reported in one line, 2 wrong usage.
"""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from tablekeeper import __version__
from tablekeeper.cli import top as _top  # noqa: F401 (adds its command)
from tablekeeper.cli.arguments import AsJson, Debug, TableCall, examples, table_command
from tablekeeper.cli.doctor import doctor_commands
from tablekeeper.cli.failures import reported
from tablekeeper.cli.indexes import index_commands
from tablekeeper.cli.json_text import json_document, json_rows
from tablekeeper.cli.recovery import recovery_commands
from tablekeeper.cli.rows import RowRequest, load_rows
from tablekeeper.cli.screen import show_description, show_files, show_rows, show_timeline
from tablekeeper.cli.serve import serve_commands
from tablekeeper.cli.service import management_commands
from tablekeeper.cli.services import service_commands
from tablekeeper.config.options import OPTIONS
from tablekeeper.errors import InvalidRequestError

__all__ = ["app"]


class Mode(enum.StrEnum):
    """What a read merges."""

    SNAPSHOT = "snapshot"
    READ_OPTIMIZED = "read_optimized"


app = typer.Typer(
    name="tablekeeper",
    help="Inspect, maintain and repair Apache Hudi tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(doctor_commands)
app.add_typer(index_commands)
app.add_typer(recovery_commands)
app.add_typer(service_commands)
app.add_typer(serve_commands)
app.add_typer(management_commands)


@app.command(epilog=examples("tablekeeper options", "tablekeeper options clustering"))
@reported
def options(
    word: Annotated[
        str, typer.Argument(metavar="[WORD]", help="Only options with this in their name or meaning.")
    ] = "",
    *,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """The options that tables and commands take, with their defaults and what they do."""
    sought = word.lower()
    found = [(n, o) for n, o in sorted(OPTIONS.items()) if sought in n.lower() or sought in o.doc.lower()]
    if not found:
        raise InvalidRequestError(f"no option has {word!r} in its name or meaning. `tablekeeper options` lists all")
    for name, option in found:
        if as_json:
            facts = {"name": name, "type": option.kind.__name__, "default": option.default_text, "meaning": option.doc}
            typer.echo(json_document(facts))
        else:
            default = "no default" if option.default_text is None else f"default {option.default_text}"
            typer.echo(f"{name} ({option.kind.__name__}, {default})\n    {option.doc}")


AsOf = Annotated[
    str | None,
    typer.Option(metavar="MOMENT", help="As it was then: an instant, or a time such as 2026-11-15T10:00:00."),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tablekeeper {__version__}")
        raise typer.Exit


@app.callback(epilog=examples("tablekeeper show /lake/trips", "tablekeeper read /lake/trips --limit 5"))
def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    """Look into Apache Hudi tables, keep them healthy, and put them right."""


@table_command(
    app,
    "tablekeeper show /lake/trips",
    "tablekeeper show s3://lake/trips --storage-option region=eu-west-1",
    takes_options=False,
)
def show(
    call: TableCall,
) -> None:
    """What a table is: type, keys, partitions, size, columns and its last commit."""
    description = call.open().describe()
    if call.as_json:
        typer.echo(json_document(description.to_dict()))
    else:
        show_description(description)


@table_command(
    app,
    "tablekeeper timeline /lake/trips --limit 10",
    "tablekeeper timeline /lake/trips --pending --json",
    takes_options=False,
)
def timeline(
    call: TableCall,
    *,
    limit: Annotated[int, typer.Option(min=0, help="Show only the newest N; 0 shows all.")] = 0,
    pending: Annotated[bool, typer.Option("--pending", help="Only instants that have not completed.")] = False,
) -> None:
    """The instants of the active timeline: what happened to a table, oldest first."""
    facts = call.open().timeline().to_dicts()
    if pending:
        facts = [fact for fact in facts if fact["completed_at"] is None]
    shown = facts[-limit:] if limit else facts
    if call.as_json:
        for fact in shown:
            typer.echo(json_document(fact))
    else:
        show_timeline(shown, total=len(facts))


@table_command(
    app,
    "tablekeeper files /lake/trips --partition sf",
    "tablekeeper files /lake/trips --as-of 2026-11-15T10:00:00 --json",
    takes_options=False,
)
def files(
    call: TableCall,
    *,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTITION", help="Only this partition path, such as sf or city=sf. Can be repeated."),
    ] = None,
    as_of: AsOf = None,
) -> None:
    """The file groups of a table with the base file and the logs that a reader sees."""
    listing = call.open().files(as_of=as_of, partitions=partition or None)
    if call.as_json:
        for fact in listing.to_dicts():
            typer.echo(json_document(fact))
    else:
        show_files(listing.to_dicts())


@table_command(
    app,
    "tablekeeper read /lake/trips --where \"city = 'sf' and fare > 20\" --columns id,fare",
    "tablekeeper read /lake/trips --as-of 2026-11-15T10:00:00 --limit 5",
    "tablekeeper read /lake/trips --since 20261115100000000 --json",
    takes_options=False,
)
def read(
    call: TableCall,
    *,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of rows; 0 reads all.")] = 20,
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help="A SQL condition on the rows.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns, in this order.")] = None,
    as_of: AsOf = None,
    since: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="Only rows changed by commits that completed after it.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="Only rows changed by commits that completed up to it.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="read_optimized leaves out rows that are still in logs.")] = Mode.SNAPSHOT,
    meta_columns: Annotated[bool, typer.Option("--meta-columns", help="Show Hudi's own columns too.")] = False,
) -> None:
    """Rows of a table, in no particular order."""
    if (since or until) and (as_of or mode is not Mode.SNAPSHOT):
        raise typer.BadParameter("--since and --until do not go together with --as-of and --mode")
    request = RowRequest(
        columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
        where=where,
        as_of=as_of,
        since=since,
        until=until,
        mode=mode.value,
        meta_columns=meta_columns,
    )
    schema, batches = load_rows(call.open(), request, limit=limit + 1 if limit and not call.as_json else limit)
    if call.as_json:
        for batch in batches:
            for line in json_rows(batch):
                typer.echo(line)
    else:
        show_rows(schema, list(batches), limit=limit)
