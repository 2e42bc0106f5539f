"""Where work runs: a narrow protocol, implemented by Spark, Flink and local threads.

The rest of the package decides what to do and hands an engine module-level functions ("kernels")
with small picklable arguments. Kernels read and write files themselves; what comes back is small.

- `run`: one kernel over many tasks (merge a file group, look up keys, list a directory).
- `consume`: one kernel over the rows that the caller brought, part by part.
- `rows`: a table of rows that a kernel produces for many tasks, lazily where the engine can.

A kernel may run twice for one task, also at the same time (retries, speculation). It must name
every file it writes uniquely; the one result that comes back names the file that counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

__all__ = ["Engine", "Frame", "Kernel", "Progress", "RowKernel", "SourceKernel", "balanced_shares"]


Frame = Any
"""The engine's own table: a Spark DataFrame, or a pyarrow Table."""

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")

Kernel = Callable[[T], R]
"""Does one task and returns its result."""

SourceKernel = Callable[[C, int, Iterator[pa.RecordBatch]], list[R]]
"""Takes a context, the number of the part and the rows of that part."""

RowKernel = Callable[[T], Iterator[pa.RecordBatch]]
"""Produces the rows of one task, all batches with the schema that was announced."""


Progress = Callable[[str, int, int], None]
"""Told after each task of a `run`: its label, how many tasks are done, how many there are. Called from any thread."""


class Engine(Protocol):
    """Runs kernels and speaks the caller's kind of table."""

    @property
    def name(self) -> str:
        """What people call it. Nothing depends on it: whatever is asked of an engine has a name of its own here."""
        ...

    @property
    def has_workers(self) -> bool:
        """True if kernels run in other processes, which are worth starting only for much work."""
        ...

    @property
    def streams(self) -> bool:
        """True if its tables can be without end."""
        ...

    @property
    def scans_parquet(self) -> bool:
        """True if it may read plain Parquet by itself (`scan_parquet`)."""
        ...

    @property
    def parallelism(self) -> int:
        """How many kernels run at once."""
        ...

    @property
    def may_repeat_tasks(self) -> bool:
        """True if a task can run more than once, so that files of other attempts may lie around."""
        ...

    @property
    def speculates(self) -> bool:
        """True if a slow task is started once more while it still runs (`spark.speculation`)."""
        ...

    def run(self, kernel: Kernel[T, R], tasks: Sequence[T], *, label: str, weights: Sequence[float] = ()) -> list[R]:
        """Results in the order of `tasks`. `weights` (bytes to be handled) balance the load; little work may be
        done in the caller's process.
        """
        ...

    def consume(self, kernel: SourceKernel[C, R], context: C, source: Frame, *, label: str, parts: int = 0) -> list[R]:
        """Run the kernel over every part of `source`; results in the order of the parts.

        `parts` is the most parts wanted, where the engine can join some; 0 takes them as they come.
        """
        ...

    def sort(self, source: Frame, columns: Sequence[str], *, parts: int = 0) -> Frame:
        """All rows of `source` in the order of the text of these columns, so that each part is a range of them.

        Columns may lie in others (`a.b`). `parts` is the number of parts wanted, where the engine can choose; 0 leaves
        it to the engine.
        """
        ...

    def incoming(self, source: Any) -> Frame:
        """What a caller brought as rows, in a form that the other methods take, or as it is if none is known."""
        ...

    def schema_of(self, source: Frame) -> pa.Schema:
        """The Arrow schema of the rows in `source`; `InvalidRequestError` if it is not a table of this engine."""
        ...

    def arrow_schema(self, schema: Any) -> pa.Schema:
        """An Arrow schema from what callers pass as a schema (the engine's own kind, or Arrow)."""
        ...

    def native_schema(self, schema: pa.Schema) -> Any:
        """The engine's own kind of schema."""
        ...

    def rows(self, kernel: RowKernel[T], tasks: Sequence[T], *, schema: pa.Schema, weights: Sequence[float]) -> Frame:
        """The rows of all tasks as one table."""
        ...

    def scan_parquet(
        self, uris: Sequence[str], *, schema: pa.Schema, output: pa.Schema, where: str | None
    ) -> Frame | None:
        """`output` columns of files of `schema`, by the engine's own Parquet reader; None if it cannot read them."""
        ...

    def union(self, frames: Sequence[Frame]) -> Frame:
        """All rows of all frames, which have the same schema."""
        ...


def balanced_shares(weights: Sequence[float], count: int) -> list[list[int]]:
    """The places of all weights in at most `count` shares of about the same weight, none of them empty.

    The heaviest come first, each into the share that is lightest so far.
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    # What weighs nothing is spread by number.
    loads = [(0.0, number) for number in range(count)]
    for place in sorted(range(len(weights)), key=lambda place: -weights[place]):
        load, number = heapq.heappop(loads)
        shares[number].append(place)
        heapq.heappush(loads, (load + weights[place] + 1e-9, number))
    return [share for share in shares if share]
