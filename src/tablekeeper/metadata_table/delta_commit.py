"""Keeping the metadata table in step: every action of the data table writes a delta commit there first.

The delta commit has the action's own requested time and completes, under the table lock, before the action
does. Readers ignore it while the action is pending, so a crash between the two completions changes nothing.
What such a crash left behind is removed when the action is retried or rolled back: log files first, instant
files after them, because a log file without an instant counts as committed once the timeline has moved on.

Statistics of partitions are written as bounds that widen what was known (not tight), since the commit knows only
its own files; readers and compactions merge them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError
from tablekeeper.format.avro_container import schema_json
from tablekeeper.format.column_stats import deleted_column_range, merge_column_ranges
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.format.log_names import decode_log_name, encode_log_name
from tablekeeper.format.metadata_log import decode_metadata_base_name, encode_metadata_log
from tablekeeper.format.metadata_records import (
    ColumnRange,
    ColumnStatsRecord,
    FileEntry,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    ValueType,
    column_stats_key,
    column_stats_record,
    metadata_file_group_index,
    metadata_partition_name,
    partition_stats_record,
)
from tablekeeper.metadata_table.indexes import MetadataIndexes
from tablekeeper.metadata_table.layout import (
    COLUMN_STATS,
    FILES,
    METADATA_DIRECTORY,
    PARTITION_STATS,
    load_metadata_file_group,
    load_metadata_timeline,
    metadata_config,
    plan_metadata_slices,
)
from tablekeeper.model import (
    SCHEMA_KEY,
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Instant,
    Operation,
    RequestedTime,
    State,
    WriteStat,
    join_path,
)
from tablekeeper.runtime import Runtime
from tablekeeper.storage import FileInfo, Storage
from tablekeeper.timeline import (
    Timeline,
    complete_instant,
    create_requested,
    following_time,
    remove_instant_files,
    start_inflight,
)
from tablekeeper.timeline.history import archived_completions

__all__ = [
    "MetadataChange",
    "change_of_clean",
    "change_of_commit",
    "load_listed_files",
    "plan_metadata_update",
    "remove_metadata_update",
    "rollback_metadata_update",
    "write_metadata_update",
]

_ONLY_WRITER = "0-0-0"
_LOG_VERSION = 1


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """What an action did to the files of the table, by partition path and file name.

    `ranges` has the statistics of the added files, by path relative to the table.
    """

    added: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deleted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    removed_partitions: frozenset[str] = frozenset()
    ranges: Mapping[str, Sequence[ColumnRange]] = field(default_factory=dict)


def change_of_commit(metadata: CommitMetadata, *, ranges: Mapping[str, Sequence[ColumnRange]]) -> MetadataChange:
    """The change of a commit, delta commit, compaction, clustering or replace commit.

    Replaced file groups keep their files: readers hide them by the replace commit, until a clean deletes them.
    """
    added: dict[str, dict[str, int]] = {partition: {} for partition in metadata.partitions}
    for stat in metadata.stats:
        files = added[stat.group.partition]
        files[stat.file_name] = max(stat.size, files.get(stat.file_name, 0))
    return MetadataChange(added=added, ranges=ranges)


def change_of_clean(deleted: Mapping[str, Iterable[str]], *, removed_partitions: Iterable[str] = ()) -> MetadataChange:
    """The change of a clean or of a rollback that deletes files, by partition path; names without directories."""
    names = {partition: frozenset(files) for partition, files in deleted.items()}
    return MetadataChange(deleted=names, removed_partitions=frozenset(removed_partitions))


def plan_metadata_update(
    change: MetadataChange, indexes: MetadataIndexes, *, groups: Mapping[str, Sequence[str]]
) -> dict[FileGroupId, list[MetadataRecord]]:
    """The records to write, by file group of the metadata table.

    `groups` has the file ids of each updated metadata partition in order.
    """
    records: dict[str, list[MetadataRecord]] = {FILES: _file_records(change)}
    if COLUMN_STATS in indexes.updated:
        records[COLUMN_STATS] = [*_column_records(change, indexes.columns)]
    if PARTITION_STATS in indexes.updated:
        records[PARTITION_STATS] = [*_partition_records(change, indexes.columns)]
    plan: dict[FileGroupId, list[MetadataRecord]] = defaultdict(list)
    for partition, partition_records in records.items():
        file_ids = groups.get(partition, ())
        if not file_ids:
            path = join_path(METADATA_DIRECTORY, partition)
            raise CorruptTableError(file=path, reason="the metadata table has no file group here, though it is in use")
        for record in partition_records:
            file_id = file_ids[metadata_file_group_index(record.key, groups=len(file_ids))]
            plan[FileGroupId(partition, file_id)].append(record)
    return dict(plan)


def write_metadata_update(
    storage: Storage,
    config: TableConfig,
    change: MetadataChange,
    indexes: MetadataIndexes,
    *,
    requested_at: RequestedTime,
    completed_at: CompletionTime,
    runtime: Runtime,
) -> None:
    """Commit `change` to the metadata table, replacing what an earlier attempt at the same action left.

    The caller holds the table lock, and completes the action on the data table afterwards. The delta commit completes
    at `completed_at`, or just after the newest time on the metadata table's own timeline where clocks disagree.
    """
    listings = _list_partitions(storage, indexes.updated, runtime=runtime)
    timeline = load_metadata_timeline(storage, config)
    _remove(storage, config, requested_at, listings=listings.values(), timeline=timeline)
    groups = {partition: _file_ids(files) for partition, files in listings.items()}
    plan = plan_metadata_update(change, indexes, groups=groups)
    own = metadata_config(config)
    requested = create_requested(storage, own, requested_at=requested_at, action=Action.DELTA_COMMIT)
    inflight = start_inflight(storage, own, requested)

    def write_log(item: tuple[FileGroupId, list[MetadataRecord]]) -> WriteStat:
        return _write_log(storage, *item, instant=requested_at, created_ms=runtime.clock.now_ms())

    stats = runtime.threads.map(write_log, plan.items())
    extra = {SCHEMA_KEY: schema_json("HoodieMetadataRecord")}
    content = encode_commit_metadata(CommitMetadata(Operation.UPSERT, tuple(stats), extra))
    complete_instant(storage, own, inflight, completed_at=_not_before(timeline, completed_at), content=content)


def rollback_metadata_update(
    storage: Storage,
    config: TableConfig,
    indexes: MetadataIndexes,
    *,
    target: RequestedTime,
    deleted: Mapping[str, Iterable[str]],
    requested_at: RequestedTime,
    completed_at: CompletionTime,
    runtime: Runtime,
) -> None:
    """Take the delta commit of the action `target` back, which is still on the data table's timeline.

    Where a compaction of the metadata table has merged it into a base file (possible only if the action had
    completed), the files that the rollback deletes are taken back by a delta commit of the rollback itself.
    """
    listings, timeline = _load_state(storage, config, runtime=runtime)
    if not _is_compacted(listings.get(FILES, []), timeline, target):
        _remove(storage, config, target, listings=listings.values(), timeline=timeline)
        return
    change = change_of_clean(deleted)
    write_metadata_update(
        storage, config, change, indexes, requested_at=requested_at, completed_at=completed_at, runtime=runtime
    )


def remove_metadata_update(storage: Storage, config: TableConfig, *, target: RequestedTime, runtime: Runtime) -> None:
    """Remove the delta commit of an action that did not complete. The caller holds the table lock."""
    listings, timeline = _load_state(storage, config, runtime=runtime)
    _remove(storage, config, target, listings=listings.values(), timeline=timeline)


def load_listed_files(
    storage: Storage, config: TableConfig, names: Mapping[str, Iterable[str]], *, runtime: Runtime
) -> dict[str, frozenset[str]]:
    """Which of the files `names`, by partition path, the metadata table lists, the newest delta commits included."""
    timeline = load_metadata_timeline(storage, config)
    files = storage.list_files(join_path(METADATA_DIRECTORY, FILES))
    slices = plan_metadata_slices(
        files,
        metadata_timeline=timeline,
        data_timeline=Timeline(),
        archived_completion=archived_completions(storage, metadata_config(config)),
    )
    groups = [load_metadata_file_group(storage, each, runtime=runtime) for each in slices]
    listed: dict[str, frozenset[str]] = {}
    for partition, wanted in names.items() if groups else ():
        key = metadata_partition_name(partition)
        record = groups[metadata_file_group_index(key, groups=len(groups))].find(key)
        live = record.live if isinstance(record, FileListRecord) else {}
        listed[partition] = frozenset(wanted) & frozenset(live)
    return listed


def _file_records(change: MetadataChange) -> list[MetadataRecord]:
    partitions = dict.fromkeys(change.added, True) | dict.fromkeys(change.removed_partitions, False)
    records: list[MetadataRecord] = []
    if partitions or not change.deleted:
        # Java writes this record with every commit, even an empty one.
        records.append(PartitionListRecord(partitions))
    for partition in sorted(change.added.keys() | change.deleted.keys()):
        files = {name: FileEntry(size) for name, size in change.added.get(partition, {}).items()}
        files |= {name: FileEntry(0, is_deleted=True) for name in change.deleted.get(partition, ())}
        if files:
            records.append(FileListRecord(partition, files))
    return records


def _column_records(change: MetadataChange, columns: Sequence[str]) -> Iterable[MetadataRecord]:
    for partition, files in change.added.items():
        for name in files:
            for column_range in change.ranges.get(join_path(partition, name), ()):
                yield column_stats_record(partition=partition, file_name=name, column_range=column_range)
    for partition, names in change.deleted.items():
        for name in names:
            for column in columns:
                key = column_stats_key(partition=partition, file_name=name, column=column)
                yield ColumnStatsRecord(key, name, deleted_column_range(column), is_deleted=True)


def _partition_records(change: MetadataChange, columns: Sequence[str]) -> Iterable[MetadataRecord]:
    for partition, files in change.added.items():
        by_column: dict[str, list[ColumnRange]] = defaultdict(list)
        for name in files:
            for column_range in change.ranges.get(join_path(partition, name), ()):
                # A range without a type comes from a file without rows and has nothing to add.
                if column_range.value_type is not ValueType.NULL:
                    by_column[column_range.column].append(column_range)
        for column in columns:
            if by_column.get(column):
                merged = merge_column_ranges(by_column[column])
                yield partition_stats_record(partition=partition, column_range=merged, is_tight=False)


def _load_state(
    storage: Storage, config: TableConfig, *, runtime: Runtime
) -> tuple[dict[str, list[FileInfo]], Timeline]:
    """All files of all metadata partitions, whether still in use or not, and the timeline."""
    partitions = [name for name in storage.list_directories(METADATA_DIRECTORY) if not name.startswith(".")]
    return _list_partitions(storage, partitions, runtime=runtime), load_metadata_timeline(storage, config)


def _list_partitions(storage: Storage, partitions: Sequence[str], *, runtime: Runtime) -> dict[str, list[FileInfo]]:
    directories = [join_path(METADATA_DIRECTORY, partition) for partition in partitions]
    return dict(zip(partitions, runtime.threads.map(storage.list_files, directories), strict=True))


def _file_ids(files: Iterable[FileInfo]) -> tuple[str, ...]:
    """The file groups of a metadata partition: made at its beginning, before any commit to it completes, and fixed."""
    bases = {decode_metadata_base_name(file.name) for file in files}
    logs = {decode_log_name(file.name) for file in files}
    return tuple(sorted({name.file_id for name in (*bases, *logs) if name is not None}))


def _write_log(
    storage: Storage,
    group: FileGroupId,
    records: Sequence[MetadataRecord],
    *,
    instant: RequestedTime,
    created_ms: int,
) -> WriteStat:
    name = encode_log_name(file_id=group.file_id, instant=instant.value, version=_LOG_VERSION, write_token=_ONLY_WRITER)
    path = join_path(group.partition, name)
    data = encode_metadata_log(records, instant=instant.value, created_ms=created_ms)
    storage.put(join_path(METADATA_DIRECTORY, path), data)
    return WriteStat(
        group=group,
        path=path,
        size=len(data),
        writes=len(records),
        updates=len(records),
        previous_commit=instant.value,
        log_version=_LOG_VERSION,
    )


def _remove(
    storage: Storage,
    config: TableConfig,
    target: RequestedTime,
    *,
    listings: Iterable[Sequence[FileInfo]],
    timeline: Timeline,
) -> None:
    """Delete log files and instant files of the delta commit `target`, if there are any."""
    logs = [file.path for files in listings for file in files if _log_instant(file) == target.value]
    storage.delete_many(logs)
    found = [each for each in timeline if each.requested_at == target and each.action is Action.DELTA_COMMIT]
    for instant in found:
        earlier = [Instant(target, Action.DELTA_COMMIT, state) for state in (State.INFLIGHT, State.REQUESTED)]
        # From the latest state to the earliest: what is left at any moment is a state that can be rolled back.
        remove_instant_files(storage, metadata_config(config), *([instant] if instant.is_completed else []), *earlier)


def _not_before(timeline: Timeline, wanted: CompletionTime) -> CompletionTime:
    """Later than everything on the timeline, so that the log files lie on top of the newest base files."""
    if timeline.newest_time < wanted.value:
        return wanted
    return CompletionTime(following_time(timeline.newest_time))


def _is_compacted(files: Sequence[FileInfo], timeline: Timeline, target: RequestedTime) -> bool:
    """True if a base file of the metadata table holds what the delta commit `target` wrote, or is going to."""
    completed_at = timeline.completion_of(target)
    if completed_at is None:
        return timeline.is_archived(target)
    slices = plan_metadata_slices(files, metadata_timeline=timeline, data_timeline=Timeline())
    bases = [each.base_instant for each in slices if each.base_instant is not None]
    # The plan of a compaction that waits names the log files that it merges: whoever executes it looks for them.
    bases += [each.requested_at for each in timeline.pending if each.action is Action.COMPACTION]
    return any(base > RequestedTime(completed_at.value) for base in bases)


def _log_instant(file: FileInfo) -> str | None:
    name = decode_log_name(file.name)
    return None if name is None else name.instant
