"""The command that builds and drops the record index: `index`."""

from __future__ import annotations

from typing import Annotated

import typer

from tablekeeper.cli.arguments import (
    AsJson,
    Debug,
    StorageOption,
    TableOption,
    TablePath,
    examples,
    open_table,
    show_result,
)
from tablekeeper.cli.failures import reported

__all__ = ["index_commands"]

index_commands = typer.Typer()


@index_commands.command(
    epilog=examples("tablekeeper index /lake/trips", "tablekeeper index /lake/trips --drop"),
)
@reported
def index(
    path: TablePath,
    *,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the record index instead.")] = False,
    as_json: AsJson = False,
    storage_option: StorageOption = None,
    option: TableOption = None,
    debug: Debug = False,
) -> None:
    """Build the record index, by which writes find keys without reading data files; writers go on meanwhile."""
    table = open_table(path, storage_option, option)
    show_result(table.drop_index("record") if drop else table.create_index("record"), as_json=as_json)
