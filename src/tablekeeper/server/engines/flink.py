"""The engine `flink`: `flink run` of a small program whose tasks run in the task managers of a Flink cluster.

The program's own process guards and commits, as everywhere, and belongs to its minder. Options of the engine:
`flink_python` is an interpreter that has the `apache-flink` package and tablekeeper, also on the task managers;
`flink_address` is the job manager as host:port, by default `localhost:8081`; up to `flink_driver_bytes` of work (4 MiB
by default) are done by the program itself.

Memory of a cluster that runs already is its own: what a request asks for counts where Flink starts containers for a
job. Jobs of a program that was cancelled, or died, are cancelled on the cluster too; what still runs of them writes
files that nobody takes for committed.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.engines import worker
from tablekeeper.server.engines.parameters import flink_settings, parse_resource
from tablekeeper.server.engines.process import Command, EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Job, JobReport, JobState
from tablekeeper.server.model import RunParameters

__all__ = ["FlinkExecutor", "flink_arguments", "make_flink"]

_LOG = logging.getLogger(__name__)
_ADDRESS = re.compile(r"[A-Za-z0-9.\-]{1,253}:\d{1,5}")
_PLACE_OF_FLINK = "import tablekeeper.server.engines.worker, pyflink; print(pyflink.__path__[0])"
_LOOK_S = 60
_ANSWER_S = 10
_ENDED = ("FINISHED", "CANCELED", "FAILED", "CANCELLING")


class FlinkExecutor(ProcessExecutor):
    """A process as for other engines; jobs of its own on the cluster end with it."""

    def __init__(
        self, context: EngineContext, *, home: Path, python: str, address: str, driver_bytes: int | None
    ) -> None:
        self._address = address
        script = str(Path(worker.__file__))

        def command(job: Job, job_file: Path) -> Command:
            arguments = flink_arguments(str(home / "bin" / "flink"), job, address=address, python=python)
            told = [] if driver_bytes is None else [str(driver_bytes)]
            return Command((*arguments, "-py", script, str(job_file), "flink", *told), {"FLINK_HOME": str(home)})

        super().__init__("flink", context, command=command, validate=_validate)

    def poll(self, job_id: str, job: Job) -> JobReport:
        report = super().poll(job_id, job)
        if report.state is JobState.UNKNOWN or (report.state is JobState.ENDED and not Path(job.result_path).exists()):
            self._cancel_on_cluster(job.name)
        return report

    def cancel(self, job_id: str) -> None:
        super().cancel(job_id)
        self._cancel_on_cluster(Path(job_id.split(":", 2)[2]).stem)

    def _cancel_on_cluster(self, name: str) -> None:
        """Cancel the jobs of this attempt, by their names, if the cluster answers."""
        url = f"http://{self._address}/jobs"
        try:
            with urlopen(f"{url}/overview", timeout=_ANSWER_S) as answer:  # noqa: S310 (an address of the operator's)
                jobs = json.load(answer)["jobs"]
            for job in jobs:
                if job["name"].startswith(f"{name}: ") and job["state"] not in _ENDED:
                    request = Request(f"{url}/{job['jid']}?mode=cancel", method="PATCH")  # noqa: S310
                    urlopen(request, timeout=_ANSWER_S).close()  # noqa: S310
                    _LOG.info("%s: cancelled job %s on the cluster", name, job["jid"])
        except (URLError, OSError, ValueError, KeyError) as error:
            _LOG.warning("%s: cannot cancel its jobs on %s: %s", name, self._address, error)


def make_flink(context: EngineContext) -> FlinkExecutor:
    """The engine; `InvalidRequestError` says what it needs and does not have."""
    options: Mapping[str, str] = context.options or {}
    address = options.get("flink_address", "localhost:8081")
    if not _ADDRESS.fullmatch(address):
        raise InvalidRequestError(f"the engine flink: its option flink_address is host:port, not {address!r}")
    python = options.get("flink_python", sys.executable)
    size = options.get("flink_driver_bytes")
    if size is not None and not (size.isascii() and size.isdigit()):
        raise InvalidRequestError(f"the engine flink: its option flink_driver_bytes is a whole number, not {size!r}")
    driver_bytes = None if size is None else int(size)
    return FlinkExecutor(context, home=_flink_home(python), python=python, address=address, driver_bytes=driver_bytes)


def flink_arguments(program: str, job: Job, *, address: str, python: str) -> tuple[str, ...]:
    """The program with everything that goes before the script."""
    resource = parse_resource(job.parameters.resource)
    settings = dict(flink_settings(job.parameters))
    if resource.driver_memory:
        settings["jobmanager.memory.process.size"] = resource.driver_memory
    if resource.executor_memory:
        settings["taskmanager.memory.process.size"] = resource.executor_memory
    arguments = [program, "run", "-m", address]
    if job.parameters.parallelism is not None:
        arguments += ["-p", str(job.parameters.parallelism)]
    arguments += [f"-D{key}={value}" for key, value in sorted(settings.items())]
    return (*arguments, "-pyexec", python, "-pyclientexec", python)


def _validate(parameters: RunParameters) -> None:
    parse_resource(parameters.resource)
    flink_settings(parameters)


def _flink_home(python: str) -> Path:
    """Where the Flink of this interpreter lies."""
    try:
        told = subprocess.run(
            [python, "-c", _PLACE_OF_FLINK], capture_output=True, text=True, timeout=_LOOK_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidRequestError(
            f"the engine flink needs an interpreter with apache-flink and tablekeeper: {python} is none ({error}). "
            "Set its option flink_python."
        ) from error
    return Path(told.stdout.strip().splitlines()[-1])
