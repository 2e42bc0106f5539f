"""One record index, kept in step by Java and by us in turns: each finds every key by it, and no key is there twice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tablekeeper as tk
from tests.support.java_hudi import JavaTable
from tests.support.record_index_content import refuse_wrong_record_index

__all__: list[str] = []

SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("note", pa.string())])
CITIES = ("a", "b")
INDEX = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": "2",
    "hoodie.metadata.record.index.max.filegroup.count": "2",
    # Java compacts the record index every few commits, ours included.
    "hoodie.metadata.compact.max.delta.commits": "3",
    "hoodie.index.type": "RECORD_INDEX",
}


def rows(keys: dict[str, str], ts: int) -> pa.Table:
    """Keys with their cities; the note tells the version."""
    named = [{"id": key, "city": city, "ts": ts, "note": f"{key}-{ts}"} for key, city in keys.items()]
    return pa.Table.from_pylist(named, schema=SCHEMA)


def notes(table: pa.Table) -> dict[str, str]:
    found = {row["id"]: row["note"] for row in table.select(["id", "note"]).to_pylist()}
    assert len(found) == table.num_rows, "a key is there twice"
    return found


@pytest.mark.parametrize(("table_type", "seed"), [("cow", 1), ("mor", 2)])
def test_java_and_we_take_turns_on_one_record_index(table_type: str, seed: int, spark: Any, tmp_path: Path) -> None:
    chance = random.Random(seed)
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type=table_type, extra=INDEX
    )
    java = JavaTable(spark, str(tmp_path / "t"), options)
    homes = {f"k{n}": CITIES[n % 2] for n in range(30)}
    first = rows(homes, 1)
    model = notes(first)
    if seed % 2:
        java.write(first, "upsert")
        ours = tk.Table.open(java.path, engine="local")
    else:
        ours = tk.Table.create(
            java.path,
            name="t",
            schema=SCHEMA,
            key="id",
            partition_by="city",
            ordering="ts",
            table_type=table_type,
            engine="local",
        )
        ours.upsert(first)
        ours.create_index("record", options={k: v for k, v in INDEX.items() if "filegroup" in k})
    for ts in range(2, 5):
        # Some name another partition than the one that has their key: the index finds them all the same.
        written = {f"k{n}": chance.choice(CITIES) for n in chance.sample(range(45), 8)}
        deleted = {key: chance.choice(CITIES) for key in chance.sample(sorted(model), 3)}
        upserted = rows(written, ts)
        model |= notes(upserted)
        if ts % 2:
            java.write(upserted, "upsert")
        else:
            ours.upsert(upserted)
        if chance.randrange(2):
            java.write(rows(deleted, ts), "delete")
        else:
            ours.delete(rows(deleted, ts))
        for key in deleted:
            del model[key]
        if ts == 3:
            (ours.cluster if table_type == "cow" else ours.compact)()
        assert notes(ours.read()) == model
        assert notes(java.read()) == model
        refuse_wrong_record_index(ours)
    assert "record_index" in ours.config.metadata_partitions


def test_java_finds_keys_in_a_shard_whose_index_has_two_levels(spark: Any, tmp_path: Path) -> None:
    # Long keys fill many blocks with few rows.
    ids = [f"{number:0200d}" for number in range(70_000)]
    ours = tk.Table.create(
        str(tmp_path / "t"), name="t", schema=SCHEMA, key="id", partition_by="city", ordering="ts", table_type="cow",
        engine="local",
    )  # fmt: skip
    homes = [CITIES[number % 2] for number in range(len(ids))]
    ours.bulk_insert(pa.table([ids, homes, pa.array([1] * len(ids)), ["first"] * len(ids)], schema=SCHEMA))
    ours.create_index("record", options={"hoodie.metadata.record.index.min.filegroup.count": "1"})
    (base,) = (tmp_path / "t" / ".hoodie" / "metadata" / "record_index").glob("*.hfile")
    assert b"IDXLEAF2" in base.read_bytes()
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type="cow", extra=INDEX
    )
    # All name one partition, whichever has their key; the last is new.
    changed = [*ids[::1_733], ids[-1], "new"]
    JavaTable(spark, str(tmp_path / "t"), options).write(rows(dict.fromkeys(changed, CITIES[0]), 2), "upsert")
    read = ours.read(columns=["id", "ts"])
    assert sorted(read.filter(pc.equal(read["ts"], 2))["id"].to_pylist()) == sorted(changed)
    assert read.num_rows == len(ids) + 1
    ours.upsert(rows({ids[7]: CITIES[0], "new": CITIES[1]}, 3))
    assert ours.read(columns=["id"]).num_rows == len(ids) + 1
    refuse_wrong_record_index(ours)
