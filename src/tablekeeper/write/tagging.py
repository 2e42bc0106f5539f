"""Tagging: which staged rows have a key that a file slice already holds.

A task looks up staged keys in many slices at once: it holds the distinct staged keys, and compares the stored keys of
many slices with them in one step. So each stored key is compared once, and each staged key once per task, however many
slices there are. Only the key column of a base file is read, row group by row group. Row groups whose range of keys
does not overlap with the staged keys are skipped; a BLOOM index skips more of them (`write/file_filters.py`).

Keys of log files are in the base file too, except in two cases: a slice without a base file, and logs whose writers
looked up their keys before the base file was visible (`overtaken_logs`).

Tags come in pages, one for each staged batch: rows of the batch, and the number of the slice for each. A few travel
with the result of the look-up; many are written next to the staged rows, so that the driver holds counts and no rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tablekeeper.engine.protocol import balanced_shares
from tablekeeper.errors import CorruptTableError
from tablekeeper.model import BaseFile, CompletionTime, FileSlice, LogFile, RequestedTime
from tablekeeper.read.log_changes import load_log_keys
from tablekeeper.read.slice_rows import open_base_file, read_row_group
from tablekeeper.record.columns import combined
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.write.context import WriteContext
from tablekeeper.write.file_filters import FileFilters
from tablekeeper.write.staging import StagedBatch, load_staged, staging_file

__all__ = [
    "LookedUp",
    "SliceKeys",
    "TagPage",
    "TagTask",
    "Tagged",
    "Tags",
    "find_keys",
    "load_tags",
    "overtaken_logs",
    "plan_look_up",
    "save_tags",
]


_SCHEMA = pa.schema([("row", pa.int32()), ("slice", pa.int32())])
_MOST_TRAVELLING_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class TagPage:
    """Rows of one staged batch, and the slice that holds the key of each. A row occurs once for each such slice."""

    rows: npt.NDArray[np.int32]
    slices: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tags:
    """The pages of one look-up: page `i` is that of the staged batch `batches[i]`. In `data`, or in `file` if None."""

    batches: tuple[int, ...]
    data: bytes | None
    file: str = ""


def save_tags(store: StorageHandle, batches: Sequence[int], pages: Sequence[TagPage], *, file: str) -> Tags:
    """Keep the pages of these batches: in `file` if they are many."""
    size = sum(page.rows.nbytes + page.slices.nbytes for page in pages)
    if size > _MOST_TRAVELLING_BYTES:
        with store.storage.open_output(file) as sink:
            _write(sink, pages)
        return Tags(tuple(batches), None, file)
    travelling = pa.BufferOutputStream()
    _write(travelling, pages)
    return Tags(tuple(batches), travelling.getvalue().to_pybytes())


def load_tags(store: StorageHandle, tags: Sequence[Tags], batches: Collection[int]) -> dict[int, list[TagPage]]:
    """The pages of these staged batches, from all look-ups."""
    pages: dict[int, list[TagPage]] = {batch: [] for batch in batches}
    for each in tags:
        wanted = [(place, batch) for place, batch in enumerate(each.batches) if batch in pages]
        for batch, page in _read(store, each, wanted):
            pages[batch].append(page)
    return pages


def _write(sink: object, pages: Sequence[TagPage]) -> None:
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        for page in pages:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(page.rows), pa.array(page.slices)], schema=_SCHEMA))


def _read(store: StorageHandle, tags: Tags, wanted: Sequence[tuple[int, int]]) -> Iterator[tuple[int, TagPage]]:
    if not wanted:
        return
    source = store.storage.open_input(tags.file) if tags.data is None else pa.BufferReader(tags.data)
    with closing(source):
        reader = pa.ipc.open_file(source)
        for place, batch in wanted:
            rows, slices = reader.get_batch(place).columns
            yield batch, TagPage(rows.to_numpy(), slices.to_numpy())


# Staged keys that a task holds at a time, and stored keys that it compares with them in one step.
_KEYS_A_TASK = 4_000_000
_KEYS_A_GO = 1 << 18
_SHORT_STRINGS_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SliceKeys:
    """Look up keys in one slice: in its base file, and in these logs. `number` is that of the slice in the write."""

    number: int
    file_slice: FileSlice
    logs: tuple[LogFile, ...] = ()


@dataclass(frozen=True, slots=True)
class TagTask:
    """Look the keys of staged batches, each with its number in the write, up in these slices."""

    context: WriteContext
    slices: tuple[SliceKeys, ...]
    staged: tuple[tuple[int, StagedBatch], ...]

    @property
    def weight(self) -> float:
        """Bytes of the slices."""
        return float(sum(each.file_slice.size for each in self.slices))


@dataclass(frozen=True, slots=True)
class LookedUp:
    """How many staged rows have a key that is in one slice, which has about `base_rows` rows."""

    number: int
    found: int
    base_rows: int


@dataclass(frozen=True, slots=True)
class Tagged:
    """The slices of one task, and the tags of its staged batches: `rows` of these have a key that was found."""

    slices: tuple[LookedUp, ...]
    tags: Tags
    rows: int


def plan_look_up(
    context: WriteContext, slices: Sequence[SliceKeys], staged: Sequence[tuple[int, StagedBatch]], *, tasks: int
) -> list[TagTask]:
    """About `tasks` tasks that together look up all staged keys of a partition in all its slices. Pure."""
    runs: list[list[tuple[int, StagedBatch]]] = []
    rows = _KEYS_A_TASK
    for each in staged:
        if rows + each[1].rows > _KEYS_A_TASK:
            runs.append([])
            rows = 0
        runs[-1].append(each)
        rows += each[1].rows
    shares = balanced_shares([each.file_slice.size for each in slices], max(1, min(len(slices), tasks)))
    return [TagTask(context, tuple(slices[n] for n in share), tuple(run)) for share in shares for run in runs]


def find_keys(task: TagTask) -> Tagged:
    """Kernel: tag the staged rows whose keys the slices hold."""
    store = task.context.store
    batches = [batch for _, batch in task.staged]
    keys = load_staged(store, batches, keys_only=True).column(KEY_COLUMN)
    staged = _StagedKeys(keys, [b.rows for b in batches], filters_files=task.context.settings.index.filters_files)
    matches = _Matches(staged)
    base_rows = [0] * len(task.slices)
    for place, each in enumerate(task.slices):
        if each.file_slice.base is not None:
            base_rows[place] = _match_base_file(task, each.file_slice.base, staged, matches, place)
        if each.logs:
            found = _log_keys(task, each)
            for keys in found:
                matches.add(place, keys)
            if each.file_slice.base is None:
                base_rows[place] = sum(map(len, found))
    pages = matches.pages(len(task.slices))
    counts = np.zeros(len(task.slices), np.int64)
    for page in pages:
        counts += np.bincount(page.slices, minlength=len(task.slices))
    # A row occurs once for each slice: rows repeat only if a key is in several.
    rows = sum(len(page.rows) if matches.layers == 1 else len(np.unique(page.rows)) for page in pages)
    numbers = np.array([each.number for each in task.slices], np.int32)
    pages = [TagPage(page.rows, numbers[page.slices]) for page in pages]
    return Tagged(
        tuple(
            LookedUp(each.number, int(count), stored)
            for each, count, stored in zip(task.slices, counts, base_rows, strict=True)
        ),
        save_tags(store, [number for number, _ in task.staged], pages, file=staging_file(task.context, "tags")),
        rows,
    )


def overtaken_logs(file_slice: FileSlice, base_completed_at: CompletionTime | None) -> tuple[LogFile, ...]:
    """Logs of the slice that may hold keys which its base file does not; all of them if there is no base file. Pure.

    A compaction leaves out keys that were deleted. A writer that began before the compaction completed may have found
    such a key in the older base file, and put the row into a log of the same group, which is now on top of a base file
    without the key. None says that it is not known when the base file became visible.
    """
    if file_slice.base is None or base_completed_at is None:
        return file_slice.logs
    # A requested time is compared with a completion time: both come from one increasing clock.
    limit = RequestedTime(base_completed_at.value)
    return tuple(log for log in file_slice.logs if log.instant < limit)


class _StagedKeys:
    """The distinct staged keys, the key of each row of each batch, and the filter for footers, if there is one."""

    def __init__(self, keys: pa.ChunkedArray, rows: Sequence[int], *, filters_files: bool) -> None:
        if keys.nbytes > _SHORT_STRINGS_BYTES:
            keys = keys.cast(pa.large_string())
        bounds = pc.min_max(keys)
        self.low, self.high = bounds["min"].as_py(), bounds["max"].as_py()
        encoded = combined(pc.dictionary_encode(keys))
        self.distinct: pa.Array = encoded.dictionary
        self.filters = FileFilters(encoded.dictionary) if filters_files else None
        self.numbers = np.split(encoded.indices.to_numpy(), np.cumsum(rows)[:-1])


class _Matches:
    """Gathers stored keys of slices and looks for them among the staged keys, many in one step."""

    def __init__(self, staged: _StagedKeys) -> None:
        self._staged = staged
        # A step costs as much as there are staged keys: it is worth it for at least as many stored ones.
        self._keys_a_go = max(_KEYS_A_GO, len(staged.distinct))
        self._waiting: list[tuple[int, pa.Array]] = []
        self._waiting_rows = 0
        self._found: list[npt.NDArray[np.int64]] = []
        self._places: list[npt.NDArray[np.int64]] = []
        self.layers = 0

    def add(self, place: int, keys: pa.Array | pa.ChunkedArray) -> None:
        """Keys that the slice at this position in the task holds."""
        self._waiting += [(place, chunk) for chunk in (keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys])]
        self._waiting_rows += len(keys)
        if self._waiting_rows >= self._keys_a_go:
            self._find()

    def pages(self, places: int) -> list[TagPage]:
        """For each batch its rows whose key was found, and the position of the slice that holds it."""
        self._find()
        pairs = np.concatenate([np.zeros(0, np.int64), *self._found]) * places
        pairs += np.concatenate([np.zeros(0, np.int64), *self._places])
        # A slice can have a key several times.
        keys, slices = np.divmod(np.unique(pairs), places)
        layers = self._layers(keys, slices)
        self.layers = len(layers)
        return [_page(numbers, layers) for numbers in self._staged.numbers]

    def _layers(self, keys: npt.NDArray[np.int64], slices: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int32]]:
        """The slice of each key, or -1. There are several such layers only if keys are in several slices."""
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        rank = np.arange(len(keys)) - np.repeat(firsts, np.diff(firsts, append=len(keys)))
        layers = []
        for number in range(int(rank.max(initial=-1)) + 1):
            layer = np.full(len(self._staged.distinct), -1, np.int32)
            layer[keys[rank == number]] = slices[rank == number]
            layers.append(layer)
        return layers

    def _find(self) -> None:
        if not self._waiting:
            return
        known = self._staged.distinct
        stored = pa.chunked_array([chunk.cast(known.type) for _, chunk in self._waiting])
        found = combined(pc.index_in(stored, value_set=known).fill_null(-1)).to_numpy(zero_copy_only=False)
        hits = np.flatnonzero(found >= 0)
        ends = np.cumsum([len(chunk) for _, chunk in self._waiting])
        places = np.array([place for place, _ in self._waiting], np.int64)
        self._found.append(found[hits].astype(np.int64))
        self._places.append(places[np.searchsorted(ends, hits, side="right")])
        self._waiting, self._waiting_rows = [], 0


def _page(numbers: npt.NDArray[np.int32], layers: Sequence[npt.NDArray[np.int32]]) -> TagPage:
    rows: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
    slices: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
    for layer in layers:
        holder = layer[numbers]
        hits = np.flatnonzero(holder >= 0)
        rows.append(hits.astype(np.int32))
        slices.append(holder[hits])
    return TagPage(np.concatenate(rows), np.concatenate(slices))


def _match_base_file(task: TagTask, base: BaseFile, staged: _StagedKeys, matches: _Matches, place: int) -> int:
    """The number of rows in the base file. Adds its keys to `matches`, without row groups that cannot match."""
    file = open_base_file(task.context.store, base)
    try:
        position = file.schema_arrow.get_field_index(KEY_COLUMN)
        if position < 0:
            raise CorruptTableError(file=base.path, reason=f"it has no {KEY_COLUMN} column")
        if staged.filters is None:
            groups = [group for group in range(file.num_row_groups) if _overlaps(file, group, position, staged)]
        else:
            groups = staged.filters.row_groups(file, key=position, name=base.path)
        for group in groups:
            matches.add(place, read_row_group(file, group, columns=[KEY_COLUMN], file=base.path).column(0))
        return int(file.metadata.num_rows)
    finally:
        file.close()


def _overlaps(file: pq.ParquetFile, group: int, position: int, staged: _StagedKeys) -> bool:
    statistics = file.metadata.row_group(group).column(position).statistics
    is_known = statistics is not None and statistics.has_min_max
    return not (is_known and (statistics.max < staged.low or statistics.min > staged.high))


def _log_keys(task: TagTask, each: SliceKeys) -> Sequence[pa.Array]:
    types = pa.schema([(KEY_COLUMN, pa.string())])
    storage, key = task.context.store.storage, task.context.key
    return load_log_keys(
        storage, each.logs, key=key, key_types=types, visibility=task.context.blocks, runtime=task.context.runtime
    )
