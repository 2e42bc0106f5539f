"""Preparing incoming rows: conforming them to the table, their keys and partitions, their meta columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.record.evolution import conform
from tablekeeper.record.keys import record_keys
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.record.partition_paths import partition_paths
from tablekeeper.write.context import WriteContext

__all__ = ["GroupedRows", "PartitionNumbers", "group_rows", "keyed_rows", "with_meta_values"]


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
    keys = record_keys(rows, context.key)
    return rows.append_column(KEY_COLUMN, keys), partition_paths(rows, context.partition)


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


def with_meta_values(
    context: WriteContext, rows: pa.Table, *, partition: str, file_name: str, task: int, first_row: int
) -> pa.Table:
    """`rows` (with their record key) as rows of `context.file_schema`, stamped as written by this instant."""
    count = rows.num_rows
    numbers = pc.cast(pa.array(np.arange(first_row, first_row + count)), pa.string())
    sequence = pc.binary_join_element_wise(pa.scalar(f"{context.instant}_{task}"), numbers, "_")
    meta = [
        pa.repeat(pa.scalar(context.instant), count),
        sequence,
        rows.column(KEY_COLUMN),
        pa.repeat(pa.scalar(partition), count),
        pa.repeat(pa.scalar(file_name), count),
    ]
    data = [rows.column(name) for name in context.schema.names]
    return pa.table(meta + data, schema=context.file_schema)
