"""The end of a write: what the tasks brought back becomes a commit."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence

from tablekeeper.engine.protocol import Engine
from tablekeeper.format.avro_arrow import arrow_to_avro_schema
from tablekeeper.format.partition_metadata import PARTITION_METADATA_NAME, encode_partition_metadata
from tablekeeper.model import SCHEMA_KEY, CommitMetadata, FileSlice, WriteStat, join_path
from tablekeeper.timeline import Timeline
from tablekeeper.txn.commit import OpenWrite, commit_write
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.markers import load_markers
from tablekeeper.txn.rollback import RolledBack
from tablekeeper.write.context import WriteContext
from tablekeeper.write.results import WriteResult, WrittenFile

__all__ = ["finish_write", "metadata_rollback", "table_schema_json"]


def finish_write(
    environment: TableEnvironment,
    write: OpenWrite,
    context: WriteContext,
    *,
    files: Sequence[WrittenFile],
    replaced: Sequence[FileSlice] | None,
    extra: dict[str, str],
    engine: Engine,
) -> WriteResult:
    """Complete the write. `replaced` slices are hidden from the commit on; None if this is no replace commit."""
    stats = tuple(file.stat for file in files)
    if engine.may_repeat_tasks:
        _delete_files_of_other_attempts(environment, write, stats)
    _ensure_partitions(environment, context, stats)
    metadata = CommitMetadata(
        operation=write.operation,
        stats=stats,
        extra={**extra, SCHEMA_KEY: table_schema_json(environment, context)},
        replaced=_by_partition(replaced) if replaced is not None else None,
    )
    committed = commit_write(environment, write, metadata, before_publish=lambda timeline: None)
    return WriteResult(
        operation=write.operation.value.lower(),
        instant=committed.instant.requested_at,
        completed_at=committed.instant.completed_at,
        rows_inserted=sum(stat.inserts for stat in stats),
        rows_updated=sum(stat.updates for stat in stats),
        rows_deleted=sum(stat.deletes for stat in stats),
        files=tuple(stat.path for stat in stats),
        partitions=tuple(sorted(metadata.partitions)),
        bytes_written=sum(stat.size for stat in stats),
        lock_held_s=committed.lock_held_s,
    )


def metadata_rollback(environment: TableEnvironment) -> Callable[[RolledBack, Timeline], None]:
    """What a rollback does to the metadata table before it completes."""
    return lambda rolled_back, timeline: None


def table_schema_json(environment: TableEnvironment, context: WriteContext) -> str:
    """The schema without meta columns, as commits record it."""
    name = environment.config.name
    return json.dumps(
        arrow_to_avro_schema(context.schema, record_name=f"{name}_record", namespace=f"hoodie.{name}"),
        separators=(",", ":"),
    )


def _by_partition(slices: Sequence[FileSlice]) -> dict[str, tuple[str, ...]]:
    ids: dict[str, list[str]] = defaultdict(list)
    for file_slice in slices:
        ids[file_slice.group.partition].append(file_slice.group.file_id)
    return {partition: tuple(sorted(each)) for partition, each in sorted(ids.items())}


def _delete_files_of_other_attempts(
    environment: TableEnvironment, write: OpenWrite, stats: Sequence[WriteStat]
) -> None:
    """A task that ran twice left a second file. Its marker names it; the results do not."""
    kept = {stat.path for stat in stats}
    markers = load_markers(environment.storage, instant=write.inflight.requested_at.value)
    environment.storage.delete_many(marker.path for marker in markers if marker.path not in kept)


def _ensure_partitions(environment: TableEnvironment, context: WriteContext, stats: Sequence[WriteStat]) -> None:
    """Java does not see a partition without its metadata file."""
    partitions = sorted({stat.group.partition for stat in stats})

    def ensure(partition: str) -> None:
        depth = partition.count("/") + 1 if partition else 0
        content = encode_partition_metadata(commit_time=context.instant, depth=depth)
        environment.storage.put_if_absent(join_path(partition, PARTITION_METADATA_NAME), content)

    environment.runtime.threads.map(ensure, partitions)
