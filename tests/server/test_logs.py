"""Log lines for programs and for people."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from tablekeeper.server.observe.logs import JsonLines, PlainLines
from tests.support.served import running_service


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("tablekeeper.x", logging.INFO, "file", 1, message, arguments, None)
    made.__dict__.update(extra)
    return made


def test_a_json_line_carries_the_operation_and_stays_one_line() -> None:
    line = JsonLines().format(record("operation %d: %s", 7, "a\nb\x1b[31m", operation_id=7, table_id=3))
    assert "\n" not in line
    assert "\x1b" not in line
    fields = json.loads(line)
    assert (fields["operation_id"], fields["table_id"], fields["level"]) == (7, 3, "info")
    assert fields["message"] == "operation 7: a\nb\x1b[31m"


def test_an_error_brings_its_trace() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        failed = record("it failed")
        failed.exc_info = sys.exc_info()
    assert "ValueError: why" in json.loads(JsonLines().format(failed))["trace"]


def test_a_line_for_people_cannot_move_the_cursor() -> None:
    line = PlainLines().format(record("cannot look at %s", "x\n2026 INFO forged\x1b[2J é"))
    assert line.endswith("cannot look at x\\n2026 INFO forged\\x1b[2J é")


def test_the_service_writes_json_lines_only(tmp_path: Path) -> None:
    with running_service(tmp_path / "service", allow=tmp_path, arguments=("--log-format", "json")) as served:
        served.client().get("/healthz")
    lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    assert any(line["message"].startswith(f"listening at {served.url}: ") for line in lines)
    assert all({"at", "level", "logger", "message"} <= set(line) for line in lines)
