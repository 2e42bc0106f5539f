"""`ProcessExecutor`: jobs as processes of this machine, each with a minder. Engines say only which command to run.

A job's id is `host:pid:file`, where the file is the minder's, locked as long as the minder lives. So any instance on
the same machine, with the same working folder, can adopt it, and the number of a process that is gone means nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from platform import node

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import Runtime
from tablekeeper.server.engines.files import load_report, save_job, save_json
from tablekeeper.server.engines.forks import ForkServer
from tablekeeper.server.engines.minder import MinderSpec, pid_file_of
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.model import AttemptOutcome, RunParameters

__all__ = ["Command", "EngineContext", "ProcessExecutor"]


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What every engine is made from. `options` are the engine's own, such as the path of a jar."""

    work_dir: Path
    runtime: Runtime
    master: str = ""
    log_bytes: int = 1_000_000
    options: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments, and what is added to its environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


class ProcessExecutor:
    """See `protocol.Executor`. `command` makes the command of a job from it and the file it is saved in.

    With a `fork_server` job and minder are forked from a warm process, instead of being started as programs.
    """

    def __init__(
        self,
        name: str,
        context: EngineContext,
        *,
        command: Callable[[Job, Path], Command],
        validate: Callable[[RunParameters], None],
        fork_server: ForkServer | None = None,
    ) -> None:
        self._name = name
        self._context = context
        self._command = command
        self._validate = validate
        self._fork_server = fork_server
        self._folder = context.work_dir / "jobs"
        self._folder.mkdir(parents=True, exist_ok=True)
        # Children of this process, so that none stays behind as a zombie.
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def name(self) -> str:
        return self._name

    def validate(self, parameters: RunParameters) -> None:
        self._validate(parameters)

    def start(self, job: Job) -> str:
        self._validate(job.parameters)
        self._reap()
        id_file = self._folder / f"{job.name}.id"
        if id_file.exists():
            return id_file.read_text(encoding="utf-8")
        job_file = self._folder / f"{job.name}.job"
        save_job(job_file, job)
        command = self._command(job, job_file)
        spec_file = self._folder / f"{job.name}.minder"
        spec = MinderSpec(
            command=command.arguments,
            log_path=job.log_path,
            exit_path=str(_exit_file(spec_file)),
            time_limit_s=job.time_limit_s,
            log_bytes=self._context.log_bytes,
            environment=command.environment,
        )
        save_json(spec_file, asdict(spec))
        job_id = self._start_minder(spec_file)
        id_file.write_text(job_id, encoding="utf-8")
        return job_id

    def find(self, job: Job) -> str | None:
        spec_file = self._folder / f"{job.name}.minder"
        if not spec_file.exists():
            return None
        with spec_file.open("r+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                if not _exit_file(spec_file).exists():
                    # No minder has come so far. One that comes late finds that it is over.
                    save_json(_exit_file(spec_file), {"code": None, "timed_out": False, "cancelled": False})
                    return None
        pid_file = pid_file_of(spec_file)
        pid = pid_file.read_text(encoding="utf-8") if pid_file.exists() else "0"
        return f"{node()}:{pid}:{spec_file.name}"

    def can_reach(self, job_id: str) -> bool:
        host, _, rest = job_id.partition(":")
        return host == node() and self._spec_file(rest.partition(":")[2]).exists()

    def poll(self, job_id: str, job: Job) -> JobReport:
        # Whether it lives is asked first: what it says last, it says before it ends.
        is_alive = self._is_alive(job_id)
        report = load_report(Path(job.result_path))
        if report is not None and report.state is JobState.ENDED:
            return report
        plan = report.plan if report is not None else None
        if is_alive:
            return JobReport(JobState.RUNNING, plan=plan)
        self._children.pop(job_id, None)
        return self._without_a_word(job_id, plan)

    def cancel(self, job_id: str) -> None:
        if self.can_reach(job_id) and self._is_alive(job_id):
            os.kill(int(job_id.split(":")[1]), signal.SIGTERM)

    def close(self) -> None:
        self._reap()
        if self._fork_server is not None:
            self._fork_server.close()

    def _start_minder(self, spec_file: Path) -> str:
        if self._fork_server is not None:
            return f"{node()}:{self._fork_server.fork(spec_file)}:{spec_file.name}"
        minder = subprocess.Popen(
            [sys.executable, "-m", "tablekeeper.server.engines.minder", str(spec_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        job_id = f"{node()}:{minder.pid}:{spec_file.name}"
        self._children[job_id] = minder
        return job_id

    def _reap(self) -> None:
        """Let go of those that have ended: most report their end a moment before, and are not asked again."""
        for job_id, child in list(self._children.items()):
            if child.poll() is not None:
                self._children.pop(job_id, None)

    def _without_a_word(self, job_id: str, plan: str | None) -> JobReport:
        exit_file = _exit_file(self._spec_file(job_id.split(":", 2)[2]))
        if not exit_file.exists():
            return JobReport(JobState.UNKNOWN, plan=plan)
        ended = json.loads(exit_file.read_text(encoding="utf-8"))
        if ended["timed_out"]:
            outcome, message = AttemptOutcome.TIMED_OUT, "it ran longer than its time limit"
        elif ended["cancelled"]:
            outcome, message = AttemptOutcome.CANCELLED, "it was asked to stop"
        else:
            outcome, message = AttemptOutcome.FAILED, f"the process ended with code {ended['code']}; see its log"
        return JobReport(JobState.ENDED, plan=plan, outcome=outcome, message=message)

    def _is_alive(self, job_id: str) -> bool:
        child = self._children.get(job_id)
        if child is not None:
            return child.poll() is None
        try:
            with self._spec_file(job_id.split(":", 2)[2]).open("r+", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def _spec_file(self, name: str) -> Path:
        # The name comes from the database: it must not lead anywhere else.
        if not name or Path(name).name != name:
            raise InvalidRequestError(f"{name!r} is no job of this engine")
        return self._folder / name


def _exit_file(spec_file: Path) -> Path:
    return spec_file.with_suffix(".exit")
