"""The command that builds and drops the record index: `index`."""

from __future__ import annotations

from typing import Annotated

import typer

from tablekeeper.cli.arguments import TableCall, table_command

__all__ = ["index_commands"]

index_commands = typer.Typer()


@table_command(index_commands, "tablekeeper index /lake/trips", "tablekeeper index /lake/trips --drop")
def index(
    call: TableCall,
    *,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the record index instead.")] = False,
) -> None:
    """Build the record index, by which writes find keys without reading data files; writers go on meanwhile."""
    table = call.open()
    call.show(table.drop_index("record") if drop else table.create_index("record"))
