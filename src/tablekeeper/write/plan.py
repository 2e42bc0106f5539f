"""From tagged rows to the work of each file group. Pure: same input, same plan.

Rows with a known key go to the group that has it. New rows first fill base files that are smaller than they
should be, then make new file groups of the target size. Where several groups take new rows of one partition,
each takes a range of key hashes, so that two rows with one key end up in the same group.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tablekeeper.config.write_settings import WriteSettings
from tablekeeper.model import FileGroupId, FileSlice
from tablekeeper.runtime import Ids
from tablekeeper.write.staging import HASH_SPACE, StagedBatch
from tablekeeper.write.tagging import Tagged

__all__ = [
    "GroupWork",
    "HashRange",
    "NewBuckets",
    "OwnBuckets",
    "PartitionRows",
    "RowSource",
    "SharedBuckets",
    "WorkKind",
    "plan_buckets",
    "plan_partition",
]

# What a row takes in a compressed base file, as a share of what it takes in memory, until files tell better.
_COMPRESSION_GUESS = 0.4
_TELLING_BYTES = 1 << 20


class WorkKind(enum.Enum):
    """What is done to a file group.

    A new base file from nothing, a rewritten one with the changes merged in, a rewritten one with rows added as
    they are (nobody looked whether their keys are there: inserts), or a log file, on top of what is there or, where
    writers share new file groups, as the first file of one.
    """

    CREATE = "create"
    MERGE = "merge"
    EXTEND = "extend"
    APPEND = "append"


@dataclass(frozen=True, slots=True)
class HashRange:
    """Key hashes from `start` up to, not including, `end`."""

    start: int
    end: int

    def meets(self, batch: StagedBatch) -> bool:
        return batch.hash_from < self.end and self.start < batch.hash_to


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows of staged batches: those at `positions` (int32 bytes, all if None) whose hash is in `hashes` (if given)."""

    staged: tuple[StagedBatch, ...]
    positions: bytes | None = None
    hashes: HashRange | None = None


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The work of one file group. `sources` may hold updates and new rows alike."""

    kind: WorkKind
    group: FileGroupId
    file_slice: FileSlice | None
    sources: tuple[RowSource, ...]


class NewBuckets(Protocol):
    """How a bucket that has no file group yet gets one."""

    @property
    def kind(self) -> WorkKind:
        """What makes the group: a base file, or a log file."""
        ...

    def file_id(self, partition: str, bucket: str) -> str:
        """The id of the new group; `bucket` is the number in eight digits, with which it must begin."""
        ...


@dataclass(frozen=True, slots=True)
class OwnBuckets:
    """Each writer makes up an id. Two that create the same bucket conflict when they commit."""

    ids: Ids
    kind: WorkKind = WorkKind.CREATE

    def file_id(self, partition: str, bucket: str) -> str:
        return f"{bucket}{self.ids.uuid()[8:]}-0"


@dataclass(frozen=True, slots=True)
class SharedBuckets:
    """The id follows from the bucket, as Java's non-blocking writers have it: two that create it meet in one group.

    Groups that a replace commit `hides` stay hidden for as long as it is on the timeline, whatever is written to them
    later; the bucket then goes on under the next id.
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
    """Everything known about one partition of a write: its staged rows, its slices, and which rows they hold.

    A slice whose keys were looked up has an entry in `tagged`, whether or not any were found. Groups that are
    `busy` are about to be rewritten by a pending table service and take no new rows.
    """

    partition: str
    staged: tuple[StagedBatch, ...]
    slices: tuple[FileSlice, ...]
    tagged: tuple[Tagged, ...]
    busy: frozenset[FileGroupId] = frozenset()

    @property
    def row_count(self) -> int:
        return sum(batch.rows for batch in self.staged)


def plan_partition(
    rows: PartitionRows, settings: WriteSettings, *, is_mor: bool, only_updates: bool, ids: Ids
) -> list[GroupWork]:
    """Work for one partition with the simple index. `only_updates` (deletes) leaves out rows with unknown keys."""
    sources: dict[FileGroupId, list[RowSource]] = {}
    fresh = np.ones(rows.row_count, dtype=bool)
    for tagged in rows.tagged:
        if len(tagged.found):
            fresh[tagged.found] = False
            sources.setdefault(tagged.group, []).append(RowSource(rows.staged, tagged.positions))
    new_work: list[GroupWork] = []
    count = int(fresh.sum())
    if count and not only_updates:
        targets = _insert_targets(rows, settings, count, is_mor=is_mor)
        for target, source in zip(targets, _split(rows, fresh, targets), strict=True):
            if target.file_slice is not None:
                sources.setdefault(target.file_slice.group, []).append(source)
            else:
                group = FileGroupId(rows.partition, f"{ids.uuid()}-0")
                new_work.append(GroupWork(WorkKind.CREATE, group, None, (source,)))
        merged = {t.file_slice.group for t in targets if t.file_slice is not None}
    else:
        merged = set()
    by_group = {s.group: s for s in rows.slices}
    looked_up = {t.group for t in rows.tagged}
    work = []
    for group, parts in sources.items():
        # A small base file that takes new rows is rewritten, and its updates go with it, also in a MOR table.
        kind = WorkKind.MERGE if group in looked_up else WorkKind.EXTEND
        if is_mor and group not in merged:
            kind = WorkKind.APPEND
        work.append(GroupWork(kind, group, by_group[group], tuple(parts)))
    return work + new_work


