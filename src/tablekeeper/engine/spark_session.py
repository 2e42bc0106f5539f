"""A quiet local Spark session for demonstrations and first steps.

Python workers run with the caller's interpreter, whatever is first on the path. What the Java process prints goes into
a file: its launcher warns before any session exists that could be told to be quiet. Errors still reach the caller
as exceptions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["local_session", "submitted_session", "warm_session"]


def local_session(
    name: str, *, scratch: Path, cores: int | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `cores` cores of this machine (all by default), with times in UTC.

    Into the directory `scratch` goes what Spark writes beside tables: its warehouse, and its output as `spark.log`.
    `settings` go over the usual ones. A session that is already running is returned as it is.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    usual = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores or os.cpu_count() or 1),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores or '*'}]").appName(name)
    for key, value in {**usual, **(settings or {})}.items():
        builder = builder.config(key, value)
    with _stderr_of_children_in(scratch / "spark.log"):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def submitted_session(name: str) -> SparkSession:
    """The session of a program that was started by spark-submit, whose arguments say where it runs."""
    return SparkSession.builder.appName(name).getOrCreate()


def warm_session(name: str, *, master: str, scratch: Path) -> SparkSession:
    """A session that serves many small jobs on this machine, or on `master` if that is no local one."""
    settings = {"spark.scheduler.mode": "FAIR", "spark.master": master}
    return local_session(name, scratch=scratch, settings=settings)


@contextmanager
def _stderr_of_children_in(log: Path) -> Iterator[None]:
    """Processes that start meanwhile have their standard error in `log`, for as long as they live."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
