"""Corners that random histories do not reach: each one a small table, told in a few lines, read by everyone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tests.interop.peers import ENGINES, our_rows
from tests.support.java_hudi import JavaTable, rust_read
from tests.support.rows import describe_difference, exact_rows

__all__: list[str] = []

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
NO_METADATA = {"hoodie.metadata.enable": "false"}
both_types = pytest.mark.parametrize("table_type", ["cow", "mor"])


def rows(*values: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, each, strict=True)) for each in values], schema=schema)


@dataclass(frozen=True)
class Corner:
    """One table, as tablekeeper's local engine and as Java hold it."""

    spark: Any
    path: Path
    ours: tk.Table
    java: JavaTable

    def agree(self) -> list[dict[str, Any]]:
        """Our local rows, after everyone else has been found to read the same ones."""
        mine = self.ours.read()
        others = {
            "java": self.java.read(),
            "hudi-rs": rust_read(str(self.path)),
            "spark": our_rows(self.spark, self.path, engine="spark"),
        }
        for who, theirs in others.items():
            if mine.num_rows or theirs.num_rows:
                columns = sorted(mine.column_names)
                wanted, found = exact_rows(mine, columns), exact_rows(theirs, columns)
                assert not describe_difference(expected=wanted, actual=found), who
        return sorted(mine.to_pylist(), key=lambda row: str(row["id"]))


def corner(
    spark: Any,
    path: Path,
    table_type: str,
    *,
    schema: pa.Schema = SCHEMA,
    ordering: str | None = None,
    partition_by: Sequence[str] = (),
    **options: str,
) -> Corner:
    """A new table of ours, without a commit; `__` in option names stands for a dot."""
    ours = tk.Table.create(
        str(path),
        name="corner",
        schema=schema,
        key="id",
        ordering=ordering,
        partition_by=list(partition_by) or None,
        table_type=table_type,
        engine="local",
        options=NO_METADATA,
    )
    extra = {**NO_METADATA, **{name.replace("__", "."): value for name, value in options.items()}}
    if ordering is None:
        extra["hoodie.record.merge.mode"] = "COMMIT_TIME_ORDERING"
    told = JavaTable.options_for(
        name="corner", key=["id"], partition_by=partition_by, ordering=ordering, table_type=table_type, extra=extra
    )
    return Corner(spark, path, ours, JavaTable(spark, str(path), told))


@both_types
def test_java_makes_the_first_commit_of_a_table_that_we_created(table_type: str, spark: Any, tmp_path: Path) -> None:
    it = corner(spark, tmp_path / "t", table_type)
    it.java.write(rows(("1", "a", 5), ("3", "b", 3)), "upsert")
    it.ours.upsert(rows(("1", "z", 6)))
    assert [row["p"] for row in it.agree()] == ["z", "b"]


@both_types
def test_columns_added_and_widened_by_us_read_the_same_everywhere(table_type: str, spark: Any, tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.string()), ("v", pa.int32()), ("f", pa.float32())])
    wide = pa.schema([("id", pa.string()), ("v", pa.int64()), ("f", pa.float64()), ("n", pa.string())])
    it = corner(spark, tmp_path / "t", table_type, schema=narrow)
    it.ours.upsert(rows(("1", 1, 0.1), ("2", 2, 0.2), ("3", 3, 0.3), schema=narrow))
    it.ours.upsert(rows(("2", 2**40, 0.1, "new"), schema=wide))
    read = it.agree()
    assert [row["n"] for row in read] == [None, "new", None]
    assert [row["f"] for row in read] == [0.1, 0.1, 0.3]
    it.java.write(rows(("1", 5, 2.5, "java"), schema=wide), "upsert")
    assert [row["n"] for row in it.agree()] == ["java", "new", None]


TOMBSTONES = pa.schema([*SCHEMA, ("_hoodie_is_deleted", pa.bool_())])


# Ordering values of versions of one row; `dead` ones say that they are deleted, and `dead-` has no value.
DELETED_BY_KEY = ["5 delete 1", "5 9 delete 1", "5 delete delete dead1", "5 1 delete dead1", "5 dead9 delete 1"]
DELETED_BY_KEY += ["5 delete dead1 9", "5 delete 5"]
DELETED_BY_ROWS = ["5 dead9 5", "5 dead1 9", "5 dead- 1", "5 dead- 7"]


