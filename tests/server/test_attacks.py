"""Attempts to make the service touch what it may not: paths, links, settings, and forms of other sites."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import open_service
from tablekeeper.server.model import ServiceAction, Status
from tablekeeper.server.places import AllowedPlaces, ForbiddenPlaceError
from tablekeeper.server.settings import Limits, ServerSettings
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page, Submission, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tests.server.conftest import SCHEMA

GUARDED = {"options": {"hoodie.write.lock.zookeeper.url": "evil.example.org"}}
ELSEWHERE = (
    "s3://lake/../other/trips",
    "s3://lake-of-others/trips",
    "s3://LAKE/trips",
    "s3://lake",
    "s3://lake/sales-of-others/t",
    "s3://lake/sales%2f..%2fother",
    "s3a://lake/other",
    "gs://lake/sales/trips",
    "file:///etc",
    "/etc/passwd",
    "memory://lake/sales/trips",
    "http://169.254.169.254/latest/meta-data",
    "hdfs://lake/sales",
    "s3://lake/sales/../../other",
    "s3://user@lake/sales/x",
    "s3://lake:443/sales/x",
    "s3://lake\\sales/x",
    "s3://lake/\uff0e\uff0e/sales",
    "//lake/sales/x",
    "~/x",
    "relative/x",
    "",
)


@pytest.mark.parametrize("path", ELSEWHERE)
def test_no_spelling_of_a_path_leads_out_of_the_allowed_prefix(path: str) -> None:
    with pytest.raises((ForbiddenPlaceError, InvalidRequestError)):
        AllowedPlaces(["s3://lake/sales"]).canonical(path)


@pytest.mark.parametrize("path", ["s3://lake/sales/trips", "s3a://lake/sales/trips/", "s3://lake/sales//trips"])
def test_other_spellings_of_an_allowed_place_are_that_place(path: str) -> None:
    assert AllowedPlaces(["s3://lake/sales"]).canonical(path).rstrip("/") == "s3://lake/sales/trips"


def outside(folder: Path) -> Table:
    return Table.create(folder / "secret", name="secret", schema=SCHEMA, key="id", ordering="ts", engine="local")


@pytest.mark.parametrize(
    "encoded", ["{lake}/%2e%2e/secret", "file://{lake}/../secret", "{lake}/link", "{lake}/./link/."]
)
def test_links_dots_and_escapes_do_not_register_a_table_outside(
    client: TestClient, lake: Path, tmp_path: Path, jobs: SqlJobStore, encoded: str
) -> None:
    outside(tmp_path)
    (lake / "link").symlink_to(tmp_path / "secret")
    answer = client.post("/v1/tables", json={"table_name": "x", "base_path": encoded.format(lake=lake)})
    assert answer.status_code in (400, 403, 404, 422), answer.text
    callback = {"commitTime": "1", "tableName": "x", "basePath": encoded.format(lake=lake)}
    assert client.post("/v1/hoodie/callback", json=callback).status_code in (400, 403, 404, 422)
    assert jobs.list_tables(TableFilter(), Page()) == []


def test_a_table_is_known_by_where_it_lies_and_not_by_the_links_that_lead_there(tmp_path: Path) -> None:
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "lake").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "link").symlink_to(tmp_path / "disk" / "real")
    places = AllowedPlaces([str(tmp_path / "lake")])
    # Below the place as it was allowed, because that is the name that people know.
    known = f"file://{tmp_path}/lake/real"
    assert {places.canonical(f"{tmp_path}/{path}") for path in ("lake/real", "lake/link", "disk/link")} == {known}


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_that_becomes_a_link_after_the_registration_is_not_followed(
    tmp_path: Path, lake: Path, inside: bool
) -> None:
    made = Table.create(lake / "real", name="real", schema=SCHEMA, key="id", ordering="ts", engine="local")
    outside(lake if inside else tmp_path)
    settings = ServerSettings(work_dir=tmp_path / "work", allow=(str(lake),), engine="arrow", limits=Limits(slots=1))
    service = open_service(settings, runtime=SYSTEM_RUNTIME)
    try:
        store = service.store
        place = AllowedPlaces(settings.allow).canonical(str(lake / "real"))
        table, _ = store.register_table(NewTable("db", "real", place))
        assert service.context.look(table).name == made.config.name
        (lake / "real").rename(lake / "moved")
        (lake / "real").symlink_to((lake if inside else tmp_path) / "secret")
        with pytest.raises(ForbiddenPlaceError):
            service.context.look(table)
        store.submit(Submission(table.table_id, "clean@now", ServiceAction.CLEAN))
        service.schedule.run_once()
        (operation,) = store.list_operations(OperationFilter(), Page())
        assert (operation.status, operation.run_times) == (Status.FAILED, 0)
        assert ("is a link" if inside else "not inside of a place") in operation.note
    finally:
        service.stop()


def test_no_call_and_no_page_follows_a_link_that_was_put_in_the_place_of_a_table(
    client: TestClient, lake: Path, tmp_path: Path, table: Table
) -> None:
    outside(tmp_path)
    assert client.post("/v1/tables", json={"db_name": "db", "base_path": table.path}).status_code == 201
    assert "Base files by size" in client.get("/tables/db/trips/files").text
    (lake / "trips").rename(lake / "moved")
    (lake / "trips").symlink_to(tmp_path / "secret")
    plan = {"db_name": "db", "table_name": "trips", "instant": "20260101000000000"}
    metadata = f"{table.path}/.hoodie/metadata"
    for answer in (
        client.post("/v1/tables/db/trips/rebuild"),
        client.post("/v1/hoodie/service/compact/submit", json=plan),
        client.get("/v1/hoodie/service/compact", params={"basepath": metadata, "instant": plan["instant"]}),
        client.get("/tables/db/trips/files"),
        client.get("/tables/db/trips/preview/compaction"),
    ):
        assert answer.status_code == 403, (answer.url, answer.text)
    page = client.get("/tables/db/trips")
    assert page.status_code == 200
    assert "The table cannot be read" in page.text


def test_settings_that_call_other_servers_or_weaken_locks_are_for_admins(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    place = {"db_name": "db", "table_name": "trips", "base_path": str(lake / "trips")}
    admin = {
        "Authorization": "Bearer " + client.post("/v1/tokens", json={"name": "a", "role": "admin"}).json()["token"]
    }
    tokens = {}
    for role in ("writer", "operator"):
        made = client.post("/v1/tokens", json={"name": role, "role": role}, headers=admin).json()["token"]
        tokens[role] = {"Authorization": f"Bearer {made}"}
    refused = client.post("/v1/tables", json={**place, "policy": GUARDED}, headers=tokens["writer"])
    assert (refused.status_code, "needs an admin" in refused.text) == (403, True)
    assert client.post("/v1/tables", json=place, headers=tokens["writer"]).status_code == 201
    for path in ("/v1/tables/db/trips/policy", "/v1/databases/db/policy"):
        answer = client.put(path, json=GUARDED, headers=tokens["operator"])
        assert (answer.status_code, "needs an admin" in answer.text) == (403, True), path
    assert client.put("/v1/tables/db/trips/policy", json=GUARDED, headers=admin).status_code == 200
    plan = {"db_name": "db", "table_name": "trips", "instant": "20260101000000000"}
    asked = {**plan, "extra_params": "hoodie.write.lock.zookeeper.url=evil.example.org"}
    answer = client.post("/v1/hoodie/service/compact/submit", json=asked, headers=tokens["writer"])
    assert (answer.status_code, "is not for requests" in answer.text) == (400, True)


def test_a_token_of_a_database_learns_nothing_of_the_others_from_lists_and_counts(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    for db in ("mine", "theirs"):
        jobs.register_table(NewTable(db, f"t_{db}", f"{lake}/{db}"))
    admin = {
        "Authorization": "Bearer " + client.post("/v1/tokens", json={"name": "a", "role": "admin"}).json()["token"]
    }
    limited = client.post("/v1/tokens", json={"name": "v", "role": "viewer", "databases": ["mine"]}, headers=admin)
    mine = {"Authorization": f"Bearer {limited.json()['token']}"}
    assert client.get("/v1/overview", headers=admin).json()["tables"] == 2
    assert client.get("/v1/overview", headers=mine).json()["tables"] == 1
    assert [each["db_name"] for each in client.get("/v1/tables", headers=mine).json()["tables"]] == ["mine"]
    client.cookies.set("tk_session", mine["Authorization"].partition(" ")[2])
    page = client.get("/tables").text
    assert "t_mine" in page
    assert "theirs" not in page


LONG = "\u202e" + "\U0001f600" * 2500


def test_ten_thousand_bytes_of_unicode_are_refused_or_shown_harmlessly(client: TestClient, lake: Path) -> None:
    assert len(LONG.encode()) > 10_000
    assert client.post("/v1/tables", json={"table_name": LONG, "base_path": str(lake)}).status_code == 400
    for path in (f"/tables?search={quote('a' * 150)}", f"/v1/tables?search={quote(LONG[:60])}"):
        assert client.get(path).status_code == 200
    assert client.get(f"/tables/db/{quote(LONG[:300])}").status_code == 404
