"""A real service with a token and a table, for programs that call it at random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from tablekeeper import Table
from tests.support.served import Served, free_port, running_service

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64())])


@dataclass(frozen=True)
class Target:
    """Where the service listens, the token of an admin, and the port of gRPC."""

    served: Served
    secret: str
    grpc_port: int

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Nothing is executed (`--slots 0`): what is tried here is the outside."""
    home = tmp_path_factory.mktemp("fuzz")
    lake, port = home / "lake", free_port()
    lake.mkdir()
    made = Table.create(lake / "trips", name="trips", schema=SCHEMA, key="id", ordering="ts", engine="local")
    made.upsert(pa.table({"id": ["a"], "ts": [1]}, schema=SCHEMA))
    arguments = ("--slots", "0", "--grpc-port", str(port))
    with running_service(home / "service", allow=lake, arguments=arguments) as served:
        client = served.client()
        client.post("/v1/tables", {"db_name": "db", "table_name": "trips", "base_path": str(lake / "trips")})
        secret = client.post("/v1/tokens", {"name": "root", "role": "admin"})["token"]
        yield Target(served, secret, port)
