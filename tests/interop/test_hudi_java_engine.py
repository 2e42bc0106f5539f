"""The engine `hudi-java` of the management service: Java executes plans and makes its own, on tables of either side.

One test goes through spark-submit; the others call what runs inside of the job, in a session of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.engines.java_services import execute_in_java
from tablekeeper.server.engines.process import EngineContext
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.engines.registry import Engines
from tablekeeper.server.model import AttemptOutcome, RunParameters, ServiceAction
from tablekeeper.storage.open import open_storage
from tablekeeper.txn.heartbeat import HeartbeatSettings, start_heartbeat
from tests.support.java_hudi import JavaTable, bundle_jar, rust_read
from tests.support.table_builder import TableBuilder, rows_of, trips

TIMEOUT_S = 280.0
ROWS = [("a", 3.0), ("b", 1.0)]
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("ts", pa.int64()), ("note", pa.string())])
RECORD_INDEX = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
}
BLOOM_FILTERS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.index.bloom.filter.file.group.count": "1",
}
LOCK = "hoodie.write.lock.provider"

Execute = Callable[..., JobReport]


@pytest.fixture
def table(tmp_path: Path) -> tk.Table:
    made = TableBuilder().create(str(tmp_path / "t"), table_type="mor")
    made.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    for ts in (2, 3):
        made.upsert(trips(("a", "sf", ts, float(ts))))
    return made


def a_job(folder: Path, action: ServiceAction, instant: str | None = None, **planning: Any) -> Job:
    return Job(
        operation_id=1,
        number=1,
        base_path=str(folder / "t"),
        action=action,
        instant=instant,
        log_path=str(folder / "1-1.log"),
        result_path=str(folder / "1-1.json"),
        time_limit_s=TIMEOUT_S,
        parameters=RunParameters("spark:1g,1g", 2),
        planning=planning,
    )


@pytest.fixture
def execute(spark: Any, tmp_path: Path) -> Iterator[Execute]:
    """What a job of the engine does, in a session that knows no settings of other tests."""
    session = spark.newSession()
    told: list[str] = []

    def run(action: ServiceAction, instant: str | None = None, **planning: Any) -> JobReport:
        job = a_job(tmp_path, action, instant, **planning)
        return execute_in_java(session, job, told.append, runtime=SYSTEM_RUNTIME)

    yield run
    session.sql("drop table if exists tablekeeper_job")


def test_java_executes_the_plan_that_a_job_names_and_no_other(table: tk.Table, tmp_path: Path) -> None:
    options = {"hudi_bundle": str(bundle_jar()), "hudi_python": sys.executable, "hudi_master": "local[1]"}
    context = EngineContext(tmp_path / "service", SYSTEM_RUNTIME, master="spark://another:7077", options=options)
    engine = Engines(context, "hudi-java").find("hudi-java")
    plan = table.schedule_compaction()
    assert plan is not None
    job = a_job(tmp_path, ServiceAction.COMPACTION, plan.instant.value)
    job_id = engine.start(job)
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while (report := engine.poll(job_id, job)).state is JobState.RUNNING:
        assert clock.monotonic_s() < until_s, load_log_tail(job.log_path)
        clock.sleep(0.2)
    assert report.outcome is AttemptOutcome.COMPLETED, report.message + load_log_tail(job.log_path)
    assert report.plan == plan.instant.value
    assert "call run_compaction(" in load_log_tail(job.log_path)
    commits = [i.requested_at for i in table.timeline() if i.action.value in ("commit", "compaction")]
    assert commits == [plan.instant]
    assert [len(each.logs) for each in table.files()] == [0, 0]
    assert rows_of(table.read(), "id", "fare") == rows_of(rust_read(str(tmp_path / "t")), "id", "fare") == ROWS


def test_java_plans_and_executes_services_of_a_table_of_ours(execute: Execute, table: tk.Table) -> None:
    compacted = execute(ServiceAction.COMPACTION)
    assert compacted.outcome is AttemptOutcome.COMPLETED
    clustered = execute(ServiceAction.CLUSTERING, order_by=["fare"], strategy="sort")
    assert clustered.outcome is AttemptOutcome.COMPLETED
    completed = {i.requested_at.value: i.action.value for i in table.timeline() if i.is_completed}
    assert completed[str(compacted.plan)] == "commit"
    assert completed[str(clustered.plan)] == "replacecommit"
    for ts in (4, 5):
        table.upsert(trips(("a", "sf", ts, 3.0)))
        assert execute(ServiceAction.COMPACTION).outcome is AttemptOutcome.COMPLETED
    assert execute(ServiceAction.CLEAN, keep_commits=1).outcome is AttemptOutcome.COMPLETED
    assert "clean" in [i.action.value for i in table.timeline() if i.is_completed]
    assert execute(ServiceAction.CLEAN, keep_commits=1).outcome is AttemptOutcome.NOTHING_TO_DO
    assert execute(ServiceAction.COMPACTION).outcome is AttemptOutcome.NOTHING_TO_DO
    assert rows_of(table.read(), "id", "fare") == ROWS
    assert not list((Path(table.path.removeprefix("file://")) / ".hoodie/.heartbeat").glob("*"))


def test_java_leaves_alone_what_another_process_holds(execute: Execute, table: tk.Table) -> None:
    storage = open_storage(table.path, options=None, runtime=SYSTEM_RUNTIME)
    for action, plan in (
        (ServiceAction.COMPACTION, table.schedule_compaction()),
        (ServiceAction.CLUSTERING, table.schedule_clustering()),
    ):
        assert plan is not None
        with start_heartbeat(storage, plan.instant, settings=HeartbeatSettings(), runtime=SYSTEM_RUNTIME):
            assert execute(action, plan.instant.value).outcome is AttemptOutcome.ELSEWHERE
        assert [each.state for each in table.plans() if each.instant == plan.instant] == ["requested"]
        assert execute(action, plan.instant.value).outcome is AttemptOutcome.COMPLETED
        # Once more, by an attempt that did not hear of the first one's end.
        assert execute(action, plan.instant.value).outcome is AttemptOutcome.COMPLETED
    assert rows_of(table.read(), "id", "fare") == ROWS


def test_java_is_not_given_plans_that_may_have_to_yield(execute: Execute, table: tk.Table) -> None:
    plan = table.schedule_clustering(cancellable=True)
    assert plan is not None
    with pytest.raises(UnsupportedFeatureError, match="cancelled"):
        execute(ServiceAction.CLUSTERING, plan.instant.value)
    table.cancel(plan)
    assert execute(ServiceAction.CLUSTERING, plan.instant.value).outcome is AttemptOutcome.GONE


def test_java_is_not_asked_for_what_it_has_no_procedure_for(execute: Execute, table: tk.Table) -> None:
    with pytest.raises(UnsupportedFeatureError, match="another engine"):
        execute(ServiceAction.LOG_COMPACTION)


def test_a_plan_that_java_could_not_execute_has_failed_and_is_still_there(execute: Execute, table: tk.Table) -> None:
    plan = table.schedule_compaction()
    assert plan is not None
    for log in Path(table.path.removeprefix("file://")).rglob(".*.log.*"):
        log.unlink()
    report = execute(ServiceAction.COMPACTION, plan.instant.value)
    assert report.outcome is AttemptOutcome.FAILED
    assert report.message.startswith("Java: ")
    assert [each.instant for each in table.plans()] == [plan.instant]


def rows(*numbers: int, city: str, ts: int) -> pa.Table:
    named = [{"id": n, "city": city, "ts": ts, "note": f"{n}-{ts}"} for n in numbers]
    return pa.Table.from_pylist(named, schema=SCHEMA)


def indexed(spark: Any, path: Path, extra: dict[str, str]) -> JavaTable:
    """A merge-on-read table of Java's with these indexes, and two rounds of logs."""
    options = JavaTable.options_for(
        name="t", key=["id"], partition_by=["city"], ordering="ts", table_type="mor", extra=extra
    )
    java = JavaTable(spark, str(path), options)
    java.write(pa.concat_tables([rows(*range(10), city="a", ts=1), rows(*range(10, 20), city="b", ts=1)]), "upsert")
    java.write(pa.concat_tables([rows(1, 2, city="a", ts=2), rows(11, 12, city="b", ts=2)]), "upsert")
    java.write(pa.concat_tables([rows(2, 3, city="a", ts=3), rows(12, 13, city="b", ts=3)]), "upsert")
    return java


