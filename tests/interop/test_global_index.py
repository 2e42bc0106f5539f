"""Java and we take turns on one table with the same index: no key is there twice, and moved rows are where both say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tests.support.java_hudi import JavaTable

__all__: list[str] = []

SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("note", pa.string())])
CITIES = ("a", "b", "c")


def rows(homes: dict[str, str], ts: int) -> pa.Table:
    """Keys with their cities; the note tells the version."""
    named = [{"id": key, "city": city, "ts": ts, "note": f"{key}-{ts}"} for key, city in homes.items()]
    return pa.Table.from_pylist(named, schema=SCHEMA)


def told(table: pa.Table) -> dict[str, tuple[str, str]]:
    """City and note of each key."""
    found = {row["id"]: (row["city"], row["note"]) for row in table.select(SCHEMA.names).to_pylist()}
    assert len(found) == table.num_rows, "a key is there twice"
    return found


@pytest.mark.parametrize(("index", "table_type"), [("GLOBAL_BLOOM", "cow"), ("GLOBAL_SIMPLE", "mor"), ("BLOOM", "cow")])
def test_java_and_we_take_turns_by_one_index(index: str, table_type: str, spark: Any, tmp_path: Path) -> None:
    chance = random.Random(f"{index} {table_type}")
    settings = {"hoodie.index.type": index}
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type=table_type, extra=settings
    )
    java = JavaTable(spark, str(tmp_path / "t"), options)
    homes = {f"k{n}": CITIES[n % 3] for n in range(45)}
    first = rows({key: homes[key] for key in list(homes)[:30]}, 1)
    java.write(first, "upsert")
    ours = tk.Table.open(java.path, engine="local", options=settings)
    model = told(first)
    for ts in range(2, 5):
        keys = chance.sample(sorted(homes), 9)
        cities = {key: chance.choice(CITIES) if index.startswith("GLOBAL") else homes[key] for key in keys}
        upserted = rows(cities, ts)
        model |= told(upserted)
        gone = {key: homes[key] for key in chance.sample(sorted(model), 2)}
        if ts % 2:
            java.write(upserted, "upsert")
            ours.delete(rows(gone, ts))
        else:
            ours.upsert(upserted)
            java.write(rows(gone, ts), "delete")
        for key in gone:
            del model[key]
        if ts == 3:
            (ours.cluster if table_type == "cow" else ours.compact)()
        assert told(ours.read()) == model, ts
    assert told(java.read()) == model
