"""The Flink engine: kernels run in the Python workers of Flink's task managers, as one batch job a run.

Tasks travel as bytes in the elements of a collection, and results come back as bytes. Tables are pyarrow tables, as on
the local engine, which also does whatever needs no kernel: this engine is there for the services of tables, not as
somebody's way to hold rows. Little work is done where the caller is, because a job takes seconds to begin.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyflink.common import Configuration
from pyflink.datastream import FlatMapFunction, RuntimeExecutionMode, StreamExecutionEnvironment

from tablekeeper.engine.local import LocalEngine, parts_of
from tablekeeper.engine.protocol import Frame, Kernel, RowKernel, SourceKernel
from tablekeeper.errors import TablekeeperError

__all__ = ["FlinkEngine", "submitted_engine"]

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

_DRIVER_BYTES = 4 << 20
_SPECULATION = "execution.batch.speculative.enabled"


class FlinkEngine:
    """Runs kernels as Flink jobs; tables are pyarrow tables."""

    name = "flink"
    has_workers = True
    streams = False
    scans_parquet = False
    # A region that failed is run again where the job has a restart strategy.
    may_repeat_tasks = True

    def __init__(
        self, environment: StreamExecutionEnvironment, *, title: str = "tablekeeper", driver_bytes: int = _DRIVER_BYTES
    ) -> None:
        environment.set_runtime_mode(RuntimeExecutionMode.BATCH)
        self._environment = environment
        self._title = title
        self._driver_bytes = driver_bytes
        self._driver = LocalEngine()

    @property
    def speculates(self) -> bool:
        return bool(self._configuration.get_boolean(_SPECULATION, False))

    @property
    def parallelism(self) -> int:
        return int(self._environment.get_parallelism())

    def run(self, kernel: Kernel[T, R], tasks: Sequence[T], *, label: str, weights: Sequence[float] = ()) -> list[R]:
        if not tasks:
            return []
        if weights and sum(weights) <= self._driver_bytes:
            return self._driver.run(kernel, tasks, label=label, weights=weights)
        # The heaviest first, so that none of them is left to the end.
        order = sorted(range(len(tasks)), key=lambda n: -weights[n]) if weights else range(len(tasks))
        answers = dict(self._mapped(partial(_run_task, kernel), [(n, tasks[n]) for n in order], label))
        return [answers[number] for number in range(len(tasks))]

    def consume(self, kernel: SourceKernel[C, R], context: C, source: Frame, *, label: str, parts: int = 0) -> list[R]:
        shares = [_packed(part) for part in parts_of(source, self.parallelism)]
        answers = self._mapped(partial(_run_source, kernel, context), list(enumerate(shares)), label)
        return [result for _, results in answers for result in results]

    def sort(self, source: Frame, columns: Sequence[str], *, parts: int = 0) -> Frame:
        return self._driver.sort(source, columns, parts=parts)

    def incoming(self, source: Any) -> Frame:
        return self._driver.incoming(source)

    def schema_of(self, source: Frame) -> pa.Schema:
        return self._driver.schema_of(source)

    def arrow_schema(self, schema: Any) -> pa.Schema:
        return self._driver.arrow_schema(schema)

    def native_schema(self, schema: pa.Schema) -> pa.Schema:
        return self._driver.native_schema(schema)

    def rows(self, kernel: RowKernel[T], tasks: Sequence[T], *, schema: pa.Schema, weights: Sequence[float]) -> Frame:
        made = self.run(partial(_make_rows, kernel), tasks, label="read", weights=weights)
        return pa.Table.from_batches([batch for data in made for batch in _unpacked(data)], schema=schema)

    def scan_parquet(self, uris: Sequence[str], *, schema: pa.Schema, output: pa.Schema, where: str | None) -> None:
        return None

    def union(self, frames: Sequence[Frame]) -> Frame:
        return self._driver.union(frames)

    def _mapped(self, work: Callable[[int, Any], Any], items: Sequence[tuple[int, Any]], label: str) -> list[Any]:
        """The answers for all items by number; the first error among them is raised."""
        elements = [pickle.dumps(item) for item in items]
        stream = self._environment.from_collection(elements).rebalance()
        answered = stream.flat_map(_Answers(work))
        answered.set_parallelism(min(self.parallelism, len(elements)))
        with answered.execute_and_collect(f"{self._title}: {label}") as results:
            answers = sorted((pickle.loads(data) for data in results), key=lambda answer: answer[0])  # noqa: S301
        for _, result in answers:
            if isinstance(result, TablekeeperError):
                raise result
        return answers

    @property
    def _configuration(self) -> Configuration:
        java = self._environment._j_stream_execution_environment.getConfiguration()
        return Configuration(j_configuration=java)


class _Answers(FlatMapFunction):  # type: ignore[misc]
    """What `work` gives for an item. One of our errors is an answer too: Flink would hide its type."""

    def __init__(self, work: Callable[[int, Any], Any]) -> None:
        self._work = work

    def flat_map(self, value: bytes) -> Iterator[bytes]:
        number, item = pickle.loads(value)  # noqa: S301
        try:
            result = self._work(number, item)
        except TablekeeperError as error:
            result = error
        yield pickle.dumps((number, result))


def submitted_engine(title: str, *, driver_bytes: int | None = None) -> FlinkEngine:
    """The engine of a program that was started by `flink run`, whose arguments say where it runs."""
    environment = StreamExecutionEnvironment.get_execution_environment()
    return FlinkEngine(environment, title=title, driver_bytes=_DRIVER_BYTES if driver_bytes is None else driver_bytes)


def _run_task(kernel: Callable[[Any], Any], number: int, task: Any) -> Any:
    return kernel(task)


def _run_source(kernel: Callable[..., list[Any]], context: Any, number: int, rows: bytes) -> list[Any]:
    return kernel(context, number, iter(_unpacked(rows)))


def _make_rows(kernel: Callable[[Any], Iterator[pa.RecordBatch]], task: Any) -> bytes:
    return _packed(kernel(task))


def _packed(batches: Iterator[pa.RecordBatch]) -> bytes:
    """Batches of one schema as bytes; none as no bytes."""
    first = next(batches, None)
    if first is None:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _unpacked(data: bytes) -> list[pa.RecordBatch]:
    return list(pa.ipc.open_stream(data)) if data else []
