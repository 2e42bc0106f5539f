"""The pages without a browser: what they show, what their forms do, and what they keep from others."""

from __future__ import annotations

import logging
import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from markupsafe import escape
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.dashboard.words import REMEDIES
from tablekeeper.server.model import AttemptOutcome, Sample, Signal
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import EndedAttempt, NewAlarm, NewTable, Page, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.server.web import build_web

NASTY = "<script>alert(1)<\\script>'\"; DROP TABLE tbl;--"


@pytest.fixture
def registered(client: TestClient, lake: Path, table: Table) -> str:
    """The page of a registered table."""
    client.post("/v1/tables", json={"db_name": "db", "table_name": "trips", "base_path": str(lake / "trips")})
    return "/tables/db/trips"


def form_token(client: TestClient, page: str) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', client.get(page).text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("page", ["/", "/tables", "/operations", "/instances", "/alarms", "/login"])
def test_every_page_renders_on_an_empty_lake(client: TestClient, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 200
    assert answer.text.startswith("<!doctype html>")


def test_a_tables_page_draws_its_timeline(client: TestClient, registered: str, table: Table) -> None:
    table.schedule_compaction()
    page = client.get(registered).text
    assert page.count('class="bar completed"') == 3
    assert page.count('class="bar requested"') == 1
    assert "deltacommit completed: requested" in page


def test_a_tables_page_says_why_the_table_cannot_be_read(client: TestClient, registered: str, lake: Path) -> None:
    (lake / "trips" / ".hoodie" / "hoodie.properties").write_text("nonsense")
    page = client.get(registered)
    assert page.status_code == 200
    assert "The table cannot be read" in page.text


def test_acting_asks_first_says_what_happens_and_then_does_it(
    client: TestClient, registered: str, jobs: SqlJobStore
) -> None:
    asked = client.get(f"{registered}/confirm/pause").text
    assert "Nothing will start on this table" in asked
    token = form_token(client, f"{registered}/confirm/pause")
    answer = client.post(f"{registered}/confirm/pause", data={"form_token": token}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, registered)
    assert jobs.list_tables(TableFilter(), Page())[0].is_paused


@pytest.mark.parametrize("given", [{}, {"form_token": "0" * 32}, {"form_token": ""}])
def test_a_form_that_this_service_did_not_render_changes_nothing(
    client: TestClient, registered: str, jobs: SqlJobStore, given: dict[str, str]
) -> None:
    client.get(registered)
    answer = client.post(f"{registered}/confirm/pause", data=given, follow_redirects=False)
    assert answer.status_code == 403
    assert not jobs.list_tables(TableFilter(), Page())[0].is_paused


def test_a_policy_is_changed_after_its_changes_were_shown_and_a_wrong_one_is_refused(
    client: TestClient, registered: str, jobs: SqlJobStore
) -> None:
    token = form_token(client, registered)
    form = {"form_token": token, "policy": '{"compact_after_commits": 2}'}
    asked = client.post(f"{registered}/policy", data=form).text
    assert re.search(r"<td>compact_after_commits</td>\s*<td[^>]*>5</td>\s*<td[^>]*><strong>2</strong>", asked)
    assert jobs.list_tables(TableFilter(), Page())[0].policy == {}, "asked only"
    client.post(f"{registered}/policy/confirm", data=form)
    assert jobs.list_tables(TableFilter(), Page())[0].policy == {"compact_after_commits": 2}
    wrong = client.post(f"{registered}/policy", data={"form_token": token, "policy": "{"})
    assert (wrong.status_code, "not JSON" in wrong.text) == (400, True)


def test_an_operation_is_shown_cancelled_and_tried_again(client: TestClient, registered: str) -> None:
    token = form_token(client, f"{registered}/confirm/clean")
    client.post(f"{registered}/confirm/clean", data={"form_token": token})
    assert "local asked for it" in client.get("/operations/1").text
    for verb, status in (("cancel", "cancelled"), ("retry", "pending")):
        client.post(f"/operations/1/confirm/{verb}", data={"form_token": token})
        assert f'class="state {status}">{status}</span>' in client.get("/operations/1").text


def test_names_of_all_kinds_are_shown_harmlessly(client: TestClient, jobs: SqlJobStore, lake: Path) -> None:
    jobs.register_table(NewTable(NASTY, "\u202e" + "x" * 200, f"{lake}/{NASTY}", owner=NASTY, queue=NASTY))
    for page in ("/tables", "/", f"/tables/{quote(NASTY, safe='')}/{quote(chr(0x202E) + 'x' * 200, safe='')}"):
        answer = client.get(page)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)" in client.get("/tables").text


