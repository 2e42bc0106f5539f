"""Keeping the metadata table in step: every action of the data table writes a delta commit there first.

The delta commit has the action's requested time and completes, under the table lock, before the action does. Readers
ignore it while the action is pending, so a crash between the two completions changes nothing. Its files are removed
when the action is retried or rolled back: log files first and then instant files, because a log file without an instant
counts as committed once the timeline has moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import FencedError
from tablekeeper.format.avro_container import schema_json
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.format.data_files import decode_log_name, encode_log_name
from tablekeeper.format.metadata_keys import metadata_file_group_index, metadata_partition_name
from tablekeeper.format.metadata_log import decode_metadata_base_name, encode_metadata_log
from tablekeeper.format.metadata_records import FileListRecord, MetadataRecord
from tablekeeper.metadata_table.index_changes import NO_INDEX_CHANGES, IndexChanges, IndexLog, index_shards, shard_ids
from tablekeeper.metadata_table.indexes import MetadataIndexes
from tablekeeper.metadata_table.layout import (
    FILES,
    METADATA_DIRECTORY,
    load_metadata_file_group,
    load_metadata_files,
    load_metadata_partitions,
    load_metadata_timeline,
    metadata_config,
    plan_metadata_slices,
)
from tablekeeper.metadata_table.records import MetadataChange, change_of_clean, plan_metadata_update
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
    load_instant_files,
    remove_instant_files,
    start_inflight,
)
from tablekeeper.timeline.history import archived_completions

__all__ = [
    "has_merged",
    "is_begun_after",
    "load_listed_files",
    "remove_metadata_update",
    "rollback_metadata_update",
    "withdraw_late_update",
    "write_metadata_update",
]

_ONLY_WRITER = "0-0-0"
_LOG_VERSION = 1
_BEGINNING = "0" * 13
"""The prefix of the times at which partitions of the metadata table are initialized."""
_NEVER = "9" * 17


def write_metadata_update(
    storage: Storage,
    config: TableConfig,
    change: MetadataChange,
    indexes: MetadataIndexes,
    *,
    requested_at: RequestedTime,
    completed_at: CompletionTime,
    runtime: Runtime,
    changes: IndexChanges = NO_INDEX_CHANGES,
) -> None:
    """Commit `change` to the metadata table, and `changes` to the indexes that tasks compute.

    Files of an earlier attempt at the same action are replaced.

    The caller holds the table lock, and completes the action on the data table afterwards. The delta commit completes
    at `completed_at`, or just after the newest time on the metadata table's own timeline if clocks disagree.
    """
    listings = load_metadata_files(storage, indexes.updated, runtime=runtime)
    timeline = load_metadata_timeline(storage, config)
    _remove(storage, config, requested_at, listings=listings.values(), timeline=timeline)
    groups = {partition: shard_ids(files) for partition, files in listings.items()}
    plan = plan_metadata_update(change, indexes, groups=groups, instant=requested_at)
    told = {index.name: changes.logs(index) for index in index_shards(indexes, listings)}
    own = metadata_config(config)
    requested = create_requested(storage, own, requested_at=requested_at, action=Action.DELTA_COMMIT)
    inflight = start_inflight(storage, own, requested)

    def write_log(item: tuple[FileGroupId, IndexLog]) -> WriteStat:
        return _write_log(storage, *item, instant=requested_at)

    logs = {group: _log_of(records, requested_at, runtime=runtime) for group, records in plan.items()}
    logs |= {FileGroupId(name, file_id): log for name, found in told.items() for file_id, log in found.items()}
    stats = runtime.threads.map(write_log, logs.items())
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
    """Roll back the delta commit of the action `target`, which is still on the data table's timeline.

    If a compaction of the metadata table has merged it into a base file (possible only if the action had completed), a
    delta commit of the rollback itself removes the files that the rollback deletes.
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


def withdraw_late_update(
    storage: Storage, config: TableConfig, *, target: RequestedTime, is_completed: bool, runtime: Runtime
) -> None:
    """Remove what a process wrote to the delta commit of `target` after it lost the lock. Under a new lock.

    As long as the action is not completed, no delta commit of it counts. Afterwards the one of the process that
    completed it counts: the last one, because completion times increase.
    """
    if not is_completed:
        remove_metadata_update(storage, config, target=target, runtime=runtime)
        return
    own = metadata_config(config)
    found = [i for i in load_instant_files(storage, own) if i.requested_at == target]
    completed = sorted((i for i in found if i.is_completed), key=lambda i: i.completed_at or CompletionTime(""))
    pending = sorted((i for i in found if i.is_pending), key=lambda i: i.state is State.REQUESTED)
    remove_instant_files(storage, own, *(completed[:-1] if completed else pending))


