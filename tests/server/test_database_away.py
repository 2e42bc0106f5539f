"""While the database is away every door says so with a stable code, and the log is not filled with it."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.api.administration import AdminCalls
from tablekeeper.server.app import kept_going
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.sql import SqlJobStore, open_store
from tablekeeper.server.web import Web, build_web
from tests.server.test_grpc import refused, served_over_grpc
from tests.support.rest import code_of

CALLBACK = {"basePath": "/lake/trips", "tableName": "trips"}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The folder of the database."""
    folder = tmp_path / "database"
    folder.mkdir()
    return folder


@pytest.fixture
def jobs(database: Path) -> SqlJobStore:
    opened = open_store(f"sqlite:///{database / 'service.db'}")
    opened.migrate()
    return opened


def take_away(jobs: SqlJobStore, database: Path) -> None:
    jobs.close()
    database.rename(database.with_name("elsewhere"))


@pytest.mark.parametrize("has_looked", [False, True], ids=["from the start", "later"])
def test_calls_are_refused_as_unavailable_while_the_database_is_away(
    client: TestClient, jobs: SqlJobStore, database: Path, caplog: pytest.LogCaptureFixture, *, has_looked: bool
) -> None:
    if has_looked:
        assert client.get("/healthz").status_code == 200
    take_away(jobs, database)
    with caplog.at_level(logging.INFO, logger="tablekeeper"):
        asked = client.get("/v1/tables")
    assert (asked.status_code, code_of(asked)) == (503, "unavailable")
    assert len(caplog.messages) == 1
    assert str(database) not in asked.text
    told = client.post("/v1/hoodie/callback", json=CALLBACK)
    assert told.status_code in (403, 503), "a place that is not allowed needs no database to be refused"
    assert client.get("/healthz").status_code == 503
    database.with_name("elsewhere").rename(database)
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/v1/tables").status_code == 200


def test_grpc_says_unavailable_too(web: Web, jobs: SqlJobStore, database: Path) -> None:
    take_away(jobs, database)
    with served_over_grpc(web) as channel:
        assert refused(channel, "ListQueues") == (grpc.StatusCode.UNAVAILABLE, "unavailable")


def test_an_error_of_ours_looks_like_every_other(
    jobs: SqlJobStore, settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(AdminCalls, "list_queues", break_down)
    web = build_web(jobs, settings, ServiceMetrics(jobs), SYSTEM_RUNTIME, engines=frozenset({"arrow"}))
    with TestClient(
        web.guarded, base_url="http://localhost:9091", client=("127.0.0.1", 5000), raise_server_exceptions=False
    ) as client:
        answer = client.get("/v1/queues")
    assert (answer.status_code, code_of(answer)) == (500, "internal")
    assert "secret" not in answer.text


def test_a_loop_tells_fewer_and_fewer_of_its_failures_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    left = 9

    def run_once() -> None:
        nonlocal left
        left -= 1
        if left:
            raise OperationalError("select 1", {}, ConnectionError("refused"))

    loop = kept_going("schedule", run_once)
    with caplog.at_level(logging.INFO, logger="tablekeeper"):
        for _ in range(9):
            loop()
    numbers = [message.split()[2] for message in caplog.messages[:-1]]
    assert numbers == ["1", "2", "4", "8"]
    assert caplog.messages[-1] == "schedule: goes on after 8 failures"
