"""Plans the work of each file group from counts of tagged rows, and packs it into bins, each the work of one task.

Rows with a known key go to the group that has it. New rows first fill base files that are too small, then make new
file groups of the target size. If several groups take new rows of one partition, each takes a range of key hashes, so
that two rows with the same key end up in the same group. Only the numbers of rows matter here; the tasks find out which
rows these are (`write/routing.py`).

A bin has enough work to be worth a task, and few enough rows to fit into the memory of a task. Small writes have one
bin per partition, which reads the staged rows of the partition as they are. Rows that many bins share are staged again,
sorted by bin (`gather_bins`). Everything else is pure: same input, same plan.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tablekeeper.config.write_settings import WriteSettings
from tablekeeper.engine.protocol import Engine, balanced_shares
from tablekeeper.format.hashing import HASH_SPACE
from tablekeeper.model import FileGroupId, FileSlice
from tablekeeper.runtime import Ids
from tablekeeper.write.context import WriteContext
from tablekeeper.write.routing import BinRows, NumberedBatch, RestageTask, Routes, restage_rows
from tablekeeper.write.staging import StagedBatch
from tablekeeper.write.tagging import LookedUp, Tagged, Tags

__all__ = [
    "Bin",
    "Binned",
    "GroupWork",
    "NewBuckets",
    "OwnBuckets",
    "PartitionRows",
    "PlannedRows",
    "SharedBuckets",
    "WorkKind",
    "gather_bins",
    "partition_rows",
    "plan_bins",
    "plan_buckets",
    "plan_partition",
    "restage_shares",
]

# The size of a row in a compressed base file as a share of its size in memory, as long as there are no files to go by.
_COMPRESSION_GUESS = 0.4
_TELLING_BYTES = 1 << 20


class WorkKind(enum.Enum):
    """The kinds of work on a file group.

    A new base file; a rewritten one with the changes merged in; a rewritten one with rows added as they are (inserts
    do not look up their keys); or a log file, on top of a slice or, if writers share new file groups, as the first file
    of one.
    """

    CREATE = "create"
    MERGE = "merge"
    EXTEND = "extend"
    APPEND = "append"


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The work of one file group: about so many rows, updates and new ones together.

    If it `holds_known_keys`, some rows have a key that was found in it, whatever their hashes are.
    """

    kind: WorkKind
    group: FileGroupId
    file_slice: FileSlice | None
    rows: int
    holds_known_keys: bool = False

    @property
    def base_bytes(self) -> int:
        """Bytes read from the base file; a log file is added to a slice without reading it."""
        rewrites = self.kind in (WorkKind.MERGE, WorkKind.EXTEND) and self.file_slice is not None
        return self.file_slice.size if rewrites and self.file_slice is not None else 0


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Staged rows and their work. Without routes they all belong to one piece of work."""

    staged: tuple[StagedBatch, ...]
    work: tuple[GroupWork, ...]
    routes: Routes | None = None


class NewBuckets(Protocol):
    """How a bucket without a file group gets one."""

    @property
    def kind(self) -> WorkKind:
        """Whether a base file or a log file creates the group."""
        ...

    def file_id(self, partition: str, bucket: str) -> str:
        """The id of the new group, which must begin with `bucket`, the number in eight digits."""
        ...


@dataclass(frozen=True, slots=True)
class OwnBuckets:
    """Each writer generates its own id. Two writers that create the same bucket conflict when they commit."""

    ids: Ids
    kind: WorkKind = WorkKind.CREATE

    def file_id(self, partition: str, bucket: str) -> str:
        return f"{bucket}{self.ids.uuid()[8:]}-0"


@dataclass(frozen=True, slots=True)
class SharedBuckets:
    """The id depends only on the bucket, as with Java's non-blocking writers: two that create it share one group.

    Groups that a replace commit `hides` stay hidden while it is on the timeline, whatever is written to them later;
    the bucket then continues under the next id.
    """

    hides: Collection[FileGroupId] = ()
    kind: WorkKind = WorkKind.APPEND

    def file_id(self, partition: str, bucket: str) -> str:
        number = 0
        while FileGroupId(partition, shared := f"{bucket}-0000-0000-0000-000000000000-{number}") in self.hides:
            number += 1
        return shared


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """One partition of a write: its staged rows, its slices, and the numbers of their rows.

    Slices whose keys were looked up have an entry in `looked_up`, by their position in `slices`, whether or not any
    were found. `known_rows` of the staged rows have a key that was found; it may be too many if `counts_twice`, since
    slices that several tasks searched may share keys. Groups that are `planned` are about to be rewritten by a pending
    table service and take no new rows.
    """

    partition: str
    staged: tuple[StagedBatch, ...]
    slices: tuple[FileSlice, ...]
    looked_up: tuple[LookedUp, ...] = ()
    tags: tuple[Tags, ...] = ()
    known_rows: int = 0
    counts_twice: bool = False
    planned: frozenset[FileGroupId] = frozenset()

    @property
    def row_count(self) -> int:
        return sum(batch.rows for batch in self.staged)


def partition_rows(
    partition: str,
    staged: Sequence[StagedBatch],
    slices: Sequence[FileSlice],
    tagged: Sequence[Tagged],
    *,
    planned: frozenset[FileGroupId],
) -> PartitionRows:
    """The combined results of the look-ups in a partition."""
    return PartitionRows(
        partition,
        tuple(staged),
        tuple(slices),
        looked_up=tuple(found for each in tagged for found in each.slices),
        tags=tuple(each.tags for each in tagged),
        known_rows=sum(each.rows for each in tagged),
        counts_twice=sum(len(each.tags.batches) for each in tagged) > len(staged),
        planned=planned,
    )


def plan_partition(
    rows: PartitionRows, settings: WriteSettings, *, is_mor: bool, only_updates: bool, ids: Ids
) -> PlannedRows:
    """Work for one partition with the simple index. `only_updates` (deletes) leaves out rows with unknown keys."""
    found: dict[int, int] = {}
    for each in rows.looked_up:
        found[each.number] = found.get(each.number, 0) + each.found
    fresh = rows.row_count - rows.known_rows
    targets: list[_Target] = []
    if fresh > 0 and not only_updates:
        targets = _insert_targets(rows, settings, fresh, is_mor=is_mor)
    elif rows.counts_twice and not only_updates:
        # Some rows may still be new. A group without rows is not created.
        targets = [_Target(None, 1)]
    filled = {target.place: target.rows for target in targets if target.place is not None}
    work: list[GroupWork] = []
    number_of: dict[int, int] = {}
    for place, file_slice in enumerate(rows.slices):
        takes = found.get(place, 0) + filled.get(place, 0)
        if not takes:
            continue
        # A small base file that gets new rows is rewritten together with its updates, also in a MOR table.
        kind = WorkKind.MERGE if place in found else WorkKind.EXTEND
        if is_mor and place not in filled:
            kind = WorkKind.APPEND
        number_of[place] = len(work)
        work.append(GroupWork(kind, file_slice.group, file_slice, takes, holds_known_keys=found.get(place, 0) > 0))
    takers: list[int] = []
    for target in targets:
        if target.place is None:
            takers.append(len(work))
            work.append(GroupWork(WorkKind.CREATE, FileGroupId(rows.partition, f"{ids.uuid()}-0"), None, target.rows))
        else:
            takers.append(number_of[target.place])
    ends = np.cumsum([target.rows for target in targets])
    routes = Routes(
        tags=rows.tags,
        of_slices=tuple(number_of.get(place, -1) for place in range(len(rows.slices))),
        fresh=tuple(takers),
        ends=tuple(int(end * HASH_SPACE // ends[-1]) for end in ends),
    )
    return PlannedRows(rows.staged, tuple(work), routes)


def plan_buckets(
    rows: PartitionRows, *, is_mor: bool, only_updates: bool, new_buckets: NewBuckets
) -> list[PlannedRows]:
    """Work for one partition with the bucket index: a bucket is the file group whose id begins with its number."""
    groups = {s.group.file_id[:8]: s for s in rows.slices}
    by_bucket: dict[int, list[StagedBatch]] = {}
    for batch in rows.staged:
        by_bucket.setdefault(batch.bucket, []).append(batch)
    planned = []
    for bucket, staged in sorted(by_bucket.items()):
        prefix = f"{bucket:08d}"
        existing = groups.get(prefix)
        if existing is not None:
            kind, group = WorkKind.APPEND if is_mor else WorkKind.MERGE, existing.group
        elif not only_updates:
            kind, group = new_buckets.kind, FileGroupId(rows.partition, new_buckets.file_id(rows.partition, prefix))
        else:
            continue
        work = GroupWork(kind, group, existing, sum(batch.rows for batch in staged))
        planned.append(PlannedRows(tuple(staged), (work,)))
    return planned


@dataclass(frozen=True, slots=True)
class _Target:
    """The target of about `rows` new rows: the file group of the slice at this position, or a new one."""

    place: int | None
    rows: int


def _insert_targets(rows: PartitionRows, settings: WriteSettings, count: int, *, is_mor: bool) -> list[_Target]:
    row_bytes = _row_bytes(rows, settings)
    targets: list[_Target] = []
    small = [
        (s.base.size, s.group.file_id, place)
        for place, s in enumerate(rows.slices)
        if s.base is not None
        and s.base.size < settings.small_file_bytes
        and not (is_mor and s.logs)
        and s.group not in rows.planned
    ]
    for size, _, place in sorted(small):
        if count <= 0:
            break
        room = int((settings.max_file_bytes - size) // row_bytes)
        if room > 0:
            targets.append(_Target(place, min(room, count)))
            count -= targets[-1].rows
    if count > 0:
        files = max(1, -(-int(count * row_bytes) // settings.max_file_bytes))
        targets += [_Target(None, -(-count // files)) for _ in range(files)]
    return targets


def _row_bytes(rows: PartitionRows, settings: WriteSettings) -> float:
    """The size of a row in a base file: from the existing files, or else estimated from the rows in memory.

    Tiny files do not count: they consist mostly of footers and bloom filters.
    """
    known = {each.number: each.base_rows for each in rows.looked_up if each.base_rows}
    bases = [(place, s.base) for place, s in enumerate(rows.slices)]
    size = sum(base.size for place, base in bases if base is not None and place in known)
    if known and size >= min(_TELLING_BYTES, settings.max_file_bytes // 2):
        return max(1.0, size / sum(known.values()))
    staged = sum(batch.bytes for batch in rows.staged) / max(1, rows.row_count)
    return max(1.0, min(float(settings.row_bytes_estimate), staged * _COMPRESSION_GUESS))


# Staged rows of one bin or of one task that stages rows again; and all that a bin reads, including base files.
_STAGED_BYTES = 64 << 20
_READ_BYTES = 512 << 20
_TASKS_A_CORE = 2
# How often the bins may read a staged byte before it is worth staging the rows again; and how much each of them may
# read in any case.
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
    """The bins of planned rows. If they `need_restaging`, their rows are known only afterwards."""

    planned: PlannedRows
    bins: tuple[Bin, ...]
    needs_restaging: bool

    @property
    def bin_of_work(self) -> tuple[int, ...]:
        numbers = {number: place for place, each in enumerate(self.bins) for number, _ in each.work}
        return tuple(numbers[number] for number in range(len(self.planned.work)))


def plan_bins(planned: Sequence[PlannedRows], *, parallelism: int) -> list[Binned]:
    """Bins for all work of a write: enough for all cores, if there is enough work."""
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
    """The staged batches that may contain rows of this work."""
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
    """The bins, and where their rows are."""
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
