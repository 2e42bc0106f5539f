"""What tests of the service share: empty databases of each kind, and a clock that the test owns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pyarrow as pa
import pytest
from sqlalchemy import BigInteger, ColumnElement, bindparam
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.settings import Limits, ServerSettings
from tablekeeper.server.store.sql import SqlJobStore, open_store
from tablekeeper.server.web import Web, build_web
from tests.support.databases import DEBIAN, PORTABLE, new_database, running_server

# `make databases` asks for those that the operating system brings; the others need PyPI only.
KINDS = DEBIAN if os.environ.get("TABLEKEEPER_DEBIAN_DATABASES") else PORTABLE

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64())])


class StoreClock:
    """The database's clock, in the hands of the test."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def advance(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)

    def expression(self) -> ColumnElement[int]:
        # Asked when a statement is executed: stores keep some statements.
        return bindparam(None, callable_=lambda: self.ms, type_=BigInteger())


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, str]]:
    """Administration URLs of the databases of this run, by kind."""
    with ExitStack() as stack:
        # Sockets have short paths.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="tk")))
        urls = {}
        for kind in KINDS:
            (folder / kind).mkdir()
            urls[kind] = stack.enter_context(running_server(kind, folder / kind))
        yield urls


@pytest.fixture(scope="session")
def templates(servers: dict[str, str]) -> dict[str, str]:
    """A migrated database of each kind, to copy from: migrating takes longer than most tests."""
    for url in servers.values():
        migrated = open_store(new_database(url, "template_of_tests"))
        migrated.migrate()
        migrated.close()
    return dict.fromkeys(servers, "template_of_tests")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of database."""
    return str(request.param)


@pytest.fixture
def database_url(kind: str, servers: dict[str, str]) -> str:
    """An empty database, one of each kind."""
    return new_database(servers[kind], f"t{uuid4().hex}")


@pytest.fixture
def store_clock() -> StoreClock:
    return StoreClock()


@pytest.fixture
def store(
    kind: str, servers: dict[str, str], templates: dict[str, str], store_clock: StoreClock
) -> Iterator[SqlJobStore]:
    """A migrated store on each kind of database, with the test's clock."""
    url = new_database(servers[kind], f"t{uuid4().hex}", template=templates[kind])
    opened = open_store(url, now_ms=store_clock.expression)
    # Where there was nothing to copy from; elsewhere it finds nothing to do.
    if kind.endswith("mariadb"):
        opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture
def table(lake: Path) -> Table:
    """A merge-on-read table with something to compact."""
    made = Table.create(lake / "trips", name="trips", schema=SCHEMA, key="id", ordering="ts", engine="local")
    for ts in range(3):
        made.upsert(pa.table({"id": ["a", "b"], "ts": [ts, ts]}, schema=SCHEMA))
    return made


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SqlJobStore]:
    opened = open_store(f"sqlite:///{tmp_path / 'service.db'}")
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def settings(tmp_path: Path, lake: Path) -> ServerSettings:
    return ServerSettings(work_dir=tmp_path, allow=(str(lake),), limits=Limits(body_bytes=20_000))


@pytest.fixture
def web(jobs: SqlJobStore, settings: ServerSettings) -> Web:
    return build_web(jobs, settings, ServiceMetrics(jobs), SYSTEM_RUNTIME, engines=frozenset({"arrow", "flink"}))


@pytest.fixture
def client(web: Web) -> Iterator[TestClient]:
    """A client on the same machine; there are no tokens."""
    with TestClient(web.guarded, base_url="http://localhost:9091", client=("127.0.0.1", 5000)) as opened:
        yield opened
