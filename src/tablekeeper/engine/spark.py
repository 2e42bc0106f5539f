"""The Spark engine: kernels run in Spark's Python workers, through the DataFrame API only.

Tasks travel as bytes in a closure over a range of slots and rows of the caller's DataFrame as Arrow
batches (`mapInArrow`), so Spark Connect works too. Results come back as bytes.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from tablekeeper.engine.local import LocalEngine
from tablekeeper.engine.protocol import Frame, Kernel, RowKernel, SourceKernel, balanced_shares
from tablekeeper.engine.spark_errors import our_errors, signed_errors
from tablekeeper.engine.spark_types import arrow_from_spark, in_types_of, spark_from_arrow
from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.runtime import FRUGAL_ENVIRONMENT, memory_left_bytes

__all__ = ["SparkEngine", "joined_batches"]

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

_RESULT_TYPE = "number long, result binary"
_RESULT_SCHEMA = pa.schema([("number", pa.int64()), ("result", pa.binary())])
# Spark's batches have 10,000 rows unless its user says otherwise. Kernels take more in one go, but not more bytes than
# this: rows may be long.
_ROWS_A_BATCH = 1 << 16
_BYTES_A_BATCH = 16 << 20
_BATCHES_IN_MEMORY = 16
# A Spark task costs up to 0.1 s before its kernel starts, so that tasks share slots; the more there are, the more
# slots they get, which evens out their run times and shortens what a lost executor has to do again.
_TASKS_A_SLOT = 8
_SLOTS_A_CORE = 3
_DRIVER_BYTES = 4 << 20
_SPECULATION = "spark.speculation"
_WORKER_MEMORY = "spark.executor.pyspark.memory"


class SparkEngine:
    """Runs kernels as Spark jobs; tables are DataFrames."""

    name = "spark"
    has_workers = True
    streams = True
    scans_parquet = True
    may_repeat_tasks = True

    def __init__(self, spark: SparkSession, *, driver_bytes: int = _DRIVER_BYTES) -> None:
        self._spark = spark
        self._driver_bytes = driver_bytes
        self._driver = LocalEngine()
        self.chose_interpreter = _use_this_interpreter(spark)

    @property
    def speculates(self) -> bool:
        return str(self._spark.conf.get(_SPECULATION, "false")).lower() == "true"

    @property
    def parallelism(self) -> int:
        return _default_parallelism(self._spark)

    def run(self, kernel: Kernel[T, R], tasks: Sequence[T], *, label: str, weights: Sequence[float] = ()) -> list[R]:
        if not tasks:
            return []
        if weights and sum(weights) <= self._driver_bytes:
            # A job takes longer than this much work: it is done where the caller is.
            return self._driver.run(kernel, tasks, label=label, weights=weights)
        slots = _assign(tasks, weights, slots=self._slots(len(tasks)))
        job = _TaskJob(kernel, [pickle.dumps(slot) for slot in slots])
        frame = self._mapped(self._spark.range(0, len(slots), 1, len(slots)), job, _RESULT_TYPE)
        with self._described(label), our_errors():
            answers = dict(_loaded(frame.collect()))
        return [answers[number] for number in range(len(tasks))]

    def consume(self, kernel: SourceKernel[C, R], context: C, source: Frame, *, label: str, parts: int = 0) -> list[R]:
        if parts > 0:
            source = source.coalesce(parts)
        frame = self._mapped(source, _SourceJob(kernel, context), _RESULT_TYPE)
        with self._described(label), our_errors():
            answers = _loaded(frame.collect())
        return [result for _, results in answers for result in results]

    def sort(self, source: Frame, columns: Sequence[str], *, parts: int = 0) -> Frame:
        by = [functions.col(path).cast("string") for path in columns]
        if parts > 0:
            return source.repartitionByRange(parts, *by).sortWithinPartitions(*by)
        return source.sort(*by)

    def incoming(self, source: Any) -> Frame:
        return source

    def schema_of(self, source: Frame) -> pa.Schema:
        # A column answers to every name, so its class is asked.
        if not callable(getattr(type(source), "mapInArrow", None)):
            raise InvalidRequestError(
                f"the Spark engine takes a Spark DataFrame, not {type(source).__name__}. "
                "Make one with spark.createDataFrame, or open the table with engine='local' for pyarrow tables"
            )
        return arrow_from_spark(source.schema)

    def arrow_schema(self, schema: Any) -> pa.Schema:
        if isinstance(schema, pa.Schema):
            return schema
        if isinstance(schema, StructType):
            return arrow_from_spark(schema)
        raise InvalidRequestError(f"a schema is a Spark StructType or a pyarrow.Schema, not {type(schema).__name__}")

    def native_schema(self, schema: pa.Schema) -> StructType:
        return spark_from_arrow(schema)

    def rows(self, kernel: RowKernel[T], tasks: Sequence[T], *, schema: pa.Schema, weights: Sequence[float]) -> Frame:
        spark_schema = spark_from_arrow(schema)
        if not tasks:
            return self._spark.createDataFrame([], spark_schema)
        slots = _assign(tasks, weights, slots=self._slots(len(tasks)))
        job = _RowJob(kernel, [pickle.dumps(slot) for slot in slots], arrow_from_spark(spark_schema))
        return self._mapped(self._spark.range(0, len(slots), 1, len(slots)), job, spark_schema)

    def scan_parquet(
        self, uris: Sequence[str], *, schema: pa.Schema, output: pa.Schema, where: str | None
    ) -> Frame | None:
        if not uris or not all(uri.startswith("file:") for uri in uris):
            return None
        # Files of Hudi count days in one calendar for all times; before 1900 Spark 3 wants to be told so.
        reader = self._spark.read.option("datetimeRebaseMode", "CORRECTED").schema(spark_from_arrow(schema))
        frame = reader.parquet(*map(_literal_path, uris))
        if where:
            frame = frame.where(where)
        return frame.select(*(f"`{name}`" for name in output.names))

    def union(self, frames: Sequence[Frame]) -> Frame:
        result: DataFrame = frames[0]
        for frame in frames[1:]:
            result = result.unionByName(frame)
        return result

    def _slots(self, tasks: int) -> int:
        cores = self.parallelism
        return min(tasks, max(cores, min(cores * _SLOTS_A_CORE, tasks // _TASKS_A_SLOT)))

    def _mapped(self, frame: Frame, job: Callable[..., Any], schema: Any) -> Frame:
        """The rows that `job` makes of those of `frame`, in workers that reserve little memory if they are limited.

        Spark takes the environment of the workers down when the function is given to it, so that the session's own is
        changed for that moment only. Over Connect it cannot be reached: there it is the user's to set.
        """
        context = getattr(self._spark, "_sc", None)
        if context is None or not self._spark.conf.get(_WORKER_MEMORY, ""):
            return frame.mapInArrow(job, schema)
        added = {name: text for name, text in FRUGAL_ENVIRONMENT.items() if name not in context.environment}
        context.environment.update(added)
        try:
            return frame.mapInArrow(job, schema)
        finally:
            for name in added:
                context.environment.pop(name, None)

    @contextmanager
    def _described(self, label: str) -> Iterator[None]:
        """Name the job in Spark's user interface, where the session has a context (not over Connect)."""
        context = getattr(self._spark, "_sc", None)
        if context is None:
            yield
            return
        before = context.getLocalProperty("spark.job.description")
        context.setLocalProperty("spark.job.description", f"tablekeeper: {label}")
        try:
            yield
        finally:
            context.setLocalProperty("spark.job.description", before)


