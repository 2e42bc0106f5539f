"""The engine of a simulated service: every job is a process of its own, which outlives the instance that started it.

Jobs of one machine are seen by all instances there, and by no other one. A worker that dies leaves word of it, as its
minder would, or dies with its minder and leaves none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tablekeeper.config.keys import INDEX_DROP
from tablekeeper.errors import TablekeeperError
from tablekeeper.server.engines.protocol import Executor, Job, JobReport, JobState
from tablekeeper.server.engines.registry import Engines
from tablekeeper.server.engines.worker import execute_job
from tablekeeper.server.model import AttemptOutcome, RunParameters
from tablekeeper.testing.chance import chance_of
from tablekeeper.testing.loop import Call
from tablekeeper.testing.process import Process
from tablekeeper.testing.store import take_step
from tablekeeper.testing.worker import open_table
from tablekeeper.testing.world import World

__all__ = ["Machine", "RunningJob", "SimulatedEngines"]

T = TypeVar("T")

_DIES_WITH_MINDER = 0.4
"""How often nobody is left to say that a worker died."""


class EngineError(TablekeeperError):
    """The machine could not start a process."""


@dataclass(eq=False)
class RunningJob:
    """One job: the process that works on it, and what it has said so far."""

    job: Job
    process: Process
    job_id: str
    has_minder: bool
    report: JobReport | None = None
    is_asked_to_stop: bool = False
    is_over: bool = False

    @property
    def is_alive(self) -> bool:
        return not self.is_over and not self.process.is_dead


@dataclass(eq=False)
class Machine:
    """What the instances of one machine share: the folder of its jobs. `refused` never start any more."""

    world: World
    name: str
    started: Callable[[RunningJob], None]
    jobs: dict[str, RunningJob] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def start(self, job: Job) -> str:
        if job.name in self.jobs:
            return self.jobs[job.name].job_id
        number = sum(name.startswith("worker-") for name in self.world.watch.posts) + 1
        process = self.world.process(f"worker-{number}", host=self.name)
        post = self.world.watch.post_of(process)
        # The jobs of all workers are those of one actor, so that faults can name them.
        post.actor, post.job, post.doing = "worker", number - 1, job.action.value
        has_minder = chance_of("minder", process.name).random() >= _DIES_WITH_MINDER
        running = RunningJob(job, process, f"{self.name}:{process.pid}:{job.name}", has_minder)
        self.jobs[job.name] = running
        if job.name in self.refused:
            running.is_over = True
            return running.job_id
        self.started(running)
        self.world.start(process, lambda: self._work(running))
        return running.job_id

    def _work(self, running: RunningJob) -> None:
        job, process = running.job, running.process

        def tell_plan(instant: str) -> None:
            running.report = JobReport(JobState.RUNNING, plan=instant)

        table = open_table(
            self.world.storage_of(process),
            process,
            options_in=self.world.watch.storage,
            options={**job.options, INDEX_DROP: "false"},
        )
        running.report = execute_job(table, job, tell_plan)
        running.is_over = True


class _ProcessEngine:
    """See `engines.protocol.Executor`: the jobs of one machine, as one instance there deals with them."""

    name = "arrow"

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine = machine
        self._process = process

    def validate(self, parameters: RunParameters) -> None:
        del parameters

    def start(self, job: Job) -> str:
        return self._step("start", lambda: self._machine.start(job))

    def find(self, job: Job) -> str | None:
        def found() -> str | None:
            if job.name in self._machine.jobs:
                return self._machine.jobs[job.name].job_id
            self._machine.refused.add(job.name)
            return None

        return self._step("find", found)

    def can_reach(self, job_id: str) -> bool:
        return any(each.job_id == job_id for each in self._machine.jobs.values())

    def poll(self, job_id: str, job: Job) -> JobReport:
        del job
        running = self._running(job_id)
        report = running.report
        if report is not None and report.state is JobState.ENDED:
            return report
        plan = report.plan if report is not None else None
        if running.is_alive:
            return JobReport(JobState.RUNNING, plan=plan)
        if running.is_asked_to_stop:
            return JobReport(JobState.ENDED, plan, AttemptOutcome.CANCELLED, "it was asked to stop")
        if running.has_minder:
            return JobReport(JobState.ENDED, plan, AttemptOutcome.FAILED, "the process ended with code -9")
        return JobReport(JobState.UNKNOWN, plan)

    def cancel(self, job_id: str) -> None:
        running = self._running(job_id)
        if running.is_alive:
            running.is_asked_to_stop = True
            self._process.loop.kill(running.process)

    def close(self) -> None:
        return None

    def _running(self, job_id: str) -> RunningJob:
        return next(each for each in self._machine.jobs.values() if each.job_id == job_id)

    def _step(self, what: str, call: Callable[[], T]) -> T:
        world = self._machine.world
        about_to = Call(what, f"engine/{self._machine.name}", changes=True)
        return take_step(self._process, world.watch, about_to, call, failure=_engine_error)


class SimulatedEngines(Engines):
    """The one engine of an instance, by whatever name it is asked for."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self.default = "arrow"
        self._engine: Executor = _ProcessEngine(machine, process)

    def find(self, name: str) -> Executor:
        del name
        return self._engine

    def close(self) -> None:
        return None


def _engine_error(path: str, what: str) -> EngineError:
    return EngineError(f"{path}: {what}")
