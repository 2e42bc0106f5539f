"""Choosing the engine from what the caller passed."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from weakref import WeakSet

from tablekeeper.engine.local import LocalEngine
from tablekeeper.engine.protocol import Engine, Progress
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import Runtime
from tablekeeper.table.arguments import checked_runtime

__all__ = ["choose_engine"]

# Registering starts a Python process, so it is done once per session.
_REGISTERED: WeakSet[Any] = WeakSet()


def choose_engine(
    *, spark: Any, engine: str | Engine | None, runtime: Runtime, progress: Progress | None = None
) -> Engine:
    """Spark if a session is given, else the engine that is given or named. Spark shows its own progress bar."""
    checked_runtime(runtime)
    if engine is not None and not isinstance(engine, str):
        if spark is not None:
            raise InvalidRequestError("both an engine and spark=… were given: leave one of them out")
        if not callable(getattr(engine, "run", None)):
            raise InvalidRequestError(f"engine {engine!r} is no engine: use 'spark' with spark=…, or 'local'")
        return engine
    if engine not in (None, "spark", "local"):
        raise InvalidRequestError(f"engine {engine!r}: use 'spark' with spark=…, or 'local'")
    if engine == "local":
        if spark is not None:
            raise InvalidRequestError("engine='local' runs without Spark: leave out spark=…, or choose engine='spark'")
        return LocalEngine(runtime=runtime, progress=progress)
    if spark is None:
        raise InvalidRequestError(
            "pass spark=… (a SparkSession) to work on Spark, or engine='local' to work without it"
        )
    # Importing PySpark takes time and is optional: only those who bring a session pay for it.
    from tablekeeper.engine.spark import SparkEngine  # noqa: PLC0415

    chosen = SparkEngine(spark)
    if chosen.chose_interpreter:
        _register_format(spark)
    return chosen


def _register_format(spark: Any) -> None:
    """Make `spark.read.format("tablekeeper")` known to a session whose own Python could not find it.

    Everywhere else Spark 4 finds the format by itself. The data source is imported by name: it stands above the
    tables that it opens.
    """
    if spark in _REGISTERED or not hasattr(spark, "dataSource"):
        return
    import_module("tablekeeper.spark_datasource").register(spark)
    _REGISTERED.add(spark)
