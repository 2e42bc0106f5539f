"""The engine on a real standalone cluster of Flink: its contract, and a service whose tasks run in the task manager."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from platform import node

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.engines.process import EngineContext
from tablekeeper.server.engines.protocol import Executor, Job, JobState
from tablekeeper.server.engines.registry import Engines
from tablekeeper.server.model import AttemptOutcome, RunParameters, ServiceAction
from tests.support.flink_cluster import FlinkCluster, flink_cluster
from tests.support.table_builder import TableBuilder, rows_of, trips

TIMEOUT_S = 280.0
CONTRACT = Path(__file__).resolve().parents[1] / "support" / "flink_contract.py"


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    """One job manager and one task manager with two slots."""
    with flink_cluster(tmp_path_factory.mktemp("flink") / "cluster") as made:
        yield made


@pytest.mark.timeout(600)
def test_the_engine_keeps_the_contract_of_all_engines(flink: FlinkCluster, tmp_path: Path) -> None:
    program = [str(flink.home / "bin" / "flink"), "run", "-m", flink.address]
    python, outcome = str(flink.python), tmp_path / "outcome"
    done = subprocess.run(
        [*program, "-p", "2", "-pyexec", python, "-pyclientexec", python, "-py", str(CONTRACT), str(outcome)],
        capture_output=True,
        env=flink.environment,
        text=True,
        timeout=580,
        check=False,
    )
    told = done.stdout[-4000:] + done.stderr[-2000:]
    assert outcome.is_file(), told
    assert outcome.read_text() == "0", told
    assert "passed" in done.stdout


@pytest.fixture
def engine(flink: FlinkCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    """The engine of a service that sends all work away, however little it is."""
    for name, value in flink.environment.items():
        monkeypatch.setenv(name, value)
    options = {"flink_python": str(flink.python), "flink_address": flink.address, "flink_driver_bytes": "0"}
    return Engines(EngineContext(tmp_path / "service", SYSTEM_RUNTIME, options=options), "flink").find("flink")


def await_that(is_so: Callable[[], bool], told: Callable[[], object]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < until_s, told()
        clock.sleep(0.2)


def test_a_job_runs_its_tasks_in_the_task_manager(flink: FlinkCluster, engine: Executor, tmp_path: Path) -> None:
    table = TableBuilder().create(str(tmp_path / "t"), table_type="mor")
    table.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    plan = table.schedule_compaction()
    assert plan is not None
    job = Job(
        operation_id=7,
        number=1,
        base_path=str(tmp_path / "t"),
        action=ServiceAction.COMPACTION,
        instant=plan.instant.value,
        log_path=str(tmp_path / "7-1.log"),
        result_path=str(tmp_path / "7-1.json"),
        time_limit_s=TIMEOUT_S,
        parameters=RunParameters("4g:4g", 2, {"flink.heartbeat.timeout": "60000"}),
    )
    job_id = engine.start(job)
    await_that(lambda: engine.poll(job_id, job).state is not JobState.RUNNING, lambda: load_log_tail(job.log_path))
    report = engine.poll(job_id, job)
    assert report.outcome is AttemptOutcome.COMPLETED, report.message + load_log_tail(job.log_path)
    ran = [each for each in flink.jobs() if each.name.startswith("tablekeeper-7-1: ")]
    assert ran
    assert {each.state for each in ran} == {"FINISHED"}
    assert all(instant.is_completed for instant in table.timeline())
    assert [len(each.logs) for each in table.files()] == [0, 0]
    assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 1.0)]


ENDLESS = """
from tablekeeper.engine.flink import submitted_engine
from tests.clusters.test_flink import sleep
submitted_engine("tablekeeper-9-1").run(sleep, [300.0], label="endless")
"""


def sleep(seconds: float) -> None:
    SYSTEM_RUNTIME.clock.sleep(seconds)


def test_what_a_program_left_on_the_cluster_is_cancelled_with_its_job(
    flink: FlinkCluster, engine: Executor, tmp_path: Path
) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    program = [str(flink.home / "bin" / "flink"), "run", "-m", flink.address]
    left = subprocess.Popen(
        [*program, "-pyexec", str(flink.python), "-pyclientexec", str(flink.python), "-py", str(script)],
        env=flink.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:

        def states() -> list[str]:
            return [each.state for each in flink.jobs() if each.name == "tablekeeper-9-1: endless"]

        await_that(lambda: states() == ["RUNNING"], states)
        engine.cancel(f"{node()}:0:tablekeeper-9-1.minder")
        await_that(lambda: states() == ["CANCELED"], states)
    finally:
        os.killpg(left.pid, signal.SIGKILL)
        left.wait()
