"""A secondary index kept in step by Java and by us in turns: Java finds rows by it, whoever changed them last.

There is one in each table: where Java 1.2.0 makes a second one right after the first, it stays empty.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tests.support.java_hudi import JavaTable
from tests.support.record_index_content import refuse_wrong_record_index
from tests.support.secondary_index_content import refuse_wrong_secondary_index

__all__: list[str] = []

SCHEMA = pa.schema(
    [("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("note", pa.string()), ("size", pa.int32())]
)
CITIES = ("a", "b")
# With texts that have to be escaped.
NOTES = ("red", "green", "a$b", "back\\slash", "", None)
LOCK = "hoodie.write.lock.provider"
# Java 1.2.0 fails to compact a metadata table with a secondary index beside partition statistics.
INDEXES = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.metadata.index.partition.stats.enable": "false",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": "2",
    "hoodie.metadata.record.index.max.filegroup.count": "2",
    "hoodie.index.type": "RECORD_INDEX",
}
SKIPPING = {"hoodie__metadata__enable": "true", "hoodie__enable__data__skipping": "true"}

Row = tuple[str, int, str | None, int]
"""City, time, note and size of a key."""


@pytest.fixture
def locking(spark: Any) -> Iterator[None]:
    """`CREATE INDEX` asks for a lock provider."""
    spark.conf.set(LOCK, "org.apache.hudi.client.transaction.lock.InProcessLockProvider")
    yield
    spark.conf.unset(LOCK)


def table_of(rows: dict[str, Row]) -> pa.Table:
    named = [
        {"id": key, "city": city, "ts": ts, "note": note, "size": size} for key, (city, ts, note, size) in rows.items()
    ]
    return pa.Table.from_pylist(named, schema=SCHEMA)


def drawn(chance: random.Random, keys: list[str], ts: int) -> dict[str, Row]:
    return {key: (CITIES[int(key[1:]) % 2], ts, chance.choice(NOTES), chance.randrange(-3, 3)) for key in keys}


@pytest.mark.usefixtures("locking")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("table_type", "column", "seed"), [("cow", "note", 1), ("mor", "size", 2)])
def test_java_and_we_take_turns_on_a_secondary_index(
    table_type: str, column: str, seed: int, spark: Any, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type=table_type, extra=INDEXES
    )
    java = JavaTable(spark, str(tmp_path / "t"), options)
    model = drawn(chance, [f"k{n}" for n in range(24)], 1)
    java.write(table_of(model), "upsert")
    name = f"turns_{table_type}_{column}"
    spark.sql(f"create table {name} using hudi location '{java.path}'")
    try:
        spark.sql(f"create index by_it on {name} ({column})")
    finally:
        spark.sql(f"drop table {name}")
    ours = tk.Table.open(java.path, engine="local")
    for ts in range(2, 5):
        written = drawn(chance, chance.sample([f"k{n}" for n in range(34)], 8), ts)
        gone = {key: model[key] for key in chance.sample(sorted(model.keys() - written), 2)}
        model |= written
        model = {key: row for key, row in model.items() if key not in gone}
        if ts % 2:
            java.write(table_of(written), "upsert")
            ours.delete(table_of(gone))
        else:
            ours.upsert(table_of(written))
            java.write(table_of(gone), "delete")
        if ts == 3:
            ours.cluster()
            if table_type == "mor":
                ours.compact()
        refuse_wrong_record_index(ours)
        refuse_wrong_secondary_index(ours, "secondary_index_by_it", column)
        note, size = chance.choice(["red", "a$b", "back\\slash"]), chance.randrange(-3, 3)
        wanted = {"note": f"note = '{note.replace(chr(92), chr(92) * 2)}'", "size": f"size = {size}"}[column]
        found = sorted(row["id"] for row in java.scan(**SKIPPING).where(wanted).collect())
        held = {"note": {k for k, row in model.items() if row[2] == note}}
        held["size"] = {k for k, row in model.items() if row[3] == size}
        assert found == sorted(held[column])
    assert {"record_index", "secondary_index_by_it"} <= set(ours.config.metadata_partitions)
