"""Why an operation waits, over each of the interfaces."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.testclient import TestClient
from typer.testing import CliRunner

from tablekeeper import Table
from tablekeeper.cli.main import app
from tests.support.served import running_service

PAUSED = ["It waits because the table is paused.", "It is here because asked for by local."]


def wait_on_a_paused_table(client: TestClient, lake: Path) -> int:
    place = {"db_name": "db", "table_name": "trips", "base_path": str(lake / "trips")}
    assert client.post("/v1/tables", json=place).status_code == 201
    client.post("/v1/tables/db/trips/pause")
    return int(client.post("/v1/tables/db/trips/run/clean").json()["operation_id"])


def test_an_operation_is_explained_over_rest(client: TestClient, lake: Path, table: Table) -> None:
    operation = wait_on_a_paused_table(client, lake)
    answer = client.get(f"/v1/operations/{operation}/explain")
    assert (answer.status_code, answer.json()) == (200, {"operation_id": operation, "reasons": PAUSED})
    client.post("/v1/tables/db/trips/resume")
    (first, *_) = client.get(f"/v1/operations/{operation}/explain").json()["reasons"]
    assert first.startswith(
        "It waits for a free slot; 0 operations are more urgent. Its turn comes by priority 5, with 0 "
    )
    missing = client.get("/v1/operations/4711/explain")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "operation_not_found")


def test_an_operation_is_explained_on_the_command_line(tmp_path: Path, lake: Path, table: Table) -> None:
    with running_service(tmp_path / "service", allow=lake) as served:

        def ran(*arguments: str) -> str:
            done = CliRunner().invoke(app, ["service", *arguments, "--url", served.url])
            assert done.exit_code == 0, done.output
            return done.stdout

        ran("add", str(lake / "trips"), "--db", "db")
        ran("pause", "db.trips")
        number = str(json.loads(ran("run", "db.trips", "clean", "--json"))["operation_id"])
        assert ran("explain", number).splitlines() == PAUSED
        assert json.loads(ran("explain", number, "--json"))["reasons"] == PAUSED
