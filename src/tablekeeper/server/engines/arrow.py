"""The engine `arrow`: worker processes with tablekeeper's own local engine, without a JVM.

On Linux they are forked from a warm process. Elsewhere libraries of the system do not stand a fork, and each is started
as a program.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tablekeeper.server.engines.forks import ForkServer
from tablekeeper.server.engines.parameters import parse_resource
from tablekeeper.server.engines.process import Command, EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Job
from tablekeeper.server.model import RunParameters

__all__ = ["make_arrow"]


def make_arrow(context: EngineContext) -> ProcessExecutor:
    """The engine. Resources are checked, and mean nothing to it: it has the memory of its machine."""
    can_fork = sys.platform == "linux"
    fork_server = ForkServer(context.work_dir / "jobs", runtime=context.runtime) if can_fork else None
    return ProcessExecutor("arrow", context, command=_command, validate=_validate, fork_server=fork_server)


def _command(job: Job, job_file: Path) -> Command:
    return Command((sys.executable, "-m", "tablekeeper.server.engines.worker", str(job_file)), {})


def _validate(parameters: RunParameters) -> None:
    parse_resource(parameters.resource)
