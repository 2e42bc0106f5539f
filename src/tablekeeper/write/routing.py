"""Routing: every staged row of a partition to the piece of work that writes it.

Rows whose key was found go to the work on that slice, the others to work that takes a range of key hashes. Pieces of
work are packed into bins, and a task does the work of a bin. If few bins share staged rows, each reads all of them and
takes its own. If many do, that would cost rows times bins: the rows are staged again, sorted by bin, and each bin reads
only its own. So a staged row is read a bounded number of times, however many file groups there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.format.hashing import spread_hashes
from tablekeeper.record.columns import combined
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.write.context import WriteContext
from tablekeeper.write.grouping import stable_order
from tablekeeper.write.staging import StagedBatch, each_staged, staging_file, staging_format
from tablekeeper.write.tagging import TagPage, Tags, load_tags

__all__ = ["BinRows", "NumberedBatch", "RestageTask", "RestagedBatch", "Routes", "load_rows_by_work", "restage_rows"]

# Extra columns of the rows in batches that were staged again.
_WORK_COLUMN = "\0work"

NumberedBatch = tuple[int, StagedBatch]
"""A staged batch and its number in its partition, by which tags refer to it."""


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the rows of a partition go, by the numbers of its pieces of work.

    Those found in slice `n` go to `of_slices[n]`. Of the others, those whose key has a hash from `ends[i - 1]` up to,
    not including, `ends[i]` go to `fresh[i]`; nowhere if there is none.
    """

    tags: tuple[Tags, ...] = ()
    of_slices: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BinRows:
    """Where the rows of a bin are: in staged batches, picked by `routes`.

    Without routes the batches name the work of each row, or all rows belong to one piece of work.
    """

    staged: tuple[NumberedBatch, ...]
    routes: Routes | None = None


@dataclass(frozen=True, slots=True)
class RestageTask:
    """Stage these batches again. `bins[n]` is the bin of work `n`."""

    context: WriteContext
    staged: tuple[NumberedBatch, ...]
    routes: Routes
    bins: tuple[int, ...]

    @property
    def weight(self) -> float:
        """Bytes of rows."""
        return float(sum(batch.bytes for _, batch in self.staged))


@dataclass(frozen=True, slots=True)
class RestagedBatch:
    """Rows of one bin."""

    bin: int
    batch: StagedBatch


def restage_rows(task: RestageTask) -> list[RestagedBatch]:
    """Kernel: the rows of some staged batches, sorted by bin and work: one batch for each bin that they go to."""
    batches, positions, works = _routed_batches(task.context.store, task.staged, task.routes)
    if not len(works):
        return []
    bins = np.array(task.bins, np.int64)
    # The work of one bin side by side.
    rank = np.empty(len(bins), np.int64)
    rank[np.argsort(bins, kind="stable")] = np.arange(len(bins))
    order = stable_order(rank[works])
    rows = pa.Table.from_batches(batches).combine_chunks().take(pa.array(positions[order]))
    works = works[order]
    rows = rows.append_column(_WORK_COLUMN, pa.array(works))
    file = staging_file(task.context, "routed")
    restaged: list[RestagedBatch] = []
    with (
        task.context.store.storage.open_output(file) as sink,
        pa.ipc.new_file(sink, rows.schema, options=staging_format(task.context)) as writer,
    ):
        for number, start, end in _runs(bins[works]):
            (batch,) = rows.slice(start, end - start).combine_chunks().to_batches()
            writer.write_batch(batch)
            place = StagedBatch("", 0, file, number=len(restaged), rows=batch.num_rows, bytes=batch.nbytes)
            restaged.append(RestagedBatch(number, place))
    return restaged


def load_rows_by_work(store: StorageHandle, source: BinRows, work: Sequence[int]) -> dict[int, pa.Table]:
    """The rows of each piece of work, in their original order; work without rows is left out."""
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    pages: dict[int, list[TagPage]] = {}
    is_wanted = np.zeros(max(work) + 1, bool)
    is_wanted[list(work)] = True
    if source.routes is not None:
        pages = load_tags(store, source.routes.tags, [number for number, _ in source.staged])
    for number, batch in each_staged(store, source.staged):
        if source.routes is not None:
            rows, works = _routed(source.routes, batch, pages[number])
            mine = np.flatnonzero((works < len(is_wanted)) & is_wanted[np.minimum(works, len(is_wanted) - 1)])
            mine = mine[stable_order(works[mine])]
            table, works = _taken(batch, rows[mine]), works[mine]
        elif _WORK_COLUMN in batch.schema.names:
            table = pa.Table.from_batches([batch])
            works = table.column(_WORK_COLUMN).to_numpy()
            table = table.drop_columns([_WORK_COLUMN])
        else:
            parts[work[0]].append(pa.Table.from_batches([batch]))
            continue
        for each, start, end in _runs(works):
            parts[each].append(table.slice(start, end - start))
    return {each: tables[0] if len(tables) == 1 else pa.concat_tables(tables) for each, tables in parts.items()}


def _routed_batches(
    store: StorageHandle, staged: Sequence[NumberedBatch], routes: Routes
) -> tuple[list[pa.RecordBatch], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The batches, the positions of the rows in them that have work, and the work of each."""
    pages = load_tags(store, routes.tags, [number for number, _ in staged])
    batches: list[pa.RecordBatch] = []
    positions: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    works: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    before = 0
    for number, batch in each_staged(store, staged):
        rows, work = _routed(routes, batch, pages[number])
        positions.append(rows + before)
        works.append(work)
        batches.append(batch)
        before += batch.num_rows
    return batches, np.concatenate(positions), np.concatenate(works)


def _routed(
    routes: Routes, batch: pa.RecordBatch, pages: Sequence[TagPage]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows of a batch that have work, and the work of each."""
    rows = np.concatenate([np.zeros(0, np.int64), *(page.rows for page in pages)])
    slices = np.concatenate([np.zeros(0, np.int64), *(page.slices for page in pages)])
    works = np.array(routes.of_slices, np.int64)[slices] if len(slices) else slices
    if not routes.fresh:
        return rows, works
    is_fresh = np.ones(batch.num_rows, bool)
    is_fresh[rows] = False
    fresh = np.flatnonzero(is_fresh)
    targets = np.full(len(fresh), routes.fresh[0], np.int64)
    if len(routes.fresh) > 1:
        hashes = spread_hashes(combined(_taken(batch.select([KEY_COLUMN]), fresh).column(0)))
        targets = np.array(routes.fresh, np.int64)[np.searchsorted(np.array(routes.ends), hashes, side="right")]
    return np.concatenate([rows, fresh]), np.concatenate([works, targets])


def _taken(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.Table:
    """These rows; no copy if they are all rows in their order."""
    if len(rows) == batch.num_rows and (len(rows) == 0 or bool((np.diff(rows) == 1).all())):
        return pa.Table.from_batches([batch])
    return pa.Table.from_batches([batch.take(pa.array(rows))])


def _runs(numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Each distinct number of a sorted array, with the start and the end of its run."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    for start, end in zip(starts, np.append(starts, len(numbers))[1:], strict=True):
        yield int(numbers[start]), int(start), int(end)