class _TaskJob:
    """For each slot number that comes in, run the kernel over the slot's tasks."""

    def __init__(self, kernel: Callable[[Any], Any], slots: list[bytes]) -> None:
        self._kernel = kernel
        self._slots = slots

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for slot in batch.column(0).to_pylist():
                for number, task in pickle.loads(self._slots[slot]):  # noqa: S301
                    yield _answer(number, partial(self._kernel, task))


class _RowJob:
    """For each slot number that comes in, the rows that the kernel makes of the slot's tasks, as Spark takes them."""

    def __init__(
        self, kernel: Callable[[Any], Iterator[pa.RecordBatch]], slots: list[bytes], schema: pa.Schema
    ) -> None:
        self._kernel = kernel
        self._slots = slots
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with signed_errors():
            for batch in batches:
                for slot in batch.column(0).to_pylist():
                    for _, task in pickle.loads(self._slots[slot]):  # noqa: S301
                        for rows in self._kernel(task):
                            yield in_types_of(self._schema, rows)


class _SourceJob:
    """Run the kernel once over all rows of one partition of the caller's DataFrame."""

    def __init__(self, kernel: Callable[..., list[Any]], context: Any) -> None:
        self._kernel = kernel
        self._context = context

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = _partition_number()
        yield _answer(part, partial(self._kernel, self._context, part, joined_batches(batches)))


