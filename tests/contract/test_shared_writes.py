"""Writers that meet, on every engine: shared file groups in the non-blocking mode, and giving way early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError
from tablekeeper.write import operation
from tablekeeper.write.finish import finish_write
from tests.support.table_builder import TRIPS, rows_of, trips

__all__: list[str] = []

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
NON_BLOCKING = {**BUCKETS, "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
EARLY = {"hoodie.write.concurrency.early.conflict.detection.enable": "true"}


class Client:
    """One table through one engine; rows are given and taken as Arrow."""

    def __init__(self, name: str, place: str, request: pytest.FixtureRequest) -> None:
        self._spark = request.getfixturevalue("spark") if name == "spark" else None
        self._chosen: dict[str, Any] = {"engine": "local"} if self._spark is None else {"spark": self._spark}
        self._place = place

    def create(self, options: dict[str, str]) -> None:
        tk.Table.create(
            self._place,
            name="trips",
            schema=TRIPS if self._spark is None else self._frame(trips()).schema,
            key="id",
            partition_by="city",
            ordering="ts",
            table_type="mor",
            options=options,
            **self._chosen,
        )

    @property
    def table(self) -> tk.Table:
        return tk.Table.open(self._place, **self._chosen)

    def upsert(self, *rows: tuple[Any, ...]) -> tk.WriteResult:
        return self.table.upsert(self._frame(trips(*rows)))

    def rows(self) -> list[tuple[Any, ...]]:
        frame = self.table.read()
        return rows_of(frame if isinstance(frame, pa.Table) else frame.toArrow(), "id", "ts")

    def upsert_while(self, action: Callable[[], object], *rows: tuple[Any, ...]) -> None:
        """Upsert; when all files are written, and before the commit, `action` happens."""

        def interrupted(*arguments: Any, **named: Any) -> Any:
            with patch.object(operation, "finish_write", finish_write):
                action()
            return finish_write(*arguments, **named)

        with patch.object(operation, "finish_write", interrupted):
            self.upsert(*rows)

    def _frame(self, rows: pa.Table) -> Any:
        if self._spark is None:
            return rows
        schema = "id string, city string, ts bigint, fare double"
        return self._spark.createDataFrame([tuple(row.values()) for row in rows.to_pylist()], schema)


@pytest.fixture(params=["local", "spark"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    return Client(request.param, str(tmp_path / "table"), request)


def test_two_writers_share_new_buckets_in_the_non_blocking_mode(client: Client) -> None:
    client.create(NON_BLOCKING)
    first = [("a", "sf", 1, 1.0), ("b", "sf", 4, 1.0), ("c", "sf", 1, 1.0)]
    client.upsert_while(lambda: client.upsert(("a", "sf", 2, 2.0), ("b", "sf", 2, 2.0), ("d", "sf", 2, 2.0)), *first)
    assert client.rows() == [("a", 2), ("b", 4), ("c", 1), ("d", 2)]
    ids = {s.group.file_id for s in client.table.files()}
    assert ids == {f"0000000{bucket}-0000-0000-0000-000000000000-0" for bucket in (0, 1)}


def test_the_later_of_two_writers_gives_way_before_it_writes(client: Client) -> None:
    client.create({**BUCKETS, **EARLY})
    client.upsert(("a", "sf", 1, 1.0))
    refused: list[ConflictError] = []

    def lose() -> None:
        with pytest.raises(ConflictError, match="still writing to the same file groups") as caught:
            client.upsert(("a", "sf", 3, 3.0))
        refused.append(caught.value)

    client.upsert_while(lose, ("a", "sf", 2, 2.0))
    assert client.rows() == [("a", 2)]
    assert refused[0].beaten_by == client.table.timeline()[-1].requested_at.value
    assert all(instant.is_completed for instant in client.table.timeline())
