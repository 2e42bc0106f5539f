"""What tests of the service share: empty databases of each kind, and a clock that the test owns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from sqlalchemy import BigInteger, ColumnElement, literal

from tablekeeper.server.store.sql import SqlJobStore, open_store
from tests.support.databases import DEBIAN, PORTABLE, new_database, running_server

# `make databases` asks for those that the operating system brings; the others need PyPI only.
KINDS = DEBIAN if os.environ.get("TABLEKEEPER_DEBIAN_DATABASES") else PORTABLE


class StoreClock:
    """The database's clock, in the hands of the test."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def advance(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)

    def expression(self) -> ColumnElement[int]:
        return literal(self.ms, BigInteger)


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
