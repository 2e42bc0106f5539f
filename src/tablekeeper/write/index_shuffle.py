"""Turns what tasks find in files into the logs of an index, one for each shard.

Some tasks collect keys, sorted by shard; others make the log or base file of each shard. Large results are kept in the
staging directory. A key that is removed in one place and added in another stays in the index.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.engine.protocol import Engine, balanced_shares
from tablekeeper.format.index_shard import encode_index_log
from tablekeeper.format.metadata_log import encode_metadata_base
from tablekeeper.metadata_table.index_changes import IndexLog
from tablekeeper.model import FileGroupId, FileSlice
from tablekeeper.record.columns import combined
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.timeline import Timeline
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.index_logs import EncodedLog, Parked

__all__ = [
    "GONE",
    "EncodeTask",
    "Found",
    "Part",
    "collected",
    "encode_shard_base",
    "encode_shard_log",
    "load_slices_before",
    "make_logs",
    "sorted_keys",
]

GONE = -1
_SCHEMA = pa.schema([("key", pa.large_string()), ("place", pa.int32())])
_TASKS_A_CORE = 2

Found = tuple[pa.Array, npt.NDArray[np.int64], bytes | None]
"""Keys, their shards, and the new value of the index for all of them; None removes them."""


class Sized(Protocol):
    """Something that a task reads."""

    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Sized)
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Part:
    """Keys of several sources: batch `n` has those of shard `shards[n]`, each with its place in `values`, or `GONE`."""

    values: tuple[bytes, ...]
    shards: tuple[int, ...]
    parked: Parked


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Make the log or base file of one shard of `index` from these batches of its keys."""

    context: WriteContext
    index: str
    found: tuple[tuple[Part, int], ...]

    @property
    def bytes(self) -> int:
        return sum(part.parked.size // len(part.shards) for part, _ in self.found)


def make_logs(
    engine: Engine,
    context: WriteContext,
    sources: Sequence[S],
    *,
    index: str,
    task_of: Callable[[tuple[S, ...]], C],
    collect: Callable[[C], Part],
    encode: Callable[[EncodeTask], EncodedLog],
) -> dict[int, IndexLog]:
    """The new logs or base files of the shards of all keys in `sources`. `collect` and `encode` are kernels."""
    if not sources:
        return {}
    count = max(1, min(len(sources), _TASKS_A_CORE * engine.parallelism))
    shares = [[sources[n] for n in share] for share in balanced_shares([each.size for each in sources], count)]
    weights = [float(sum(each.size for each in share)) for share in shares]
    by_shard: dict[int, list[tuple[Part, int]]] = defaultdict(list)
    for part in engine.run(
        collect, [task_of(tuple(share)) for share in shares], label=f"collect keys for {index}", weights=weights
    ):
        for number, shard in enumerate(part.shards):
            by_shard[shard].append((part, number))
    tasks = [EncodeTask(context, index, tuple(found)) for found in by_shard.values()]
    encoded = engine.run(encode, tasks, label=f"write {index}", weights=[float(task.bytes) for task in tasks])
    return {shard: each.log(context.store) for shard, each in zip(by_shard, encoded, strict=True)}


def load_slices_before(
    environment: TableEnvironment, at_start: Timeline, partitions: Iterable[str]
) -> Mapping[FileGroupId, FileSlice]:
    """The slices of these partitions when the write began, by file group."""
    snapshot = load_snapshot(
        environment.storage,
        environment.config,
        at_start,
        runtime=environment.runtime,
        partitions=sorted(partitions),
    )
    return {each.group: each for each in snapshot.latest}


def collected(context: WriteContext, found: Iterable[Found]) -> Part:
    """What a task has found, sorted by shard."""
    values: list[bytes] = []
    keys: list[pa.Array] = [pa.array([], pa.large_string())]
    places: list[npt.NDArray[np.int32]] = [np.zeros(0, np.int32)]
    numbers: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for each, of_each, value in found:
        if value is not None and (not values or values[-1] != value):
            values.append(value)
        keys.append(each.cast(pa.large_string()))
        numbers.append(of_each)
        places.append(np.full(len(each), GONE if value is None else len(values) - 1, np.int32))
    table = pa.table([pa.chunked_array(keys), np.concatenate(places)], schema=_SCHEMA)
    shards = np.concatenate(numbers)
    order = np.argsort(shards, kind="stable")
    table, shards = table.take(pa.array(order)), shards[order]
    present, starts = np.unique(shards, return_index=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        for start, end in itertools.pairwise([*starts, len(shards)]):
            writer.write_batch(table.slice(start, end - start).combine_chunks().to_batches()[0])
    parked = Parked.of(context, sink.getvalue().to_pybytes())
    return Part(tuple(values), tuple(int(shard) for shard in present), parked)


def encode_shard_log(task: EncodeTask) -> EncodedLog:
    """Kernel: the log of one shard."""
    keys, places, values = sorted_keys(task)
    is_first = np.ones(len(keys), bool)
    is_first[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    keys, places = keys.filter(pa.array(is_first)), places[is_first]
    is_there = places != GONE
    data = encode_index_log(
        _entries(keys.filter(pa.array(is_there)), places[is_there], values),
        keys.filter(pa.array(~is_there)).cast(pa.large_string()),
        index=task.index,
        instant=task.context.instant,
        created_ms=task.context.runtime.clock.now_ms(),
    )
    return EncodedLog(len(keys), Parked.of(task.context, data))


def encode_shard_base(task: EncodeTask) -> EncodedLog:
    """Kernel: the base file of one shard, in which each key occurs once."""
    keys, places, values = sorted_keys(task)
    created_ms = task.context.runtime.clock.now_ms()
    data = encode_metadata_base(_entries(keys, places, values), created_ms=created_ms)
    return EncodedLog(len(keys), Parked.of(task.context, data))


def sorted_keys(task: EncodeTask) -> tuple[pa.Array, npt.NDArray[np.int32], list[bytes]]:
    """All keys in byte order, the position of each in the values, and these. For equal keys `GONE` comes last."""
    values: list[bytes] = []
    tables: list[pa.Table] = []
    for part, number in task.found:
        with closing(pa.BufferReader(part.parked.load(task.context.store))) as source:
            batch = pa.ipc.open_file(source).get_batch(number)
        places = batch.column(1).to_numpy()
        shifted = np.where(places == GONE, GONE, places + len(values)).astype(np.int32)
        values += part.values
        tables.append(pa.table([batch.column(0).cast(pa.large_binary()), shifted], ["key", "place"]))
    table = pa.concat_tables(tables)
    table = table.take(pc.sort_indices(table, sort_keys=[("key", "ascending"), ("place", "descending")]))
    return combined(table.column(0)), table.column(1).to_numpy(), values


def _entries(keys: pa.Array, places: npt.NDArray[np.int32], values: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(keys.to_pylist(), (values[place] for place in places), strict=True)
