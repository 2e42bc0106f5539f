"""The REST interface on a real database and real tables: RFC-43's calls, the Java client's, permissions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.api.refusals import Refusal
from tablekeeper.server.model import ServiceAction, Signal
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.settings import Limits, ServerSettings
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page, Submission, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.server.web import Web, build_web
from tests.server.conftest import SCHEMA

NOWHERE = "20200101000000000"


def register(client: TestClient, lake: Path, **more: Any) -> dict[str, Any]:
    body = {"db_name": "db", "table_name": "trips", "base_path": str(lake / "trips"), **more}
    answer = client.post("/v1/tables", json=body)
    assert answer.status_code in (200, 201), answer.text
    shown: dict[str, Any] = answer.json()
    return shown


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


def code_of(answer: Any) -> str:
    return str(answer.json()["error"]["code"])


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


def java_query(lake: Path, **more: str) -> dict[str, str]:
    return {
        "execution_engine": "spark",
        "extra_params": "k=v",
        "resource": "spark:4g,4g",
        "basepath": str(lake / "trips"),
        "parallelism": "100",
        "action": "REQUEST",
        "table_name": "trips",
        "queue": "q1",
        "instant": "",
        "username": "alice",
        **more,
    }


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


def test_a_commit_callback_can_carry_a_token_as_its_key(
    client: TestClient, jobs: SqlJobStore, settings: ServerSettings, lake: Path, table: Table
) -> None:
    secret = client.post("/v1/tokens", json={"name": "java", "role": "writer"}).json()["token"]
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
    assert code_of(client.post(f"{path}/retry")) == "wrong_state"
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


NAMES = {
    "service": "compact",
    "operation_id": "1",
    "token_id": "1",
    "db_name": "db",
    "table_name": "trips",
    "verb": "pause",
}


def routes_of(web: Web) -> list[tuple[str, str]]:
    """Every method and path of the interface but the one that says whether the service works."""
    return [
        (method.upper(), path.format(**NAMES))
        for path, methods in web.app.openapi()["paths"].items()
        for method in methods
        if path != "/healthz"
    ]


def leaves(routes: Sequence[Any]) -> Iterator[Any]:
    """The routes themselves, also those of routers that were included."""
    for route in routes:
        included = getattr(route, "original_router", None)
        yield from leaves(included.routes) if included is not None else (route,)


def every_route(web: Web) -> list[tuple[str, str]]:
    """The same from what is really routed, whether it is described or not: pages and forms too."""
    return [
        (method, route.path.format(**NAMES).replace("operations/1/confirm/pause", "operations/1/confirm/cancel"))
        for route in leaves(web.app.routes)
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
    ]


@pytest.mark.parametrize("authorization", ["Bearer nonsense", "Basic x", "Bearer", "Bearer \udcff"])
def test_a_wrong_token_opens_no_route(client: TestClient, web: Web, authorization: str) -> None:
    asked = routes_of(web)
    assert len(asked) > 20
    for method, path in asked:
        headers = {b"Authorization": authorization.encode("utf-8", "surrogateescape")}
        answer = client.request(method, path, headers=headers, json={})
        assert (answer.status_code, code_of(answer)) == (401, "unauthenticated"), (method, path)


def test_without_its_token_nothing_is_reached(jobs: SqlJobStore, settings: ServerSettings, client: TestClient) -> None:
    client.post("/v1/tokens", json={"name": "root", "role": "admin"})
    web = build_web(jobs, settings, ServiceMetrics(jobs), SYSTEM_RUNTIME, engines=frozenset())
    with TestClient(web.guarded, base_url="http://localhost:9091", client=("127.0.0.1", 5000)) as later:
        asked = every_route(web)
        assert set(asked) > {*routes_of(web), ("GET", "/v1/openapi.json"), ("GET", "/metrics"), ("POST", "/logout")}
        # Of what is mounted, too: nothing but the style sheet, the script and the icon.
        assert [other.path for other in leaves(web.app.routes) if not isinstance(other, Route)] == ["/static"]
        for method, path in asked:
            if path in ("/healthz", "/login"):
                continue
            answer = later.request(method, path, json={}, follow_redirects=False)
            if path.startswith(("/v1/", "/metrics")):
                assert (answer.status_code, code_of(answer)) == (401, "unauthenticated"), (method, path)
            elif path == "/logout":
                assert answer.status_code == 403
            else:
                told = (answer.status_code, answer.headers["location"].partition("?")[0], answer.text)
                assert told == (303, "/login", ""), (method, path)
        assert later.get("/healthz").json() == {"status": "ok"}
        for path in (
            "//v1/tables",
            "/V1/tables",
            "/v1/tables/",
            "/v1/./tables",
            "/%76%31/tables",
            "/static/../v1/tables",
        ):
            answer = later.get(f"http://localhost:9091{path}", follow_redirects=False)
            assert answer.status_code in (307, 401, 404), path
            assert "tables" not in answer.text, path
        for method in ("HEAD", "OPTIONS", "TRACE", "PATCH"):
            assert later.request(method, "/v1/tables").status_code == 405


def test_a_viewer_changes_nothing_by_any_route(client: TestClient, web: Web) -> None:
    admin = {
        "Authorization": "Bearer " + client.post("/v1/tokens", json={"name": "a", "role": "admin"}).json()["token"]
    }
    secret = client.post("/v1/tokens", json={"name": "v", "role": "viewer"}, headers=admin).json()["token"]
    client.cookies.set("tk_session", secret)
    page = client.get("/operations/1/confirm/cancel").text
    changing = [each for each in every_route(web) if each[0] != "GET"] + [("GET", "/v1/hoodie/service/compact")]
    assert len(changing) > 20
    for method, path in changing:
        if path in ("/login", "/logout"):
            continue
        form = {"form_token": client.cookies.get("tk_form", ""), "policy": "{}"}
        sent: dict[str, Any] = {"json": {}} if path.startswith("/v1/") else {"data": form}
        answer = client.request(method, path, headers={"Authorization": f"Bearer {secret}"}, **sent)
        assert answer.status_code == 403, (method, path, answer.text)
        assert "needs the role" in answer.text, (method, path)
    assert "needs the role operator" in page


ROLES = {
    "viewer": {"viewer"},
    "writer": {"viewer", "writer"},
    "operator": {"viewer", "writer", "operator"},
    "admin": {"viewer", "writer", "operator", "admin"},
}


@pytest.mark.parametrize("role", list(ROLES))
def test_a_role_may_do_what_it_is_for_and_no_more(client: TestClient, lake: Path, table: Table, role: str) -> None:
    register(client, lake)
    made = client.post("/v1/tokens", json={"name": role, "role": role}).json()["token"]
    headers = {"Authorization": f"Bearer {made}"}
    needed = {
        "viewer": client.get("/v1/tables", headers=headers),
        "writer": client.post("/v1/hoodie/callback", headers=headers, json={"basePath": str(lake / "trips")}),
        "operator": client.post("/v1/tables/db/trips/pause", headers=headers),
        "admin": client.get("/v1/tokens", headers=headers),
    }
    for name, answer in needed.items():
        assert (answer.status_code == 200) == (name in ROLES[role]), (name, answer.text)
        if answer.status_code != 200:
            assert code_of(answer) == "forbidden"


def test_a_token_sees_its_databases_and_places_only(client: TestClient, lake: Path, table: Table) -> None:
    register(client, lake)
    Table.create(lake / "fares", name="fares", schema=SCHEMA, key="id", engine="local")
    client.post("/v1/tables", json={"db_name": "other", "table_name": "fares", "base_path": str(lake / "fares")})
    for limits in ({"databases": ["db"]}, {"path_prefixes": [str(lake / "trips")]}):
        token = client.post("/v1/tokens", json={"name": "x", "role": "admin", **limits}).json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
        listed = client.get("/v1/tables", headers=headers).json()["tables"]
        assert [each["table_name"] for each in listed] == ["trips"]
        for answer in (
            client.get("/v1/tables/other/fares", headers=headers),
            client.post("/v1/tables/other/fares/pause", headers=headers),
            client.post("/v1/tables/other/fares/run/clean", headers=headers),
        ):
            assert code_of(answer) == "table_not_found"


def test_a_revoked_token_opens_nothing_and_the_last_admin_stays(client: TestClient) -> None:
    first = client.post("/v1/tokens", json={"name": "root", "role": "admin"}).json()
    second = client.post("/v1/tokens", json={"name": "second", "role": "admin"}).json()
    headers = {"Authorization": f"Bearer {first['token']}"}
    assert client.delete(f"/v1/tokens/{second['token_id']}", headers=headers).status_code == 200
    answer = client.get("/v1/tokens", headers={"Authorization": f"Bearer {second['token']}"})
    assert code_of(answer) == "unauthenticated"
    assert code_of(client.delete(f"/v1/tokens/{first['token_id']}", headers=headers)) == "wrong_state"
    shown = client.get("/v1/tokens", headers=headers).text
    assert first["token"] not in shown
    assert second["token"] not in shown


def test_only_the_own_machine_gets_in_without_tokens(web: Web) -> None:
    with TestClient(web.guarded, base_url="http://localhost", client=("10.0.0.7", 5000)) as stranger:
        assert code_of(stranger.get("/v1/tables")) == "unauthenticated"
    with TestClient(web.guarded, base_url="http://evil.example", client=("127.0.0.1", 5000)) as rebound:
        assert code_of(rebound.get("/v1/tables")) == "cross_site"


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
)
def test_a_page_of_another_site_cannot_make_a_browser_call(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore, headers: dict[str, str]
) -> None:
    for answer in (
        client.get("/v1/hoodie/service/compact", params=java_query(lake), headers=headers),
        client.post("/v1/tables", json={"base_path": str(lake / "trips")}, headers=headers),
    ):
        assert (answer.status_code, code_of(answer)) == (403, "cross_site")
    assert jobs.list_tables(TableFilter(), Page()) == []


OPENED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def test_a_link_to_a_page_is_followed_from_anywhere_and_to_nothing_else(client: TestClient, lake: Path) -> None:
    assert client.get("/alarms", headers=OPENED).status_code == 200
    for answer in (
        client.get("/v1/hoodie/service/compact", params=java_query(lake), headers=OPENED),
        client.get("/v1/tables", headers=OPENED),
        client.post("/login", data={"token": "x"}, headers=OPENED),
        client.get("/alarms", headers={**OPENED, "Sec-Fetch-Dest": "iframe"}),
        client.get("/alarms", headers={**OPENED, "Sec-Fetch-Mode": "no-cors"}),
    ):
        assert (answer.status_code, code_of(answer)) == (403, "cross_site")


@pytest.mark.parametrize("host", ["[::1]evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "", "[::1"])
def test_no_other_name_of_this_machine_is_answered_without_tokens(client: TestClient, host: str) -> None:
    assert code_of(client.get("/v1/tables", headers={"Host": host})) == "cross_site"


def test_too_many_requests_are_slowed_down(jobs: SqlJobStore, settings: ServerSettings) -> None:
    slow = replace(settings, limits=Limits(requests_per_s=0.001, request_burst=3))
    web = build_web(jobs, slow, ServiceMetrics(jobs), SYSTEM_RUNTIME, engines=frozenset())
    with TestClient(web.guarded, base_url="http://localhost", client=("127.0.0.1", 5000)) as client:
        answers = [client.get("/healthz").status_code for _ in range(5)]
    assert answers == [200, 200, 200, 429, 429]


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
