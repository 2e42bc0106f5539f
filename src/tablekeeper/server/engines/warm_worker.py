"""The process behind the engine `local`: keeps a Spark session and runs the jobs that it finds in a folder.

Run as `python -m tablekeeper.server.engines.warm_worker FOLDER MASTER`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.server.engines.files import load_job, save_report
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.engines.worker import execute_job, open_table
from tablekeeper.server.model import AttemptOutcome

__all__ = ["Spool", "main", "worker_command"]

_LOG = logging.getLogger("tablekeeper.worker")
_TICK_S = 0.2
_IDLE_S = 300.0
_WIDTH = 4
_GRACE_S = 30.0


def worker_command(folder: Path, *, master: str) -> tuple[str, ...]:
    """How the process is started."""
    return (sys.executable, "-m", "tablekeeper.server.engines.warm_worker", str(folder), master or "local[*]")


@dataclass(slots=True)
class _Running:
    """A job under way. `ending` is what is told of it if it does not end by itself until then, or fails."""

    job: Job
    until_s: float
    ending: JobReport | None = None

    def report(self, report: JobReport) -> JobReport:
        """What came of it: a job that had finished when it was asked to stop has finished."""
        return self.ending if self.ending is not None and report.outcome is AttemptOutcome.FAILED else report


class Spool:
    """The jobs of the folder, taken one by one; ends when nothing came or ran for a while."""

    def __init__(self, folder: Path, spark: Any, *, runtime: Runtime, idle_s: float = _IDLE_S) -> None:
        self._folder = folder
        self._spark = spark
        self._runtime = runtime
        self._idle_s = idle_s
        self._running: dict[str, _Running] = {}

    def jobs(self) -> Iterator[Job]:
        """Take jobs as they come."""
        clock = self._runtime.clock
        busy_s = clock.monotonic_s()
        while clock.monotonic_s() - busy_s < self._idle_s:
            yield from self._take()
            if self._running:
                busy_s = clock.monotonic_s()
            clock.sleep(_TICK_S)

    def run(self, job: Job) -> None:
        """Run one job on the caller's thread, and report."""
        handler = logging.FileHandler(job.log_path, encoding="utf-8")
        handler.addFilter(_OfThisThread())
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logging.getLogger().addHandler(handler)
        try:
            _LOG.info("%s: %s of %s", job.name, job.action.value, job.base_path)
            self._spark.sparkContext.setJobGroup(job.name, job.name, True)
            report = self._report(job)
            _LOG.info("%s: %s %s", job.name, report.outcome.value if report.outcome else "", report.message)
        finally:
            logging.getLogger().removeHandler(handler)
            handler.close()
        # The thread that removes it from the running ones reports its outcome.
        running = self._running.pop(job.name, None)
        if running is not None:
            save_report(Path(job.result_path), running.report(report))

    def end_overdue(self) -> None:
        """End what somebody wants cancelled, and what has run too long.

        A thread cannot be ended: it is waited for, a while, because it may be about to commit.
        """
        now_s = self._runtime.clock.monotonic_s()
        for name, running in list(self._running.items()):
            if running.ending is not None:
                if now_s >= running.until_s and self._running.pop(name, None) is not None:
                    save_report(Path(running.job.result_path), running.ending)
                continue
            is_cancelled = (self._folder / f"{name}.cancel").exists()
            if not is_cancelled and now_s < running.until_s:
                continue
            outcome = AttemptOutcome.CANCELLED if is_cancelled else AttemptOutcome.TIMED_OUT
            message = "it was asked to stop" if is_cancelled else "it ran longer than its time limit"
            running.until_s = now_s + _GRACE_S
            running.ending = JobReport(JobState.ENDED, outcome=outcome, message=message)
            self._spark.sparkContext.cancelJobGroup(name)

    def _report(self, job: Job) -> JobReport:
        def tell_plan(instant: str) -> None:
            save_report(Path(job.result_path), JobReport(JobState.RUNNING, plan=instant))

        try:
            return execute_job(open_table(job, spark=self._spark), job, tell_plan)
        except TablekeeperError as error:
            return JobReport(JobState.ENDED, outcome=AttemptOutcome.FAILED, message=str(error)[:1000])
        except Exception as error:  # noqa: BLE001 (the outermost place of a job: reported with its trace, and retried)
            _LOG.exception("%s failed", job.name)
            return JobReport(
                JobState.ENDED, outcome=AttemptOutcome.FAILED, message=f"{type(error).__name__}: {error}"[:1000]
            )

    def _take(self) -> Iterator[Job]:
        for path in sorted(self._folder.glob("*.job")):
            taken = path.with_suffix(".taken")
            try:
                path.rename(taken)
            except FileNotFoundError:
                # Another worker was faster.
                continue
            job = load_job(taken)
            self._running[job.name] = _Running(job, self._runtime.clock.monotonic_s() + job.time_limit_s)
            yield job


class _OfThisThread(logging.Filter):
    """Lets through what the thread that made it logs."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = logging.LogRecord("", 0, "", 0, "", None, None).thread

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread == self._thread


def main(folder: str, master: str) -> int:
    """Serve until idle."""
    # PySpark starts a JVM, which only this process of the service wants.
    from tablekeeper.engine.spark_session import warm_session  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stdout)
    spark = warm_session("tablekeeper-service", master=master, scratch=Path(folder))
    spool = Spool(Path(folder), spark, runtime=SYSTEM_RUNTIME)
    overseer = SYSTEM_RUNTIME.threads.every(_TICK_S, spool.end_overdue, name="tablekeeper-overseer")
    for _ in SYSTEM_RUNTIME.threads.map_unordered(spool.run, spool.jobs(), width=_WIDTH):
        continue
    overseer.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
