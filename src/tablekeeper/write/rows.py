"""Preparing incoming rows: conforming them to the table, their keys and partitions, their meta columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.model import FileGroupId
from tablekeeper.record.collisions import refuse_ambiguous_keys, refuse_ambiguous_partitions
from tablekeeper.record.evolution import conform
from tablekeeper.record.keys import record_keys
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.record.partition_paths import partition_paths
from tablekeeper.write.context import WriteContext

__all__ = [
    "GroupedRows",
    "PartitionNumbers",
    "group_rows",
    "identities",
    "keyed_rows",
    "ordered_by_key",
    "stamp_log_rows",
    "stamp_rows",
    "without_deleted",
]

_DELETED_COLUMN = "_hoodie_is_deleted"


class PartitionNumbers:
    """Numbers the partitions that a task meets, in the order in which it meets them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    def of(self, paths: pa.DictionaryArray) -> npt.NDArray[np.int64]:
        """The number of each row's partition."""
        known = [self._numbers.setdefault(path, len(self._numbers)) for path in paths.dictionary.to_pylist()]
        numbers: npt.NDArray[np.int64] = np.asarray(known, np.int64)[paths.indices.to_numpy(zero_copy_only=False)]
        return numbers


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows ordered by group: group `numbers[i]` has the rows from `starts[i]` up to `starts[i + 1]`."""

    rows: pa.Table
    numbers: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    def __iter__(self) -> Iterator[tuple[int, pa.Table]]:
        for i, number in enumerate(self.numbers):
            start, end = int(self.starts[i]), int(self.starts[i + 1])
            yield int(number), self.rows.slice(start, end - start)


def keyed_rows(context: WriteContext, batch: pa.RecordBatch) -> tuple[pa.Table, pa.DictionaryArray]:
    """The rows with the table's columns and their record key, and the partition path of each."""
    rows = pa.Table.from_batches([conform(batch, context.schema)])
    keys, paths = identities(context, rows)
    return rows.append_column(KEY_COLUMN, keys), paths


def identities(context: WriteContext, rows: pa.Table) -> tuple[pa.Array, pa.DictionaryArray]:
    """Record key and partition path of each row; refuses rows that could be taken for another one by them."""
    keys, paths = record_keys(rows, context.key), partition_paths(rows, context.partition)
    refuse_ambiguous_keys(rows, context.key, keys=keys)
    refuse_ambiguous_partitions(rows, context.partition, paths=paths)
    return keys, paths


def group_rows(rows: pa.Table, groups: npt.NDArray[np.int64]) -> GroupedRows:
    """Rows of one group side by side, otherwise in their old order."""
    if len(groups) == 0:
        return GroupedRows(rows, np.zeros(0, np.int64), np.zeros(1, np.int64))
    if (groups == groups[0]).all():
        return GroupedRows(rows, groups[:1], np.array([0, len(groups)]))
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    firsts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    starts = np.append(firsts, len(groups))
    return GroupedRows(rows.combine_chunks().take(pa.array(order)), ordered[firsts], starts)


def ordered_by_key(rows: pa.Table) -> pa.Table:
    """The rows in the order of the text of their record keys."""
    return rows.take(pc.sort_indices(rows.column(KEY_COLUMN)))


def without_deleted(rows: pa.Table) -> pa.Table:
    """The rows that do not say of themselves that they are deleted."""
    if _DELETED_COLUMN not in rows.column_names:
        return rows
    return rows.filter(pc.invert(rows.column(_DELETED_COLUMN).fill_null(False)))


def stamp_rows(context: WriteContext, rows: pa.Table, *, task: int, first_row: int) -> pa.Table:
    """`rows` (with their record key) stamped as written by this instant: what a base file writer takes."""
    count = rows.num_rows
    numbers = pc.cast(pa.array(np.arange(first_row, first_row + count)), pa.string())
    sequence = pc.binary_join_element_wise(pa.scalar(f"{context.instant}_{task}"), numbers, "_")
    zeros = pa.array(np.zeros(count, dtype=np.int32))
    commit_time = pa.DictionaryArray.from_arrays(zeros, pa.array([context.instant]))
    stamps = {"_hoodie_commit_time": commit_time, "_hoodie_commit_seqno": sequence}
    names = [KEY_COLUMN, *context.schema.names]
    return pa.table(stamps | {name: rows.column(name) for name in names})


def stamp_log_rows(context: WriteContext, rows: pa.Table, *, group: FileGroupId, task: int) -> pa.Table:
    """`rows` (with their record key) as rows of `context.file_schema`, as a log file holds them."""
    stamped = stamp_rows(context, rows, task=task, first_row=0)
    places = {"_hoodie_partition_path": group.partition, "_hoodie_file_name": group.file_id}
    for name, value in places.items():
        stamped = stamped.append_column(name, pa.repeat(pa.scalar(value), rows.num_rows))
    return conform(stamped, context.file_schema)
