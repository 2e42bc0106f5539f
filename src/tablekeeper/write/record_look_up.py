"""Tagging by the record index, which knows for each key the file group that holds it, in any partition.

A task takes staged batches and reads the few blocks of the index that hold their keys, so that the cost depends on the
keys and not on the table. A row whose key is in another partition than the row names goes to that partition, as with
Java's global indexes unless they are told to move rows; its batch is staged again. An index by partitions is asked for
the key in the partition that the row names. An entry for a file group that does not exist is ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.engine.protocol import Engine, balanced_shares
from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.key_shards import KeyShards
from tablekeeper.format.record_index import RECORD_INDEX, RecordIndexShard, RecordLocation
from tablekeeper.metadata_table.layout import MetadataSlice
from tablekeeper.metadata_table.record_index import load_record_index, open_record_index_shard
from tablekeeper.record.columns import combined
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.timeline import Timeline
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.homes import NOWHERE, Assigned, Located, LocatedRows, keep_tags, stage_by_home
from tablekeeper.write.staging import StagedBatch, each_staged
from tablekeeper.write.tagging import TagPage

__all__ = ["look_up_records"]

_KEYS_A_TASK = 500_000
_SHARDS_AT_ONCE = 16
_ROUNDS = 3
_Numbers = Mapping[str, Mapping[str, int]]
"""The number of each slice in its partition, by partition path and file id."""


def look_up_records(
    environment: TableEnvironment,
    engine: Engine,
    context: WriteContext,
    timeline: Timeline,
    staged: Mapping[str, Sequence[StagedBatch]],
    *,
    load: Callable[[Sequence[str]], Snapshot],
    by_partition: bool,
) -> LocatedRows | None:
    """Look all staged keys up in the record index as of `timeline`; None if it was dropped since.

    `load` gives the slices of partitions. `by_partition` says which kind of index it is.
    """
    for rounds_left in range(_ROUNDS - 1, -1, -1):
        try:
            slices = load_record_index(environment.storage, environment.config, timeline, by_partition=by_partition)
            return _look_up_in(engine, context, _Index(slices, by_partition), staged, load=load)
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
    index: _Index,
    staged: Mapping[str, Sequence[StagedBatch]],
    *,
    load: Callable[[Sequence[str]], Snapshot],
) -> LocatedRows:
    snapshots = [load(list(staged))]
    _refuse_missing_shards(index, snapshots[0])
    known = set(staged)
    batches = [batch for found in staged.values() for batch in found]
    count = -(-sum(batch.rows for batch in batches) // _KEYS_A_TASK)
    shares = balanced_shares([batch.rows for batch in batches], max(1, min(len(batches), count)))
    tasks = [
        _LookUpTask(context, tuple(batches[n] for n in share), index, _numbers(known, snapshots)) for share in shares
    ]
    answers: dict[int, _Answer] = {}
    while len(answers) < len(tasks):
        waiting = [n for n in range(len(tasks)) if n not in answers]
        found = engine.run(_look_up, [tasks[n] for n in waiting], label="look up keys in the record index")
        answers |= {n: answer for n, answer in zip(waiting, found, strict=True) if not answer.strays}
        strays = sorted({partition for answer in found for partition in answer.strays} - known)
        known |= set(strays)
        # Partitions that no row names, but that have some of the keys.
        snapshots += [load(strays)] if strays else []
        tasks = [replace(task, numbers=_numbers(known, snapshots)) for task in tasks]
    return LocatedRows.of(snapshots, [each for n in range(len(tasks)) for each in answers[n].located])


def _refuse_missing_shards(index: _Index, snapshot: Snapshot) -> None:
    """Raise `CorruptTableError` if an index by partitions knows nothing of a partition that has rows."""
    for partition in sorted({each.group.partition for each in snapshot.latest}):
        if not len(index.shards.of(partition)):
            reason = f"the record index has no file group for partition {partition!r}, which has rows"
            raise CorruptTableError(file=RECORD_INDEX, reason=reason)


def _numbers(partitions: Iterable[str], snapshots: Sequence[Snapshot]) -> _Numbers:
    numbers: dict[str, dict[str, int]] = {path: {} for path in partitions}
    for snapshot in snapshots:
        for each in snapshot.latest:
            of_partition = numbers[each.group.partition]
            of_partition[each.group.file_id] = len(of_partition)
    return numbers


@dataclass(frozen=True, slots=True)
class _Index:
    """The shards of the index by number."""

    slices: tuple[MetadataSlice, ...]
    by_partition: bool

    @property
    def shards(self) -> KeyShards:
        return KeyShards(tuple(each.file_id for each in self.slices), self.by_partition)


@dataclass(frozen=True, slots=True)
class _LookUpTask:
    context: WriteContext
    staged: tuple[StagedBatch, ...]
    index: _Index
    numbers: _Numbers


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was found; or, if keys are in partitions that the task does not know, only these partitions."""

    located: tuple[Located, ...] = ()
    strays: frozenset[str] = frozenset()


