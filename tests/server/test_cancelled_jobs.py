"""What becomes of a job that is asked to stop: it may be about to commit, and what it did is told as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tablekeeper.errors import StorageError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.engines.files import load_report, save_job
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.engines.warm_worker import Spool
from tablekeeper.server.loops.watch import WatchLoop
from tablekeeper.server.model import AttemptOutcome, ManagedTable, ServiceAction, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import NewTable, Submission
from tablekeeper.table.summary import TimelineSummary
from tests.support.fake_runtime import fake_runtime

PLAN = "20261118120000000"


class Session:
    """A Spark session whose jobs can be cancelled, and no more."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.cancelled: list[str] = []

    def cancelJobGroup(self, name: str) -> None:  # noqa: N802 (Spark's name)
        self.cancelled.append(name)

    def setJobGroup(self, *_: Any) -> None:  # noqa: N802
        return


def a_job(folder: Path) -> Job:
    result, log = str(folder / "result.json"), str(folder / "log")
    return Job(1, 1, "/lake/t", ServiceAction.COMPACTION, PLAN, log, result, time_limit_s=60.0)


@pytest.mark.parametrize(
    ("ends_as", "told"),
    [
        (AttemptOutcome.COMPLETED, AttemptOutcome.COMPLETED),
        (AttemptOutcome.FAILED, AttemptOutcome.CANCELLED),
        (None, AttemptOutcome.CANCELLED),
    ],
)
def test_a_warm_job_that_is_asked_to_stop_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_as: AttemptOutcome | None, told: AttemptOutcome
) -> None:
    session = Session()
    runtime, clock = fake_runtime()
    spool = Spool(tmp_path, session, runtime=runtime, idle_s=1.0)
    job = a_job(tmp_path)
    save_job(tmp_path / f"{job.name}.job", job)
    taken = next(spool.jobs())
    (tmp_path / f"{job.name}.cancel").touch()
    spool.end_overdue()
    assert session.cancelled == [job.name]
    assert load_report(Path(job.result_path)) is None, "it may still complete"
    if ends_as is None:
        clock.advance(31.0)
        spool.end_overdue()
    else:
        monkeypatch.setattr(spool, "_report", lambda _: JobReport(JobState.ENDED, outcome=ends_as))
        spool.run(taken)
    report = load_report(Path(job.result_path))
    assert report is not None
    assert report.outcome is told


class Stopped:
    """An engine whose job has been ended."""

    name = "stopped"

    def find(self, name: str) -> Stopped:
        return self

    def poll(self, job_id: str, job: Job) -> JobReport:
        return JobReport(JobState.ENDED, outcome=AttemptOutcome.CANCELLED)

    def start(self, job: Job) -> str:
        return "1"

    def close(self) -> None:
        return


@pytest.mark.parametrize(
    ("completed", "status"),
    [({PLAN}, Status.COMPLETED), (set(), Status.CANCELLED), (None, Status.CANCELLED)],
)
def test_what_had_committed_when_it_was_asked_to_stop_is_completed(
    tmp_path: Path, completed: set[str] | None, status: Status
) -> None:
    def look(table: ManagedTable) -> TimelineSummary:
        if completed is None:
            raise StorageError("the store does not answer")
        return TimelineSummary("t", True, PLAN, 1, 0, 0, 0, 0, None, (), completed=frozenset(completed))

    service = open_service(ServerSettings(work_dir=tmp_path, allow=("/lake",)), runtime=SYSTEM_RUNTIME)
    context = replace(service.context, look=look, engines=Stopped())  # type: ignore[arg-type]
    stopped = Service(context, service.timelines)
    table, _ = service.store.register_table(NewTable("db", "t", "/lake/t", policy=Policy(windows=())))
    submission = Submission(table.table_id, PLAN, ServiceAction.COMPACTION)
    number = service.store.submit(submission).operation.operation_id
    stopped.schedule.run_once()
    service.store.request_cancel(number, "enough")
    WatchLoop(context).run_once()
    assert service.store.load_operation(number).status is status
    service.stop()
