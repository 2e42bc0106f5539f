"""What a write changes in the record index: which keys it adds to which file group, and which it removes.

As in Java, this is read from the written files, in the same way for every operation and service: a new base file adds
its keys, the next version of one adds those that the old version did not have, and a log removes what it deletes.
Whether a row of a log that is marked as deleted wins against older rows takes a merge of the slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.engine.protocol import Engine
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.index_shard import encode_empty_log
from tablekeeper.format.key_shards import KeyShards
from tablekeeper.format.record_index import RECORD_INDEX, RecordLocation, encode_record_location
from tablekeeper.metadata_table.index_changes import IndexLog
from tablekeeper.model import CommitMetadata, FileGroupId, FileSlice, Operation, RequestedTime, WriteStat
from tablekeeper.read.log_changes import EVERY_BLOCK
from tablekeeper.read.slice_rows import open_base_file, read_row_group, read_slice
from tablekeeper.record.columns import combined
from tablekeeper.record.merge import KEY_COLUMN, Deletes
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.timeline import Timeline, parse_time
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.index_logs import EncodedLog
from tablekeeper.write.index_shuffle import (
    GONE,
    EncodeTask,
    Part,
    collected,
    encode_shard_base,
    encode_shard_log,
    load_slices_before,
    make_logs,
    sorted_keys,
)

__all__ = ["index_slices", "key_logs"]

_KEYS = pa.schema([(KEY_COLUMN, pa.string())])
_LEAVES_KEYS = (Operation.COMPACT, Operation.LOG_COMPACT)

_Found = tuple[pa.Array, RecordLocation | None]
"""Keys, and where they are now; None if they were removed."""


def key_logs(
    environment: TableEnvironment,
    engine: Engine,
    context: WriteContext,
    metadata: CommitMetadata,
    *,
    at_start: Timeline,
    shards: KeyShards,
    is_tagged: bool,
) -> Mapping[int, IndexLog]:
    """The logs of the shards that a write changes, by number.

    `is_tagged` says that the keys were looked up in the record index. In an index by partitions all shards of a
    partition get logs, empty ones as well, so that none is missing when a commit completes.
    """
    if metadata.operation in _LEAVES_KEYS:
        return {}
    sources = _sources(environment, context, metadata, at_start=at_start, is_tagged=is_tagged)
    encode = _encode_log if metadata.operation is Operation.UPSERT else encode_shard_log
    logs = _logs(engine, context, sources, shards=shards, encode=encode)
    empty = IndexLog(0, partial(encode_empty_log, instant=context.instant))
    return logs | dict.fromkeys(shards.beside(logs), empty)


def index_slices(
    engine: Engine, context: WriteContext, slices: Sequence[FileSlice], *, shards: KeyShards, zone: str
) -> Mapping[int, IndexLog]:
    """Base files of the shards, by number, of a record index that knows the rows of these slices.

    Raises `InvalidRequestError` if a key is there twice.
    """
    sources = [
        _Source(_location(each.group, parse_time(each.base_instant.value, zone=zone)), None, each) for each in slices
    ]
    return _logs(engine, context, sources, shards=shards, encode=_encode_base)


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
    before = load_slices_before(environment, at_start, partitions)
    written = [
        replace(each, file_slice=before.get(each.stat.group)) if each.stat is not None and each.merges else each
        for each in written
    ]
    return written + [_Source(None, None, before[group]) for group in sorted(replaced & before.keys())]


@dataclass(frozen=True, slots=True)
class _Source:
    """A source of keys: a written file, or a file slice with all its rows.

    The keys are now at `location`; they were removed if that is None. If it `merges`, the rows of the written log have
    to be compared with the slice below it, `file_slice`.
    """

    location: RecordLocation | None
    stat: WriteStat | None
    file_slice: FileSlice | None = None
    merges: bool = False

    @property
    def partition(self) -> str:
        told = self.stat or self.file_slice
        return told.group.partition if told is not None else ""

    @property
    def size(self) -> int:
        below = self.file_slice.size if self.file_slice is not None else 0
        return below + (self.stat.size if self.stat is not None else 0)


@dataclass(frozen=True, slots=True)
class _CollectTask:
    context: WriteContext
    sources: tuple[_Source, ...]
    shards: KeyShards


def _logs(
    engine: Engine,
    context: WriteContext,
    sources: Sequence[_Source],
    *,
    shards: KeyShards,
    encode: Callable[[EncodeTask], EncodedLog],
) -> dict[int, IndexLog]:
    return make_logs(
        engine,
        context,
        sources,
        index=RECORD_INDEX,
        task_of=lambda share: _CollectTask(context, share, shards),
        collect=_collect,
        encode=encode,
    )


def _collect(task: _CollectTask) -> Part:
    """Kernel: the keys of some files, sorted by shard."""
    found = (
        (
            keys,
            task.shards.numbers(keys, source.partition),
            None if location is None else encode_record_location(location),
        )
        for source in task.sources
        for keys, location in _found(task.context, source)
    )
    return collected(task.context, found)


def _encode_log(task: EncodeTask) -> EncodedLog:
    """Kernel: the log of one shard; refuses a key in two places."""
    keys, places, values = sorted_keys(task)
    again = np.flatnonzero(pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False))
    for place in again[places[again + 1] != GONE]:
        if values[places[place]] != values[places[place + 1]]:
            raise InvalidRequestError(
                f"the record key {keys[int(place)].as_py().decode()!r} is new and is given for two partitions at once, "
                "but in a table with a record index a key has one partition. Nothing was written: give each key once."
            )
    return encode_shard_log(task)


def _encode_base(task: EncodeTask) -> EncodedLog:
    """Kernel: the base file of one shard; refuses a key that occurs twice."""
    keys, _, _ = sorted_keys(task)
    repeated = np.flatnonzero(pc.equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False))
    if len(repeated):
        key = keys[int(repeated[0])].as_py().decode()
        raise InvalidRequestError(
            f"the record key {key!r} is in the table twice, and a record index knows one place for each. Make the keys "
            "unique first (those of an index of the whole table also over its partitions), or do without the index."
        )
    return encode_shard_base(task)


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
    for change in context.load_changes([log], _KEYS, blocks=EVERY_BLOCK).changes:
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
    task = context.slice_task(file_slice, _KEYS, blocks=EVERY_BLOCK)
    return combined(pa.Table.from_batches(read_slice(task), _KEYS).column(0))