def _look_up(task: _LookUpTask) -> _Answer:
    """Kernel: where the keys of some staged batches are."""
    store = task.context.store
    read = dict(each_staged(store, list(enumerate(task.staged)), columns=[KEY_COLUMN]))
    shards = task.index.shards
    found: list[tuple[list[int], pa.Array, list[RecordLocation | None]]] = []
    for partition, places in _places(task).items():
        keys = pa.chunked_array([read[place].column(KEY_COLUMN).cast(pa.large_string()) for place in places])
        encoded = combined(pc.dictionary_encode(keys))
        found.append((places, encoded.indices, _locations(task, shards, encoded.dictionary, partition)))
    strays = {each.partition for _, _, known in found for each in known if each is not None} - task.numbers.keys()
    if strays:
        return _Answer(strays=frozenset(strays))
    paths = {path: place for place, path in enumerate(task.numbers)}
    pages: dict[str, list[tuple[StagedBatch, TagPage]]] = defaultdict(list)
    for places, indices, locations in found:
        slices = np.full(len(locations), NOWHERE, np.int32)
        homes = np.zeros(len(locations), np.int64)
        for place, each in enumerate(locations):
            number = None if each is None else task.numbers[each.partition].get(each.file_id)
            if each is not None and number is not None:
                slices[place], homes[place] = number, paths[each.partition]
        batches = [task.staged[place] for place in places]
        ends = np.cumsum([batch.rows for batch in batches])
        for batch, keys_of in zip(batches, np.split(indices.to_numpy(), ends[:-1]), strict=True):
            home = np.where(slices[keys_of] == NOWHERE, paths[batch.partition], homes[keys_of])
            assigned = Assigned(np.arange(batch.rows), home, slices[keys_of], np.zeros(batch.rows, bool))
            for moved, page in stage_by_home(task.context, batch, assigned, list(paths)):
                pages[moved.partition].append((moved, page))
    return _Answer(tuple(keep_tags(task.context, path, kept) for path, kept in pages.items()))


def _places(task: _LookUpTask) -> dict[str, list[int]]:
    """The places of the staged batches whose keys are looked up together, by the partition where that is."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, batch in enumerate(task.staged):
        places[batch.partition if task.index.by_partition else ""].append(place)
    return places


def _locations(task: _LookUpTask, shards: KeyShards, keys: pa.Array, partition: str) -> list[RecordLocation | None]:
    """The location of each key; `partition` matters only to an index by partitions."""
    if not len(shards.of(partition)):
        return [None] * len(keys)
    numbers = shards.numbers(keys, partition)
    runtime, storage = task.context.runtime, task.context.store.storage

    def find(number: int) -> dict[str, RecordLocation]:
        shard = open_record_index_shard(storage, task.index.slices[number], runtime=runtime)
        _refuse_foreign_keys(shard, shards, number, partition)
        return shard.find(keys.filter(pa.array(numbers == number)).to_pylist())

    found: dict[str, RecordLocation] = {}
    for located in runtime.threads.map(find, np.unique(numbers).tolist(), width=_SHARDS_AT_ONCE):
        found |= located
    return [found.get(key) for key in keys.to_pylist()]


def _refuse_foreign_keys(shard: RecordIndexShard, shards: KeyShards, number: int, partition: str) -> None:
    """Raise `CorruptTableError` if a file of the shard belongs to another one."""
    for file, key in shard.first_keys():
        if shards.numbers(pa.array([key], pa.string()), partition)[0] != number:
            reason = f"it holds keys that do not belong to shard {shards.file_ids[number]}"
            raise CorruptTableError(file=file, reason=reason)
