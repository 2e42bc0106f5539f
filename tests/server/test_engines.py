"""Engines: jobs as minded processes, what requests may ask for, and who can adopt what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.files import load_job, load_log_tail
from tablekeeper.server.engines.flink import flink_arguments
from tablekeeper.server.engines.parameters import (
    Resource,
    check_settings,
    flink_settings,
    hudi_settings,
    parse_resource,
    spark_settings,
)
from tablekeeper.server.engines.process import Command, EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Executor, Job, JobReport, JobState
from tablekeeper.server.engines.registry import Engines, engine_names
from tablekeeper.server.engines.spark_submit import submit_arguments
from tablekeeper.server.model import AttemptOutcome, RunParameters, ServiceAction

TIMEOUT_S = 60.0
FOREVER = "import signal; print('up', flush=True); signal.pause()"


def a_job(folder: Path, *, time_limit_s: float = 60.0, parameters: RunParameters | None = None) -> Job:
    return Job(
        operation_id=3,
        number=1,
        base_path="/lake/t",
        action=ServiceAction.COMPACTION,
        instant="20261118120000000",
        log_path=str(folder / "3-1.log"),
        result_path=str(folder / "3-1.json"),
        time_limit_s=time_limit_s,
        parameters=parameters or RunParameters(),
        options={"hoodie.clean.commits.retained": "4"},
    )


def executor_of(folder: Path, program: str, *, log_bytes: int = 10_000) -> ProcessExecutor:
    """An engine whose jobs are this Python program."""
    context = EngineContext(folder, SYSTEM_RUNTIME, log_bytes=log_bytes)
    return ProcessExecutor(
        "test",
        context,
        command=lambda job, file: Command((sys.executable, "-c", program, str(file), job.result_path), {}),
        validate=lambda parameters: None,
    )


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[ProcessExecutor, Job, str]]:
    """A job that runs until somebody ends it."""
    executor, job = executor_of(tmp_path, FOREVER), a_job(tmp_path)
    job_id = executor.start(job)
    await_that(lambda: "up\n" in load_log_tail(job.log_path))
    yield executor, job, job_id
    executor.cancel(job_id)
    await_end(executor, job, job_id)


def await_that(is_so: Callable[[], bool]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < until_s
        clock.sleep(0.05)


def await_end(executor: Executor, job: Job, job_id: str) -> JobReport:
    await_that(lambda: executor.poll(job_id, job).state is not JobState.RUNNING)
    return executor.poll(job_id, job)


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    program = "import sys, shutil; shutil.copy(sys.argv[1], sys.argv[1] + '.seen')"
    executor, job = executor_of(tmp_path, program), a_job(tmp_path, parameters=RunParameters("4g:4g", 7, {"k": "v"}))
    await_end(executor, job, executor.start(job))
    assert load_job(tmp_path / "jobs" / f"{job.name}.job.seen") == job


def test_output_is_bounded_and_its_end_is_kept(tmp_path: Path) -> None:
    executor, job = executor_of(tmp_path, "for n in range(20000): print('line', n)"), a_job(tmp_path)
    await_end(executor, job, executor.start(job))
    kept = sum(path.stat().st_size for path in tmp_path.glob("3-1.log*"))
    assert kept <= 10_000
    assert load_log_tail(job.log_path).endswith("line 19998\nline 19999\n")


def test_output_can_be_read_while_the_job_runs(started: tuple[ProcessExecutor, Job, str]) -> None:
    executor, job, job_id = started
    assert load_log_tail(job.log_path) == "up\n"
    assert executor.poll(job_id, job).state is JobState.RUNNING


def test_a_job_gives_way_to_writers_of_its_machine(tmp_path: Path) -> None:
    executor, job = executor_of(tmp_path, "import os; print(os.nice(0))"), a_job(tmp_path)
    await_end(executor, job, executor.start(job))
    assert int(load_log_tail(job.log_path)) > os.nice(0)


def test_a_job_that_ends_without_a_word_has_failed_with_its_code(tmp_path: Path) -> None:
    executor, job = executor_of(tmp_path, "raise SystemExit(7)"), a_job(tmp_path)
    report = await_end(executor, job, executor.start(job))
    assert report.outcome is AttemptOutcome.FAILED
    assert "code 7" in report.message


def test_a_job_that_runs_too_long_is_ended(tmp_path: Path) -> None:
    executor, job = executor_of(tmp_path, FOREVER), a_job(tmp_path, time_limit_s=0.1)
    assert await_end(executor, job, executor.start(job)).outcome is AttemptOutcome.TIMED_OUT


def test_a_job_is_cancelled(started: tuple[ProcessExecutor, Job, str]) -> None:
    executor, job, job_id = started
    executor.cancel(job_id)
    assert await_end(executor, job, job_id).outcome is AttemptOutcome.CANCELLED
    executor.cancel(job_id)


def test_another_instance_adopts_a_job_by_its_id(started: tuple[ProcessExecutor, Job, str], tmp_path: Path) -> None:
    _, job, job_id = started
    other = executor_of(tmp_path, FOREVER)
    assert other.can_reach(job_id)
    assert other.poll(job_id, job).state is JobState.RUNNING
    other.cancel(job_id)
    assert await_end(other, job, job_id).outcome is AttemptOutcome.CANCELLED


def test_a_job_is_found_by_whoever_knows_its_attempt_only(
    started: tuple[ProcessExecutor, Job, str], tmp_path: Path
) -> None:
    _, job, job_id = started
    other = executor_of(tmp_path, FOREVER)
    assert other.find(job) == job_id
    assert other.find(replace(job, number=2)) is None


def test_a_job_that_nobody_minds_yet_is_not_started_any_more_once_it_was_looked_for(tmp_path: Path) -> None:
    executor, job = executor_of(tmp_path, "print('ran')"), a_job(tmp_path)
    await_end(executor, job, executor.start(job))
    files = {file.suffix: file for file in (tmp_path / "jobs").iterdir()}
    # As it is while the minder has not begun.
    for suffix in (".id", ".pid", ".exit"):
        files[suffix].unlink()
    Path(job.log_path).unlink()
    assert executor.find(job) is None
    late = [sys.executable, "-m", "tablekeeper.server.engines.minder", str(files[".minder"])]
    assert subprocess.run(late, timeout=TIMEOUT_S, check=False).returncode == 0
    assert not Path(job.log_path).exists()


def test_a_job_of_another_machine_is_out_of_reach(started: tuple[ProcessExecutor, Job, str]) -> None:
    executor, _, job_id = started
    assert not executor.can_reach(f"elsewhere:{job_id.partition(':')[2]}")
    with pytest.raises(InvalidRequestError, match="no job"):
        executor.can_reach(f"{job_id.partition(':')[0]}:1:../3-1.json")


def test_a_job_whose_minder_was_killed_ends_with_it_and_is_unknown(tmp_path: Path) -> None:
    program = f"import os; print(os.getpid()); {FOREVER}"
    executor, job = executor_of(tmp_path, program), a_job(tmp_path)
    job_id = executor.start(job)
    await_that(lambda: "up\n" in load_log_tail(job.log_path))
    child = int(load_log_tail(job.log_path).split()[0])
    os.kill(int(job_id.split(":")[1]), signal.SIGKILL)
    assert await_end(executor, job, job_id).state is JobState.UNKNOWN
    assert executor_of(tmp_path, FOREVER).poll(job_id, job).state is JobState.UNKNOWN
    await_that(lambda: not _is_running(child))


def _is_running(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().split()[2] != "Z"


def test_starting_an_attempt_twice_is_the_same_job(started: tuple[ProcessExecutor, Job, str], tmp_path: Path) -> None:
    executor, job, job_id = started
    assert executor.start(job) == job_id
    assert executor_of(tmp_path, FOREVER).start(job) == job_id


@pytest.mark.parametrize(
    ("text", "resource"),
    [("", Resource()), ("4g:2G", Resource("4g", "2g")), ("spark:512m,4g", Resource("512m", "4g"))],
)
def test_resources_are_read_in_both_dialects(text: str, resource: Resource) -> None:
    assert parse_resource(text) == resource


@pytest.mark.parametrize("text", ["4g", "4g:4g:4g", "4x:4g", "4g:", "$(id):4g", "0g:4g", "4g 4g", "-4g:4g"])
def test_other_resources_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="4g:4g"):
        parse_resource(text)


@pytest.mark.parametrize(
    "key",
    [
        "spark.master",
        "spark.jars.packages",
        "spark.driver.extraJavaOptions",
        "spark.executor.extraClassPath",
        "spark.submit.pyFiles",
        "spark.pyspark.python",
        "spark.plugins",
        "spark.executorEnv.LD_PRELOAD",
        "spark.sql.extensions",
        "spark.hadoop.fs.s3a.endpoint",
        "spark --jars",
    ],
)
def test_settings_that_choose_code_or_place_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="extra_params"):
        spark_settings(RunParameters(extra_params={key: "x"}))


def test_what_a_request_asks_for_reaches_spark_as_arguments_of_their_own(tmp_path: Path) -> None:
    parameters = RunParameters("spark:1g,2g", 8, {"spark.task.maxFailures": "2; rm -rf /", "hoodie.x": "y"})
    context = EngineContext(tmp_path, SYSTEM_RUNTIME, master="spark://m:7077")
    arguments = submit_arguments("spark-submit", context, a_job(tmp_path, parameters=parameters))
    assert arguments == (
        "spark-submit",
        "--master",
        "spark://m:7077",
        "--name",
        "tablekeeper-3-1",
        "--driver-memory",
        "1g",
        "--executor-memory",
        "2g",
        "--conf",
        "spark.default.parallelism=8",
        "--conf",
        "spark.sql.shuffle.partitions=8",
        "--conf",
        "spark.task.maxFailures=2; rm -rf /",
        "--conf",
        "spark.ui.showConsoleProgress=false",
    )


def test_engines_are_found_by_the_names_that_clients_use(tmp_path: Path) -> None:
    engines = Engines(EngineContext(tmp_path, SYSTEM_RUNTIME), "arrow")
    assert {engines.find(name).name for name in ("", "Spark", "ARROW")} == {"arrow"}
    assert {"arrow", "local", "spark-submit"} <= set(engine_names())
    with pytest.raises(InvalidRequestError, match="arrow, "):
        engines.find("tez")


@pytest.mark.parametrize(
    "key",
    [
        "hoodie.compaction.strategy",
        "hoodie.clustering.plan.strategy.class",
        "hoodie.compaction.payload.class",
        "hoodie.metadata.enable",
        "hoodie.write.lock.provider",
        "hoodie.write.concurrency.mode",
        "hoodie.clean.failed.writes.policy",
        "hoodie.table.service.execution.guard.enable",
        "hoodie.clustering.updates.strategy",
        "flink.python.executable",
        "flink.pipeline.classpaths",
        "flink.env.java.opts.all",
    ],
)
def test_settings_that_choose_classes_or_weaken_the_guard_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="extra_params"):
        check_settings(RunParameters(extra_params={key: "x"}))


def test_settings_that_say_how_much_reach_hudi_and_flink() -> None:
    wanted = {
        "hoodie.compaction.target.io": "512",
        "hoodie.clustering.plan.strategy.small.file.limit": "100",
        "hoodie.clean.parallelism": "3",
        "flink.taskmanager.memory.managed.size": "200m",
        "k": "v",
    }
    parameters = RunParameters(extra_params=wanted)
    check_settings(parameters)
    assert hudi_settings(parameters) == {key: value for key, value in wanted.items() if key.startswith("hoodie.")}
    assert flink_settings(parameters) == {"taskmanager.memory.managed.size": "200m"}


def test_what_a_request_asks_for_reaches_flink_as_arguments_of_their_own(tmp_path: Path) -> None:
    parameters = RunParameters("flink:1g,2g", 8, {"flink.restart-strategy.type": "none; rm -rf /"})
    assert flink_arguments("flink", a_job(tmp_path, parameters=parameters), address="jm:8081", python="py") == (
        "flink",
        "run",
        "-m",
        "jm:8081",
        "-p",
        "8",
        "-Djobmanager.memory.process.size=1g",
        "-Drestart-strategy.type=none; rm -rf /",
        "-Dtaskmanager.memory.process.size=2g",
        "-pyexec",
        "py",
        "-pyclientexec",
        "py",
    )


def test_engines_say_what_they_need_and_do_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for name, options, missing in (
        ("local", {}, "Java 17.*--engine arrow"),
        ("hudi-java", {}, "hudi_bundle"),
        ("flink", {"flink_python": "/no/such/python"}, "flink_python"),
        ("flink", {"flink_address": "jm:8081/x"}, "host:port"),
    ):
        context = EngineContext(tmp_path, SYSTEM_RUNTIME, options=options)
        with pytest.raises(InvalidRequestError, match=missing):
            Engines(context, "arrow").find(name)
