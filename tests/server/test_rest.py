"""The REST interface on a real database and real tables: RFC-43's calls, the Java client's, permissions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.api.refusals import Refusal
from tablekeeper.server.model import ServiceAction, Signal
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page, Submission, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.server.web import build_web
from tests.server.conftest import SCHEMA
from tests.support.rest import code_of, java_query, register

NOWHERE = "20200101000000000"


def submission(plan: str, **more: Any) -> dict[str, Any]:
    return {
        "db_name": "db",
        "table_name": "trips",
        "owner": "default",
        "queue": "root.default",
        "instant": plan,
        "resource": "4g:4g",
        "parallelism": "1000",
        "execution_engine": "Spark",
        "extra_params": "",
        **more,
    }


def planned(table: Table) -> str:
    plan = table.schedule_compaction()
    assert plan is not None
    return plan.instant.value


@pytest.fixture
def reported(client: TestClient, lake: Path, table: Table) -> str:
    """The plan of a registered table that the service has not heard of."""
    register(client, lake)
    return planned(table)


def test_a_submitted_plan_is_stored_once_however_often_it_is_reported(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    register(client, lake)
    instant = planned(table)
    first = client.post("/v1/hoodie/service/compact/submit", json=submission(instant))
    assert first.status_code == 200
    assert first.json()["plans"][0]["state"] == "accepted"
    again = client.post("/v1/hoodie/service/compact/submit", json=submission(f"{instant},{instant}"))
    assert [plan["state"] for plan in again.json()["plans"]] == ["known"]
    (operation,) = jobs.list_operations(OperationFilter(), Page())
    assert (operation.instant, operation.queue, operation.parameters.parallelism) == (instant, "root.default", 1000)
    assert (operation.engine, operation.parameters.resource) == ("", "4g:4g")


@pytest.mark.parametrize("engine", ["spark", "SPARK", "Spark", "flink", "Flink", ""])
def test_engines_are_named_in_any_case(client: TestClient, lake: Path, table: Table, engine: str) -> None:
    register(client, lake)
    answer = client.post("/v1/hoodie/service/compact/submit", json=submission(planned(table), execution_engine=engine))
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"table_name": "nobody"}, (404, "table_not_found")),
        ({"instant": NOWHERE}, (404, "plan_not_found")),
        ({"instant": "yesterday"}, (400, "invalid_instant")),
        ({"instant": ""}, (400, "invalid_instant")),
        ({"instant": "20200101000000000' OR 1=1 --"}, (400, "invalid_instant")),
        ({"resource": "4g;rm -rf /"}, (400, "invalid_request")),
        ({"resource": "0g:4g"}, (400, "invalid_request")),
        ({"parallelism": True}, (400, "invalid_request")),
        ({"parallelism": "-1"}, (400, "invalid_request")),
        ({"parallelism": "many"}, (400, "invalid_request")),
        ({"execution_engine": "cobol"}, (400, "invalid_request")),
        ({"extra_params": "no pair"}, (400, "invalid_request")),
        ({"table_name": "trips\x1b[2J"}, (400, "invalid_request")),
        ({"table_name": "<script>"}, (404, "table_not_found")),
        ({"table_name": 7}, (400, "invalid_request")),
        ({"queue": "q" * 300}, (400, "invalid_request")),
    ],
)
def test_bad_submissions_are_refused_with_a_stable_code_and_store_nothing(
    client: TestClient, jobs: SqlJobStore, reported: str, change: dict[str, Any], refusal: tuple[int, str]
) -> None:
    answer = client.post("/v1/hoodie/service/compact/submit", json=submission(reported, **change))
    assert (answer.status_code, code_of(answer)) == refusal
    assert jobs.list_operations(OperationFilter(), Page()) == []


def test_fields_that_a_client_writes_as_null_count_as_left_out(client: TestClient, lake: Path, table: Table) -> None:
    body = {"base_path": str(lake / "trips"), "table_name": None, "db_name": None, "priority": None, "owner": None}
    assert client.post("/v1/tables", json=body).json()["db_name"] == "default"
    unset = dict.fromkeys(("db_name", "owner", "queue", "resource", "parallelism", "execution_engine", "extra_params"))
    answer = client.post("/v1/hoodie/service/compact/submit", json=submission(planned(table), **unset))
    assert [plan["state"] for plan in answer.json()["plans"]] == ["accepted"], answer.text
    answer = client.post("/v1/hoodie/callback", json={"tableName": None, "basePath": str(lake / "trips")})
    assert answer.json() == {"table": "default.trips"}


def test_services_may_be_named_in_one_text_as_in_the_column_of_the_rfc(
    client: TestClient, lake: Path, table: Table
) -> None:
    assert register(client, lake, action_types="compaction, clean")["action_types"] == ["compaction", "clean"]
    assert register(client, lake, action_types=None)["action_types"] == ["compaction", "clean"]
    wrong = client.post("/v1/tables", json={"base_path": str(lake / "trips"), "action_types": "compaction,sweep"})
    assert (wrong.status_code, code_of(wrong)) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"priority": -1}, "priority '-1': use 0 to 9"),
        ({"priority": 1.5}, "body.priority: Input should be a valid string"),
        ({"priority": 10**30}, "priority '1000000"),
    ],
)
def test_a_refused_number_is_named_in_one_plain_sentence(
    client: TestClient, lake: Path, table: Table, body: dict[str, Any], says: str
) -> None:
    answer = client.post("/v1/tables", json={"base_path": str(lake / "trips"), **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(says)


def test_a_body_without_its_content_type_is_told_what_is_missing(client: TestClient) -> None:
    answer = client.post("/v1/tables", content=b'{"base_path": "/lake/trips"}')
    assert answer.status_code == 400
    assert "content-type: application/json" in answer.json()["error"]["message"]
    assert "content-type" not in client.post("/v1/tables", json=[]).json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/operations", "/v1/tables", "/v1/alarms", "/v1/events", "/v1/overview"])
def test_a_misspelt_filter_is_refused_and_selects_not_everything(client: TestClient, path: str) -> None:
    answer = client.get(path, params={"tabel": "trips"})
    assert (answer.status_code, code_of(answer)) == (400, "invalid_request")
    assert client.get(path).status_code == 200


def test_a_path_is_not_registered_under_a_second_name(client: TestClient, lake: Path, table: Table) -> None:
    register(client, lake)
    answer = client.post("/v1/tables", json={"table_name": "rides", "base_path": str(lake / "trips")})
    assert (answer.status_code, code_of(answer)) == (409, "wrong_state")
    assert "db.trips" in answer.json()["error"]["message"]


def test_operations_of_one_database_are_listed_alone(client: TestClient, jobs: SqlJobStore) -> None:
    for name in ("sales", "web"):
        made, _ = jobs.register_table(NewTable(name, "trips", f"/lake/{name}"))
        jobs.submit(Submission(made.table_id, "clean@1", ServiceAction.CLEAN))
    found = client.get("/v1/operations", params={"db_name": "web"}).json()["operations"]
    assert [each["table"] for each in found] == ["web.trips"]


def test_an_instant_of_another_kind_is_refused(client: TestClient, lake: Path, table: Table) -> None:
    register(client, lake)
    instant = planned(table)
    answer = client.post("/v1/hoodie/service/cluster/submit", json=submission(instant))
    assert (answer.status_code, code_of(answer)) == (400, "wrong_action")
    commit = table.timeline()[0].requested_at.value
    answer = client.post("/v1/hoodie/service/compact/submit", json=submission(commit))
    assert (answer.status_code, code_of(answer)) == (400, "wrong_action")


def test_one_wrong_instant_of_a_list_stores_none(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    register(client, lake)
    answer = client.post("/v1/hoodie/service/compact/submit", json=submission(f"{planned(table)},{NOWHERE}"))
    assert code_of(answer) == "plan_not_found"
    assert jobs.list_operations(OperationFilter(), Page()) == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"table_name": NaN}', b'{"a":' * 3000]
)
def test_garbage_is_a_clear_answer(client: TestClient, body: bytes) -> None:
    answer = client.post(
        "/v1/hoodie/service/compact/submit", content=body, headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, code_of(answer)) == (400, "invalid_request")


@pytest.mark.parametrize("says_length", [True, False])
def test_a_large_body_is_refused_while_it_comes_in(client: TestClient, says_length: bool) -> None:
    content: Any = b"x" * 50_000 if says_length else iter([b"x" * 10_000] * 5)
    answer = client.post("/v1/hoodie/service/compact/submit", content=content)
    assert (answer.status_code, code_of(answer)) == (413, "body_too_large")


def test_a_removed_plan_is_cancelled_and_can_be_submitted_again(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    register(client, lake)
    instant = planned(table)
    client.post("/v1/hoodie/service/compact/submit", json=submission(instant))
    body = {"db_name": "db", "table_name": "trips", "instant": instant}
    assert client.post("/v1/hoodie/service/cluster/remove", json=body).json()["error"]["code"] == "wrong_action"
    assert client.post("/v1/hoodie/service/compact/remove", json=body).json() == {"removed": [instant]}
    (operation,) = jobs.list_operations(OperationFilter(with_deleted=True), Page())
    assert operation.is_deleted
    again = client.post("/v1/hoodie/service/compact/submit", json=submission(instant))
    assert again.json()["plans"][0]["state"] == "accepted"


def test_a_clustering_is_submitted_and_removed_like_a_compaction(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    register(client, lake)
    table.compact()
    plan = table.schedule_clustering()
    assert plan is not None
    instant = plan.instant.value
    answer = client.post("/v1/hoodie/service/cluster/submit", json=submission(instant, owner="ann"))
    assert [each["state"] for each in answer.json()["plans"]] == ["accepted"], answer.text
    (operation,) = jobs.list_operations(OperationFilter(), Page())
    assert (operation.action, operation.instant, operation.owner) == (ServiceAction.CLUSTERING, instant, "ann")
    assert (operation.parameters.resource, operation.parameters.parallelism) == ("4g:4g", 1000)
    body = {"db_name": "db", "table_name": "trips", "instant": instant}
    assert client.post("/v1/hoodie/service/cluster/remove", json=body).json() == {"removed": [instant]}


def test_the_java_client_registers_its_table_and_reports_plans(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    empty = client.get("/v1/hoodie/service/compact", params=java_query(lake))
    assert (empty.status_code, empty.json()) == (200, {"plans": []})
    (registered,) = jobs.list_tables(TableFilter(), Page())
    assert (registered.name, registered.owner, registered.queue) == ("default.trips", "alice", "q1")
    instant = planned(table)
    params = java_query(lake, instant=f"{instant},{NOWHERE}", db_name="ignored")
    reported = client.get("/v1/hoodie/service/compact", params=params)
    assert [plan["instant"] for plan in reported.json()["plans"]] == [instant]
    (operation,) = jobs.list_operations(OperationFilter(), Page())
    assert operation.parameters.extra_params == {"k": "v"}
    # A refusal would fail the write, whatever the client asks.
    other = client.get("/v1/hoodie/service/cluster", params=java_query(lake, instant=instant, action="CANCEL"))
    assert (other.status_code, other.json()) == (200, {"plans": []})
    cancelled = client.get("/v1/hoodie/service/compact", params=java_query(lake, instant=instant, action="CANCEL"))
    assert cancelled.json()["plans"][0]["state"] == "cancelled"


def test_requests_for_a_metadata_table_concern_its_table(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    params = java_query(lake, basepath=f"{lake}/trips/.hoodie/metadata", table_name="trips_metadata")
    assert client.get("/v1/hoodie/service/compact", params=params).json() == {"plans": []}
    for _ in range(2):
        asked = client.get("/v1/hoodie/service/compact", params={**params, "instant": NOWHERE})
        assert (asked.status_code, asked.json()) == (200, {"plans": []})
    (registered,) = jobs.list_tables(TableFilter(), Page())
    assert (registered.table_name, registered.base_path) == ("trips", (lake / "trips").as_uri())
    assert jobs.list_operations(OperationFilter(), Page()) == []


def test_a_compaction_of_a_metadata_table_that_java_left_to_the_service_becomes_an_operation_of_its_own(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    timeline = lake / "trips/.hoodie/metadata/.hoodie/timeline"
    timeline.mkdir(parents=True)
    (timeline / f"{NOWHERE}.compaction.requested").touch()
    params = java_query(lake, basepath=f"{lake}/trips/.hoodie/metadata", table_name="trips_metadata", instant=NOWHERE)
    states = [client.get("/v1/hoodie/service/compact", params=params).json()["plans"][0]["state"] for _ in range(2)]
    assert states == ["accepted", "known"]
    (operation,) = jobs.list_operations(OperationFilter(), Page())
    assert (operation.action, operation.queue) == (ServiceAction.METADATA_COMPACTION, "q1")
    assert client.get("/v1/hoodie/service/cluster", params=params).json() == {"plans": []}
    cancelled = client.get("/v1/hoodie/service/compact", params={**params, "action": "CANCEL"}).json()["plans"]
    assert [(each["instant"], each["state"]) for each in cancelled] == [(NOWHERE, "cancelled")]
    assert jobs.list_operations(OperationFilter(), Page()) == []


def test_a_commit_callback_can_carry_a_token_as_its_key(
    client: TestClient, jobs: SqlJobStore, settings: ServerSettings, lake: Path, table: Table
) -> None:
    root = client.post("/v1/tokens", json={"name": "root", "role": "admin"}).json()["token"]
    asked = {"name": "java", "role": "writer"}
    made = client.post("/v1/tokens", json=asked, headers={"Authorization": f"Bearer {root}"})
    secret = made.json()["token"]
    web = build_web(jobs, settings, ServiceMetrics(jobs), SYSTEM_RUNTIME, engines=frozenset())
    body = {"tableName": "trips", "basePath": str(lake / "trips")}
    with TestClient(web.guarded, base_url="http://localhost:9091", client=("127.0.0.1", 5000)) as opened:
        for key, status in ((secret, 200), (secret[:-1] + "x", 401), ("hudi_write_commit_http_callback", 401)):
            answer = opened.post("/v1/hoodie/callback", json=body, headers={"HUDI-CALLBACK-KEY": key})
            assert answer.status_code == status


def test_the_commit_callback_of_any_java_writer_is_news_of_its_table(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    body = {
        "commitTime": "20261115213746589",
        "tableName": "trips",
        "basePath": str(lake / "trips"),
        "hoodieWriteStat": [{"fileId": "x", "numWrites": 1, "minEventTime": None}],
    }
    answer = client.post("/v1/hoodie/callback", json=body, headers={"HUDI-CALLBACK-KEY": "hudi_write_commit"})
    assert (answer.status_code, answer.json()) == (200, {"table": "default.trips"})
    assert [each.name for each in jobs.list_tables(TableFilter(), Page())] == ["default.trips"]


def test_two_tables_of_one_name_are_told_apart(client: TestClient, lake: Path, table: Table, jobs: SqlJobStore) -> None:
    Table.create(lake / "old" / "trips", name="trips", schema=SCHEMA, key="id", engine="local")
    for path in (lake / "trips", lake / "old" / "trips", lake / "trips"):
        assert client.post("/v1/hoodie/callback", json={"tableName": "trips", "basePath": str(path)}).status_code == 200
    names = [each.table_name for each in jobs.list_tables(TableFilter(), Page())]
    assert (len(names), names[0], names[1].startswith("trips@")) == (2, "trips", True)


@pytest.mark.parametrize(
    "path", ["/etc", "../lake/trips", "{lake}/../secret", "s3://other/trips", "{lake}-other/trips", "{lake}/link"]
)
def test_no_request_reaches_a_place_that_is_not_allowed(
    client: TestClient, lake: Path, jobs: SqlJobStore, path: str
) -> None:
    secret = lake.parent / "secret"
    Table.create(secret, name="s", schema=SCHEMA, key="id", engine="local")
    (lake / "link").symlink_to(secret)
    answer = client.post("/v1/tables", json={"base_path": path.format(lake=lake), "table_name": "x"})
    assert answer.status_code in (400, 403)
    assert jobs.list_tables(TableFilter(), Page()) == []


def test_a_place_without_a_table_cannot_be_registered(client: TestClient, lake: Path, jobs: SqlJobStore) -> None:
    answer = client.post("/v1/tables", json={"base_path": str(lake), "table_name": "x"})
    assert 400 <= answer.status_code < 500
    assert jobs.list_tables(TableFilter(), Page()) == []


def test_tables_are_listed_changed_paused_and_removed(client: TestClient, lake: Path, table: Table) -> None:
    register(client, lake, policy={"compact_after_commits": 2}, priority="high", action_types=["compact"])
    listed = client.get("/v1/tables", params={"search": "TRIPS"}).json()
    assert [(each["table_name"], each["priority"]) for each in listed["tables"]] == [("trips", 8)]
    changed = client.put("/v1/tables/db/trips/policy", json={"windows": ["22:00-06:00"]}).json()
    assert changed["policy"] == {"windows": ["22:00-06:00"]}
    assert changed["effective_policy"]["compact_after_commits"] == 5
    wrong = client.put("/v1/tables/db/trips/policy", json={"compact_after": 2})
    assert (wrong.status_code, code_of(wrong)) == (400, "invalid_request")
    assert client.post("/v1/tables/db/trips/pause").json()["paused"] is True
    assert client.post("/v1/tables/db/trips/resume").json()["paused"] is False
    assert client.delete("/v1/tables/db/trips").status_code == 200
    assert code_of(client.get("/v1/tables/db/trips")) == "table_not_found"


def test_registering_again_keeps_what_is_not_given(client: TestClient, lake: Path, table: Table) -> None:
    first = register(
        client, lake, owner="ann", queue="nightly", priority="high", action_types=["clean"], policy={"keep_commits": 3}
    )
    assert first["effective_policy"]["services"] == ["clean"], "it was registered for nothing else"
    again = register(client, lake)
    for field in ("owner", "queue", "priority", "action_types", "policy", "effective_policy"):
        assert again[field] == first[field]
    changed = register(client, lake, queue="daily")
    assert (changed["queue"], changed["owner"], changed["priority"]) == ("daily", "ann", 8)


def test_a_service_can_be_asked_for_and_its_operation_cancelled_and_retried(
    client: TestClient, lake: Path, table: Table
) -> None:
    register(client, lake)
    operation = client.post("/v1/tables/db/trips/run/clean").json()
    assert (operation["action"], operation["status"]) == ("clean", "pending")
    same = client.post("/v1/tables/db/trips/run/clean").json()
    assert same["operation_id"] == operation["operation_id"]
    path = f"/v1/operations/{operation['operation_id']}"
    assert client.post(f"{path}/cancel", json={"reason": "no"}).json()["status"] == "cancelled"
    assert client.post(f"{path}/retry").json()["status"] == "pending"
    assert client.post(f"{path}/cancel").json()["status"] == "cancelled"
    assert client.post(f"{path}/retry").json()["status"] == "pending"
    assert client.post(f"{path}/retry").json()["status"] == "pending"
    assert client.get(path).json()["attempts"] == []
    assert client.get(f"{path}/log").text == ""
    assert code_of(client.get("/v1/operations/4711")) == "operation_not_found"
    listed = client.get("/v1/operations", params={"status": "pending,running", "table_name": "trips", "db_name": "db"})
    assert [each["operation_id"] for each in listed.json()["operations"]] == [operation["operation_id"]]


def test_a_service_that_has_run_can_be_asked_for_again(
    client: TestClient, jobs: SqlJobStore, lake: Path, table: Table
) -> None:
    register(client, lake)
    first = client.post("/v1/tables/db/trips/run/clean").json()
    assert jobs.settle_waiting(first["operation_id"], Signal.COMPLETE, note="done")
    second = client.post("/v1/tables/db/trips/run/clean").json()
    assert (second["status"], second["action"]) == ("pending", "clean")
    assert second["operation_id"] != first["operation_id"]


def test_pages_of_a_list_come_after_each_other(client: TestClient, lake: Path, table: Table) -> None:
    register(client, lake)
    for service in ("clean", "archive", "compaction"):
        client.post(f"/v1/tables/db/trips/run/{service}")
    first = client.get("/v1/operations", params={"limit": 2}).json()
    rest = client.get("/v1/operations", params={"limit": 2, "after": first["next"]}).json()
    ids = [each["operation_id"] for each in first["operations"] + rest["operations"]]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 3
    assert rest["next"] is None


def test_the_documentation_lists_every_code_with_its_status() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/tms.md").read_text(encoding="utf-8")
    for refusal in Refusal:
        assert f"| `{refusal.code}` | {int(refusal.status)} | " in page


def test_codes_are_unique_and_every_error_looks_alike(client: TestClient) -> None:
    assert len({refusal.code for refusal in Refusal}) == len(Refusal)
    for answer in (client.get("/nowhere"), client.put("/healthz"), client.get("/v1/operations/x")):
        assert set(answer.json()["error"]) == {"code", "message"}


def test_the_interface_describes_itself_with_examples(client: TestClient) -> None:
    document = client.get("/v1/openapi.json").json()
    assert "/v1/hoodie/service/{service}/submit" in document["paths"]
    example = document["components"]["schemas"]["SubmitBody"]["example"]
    assert set(example) == set(submission(NOWHERE))
    codes = document["components"]["schemas"]["RefusalText"]["properties"]["code"]["enum"]
    assert set(codes) == {each.code for each in Refusal}
    for operations in document["paths"].values():
        for described in operations.values():
            assert "4XX" in described["responses"]
            assert "422" not in described["responses"], "nothing is refused as FastAPI would do it"
    assert "201" in document["paths"]["/v1/tables"]["post"]["responses"]


def test_metrics_count_requests_by_route_and_name_no_input(client: TestClient, lake: Path, table: Table) -> None:
    register(client, lake)
    client.post("/v1/tables/db/trips/run/clean")
    client.get("/v1/tables/db/some-name-of-a-client")
    text = client.get("/metrics").text
    assert 'tablekeeper_requests_total{route="/v1/tables/{db_name}/{table_name}",status="404"} 1.0' in text
    assert 'tablekeeper_queue_operations{queue="default",status="pending"} 1.0' in text
    assert "some-name-of-a-client" not in text


def test_metrics_name_a_bounded_number_of_queues(client: TestClient, lake: Path, jobs: SqlJobStore) -> None:
    # A writer may choose the queue of each of its tables.
    for number in range(60):
        table, _ = jobs.register_table(NewTable("db", f"t{number}", f"file://{lake}/t{number}", queue=f"q{number}"))
        jobs.submit(Submission(table.table_id, "clean@now", ServiceAction.CLEAN))
    jobs.submit(Submission(1, "archive@now", ServiceAction.ARCHIVE))
    told = re.findall(r'tablekeeper_queue_operations{queue="(.*)",status="pending"} (.*)', client.get("/metrics").text)
    assert len(told) == 51
    assert dict(told)["q0"] == "2.0"
    assert dict(told)[""] == "10.0"


def test_every_service_of_the_model_has_a_name_in_the_path(client: TestClient, lake: Path, table: Table) -> None:
    register(client, lake)
    for service in ("compact", "cluster", "clean", "logcompact", *(action.value for action in ServiceAction)):
        answer = client.post(f"/v1/hoodie/service/{service}/submit", json=submission(NOWHERE))
        assert code_of(answer) == "plan_not_found"
    assert code_of(client.post("/v1/hoodie/service/vacuum/submit", json=submission(NOWHERE))) == "invalid_request"


def test_answers_are_json_and_pages_are_not_framed(client: TestClient) -> None:
    answer = client.get("/v1/tables")
    assert json.loads(answer.text) == {"tables": [], "next": None}
    assert answer.headers["x-frame-options"] == "DENY"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
