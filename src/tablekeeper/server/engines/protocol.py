"""`Executor`: runs attempts outside of the service's own process.

A job outlives the instance that started it. Its id, kept in the attempt's row, is enough for any instance that can
reach the job to poll, cancel and read it; `can_reach` says whether this one can. An executor starts programs from lists
of arguments and never through a shell. It validates what a request asks for before anything starts.

Whatever the executor says, the table's own guard decides who may act: a job that runs although its lease is lost finds
the plan held, or is fenced at its commit.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tablekeeper.server.model import AttemptOutcome, RunParameters, ServiceAction

__all__ = ["Executor", "Job", "JobReport", "JobState"]


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt as an engine gets it. `instant` is None where the job plans by itself.

    `options` are Hudi's names, over those of the table. `planning` are arguments of the schedule call (order columns,
    retention, cancellable). Output goes to `log_path`, what came of it to `result_path`. `trace` is the
    trace context to go on from. `label` tells the attempt from all others whose files are in the working folder.
    """

    operation_id: int
    number: int
    base_path: str
    action: ServiceAction
    instant: str | None
    log_path: str
    result_path: str
    time_limit_s: float
    parameters: RunParameters = field(default_factory=RunParameters)
    options: Mapping[str, str] = field(default_factory=dict)
    planning: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    trace: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        return f"tablekeeper-{self.label or f'{self.operation_id}-{self.number}'}"


class JobState(enum.Enum):
    """What an engine knows of a job."""

    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"
    """The engine knows no such job: it never started, or died without a trace."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What `poll` found. `plan` is the instant that a job without one has scheduled, as soon as it is known.

    `outcome`, `message` and `result` are set once it has ended.
    """

    state: JobState
    plan: str | None = None
    outcome: AttemptOutcome | None = None
    message: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """One way to run jobs. All methods may be called from several threads, and return soon."""

    @property
    def name(self) -> str: ...

    def validate(self, parameters: RunParameters) -> None:
        """`InvalidRequestError` if this engine cannot do what is asked for."""
        ...

    def start(self, job: Job) -> str:
        """Start it and return the id that the engine knows it by. Starting the same attempt twice is the same job."""
        ...

    def find(self, job: Job) -> str | None:
        """The id of the job of this attempt, for an instance that died before it could write it down.

        None if there is none here; then none will start any more.
        """
        ...

    def can_reach(self, job_id: str) -> bool:
        """Whether this instance can poll and cancel that job: not so for a process of another machine."""
        ...

    def poll(self, job_id: str, job: Job) -> JobReport:
        """How it is doing."""
        ...

    def cancel(self, job_id: str) -> None:
        """End it: politely first, by force a little later. No error if it has ended."""
        ...

    def close(self) -> None:
        """Let go of what this executor holds. Jobs that can outlive the instance go on."""
        ...
