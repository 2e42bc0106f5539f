"""`tablekeeper service top`: the lake on one screen."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from typer.testing import CliRunner

from tablekeeper.cli.main import app
from tablekeeper.cli.top import screen_of, spark_line
from tests.support.served import running_service

NASTY = "sales.x\x1b[2J\nforged"


def shown(seen: dict[str, Any]) -> str:
    console = Console(width=150, record=True, file=StringIO())
    console.print(screen_of(seen))
    return console.export_text()


def seen(**more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("tables", "behind", "late", "quarantined", "paused", "waiting", "running"), 0)
    history = {"now_ms": 90_000, "samples": [{"waiting": n, "behind": 0} for n in range(8)]}
    return {**counts, "history": history, "queues": [], "operations": [], "alarms": [], **more}


def test_the_screen_tells_what_is_at_work_and_names_move_no_cursor() -> None:
    operation = {
        "operation_id": 7,
        "table": NASTY,
        "action": "log_compaction",
        "schedule_ms": 30_000,
        "instance": "one",
    }
    text = shown(seen(tables=20_000, operations=[operation], alarms=[{"rule": "late", "text": NASTY}]))
    assert "tables 20,000" in text
    assert "log compaction" in text
    assert "60 s" in text
    assert "\x1b" not in text
    assert "x\\x1b[2J\\nforged" in text


def test_a_line_of_bars_is_as_high_as_its_largest_value() -> None:
    assert spark_line([0, 7, 14]) == "▁▄█"
    assert spark_line([0, 0]) == "▁▁"
    assert spark_line([]) == ""


def test_one_look_at_a_real_service(tmp_path: Path) -> None:
    with running_service(tmp_path / "service", allow=tmp_path, arguments=("--slots", "0")) as served:
        once = CliRunner().invoke(app, ["service", "top", "--once", "--url", served.url])
        as_json = CliRunner().invoke(app, ["service", "top", "--json", "--url", served.url])
    assert (once.exit_code, "Running" in once.output, "none" in once.output) == (0, True, True), once.output
    assert json.loads(as_json.output)["tables"] == 0
