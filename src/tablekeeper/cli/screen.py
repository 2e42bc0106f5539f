"""Tables for people, cut to the width of the terminal.

Numbers are aligned to the right. A cell is at most 40 characters wide; columns that do not fit are left out
and counted, so that a row always takes one line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tablekeeper.cli.escapes import escaped
from tablekeeper.cli.json_text import plain_value
from tablekeeper.table.views import TableDescription, format_bytes

__all__ = ["show_description", "show_facts", "show_files", "show_records", "show_rows", "show_timeline"]

_CELL_WIDTH = 40
_GAP = 2
_WIDTH_OF_A_PIPE = 160
_NULL = "null"


def show_description(description: TableDescription) -> None:
    """A table at a glance, and its columns with what they are used for."""
    show_facts(_facts(description))
    console = _console()
    console.print()
    columns = _table()
    for header in ("column", "type", "role"):
        columns.add_column(header, overflow="fold")
    for name, kind in description.columns:
        columns.add_row(Text(escaped(name)), Text(escaped(kind)), Text(_role(description, name), style="cyan"))
    console.print(columns)


def show_facts(facts: Mapping[str, str]) -> None:
    """Names with their values, one a line; long values go on below."""
    grid = RichTable.grid(padding=(0, _GAP))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name, Text(escaped(value)))
    _console().print(grid)


def show_timeline(facts: Sequence[dict[str, Any]], *, total: int) -> None:
    """Instants, one a line; those that have not completed stand out."""
    table = _table()
    for header in ("requested", "action", "state", "completed"):
        table.add_column(header, no_wrap=True)
    for fact in facts:
        style = "" if fact["completed_at"] else "yellow"
        completed = fact["completed_at"] or "-"
        table.add_row(fact["requested_at"], fact["action"], fact["state"], completed, style=style)
    console = _console()
    console.print(table)
    hidden = total - len(facts)
    _note(console, f"{_count(len(facts), 'instant')}" + (f", {hidden:,} older not shown" if hidden else ""))


def show_files(facts: Sequence[dict[str, Any]]) -> None:
    """File groups, one a line, and the totals."""
    table = _table()
    for header in ("partition", "file group", "base instant"):
        table.add_column(header, no_wrap=True)
    for header in ("base", "logs", "log size"):
        table.add_column(header, justify="right", no_wrap=True)
    for fact in facts:
        table.add_row(
            Text(_cut(fact["partition"] or ".")),
            Text(escaped(fact["file_id"])),
            fact["base_instant"],
            format_bytes(fact["base_bytes"]) if fact["base_file"] else "-",
            str(len(fact["log_files"])),
            format_bytes(fact["log_bytes"]) if fact["log_files"] else "-",
        )
    console = _console()
    console.print(table)
    size = sum(fact["base_bytes"] + fact["log_bytes"] for fact in facts)
    logs = sum(len(fact["log_files"]) for fact in facts)
    partitions = len({fact["partition"] for fact in facts})
    groups, places = _count(len(facts), "file group"), _count(partitions, "partition")
    _note(console, f"{groups} in {places}, {_count(logs, 'log file')}, {format_bytes(size)}")


def show_rows(schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, limit: int) -> None:
    """Rows, one a line. With a limit, one row more than it may be given: it says that there are more."""
    rows = pa.Table.from_batches(batches, schema=schema)
    has_more = bool(limit) and rows.num_rows > limit
    rows = rows.slice(0, limit) if has_more else rows
    console = _console()
    cells = [[_cell(field.type, value) for value in rows.column(i).to_pylist()] for i, field in enumerate(schema)]
    fitting = _fitting(schema.names, cells, width=console.width)
    table = _table()
    for name, field in zip(schema.names[:fitting], schema, strict=False):
        table.add_column(Text(_cut(name)), justify="right" if _is_number(field.type) else "left", no_wrap=True)
    for row in zip(*cells[:fitting], strict=True):
        table.add_row(*(Text(text, style="dim" if text == _NULL else "") for text in row))
    console.print(table)
    note = _count(rows.num_rows, "row") + (f" shown, and there are more: see --limit, now {limit}" if has_more else "")
    _note(console, note)
    hidden = schema.names[fitting:]
    if hidden:
        names = ", ".join(hidden)
        _note(console, f"{_count(len(hidden), 'column')} not shown: {names}. Choose with --columns, or use --json.")


def show_records(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Short texts under these headers, one record a line."""
    table = _table()
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cut(text)) for text in row))
    console = _console()
    console.print(table)
    _note(console, _count(len(rows), "line"))


def _console() -> Console:
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS"):
        return console
    # A pipe has no width of its own; the 80 columns that would be assumed cut more than any reader wants.
    return Console(highlight=False, width=_WIDTH_OF_A_PIPE)


def _table() -> RichTable:
    return RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)


def _note(console: Console, text: str) -> None:
    console.print(Text(escaped(text), style="dim"), soft_wrap=True)


def _facts(description: TableDescription) -> dict[str, str]:
    sizes = [
        _count(description.partitions, "partition"),
        _count(description.file_groups, "file group"),
        _count(description.log_files, "log file"),
        format_bytes(description.bytes),
    ]
    return {
        "table": description.name,
        "path": description.path,
        "type": "merge on read (mor)" if description.table_type == "mor" else "copy on write (cow)",
        "version": str(description.version),
        "key": ", ".join(description.key) or "-",
        "partitioned by": ", ".join(description.partition_by) or "-",
        "ordering": ", ".join(description.ordering) or "-",
        "merge mode": description.merge_mode.replace("_", " "),
        "metadata table": ", ".join(description.metadata_table) or "off",
        "data": ", ".join(sizes),
        "timeline": f"{_count(description.commits, 'commit')}, {description.pending:,} pending",
        "last commit": description.last_commit or "-",
    }


def _role(description: TableDescription, column: str) -> str:
    uses = {"key": description.key, "partition": description.partition_by, "ordering": description.ordering}
    return ", ".join(role for role, names in uses.items() if column in names)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _cell(kind: pa.DataType, value: Any) -> str:
    plain = plain_value(kind, value)
    if plain is None:
        return _NULL
    if isinstance(plain, str):
        return _cut(plain)
    if isinstance(plain, dict | list):
        return _cut(json.dumps(plain, ensure_ascii=False))
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def _cut(text: str) -> str:
    line = escaped(text)
    return line if cell_len(line) <= _CELL_WIDTH else set_cell_size(line, _CELL_WIDTH - 1) + "…"


def _fitting(names: Sequence[str], cells: Sequence[Sequence[str]], *, width: int) -> int:
    """How many columns, from the left, fit into a line; always at least one."""
    taken = 0
    for position, (name, column) in enumerate(zip(names, cells, strict=True)):
        taken += max(cell_len(_cut(name)), max(map(cell_len, column), default=0)) + (_GAP if position else 0)
        if taken > width and position:
            return position
    return len(names)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
