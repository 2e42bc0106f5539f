"""The engine `spark-submit`: any master that Spark knows; passed through, never through a shell."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.engines import worker
from tablekeeper.server.engines.parameters import parse_resource, spark_settings
from tablekeeper.server.engines.process import Command, EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Job
from tablekeeper.server.model import RunParameters

__all__ = ["find_spark_submit", "make_spark_submit", "submit_arguments", "validate_for_spark"]


def make_spark_submit(context: EngineContext) -> ProcessExecutor:
    """The engine; `spark_submit` among its options is the program, else the one of the installed PySpark."""
    program = find_spark_submit(context)
    script = str(Path(worker.__file__))

    def command(job: Job, job_file: Path) -> Command:
        arguments = submit_arguments(program, context, job)
        environment = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        return Command((*arguments, script, str(job_file), "spark"), environment)

    return ProcessExecutor("spark-submit", context, command=command, validate=validate_for_spark)


def find_spark_submit(context: EngineContext) -> str:
    """The program; `InvalidRequestError` says how to get one."""
    named = (context.options or {}).get("spark_submit")
    if named:
        return named
    home = os.environ.get("SPARK_HOME")
    package = find_spec("pyspark")
    places = [Path(home) / "bin"] if home else []
    if package is not None and package.origin is not None:
        places.append(Path(package.origin).parent / "bin")
    for place in places:
        if (place / "spark-submit").is_file():
            return str(place / "spark-submit")
    found = shutil.which("spark-submit")
    if found is None:
        raise InvalidRequestError("spark-submit was not found: install tablekeeper[spark], or set SPARK_HOME")
    return found


def submit_arguments(program: str, context: EngineContext, job: Job) -> tuple[str, ...]:
    """The program with everything that goes before the script."""
    resource = parse_resource(job.parameters.resource)
    arguments = [program, "--master", context.master or "local[*]", "--name", job.name]
    if resource.driver_memory:
        arguments += ["--driver-memory", resource.driver_memory]
    if resource.executor_memory:
        arguments += ["--executor-memory", resource.executor_memory]
    settings = {"spark.ui.showConsoleProgress": "false", **spark_settings(job.parameters)}
    for key, value in sorted(settings.items()):
        arguments += ["--conf", f"{key}={value}"]
    return tuple(arguments)


def validate_for_spark(parameters: RunParameters) -> None:
    """Resources and settings of Spark."""
    parse_resource(parameters.resource)
    spark_settings(parameters)
