"""Bad input: a clear answer with a stable code, one line in the log, and nothing stored."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tablekeeper import Table
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
