"""The engine `hudi-java`: spark-submit with Hudi's bundle; Java executes the service through its SQL procedures.

Hudi's bundle fits one release of Spark, which is seldom that of the service. Options of the engine say where it is:
`hudi_bundle` is the jar, `hudi_python` an interpreter that has the PySpark of that release and tablekeeper (by default
the service's own), `hudi_master` where it runs (by default all cores of this machine).
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.engines import worker
from tablekeeper.server.engines.process import Command, EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Job
from tablekeeper.server.engines.spark_submit import submit_arguments, validate_for_spark

__all__ = ["make_hudi_java"]

_SESSION = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}
_PLACE_OF_PYSPARK = "import tablekeeper.server.engines.worker, pyspark; print(pyspark.__path__[0])"
_LOOK_S = 60


def make_hudi_java(context: EngineContext) -> ProcessExecutor:
    """The engine; `InvalidRequestError` says what it needs and does not have."""
    options = dict(context.options or {})
    bundle = options.get("hudi_bundle", "")
    if not bundle or not Path(bundle).is_file():
        raise InvalidRequestError(
            f"the engine hudi-java needs Hudi's Spark bundle: set its option hudi_bundle to the jar, not {bundle!r}"
        )
    python = options.get("hudi_python", sys.executable)
    home = _spark_home(python)
    context = replace(context, master=options.get("hudi_master", "local[*]"))
    script = str(Path(worker.__file__))
    warehouse = context.work_dir / "jobs" / "warehouse"

    def command(job: Job, job_file: Path) -> Command:
        arguments = [*submit_arguments(str(home / "bin" / "spark-submit"), context, job), "--jars", bundle]
        for key, value in {**_SESSION, "spark.sql.warehouse.dir": str(warehouse)}.items():
            arguments += ["--conf", f"{key}={value}"]
        environment = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_HOME": str(home)}
        return Command((*arguments, script, str(job_file), "java"), environment)

    return ProcessExecutor("hudi-java", context, command=command, validate=validate_for_spark)


def _spark_home(python: str) -> Path:
    """Where the PySpark of this interpreter lies."""
    try:
        told = subprocess.run(
            [python, "-c", _PLACE_OF_PYSPARK], capture_output=True, text=True, timeout=_LOOK_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidRequestError(
            f"the engine hudi-java needs an interpreter with the PySpark of its bundle and tablekeeper: {python} is "
            f"none ({error}). Set its option hudi_python."
        ) from error
    return Path(told.stdout.strip())