def test_with_tokens_the_pages_want_a_login_and_the_cookie_is_out_of_reach(
    client: TestClient, jobs: SqlJobStore, settings: ServerSettings
) -> None:
    secret = client.post("/v1/tokens", json={"name": "root", "role": "admin"}).json()["token"]
    web = build_web(jobs, settings, ServiceMetrics(jobs), SYSTEM_RUNTIME, engines=frozenset())
    with TestClient(web.guarded, base_url="http://localhost", client=("127.0.0.1", 5000)) as browser:
        for page in ("/", "/tables", "/operations", "/operations/1", "/instances", "/alarms", "/tables/a/b"):
            assert browser.get(page, follow_redirects=False).headers["location"].partition("?")[0] == "/login"
        assert browser.post("/login", data={"token": "nonsense"}).status_code == 401
        logged_in = browser.post("/login", data={"token": secret}, follow_redirects=False)
        cookie = logged_in.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        overview = browser.get("/")
        assert overview.status_code == 200
        assert secret not in overview.text
        browser.post("/logout", data={"form_token": form_token(browser, "/")})
        assert browser.get("/", follow_redirects=False).headers["location"] == "/login"


def test_the_login_leads_back_to_the_page_that_was_asked_for(client: TestClient) -> None:
    secret = client.post("/v1/tokens", json={"name": "root", "role": "admin"}).json()["token"]
    client.cookies.set("tk_session", "expired")
    asked = client.get("/tables?search=a&state=behind", follow_redirects=False).headers["location"]
    then = re.search(r'name="then" value="([^"]+)"', client.get(asked).text)
    assert then is not None
    assert then[1] == "/tables?search=a&amp;state=behind"
    answer = client.post("/login", data={"token": secret, "then": unescape(then[1])}, follow_redirects=False)
    assert answer.headers["location"] == "/tables?search=a&state=behind"


