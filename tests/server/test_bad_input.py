"""Bad input: a clear answer with a stable code, one line in the log, and nothing stored."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from tablekeeper import Table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.api.guards import RateLimit, RequestGuard
from tablekeeper.server.api.permissions import Gate
from tablekeeper.server.store.protocol import OperationFilter, Page, TableFilter
from tablekeeper.server.store.sql import SqlJobStore

COMPACT, CLUSTER = "/v1/hoodie/service/compact/submit", "/v1/hoodie/service/cluster/submit"
NAMED = {"db_name": "db", "table_name": "trips"}
NOWHERE = "20200101000000000"
HTML = "<img src=x onerror=alert(1)>"
SQL = "trips'; DROP TABLE tbl; --"


def body(**fields: str) -> bytes:
    return json.dumps({**NAMED, "instant": NOWHERE, **fields}).encode()


@pytest.fixture
def known(client: TestClient, lake: Path, table: Table) -> tuple[TestClient, str]:
    """A client, and the plan of a compaction that waits on a registered table."""
    assert client.post("/v1/tables", json={**NAMED, "base_path": str(lake / "trips")}).status_code == 201
    plan = table.schedule_compaction()
    assert plan is not None
    return client, plan.instant.value


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        ((COMPACT, b"x" * 10_000_000), (413, "body_too_large")),
        ((COMPACT, b'{"db_name": "db", '), (400, "invalid_request")),
        ((COMPACT, b"\xff\x00"), (400, "invalid_request")),
        ((COMPACT, body()), (404, "plan_not_found")),
        ((CLUSTER, body(instant="a compaction")), (400, "wrong_action")),
        ((COMPACT, body(table_name=HTML)), (404, "table_not_found")),
        ((COMPACT, body(table_name=SQL)), (404, "table_not_found")),
        ((COMPACT, body(db_name=SQL)), (404, "table_not_found")),
        ((COMPACT, body(instant=SQL)), (400, "invalid_instant")),
        ((COMPACT, body(table_name="a\nINFO all is well")), (400, "invalid_request")),
    ],
)
def test_bad_input_has_a_stable_code_is_logged_once_and_stores_nothing(
    known: tuple[TestClient, str],
    jobs: SqlJobStore,
    caplog: pytest.LogCaptureFixture,
    sent: tuple[str, bytes],
    refusal: tuple[int, str],
) -> None:
    client, compaction = known
    path, content = sent[0], sent[1].replace(b"a compaction", compaction.encode())
    before = jobs.list_tables(TableFilter(), Page())
    caplog.clear()
    caplog.set_level(logging.INFO, logger="tablekeeper.server")
    answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == refusal
    assert answer.headers["content-type"].startswith("application/json")
    (told,) = [each.getMessage() for each in caplog.records if each.name.startswith("tablekeeper.server")]
    assert refusal[1] in told
    assert "\n" not in told
    assert len(told) < 1000
    assert jobs.list_operations(OperationFilter(with_deleted=True), Page()) == []
    assert jobs.list_tables(TableFilter(), Page()) == before


def test_a_plan_that_the_service_knows_is_refused_as_another_kind_too(
    known: tuple[TestClient, str], jobs: SqlJobStore
) -> None:
    client, compaction = known
    asked = {**NAMED, "instant": compaction}
    assert client.post(COMPACT, json=asked).status_code == 200
    stored = jobs.list_operations(OperationFilter(), Page())
    answer = client.post(CLUSTER, json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "wrong_action")
    assert jobs.list_operations(OperationFilter(), Page()) == stored


@pytest.mark.parametrize("says_length", [True, False])
def test_a_body_that_is_too_large_is_refused_at_once_and_read_to_its_end(says_length: bool) -> None:
    """A connection that is closed while the client still sends loses the answer that is on its way to it."""
    pieces, seen = 8, list[str]()
    told = list[tuple[int, int, bool]]()

    async def receive() -> Message:
        seen.append("piece")
        return {"type": "http.request", "body": b"x" * 1000, "more_body": len(seen) < pieces}

    async def send(message: Message) -> None:
        told.append((len(seen), message.get("status", 0), message.get("more_body", False)))

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await PlainTextResponse("read")(scope, receive, send)

    headers = [(b"host", b"localhost"), *([(b"content-length", b"8000")] if says_length else [])]
    scope: Scope = {"type": "http", "method": "POST", "path": COMPACT, "headers": headers, "client": ("127.0.0.1", 1)}
    rate = RateLimit(per_second=10, burst=10, runtime=SYSTEM_RUNTIME)
    asyncio.run(
        RequestGuard(application, gate=OpenGate(), rate=rate, body_bytes=2500, body_s=60.0)(scope, receive, send)
    )
    assert len(seen) == pieces
    # With a length it is refused before anything of it was read, and the end of the answer waits for that of the body.
    at_once = [(0, 413, False), (0, 0, True), (pieces, 0, False)]
    assert told == (at_once if says_length else [(pieces, 413, False), (pieces, 0, False)])


class OpenGate(Gate):
    """One that asks for nothing."""

    must_look = False

    def __init__(self) -> None:
        pass

    def needs_token(self) -> bool:
        return False


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/metrics", 200), ("/", 200), ("/nowhere", 404)])
def test_head_is_answered_as_get_without_a_body(client: TestClient, path: str, status: int) -> None:
    asked, loaded = client.head(path), client.get(path)
    assert (asked.status_code, asked.content) == (loaded.status_code, b"") == (status, b"")
    assert asked.headers["content-type"] == loaded.headers["content-type"]


def test_head_calls_nothing_that_has_an_effect(client: TestClient) -> None:
    assert client.head("/v1/hoodie/service/compact").status_code == 405