@both_types
@pytest.mark.parametrize("story", DELETED_BY_KEY + DELETED_BY_ROWS)
def test_deletes_and_revivals_merge_as_java_merges_them(
    story: str, table_type: str, spark: Any, tmp_path: Path
) -> None:
    it = corner(spark, tmp_path / "t", table_type, schema=TOMBSTONES, ordering="v")
    it.ours.upsert(rows(("other", "o", 1, False), schema=TOMBSTONES))
    for word in story.split():
        if word == "delete":
            it.ours.delete(rows(("k", "", 0, False), schema=TOMBSTONES))
        else:
            deleted, digits = word.startswith("dead"), word.removeprefix("dead")
            moment = int(digits) if digits != "-" else None
            it.ours.upsert(rows(("k", word, moment, deleted), schema=TOMBSTONES))
    assert {"other"} <= {row["id"] for row in it.agree()} <= {"other", "k"}


@pytest.mark.parametrize("operation", ["bulk_insert", "insert", "insert_overwrite", "insert_overwrite_table"])
@both_types
def test_rows_marked_as_deleted_are_stored_or_left_out_as_java_does_it(
    table_type: str, operation: str, spark: Any, tmp_path: Path
) -> None:
    given = [("a", "sf", 2, True), ("d", "sf", 1, False), ("e", "la", 1, True)]
    left = []
    for who in ("ours", "java"):
        it = corner(spark, tmp_path / who, table_type, schema=TOMBSTONES, ordering="v", partition_by=["p"])
        it.ours.upsert(
            rows(*[(key, p, 1, False) for key, p in (("a", "sf"), ("b", "la"), ("c", "ny"))], schema=TOMBSTONES)
        )
        if who == "ours":
            getattr(it.ours, operation)(rows(*given, schema=TOMBSTONES))
        else:
            it.java.write(rows(*given, schema=TOMBSTONES), operation)
        left.append(sorted((row["id"], row["_hoodie_is_deleted"]) for row in it.agree()))
    assert left[0] == left[1]


@both_types
def test_a_field_that_partitions_by_time_is_text_in_every_reader_of_spark(
    table_type: str, spark: Any, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.string()), ("v", pa.int64()), ("at", pa.int64())])
    times = {
        "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
        "hoodie.keygen.timebased.output.dateformat": "yyyy-MM-dd",
    }
    ours = tk.Table.create(
        str(tmp_path / "t"),
        name="corner",
        schema=schema,
        key="id",
        partition_by="at",
        table_type=table_type,
        engine="local",
        options={**NO_METADATA, **times, "hoodie.table.keygenerator.type": "TIMESTAMP"},
    )
    ours.upsert(rows(("1", 1, 1709528767008), ("2", 2, 1709528767008), schema=schema))
    ours.upsert(rows(("2", 3, 1709528767999), schema=schema))
    java = JavaTable(spark, str(tmp_path / "t"), NO_METADATA)
    assert dict(java.scan().dtypes)["at"] == "string"
    assert ours.schema.field("at").type == pa.string()
    expected = [("1", 1, "1709528767008"), ("2", 3, "1709528767999")]
    for found in (ours.read(), java.read(), our_rows(spark, tmp_path / "t", engine="spark")):
        assert sorted(tuple(row[name] for name in schema.names) for row in found.to_pylist()) == expected


@both_types
def test_file_groups_without_rows_are_read_and_filled_again(table_type: str, spark: Any, tmp_path: Path) -> None:
    it = corner(spark, tmp_path / "t", table_type, partition_by=["p"])
    it.ours.upsert(rows(("1", "a", 1), ("2", "b", 2)))
    it.ours.delete(rows(("1", "a", 1), ("2", "b", 2)))
    assert it.agree() == []
    it.java.write(rows(("1", "a", 5), ("3", "b", 3)), "upsert")
    assert [row["v"] for row in it.agree()] == [5, 3]


@both_types
def test_millisecond_timestamps_are_read_by_everyone(table_type: str, spark: Any, tmp_path: Path) -> None:
    kind = pa.timestamp("ms", tz="UTC")
    schema = pa.schema([("id", pa.string()), ("at", kind)])
    it = corner(spark, tmp_path / "t", table_type, schema=schema)
    moment = dt.datetime(2024, 3, 4, 5, 6, 7, 8000, tzinfo=dt.UTC)
    it.ours.upsert(rows(("1", moment), ("2", None), schema=schema))
    it.ours.upsert(rows(("2", moment), schema=schema))
    assert [row["at"] for row in it.agree()] == [moment, moment]


