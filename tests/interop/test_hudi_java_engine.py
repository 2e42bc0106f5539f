"""The engine `hudi-java` of the management service: Java executes plans and makes its own, on tables of either side."""

from __future__ import annotations

from pathlib import Path

import pytest

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.engines.process import EngineContext
from tablekeeper.server.engines.protocol import Executor, Job, JobReport, JobState
from tablekeeper.server.engines.registry import Engines
from tablekeeper.server.model import AttemptOutcome, RunParameters, ServiceAction
from tests.support.java_hudi import bundle_jar, rust_read
from tests.support.table_builder import TableBuilder, rows_of, trips

__all__: list[str] = []

PATIENCE_S = 280.0
ROWS = [("a", 3.0), ("b", 1.0)]


@pytest.fixture
def engine(tmp_path: Path) -> Executor:
    options = {"hudi_bundle": str(bundle_jar())}
    context = EngineContext(tmp_path / "service", SYSTEM_RUNTIME, master="local[1]", options=options)
    return Engines(context, "hudi-java").find("hudi-java")


@pytest.fixture
def table(tmp_path: Path) -> tk.Table:
    made = TableBuilder().create(str(tmp_path / "t"), table_type="mor")
    made.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    for ts in (2, 3):
        made.upsert(trips(("a", "sf", ts, float(ts))))
    return made


def run(engine: Executor, folder: Path, action: ServiceAction, instant: str | None = None) -> JobReport:
    log = folder / f"{action.value}.log"
    job = Job(
        operation_id=len(list(folder.glob("*.log"))) + 1,
        number=1,
        base_path=str(folder / "t"),
        action=action,
        instant=instant,
        log_path=str(log),
        result_path=str(log.with_suffix(".json")),
        time_limit_s=PATIENCE_S,
        parameters=RunParameters("spark:1g,1g"),
        planning={"order_by": ["fare"]} if action is ServiceAction.CLUSTERING else {},
    )
    job_id = engine.start(job)
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + PATIENCE_S
    while (report := engine.poll(job_id, job)).state is JobState.RUNNING:
        assert clock.monotonic_s() < until_s, load_log_tail(job.log_path)
        clock.sleep(0.2)
    assert report.outcome is not AttemptOutcome.FAILED, report.message + load_log_tail(job.log_path)
    return report


def test_java_executes_the_plan_it_is_given_and_no_other(engine: Executor, table: tk.Table, tmp_path: Path) -> None:
    plan = table.schedule_compaction()
    assert plan is not None
    report = run(engine, tmp_path, ServiceAction.COMPACTION, plan.instant.value)
    assert report.outcome is AttemptOutcome.COMPLETED
    commits = [i.requested_at for i in table.timeline() if i.action.value in ("commit", "compaction")]
    assert commits == [plan.instant]
    assert [len(each.logs) for each in table.files()] == [0, 0]
    assert rows_of(table.read(), "id", "fare") == rows_of(rust_read(str(tmp_path / "t")), "id", "fare") == ROWS


def test_java_plans_and_executes_a_clustering_and_a_clean(engine: Executor, table: tk.Table, tmp_path: Path) -> None:
    table.compact()
    assert run(engine, tmp_path, ServiceAction.CLUSTERING).outcome is AttemptOutcome.COMPLETED
    assert "replacecommit" in [i.action.value for i in table.timeline() if i.is_completed]
    cleaned = run(engine, tmp_path, ServiceAction.CLEAN)
    assert cleaned.outcome in (AttemptOutcome.COMPLETED, AttemptOutcome.NOTHING_TO_DO)
    assert rows_of(table.read(), "id", "fare") == ROWS


def test_what_java_has_no_procedure_for_is_refused(engine: Executor, table: tk.Table, tmp_path: Path) -> None:
    assert run(engine, tmp_path, ServiceAction.LOG_COMPACTION).outcome is AttemptOutcome.REFUSED
