"""What commands share: the table or the service, the form of the output, the settings of the store."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from tablekeeper.cli.escapes import escaped_lines
from tablekeeper.cli.failures import reported
from tablekeeper.cli.json_text import json_document
from tablekeeper.table import Table

__all__ = [
    "AsJson",
    "Debug",
    "DryRun",
    "StorageOption",
    "TableCall",
    "command_with",
    "examples",
    "option_pairs",
    "parameter",
    "table_command",
]

F = TypeVar("F", bound=Callable[..., None])


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


def _pairs(name: str, help_text: str) -> Any:
    return typer.Option(
        name,
        metavar="NAME=VALUE",
        callback=lambda given: _checked_options(given or []),
        help=f"{help_text} Can be repeated.",
        show_default=False,
    )


StorageOption = Annotated[
    list[str] | None, _pairs("--storage-option", "A setting of the store, for example region=eu-west-1.")
]
TableOption = Annotated[
    list[str] | None, _pairs("--option", "An option of the table, such as the lock provider that its writers use.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")]


def examples(*lines: str) -> str:
    """The text below a command's help."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  [cyan]{line}[/cyan]" for line in lines)])


@dataclass(frozen=True, slots=True)
class TableCall:
    """What every command on a table is told: which table, settings of its store and its writers, how to print."""

    path: str
    as_json: bool
    storage_options: Mapping[str, str]
    options: Mapping[str, str]

    def open(self, *, progress: Callable[[str, int, int], None] | None = None) -> Table:
        """The table, on the local engine."""
        return Table.open(
            self.path,
            engine="local",
            storage_options=self.storage_options,
            options=self.options,
            progress=progress,
        )

    def show(self, result: Any) -> None:
        """Print one value: as JSON for programs, or as it prints."""
        typer.echo(json_document(result.to_dict()) if self.as_json else escaped_lines(repr(result)))

    def show_listing(self, listing: Any) -> None:
        """Print a value of many: one JSON object a line, or as it prints."""
        if not self.as_json:
            typer.echo(escaped_lines(repr(listing)))
            return
        for fact in listing.to_dicts():
            typer.echo(json_document(fact))


def table_command(
    app: typer.Typer, *lines: str, name: str | None = None, takes_options: bool = True
) -> Callable[[F], F]:
    """Make a function a command of `app` on a table, with `lines` as the examples of its help.

    The command takes PATH before the function's own parameters, and --json, --storage-option, --option (only if it
    `takes_options`) and --debug after them; the function gets them as a `TableCall`. Errors are reported.
    """

    def call_of(
        path: str, *, as_json: bool, storage_option: list[str] | None, option: list[str] | None = None
    ) -> TableCall:
        return TableCall(path, as_json, option_pairs(storage_option), option_pairs(option))

    shared = [parameter("as_json", AsJson, False), parameter("storage_option", StorageOption, None)]
    shared += [parameter("option", TableOption, None)] if takes_options else []
    first = [parameter("path", TablePath, inspect.Parameter.empty)]
    return command_with(app, *lines, name=name, call_of=call_of, first=first, shared=shared)


def command_with(
    app: typer.Typer,
    *lines: str,
    name: str | None,
    call_of: Callable[..., Any],
    first: Sequence[inspect.Parameter] = (),
    shared: Sequence[inspect.Parameter],
) -> Callable[[F], F]:
    """Make a function a command of `app` whose first argument is made from the parameters `first` and `shared`.

    These, and --debug, surround the function's other parameters. Errors are reported.
    """
    names = [each.name for each in (*first, *shared)]

    def register(command: F) -> F:
        @reported
        @wraps(command)
        def run(*, debug: bool, **given: Any) -> None:
            del debug
            call = call_of(**{each: given.pop(each) for each in names})
            command(call, **given)

        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        parameters = [*first, *own, *shared, parameter("debug", Debug, False)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, epilog=examples(*lines))(run)
        return command

    return register


def parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter of a command that commands share."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option_pairs(given: list[str] | None) -> dict[str, str]:
    """What repeated options of the form name=value say."""
    return dict(each.split("=", 1) for each in given or [])
