"""A database that was lost: tables are found again, with plans that wait and the history of their services."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tablekeeper import Table
from tablekeeper.cli.main import app
from tablekeeper.client.http import ServiceClient, path_of
from tablekeeper.server.model import Operation, ServiceAction, Status
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page, PastOperation, Submission, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tests.server.conftest import SCHEMA

MINUTE_MS = 60_000
NOON_MS = 1_795_000_000_000


def all_operations(store: SqlJobStore) -> list[Operation]:
    return store.list_operations(OperationFilter(), Page())


def test_a_rebuild_notes_what_completed_and_tells_what_waits(
    client: TestClient, jobs: SqlJobStore, table: Table
) -> None:
    compaction = table.compact()
    assert compaction is not None
    table.upsert(pa.table({"id": ["a"], "ts": [9]}, schema=SCHEMA))
    waiting = table.schedule_compaction()
    assert waiting is not None
    registered = client.post("/v1/tables", json={"db_name": "sales", "base_path": table.path}).json()
    place = path_of("v1", "tables", "sales", registered["table_name"], "rebuild")
    assert client.post(place).json() == {"table": f"sales.{registered['table_name']}", "recorded": 1, "waiting": 1}
    (noted,) = all_operations(jobs)
    assert (noted.instant, noted.action, noted.status) == (
        str(compaction.instant),
        ServiceAction.COMPACTION,
        Status.COMPLETED,
    )
    assert noted.create_ms <= noted.update_ms <= jobs.now_ms()
    assert client.post(place).json()["recorded"] == 0
    assert all_operations(jobs) == [noted]
    # Whoever looks next makes an operation of the plan that waits.
    (due,) = jobs.claim_looks(10, hold_s=1.0)
    assert due.table_id == noted.table_id


def test_past_operations_are_noted_once_and_leave_what_is_known(store: SqlJobStore) -> None:
    table_id = store.register_table(NewTable("db", "trips", "/lake/trips"))[0].table_id
    known = store.submit(Submission(table_id, "20261118120000000", ServiceAction.COMPACTION)).operation
    past = PastOperation("20261118110000000", ServiceAction.CLUSTERING, NOON_MS, NOON_MS + MINUTE_MS)
    assert store.record_past(table_id, [past, replace(past, instant=known.instant)]) == 1
    assert store.record_past(table_id, [past]) == 0
    assert store.load_operation(known.operation_id) == known
    noted = store.find_operation(table_id, past.instant)
    assert noted is not None
    assert (noted.status, noted.create_ms, noted.update_ms) == (Status.COMPLETED, NOON_MS, NOON_MS + MINUTE_MS)


def test_the_command_registers_and_rebuilds_every_table_below(
    client: TestClient, jobs: SqlJobStore, lake: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.compact()

    def post(_: ServiceClient, path: str, body: dict[str, object] | None = None) -> object:
        return client.post(path, json=body or {}).json()

    monkeypatch.setattr(ServiceClient, "post", post)
    done = CliRunner().invoke(app, ["service", "rebuild", str(lake), "--db", "sales"])
    assert done.exit_code == 0, done.output
    assert "1 tables registered, 1 completed operations noted, 0 plans wait" in done.output
    (registered,) = jobs.list_tables(TableFilter(), Page())
    assert (registered.db_name, registered.base_path) == ("sales", table.path)
