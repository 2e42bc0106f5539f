"""Rows of a write by the partition that they go to, where a global index decides it.

Rows are staged by the partition that they name. Rows that go to another partition are staged again, in a batch of that
partition; a batch without such rows stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tablekeeper.model import FileSlice
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.write.context import WriteContext
from tablekeeper.write.grouping import group_rows
from tablekeeper.write.staging import (
    LEAVES_COLUMN,
    StagedBatch,
    each_staged,
    staging_file,
    staging_format,
)
from tablekeeper.write.tagging import LookedUp, Tagged, TagPage, save_tags

__all__ = ["NOWHERE", "Assigned", "Located", "LocatedRows", "keep_tags", "stage_by_home"]

NOWHERE = -1
# Extra columns of rows that are staged again.
_SLICE = "\0slice"


@dataclass(frozen=True, slots=True)
class Located:
    """Staged batches of one partition with their tags."""

    partition: str
    staged: tuple[StagedBatch, ...]
    tagged: Tagged


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """The staged rows by the partition that they go to, the slices of these partitions, and the tags."""

    staged: Mapping[str, Sequence[StagedBatch]]
    snapshots: tuple[Snapshot, ...]
    tagged: Mapping[str, Sequence[Tagged]]

    @property
    def slices(self) -> tuple[FileSlice, ...]:
        return tuple(each for snapshot in self.snapshots for each in snapshot.latest)

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], found: Iterable[Located]) -> Self:
        """Joins the results of several tasks."""
        staged: dict[str, list[StagedBatch]] = defaultdict(list)
        tagged: dict[str, list[Tagged]] = defaultdict(list)
        for each in found:
            first = len(staged[each.partition])
            staged[each.partition] += each.staged
            tags = replace(each.tagged.tags, batches=tuple(range(first, first + len(each.staged))))
            tagged[each.partition].append(replace(each.tagged, tags=tags))
        return cls(staged, tuple(snapshots), tagged)


@dataclass(frozen=True, slots=True)
class Assigned:
    """Where rows of one staged batch go: each to a partition, and to a slice of it, or to `NOWHERE` if it is new.

    Where `leaves` is true, only the key goes there, to be deleted. Rows that are not listed are dropped.
    """

    rows: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int64]
    slices: npt.NDArray[np.int32]
    leaves: npt.NDArray[np.bool_]


def stage_by_home(
    context: WriteContext, batch: StagedBatch, assigned: Assigned, paths: Sequence[str]
) -> Iterator[tuple[StagedBatch, TagPage]]:
    """The batch, or its rows staged again by the partition that they go to, with the slice of each that has one.

    `paths` are the partitions by the numbers in `assigned`.
    """
    stays = (assigned.partitions == paths.index(batch.partition)).all() and not assigned.leaves.any()
    if stays and np.array_equal(np.unique(assigned.rows), np.arange(batch.rows)):
        hits = assigned.slices != NOWHERE
        yield batch, TagPage(assigned.rows[hits].astype(np.int32), assigned.slices[hits])
        return
    if not len(assigned.rows):
        return
    ((_, rows),) = each_staged(context.store, [(0, batch)])
    table = pa.Table.from_batches([rows]).take(pa.array(assigned.rows))
    if LEAVES_COLUMN in table.column_names:
        place = table.column_names.index(LEAVES_COLUMN)
        table = table.set_column(place, LEAVES_COLUMN, pa.array(assigned.leaves))
    table = table.append_column(_SLICE, pa.array(assigned.slices))
    file = staging_file(context, "moved")
    staged: list[tuple[StagedBatch, TagPage]] = []
    with (
        context.store.storage.open_output(file) as sink,
        pa.ipc.new_file(sink, rows.schema, options=staging_format(context)) as writer,
    ):
        for number, part in group_rows(table, assigned.partitions):
            slices = part.column(_SLICE).to_numpy()
            (moved,) = part.drop_columns([_SLICE]).cast(rows.schema).combine_chunks().to_batches()
            writer.write_batch(moved)
            place_of = StagedBatch(
                paths[number], batch.bucket, file, number=len(staged), rows=moved.num_rows, bytes=moved.nbytes
            )
            hits = np.flatnonzero(slices != NOWHERE)
            staged.append((place_of, TagPage(hits.astype(np.int32), slices[hits])))
    yield from staged


def keep_tags(context: WriteContext, path: str, found: Sequence[tuple[StagedBatch, TagPage]]) -> Located:
    """Batches of one partition, with their tags written to the store."""
    pages = [page for _, page in found]
    tags = save_tags(context.store, range(len(pages)), pages, file=staging_file(context, "tags"))
    slices, counts = np.unique(np.concatenate([page.slices for page in pages]), return_counts=True)
    looked_up = tuple(LookedUp(int(each), int(rows), 0) for each, rows in zip(slices, counts, strict=True))
    rows = sum(len(np.unique(page.rows)) for page in pages)
    return Located(path, tuple(batch for batch, _ in found), Tagged(looked_up, tags, rows))
