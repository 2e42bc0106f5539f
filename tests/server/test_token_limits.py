"""Tokens with limits: they see their databases and path prefixes only, and make no tokens without limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.server.model import ServiceAction
from tablekeeper.server.store.protocol import NewAlarm, NewTable, Submission
from tablekeeper.server.store.sql import SqlJobStore
from tests.server.conftest import SCHEMA

Headers = dict[str, str]


def token(client: TestClient, role: str, by: Headers | None = None, **limits: list[str]) -> Headers:
    made = client.post("/v1/tokens", json={"name": role, "role": role, **limits}, headers=by)
    assert made.status_code == 201, made.text
    return {"Authorization": f"Bearer {made.json()['token']}"}


@pytest.fixture
def admin(client: TestClient) -> Headers:
    return token(client, "admin")


@pytest.fixture
def work(jobs: SqlJobStore, lake: Path) -> None:
    """A table of each of two databases, with an operation, an alarm and an event in a queue of its own."""
    for name in ("mine", "theirs"):
        table, _ = jobs.register_table(NewTable(name, f"t_{name}", f"file://{lake}/{name}", queue=f"q_{name}"))
        submission = Submission(table.table_id, "clean@now", ServiceAction.CLEAN, why=f"because of {name}")
        operation = jobs.submit(submission).operation
        jobs.open_alarm(NewAlarm(f"k{name}", "late", f"{name} is late", (), table.table_id, operation.operation_id))
        jobs.add_event("failed", f"{name} broke", table_id=table.table_id, operation_id=operation.operation_id)
    jobs.open_alarm(NewAlarm("backlog", "backlog", "1000 operations wait in q_theirs", ()))
    jobs.add_event("restored", "the database, with the tables of theirs")


@pytest.mark.parametrize("limits", [{"databases": ["mine"]}, {"path_prefixes": ["{lake}/mine"]}])
def test_an_admin_with_limits_makes_lists_and_revokes_no_tokens(
    client: TestClient, lake: Path, admin: Headers, limits: dict[str, list[str]]
) -> None:
    given = {name: [each.format(lake=lake) for each in values] for name, values in limits.items()}
    limited = token(client, "admin", admin, **given)
    for answer in (
        client.post("/v1/tokens", json={"name": "more", "role": "admin"}, headers=limited),
        client.get("/v1/tokens", headers=limited),
        client.delete("/v1/tokens/1", headers=limited),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert len(client.get("/v1/tokens", headers=admin).json()["tokens"]) == 2
    # Whom an admin with limits would be left alone with, nobody could make a token any more.
    assert client.delete("/v1/tokens/1", headers=admin).json()["error"]["code"] == "wrong_state"


def test_metrics_are_of_the_whole_lake_and_need_a_token_without_limits(client: TestClient, admin: Headers) -> None:
    limited = token(client, "viewer", admin, databases=["mine"])
    assert client.get("/metrics", headers=limited).status_code == 403
    assert client.get("/metrics", headers=token(client, "viewer", admin)).status_code == 200


@pytest.mark.usefixtures("work")
def test_no_list_count_or_page_names_what_is_outside_of_a_token(client: TestClient, lake: Path, admin: Headers) -> None:
    for limits in ({"databases": ["mine"]}, {"path_prefixes": [f"{lake}/mine"]}):
        limited = token(client, "admin", admin, **limits)
        paths = ("/v1/tables", "/v1/operations", "/v1/queues", "/v1/alarms", "/v1/events", "/v1/overview")
        for path in paths:
            text = client.get(path, headers=limited).text
            assert "theirs" not in text, path
        assert "mine" in client.get("/v1/queues", headers=limited).text
        overview = client.get("/v1/overview", headers=limited).json()
        assert (overview["tables"], overview["waiting"]) == (1, 1)
        # Although the newest operation and alarm are of others.
        assert len(client.get("/v1/operations?limit=1", headers=limited).json()["operations"]) == 1
        assert len(client.get("/v1/alarms?limit=1", headers=limited).json()["alarms"]) == 1
        events = client.get("/v1/events?limit=1", headers=limited).json()["events"]
        assert [each["text"] for each in events] == ["mine broke"]
        for query, code in (
            ("db_name=theirs&table_name=t_theirs", "table_not_found"),
            ("operation=2", "operation_not_found"),
        ):
            assert client.get(f"/v1/events?{query}", headers=limited).json()["error"]["code"] == code
        assert client.get("/v1/events?db_name=theirs", headers=limited).json()["events"] == []
        client.cookies.set("tk_session", limited["Authorization"].partition(" ")[2])
        for path in ("/", "/tables", "/operations", "/instances", "/alarms"):
            text = client.get(path).text
            assert "theirs" not in text, path
        client.cookies.clear()


def test_a_table_of_others_is_not_taken_over_by_registering_its_path(
    client: TestClient, lake: Path, table: Table, admin: Headers
) -> None:
    place = {"base_path": str(lake / "trips")}
    client.post("/v1/tables", json={**place, "db_name": "theirs", "table_name": "secret_name"}, headers=admin)
    limited = token(client, "writer", admin, databases=["mine"])
    answer = client.post("/v1/tables", json={**place, "db_name": "mine", "table_name": "t"}, headers=limited)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert "secret_name" not in answer.text
    Table.create(lake / "mine", name="mine", schema=SCHEMA, key="id", engine="local")
    taken = {"base_path": str(lake / "mine"), "db_name": "theirs", "table_name": "secret_name"}
    assert client.post("/v1/tables", json=taken, headers=limited).json()["error"]["code"] == "forbidden"


def test_a_link_leads_no_token_out_of_its_prefix(client: TestClient, lake: Path, table: Table, admin: Headers) -> None:
    (lake / "mine").mkdir()
    (lake / "mine" / "link").symlink_to(lake / "trips")
    limited = token(client, "writer", admin, path_prefixes=[str(lake / "mine")])
    for path, body in (
        ("/v1/tables", {"base_path": str(lake / "mine" / "link")}),
        ("/v1/hoodie/callback", {"basePath": str(lake / "mine" / "link")}),
    ):
        answer = client.post(path, json=body, headers=limited)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), path


def test_a_writer_registers_a_table_with_a_policy_and_does_not_change_it(
    client: TestClient, lake: Path, table: Table, admin: Headers
) -> None:
    writer, operator = token(client, "writer", admin), token(client, "operator", admin)
    place = {"base_path": str(lake / "trips"), "db_name": "db", "table_name": "trips"}
    first = {**place, "policy": {"compact_after_commits": 3}}
    assert client.post("/v1/tables", json=first, headers=writer).status_code == 201
    # Repeating a registration changes nothing, and registering without a policy leaves it.
    for body in (first, place):
        assert client.post("/v1/tables", json=body, headers=writer).status_code == 200
    other = {**place, "policy": {"compact_after_commits": 1}}
    assert client.post("/v1/tables", json=other, headers=writer).json()["error"]["code"] == "forbidden"
    shown = client.get("/v1/tables/db/trips", headers=writer).json()
    assert shown["policy"] == {"compact_after_commits": 3}
    assert client.post("/v1/tables", json=other, headers=operator).status_code == 200
