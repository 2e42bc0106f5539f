"""Tagging by the record index: the index says for each staged key which file group has it, in whatever partition.

A task takes staged batches and asks the shards of their keys, of which it reads the few blocks that matter, so that the
cost follows the keys and not the table. A row whose key lies in another partition than the row names goes to that one,
as Java's global indexes have it unless told to move rows; its batch is staged anew for that. An entry that points to a
file group which is not there counts for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.engine.protocol import Engine, balanced_shares
from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.record_index import RECORD_INDEX, RecordLocation, record_index_shards
from tablekeeper.metadata_table.layout import MetadataSlice
from tablekeeper.metadata_table.record_index import load_record_index, open_record_index_shard
from tablekeeper.model import FileSlice
from tablekeeper.record.columns import combined
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.timeline import Timeline
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.grouping import group_rows
from tablekeeper.write.staging import StagedBatch, each_staged, staging_file, staging_format
from tablekeeper.write.tagging import LookedUp, Tagged, TagPage, save_tags

__all__ = ["IndexedRows", "look_up_records"]

_KEYS_A_TASK = 500_000
_SHARDS_AT_ONCE = 16
_ROUNDS = 3
# Beside the columns of rows that are staged anew.
_SLICE = "\0slice"

_Numbers = Mapping[str, Mapping[str, int]]
"""The number of each slice in its partition, by partition path and file id."""


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """The staged rows by the partition that they go to, the slices of these partitions, and what was found in them."""

    staged: Mapping[str, Sequence[StagedBatch]]
    snapshots: tuple[Snapshot, ...]
    tagged: Mapping[str, Sequence[Tagged]]

    @property
    def slices(self) -> tuple[FileSlice, ...]:
        return tuple(each for snapshot in self.snapshots for each in snapshot.latest)


def look_up_records(
    environment: TableEnvironment,
    engine: Engine,
    context: WriteContext,
    timeline: Timeline,
    staged: Mapping[str, Sequence[StagedBatch]],
    *,
    load: Callable[[Sequence[str]], Snapshot],
) -> IndexedRows | None:
    """Look all staged keys up in the record index as of `timeline`; None if it was dropped since.

    `load` gives the slices of partitions.
    """
    for rounds_left in range(_ROUNDS - 1, -1, -1):
        try:
            shards = load_record_index(environment.storage, environment.config, timeline)
            return _look_up_in(engine, context, shards, staged, load=load)
        except (NotFoundError, CorruptTableError):
            # Between listing and reading, a compaction of the metadata table can replace its files.
            if RECORD_INDEX not in load_table_config(environment.storage).metadata_partitions:
                return None
            if not rounds_left:
                raise
    return None


def _look_up_in(
    engine: Engine,
    context: WriteContext,
    shards: Sequence[MetadataSlice],
    staged: Mapping[str, Sequence[StagedBatch]],
    *,
    load: Callable[[Sequence[str]], Snapshot],
) -> IndexedRows:
    snapshots = [load(list(staged))]
    known = set(staged)
    batches = [batch for found in staged.values() for batch in found]
    count = -(-sum(batch.rows for batch in batches) // _KEYS_A_TASK)
    shares = balanced_shares([batch.rows for batch in batches], max(1, min(len(batches), count)))
    tasks = [
        _LookUpTask(context, tuple(batches[n] for n in share), tuple(shards), _numbers(known, snapshots))
        for share in shares
    ]
    answers: dict[int, _Answer] = {}
    while len(answers) < len(tasks):
        waiting = [n for n in range(len(tasks)) if n not in answers]
        found = engine.run(_look_up, [tasks[n] for n in waiting], label="look up keys in the record index")
        answers |= {n: answer for n, answer in zip(waiting, found, strict=True) if not answer.strays}
        strays = sorted({partition for answer in found for partition in answer.strays} - known)
        known |= set(strays)
        # Partitions that no row names and that have some of the keys all the same.
        snapshots += [load(strays)] if strays else []
        tasks = [replace(task, numbers=_numbers(known, snapshots)) for task in tasks]
    by_partition: dict[str, list[StagedBatch]] = defaultdict(list)
    tagged: dict[str, list[Tagged]] = defaultdict(list)
    for n in range(len(tasks)):
        for each in answers[n].located:
            first = len(by_partition[each.partition])
            by_partition[each.partition] += each.staged
            tags = replace(each.tagged.tags, batches=tuple(range(first, first + len(each.staged))))
            tagged[each.partition].append(replace(each.tagged, tags=tags))
    return IndexedRows(by_partition, tuple(snapshots), tagged)


def _numbers(partitions: Iterable[str], snapshots: Sequence[Snapshot]) -> _Numbers:
    numbers: dict[str, dict[str, int]] = {path: {} for path in partitions}
    for snapshot in snapshots:
        for each in snapshot.latest:
            of_partition = numbers[each.group.partition]
            of_partition[each.group.file_id] = len(of_partition)
    return numbers


@dataclass(frozen=True, slots=True)
class _LookUpTask:
    context: WriteContext
    staged: tuple[StagedBatch, ...]
    shards: tuple[MetadataSlice, ...]
    numbers: _Numbers


@dataclass(frozen=True, slots=True)
class _Located:
    """Staged batches of one partition with their tags."""

    partition: str
    staged: tuple[StagedBatch, ...]
    tagged: Tagged


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was found; or, if keys lie in partitions that the task does not know, just these."""

    located: tuple[_Located, ...] = ()
    strays: frozenset[str] = frozenset()


