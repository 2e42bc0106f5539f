"""The local engine: threads and Arrow, no JVM.

A full engine for small tables, scripts, tests and simulation. Arrow and numpy release the
interpreter lock while they work, so threads use all cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from tablekeeper.engine.protocol import Frame, Kernel, RowKernel, SourceKernel
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime

__all__ = ["LocalEngine"]

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

_MIN_ROWS_A_PART = 100_000


class LocalEngine:
    """Runs kernels on threads of this process; tables are pyarrow tables."""

    name = "local"
    may_repeat_tasks = False

    def __init__(self, *, threads: int | None = None, runtime: Runtime = SYSTEM_RUNTIME) -> None:
        self.parallelism = threads or os.cpu_count() or 1
        self._runtime = runtime

    def run(self, kernel: Kernel[T, R], tasks: Sequence[T], *, label: str, weights: Sequence[float] = ()) -> list[R]:
        order = sorted(range(len(tasks)), key=lambda i: -weights[i]) if weights else list(range(len(tasks)))
        results = self._runtime.threads.map(lambda i: (i, kernel(tasks[i])), order, width=self.parallelism)
        return [result for _, result in sorted(results, key=lambda pair: pair[0])]

    def consume(self, kernel: SourceKernel[C, R], context: C, source: Frame, *, label: str, parts: int = 0) -> list[R]:
        work = list(enumerate(self._parts(source)))
        results = self._runtime.threads.map(lambda p: kernel(context, p[0], p[1]), work, width=self.parallelism)
        return [result for part in results for result in part]

    def schema_of(self, source: Frame) -> pa.Schema:
        if isinstance(source, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
            return source.schema
        if isinstance(source, list) and source and isinstance(source[0], pa.RecordBatch):
            return source[0].schema
        raise InvalidRequestError(
            f"the local engine takes pyarrow tables, record batches and readers, not {type(source).__name__}. "
            "Convert the rows with pyarrow.Table.from_pylist or from_pandas, or open the table with spark=…"
        )

    def arrow_schema(self, schema: Any) -> pa.Schema:
        if isinstance(schema, pa.Schema):
            return schema
        raise InvalidRequestError(f"the local engine takes a pyarrow.Schema, not {type(schema).__name__}")

    def native_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def rows(self, kernel: RowKernel[T], tasks: Sequence[T], *, schema: pa.Schema, weights: Sequence[float]) -> Frame:
        parts = self.run(lambda task: list(kernel(task)), tasks, label="read", weights=weights)
        return pa.Table.from_batches([batch for part in parts for batch in part], schema=schema)

    def scan_parquet(self, uris: Sequence[str], *, schema: pa.Schema, output: pa.Schema, where: str | None) -> None:
        return None

    def union(self, frames: Sequence[Frame]) -> Frame:
        return pa.concat_tables(frames)

    def _parts(self, source: Frame) -> list[Iterator[pa.RecordBatch]]:
        """Contiguous shares of the rows, one a thread, so that parts keep the order of the input."""
        if isinstance(source, pa.RecordBatchReader):
            return [iter(source)]
        if isinstance(source, pa.RecordBatch):
            source = [source]
        table = source if isinstance(source, pa.Table) else pa.Table.from_batches(source)
        shares = max(1, min(self.parallelism, table.num_rows // _MIN_ROWS_A_PART))
        size = -(-table.num_rows // shares) or 1
        starts = range(0, max(table.num_rows, 1), size)
        return [iter(table.slice(start, size).to_batches(max_chunksize=1 << 17)) for start in starts]
