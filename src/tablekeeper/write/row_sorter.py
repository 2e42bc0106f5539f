"""Sorts more rows than fit into memory.

Rows are gathered up to a budget. If all fit, they are sorted where they are. Otherwise each budget full is sorted and
parked as a run in the write's staging directory, cut into small blocks, and the runs are merged block by block: blocks
are read in the order of their first rows, and whatever comes before the first row of the next block is final. At any
time one block of each run and one chunk of the result are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.model import join_path
from tablekeeper.record.sort_order import sorted_positions
from tablekeeper.write.context import WriteContext

__all__ = ["KeyColumns", "RowSorter"]

KeyColumns = Callable[[pa.Table], list[pa.Array | pa.ChunkedArray]]
"""The columns that decide the order of some rows, the most important first; always of the same number and types."""

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Run:
    """Sorted rows in a file. `heads` are the key columns of the first row of each block."""

    file: str
    heads: list[pa.Table] = field(default_factory=list)


class RowSorter:
    """Takes rows of one schema and returns them in order. The end of the `with` block removes temporary files."""

    def __init__(
        self,
        context: WriteContext,
        keys: KeyColumns,
        *,
        budget_bytes: int,
        chunk_bytes: int,
        block_bytes: int = _BLOCK_BYTES,
    ) -> None:
        self.rows = 0
        self.bytes = 0
        self._context = context
        self._keys = keys
        self._budget_bytes = budget_bytes
        self._chunk_bytes = chunk_bytes
        self._block_bytes = block_bytes
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._runs: list[_Run] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.store.storage.delete_many([run.file for run in self._runs])

    def add(self, rows: pa.Table) -> None:
        """Add rows; they may be written to a temporary file."""
        if rows.num_rows == 0:
            return
        size = rows.nbytes
        if self._pending and self._pending_bytes + size > self._budget_bytes:
            self._park()
        self.rows += rows.num_rows
        self.bytes += size
        self._pending.append(rows)
        self._pending_bytes += size

    def chunks(self) -> Iterator[pa.Table]:
        """All rows in order, a chunk at a time. Once only."""
        if not self._runs:
            yield from self._sorted_pending()
            return
        self._park()
        yield from self._merged()

    def _sorted_pending(self) -> Iterator[pa.Table]:
        """The gathered rows in order; they are forgotten."""
        if not self._pending:
            return
        size = self._pending_bytes
        # Column by column, so that the memory of the chunks is free before the next column is put together.
        rows = pa.concat_tables(self._pending)
        self._pending, self._pending_bytes = [], 0
        schema, columns = rows.schema, rows.columns
        del rows
        for number in range(len(columns)):
            columns[number] = _in_one_piece(columns[number])
        rows = pa.table(columns, schema=schema)
        del columns
        order = sorted_positions(self._keys(rows), stable=False)
        step = _share(rows.num_rows, size, self._chunk_bytes)
        for start in range(0, rows.num_rows, step):
            yield rows.take(pa.array(order[start : start + step]))

    def _park(self) -> None:
        if not self._pending:
            return
        name = f"sort-{self._context.runtime.ids.number(1 << 62)}.arrow"
        run = _Run(join_path(self._context.staging, name))
        schema = self._pending[0].schema
        block_rows = _share(sum(rows.num_rows for rows in self._pending), self._pending_bytes, self._block_bytes)
        self._runs.append(run)
        storage = self._context.store.storage
        is_local = storage.spec.uri.startswith(("file:", "memory:"))
        options = pa.ipc.IpcWriteOptions(compression=None if is_local else "lz4")
        with storage.open_output(run.file) as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
            for chunk in self._sorted_pending():
                for start in range(0, chunk.num_rows, block_rows):
                    block = chunk.slice(start, block_rows).combine_chunks()
                    run.heads.append(self._key_table(block.slice(0, 1)))
                    writer.write_batch(block.to_batches()[0])

    def _merged(self) -> Iterator[pa.Table]:
        heads = pa.concat_tables([head for run in self._runs for head in run.heads])
        places = [(number, block) for number, run in enumerate(self._runs) for block in range(len(run.heads))]
        order = sorted_positions(heads.columns)
        with ExitStack() as stack:
            streams = [stack.enter_context(self._context.store.storage.open_input(run.file)) for run in self._runs]
            readers = [pa.ipc.open_file(stream) for stream in streams]
            waiting: list[pa.Table] = []
            size = 0
            for turn, position in enumerate(order):
                number, block = places[position]
                rows = pa.Table.from_batches([readers[number].get_batch(block)])
                waiting.append(rows)
                size += rows.nbytes
                if size >= self._chunk_bytes and turn + 1 < len(order):
                    final, rest = self._split(waiting, heads.slice(int(order[turn + 1]), 1))
                    yield final
                    waiting, size = [rest], rest.nbytes
            final, _ = self._split(waiting, None)
            yield final

    def _split(self, tables: list[pa.Table], limit: pa.Table | None) -> tuple[pa.Table, pa.Table]:
        """Rows in order: those up to the limit, beyond which others may still come, and those after it."""
        rows = pa.concat_tables(tables).combine_chunks()
        keys = self._key_table(rows)
        if limit is None:
            return rows.take(pa.array(sorted_positions(keys.columns))), rows.slice(0, 0)
        # The limit comes last among its equals, as it is added last.
        order = sorted_positions(pa.concat_tables([keys, limit]).columns)
        end = int(np.flatnonzero(order == rows.num_rows)[0])
        # The rest keeps its order, which makes the next sort a short one.
        return rows.take(_indices(order[:end])), rows.take(_indices(order[end + 1 :]))

    def _key_table(self, rows: pa.Table) -> pa.Table:
        columns = self._keys(rows)
        return pa.table(columns, names=[str(number) for number in range(len(columns))])


def _in_one_piece(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Taking rows from one chunk is much faster than from several."""
    return pa.table([column], names=[""]).combine_chunks().column(0)


def _indices(order: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(order)


def _share(rows: int, size: int, wanted: int) -> int:
    """The number of rows that take about `wanted` bytes, in parts of equal size."""
    parts = max(1, round(size / wanted))
    return max(1, -(-rows // parts))
