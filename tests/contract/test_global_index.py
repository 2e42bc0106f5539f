"""A global index on every engine: rows move between partitions, however their staged rows travel to the tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tests.support.table_builder import TRIPS, rows_of, trips

__all__: list[str] = []


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_rows_move_between_partitions(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    chosen: dict[str, Any] = {"engine": "local"} if spark is None else {"spark": spark}

    def frame(rows: pa.Table) -> Any:
        columns = "id string, city string, ts bigint, fare double"
        return (
            rows if spark is None else spark.createDataFrame([tuple(row.values()) for row in rows.to_pylist()], columns)
        )

    table = tk.Table.create(
        str(tmp_path / "table"),
        name="trips",
        schema=TRIPS if spark is None else frame(trips()).schema,
        key="id",
        partition_by="city",
        ordering="ts",
        table_type="mor",
        options={"hoodie.index.type": "GLOBAL_BLOOM"},
        **chosen,
    )
    table.upsert(frame(trips(*((f"k{n}", "sf" if n % 2 else "la", 5, 1.0) for n in range(40)))))
    # Some are too old to move, some keys are new, and one names two partitions.
    moving = trips(
        *((f"k{n}", "ny", 4 + n % 3, 2.0) for n in range(0, 40, 4)), ("n", "sf", 6, 2.0), ("n", "ny", 7, 2.0)
    )
    table.upsert(frame(moving))
    table.delete(frame(trips(("k1", "ny"), ("k8", "ny"))))
    expected = {f"k{n}": ("sf" if n % 2 else "la", 5) for n in range(40)}
    expected |= {f"k{n}": ("ny", 4 + n % 3) for n in range(0, 40, 4) if n % 3} | {"n": ("ny", 7)}
    expected = {key: home for key, home in expected.items() if key not in ("k1", "k8")}
    found = table.read()
    rows = rows_of(found if spark is None else found.toArrow(), "id", "city", "ts")
    assert rows == sorted((key, *home) for key, home in expected.items())
