"""The commands that undo: `rollback`, `savepoint` and `restore`. They change the table; the others only look."""

from __future__ import annotations

from typing import Annotated

import typer

from tablekeeper.cli.arguments import (
    AsJson,
    Debug,
    DryRun,
    StorageOption,
    TableOption,
    TablePath,
    examples,
    open_table,
    show_listing,
    show_result,
)
from tablekeeper.cli.failures import reported

__all__ = ["recovery_commands"]

recovery_commands = typer.Typer()


@recovery_commands.command(
    epilog=examples(
        "tablekeeper rollback /lake/trips 20261115100000000 --dry-run",
        "tablekeeper rollback /lake/trips 20261115100000000",
    )
)
@reported
def rollback(
    path: TablePath,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="Its requested time.", show_default=False)],
    *,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    option: TableOption = None,
    debug: Debug = False,
) -> None:
    """Undo a write: one that a dead process left pending, or the newest completed one."""
    show_result(open_table(path, storage_option, option).rollback(instant, dry_run=dry_run), as_json=as_json)


@recovery_commands.command(
    epilog=examples(
        'tablekeeper savepoint /lake/trips --comment "before the migration"',
        "tablekeeper savepoint /lake/trips --list",
        "tablekeeper savepoint /lake/trips 20261115100000000 --delete",
    )
)
@reported
def savepoint(
    path: TablePath,
    instant: Annotated[
        str | None, typer.Argument(metavar="[INSTANT]", help="The commit; the newest one by default.")
    ] = None,
    *,
    comment: Annotated[str, typer.Option(help="Why it is made.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List the savepoints instead.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Give up the savepoint of INSTANT instead.")] = False,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    option: TableOption = None,
    debug: Debug = False,
) -> None:
    """Protect a commit and its files, so that `restore` can come back to it."""
    if show and delete:
        raise typer.BadParameter("--list and --delete do not go together")
    table = open_table(path, storage_option, option)
    if show:
        show_listing(table.savepoints(), as_json=as_json)
    elif delete:
        if instant is None:
            raise typer.BadParameter("--delete needs the INSTANT of the savepoint")
        table.delete_savepoint(instant)
    else:
        show_result(table.savepoint(instant, comment=comment), as_json=as_json)


@recovery_commands.command(
    epilog=examples(
        "tablekeeper restore /lake/trips 20261115100000000 --dry-run",
        "tablekeeper restore /lake/trips 20261115100000000",
    )
)
@reported
def restore(
    path: TablePath,
    instant: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="The savepointed commit.", show_default=False)],
    *,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    option: TableOption = None,
    debug: Debug = False,
) -> None:
    """Bring a table back to a savepoint: every later commit is gone for good. Stop all writers first."""
    show_result(open_table(path, storage_option, option).restore(instant, dry_run=dry_run), as_json=as_json)
