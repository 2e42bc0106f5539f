"""Who gets in: tokens, roles and limits on every route, requests of other sites, and too many of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.settings import Limits, ServerSettings
from tablekeeper.server.store.protocol import Page, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.server.web import Web, build_web
from tests.server.conftest import SCHEMA
from tests.support.rest import code_of, java_query, register

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


def root_of(client: TestClient) -> dict[str, str]:
    """What a caller sends who may do everything, with the first token."""
    secret = client.post("/v1/tokens", json={"name": "root", "role": "admin"}).json()["token"]
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("first", [{"role": "viewer"}, {"role": "admin", "databases": ["db"]}])
def test_the_first_token_is_one_that_can_make_others(client: TestClient, first: dict[str, Any]) -> None:
    assert code_of(client.post("/v1/tokens", json={"name": "first", **first})) == "wrong_state"
    assert client.get("/v1/tokens").json() == {"tokens": []}
    answer = client.post("/v1/tokens", json={"name": "first", **first}, headers=root_of(client))
    assert answer.status_code == 201


def test_with_the_first_token_the_door_closes_at_once(client: TestClient) -> None:
    assert client.get("/v1/tables").status_code == 200
    client.post("/v1/tokens", json={"name": "root", "role": "admin"})
    assert client.get("/v1/tables").status_code == 401


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
    made = client.post("/v1/tokens", json={"name": role, "role": role}, headers=root_of(client)).json()["token"]
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
    root = root_of(client)
    for limits in ({"databases": ["db"]}, {"path_prefixes": [str(lake / "trips")]}):
        limited = {"name": "x", "role": "admin", **limits}
        token = client.post("/v1/tokens", json=limited, headers=root).json()["token"]
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
    headers = {"Authorization": f"Bearer {first['token']}"}
    second = client.post("/v1/tokens", json={"name": "second", "role": "admin"}, headers=headers).json()
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
