"""What must hold of a record index: it knows the keys that are there, each in its file group, and no others."""

from __future__ import annotations

import pyarrow as pa

from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.metadata_table.record_index import load_record_index, load_record_index_shard
from tablekeeper.model import Operation
from tablekeeper.read.log_changes import EVERY_BLOCK
from tablekeeper.read.slice_rows import read_slice
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.table import Table
from tablekeeper.testing.verdict import invariant
from tablekeeper.testing.watch import Watch

__all__ = ["record_index"]


@invariant
def record_index(watch: Watch) -> None:
    """The record index says what the files say."""
    table = watch.table
    if not watch.has_record_index:
        return
    if RECORD_INDEX not in table.config.metadata_partitions:
        watch.story.complain("record index", "it is gone")
        return
    indexed, stored = _indexed(table), _stored(table)
    if indexed != stored:
        watch.story.complain("record index", f"it has {sorted(indexed)}, and the files have {sorted(stored)}")


def _indexed(table: Table) -> set[tuple[str, str, str]]:
    """Key, partition and file group, as the index has them."""
    environment = table._load_environment()
    storage, config, runtime = environment.storage, environment.config, environment.runtime
    found = set()
    for each in load_record_index(storage, config, environment.load_timeline()):
        shard = load_record_index_shard(storage, each, runtime=runtime)
        places = shard.find([key.decode() for key, _ in shard.entries()])
        found |= {(key, place.partition, place.file_id) for key, place in places.items()}
    return found


def _stored(table: Table) -> set[tuple[str, str, str]]:
    """The same, as the slices of the table have them."""
    request = table._load_write(Operation.INDEX, None)
    environment, context = request.environment, request.context
    timeline = environment.load_timeline()
    snapshot = load_snapshot(environment.storage, environment.config, timeline, runtime=environment.runtime)
    output = pa.schema([(KEY_COLUMN, pa.string())])
    found = set()
    for each in snapshot.latest:
        rows = context.slice_task(each, output, blocks=EVERY_BLOCK)
        keys = (key for batch in read_slice(rows) for key in batch.column(0).to_pylist())
        found |= {(key, each.group.partition, each.group.file_id) for key in keys}
    return found
