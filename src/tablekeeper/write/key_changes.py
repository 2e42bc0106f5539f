"""What a write means for the record index: which keys it brings to which file group, and which it takes away.

It is found out from the files, as Java does, so that every operation and service tells it alike: a new base file brings
its keys, the next version of one those that the former had not, and a log takes away what it deletes. Whether a row in
a log that says of itself that it is deleted wins over what is below it, only a merge of the slice tells.

Tasks collect keys, sorted by shard, and others make the log of each shard; what is large lies in the staging directory.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.engine.protocol import Engine, balanced_shares
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.metadata_log import encode_metadata_base
from tablekeeper.format.record_index import (
    RecordLocation,
    encode_record_index_log,
    encode_record_location,
    record_index_shards,
)
from tablekeeper.metadata_table.index_changes import IndexLog
from tablekeeper.model import CommitMetadata, FileGroupId, FileSlice, Operation, RequestedTime, WriteStat
from tablekeeper.read.log_changes import EVERY_BLOCK, load_changes
from tablekeeper.read.slice_rows import SliceTask, open_base_file, read_row_group, read_slice
from tablekeeper.record.columns import combined
from tablekeeper.record.merge import KEY_COLUMN, Deletes
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.timeline import Timeline, parse_time
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.index_logs import EncodedLog, Parked

__all__ = ["index_slices", "key_logs"]

_KEYS = pa.schema([(KEY_COLUMN, pa.string())])
_SCHEMA = pa.schema([("key", pa.large_string()), ("place", pa.int32())])
_GONE = -1
_TASKS_A_CORE = 2
_LEAVES_KEYS = (Operation.COMPACT, Operation.LOG_COMPACT)

_Found = tuple[pa.Array, RecordLocation | None]
"""Keys, and where they are from now on; None if that is nowhere."""


def key_logs(
    environment: TableEnvironment,
    engine: Engine,
    context: WriteContext,
    metadata: CommitMetadata,
    *,
    at_start: Timeline,
    shards: int,
    is_tagged: bool,
) -> Mapping[int, IndexLog]:
    """The logs of the shards that a write changes, by number.

    `is_tagged` says that the record index told which of the keys were there before.
    """
    if metadata.operation in _LEAVES_KEYS:
        return {}
    sources = _sources(environment, context, metadata, at_start=at_start, is_tagged=is_tagged)
    encode = _encode_log if metadata.operation is Operation.UPSERT else _encode_log_of_any
    return _index(engine, context, sources, shards=shards, encode=encode)


def index_slices(
    engine: Engine, context: WriteContext, slices: Sequence[FileSlice], *, shards: int, zone: str
) -> Mapping[int, IndexLog]:
    """Base files of the shards, by number, of a record index that knows the rows of these slices.

    Raises `InvalidRequestError` if a key is there twice.
    """
    sources = [
        _Source(_location(each.group, parse_time(each.base_instant.value, zone=zone)), None, each) for each in slices
    ]
    return _index(engine, context, sources, shards=shards, encode=_encode_base)


def _sources(
    environment: TableEnvironment,
    context: WriteContext,
    metadata: CommitMetadata,
    *,
    at_start: Timeline,
    is_tagged: bool,
) -> list[_Source]:
    deletes = metadata.operation is Operation.DELETE
    began_ms = parse_time(context.instant, zone=environment.config.time_zone)
    written = [
        _Source(_location(stat.group, began_ms), stat, merges=stat.deletes > 0 and not deletes)
        for stat in metadata.stats
        if not stat.is_log or stat.deletes or not is_tagged
    ]
    replaced = set(metadata.replaced_groups) if metadata.operation is not Operation.CLUSTER else set()
    partitions = {stat.group.partition for stat in metadata.stats if stat.is_log and stat.deletes and not deletes}
    partitions |= {group.partition for group in replaced}
    if not partitions:
        return written
    snapshot = load_snapshot(
        environment.storage,
        environment.config,
        at_start,
        runtime=environment.runtime,
        partitions=sorted(partitions),
    )
    before = {each.group: each for each in snapshot.latest}
    written = [
        replace(each, file_slice=before.get(each.stat.group)) if each.stat is not None and each.merges else each
        for each in written
    ]
    return written + [_Source(None, None, before[group]) for group in sorted(replaced & before.keys())]


def _index(
    engine: Engine,
    context: WriteContext,
    sources: Sequence[_Source],
    *,
    shards: int,
    encode: Callable[[_EncodeTask], EncodedLog],
) -> dict[int, IndexLog]:
    """What becomes of the shards that have keys of `sources`, by number."""
    if not sources:
        return {}
    count = max(1, min(len(sources), _TASKS_A_CORE * engine.parallelism))
    shares = balanced_shares([each.size for each in sources], count)
    collect = [_CollectTask(context, tuple(sources[n] for n in share), shards) for share in shares]
    weights = [float(sum(each.size for each in task.sources)) for task in collect]
    by_shard: dict[int, list[tuple[_Part, int]]] = defaultdict(list)
    for part in engine.run(_collect, collect, label="collect keys", weights=weights):
        for number, shard in enumerate(part.shards):
            by_shard[shard].append((part, number))
    tasks = [_EncodeTask(context, tuple(found)) for found in by_shard.values()]
    encoded = engine.run(encode, tasks, label="index keys", weights=[float(task.bytes) for task in tasks])
    return {shard: each.log(context.store) for shard, each in zip(by_shard, encoded, strict=True)}


@dataclass(frozen=True, slots=True)
class _Source:
    """Something that tells of keys: a written file, or else a file slice with all its rows.

    They are at `location` from now on; nowhere if that is None. If it `merges`, the rows of the written log have to be
    compared with what is below it, `file_slice`.
    """

    location: RecordLocation | None
    stat: WriteStat | None
    file_slice: FileSlice | None = None
    merges: bool = False

    @property
    def size(self) -> int:
        below = self.file_slice.size if self.file_slice is not None else 0
        return below + (self.stat.size if self.stat is not None else 0)


@dataclass(frozen=True, slots=True)
class _CollectTask:
    context: WriteContext
    sources: tuple[_Source, ...]
    shards: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Keys of several files: batch `n` has those of shard `shards[n]`, each with its place in `locations`, or -1."""

    locations: tuple[RecordLocation, ...]
    shards: tuple[int, ...]
    parked: Parked