def notes(java: JavaTable) -> dict[int, str]:
    read = java.read().select(["id", "note"]).to_pylist()
    found = {row["id"]: row["note"] for row in read}
    assert len(found) == len(read), "a key is there twice"
    return found


EXPECTED = {
    n: f"{n}-{ts}" for n, ts in (dict.fromkeys(range(20), 1) | {1: 2, 11: 2} | {2: 3, 3: 3, 12: 3, 13: 3}).items()
}


def indexes_of(java: JavaTable) -> set[str]:
    return set(tk.Table.open(java.path, engine="local").config.metadata_partitions)


def test_all_services_keep_a_record_index_and_a_secondary_index_in_step(
    execute: Execute, spark: Any, tmp_path: Path
) -> None:
    # Java 1.2.0 fails to compact tables that have statistics of partitions beside a secondary index.
    extra = {**RECORD_INDEX, "hoodie.metadata.index.column.stats.enable": "false"}
    java = indexed(spark, tmp_path / "t", extra)
    spark.conf.set(LOCK, "org.apache.hudi.client.transaction.lock.InProcessLockProvider")
    spark.sql(f"create table kept_by_java using hudi location '{java.path}'")
    try:
        spark.sql("create index by_note on kept_by_java (note)")
        before = indexes_of(java)
        assert {"record_index", "secondary_index_by_note"} <= before
        for action in (ServiceAction.COMPACTION, ServiceAction.CLUSTERING):
            assert execute(action).outcome is AttemptOutcome.COMPLETED
            assert indexes_of(java) == before
        assert notes(java) == EXPECTED
        # Known keys, a new one, and one that moves: the index has to know where each is now.
        java.write(pa.concat_tables([rows(1, 5, 30, city="a", ts=9), rows(13, 6, city="b", ts=9)]), "upsert")
        assert execute(ServiceAction.COMPACTION).outcome is AttemptOutcome.COMPLETED
        assert execute(ServiceAction.CLEAN, keep_commits=1).outcome is AttemptOutcome.COMPLETED
        assert indexes_of(java) == before
        assert notes(java) == EXPECTED | {n: f"{n}-9" for n in (1, 5, 30, 13, 6)}
        skipping = {"hoodie__metadata__enable": "true", "hoodie__enable__data__skipping": "true"}
        found = java.scan(**skipping).where("note in ('2-3', '7-1', '1-1')").select("id").collect()
        assert sorted(row["id"] for row in found) == [2, 7]
    finally:
        spark.sql("drop table kept_by_java")
        spark.conf.unset(LOCK)


def test_services_keep_bloom_filters(execute: Execute, spark: Any, tmp_path: Path) -> None:
    java = indexed(spark, tmp_path / "t", BLOOM_FILTERS)
    before = indexes_of(java)
    assert "bloom_filters" in before
    assert execute(ServiceAction.COMPACTION).outcome is AttemptOutcome.COMPLETED
    assert indexes_of(java) == before
    assert notes(java) == EXPECTED