def joined_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer and longer batches, as far as they are short, and in no empty ones.

    Few long vector operations are faster. Spark could make longer batches itself, but the setting belongs to its
    user, who knows how long the rows are.
    """
    left = memory_left_bytes()
    most_bytes = _BYTES_A_BATCH if left is None else min(_BYTES_A_BATCH, left // _BATCHES_IN_MEMORY)
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if waiting and (rows + batch.num_rows > _ROWS_A_BATCH or size + batch.nbytes > most_bytes):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _use_this_interpreter(spark: SparkSession) -> bool:
    """On a local master, run Python workers with the interpreter of the caller; True if Spark would take another.

    Spark starts whatever `python3` is first on the path, which in a virtual environment that was not activated
    is another installation, without this package. An explicit choice of the user's is left alone.
    """
    context = getattr(spark, "_sc", None)
    if context is None or not str(context.master).startswith("local"):
        return False
    chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if chosen:
        return False
    context.pythonExec = sys.executable
    first = shutil.which("python3")
    return first is None or Path(first).parent != Path(sys.executable).parent


def _literal_path(uri: str) -> str:
    """The path with characters escaped that Spark would take for a pattern: partitions may be called anything."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", uri)


def _answer(number: int, work: Callable[[], Any]) -> pa.RecordBatch:
    """What `work` gives. One of our errors is an answer too: Spark would repeat the task, and hide the error's type."""
    try:
        result = work()
    except TablekeeperError as error:
        result = error
    return pa.RecordBatch.from_arrays([[number], [pickle.dumps(result)]], schema=_RESULT_SCHEMA)


def _loaded(rows: Sequence[Any]) -> list[tuple[int, Any]]:
    """The answers by number; the first error among them is raised."""
    answers = sorted((row["number"], bytes(row["result"])) for row in rows)
    loaded = [(number, pickle.loads(data)) for number, data in answers]  # noqa: S301
    for _, result in loaded:
        if isinstance(result, TablekeeperError):
            raise result
    return loaded


def _partition_number() -> int:
    from pyspark import TaskContext  # noqa: PLC0415 (exists on workers only)

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _assign(tasks: Sequence[T], weights: Sequence[float], *, slots: int) -> list[list[tuple[int, T]]]:
    """Numbered tasks, spread over slots."""
    shares = balanced_shares(weights or [1.0] * len(tasks), slots)
    return [[(number, tasks[number]) for number in share] for share in shares]


def _default_parallelism(spark: SparkSession) -> int:
    context = getattr(spark, "_sc", None)
    if context is not None:
        return int(context.defaultParallelism)
    return int(spark.conf.get("spark.default.parallelism", "8") or "8")
