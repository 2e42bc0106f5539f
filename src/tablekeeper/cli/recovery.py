"""The commands that undo: `rollback`, `savepoint` and `restore`. They change the table; the others only look."""

from __future__ import annotations

from typing import Annotated

import typer

from tablekeeper.cli.arguments import DryRun, TableCall, table_command

__all__ = ["recovery_commands"]

recovery_commands = typer.Typer()


@table_command(
    recovery_commands,
    "tablekeeper rollback /lake/trips 20261115100000000 --dry-run",
    "tablekeeper rollback /lake/trips 20261115100000000",
)
def rollback(
    call: TableCall,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="Its requested time.", show_default=False)],
    *,
    dry_run: DryRun = False,
) -> None:
    """Undo a write: one that a dead process left pending, or the newest completed one."""
    call.show(call.open().rollback(instant, dry_run=dry_run))


@table_command(
    recovery_commands,
    'tablekeeper savepoint /lake/trips --comment "before the migration"',
    "tablekeeper savepoint /lake/trips --list",
    "tablekeeper savepoint /lake/trips 20261115100000000 --delete",
)
def savepoint(
    call: TableCall,
    instant: Annotated[
        str | None, typer.Argument(metavar="[INSTANT]", help="The commit; the newest one by default.")
    ] = None,
    *,
    comment: Annotated[str, typer.Option(help="Why it is made.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List the savepoints instead.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the savepoint of INSTANT instead.")] = False,
) -> None:
    """Protect a commit and its files, so that `restore` can return to it."""
    if show and delete:
        raise typer.BadParameter("--list and --delete do not go together")
    table = call.open()
    if show:
        call.show_listing(table.savepoints())
    elif delete:
        if instant is None:
            raise typer.BadParameter("--delete needs the INSTANT of the savepoint")
        table.delete_savepoint(instant)
    else:
        call.show(table.savepoint(instant, comment=comment))


@table_command(
    recovery_commands,
    "tablekeeper restore /lake/trips 20261115100000000 --dry-run",
    "tablekeeper restore /lake/trips 20261115100000000",
)
def restore(
    call: TableCall,
    instant: Annotated[str, typer.Argument(metavar="SAVEPOINT", help="The savepointed commit.", show_default=False)],
    *,
    dry_run: DryRun = False,
) -> None:
    """Return a table to a savepoint: every later commit is rolled back permanently. Stop all writers first."""
    call.show(call.open().restore(instant, dry_run=dry_run))
