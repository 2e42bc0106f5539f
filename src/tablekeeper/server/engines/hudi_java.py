"""The engine `hudi-java`: spark-submit with Hudi's bundle; Java executes the service through its SQL procedures.

Options of the engine: `hudi_bundle` (the jar), `spark_submit` (that of a Spark that fits the bundle) and `python` (an
interpreter that has that PySpark and tablekeeper).
"""

from __future__ import annotations

import sys
from pathlib import Path

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.engines import worker
from tablekeeper.server.engines.process import Command, EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Job
from tablekeeper.server.engines.spark_submit import find_spark_submit, submit_arguments, validate_for_spark

__all__ = ["make_hudi_java"]

_SESSION = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    # Times of the timeline are UTC, and Java takes those of its machine.
    "spark.driver.defaultJavaOptions": "-Duser.timezone=UTC",
    "spark.executor.defaultJavaOptions": "-Duser.timezone=UTC",
}


def make_hudi_java(context: EngineContext) -> ProcessExecutor:
    """The engine; `InvalidRequestError` if there is no bundle."""
    options = dict(context.options or {})
    bundle = options.get("hudi_bundle", "")
    if not bundle or not Path(bundle).is_file():
        raise InvalidRequestError(
            f"the engine hudi-java needs Hudi's Spark bundle: set its option hudi_bundle to the jar, not {bundle!r}"
        )
    program = find_spark_submit(context)
    environment = {"PYSPARK_PYTHON": options.get("python", sys.executable)}

    def command(job: Job, job_file: Path) -> Command:
        arguments = [*submit_arguments(program, context, job), "--jars", bundle]
        for key, value in _SESSION.items():
            arguments += ["--conf", f"{key}={value}"]
        return Command((*arguments, str(Path(worker.__file__)), str(job_file), "java"), environment)

    return ProcessExecutor("hudi-java", context, command=command, validate=validate_for_spark)