def plan_buckets(rows: PartitionRows, *, is_mor: bool, only_updates: bool, new_buckets: NewBuckets) -> list[GroupWork]:
    """Work for one partition with the bucket index: a bucket is the file group whose id begins with its number."""
    groups = {s.group.file_id[:8]: s for s in rows.slices}
    by_bucket: dict[int, list[StagedBatch]] = {}
    for batch in rows.staged:
        by_bucket.setdefault(batch.bucket, []).append(batch)
    work = []
    for bucket, staged in sorted(by_bucket.items()):
        source = RowSource(tuple(staged))
        prefix = f"{bucket:08d}"
        existing = groups.get(prefix)
        if existing is not None:
            kind = WorkKind.APPEND if is_mor else WorkKind.MERGE
            work.append(GroupWork(kind, existing.group, existing, (source,)))
        elif not only_updates:
            group = FileGroupId(rows.partition, new_buckets.file_id(rows.partition, prefix))
            work.append(GroupWork(new_buckets.kind, group, None, (source,)))
    return work


@dataclass(frozen=True, slots=True)
class _Target:
    """A file group that takes `rows` new rows; a new one if it has no slice."""

    file_slice: FileSlice | None
    rows: int


def _insert_targets(rows: PartitionRows, settings: WriteSettings, count: int, *, is_mor: bool) -> list[_Target]:
    row_bytes = _row_bytes(rows, settings)
    targets: list[_Target] = []
    small = [
        s
        for s in rows.slices
        if s.base is not None
        and s.base.size < settings.small_file_bytes
        and not (is_mor and s.logs)
        and s.group not in rows.busy
    ]
    for file_slice in sorted(small, key=lambda s: (s.size, s.group.file_id)):
        if count <= 0:
            break
        room = int((settings.max_file_bytes - file_slice.size) // row_bytes)
        if room > 0:
            targets.append(_Target(file_slice, min(room, count)))
            count -= targets[-1].rows
    if count > 0:
        files = max(1, -(-int(count * row_bytes) // settings.max_file_bytes))
        targets += [_Target(None, -(-count // files)) for _ in range(files)]
    return targets


def _row_bytes(rows: PartitionRows, settings: WriteSettings) -> float:
    """What a row takes in a base file: as the existing files have it, else guessed from the rows in memory.

    Footers and bloom filters make up most of a tiny file, which therefore says little about rows.
    """
    known = {t.group: t.base_rows for t in rows.tagged if t.base_rows}
    size = sum(s.base.size for s in rows.slices if s.base is not None and s.group in known)
    if known and size >= min(_TELLING_BYTES, settings.max_file_bytes // 2):
        return max(1.0, size / sum(known.values()))
    staged = sum(batch.bytes for batch in rows.staged) / max(1, rows.row_count)
    return max(1.0, min(float(settings.row_bytes_estimate), staged * _COMPRESSION_GUESS))


def _split(rows: PartitionRows, fresh: npt.NDArray[np.bool_], targets: Sequence[_Target]) -> list[RowSource]:
    """The new rows of each target: all, or those in its range of key hashes."""
    if len(targets) == 1:
        everything = bool(fresh.all())
        positions = None if everything else np.flatnonzero(fresh).astype(np.int32).tobytes()
        return [RowSource(rows.staged, positions)]
    ends = np.cumsum([t.rows for t in targets])
    cuts = [0, *(int(end * HASH_SPACE // ends[-1]) for end in ends)]
    first_row = np.cumsum([0, *(batch.rows for batch in rows.staged)])
    sources = []
    for start, end in pairwise(cuts):
        hashes = HashRange(start, end)
        # One batch at least, so that the source has a schema even where no row falls into the range.
        chosen = [i for i, batch in enumerate(rows.staged) if hashes.meets(batch)] or [0]
        masks = [fresh[first_row[i] : first_row[i + 1]] for i in chosen]
        mine = np.flatnonzero(np.concatenate(masks))
        staged = tuple(rows.staged[i] for i in chosen)
        sources.append(RowSource(staged, mine.astype(np.int32).tobytes(), hashes))
    return sources
