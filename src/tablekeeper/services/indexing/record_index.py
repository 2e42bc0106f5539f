"""Building the record index from the existing rows, and dropping it.

    no lock load the table, collect its keys, make the base files
    lock    if nothing was committed since: publish the index, and name it in the table's properties

If something was committed in the meantime, this is repeated, the last time under the lock. A write that began before
the index existed finds it when it commits, and adds its keys then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tablekeeper.config.metadata_settings import RecordIndexSettings
from tablekeeper.config.table_config import TableConfig
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.engine.protocol import Engine
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.format.key_shards import KeyShards, partition_shard_id, shard_id
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.metadata_table.index_changes import IndexLog
from tablekeeper.metadata_table.indexes import drop_metadata_indexes, load_metadata_indexes, without_indexes
from tablekeeper.metadata_table.initialize import begin_metadata_table, begin_record_index
from tablekeeper.model import BaseFile, FileSlice, Operation
from tablekeeper.model.results import Result
from tablekeeper.read.slice_rows import open_base_file
from tablekeeper.snapshot.slices import load_all_files_by_listing, load_files_by_listing
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline
from tablekeeper.timeline.properties_file import change_properties, load_table_config
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.key_changes import index_slices

__all__ = ["IndexResult", "create_record_index", "drop_record_index", "has_partitioned_index"]

_LOG = logging.getLogger(__name__)
_UNLOCKED_ROUNDS = 2
_LEAST_ROW_BYTES = 8


@dataclass(frozen=True, slots=True)
class IndexResult(Result):
    """The result: the number of keys and shards, or that nothing had to be done."""

    index: str
    outcome: str
    keys: int = 0
    shards: int = 0
    lock_held_s: float = 0.0

    def __repr__(self) -> str:
        size = f": {self.keys:,} keys in {self.shards} shards" if self.shards else ""
        return f"index {self.index} {self.outcome}{size}"


def create_record_index(
    environment: TableEnvironment,
    engine: Engine,
    context: WriteContext,
    settings: RecordIndexSettings,
    *,
    by_partition: bool,
) -> IndexResult:
    """Build the record index, and a metadata table if there is none."""
    try:
        return _create(environment, engine, context, settings, by_partition=by_partition)
    finally:
        environment.storage.delete_tree(context.staging)


def drop_record_index(environment: TableEnvironment) -> IndexResult:
    """Drop the record index: keys are then looked up in the files."""
    with environment.locked() as held:
        config = load_table_config(held.storage)
        if RECORD_INDEX not in config.metadata_partitions:
            return IndexResult("record", "was not there")
        dependent = [name for name in config.metadata_partitions if name.startswith("secondary_index_")]
        if dependent:
            raise InvalidRequestError(
                f"table {config.name}: {dependent[0]} stands on the record index. Drop it in Java first."
            )
        indexes = without_indexes(load_metadata_indexes(held.storage, config, operation=Operation.INDEX), RECORD_INDEX)
        held.lease.check()
        named = [name for name in config.metadata_partitions if name != RECORD_INDEX]
        change_properties(held.storage, {METADATA_PARTITIONS_KEY: ",".join(named)})
        drop_metadata_indexes(held.storage, indexes)
    return IndexResult("record", "dropped", lock_held_s=held.lease.held_s)


def has_partitioned_index(storage: Storage, config: TableConfig) -> bool:
    """Whether the table has a record index by partitions."""
    indexes = load_metadata_indexes(storage, config, operation=Operation.INDEX)
    return indexes.has_record_index and indexes.keys_by_partition


def _was_there(storage: Storage, config: TableConfig, *, by_partition: bool) -> IndexResult:
    if has_partitioned_index(storage, config) != by_partition:
        there = "of the whole table" if by_partition else "by partitions"
        raise InvalidRequestError(
            f"table {config.name}: it has a record index {there}. Drop it first to build another one."
        )
    return IndexResult("record", "was there")


def _create(
    environment: TableEnvironment,
    engine: Engine,
    context: WriteContext,
    settings: RecordIndexSettings,
    *,
    by_partition: bool,
) -> IndexResult:
    if RECORD_INDEX in environment.config.metadata_partitions:
        return _was_there(environment.storage, environment.config, by_partition=by_partition)
    held_s = 0.0
    for rounds_left in range(_UNLOCKED_ROUNDS, -1, -1):
        timeline = environment.load_timeline()
        draft = (
            _draft(environment, engine, context, settings, timeline, by_partition=by_partition) if rounds_left else None
        )
        with environment.locked() as held:
            config = load_table_config(held.storage)
            if RECORD_INDEX in config.metadata_partitions:
                return _was_there(held.storage, config, by_partition=by_partition)
            if config.metadata_partitions_inflight:
                name = config.metadata_partitions_inflight[0]
                raise UnsupportedFeatureError(
                    f"table {config.name}: the index {name} is being built by another writer. Let it finish first."
                )
            now = held.load_timeline()
            if draft is None or now.completed_writes == timeline.completed_writes:
                draft = draft or _draft(held, engine, context, settings, now, by_partition=by_partition)
                if not config.has_metadata_table:
                    begin_metadata_table(held, _committed_files(held, now))
                shards, bases = draft
                begin_record_index(held, shards, bases)
                keys = sum(base.entries for base in bases.values())
                return IndexResult("record", "created", keys, len(shards.file_ids), held_s + held.lease.held_s)
        held_s += held.lease.held_s
        _LOG.info("%s: commits came in while the record index was made; it is made again", config.name)
    raise AssertionError("the last round makes the index under the lock")


def _draft(
    environment: TableEnvironment,
    engine: Engine,
    context: WriteContext,
    settings: RecordIndexSettings,
    timeline: Timeline,
    *,
    by_partition: bool,
) -> tuple[KeyShards, dict[int, IndexLog]]:
    """The shards and their base files."""
    config = environment.config
    snapshot = load_snapshot(environment.storage, config, timeline, runtime=environment.runtime)
    slices: dict[str, list[FileSlice]] = {} if by_partition else {"": []}
    for each in snapshot.latest:
        slices.setdefault(each.group.partition if by_partition else "", []).append(each)
    ids: list[str] = []
    for partition, found in sorted(slices.items()):
        count = _shard_count(environment, context, partial(settings.shards, by_partition=by_partition), found)
        ids += [partition_shard_id(partition, n) if by_partition else shard_id(n) for n in range(count)]
    shards = KeyShards(tuple(ids), by_partition)
    return shards, dict(index_slices(engine, context, snapshot.latest, shards=shards, zone=config.time_zone))


def _shard_count(
    environment: TableEnvironment, context: WriteContext, count: Callable[[int], int], slices: Sequence[FileSlice]
) -> int:
    """`count` of about so many rows as the slices have; opens no file if the result does not depend on it."""
    most = sum(each.size for each in slices) // _LEAST_ROW_BYTES
    if count(most) == count(0):
        return count(most)

    def rows(base: BaseFile) -> int:
        with open_base_file(context.store, base) as file:
            return int(file.metadata.num_rows)

    return count(sum(environment.runtime.threads.map(rows, [each.base for each in slices if each.base is not None])))


def _committed_files(environment: TableEnvironment, timeline: Timeline) -> dict[str, dict[str, int]]:
    """Size by name of the files of completed actions, by partition path."""
    storage, runtime = environment.storage, environment.runtime
    if environment.config.is_partitioned:
        listed = load_all_files_by_listing(storage, runtime=runtime).partitions
    else:
        listed = load_files_by_listing(storage, [""], runtime=runtime)
    unfinished = {time.value for time in timeline.unfinished}
    return {
        partition: {name: size for name, size in files if _instant_of(name) not in {None} | unfinished}
        for partition, files in listed.items()
    }


def _instant_of(name: str) -> str | None:
    """The instant that wrote a data file; None for other files."""
    found = decode_base_name(name) or decode_log_name(name)
    return None if found is None else found.instant
