"""Jobs that are forked from a warm process: what holds for programs of their own holds for them."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.arrow import make_arrow
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.engines.forks import ForkServer
from tablekeeper.server.engines.process import EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.model import AttemptOutcome, ServiceAction

TIMEOUT_S = 60.0
NUMBERS = itertools.count(1)
ARROWS_OWN = "jemalloc_bg_thd"
"""Its allocator's thread, which lets go of its locks before a fork."""


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def executor(work_dir: Path) -> Iterator[ProcessExecutor]:
    made = make_arrow(EngineContext(work_dir, SYSTEM_RUNTIME))
    yield made
    made.close()


def fork_server_of(executor: ProcessExecutor) -> ForkServer:
    assert executor._fork_server is not None
    return executor._fork_server


def job_on(folder: Path, table: Path, *, time_limit_s: float = 600.0) -> Job:
    number = next(NUMBERS)
    return Job(
        operation_id=number,
        number=1,
        base_path=str(table),
        action=ServiceAction.CLEAN,
        instant=None,
        log_path=str(folder / f"{number}.log"),
        result_path=str(folder / f"{number}.json"),
        time_limit_s=time_limit_s,
    )


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A table whose properties can be opened for ever."""
    (tmp_path / "endless" / ".hoodie").mkdir(parents=True)
    os.mkfifo(tmp_path / "endless" / ".hoodie" / "hoodie.properties")
    return tmp_path / "endless"


def await_that(is_so: Callable[[], bool]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < until_s
        clock.sleep(0.02)


def await_end(executor: ProcessExecutor, job: Job, job_id: str) -> JobReport:
    await_that(lambda: executor.poll(job_id, job).state is not JobState.RUNNING)
    return executor.poll(job_id, job)


def await_work(job: Job) -> None:
    await_that(lambda: job.base_path in load_log_tail(job.log_path))


def minder_of(job_id: str) -> int:
    return int(job_id.split(":")[1])


def child_of(pid: int) -> int:
    found: list[int] = []

    def look() -> bool:
        found[:] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return bool(found)

    await_that(look)
    return found[0]


def is_running(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_forked_job_tells_what_came_of_it_and_keeps_its_output(executor: ProcessExecutor, tmp_path: Path) -> None:
    job = job_on(tmp_path, tmp_path / "no-table")
    report = await_end(executor, job, executor.start(job))
    assert report.outcome is AttemptOutcome.REFUSED
    assert "no-table" in report.message
    # What it prints last goes through its minder, and may come after its report.
    await_that(lambda: "refused" in load_log_tail(job.log_path))


def test_a_forked_job_is_ended_at_its_time_limit(executor: ProcessExecutor, tmp_path: Path, endless: Path) -> None:
    job = job_on(tmp_path, endless, time_limit_s=0.1)
    assert await_end(executor, job, executor.start(job)).outcome is AttemptOutcome.TIMED_OUT


def test_a_forked_job_that_crashes_takes_nobody_with_it(
    executor: ProcessExecutor, tmp_path: Path, endless: Path
) -> None:
    first, second = job_on(tmp_path, endless), job_on(tmp_path, endless)
    first_id, second_id = executor.start(first), executor.start(second)
    await_work(first)
    os.kill(child_of(minder_of(first_id)), signal.SIGSEGV)
    report = await_end(executor, first, first_id)
    assert report.outcome is AttemptOutcome.FAILED
    assert f"code {-signal.SIGSEGV}" in report.message
    assert executor.poll(second_id, second).state is JobState.RUNNING
    executor.cancel(second_id)
    assert await_end(executor, second, second_id).outcome is AttemptOutcome.CANCELLED


def test_a_forked_job_ends_with_its_minder(executor: ProcessExecutor, tmp_path: Path, endless: Path) -> None:
    job = job_on(tmp_path, endless)
    job_id = executor.start(job)
    await_work(job)
    child = child_of(minder_of(job_id))
    os.kill(minder_of(job_id), signal.SIGKILL)
    assert await_end(executor, job, job_id).state is JobState.UNKNOWN
    await_that(lambda: not is_running(child))


def test_jobs_outlive_the_process_that_forked_them_and_another_instance_adopts_them(
    executor: ProcessExecutor, work_dir: Path, tmp_path: Path, endless: Path
) -> None:
    job = job_on(tmp_path, endless)
    job_id = executor.start(job)
    await_work(job)
    killed = fork_server_of(executor).pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    other = make_arrow(EngineContext(work_dir, SYSTEM_RUNTIME))
    assert other.find(job) == job_id
    assert other.poll(job_id, job).state is JobState.RUNNING
    other.cancel(job_id)
    assert await_end(other, job, job_id).outcome is AttemptOutcome.CANCELLED
    # The next job has a new one.
    later = job_on(tmp_path, tmp_path / "no-table")
    assert await_end(executor, later, executor.start(later)).outcome is AttemptOutcome.REFUSED
    assert fork_server_of(executor).pid != killed


def test_an_attempt_is_forked_once(executor: ProcessExecutor, work_dir: Path, tmp_path: Path, endless: Path) -> None:
    job = job_on(tmp_path, endless)
    job_id = executor.start(job)
    spec_file = work_dir / "jobs" / f"{job.name}.minder"
    assert fork_server_of(executor).fork(spec_file) == minder_of(job_id)
    executor.cancel(job_id)
    assert await_end(executor, job, job_id).outcome is AttemptOutcome.CANCELLED
    # Nor once more after its end.
    await_that(lambda: not is_running(minder_of(job_id)))
    fork_server_of(executor).fork(spec_file)
    assert executor.poll(job_id, job).state is JobState.ENDED


def test_the_process_that_forks_has_one_thread_and_ends_with_its_instance(
    executor: ProcessExecutor, tmp_path: Path
) -> None:
    job = job_on(tmp_path, tmp_path / "no-table")
    await_end(executor, job, executor.start(job))
    process = fork_server_of(executor)._process
    assert process is not None
    assert process.stdin is not None
    threads = [each.read_text().strip() for each in Path(f"/proc/{process.pid}/task").glob("*/comm")]
    assert len([each for each in threads if each != ARROWS_OWN]) == 1, threads
    process.stdin.close()
    assert process.wait(TIMEOUT_S) == 0
