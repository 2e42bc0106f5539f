"""Why an operation waits, over each of the interfaces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tablekeeper import Table
from tablekeeper.cli.main import app
from tablekeeper.server.decisions.estimate import estimate_run
from tablekeeper.server.model import Attempt, AttemptOutcome, ServiceAction, Signal, TableFacts
from tablekeeper.server.store.protocol import EndedAttempt
from tablekeeper.server.store.sql import SqlJobStore
from tests.support.served import running_service

PAUSED = [
    "It waits because the table is paused.",
    "Why it is here: local asked for it.",
    "It saves: storage of files that no reader needs any more.",
    "What it costs is not known: no earlier run of it on this table has completed.",
]


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
        "It waits for a free slot; 0 operations are more urgent. Its turn comes by priority 5 (running "
    )
    missing = client.get("/v1/operations/4711/explain")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "operation_not_found")


def a_run(number: int, *, seconds: int, **result: int) -> Attempt:
    ended_ms = 1000 + seconds * 1000
    return Attempt(number, 1, "arrow", "i", AttemptOutcome.COMPLETED, started_ms=1000, ended_ms=ended_ms, result=result)


@pytest.mark.parametrize(
    ("action", "past", "sentences"),
    [
        (
            ServiceAction.COMPACTION,
            [a_run(n, seconds=n, bytes_read=n << 20, bytes_written=900) for n in (2, 4, 600)],
            [
                "It saves: reads merge up to 7 logs on a base file, and none after it.",
                "It costs about 4.0 s, 4.0 MiB read, 900 B written, judging by the last 3 runs.",
            ],
        ),
        (
            ServiceAction.CLEAN,
            [a_run(1, seconds=3, files_deleted=12, bytes=250 << 20)],
            [
                "It saves: storage of files that no reader needs any more, 12 the last times (250 MiB).",
                "It costs about 3.0 s, judging by the last run.",
            ],
        ),
        (
            ServiceAction.COMPACTION,
            [replace(a_run(1, seconds=3), outcome=AttemptOutcome.FAILED)],
            [
                "It saves: reads merge up to 7 logs on a base file, and none after it.",
                "What it costs is not known: no earlier run of it on this table has completed.",
            ],
        ),
    ],
)
def test_what_a_run_saves_and_costs_is_estimated_from_the_last_ones(
    action: ServiceAction, past: list[Attempt], sentences: list[str]
) -> None:
    facts = TableFacts(commits_behind=7, read_amplification=8.0)
    assert estimate_run(action, facts, past).sentences() == sentences


def test_the_estimate_comes_from_the_runs_of_the_same_service_on_the_same_table(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    operation = wait_on_a_paused_table(client, lake)
    claimed = jobs.claim(operation, instance_id="i", lease_s=60.0)
    assert claimed is not None
    jobs.start_attempt(claimed.lease, engine="arrow", log_path="log", why="priority 5")
    result = {"files_deleted": 3}
    ended = EndedAttempt(1, AttemptOutcome.COMPLETED, result=result)
    (_, turn, *_) = client.get(f"/v1/operations/{operation}/explain").json()["reasons"]
    assert turn == "Its turn came by priority 5."
    jobs.settle(claimed.lease, Signal.COMPLETE, note="", ended=ended)
    assert client.get(f"/v1/operations/{operation}").json()["attempts"][0]["why"] == "priority 5"
    following = client.post("/v1/tables/db/trips/run/clean").json()["operation_id"]
    estimate = client.get(f"/v1/operations/{following}").json()["estimate"]
    assert (estimate["runs"], estimate["bytes_read"]) == (1, None)
    assert estimate["saves"] == "storage of files that no reader needs any more, 3 the last times"
    other = client.post("/v1/tables/db/trips/run/archive").json()["operation_id"]
    assert client.get(f"/v1/operations/{other}").json()["estimate"]["runs"] == 0


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
