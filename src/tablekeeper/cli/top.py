"""`tablekeeper service top`: the lake on one screen of a terminal, renewed until somebody ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from tablekeeper.cli.escapes import escaped
from tablekeeper.cli.json_text import json_document
from tablekeeper.cli.service import ServiceCall, service_command
from tablekeeper.client.http import ServiceClient
from tablekeeper.runtime import SYSTEM_RUNTIME

__all__ = ["screen_of"]

_ROWS = 12
_BARS = "▁▂▃▄▅▆▇█"
_SHOWN_MINUTES = 40
_MOST_KEPT = 30


@service_command("tablekeeper service top", "tablekeeper service top --once")
def top(
    call: ServiceCall,
    *,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between refreshes.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show once and exit.")] = False,
) -> None:
    """The lake live: health, queues, what runs, open alarms. Ctrl-C ends it."""
    client = call.client
    if call.as_json:
        typer.echo(json_document(_look(client)))
        return
    console = Console(highlight=False)
    if once or not console.is_terminal:
        console.print(screen_of(_look(client)))
        return
    with Live(screen_of(_look(client)), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                SYSTEM_RUNTIME.clock.sleep(every)
                live.update(screen_of(_look(client)), refresh=True)
        except KeyboardInterrupt:
            return


def _look(client: ServiceClient) -> dict[str, Any]:
    return {
        **client.get("/v1/overview", {"hours": 1}),
        "queues": client.get("/v1/queues")["queues"],
        "operations": client.get("/v1/operations", {"status": "claimed,running", "limit": _ROWS})["operations"],
        "alarms": client.get("/v1/alarms", {"limit": _ROWS})["alarms"],
    }


def screen_of(seen: Mapping[str, Any]) -> Group:
    """What is shown of one look."""
    samples = seen["history"]["samples"]
    words = ("tables", "behind", "late", "quarantined", "paused", "waiting", "running")
    head = Text("  ").join(
        Text.assemble(f"{word} ", (f"{seen[word]:,}", "bold red" if _is_bad(word, seen[word]) else "bold"))
        for word in words
    )
    parts: list[Any] = [head, Text()]
    for name, field in (("waiting", "waiting"), ("behind", "behind")):
        line = spark_line([each[field] for each in samples][-_SHOWN_MINUTES:])
        parts.append(Text.assemble((f"{name:8}", "dim"), " ", line, (f"  now {seen[name]:,}", "dim")))
    queues = [[each["queue"], each.get("pending", 0), each.get("running", 0), each.get("quarantined", 0)]
              for each in seen["queues"][:_ROWS]]  # fmt: skip
    now_ms = seen["history"]["now_ms"]
    running = [
        [
            each["operation_id"],
            each["table"],
            each["action"].replace("_", " "),
            f"{max(0, now_ms - each['schedule_ms']) // 1000} s",
            each["instance"],
        ]
        for each in seen["operations"]
    ]
    alarms = [[each["rule"].replace("_", " "), each["text"]] for each in seen["alarms"]]
    for title, columns, rows in (
        ("Queues", ("queue", "waiting", "running", "in quarantine"), queues),
        ("Running", ("id", "table", "service", "since", "instance"), running),
        ("Open alarms", ("alarm", "what"), alarms),
    ):
        parts += [Text(), Text(title, style="bold"), _table(columns, rows) if rows else Text("none", style="dim")]
    return Group(*parts)


def spark_line(values: Sequence[int]) -> str:
    """Values as a line of bars, as high as the largest of them."""
    most = max(values, default=0)
    return "".join(_BARS[value * (len(_BARS) - 1) // most if most else 0] for value in values)


def _is_bad(word: str, count: int) -> bool:
    return word in ("late", "quarantined") and count > 0


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> RichTable:
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    texts = [[escaped(str(cell)) for cell in row] for row in rows]
    for position, name in enumerate(columns):
        # The last column gives way: the others say what it is about.
        widest = max((len(row[position]) for row in texts), default=0) if position < len(columns) - 1 else 0
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=min(widest, _MOST_KEPT))
    for row in texts:
        table.add_row(*map(Text, row))
    return table
