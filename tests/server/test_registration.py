"""How tables come to be known: one by one, all below a folder or a prefix, and what happens to their names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from tablekeeper import Table
from tablekeeper.cli.main import app
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.api.parameters import name_of_place
from tablekeeper.server.store.protocol import Page, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.table.discovery import find_tables
from tests.server.conftest import SCHEMA
from tests.support.moto_server import moto_server
from tests.support.served import running_service


def make_table(path: str | Path, storage_options: dict[str, str] | None = None) -> Table:
    return Table.create(path, name="t", schema=SCHEMA, key="id", engine="local", storage_options=storage_options)


def found_below(root: str | Path, **more: Any) -> list[str]:
    """Paths below `root` of the tables that were found."""
    found = find_tables(str(root), runtime=SYSTEM_RUNTIME, **more)
    return [uri.removeprefix(str(root) if "://" in str(root) else f"file://{root}") for uri in found]


def test_tables_are_found_at_any_depth_and_nothing_is_looked_for_inside_of_one(tmp_path: Path) -> None:
    for name in ("trips", "deep/er/fares", "trips/city=sf/inside"):
        make_table(tmp_path / name)
    for name in ("empty", "_temporary/gone", ".hidden/gone", "half/.hoodie", "plain/year=2026"):
        (tmp_path / name).mkdir(parents=True)
    make_table(tmp_path / "_temporary/gone/t")
    (tmp_path / "plain/file.parquet").touch()
    assert found_below(tmp_path) == ["/deep/er/fares", "/trips"]
    assert found_below(tmp_path / "trips") == [""]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("straße 表", "straße 表"),
        ("50%41 off?#", "50%41 off?#"),
        ("\u202eexe.gnp", "%E2%80%AEexe.gnp"),
        ("red\x1b[31m", "red%1B%5B31m"),
    ],
)
def test_a_folder_with_an_odd_name_is_found_and_named_as_people_wrote_it(
    tmp_path: Path, folder: str, name: str
) -> None:
    make_table(tmp_path / folder)
    (found,) = find_tables(str(tmp_path), runtime=SYSTEM_RUNTIME)
    assert Table.exists(found)
    assert name_of_place(found) == name


def test_a_search_for_tables_is_bounded_and_says_so(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"part={number}").mkdir()
    make_table(tmp_path / "trips")
    with pytest.raises(InvalidRequestError, match="more than 10 folders, and 0 tables"):
        found_below(tmp_path, most_folders=10)
    assert found_below(tmp_path, most_folders=22) == ["/trips"]
    with pytest.raises(InvalidRequestError, match="no table below"):
        found_below(tmp_path / "part=1")


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    make_table(tmp_path / "trips")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert "/trips" in found_below(tmp_path)


def service(*arguments: str, url: str) -> Result:
    return CliRunner(env={"COLUMNS": "300", "NO_COLOR": "1"}).invoke(app, ["service", *arguments, "--url", url])


def test_all_tables_below_a_prefix_of_an_object_store_are_registered(tmp_path: Path) -> None:
    with moto_server() as server:
        server.create_bucket("lake")
        options = server.options
        for name in ("sales/trips", "sales/deep/fares", "other/x"):
            make_table(f"s3://lake/{name}", options)
        given = [part for name, value in options.items() for part in ("--storage-option", f"{name}={value}")]
        with running_service(tmp_path / "service", allow="s3://lake", arguments=given) as served:
            added = service("add", "s3://lake/sales", "--recursive", "--db", "sales", *given, url=served.url)
            assert added.exit_code == 0, added.output
            tables = served.client().get("/v1/tables")["tables"]
    assert {(each["db_name"], each["base_path"]) for each in tables} == {
        ("sales", "s3://lake/sales/trips"),
        ("sales", "s3://lake/sales/deep/fares"),
    }


@pytest.fixture
def twins(lake: Path) -> list[str]:
    """Two tables whose paths end alike."""
    paths = [str(lake / each / "trips") for each in ("a", "b")]
    for path in paths:
        make_table(path)
    return paths


def names(jobs: SqlJobStore) -> list[str]:
    return [each.name for each in jobs.list_tables(TableFilter(), Page())]


def test_tables_without_a_given_name_never_take_each_others(
    client: TestClient, jobs: SqlJobStore, twins: list[str]
) -> None:
    for path in [*twins, *twins]:
        answer = client.post("/v1/tables", json={"base_path": path})
        assert answer.status_code in (200, 201), answer.text
    assert [name.partition("@")[0] for name in names(jobs)] == ["default.trips"] * 2
    assert len({each.base_path for each in jobs.list_tables(TableFilter(), Page())}) == 2


def test_a_name_that_another_path_has_is_refused(client: TestClient, jobs: SqlJobStore, twins: list[str]) -> None:
    body = {"db_name": "db", "table_name": "trips"}
    assert client.post("/v1/tables", json={**body, "base_path": twins[0]}).status_code == 201
    answer = client.post("/v1/tables", json={**body, "base_path": twins[1]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "wrong_state")
    (table,) = jobs.list_tables(TableFilter(), Page())
    assert table.base_path.endswith("/a/trips")


def test_tables_that_cannot_be_registered_are_named_and_the_others_are_registered(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    make_table(lake / "good")
    broken = lake / "broken/.hoodie"
    broken.mkdir(parents=True)
    (broken / "hoodie.properties").write_text("nothing")
    with running_service(tmp_path / "service", allow=lake) as served:
        added = service("add", os.fspath(lake), "--recursive", url=served.url)
        assert [each["table_name"] for each in served.client().get("/v1/tables")["tables"]] == ["good"]
    assert added.exit_code == 1
    assert "1 of 2 tables were not registered" in added.output
    assert f"file://{lake}/broken" in added.output


def test_the_policy_of_a_database_holds_for_its_tables(client: TestClient, twins: list[str]) -> None:
    client.put("/v1/databases/sales/policy", json={"compact_after_commits": 2})
    shown = client.post("/v1/tables", json={"base_path": twins[0], "db_name": "sales"}).json()
    assert shown["effective_policy"]["compact_after_commits"] == 2
    default = client.get("/v1/databases/sales/policy").json()["effective_policy"]
    assert (default["compact_after_commits"], default["clean_after_commits"]) == (2, 10)
    assert client.put("/v1/databases/sales/policy", json={"x": 1}).status_code == 400
    root = client.post("/v1/tokens", json={"name": "root", "role": "admin"}).json()["token"]
    for limits in ({"databases": ["other"]}, {"path_prefixes": [twins[0]]}):
        limited = {"name": "x", "role": "admin", **limits}
        made = client.post("/v1/tokens", json=limited, headers={"Authorization": f"Bearer {root}"})
        token = made.json()["token"]
        refused = client.get("/v1/databases/sales/policy", headers={"Authorization": f"Bearer {token}"})
        assert refused.json()["error"]["code"] == "forbidden"
