"""What a record index says, and what the files say: the same, if it was kept in step."""

from __future__ import annotations

import pyarrow as pa

import tablekeeper as tk
from tablekeeper.metadata_table.record_index import (
    load_record_index,
    load_record_index_shard,
    open_record_index_shard,
)
from tablekeeper.model import FileGroupId, Operation
from tablekeeper.read.slice_rows import SliceTask, read_slice
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.runtime import Runtime
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.storage import Storage
from tablekeeper.timeline import load_timeline
from tablekeeper.timeline.properties_file import load_table_config

__all__ = ["indexed_groups", "refuse_wrong_record_index", "stored_groups"]


def indexed_groups(storage: Storage, *, runtime: Runtime, by_partition: bool = False) -> dict[str, FileGroupId]:
    """The file group of each key, as the record index has it: all entries, and each looked up.

    Of an index `by_partition` the partition stands before the key.
    """
    config = load_table_config(storage)
    found: dict[str, FileGroupId] = {}
    for each in load_record_index(storage, config, load_timeline(storage, config), by_partition=by_partition):
        keys = [key.decode() for key, _ in load_record_index_shard(storage, each, runtime=runtime).entries()]
        locations = open_record_index_shard(storage, each, runtime=runtime).find([*keys, "no such key"])
        assert locations.keys() == set(keys)
        for key, place in locations.items():
            name = f"{place.partition}:{key}" if by_partition else key
            assert name not in found, f"{key} is indexed as in {found[name]} and {place}"
            found[name] = FileGroupId(place.partition, place.file_id)
    return found


def stored_groups(table: tk.Table, *, by_partition: bool = False) -> dict[str, FileGroupId]:
    """The file group of each key, as the slices of the table have it."""
    request = table._load_write(Operation.INDEX, None)
    environment, context = request.environment, request.context
    timeline = environment.load_timeline()
    snapshot = load_snapshot(environment.storage, environment.config, timeline, runtime=environment.runtime)
    found: dict[str, FileGroupId] = {}
    for each in snapshot.latest:
        task = SliceTask(
            store=context.store,
            file_slice=each,
            schema=context.file_schema,
            output=pa.schema([(KEY_COLUMN, pa.string())]),
            rule=context.rule,
            key=context.key,
            runtime=context.runtime,
        )
        for batch in read_slice(task):
            for stored in batch.column(0).to_pylist():
                key = f"{each.group.partition}:{stored}" if by_partition else stored
                assert key not in found, f"key {key} is in {found[key]} and {each.group}"
                found[key] = each.group
    return found


def refuse_wrong_record_index(table: tk.Table, *, by_partition: bool = False) -> None:
    """The index knows just the keys that are there, each in its file group."""
    request = table._load_write(Operation.INDEX, None)
    indexed = indexed_groups(request.environment.storage, runtime=request.runtime, by_partition=by_partition)
    assert indexed == stored_groups(table, by_partition=by_partition)
