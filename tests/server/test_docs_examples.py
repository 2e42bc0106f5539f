"""The calls that the documentation shows are made, in their order, to a running service."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tablekeeper import Table
from tablekeeper.client.http import ServiceClient
from tests.support.served import running_service

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tms.md"


def shown_calls() -> list[list[str]]:
    """The arguments of every curl on the page."""
    lines = re.findall(r"^curl .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def call(client: ServiceClient, arguments: list[str]) -> Any:
    """What curl would do: these options, and no others."""
    left = iter(arguments)
    method, body, target = "GET", None, ""
    for each in left:
        if each == "-X":
            method = next(left)
        elif each == "--json":
            # It says what it sends, without which the service does not take it.
            body = json.loads(next(left))
            method = "POST" if method == "GET" else method
        else:
            assert not target, f"two addresses, or an unknown option: {arguments}"
            target = each
    parts = urlsplit(target)
    assert (parts.scheme, parts.netloc) == ("http", "localhost:9091")
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    match method:
        case "GET":
            return client.get(path)
        case "POST":
            return client.post(path, body)
        case "PUT":
            return client.put(path, body or {})
        case _:
            pytest.fail(f"the page shows {method}, which this test does not know")


def test_the_calls_on_the_page_work(tmp_path: Path, lake: Path, table: Table) -> None:
    scheduled = table.schedule_compaction()
    assert scheduled is not None
    calls = shown_calls()
    assert len(calls) > 10
    with running_service(tmp_path / "service", allow=lake) as served:
        for arguments in calls:
            mine = [
                each.replace("$INSTANT", str(scheduled.instant)).replace("/lake/", f"{lake}/") for each in arguments
            ]
            call(served.client(), mine)
        shown = served.client().get("/v1/tables/sales/trips")
    assert shown["policy"] == {"compact_after_commits": 3}
    assert not shown["paused"]
