"""The stores that every contract suite about storage runs against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tablekeeper.storage import LocalStorage, MemoryStorage, Storage, forget_memory
from tablekeeper.storage.object_store import ObjectStorage
from tests.support.moto_server import MotoServer, moto_server
from tests.support.storage_places import ALL_STORES, Opener


@pytest.fixture(scope="module")
def s3_server() -> Iterator[MotoServer]:
    with moto_server() as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture(params=ALL_STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same empty place again and again, each time as a new client."""
    name = f"place-{uuid4()}"
    if request.param == "local":
        yield lambda: LocalStorage(tmp_path / name)
    elif request.param == "memory":
        yield lambda: MemoryStorage(f"memory://{name}/table")
        forget_memory(name)
    else:
        server: MotoServer = request.getfixturevalue("s3_server")
        yield lambda: ObjectStorage(f"s3://lake/{name}/my table", options=server.options)


@pytest.fixture
def store(open_store: Opener) -> Storage:
    return open_store()
