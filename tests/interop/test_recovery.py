"""Rollback, savepoints and restore across programs: what one side undid, the other reads, lists and builds on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import open_storage
from tests.support.java_hudi import JavaTable, rust_read
from tests.support.step_faults import Fault, FaultPoint, ProcessDied, StepStorage
from tests.support.table_builder import rows_of, trips

__all__: list[str] = []

FIRST = trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0))
SECOND = trips(("a", "sf", 2, 2.0), ("d", "ny", 2, 2.0))
THIRD = trips(("c", "la", 3, 3.0), ("e", "sf", 3, 3.0))
ROWS_OF_FIRST = [("a", 1.0), ("b", 1.0), ("c", 1.0)]
ROWS_OF_SECOND = [("a", 2.0), ("b", 1.0), ("c", 1.0), ("d", 2.0)]
ROWS_WITHOUT_SECOND = [("a", 1.0), ("b", 1.0), ("c", 3.0), ("e", 3.0)]

TYPES = ["cow", "mor"]


def _java(spark: Any, path: Path, table_type: str) -> JavaTable:
    options = JavaTable.options_for(
        name="trips", key=["id"], partition_by=["city"], ordering="ts", table_type=table_type
    )
    return JavaTable(spark, str(path), options)


def _ours(path: Path) -> tk.Table:
    return tk.Table.open(str(path), engine="local")


def _check(java: JavaTable, path: Path, expected: list[tuple[Any, ...]]) -> None:
    """All programs read these rows, Java also through a filter on statistics; nothing is left to repair."""
    assert rows_of(java.read().select(["id", "fare"])) == expected, "java"
    big = rows_of(java.collect(java.scan().where("fare >= 2.0")).select(["id", "fare"]))
    assert big == [row for row in expected if row[1] >= 2.0], "java with a filter"
    assert rows_of(_rust(path)) == expected, "hudi-rs"
    table = _ours(path)
    assert rows_of(table.read(columns=["id", "fare"])) == expected, "tablekeeper"
    report = table.doctor()
    assert report.is_healthy, report


def _rust(path: Path) -> pa.Table:
    return rust_read(str(path)).select(["id", "fare"])


def _call(java: JavaTable, procedure: str, **arguments: str) -> list[Any]:
    given = ", ".join(f"{name} => '{value}'" for name, value in {"path": java.path, **arguments}.items())
    return java.spark.sql(f"call {procedure}({given})").collect()  # type: ignore[no-any-return]


@pytest.mark.parametrize("table_type", TYPES)
def test_java_reads_and_writes_on_after_we_rolled_its_newest_commit_back(
    table_type: str, spark: Any, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    java = _java(spark, path, table_type)
    java.write(FIRST, "upsert")
    java.write(SECOND, "upsert")
    unwanted = _ours(path).timeline()[-1].requested_at
    result = _ours(path).rollback(unwanted)
    assert result.files
    _check(java, path, ROWS_OF_FIRST)
    java.write(THIRD, "upsert")
    _check(java, path, ROWS_WITHOUT_SECOND)


@pytest.mark.parametrize("table_type", TYPES)
def test_java_finishes_a_rollback_of_ours_that_died_after_the_commit_was_hidden(
    table_type: str, spark: Any, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    java = _java(spark, path, table_type)
    java.write(FIRST, "upsert")
    unwanted = _ours(path).upsert(SECOND)
    storage = open_storage(str(path))
    watched = StepStorage(storage)
    _table(watched).rollback(unwanted.instant, dry_run=True)
    step = len(watched.calls)
    while _is_completed(path, unwanted.instant.value):
        step += 1
        dying = StepStorage(storage, FaultPoint(step, Fault.DEATH_AFTER))
        with suppress(ProcessDied):
            _table(dying).rollback(unwanted.instant)
        (path / ".hoodie" / "lock").unlink(missing_ok=True)
    assert all((path / file).exists() for file in unwanted.files), "it must die before its files are deleted"
    java.write(THIRD, "upsert")
    assert not any((path / file).exists() for file in unwanted.files)
    _check(java, path, ROWS_WITHOUT_SECOND)


@pytest.mark.parametrize("table_type", TYPES)
def test_we_restore_to_a_savepoint_of_ours_and_java_goes_on(table_type: str, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    java = _java(spark, path, table_type)
    java.write(FIRST, "upsert")
    saved = _ours(path).savepoint(comment="ours")
    assert [row[0] for row in _call(java, "show_savepoints")] == [saved.instant.value]
    java.write(SECOND, "upsert")
    if table_type == "mor":
        assert java.compact() == 1
    _ours(path).upsert(THIRD)
    _ours(path).restore(saved)
    _check(java, path, ROWS_OF_FIRST)
    java.write(SECOND, "upsert")
    _check(java, path, ROWS_OF_SECOND)
    _call(java, "delete_savepoint", instant_time=saved.instant.value)
    assert not _ours(path).savepoints()


@pytest.mark.parametrize("table_type", TYPES)
def test_java_restores_to_a_savepoint_past_our_commits(table_type: str, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    java = _java(spark, path, table_type)
    java.write(FIRST, "upsert")
    commit = _ours(path).timeline()[-1].requested_at.value
    _call(java, "create_savepoint", commit_time=commit, user="java", comments="of Java")
    assert [(s.instant.value, s.comment) for s in _ours(path).savepoints()] == [(commit, "of Java")]
    _ours(path).upsert(SECOND)
    _ours(path).upsert(THIRD)
    _call(java, "rollback_to_savepoint", instant_time=commit)
    _check(java, path, ROWS_OF_FIRST)
    _ours(path).upsert(SECOND)
    _check(java, path, ROWS_OF_SECOND)


@pytest.mark.parametrize("table_type", TYPES)
def test_java_restores_to_a_savepoint_of_ours(table_type: str, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    java = _java(spark, path, table_type)
    java.write(FIRST, "upsert")
    saved = _ours(path).savepoint()
    _ours(path).upsert(SECOND)
    java.write(THIRD, "upsert")
    _call(java, "rollback_to_savepoint", instant_time=saved.instant.value)
    _check(java, path, ROWS_OF_FIRST)


@pytest.mark.parametrize("table_type", TYPES)
def test_java_rolls_back_a_completed_commit_of_ours(table_type: str, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    java = _java(spark, path, table_type)
    java.write(FIRST, "upsert")
    unwanted = _ours(path).upsert(SECOND)
    name = f"trips_{table_type}"
    spark.sql(f"create table {name} using hudi location '{path}'")
    try:
        # The one procedure that takes no path.
        spark.sql(f"call rollback_to_instant(table => '{name}', instant_time => '{unwanted.instant}')").collect()
    finally:
        spark.sql(f"drop table {name}")
    assert not any((path / file).exists() for file in unwanted.files)
    _check(java, path, ROWS_OF_FIRST)


def _table(storage: StepStorage) -> tk.Table:
    return tk.Table(storage, LocalEngine(threads=1, runtime=SYSTEM_RUNTIME), Options(None), runtime=SYSTEM_RUNTIME)


def _is_completed(path: Path, instant: str) -> bool:
    return any((path / ".hoodie" / "timeline").glob(f"{instant}_*"))