@dataclass(frozen=True, slots=True)
class _EncodeTask:
    """What these batches say of the keys of one shard."""

    context: WriteContext
    found: tuple[tuple[_Part, int], ...]

    @property
    def bytes(self) -> int:
        return sum(part.parked.size // len(part.shards) for part, _ in self.found)


def _collect(task: _CollectTask) -> _Part:
    """Kernel: the keys of some files, sorted by shard."""
    locations: list[RecordLocation] = []
    keys: list[pa.Array] = [pa.array([], pa.large_string())]
    places: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
    for source in task.sources:
        for found, location in _found(task.context, source):
            if location is not None and (not locations or locations[-1] != location):
                locations.append(location)
            keys.append(found.cast(pa.large_string()))
            places.append(np.full(len(found), _GONE if location is None else len(locations) - 1, np.int32))
    table = pa.table([pa.chunked_array(keys), np.concatenate(places)], schema=_SCHEMA)
    shards = record_index_shards(combined(table.column(0)), shards=task.shards)
    order = np.argsort(shards, kind="stable")
    table, shards = table.take(pa.array(order)), shards[order]
    present, starts = np.unique(shards, return_index=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        for start, end in itertools.pairwise([*starts, len(shards)]):
            writer.write_batch(table.slice(start, end - start).combine_chunks().to_batches()[0])
    parked = Parked.of(task.context, sink.getvalue().to_pybytes())
    return _Part(tuple(locations), tuple(int(shard) for shard in present), parked)


def _encode_log(task: _EncodeTask) -> EncodedLog:
    """Kernel: the log of one shard, for rows that may be in one place only."""
    keys, places, values = _sorted_keys(task)
    again = np.flatnonzero(pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False))
    for place in again[places[again + 1] != _GONE]:
        if values[places[place]] != values[places[place + 1]]:
            raise InvalidRequestError(
                f"the record key {keys[int(place)].as_py().decode()!r} is new and is given for two partitions at once, "
                "but in a table with a record index a key has one partition. Nothing was written: give each key once."
            )
    return _encode_log_of_any(task)


def _encode_log_of_any(task: _EncodeTask) -> EncodedLog:
    """Kernel: the log of one shard. A key that is taken away in one place and brought to another is there."""
    keys, places, values = _sorted_keys(task)
    is_first = np.ones(len(keys), bool)
    is_first[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    keys, places = keys.filter(pa.array(is_first)), places[is_first]
    is_there = places != _GONE
    gone = keys.filter(pa.array(~is_there)).cast(pa.large_string())
    data = encode_record_index_log(
        _entries(keys.filter(pa.array(is_there)), places[is_there], values),
        gone,
        instant=task.context.instant,
        created_ms=task.context.runtime.clock.now_ms(),
    )
    return EncodedLog(len(keys), Parked.of(task.context, data))


def _encode_base(task: _EncodeTask) -> EncodedLog:
    """Kernel: the base file of one shard, in which every key is once."""
    keys, places, values = _sorted_keys(task)
    repeated = np.flatnonzero(pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False))
    if len(repeated):
        key = keys[int(repeated[0])].as_py().decode()
        raise InvalidRequestError(
            f"the record key {key!r} is in the table twice, and a record index knows one place for each. "
            "Make the keys unique in the whole table (also over its partitions) first, or do without the index."
        )
    created_ms = task.context.runtime.clock.now_ms()
    data = encode_metadata_base(_entries(keys, places, values), created_ms=created_ms)
    return EncodedLog(len(keys), Parked.of(task.context, data))


def _sorted_keys(task: _EncodeTask) -> tuple[pa.Array, npt.NDArray[np.int32], list[bytes]]:
    """All keys by their bytes, the place of each among the values that follow; of one key, -1 comes last."""
    values: list[bytes] = []
    tables: list[pa.Table] = []
    for part, number in task.found:
        with closing(pa.BufferReader(part.parked.load(task.context.store))) as source:
            batch = pa.ipc.open_file(source).get_batch(number)
        places = batch.column(1).to_numpy()
        shifted = np.where(places == _GONE, _GONE, places + len(values)).astype(np.int32)
        values += map(encode_record_location, part.locations)
        tables.append(pa.table([batch.column(0).cast(pa.large_binary()), shifted], ["key", "place"]))
    table = pa.concat_tables(tables)
    table = table.take(pc.sort_indices(table, sort_keys=[("key", "ascending"), ("place", "descending")]))
    return combined(table.column(0)), table.column(1).to_numpy(), values


def _entries(keys: pa.Array, places: npt.NDArray[np.int32], values: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(keys.to_pylist(), (values[place] for place in places), strict=True)


def _location(group: FileGroupId, began_ms: int) -> RecordLocation:
    return RecordLocation(group.partition, group.file_id, began_ms)


def _found(context: WriteContext, source: _Source) -> Iterator[_Found]:
    stat = source.stat
    if stat is None:
        if source.file_slice is not None:
            yield _slice_keys(context, source.file_slice), source.location
    elif stat.is_log:
        yield from _log_keys(context, source, stat)
    else:
        keys = _base_keys(context, stat.group.partition, stat.file_name)
        if stat.previous_base_file is None:
            yield keys, source.location
            return
        former = _base_keys(context, stat.group.partition, stat.previous_base_file)
        yield keys.filter(pc.invert(pc.is_in(keys, value_set=former))), source.location
        yield former.filter(pc.invert(pc.is_in(former, value_set=keys))), None


def _log_keys(context: WriteContext, source: _Source, stat: WriteStat) -> Iterator[_Found]:
    (log,) = decode_partition_files(stat.group.partition, [(stat.file_name, stat.size)]).logs
    loaded = load_changes(
        context.store.storage,
        [log],
        schema=_KEYS,
        rule=context.rule,
        key=context.key,
        visibility=EVERY_BLOCK,
        runtime=context.runtime,
    )
    for change in loaded.changes:
        if isinstance(change, Deletes):
            yield combined(change.keys), None
        elif isinstance(change, pa.Table) and not source.merges:
            yield combined(change.column(KEY_COLUMN)), source.location
        elif isinstance(change, pa.Table):
            keys = combined(change.column(KEY_COLUMN)).unique()
            below = source.file_slice or FileSlice(stat.group, RequestedTime(log.instant.value), None)
            live = _slice_keys(context, replace(below, logs=(*below.logs, log)))
            is_live = pc.is_in(keys, value_set=live)
            yield keys.filter(is_live), source.location
            yield keys.filter(pc.invert(is_live)), None


def _base_keys(context: WriteContext, partition: str, name: str) -> pa.Array:
    (base,) = decode_partition_files(partition, [(name, 0)]).bases
    with open_base_file(context.store, base) as file:
        groups = range(file.num_row_groups)
        columns = [read_row_group(file, n, columns=[KEY_COLUMN], file=base.path).column(0) for n in groups]
    return combined(pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string()))


def _slice_keys(context: WriteContext, file_slice: FileSlice) -> pa.Array:
    """The keys of the rows that a reader sees in the slice."""
    task = SliceTask(
        store=context.store,
        file_slice=file_slice,
        schema=context.file_schema,
        output=_KEYS,
        rule=context.rule,
        key=context.key,
        runtime=context.runtime,
    )
    return combined(pa.Table.from_batches(read_slice(task), _KEYS).column(0))