@both_types
def test_the_bloom_index_of_java_finds_every_key_that_we_wrote(table_type: str, spark: Any, tmp_path: Path) -> None:
    it = corner(spark, tmp_path / "t", table_type, ordering="v", hoodie__index__type="BLOOM")
    it.ours.upsert(rows(*[(f"k{i:03d}", "ours", 1) for i in range(500)]))
    it.java.write(rows(*[(f"k{i:03d}", "java", 2) for i in range(0, 600, 3)]), "upsert")
    expected = ["java" if i % 3 == 0 else "ours" for i in range(600) if i < 500 or i % 3 == 0]
    assert [row["p"] for row in it.agree()] == expected


def test_writes_beside_a_pending_compaction_of_java_survive_it(spark: Any, tmp_path: Path) -> None:
    it = corner(spark, tmp_path / "t", "mor", ordering="v")
    it.ours.upsert(rows(*[(f"k{i}", "a", 1) for i in range(9)]))
    it.ours.upsert(rows(*[(f"k{i}", "b", 2) for i in range(5)]))
    it.java.schedule_compaction()
    it.ours.upsert(rows(*[(f"k{i}", "c", 3) for i in range(3, 8)], ("new", "n", 1)))
    it.ours.delete(rows(("k0", "b", 2)))
    expected = ["b", "b", "c", "c", "c", "c", "c", "a", "n"]
    assert [row["p"] for row in it.agree()] == expected
    assert it.java.run_compaction() == 1
    assert [row["p"] for row in it.agree()] == expected
    it.ours.upsert(rows(("k1", "z", 9)))
    assert [row["p"] for row in it.agree()] == ["z", *expected[1:]]


@both_types
def test_a_file_group_in_a_pending_clustering_of_java_is_left_alone(
    table_type: str, spark: Any, tmp_path: Path
) -> None:
    it = corner(spark, tmp_path / "t", table_type, ordering="v", partition_by=["p"])
    it.ours.upsert(rows(*[(f"k{i}", "a", 1) for i in range(9)]))
    it.java.schedule_clustering(order="v")
    with pytest.raises(tk.ConflictError):
        it.ours.upsert(rows(("k1", "a", 9)))
    it.ours.upsert(rows(("k1", "b", 9)))
    assert len(it.agree()) == 10
    assert it.java.run_clustering(order="v")
    assert len(it.agree()) == 10


@both_types
def test_every_window_of_changes_is_the_one_of_java(table_type: str, spark: Any, tmp_path: Path) -> None:
    it = corner(spark, tmp_path / "t", table_type, ordering="v", partition_by=["p"])
    it.ours.upsert(rows(("1", "a", 1), ("2", "b", 2), ("3", "a", 1)))
    it.java.write(rows(("1", "a", 4), ("4", "b", 1)), "upsert")
    it.ours.delete(rows(("2", "b", 0)))
    it.ours.upsert(rows(("3", "a", 9), ("7", "c", 1)))
    it.ours.insert_overwrite(rows(("8", "b", 1)))
    it.java.write(rows(("8", "b", 3)), "upsert")
    times = [instant.completed_at.value for instant in it.ours.timeline().instants if instant.completed_at is not None]
    assert len(times) == 6
    for since, until in combinations([None, *times], 2):
        expected = exact_rows(it.java.changes(since=since or "000", until=until), SCHEMA.names)
        for engine in ENGINES:
            actual = exact_rows(our_rows(spark, it.path, engine=engine, since=since, until=until), SCHEMA.names)
            assert not describe_difference(expected=expected, actual=actual), (engine, since, until)


@both_types
def test_we_go_on_after_java_has_archived_and_cleaned(table_type: str, spark: Any, tmp_path: Path) -> None:
    housekeeping = {
        "hoodie__archive__automatic": "true",
        "hoodie__keep__min__commits": "3",
        "hoodie__keep__max__commits": "4",
        "hoodie__clean__automatic": "true",
        "hoodie__clean__commits__retained": "1",
    }
    it = corner(spark, tmp_path / "t", table_type, ordering="v", **housekeeping)
    for i in range(4):
        it.ours.upsert(rows((f"k{i}", "a", i), ("k0", "x", i)))
    for i in range(4):
        it.java.write(rows((f"j{i}", "a", i), ("k0", "y", 10 + i)), "upsert")
        it.ours.upsert(rows((f"m{i}", "a", i)))
    assert list((it.path / ".hoodie" / "timeline" / "history").glob("*.parquet"))
    assert [row["id"] for row in it.agree()] == sorted([f"{kind}{i}" for kind in "jkm" for i in range(4)])
