"""The engine `local`: one worker process with a warm local Spark, shared by small jobs instead of a JVM each.

Jobs reach the worker as files in a folder; it takes them by renaming. The worker belongs to no instance: any on this
machine can use it and adopt its jobs. It ends when it has had nothing to do for a while, and is started when it is
needed. A job has no process of its own: at its time limit its Spark tasks are cancelled and its outcome is told.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from platform import node

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.engines.files import load_report, save_job
from tablekeeper.server.engines.parameters import parse_resource, spark_settings
from tablekeeper.server.engines.process import Command, EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.engines.warm_worker import worker_command
from tablekeeper.server.model import RunParameters, ServiceAction

__all__ = ["WarmExecutor", "make_local"]

# The worker itself is not limited: it ends when it is idle.
_FOREVER_S = 10 * 365 * 24 * 3600.0


class WarmExecutor:
    """See `protocol.Executor`."""

    def __init__(self, context: EngineContext) -> None:
        self._spool = context.work_dir / "warm"
        self._spool.mkdir(parents=True, exist_ok=True)
        self._runtime = context.runtime
        self._worker = ProcessExecutor(
            "local",
            context,
            command=lambda job, file: Command(worker_command(self._spool, master=context.master), {}),
            validate=lambda parameters: None,
        )
        self._worker_id_file = self._spool / "worker.id"

    @property
    def name(self) -> str:
        return "local"

    def validate(self, parameters: RunParameters) -> None:
        parse_resource(parameters.resource)
        spark_settings(parameters)

    def start(self, job: Job) -> str:
        self.validate(job.parameters)
        if not (self._spool / f"{job.name}.taken").exists():
            save_job(self._spool / f"{job.name}.job", job)
        self._wake()
        return f"{node()}:warm:{job.name}"

    def find(self, job: Job) -> str | None:
        job_id = f"{node()}:warm:{job.name}"
        return job_id if self.can_reach(job_id) else None

    def can_reach(self, job_id: str) -> bool:
        host, _, name = job_id.split(":", 2)
        return host == node() and any((self._spool / f"{name}{end}").exists() for end in (".job", ".taken"))

    def poll(self, job_id: str, job: Job) -> JobReport:
        is_alive = self._is_alive()
        report = load_report(Path(job.result_path))
        if report is not None and report.state is JobState.ENDED:
            return report
        plan = report.plan if report is not None else None
        if (self._spool / f"{job.name}.job").exists():
            # Nobody has it yet; the worker may have ended just before it came.
            self._wake()
            return JobReport(JobState.RUNNING, plan=plan)
        return JobReport(JobState.RUNNING if is_alive else JobState.UNKNOWN, plan=plan)

    def cancel(self, job_id: str) -> None:
        if self.can_reach(job_id):
            (self._spool / f"{job_id.split(':', 2)[2]}.cancel").touch()

    def close(self) -> None:
        self._worker.close()

    def _is_alive(self) -> bool:
        if not self._worker_id_file.exists():
            return False
        worker_id = self._worker_id_file.read_text(encoding="utf-8")
        return self._worker.can_reach(worker_id) and (
            self._worker.poll(worker_id, self._worker_job(0)).state is JobState.RUNNING
        )

    def _wake(self) -> None:
        if self._is_alive():
            return
        # A new number each time: an attempt is started once. Two that wake at once make two workers, which share.
        worker_id = self._worker.start(self._worker_job(self._runtime.clock.now_ms()))
        fresh = self._worker_id_file.with_suffix(".new")
        fresh.write_text(worker_id, encoding="utf-8")
        fresh.replace(self._worker_id_file)

    def _worker_job(self, number: int) -> Job:
        log = str(self._spool / "worker.log")
        blank = Job(0, number, "", ServiceAction.COMPACTION, None, log, "", _FOREVER_S)
        return replace(blank, result_path=str(self._spool / "worker.json"))


def make_local(context: EngineContext) -> WarmExecutor:
    """The engine; `InvalidRequestError` says what it needs and is not here."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    missing = "PySpark" if find_spec("pyspark") is None else "Java 17" if java is None else ""
    if missing:
        raise InvalidRequestError(
            f"the engine local needs {missing}, which is missing: install tablekeeper[spark] and Java 17, or use the "
            "engine arrow (--engine arrow), which needs neither"
        )
    return WarmExecutor(context)
