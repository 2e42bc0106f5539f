"""Our archived timeline read and continued by Java, and Java's by us, with both taking turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tablekeeper as tk
from tablekeeper.format.history import decode_history_name
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY, load_metadata_timeline, metadata_config
from tablekeeper.model import Action
from tablekeeper.storage import open_storage
from tablekeeper.timeline import load_timeline
from tablekeeper.timeline.history import load_history, load_history_snapshot
from tests.support.java_hudi import JavaTable, rust_read
from tests.support.table_builder import TRIPS, rows_of, trips

__all__: list[str] = []

KEEP = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.timeline.compaction.batch.size": "3",
}
JAVA_ARCHIVES = {"hoodie.archive.automatic": "true", **KEEP}
NO_METADATA = {"hoodie.metadata.enable": "false"}
ROW = ("id", "city", "ts", "fare")


def our_table(path: Path, table_type: str) -> tk.Table:
    return tk.Table.create(
        str(path),
        name="trips",
        schema=TRIPS,
        key="id",
        partition_by="city",
        ordering="ts",
        table_type=table_type,
        engine="local",
    )


def java_table(spark: Any, path: Path, table_type: str, extra: dict[str, str] | None = None) -> JavaTable:
    options = JavaTable.options_for(
        name="trips",
        key=["id"],
        partition_by=["city"],
        ordering="ts",
        table_type=table_type,
        extra=NO_METADATA if extra is None else extra,
    )
    return JavaTable(spark, str(path), options)


def write(table: tk.Table, *moments: int) -> list[tk.WriteResult]:
    return [table.upsert(trips((f"k{n % 3}", "sf", n, float(n)))) for n in moments]


def java_history(spark: Any, path: Path) -> list[tuple[str, str, str, bytes]]:
    """Requested time, action, completion time and metadata of every instant that Java finds archived."""
    jvm = spark._jvm
    conf = jvm.org.apache.hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
    builder = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
    timeline = builder.setConf(conf).setBasePath(str(path)).build().getArchivedTimeline()
    timeline.loadCompletedInstantDetailsInMemory()
    found = []
    for instant in timeline.getInstants():
        details = timeline.getInstantDetails(instant)
        content = bytes(details.get()) if details.isPresent() else b""
        found.append((instant.requestedTime(), instant.getAction(), instant.getCompletionTime(), content))
    return found


def our_history(path: Path, *, of_metadata_table: bool = False) -> list[tuple[str, str, str, bytes]]:
    config = tk.Table.open(str(path), engine="local").config
    chosen = metadata_config(config) if of_metadata_table else config
    return [
        (i.requested_at.value, i.action.value, str(i.completed_at), each.metadata or b"")
        for each in load_history(open_storage(str(path)), chosen)
        for i in [each.instant]
    ]


def active_commits(path: Path) -> list[str]:
    config = tk.Table.open(str(path), engine="local").config
    return [i.requested_at.value for i in load_timeline(open_storage(str(path)), config).completed_writes]


def check_rows(path: Path, java: JavaTable, expected: list[tuple[Any, ...]]) -> None:
    assert rows_of(java.read(), *ROW) == expected
    assert rows_of(rust_read(str(path)), *ROW) == expected
    assert rows_of(tk.Table.open(str(path), engine="local").read(), *ROW) == expected


def test_java_reads_the_history_that_we_wrote_and_answers_about_archived_moments(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = our_table(path, "mor")
    results = write(table, *range(5))
    assert table.compact() is not None
    results += write(table, *range(5, 10))
    rows = rows_of(table.read(), *ROW)
    moments = [rows_of(table.read(as_of=results[n].instant), *ROW) for n in (2, 6)]
    changes = rows_of(table.changes(since=results[3].completed_at), *ROW)
    archived = table.archive(options={**KEEP, "tablekeeper.archive.keep.last.plans": "false"})
    assert [i.action for i in archived.instants].count(Action.COMMIT) == 1
    assert len(archived.instants) == 9

    java = java_table(spark, path, "mor")
    assert java_history(spark, path) == our_history(path)
    check_rows(path, java, rows)
    assert [rows_of(java.read_as_of(str(results[n].instant)), *ROW) for n in (2, 6)] == moments
    assert rows_of(java.changes(since=str(results[3].completed_at)), *ROW) == changes
    # This procedure knows tables by name only.
    spark.sql(f"create table archived_by_us using hudi location '{path}'")
    until = active_commits(path)[-1]
    window = f"table => 'archived_by_us', limit => 100, start_ts => '20000101000000000', end_ts => '{until}'"
    shown = spark.sql(f"call show_archived_commits({window})").collect()
    spark.sql("drop table archived_by_us")
    assert {row[0] for row in shown} == {i.requested_at.value for i in archived.instants}


def test_java_and_we_take_turns_in_archiving_and_merging(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = our_table(path, "mor")
    java = java_table(spark, path, "mor")
    written: list[str] = []
    moments = iter(range(100))
    layers: set[int] = set()
    for _ in range(3):
        written += [str(result.instant) for result in write(table, *(next(moments) for _ in range(3)))]
        table.archive(options=KEEP)
        for _ in range(2):
            moment = next(moments)
            java.write(trips((f"k{moment % 3}", "sf", moment, float(moment))), "upsert", **JAVA_ARCHIVES)
            written.append(active_commits(path)[-1])
        history = java_history(spark, path)
        assert history == our_history(path)
        names = [i[0] for i in history if i[1] in ("commit", "deltacommit")]
        assert [*names, *active_commits(path)] == written
        snapshot = load_history_snapshot(open_storage(str(path)), table.config.history_directory)
        layers |= {name.layer for file in snapshot.files if (name := decode_history_name(file.name))}
    assert layers >= {0, 1}
    last = max(int(row[2]) for row in rows_of(table.read(), *ROW))
    check_rows(
        path, java, [(f"k{n % 3}", "sf", n, float(n)) for n in sorted(range(last - 2, last + 1), key=lambda n: n % 3)]
    )
    assert rows_of(java.changes(since="000"), *ROW) == rows_of(table.changes(), *ROW)


def test_replaced_files_that_java_cleaned_stay_hidden_after_we_archived(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = our_table(path, "cow")
    java = java_table(spark, path, "cow")
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    java.write(trips(("c", "sf", 2, 2.0)), "insert_overwrite")
    write(table, 3, 4, 5)
    assert len(table.archive(options=KEEP).instants) == 1
    assert "no clean has removed" in table.archive(options=KEEP).reason
    java.clean(retain=1)
    write(table, 6)
    archived = table.archive(options=KEEP)
    assert Action.REPLACE_COMMIT in {i.action for i in archived.instants}
    assert java_history(spark, path) == our_history(path)
    expected = [
        ("b", "la", 1, 1.0),
        ("c", "sf", 2, 2.0),
        ("k0", "sf", 6, 6.0),
        ("k1", "sf", 4, 4.0),
        ("k2", "sf", 5, 5.0),
    ]
    check_rows(path, java, expected)


def test_with_a_metadata_table_both_timelines_are_archived_and_java_goes_on(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    java = java_table(spark, path, "cow", {"hoodie.metadata.enable": "true"})
    java.write(trips(("k0", "sf", 0, 0.0)), "upsert", mode="overwrite")
    table = tk.Table.open(str(path), engine="local")
    write(table, 1, 2, 3)
    assert "the metadata table was never compacted" in table.archive(options=KEEP).reason
    java.write(trips(("k1", "sf", 4, 4.0)), "upsert", **{"hoodie.metadata.compact.max.delta.commits": "2"})
    write(table, 5)
    write(table, 6)
    rows = rows_of(table.read(), *ROW)
    result = table.archive(options={**KEEP, "hoodie.metadata.compact.max.delta.commits": "1"})
    assert len(result.instants) >= 3
    assert len(result.metadata_instants) >= 3
    metadata_path = path / METADATA_DIRECTORY
    assert java_history(spark, path) == our_history(path)
    assert java_history(spark, metadata_path) == our_history(path, of_metadata_table=True)
    check_rows(path, java, rows)
    java.write(trips(("k1", "sf", 7, 7.0)), "upsert", **JAVA_ARCHIVES)
    write(table, 8)
    expected = [("k0", "sf", 6, 6.0), ("k1", "sf", 7, 7.0), ("k2", "sf", 8, 8.0)]
    check_rows(path, java, expected)
    assert java_history(spark, path) == our_history(path)
    assert not load_metadata_timeline(open_storage(str(path)), table.config).pending
