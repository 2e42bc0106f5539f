"""What happened to operations and tables, where people look for it: over REST and gRPC, on pages and in a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import json_format, struct_pb2
from starlette.testclient import TestClient

from tablekeeper.server.model import ServiceAction
from tablekeeper.server.store.protocol import NewTable, Page, Submission
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.server.web import Web
from tests.server.test_grpc import ask, served_over_grpc

NASTY = "<script>alert(1)</script>'\""


@pytest.fixture
def noted(jobs: SqlJobStore, lake: Path) -> None:
    """Two tables with an operation each, of which both failed and the first was completed later; and a start."""
    for number in (1, 2):
        table, _ = jobs.register_table(NewTable("db", f"t{number}", f"file://{lake}/t{number}"))
        jobs.submit(Submission(table.table_id, "clean@now", ServiceAction.CLEAN))
        jobs.add_event("failed", f"{NASTY} broke", table_id=number, operation_id=number, instance_id="one")
    jobs.add_event("completed", "completed", table_id=1, operation_id=1)
    jobs.add_event("quarantined", f"cannot be looked at: {NASTY}", table_id=1)
    jobs.add_event("started", "the service is up")


def listed(client: TestClient, **query: str | int) -> list[tuple[str, str, int | None]]:
    answer = client.get("/v1/events", params=query)
    assert answer.status_code == 200, answer.text
    return [(each["kind"], each["table"], each["operation_id"]) for each in answer.json()["events"]]


@pytest.mark.usefixtures("noted")
def test_events_are_listed_by_table_and_operation_the_newest_first(client: TestClient) -> None:
    of_table = [("quarantined", "db.t1", None), ("completed", "db.t1", 1), ("failed", "db.t1", 1)]
    assert listed(client) == [("started", "", None), *of_table[:2], ("failed", "db.t2", 2), of_table[2]]
    assert listed(client, db_name="db", table_name="t1") == of_table
    assert listed(client, operation=1) == of_table[1:]
    assert listed(client, db_name="db", table_name="t1", operation=2) == []
    assert listed(client, db_name="elsewhere") == []
    for query, code in (("table_name=t1", "table_not_found"), ("operation=7", "operation_not_found")):
        assert client.get(f"/v1/events?{query}").json()["error"]["code"] == code


@pytest.mark.usefixtures("noted")
def test_pages_of_events_follow_each_other_without_a_gap(client: TestClient) -> None:
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        answer = client.get("/v1/events", params={"after": after, "limit": 2}).json()
        seen += [each["event_id"] for each in answer["events"]]
        after = answer["next"]
    assert seen == [5, 4, 3, 2, 1]


@pytest.mark.usefixtures("noted")
def test_the_example_of_the_description_has_the_fields_of_an_answer(client: TestClient) -> None:
    described = client.get("/v1/openapi.json").json()["paths"]["/v1/events"]["get"]["responses"]["200"]
    (example,) = described["content"]["application/json"]["example"]["events"]
    assert list(example) == list(client.get("/v1/events").json()["events"][0])


@pytest.mark.usefixtures("noted")
def test_events_over_grpc_are_those_of_rest(client: TestClient, web: Web) -> None:
    with served_over_grpc(web) as channel:
        for fields, query in (
            ({}, ""),
            ({"db_name": "db", "table_name": "t1", "limit": 2}, "db_name=db&table_name=t1&limit=2"),
            ({"operation_id": 2}, "operation=2"),
            ({"after": 3}, "after=3"),
        ):
            answer = struct_pb2.Struct.FromString(ask(channel, "ListEvents", **fields))
            assert json_format.MessageToDict(answer) == client.get(f"/v1/events?{query}").json()


@pytest.mark.usefixtures("noted")
def test_the_pages_of_a_table_and_an_operation_tell_what_happened_harmlessly(client: TestClient) -> None:
    for page, words in (
        ("/tables/db/t1", ("failed", "completed", "quarantined")),
        ("/operations/1", ("failed", "completed")),
        ("/operations/2", ("failed",)),
    ):
        text = client.get(page).text
        told = text[text.index("What happened") :].partition("</section>")[0]
        places = [told.index(f'class="state {word}"') for word in words]
        assert places == sorted(places, reverse=True), "the newest is the first"
        assert told.count("<time ") == len(words)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in told
        assert "<script>alert" not in text
    assert "What happened" in client.get("/tables/db/t2").text


def test_a_table_or_operation_that_gets_an_old_number_gets_no_old_events(store: SqlJobStore) -> None:
    table, _ = store.register_table(NewTable("db", "old", "/lake/old"))
    waits = store.submit(Submission(table.table_id, "clean@now", ServiceAction.CLEAN)).operation
    store.add_event("failed", "of the operation", table_id=table.table_id, operation_id=waits.operation_id)
    store.add_event("quarantined", "of the table", table_id=table.table_id)
    assert store.clear(table.table_id) == 1
    assert [each.text for each in store.list_events(Page())] == ["of the table"]
    store.remove_table(table.table_id)
    assert store.list_events(Page()) == []
