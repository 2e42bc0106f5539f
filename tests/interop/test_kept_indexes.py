"""Java's record, secondary and expression indexes over compactions of ours: Java goes on, or we refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.keys import INDEX_DROP
from tablekeeper.errors import UnsupportedFeatureError
from tests.support.java_hudi import JavaTable

__all__: list[str] = []

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("ts", pa.int64()), ("note", pa.string())])
LOCK = "hoodie.write.lock.provider"
RECORD_INDEX = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.metadata.record.index.min.filegroup.count": "1",
    "hoodie.metadata.record.index.max.filegroup.count": "1",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
}


@pytest.fixture
def locking(spark: Any) -> Iterator[None]:
    """`CREATE INDEX` asks for a lock provider."""
    spark.conf.set(LOCK, "org.apache.hudi.client.transaction.lock.InProcessLockProvider")
    yield
    spark.conf.unset(LOCK)


def rows(*numbers: int, city: str, ts: int) -> pa.Table:
    """Rows with these ids; the note tells which version it is."""
    named = [{"id": n, "city": city, "ts": ts, "note": f"{n}-{ts}"} for n in numbers]
    return pa.Table.from_pylist(named, schema=SCHEMA)


def indexed(spark: Any, path: Path, extra: dict[str, str]) -> JavaTable:
    """A merge-on-read table of Java's with these indexes, two rounds of logs and a deleted key."""
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type="mor", extra=extra
    )
    java = JavaTable(spark, str(path), options)
    java.write(pa.concat_tables([rows(*range(10), city="a", ts=1), rows(*range(10, 20), city="b", ts=1)]), "upsert")
    java.write(pa.concat_tables([rows(1, 2, city="a", ts=2), rows(11, 12, city="b", ts=2)]), "upsert")
    java.write(pa.concat_tables([rows(2, 3, city="a", ts=3), rows(12, 13, city="b", ts=3)]), "upsert")
    java.write(rows(4, city="a", ts=4), "delete")
    return java


def partitions_of(java: JavaTable) -> set[str]:
    return set(tk.Table.open(java.path, engine="local").config.metadata_partitions)


def notes(java: JavaTable) -> dict[int, str]:
    """Every row that Java sees, by id; a key that is there twice fails."""
    read = java.read().select(["id", "note"]).to_pylist()
    found = {row["id"]: row["note"] for row in read}
    assert len(found) == len(read), "a key is there twice"
    return found


def expected() -> dict[int, str]:
    times = dict.fromkeys(range(20), 1) | {1: 2, 11: 2} | {2: 3, 3: 3, 12: 3, 13: 3}
    return {n: f"{n}-{ts}" for n, ts in times.items() if n != 4}


@pytest.mark.parametrize("service", ["compact", "log_compact"])
def test_java_upserts_by_its_record_index_after_a_compaction_of_ours(service: str, spark: Any, tmp_path: Path) -> None:
    java = indexed(spark, tmp_path / "t", RECORD_INDEX)
    assert "record_index" in partitions_of(java)
    blocks = {"hoodie.log.compaction.blocks.threshold": "2"} if service == "log_compact" else {}
    done = getattr(tk.Table.open(java.path, engine="local"), service)(options=blocks)
    assert done is not None
    assert done.notes == ()
    assert "record_index" in partitions_of(java)
    assert notes(java) == expected()
    # Known keys, a key that was deleted, new ones, and one that moves: the index has to know where each was.
    java.write(pa.concat_tables([rows(1, 4, 5, 30, city="a", ts=9), rows(13, 6, city="b", ts=9)]), "upsert")
    after = expected() | {n: f"{n}-9" for n in (1, 4, 5, 30, 13, 6)}
    assert notes(java) == after
    assert [row["note"] for row in java.scan().where("id = 13").collect()] == ["13-9"]
    java.compact()
    assert notes(java) == after


@pytest.mark.usefixtures("locking")
def test_a_secondary_index_of_java_finds_rows_after_a_compaction_of_ours(spark: Any, tmp_path: Path) -> None:
    java = indexed(spark, tmp_path / "t", RECORD_INDEX)
    spark.sql(f"create table kept_secondary using hudi location '{java.path}'")
    try:
        spark.sql("create index by_note on kept_secondary (note)")
        assert "secondary_index_by_note" in partitions_of(java)
        done = tk.Table.open(java.path, engine="local").compact()
        assert done is not None
        assert done.notes == ()
        assert {"record_index", "secondary_index_by_note"} <= partitions_of(java)
        skipping = {"hoodie__metadata__enable": "true", "hoodie__enable__data__skipping": "true"}
        found = java.scan(**skipping).where("note in ('2-3', '7-1', '4-1', '2-1')").select("id").collect()
        assert sorted(row["id"] for row in found) == [2, 7]
        java.write(rows(7, city="a", ts=9), "upsert")
        found = java.scan(**skipping).where("note in ('7-9', '7-1')").select("note").collect()
        assert [row["note"] for row in found] == ["7-9"]
    finally:
        spark.sql("drop table kept_secondary")


@pytest.mark.usefixtures("locking")
def test_an_expression_index_of_java_stops_a_compaction(spark: Any, tmp_path: Path) -> None:
    java = indexed(spark, tmp_path / "t", {"hoodie.metadata.enable": "true"})
    spark.sql(f"create table kept_expression using hudi location '{java.path}'")
    try:
        spark.sql(
            "create index by_day on kept_expression using column_stats(ts) "
            "options(expr='from_unixtime', format='yyyy-MM-dd')"
        )
        assert "expr_index_by_day" in partitions_of(java)
        ours = tk.Table.open(java.path, engine="local")
        for service in (ours.compact, ours.log_compact):
            with pytest.raises(UnsupportedFeatureError, match="index expr_index_by_day"):
                service(options={"hoodie.log.compaction.blocks.threshold": "2"})
        assert "expr_index_by_day" in partitions_of(java)
        assert notes(java) == expected()
        done = ours.compact(options={INDEX_DROP: True})
        assert done is not None
        assert any("expr_index_by_day" in note for note in done.notes)
        assert "expr_index_by_day" not in partitions_of(java)
        java.write(rows(2, 31, city="a", ts=10), "upsert")
        assert notes(java) == expected() | {2: "2-10", 31: "31-10"}
    finally:
        spark.sql("drop table kept_expression")