def has_merged(storage: Storage, config: TableConfig, partition: str, targets: Iterable[RequestedTime]) -> bool:
    """Whether base files of a metadata partition contain what one of these completed actions did.

    They do if they were compacted since, or if the partition was initialized since, from the table as it was then.
    """
    timeline = load_metadata_timeline(storage, config)
    files = storage.list_files(join_path(METADATA_DIRECTORY, partition))
    begun_at = _begun_at(files, timeline, archived_completions(storage, metadata_config(config)))
    for target in targets:
        completed_at = timeline.completion_of(target)
        if completed_at is None or (begun_at is not None and completed_at.value < begun_at):
            return True
        if _is_compacted(files, timeline, target):
            return True
    return False


def is_begun_after(storage: Storage, config: TableConfig, partition: str, target: RequestedTime) -> bool:
    """Whether a metadata partition was initialized after the action `target` had completed, and so includes it."""
    timeline = load_metadata_timeline(storage, config)
    completed_at = timeline.completion_of(target)
    if completed_at is None:
        return False
    files = storage.list_files(join_path(METADATA_DIRECTORY, partition))
    begun_at = _begun_at(files, timeline, archived_completions(storage, metadata_config(config)))
    return begun_at is not None and completed_at.value < begun_at


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


def _load_state(
    storage: Storage, config: TableConfig, *, runtime: Runtime
) -> tuple[dict[str, list[FileInfo]], Timeline]:
    """All files of all metadata partitions, whether still in use or not, and the timeline."""
    listings = load_metadata_files(storage, load_metadata_partitions(storage), runtime=runtime)
    return listings, load_metadata_timeline(storage, config)


def _log_of(records: Sequence[MetadataRecord], instant: RequestedTime, *, runtime: Runtime) -> IndexLog:
    encode = partial(encode_metadata_log, records, instant=instant.value, created_ms=runtime.clock.now_ms())
    return IndexLog(len(records), encode)


def _write_log(storage: Storage, group: FileGroupId, log: IndexLog, *, instant: RequestedTime) -> WriteStat:
    name = encode_log_name(file_id=group.file_id, instant=instant.value, version=_LOG_VERSION, write_token=_ONLY_WRITER)
    path = join_path(group.partition, name)
    data = log.load()
    # Never replace a file: the next holder of the lock may have written it.
    if not storage.put_if_absent(join_path(METADATA_DIRECTORY, path), data):
        raise FencedError(f"{path} of the metadata table exists already: another process is writing it; retry.")
    return WriteStat(
        group=group,
        path=path,
        size=len(data),
        writes=log.entries,
        updates=log.entries,
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
        # From the latest state to the earliest: at any moment the rest can be rolled back.
        remove_instant_files(storage, metadata_config(config), *([instant] if instant.is_completed else []), *earlier)


def _not_before(timeline: Timeline, wanted: CompletionTime) -> CompletionTime:
    """Later than everything on the timeline, so that the log files are on top of the newest base files."""
    if timeline.newest_time < wanted.value:
        return wanted
    return CompletionTime(following_time(timeline.newest_time))


def _begun_at(
    files: Sequence[FileInfo], timeline: Timeline, archived: Callable[[RequestedTime], CompletionTime | None]
) -> str | None:
    """When a metadata partition was initialized, by its first files; the end of time if that is unknown."""
    names = [decode_metadata_base_name(file.name) or decode_log_name(file.name) for file in files]
    first = min((name.instant for name in names if name is not None), default="")
    if not first.startswith(_BEGINNING):
        return None
    begun = timeline.completion_of(RequestedTime(first)) or archived(RequestedTime(first))
    return begun.value if begun is not None else _NEVER


def _is_compacted(files: Sequence[FileInfo], timeline: Timeline, target: RequestedTime) -> bool:
    """True if a base file of the metadata table contains what the delta commit `target` wrote, or is about to."""
    completed_at = timeline.completion_of(target)
    if completed_at is None:
        return timeline.is_archived(target)
    slices = plan_metadata_slices(files, metadata_timeline=timeline, data_timeline=Timeline())
    bases = [each.base_instant for each in slices if each.base_instant is not None]
    # The plan of a pending compaction names the log files that it merges, and its executor needs them.
    bases += [each.requested_at for each in timeline.pending if each.action is Action.COMPACTION]
    return any(base > RequestedTime(completed_at.value) for base in bases)


def _log_instant(file: FileInfo) -> str | None:
    name = decode_log_name(file.name)
    return None if name is None else name.instant
