"""What most commands share: the table, the form of the output, the settings of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from tablekeeper.cli.escapes import escaped_lines
from tablekeeper.cli.json_text import json_document
from tablekeeper.table import Table

__all__ = [
    "AsJson",
    "Debug",
    "DryRun",
    "StorageOption",
    "TableOption",
    "TablePath",
    "examples",
    "open_table",
    "option_pairs",
    "show_listing",
    "show_result",
]


def _checked_options(given: list[str]) -> list[str]:
    for each in given:
        name, equals, _ = each.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{each!r} is not of the form name=value")
    return given


TablePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="The table: a directory, or a URI such as s3://lake/trips.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from, as a traceback.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        callback=lambda given: _checked_options(given or []),
        help="A setting of the store, for example region=eu-west-1. Can be repeated.",
        show_default=False,
    ),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        callback=lambda given: _checked_options(given or []),
        help="An option of the table, such as the lock provider that its writers use. Can be repeated.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def examples(*lines: str) -> str:
    """The text below a command's help."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  [cyan]{line}[/cyan]" for line in lines)])


def open_table(
    path: str,
    storage_option: list[str] | None,
    option: list[str] | None = None,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> Table:
    """The table, on the local engine."""
    return Table.open(
        path,
        engine="local",
        storage_options=option_pairs(storage_option),
        options=option_pairs(option),
        progress=progress,
    )


def show_result(result: Any, *, as_json: bool) -> None:
    """One value: as JSON for programs, or as it prints."""
    typer.echo(json_document(result.to_dict()) if as_json else escaped_lines(repr(result)))


def show_listing(listing: Any, *, as_json: bool) -> None:
    """A value of many: one JSON object a line, or as it prints."""
    if not as_json:
        typer.echo(escaped_lines(repr(listing)))
        return
    for fact in listing.to_dicts():
        typer.echo(json_document(fact))


def option_pairs(given: list[str] | None) -> dict[str, str]:
    """What repeated options of the form name=value say."""
    return dict(each.split("=", 1) for each in given or [])
