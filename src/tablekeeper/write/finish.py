"""The end of a write: the results of its tasks become a commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from tablekeeper.engine.protocol import Engine
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.metadata_table.index_changes import load_index_shards
from tablekeeper.metadata_table.update import MetadataPolicy
from tablekeeper.model import SCHEMA_KEY, CommitMetadata, FileSlice, Operation, WriteStat
from tablekeeper.timeline import Timeline
from tablekeeper.tracing import span
from tablekeeper.txn.commit import OpenWrite, commit_write
from tablekeeper.txn.concurrent_commits import Phantoms
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.markers import load_markers
from tablekeeper.write.context import WriteContext
from tablekeeper.write.index_changes import WrittenIndexes
from tablekeeper.write.layout_checks import ensure_partitions
from tablekeeper.write.results import WriteResult, WrittenFile
from tablekeeper.write.schema import KnownSchema, with_present_schema

__all__ = ["file_ids_by_partition", "finish_write"]


def finish_write(
    environment: TableEnvironment,
    write: OpenWrite,
    context: WriteContext,
    *,
    files: Sequence[WrittenFile],
    replaced: Mapping[str, tuple[str, ...]] | None,
    extra: dict[str, str],
    engine: Engine,
    policy: MetadataPolicy,
    phantoms: Phantoms,
    known_schema: KnownSchema,
    uses_record_index: bool = False,
    refuse: Callable[[Timeline], None] = lambda _: None,
    ensured: Collection[str] = (),
    tidy: Callable[[], None] = lambda: None,
) -> WriteResult:
    """Complete the write.

    `replaced` file ids, by partition, are hidden from the commit on; None if this is no replace commit. `refuse` is
    asked under the lock, on the timeline as it is then, and raises if the write has become unwanted.
    `uses_record_index` says that keys were looked up in the record index, and not in the files. The partitions in
    `ensured` are there already (`ensure_partitions`). `tidy` is called once the write is visible.
    """
    stats = tuple(file.stat for file in files)
    # From here on no task that is still running, repeated or late, can publish anything.
    write.attempt.end_tasks(environment.storage)
    if engine.may_repeat_tasks:
        _delete_files_of_repeated_tasks(environment, write, stats)
    partitions = sorted({stat.group.partition for stat in stats}.difference(ensured))
    ensure_partitions(environment, write, context, partitions)
    metadata = CommitMetadata(
        operation=write.operation,
        stats=stats,
        extra={**extra, SCHEMA_KEY: context.table_schema},
        compacted=write.operation in (Operation.COMPACT, Operation.LOG_COMPACT),
        replaced=replaced,
    )
    changes = WrittenIndexes(environment, engine, context, write.at_start, metadata, is_tagged=uses_record_index)
    for index in load_index_shards(environment.storage, policy.indexes, runtime=environment.runtime):
        # Computed here, before the lock is taken.
        changes.logs(index)
    with span("commit", instant=write.inflight.requested_at.value):
        committed = commit_write(
            environment,
            write,
            metadata,
            policy=policy,
            known_ranges={file.stat.path: file.column_ranges for file in files},
            changes=changes,
            phantoms=phantoms,
            settle=partial(with_present_schema, environment, known_schema, context),
            refuse=refuse,
            may_repeat_tasks=engine.may_repeat_tasks,
            tidy=tidy,
        )
    return WriteResult(
        operation=write.operation.value.lower(),
        instant=committed.instant.requested_at,
        completed_at=committed.instant.completed_at,
        rows_inserted=sum(stat.inserts for stat in stats),
        rows_updated=sum(stat.updates for stat in stats),
        rows_deleted=None if metadata.replaced_groups else sum(stat.deletes for stat in stats),
        counts_are_exact=not any(stat.is_log and stat.updates + stat.deletes for stat in stats),
        files=tuple(stat.path for stat in stats),
        partitions=tuple(sorted(metadata.partitions)),
        bytes_written=sum(stat.size for stat in stats),
        lock_held_s=committed.lock_held_s,
        notes=committed.notes,
    )


def file_ids_by_partition(slices: Sequence[FileSlice]) -> dict[str, tuple[str, ...]]:
    """The file groups of these slices, as commit metadata lists those that a commit replaces."""
    ids: dict[str, list[str]] = defaultdict(list)
    for file_slice in slices:
        ids[file_slice.group.partition].append(file_slice.group.file_id)
    return {partition: tuple(sorted(each)) for partition, each in sorted(ids.items())}


def _delete_files_of_repeated_tasks(
    environment: TableEnvironment, write: OpenWrite, stats: Sequence[WriteStat]
) -> None:
    """A task that ran twice left a second file. Its marker names it; the results do not.

    Only files of our own attempt are deleted: others may belong to an executor that has taken the plan over.
    """
    kept = {stat.path for stat in stats}
    markers = load_markers(environment.storage, instant=write.inflight.requested_at.value)
    losers = [m.path for m in markers if m.path not in kept and write.attempt.wrote(_write_token(m.file_name))]
    if losers:
        write.heartbeat.check()
        write.attempt.driver_storage(environment.storage).delete_many(losers)


def _write_token(file_name: str) -> str:
    name = decode_base_name(file_name) or decode_log_name(file_name)
    return "" if name is None else name.write_token
