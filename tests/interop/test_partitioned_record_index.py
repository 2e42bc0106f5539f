"""One record index by partitions, kept in step by Java and by us in turns: each finds every key by it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tests.support.java_hudi import JavaTable
from tests.support.record_index_content import refuse_wrong_record_index

__all__: list[str] = []

SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("note", pa.string())])
# The names of shards escape some of these.
CITIES = ("san-jose", "a_b", "plain")
INDEX = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.metadata.record.level.index.enable": "true",
    "hoodie.metadata.record.level.index.min.filegroup.count": "2",
    "hoodie.metadata.record.level.index.max.filegroup.count": "3",
    # Java compacts the index every few commits, ours included.
    "hoodie.metadata.compact.max.delta.commits": "3",
    "hoodie.index.type": "RECORD_LEVEL_INDEX",
}
Key = tuple[str, str]


def rows(keys: list[Key], ts: int) -> pa.Table:
    """Rows with these cities and ids; the note tells the version."""
    named = [{"id": key, "city": city, "ts": ts, "note": f"{city}-{key}-{ts}"} for city, key in keys]
    return pa.Table.from_pylist(named, schema=SCHEMA)


def notes(table: pa.Table) -> dict[Key, str]:
    found = {(row["city"], row["id"]): row["note"] for row in table.select(SCHEMA.names).to_pylist()}
    assert len(found) == table.num_rows, "a key is in its partition twice"
    return found


@pytest.mark.parametrize(("table_type", "begins"), [("mor", "ours"), ("cow", "java")])
def test_java_and_we_take_turns_on_one_index_by_partitions(
    table_type: str, begins: str, spark: Any, tmp_path: Path
) -> None:
    chance = random.Random(table_type)
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type=table_type, extra=INDEX
    )
    java = JavaTable(spark, str(tmp_path / "t"), options)
    first = rows([(city, f"k{n}") for city in CITIES[:2] for n in range(10)], 1)
    model = notes(first)
    if begins == "java":
        java.write(first, "upsert")
        ours = tk.Table.open(java.path, engine="local")
    else:
        ours = tk.Table.create(
            java.path, name="t", schema=SCHEMA, key="id", partition_by="city", ordering="ts", table_type=table_type,
            engine="local",
        )  # fmt: skip
        ours.upsert(first)
        ours.create_index("record", options={name: value for name, value in INDEX.items() if "record.level" in name})
    # The first to write to the third partition makes its shards, and the other one finds keys by them. Java's look-up
    # confuses the partitions of a batch where a key is in several: each batch of Java's has one partition.
    for ts in range(2, 5):
        is_java = (ts % 2 == 0) == (begins == "java")
        cities = [CITIES[ts - 2]] if is_java else CITIES
        upserted = rows([(city, f"k{key}") for city in cities for key in chance.sample(range(15), 4)], ts)
        city = chance.choice(CITIES[:2])
        deleted = chance.sample(sorted(key for key in model if key[0] == city), 2)
        (java.write(upserted, "upsert") if is_java else ours.upsert(upserted))
        model |= notes(upserted)
        we_delete = is_java or table_type == "mor"
        (ours.delete(rows(deleted, ts)) if we_delete else java.write(rows(deleted, ts), "delete"))
        for key in deleted:
            del model[key]
        if ts == 3:
            (ours.cluster if table_type == "cow" else ours.compact)()
        assert notes(ours.read()) == model
        assert notes(java.read()) == model
        refuse_wrong_record_index(ours, by_partition=True)
    assert "record_index" in ours.config.metadata_partitions
