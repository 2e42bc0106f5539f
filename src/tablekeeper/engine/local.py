"""The local engine: threads and Arrow, no JVM.

A full engine for small tables, scripts, tests and simulation. Arrow and numpy release the
interpreter lock while they work, so threads use all cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.engine.arrow_streams import is_arrow_stream, open_arrow_stream
from tablekeeper.engine.protocol import Frame, Kernel, Progress, RowKernel, SourceKernel
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime

__all__ = ["LocalEngine", "parts_of"]

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

_MIN_ROWS_A_PART = 100_000


class LocalEngine:
    """Runs kernels on threads of this process; tables are pyarrow tables."""

    name = "local"
    has_workers = False
    streams = False
    scans_parquet = False
    may_repeat_tasks = False
    speculates = False

    def __init__(
        self, *, threads: int | None = None, runtime: Runtime = SYSTEM_RUNTIME, progress: Progress | None = None
    ) -> None:
        self.parallelism = threads or os.cpu_count() or 1
        self._runtime = runtime
        self._progress = progress

    def run(self, kernel: Kernel[T, R], tasks: Sequence[T], *, label: str, weights: Sequence[float] = ()) -> list[R]:
        order = sorted(range(len(tasks)), key=lambda i: -weights[i]) if weights else list(range(len(tasks)))
        count = _Count(len(tasks), label, self._progress, self._runtime)

        def work(number: int) -> tuple[int, R]:
            result = kernel(tasks[number])
            count.one_more()
            return number, result

        results = self._runtime.threads.map(work, order, width=self.parallelism)
        return [result for _, result in sorted(results, key=lambda pair: pair[0])]

    def consume(self, kernel: SourceKernel[C, R], context: C, source: Frame, *, label: str, parts: int = 0) -> list[R]:
        work = list(enumerate(parts_of(source, self.parallelism)))
        results = self._runtime.threads.map(lambda p: kernel(context, p[0], p[1]), work, width=self.parallelism)
        return [result for part in results for result in part]

    def sort(self, source: Frame, columns: Sequence[str], *, parts: int = 0) -> Frame:
        table = _as_table(source)
        keys = {str(number): _text(_column(table, path)) for number, path in enumerate(columns)}
        by = [(name, "ascending") for name in keys]
        return table.take(pc.sort_indices(pa.table(keys), sort_keys=by))

    def incoming(self, source: Any) -> Frame:
        if isinstance(source, pa.Table | pa.RecordBatch | pa.RecordBatchReader) or not is_arrow_stream(source):
            return source
        return open_arrow_stream(source)

    def schema_of(self, source: Frame) -> pa.Schema:
        if isinstance(source, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
            return source.schema
        if isinstance(source, list) and source and all(isinstance(each, pa.RecordBatch) for each in source):
            if any(not each.schema.equals(source[0].schema) for each in source):
                raise InvalidRequestError("the record batches differ in their columns: give batches of one schema")
            return source[0].schema
        raise InvalidRequestError(
            "the local engine takes pyarrow tables, record batches and readers, and data frames that speak Arrow "
            f"(pandas, polars, DuckDB), not {type(source).__name__}. "
            "Convert the rows with pyarrow.Table.from_pylist, or open the table with spark=…"
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


def parts_of(source: Frame, most: int) -> list[Iterator[pa.RecordBatch]]:
    """Contiguous shares of the rows, at most so many, so that parts keep the order of the input."""
    if isinstance(source, pa.RecordBatchReader):
        return [_drawn(source)]
    table = _as_table(source)
    shares = max(1, min(most, table.num_rows // _MIN_ROWS_A_PART))
    size = -(-table.num_rows // shares) or 1
    starts = range(0, max(table.num_rows, 1), size)
    return [iter(table.slice(start, size).to_batches(max_chunksize=1 << 17)) for start in starts]


class _Count:
    """How many tasks of one run are done, reported to the caller."""

    def __init__(self, total: int, label: str, progress: Progress | None, runtime: Runtime) -> None:
        self._total = total
        self._label = label
        self._progress = progress
        self._done = 0
        self._mutex = runtime.threads.lock()

    def one_more(self) -> None:
        if self._progress is None:
            return
        with self._mutex:
            self._done += 1
            self._progress(self._label, self._done, self._total)


def _drawn(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches; what fails while they are drawn fails in the caller's own rows."""
    batches = iter(reader)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:
            raise InvalidRequestError(f"the rows could not be drawn: {error}") from error
        if batch is None:
            return
        yield batch


def _as_table(source: Frame) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatchReader):
        return source.read_all()
    return pa.Table.from_batches([source] if isinstance(source, pa.RecordBatch) else source)


def _column(table: pa.Table, path: str) -> pa.ChunkedArray:
    if path in table.column_names:
        return table.column(path)
    first, *rest = path.split(".")
    return pc.struct_field(table.column(first), rest)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return column.cast(pa.large_binary() if is_bytes else pa.large_string())