@pytest.mark.parametrize(
    "then", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\n/evil.example", ""]
)
def test_the_login_leads_nowhere_else(client: TestClient, then: str) -> None:
    secret = client.post("/v1/tokens", json={"name": "root", "role": "admin"}).json()["token"]
    answer = client.post("/login", data={"token": secret, "then": then}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_form_of_too_many_fields_is_refused(client: TestClient) -> None:
    answer = client.post("/login", data={f"field{number}": "x" for number in range(60)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_whoever_may_only_look_is_offered_nothing_to_do(client: TestClient, registered: str) -> None:
    client.post(f"{registered}/confirm/clean", data={"form_token": form_token(client, f"{registered}/confirm/clean")})
    admin = client.post("/v1/tokens", json={"name": "admin", "role": "admin"}).json()["token"]
    tokens = {
        role: client.post(
            "/v1/tokens", json={"name": role, "role": role}, headers={"Authorization": f"Bearer {admin}"}
        ).json()["token"]
        for role in ("viewer", "operator")
    }
    offered = {}
    for role, secret in tokens.items():
        client.cookies.set("tk_session", secret)
        pages = (registered, "/operations/1", f"{registered}/preview/compaction")
        offered[role] = [
            re.findall(r'href="[^"]*/confirm/|action="[^"]*/policy', client.get(page).text) for page in pages
        ]
        status = client.get(f"{registered}/confirm/pause").status_code
        assert status == (403 if role == "viewer" else 200)
    assert offered["viewer"] == [[], [], []]
    assert all(offered["operator"])


def test_the_plots_of_a_new_service_begin_with_their_first_hour(client: TestClient, jobs: SqlJobStore) -> None:
    def shown_hours(path: str) -> list[str]:
        return re.findall(r'aria-current="true">([^<]+)<', client.get(path).text)

    assert shown_hours("/") == ["1 h"]
    assert shown_hours("/?hours=24") == ["24 h"]
    jobs.add_sample(Sample(jobs.now_ms() // 60_000 - 90, waiting=0, running=0, behind=0, late=0, longest_behind_s=0))
    assert shown_hours("/") == ["6 h"]


def test_an_open_alarm_on_the_overview_leads_to_what_it_is_about(client: TestClient, jobs: SqlJobStore) -> None:
    table, _ = jobs.register_table(NewTable("db", "trips", "/lake/trips"))
    jobs.open_alarm(NewAlarm("table-quarantined:1", "quarantined", "unreadable", (), table.table_id))
    jobs.open_alarm(NewAlarm("failed:7", "failed", "it failed", (), table.table_id, 7))
    text = client.get("/").text
    alarms = text[text.index("Open alarms") : text.index("Backlog")]
    assert 'href="/tables/db/trips"' in alarms
    assert 'href="/operations/7"' in alarms


def test_the_filter_of_tables_shows_what_was_chosen_and_an_empty_lake_how_to_fill_it(client: TestClient) -> None:
    assert "tablekeeper service add" in client.get("/tables").text
    filtered = client.get("/tables?state=paused").text
    assert '<option value="paused" selected>' in filtered
    assert "No table matches" in filtered


def test_a_failure_is_told_on_the_tables_page_until_the_service_succeeds(
    client: TestClient, jobs: SqlJobStore, registered: str
) -> None:
    def end_one(signal: Signal, outcome: AttemptOutcome) -> None:
        asked = client.post(f"/v1{registered}/run/clean").json()["operation_id"]
        assert "History" in client.get(registered).text.partition(f'href="/operations/{asked}"')[2], "waits, above"
        held = jobs.claim(asked, instance_id="i", lease_s=60.0)
        assert held is not None
        jobs.start_attempt(held.lease, engine="arrow", log_path="")
        jobs.settle(held.lease, signal, note="disk full", ended=EndedAttempt(1, outcome, "disk full"))

    end_one(Signal.FAIL, AttemptOutcome.FAILED)
    assert "The last clean has failed: disk full" in client.get(registered).text
    end_one(Signal.COMPLETE, AttemptOutcome.COMPLETED)
    assert "The last clean has failed" not in client.get(registered).text


def test_open_alarms_say_what_to_do(client: TestClient, jobs: SqlJobStore) -> None:
    for rule in REMEDIES:
        jobs.open_alarm(NewAlarm(rule, rule, "something", ()))
    page = client.get("/alarms").text
    assert [remedy for remedy in REMEDIES.values() if str(escape(remedy)) not in page] == []
    guide = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    rules = set(re.findall(r"^\| (\w+) \| .* \| .* \|$", guide.partition("## Alarms")[2].partition("## ")[0], re.M))
    assert rules - {"alarm"} == set(REMEDIES)


def test_who_tries_to_log_in_is_logged_without_the_token(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client.post("/login", data={"token": "tk_guess"})
    client.get("/v1/tables", headers={"Authorization": "Bearer tk_guess"})
    assert "login from 127.0.0.1: this token is not known" in caplog.text
    assert "GET /v1/tables from 127.0.0.1: unauthenticated" in caplog.text
    assert "tk_guess" not in caplog.text