def _look_up(task: _LookUpTask) -> _Answer:
    """Kernel: where the keys of some staged batches are."""
    store = task.context.store
    read = dict(each_staged(store, list(enumerate(task.staged)), keys_only=True))
    keys = pa.chunked_array([read[place].column(KEY_COLUMN).cast(pa.large_string()) for place in range(len(read))])
    encoded = combined(pc.dictionary_encode(keys))
    locations = _locations(task, encoded.dictionary)
    strays = {each.partition for each in locations if each is not None} - task.numbers.keys()
    if strays:
        return _Answer(strays=frozenset(strays))
    paths = {path: place for place, path in enumerate(task.numbers)}
    slices = np.full(len(locations), -1, np.int32)
    homes = np.full(len(locations), -1, np.int32)
    for place, each in enumerate(locations):
        number = None if each is None else task.numbers[each.partition].get(each.file_id)
        if each is not None and number is not None:
            slices[place], homes[place] = number, paths[each.partition]
    pages: dict[str, list[tuple[StagedBatch, TagPage]]] = defaultdict(list)
    ends = np.cumsum([batch.rows for batch in task.staged])
    for place, (batch, rows) in enumerate(
        zip(task.staged, np.split(encoded.indices.to_numpy(), ends[:-1]), strict=True)
    ):
        home = np.where(slices[rows] < 0, paths[batch.partition], homes[rows])
        for moved, found in _by_home(task, place, home, list(paths), slices[rows]):
            hits = np.flatnonzero(found >= 0)
            pages[moved.partition].append((moved, TagPage(hits.astype(np.int32), found[hits])))
    return _Answer(tuple(_located(task.context, path, found) for path, found in pages.items()))


def _locations(task: _LookUpTask, keys: pa.Array) -> list[RecordLocation | None]:
    numbers = record_index_shards(keys, shards=len(task.shards))
    runtime, storage = task.context.runtime, task.context.store.storage

    def find(number: int) -> dict[str, RecordLocation]:
        shard = open_record_index_shard(storage, task.shards[number], runtime=runtime)
        shard.refuse_foreign_keys(number, shards=len(task.shards))
        return shard.find(keys.filter(pa.array(numbers == number)).to_pylist())

    found: dict[str, RecordLocation] = {}
    for located in runtime.threads.map(find, np.unique(numbers).tolist(), width=_SHARDS_AT_ONCE):
        found |= located
    return [found.get(key) for key in keys.to_pylist()]


def _by_home(
    task: _LookUpTask,
    place: int,
    home: npt.NDArray[np.int32],
    paths: Sequence[str],
    slices: npt.NDArray[np.int32],
) -> Iterator[tuple[StagedBatch, npt.NDArray[np.int32]]]:
    """The batch, or its rows staged anew by the partition that they go to, with the slice of each row, or -1."""
    batch = task.staged[place]
    if len(home) == 0 or (home == paths.index(batch.partition)).all():
        yield batch, slices
        return
    ((_, rows),) = each_staged(task.context.store, [(place, batch)])
    file = staging_file(task.context, "moved")
    table = pa.Table.from_batches([rows]).append_column(_SLICE, pa.array(slices))
    staged: list[tuple[StagedBatch, npt.NDArray[np.int32]]] = []
    with (
        task.context.store.storage.open_output(file) as sink,
        pa.ipc.new_file(sink, rows.schema, options=staging_format(task.context)) as writer,
    ):
        for path, part in group_rows(table, home.astype(np.int64)):
            found = combined(part.column(_SLICE)).to_numpy()
            (moved,) = part.drop_columns([_SLICE]).combine_chunks().to_batches()
            writer.write_batch(moved)
            place_of = StagedBatch(
                paths[path], batch.bucket, file, number=len(staged), rows=moved.num_rows, bytes=moved.nbytes
            )
            staged.append((place_of, found))
    yield from staged


def _located(context: WriteContext, path: str, found: Sequence[tuple[StagedBatch, TagPage]]) -> _Located:
    pages = [page for _, page in found]
    tags = save_tags(context.store, range(len(pages)), pages, file=staging_file(context, "tags"))
    slices, counts = np.unique(np.concatenate([page.slices for page in pages]), return_counts=True)
    looked_up = tuple(LookedUp(int(each), int(rows), 0) for each, rows in zip(slices, counts, strict=True))
    rows = sum(len(page.rows) for page in pages)
    return _Located(path, tuple(batch for batch, _ in found), Tagged(looked_up, tags, rows))
