"""What a write changes in a secondary index: which values it adds for which keys, and which it removes.

As in Java, each file group that was written or replaced is read as it was before and as it is after the write: entries
that are gone are removed, and new ones are added. If only logs were added, only the rows of their keys are compared. An
entry that moves from one file group to another stays in the index: a clustering changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.engine.protocol import Engine
from tablekeeper.format.secondary_index import SECONDARY_INDEX_VALUE, secondary_index_keys, secondary_index_shards
from tablekeeper.metadata_table.index_changes import IndexLog, IndexShards
from tablekeeper.model import CommitMetadata, FileGroupId, FileSlice, LogFile, Operation, RequestedTime, WriteStat
from tablekeeper.read.log_changes import EVERY_BLOCK
from tablekeeper.read.slice_rows import read_slice
from tablekeeper.record.columns import combined
from tablekeeper.record.merge import KEY_COLUMN, Deletes
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.timeline import Timeline
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext
from tablekeeper.write.index_shuffle import Found, Part, collected, encode_shard_log, load_slices_before, make_logs

__all__ = ["value_logs"]

_KEYS = pa.schema([(KEY_COLUMN, pa.string())])
_LEAVES_VALUES = (Operation.COMPACT, Operation.LOG_COMPACT, Operation.CLUSTER)


def value_logs(
    environment: TableEnvironment,
    engine: Engine,
    context: WriteContext,
    metadata: CommitMetadata,
    *,
    at_start: Timeline,
    index: IndexShards,
) -> Mapping[int, IndexLog]:
    """The logs of the shards that a write changes, by number."""
    if metadata.operation in _LEAVES_VALUES:
        return {}
    return make_logs(
        engine,
        context,
        _changed_groups(environment, metadata, at_start),
        index=index.name,
        task_of=lambda share: _CollectTask(context, share, index.column, len(index.file_ids)),
        collect=_collect,
        encode=encode_shard_log,
    )


@dataclass(frozen=True, slots=True)
class _ChangedGroup:
    """A file group before and after the write; None where it did not exist, or does not any more.

    If only `logs` were added, their keys tell which rows can differ.
    """

    before: FileSlice | None
    after: FileSlice | None
    logs: tuple[LogFile, ...] = ()

    @property
    def size(self) -> int:
        return sum(each.size for each in (self.before, self.after) if each is not None)


@dataclass(frozen=True, slots=True)
class _CollectTask:
    context: WriteContext
    groups: tuple[_ChangedGroup, ...]
    column: str
    shards: int


def _changed_groups(environment: TableEnvironment, metadata: CommitMetadata, at_start: Timeline) -> list[_ChangedGroup]:
    """The file groups that the write changed. Nobody else can have changed them since it began: that is a conflict."""
    written: dict[FileGroupId, list[WriteStat]] = defaultdict(list)
    for stat in metadata.stats:
        written[stat.group].append(stat)
    replaced = set(metadata.replaced_groups) - written.keys()
    partitions = {group.partition for group in (*written, *replaced)}
    if not partitions:
        return []
    before = load_slices_before(environment, at_start, partitions)
    changed = [_changed_group(before.get(group), group, stats) for group, stats in sorted(written.items())]
    return changed + [_ChangedGroup(before[group], None) for group in sorted(replaced & before.keys())]


def _changed_group(before: FileSlice | None, group: FileGroupId, stats: list[WriteStat]) -> _ChangedGroup:
    files = decode_partition_files(group.partition, [(stat.file_name, stat.size) for stat in stats])
    if files.bases:
        (base,) = files.bases
        return _ChangedGroup(before, FileSlice(group, RequestedTime(base.instant.value), base))
    logs = tuple(files.logs)
    below = before or FileSlice(group, RequestedTime(logs[0].instant.value), None)
    return _ChangedGroup(before, replace(below, logs=(*below.logs, *logs)), logs)


def _collect(task: _CollectTask) -> Part:
    """Kernel: the entries that some file groups add and remove, sorted by shard."""
    return collected(task.context, (each for group in task.groups for each in _found(task, group)))


def _found(task: _CollectTask, group: _ChangedGroup) -> Iterator[Found]:
    among = _keys_of_logs(task.context, group.logs) if group.logs else None
    before, after = (_entries(task, each, among) for each in (group.before, group.after))
    new = after.filter(pc.invert(pc.is_in(after, value_set=before)))
    yield new, secondary_index_shards(new, shards=task.shards), SECONDARY_INDEX_VALUE
    gone = before.filter(pc.invert(pc.is_in(before, value_set=after)))
    yield gone, secondary_index_shards(gone, shards=task.shards), None


def _keys_of_logs(context: WriteContext, logs: tuple[LogFile, ...]) -> pa.Array:
    keys = [
        combined(change.keys if isinstance(change, Deletes) else change.column(KEY_COLUMN)).cast(pa.string())
        for change in context.load_changes(logs, _KEYS, blocks=EVERY_BLOCK).changes
        if isinstance(change, Deletes | pa.Table)
    ]
    return combined(pa.chunked_array(keys, pa.string()))


def _entries(task: _CollectTask, file_slice: FileSlice | None, among: pa.Array | None) -> pa.Array:
    """The entries of the rows that a reader sees in the slice; with `among`, only those of these keys."""
    context = task.context
    output = pa.schema([*_KEYS, context.file_schema.field(task.column)])
    found: list[pa.Array] = []
    if file_slice is not None:
        for batch in read_slice(context.slice_task(file_slice, output, blocks=EVERY_BLOCK)):
            rows = batch if among is None else batch.filter(pc.is_in(batch.column(0), value_set=among))
            found.append(secondary_index_keys(rows.column(1), rows.column(0)))
    return combined(pa.chunked_array(found, pa.large_string()))
