"""The Spark session that every Spark contender gets: two cores, 6 GB, four shuffle partitions, UTC."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  PySpark's own convention

from bench.workload import Check

__all__ = ["aggregate_frame", "hudi_jar", "start_session"]


def start_session(name: str, settings: Mapping[str, str]) -> Any:
    """A fresh local session."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName(name)
    fixed = {
        "spark.driver.memory": "6g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in {**fixed, **settings}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def aggregate_frame(frame: Any) -> Check:
    """The common aggregate over a DataFrame."""
    row = frame.agg(F.sum("f1").alias("f1"), F.count("*").alias("n"), F.max("s1").alias("s1")).collect()[0]
    return Check(row["n"], row["f1"], row["s1"])


def hudi_jar() -> str:
    """Where Maven put the bundle; `make bench` names it in HUDI_BUNDLE."""
    artifact, version = "hudi-spark3.5-bundle_2.12", "1.2.0"
    default = Path.home() / f".m2/repository/org/apache/hudi/{artifact}/{version}/{artifact}-{version}.jar"
    jar = Path(os.environ.get("HUDI_BUNDLE") or default)
    if not jar.is_file():
        raise FileNotFoundError(f"{jar} is missing: `make bench` fetches it")
    return str(jar)
