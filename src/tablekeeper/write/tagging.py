"""Tagging: which staged rows have a key that a file group already holds.

One task a file group. Only the key column of the base file is read, row group by row group, and groups whose
range of keys cannot meet the staged ones are skipped. Keys of log files are in the base file too, but for two cases: a
slice without base file, and logs whose writers looked their keys up before the base file was there (`overtaken_logs`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.errors import CorruptTableError
from tablekeeper.model import CompletionTime, FileGroupId, FileSlice, LogFile, RequestedTime
from tablekeeper.read.log_changes import BlockVisibility, load_log_keys
from tablekeeper.read.slice_rows import open_base_file, read_row_group
from tablekeeper.record.keys import KeySpec
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.write.staging import StagedBatch, load_staged

__all__ = ["TagTask", "Tagged", "find_keys", "overtaken_logs"]


@dataclass(frozen=True, slots=True)
class TagTask:
    """Look the keys of `staged` up in one slice: in its base file, and in these logs."""

    store: StorageHandle
    file_slice: FileSlice
    staged: tuple[StagedBatch, ...]
    key: KeySpec
    logs: tuple[LogFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Tagged:
    """Positions (int32, in the order of the task's staged rows) of the rows whose key the group holds."""

    group: FileGroupId
    positions: bytes
    base_rows: int

    @property
    def found(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.positions, dtype=np.int32)


def find_keys(task: TagTask) -> Tagged:
    """Kernel: tag the staged rows of one file group."""
    keys = load_staged(task.store, task.staged, keys_only=True).column(KEY_COLUMN).combine_chunks()
    matches = np.zeros(len(keys), dtype=bool)
    base_rows = 0
    if task.file_slice.base is not None:
        base_rows = _match_base_file(task, keys, matches)
    if task.logs:
        types = pa.schema([(KEY_COLUMN, pa.string())])
        for found in load_log_keys(
            task.store.storage, task.logs, key=task.key, key_types=types, visibility=BlockVisibility()
        ):
            matches |= _is_in(keys, found)
            base_rows += len(found) if task.file_slice.base is None else 0
    return Tagged(task.file_slice.group, np.flatnonzero(matches).astype(np.int32).tobytes(), base_rows)


def overtaken_logs(file_slice: FileSlice, base_completed_at: CompletionTime | None) -> tuple[LogFile, ...]:
    """Logs of the slice that may hold keys which its base file has not; all of them if there is no base file. Pure.

    A compaction leaves out keys that were deleted. A writer that began before it completed found such a key in the base
    file before, and put the row into a log of the same group, where it now lies on a base file without the key. When
    the base file became visible is not known if None is given.
    """
    if file_slice.base is None or base_completed_at is None:
        return file_slice.logs
    # A start is compared with an end: both were taken from one increasing clock.
    limit = RequestedTime(base_completed_at.value)
    return tuple(log for log in file_slice.logs if log.instant < limit)


def _match_base_file(task: TagTask, keys: pa.Array, matches: npt.NDArray[np.bool_]) -> int:
    assert task.file_slice.base is not None
    bounds = pc.min_max(keys)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    file = open_base_file(task.store, task.file_slice.base)
    try:
        position = file.schema_arrow.get_field_index(KEY_COLUMN)
        if position < 0:
            raise CorruptTableError(file=task.file_slice.base.path, reason=f"it has no {KEY_COLUMN} column")
        for group in range(file.num_row_groups):
            statistics = file.metadata.row_group(group).column(position).statistics
            if statistics is not None and statistics.has_min_max and (statistics.max < low or statistics.min > high):
                continue
            stored = read_row_group(file, group, columns=[KEY_COLUMN], file=task.file_slice.base.path).column(0)
            matches |= _is_in(keys, stored)
        return int(file.metadata.num_rows)
    finally:
        file.close()


def _is_in(keys: pa.Array, stored: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.is_in(keys, value_set=stored).to_numpy(zero_copy_only=False)
    return found
