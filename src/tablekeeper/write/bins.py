"""Bins: pieces of work that one task does together, and which staged rows it reads.

A bin has so much work that a task is worth its start, and so few rows that they fit into the memory of a task. Small
writes have one bin a partition, which reads the staged rows of the partition as they are. Rows that many
bins share are staged once more, sorted by bin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tablekeeper.engine.protocol import Engine, balanced_shares
from tablekeeper.write.context import WriteContext
from tablekeeper.write.plan import GroupWork, PlannedRows
from tablekeeper.write.routing import BinRows, NumberedBatch, RestageTask, restage_rows
from tablekeeper.write.staging import StagedBatch

__all__ = ["Bin", "Binned", "gather_bins", "plan_bins", "restage_shares"]


# Staged rows of one bin or of one task that stages them once more; and all that a bin reads, base files included.
_STAGED_BYTES = 64 << 20
_READ_BYTES = 512 << 20
_TASKS_A_CORE = 2
# How often a staged byte may be read by the bins before the rows are worth staging once more; and so little is read by
# each of them without regret.
_MOST_READS = 1.5
_TINY_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Bin:
    """Pieces of work with their numbers among the planned rows, and about how many bytes they read."""

    work: tuple[tuple[int, GroupWork], ...]
    rows: BinRows
    weight: float


@dataclass(frozen=True, slots=True)
class Binned:
    """The bins of planned rows. Where they `need_restaging` their rows are known only after it."""

    planned: PlannedRows
    bins: tuple[Bin, ...]
    needs_restaging: bool

    @property
    def bin_of_work(self) -> tuple[int, ...]:
        numbers = {number: place for place, each in enumerate(self.bins) for number, _ in each.work}
        return tuple(numbers[number] for number in range(len(self.planned.work)))


def plan_bins(planned: Sequence[PlannedRows], *, parallelism: int) -> list[Binned]:
    """Bins for all work of a write: at least so many that all cores have some, where there is enough of it."""
    weights = [_staged_bytes(each) + sum(work.base_bytes for work in each.work) for each in planned]
    total = sum(weights) or 1
    return [
        _binned(each, least=round(parallelism * _TASKS_A_CORE * weight / total))
        for each, weight in zip(planned, weights, strict=True)
    ]


def restage_shares(planned: PlannedRows) -> list[tuple[NumberedBatch, ...]]:
    """The staged batches in shares of a bounded size, each for one task."""
    shares: list[list[NumberedBatch]] = []
    size = _STAGED_BYTES
    for each in enumerate(planned.staged):
        if size + each[1].bytes > _STAGED_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(each)
        size += each[1].bytes
    return [tuple(share) for share in shares]


def _binned(planned: PlannedRows, *, least: int) -> Binned:
    staged_bytes = _staged_bytes(planned)
    row_bytes = staged_bytes / max(1, sum(batch.rows for batch in planned.staged))
    weights = [work.rows * row_bytes + work.base_bytes for work in planned.work]
    count = max(least, -(-staged_bytes // _STAGED_BYTES), -(-int(sum(weights)) // _READ_BYTES), 1)
    shares = balanced_shares(weights, min(count, len(planned.work)))
    bins = [
        Bin(
            tuple((number, planned.work[number]) for number in sorted(share)),
            BinRows(_readable(planned, share), planned.routes),
            sum(weights[number] for number in share),
        )
        for share in shares
    ]
    read = sum(batch.bytes for each in bins for _, batch in each.rows.staged)
    return Binned(planned, tuple(bins), needs_restaging=read > max(_MOST_READS * staged_bytes, _TINY_BYTES))


def _readable(planned: PlannedRows, share: Sequence[int]) -> tuple[NumberedBatch, ...]:
    """The staged batches in which rows of this work can lie."""
    batches = tuple(enumerate(planned.staged))
    routes = planned.routes
    if routes is None or any(planned.work[number].holds_known_keys for number in share):
        return batches
    ranges = [
        (routes.ends[place - 1] if place else 0, routes.ends[place])
        for place, number in enumerate(routes.fresh)
        if number in share
    ]
    return tuple(
        (number, batch)
        for number, batch in batches
        if any(batch.hash_from < end and start < batch.hash_to for start, end in ranges)
    )


def _staged_bytes(planned: PlannedRows) -> int:
    return sum(batch.bytes for batch in planned.staged)


def gather_bins(engine: Engine, context: WriteContext, planned: Sequence[PlannedRows]) -> list[Bin]:
    """Bins that know where their rows lie."""
    binned = plan_bins(planned, parallelism=engine.parallelism)
    tasks = [
        (place, RestageTask(context, share, each.planned.routes, each.bin_of_work))
        for place, each in enumerate(binned)
        if each.needs_restaging and each.planned.routes is not None
        for share in restage_shares(each.planned)
    ]
    weights = [task.weight for _, task in tasks]
    restaged = engine.run(restage_rows, [task for _, task in tasks], label="gather rows", weights=weights)
    batches: dict[tuple[int, int], list[StagedBatch]] = defaultdict(list)
    for (place, _), found in zip(tasks, restaged, strict=True):
        for each in found:
            batches[place, each.bin].append(each.batch)
    bins: list[Bin] = []
    for place, these in enumerate(binned):
        for number, one in enumerate(these.bins):
            rows = BinRows(tuple(enumerate(batches[place, number]))) if these.needs_restaging else one.rows
            bins.append(replace(one, rows=rows))
    return bins
