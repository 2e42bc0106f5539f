"""The part of a commit that concerns the metadata table: switch off indexes that cannot be kept, update the others.

Runs under the table lock, on properties (`config`) read under it: another writer may have built or dropped indexes
since this write began. Indexes are switched off in the properties before the commit that they would miss completes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tablekeeper.config.table_config import TableConfig
from tablekeeper.config.table_properties import METADATA_INFLIGHT_KEY, METADATA_PARTITIONS_KEY
from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.metadata_table.delta_commit import (
    has_merged,
    is_begun_after,
    load_listed_files,
    remove_metadata_update,
    rollback_metadata_update,
    write_metadata_update,
)
from tablekeeper.metadata_table.environment import LockedTable
from tablekeeper.metadata_table.index_changes import IndexChanges
from tablekeeper.metadata_table.indexes import (
    NO_INDEXES,
    MetadataIndexes,
    delete_metadata_table,
    drop_metadata_indexes,
    load_metadata_indexes,
    refuse_index_loss,
    without_indexes,
)
from tablekeeper.metadata_table.layout import BLOOM_FILTERS
from tablekeeper.metadata_table.ranges import load_missing_ranges
from tablekeeper.metadata_table.records import change_of_clean, change_of_commit
from tablekeeper.model import CommitMetadata, CompletionTime, RequestedTime
from tablekeeper.timeline.properties_file import change_properties, load_table_config

__all__ = [
    "MetadataPolicy",
    "release_indexes",
    "switch_off_metadata_table",
    "sync_clean",
    "sync_commit",
    "sync_rollback",
    "take_back_update",
]


@dataclass(frozen=True, slots=True)
class MetadataPolicy:
    """What a write does with the metadata table: keep it or not, and whether its statistics can follow the schema.

    `indexes` are those that there were when the write began, `told_columns` the columns whose values it can tell the
    secondary ones of.
    """

    is_enabled: bool = True
    outdates_statistics: bool = False
    indexes: MetadataIndexes = NO_INDEXES
    told_columns: frozenset[str] = frozenset()


def sync_commit(
    environment: LockedTable,
    config: TableConfig,
    policy: MetadataPolicy,
    metadata: CommitMetadata,
    *,
    known_ranges: Mapping[str, Sequence[ColumnRange]],
    changes: IndexChanges,
    requested_at: RequestedTime,
    completed_at: CompletionTime,
) -> tuple[str, ...]:
    """Update the metadata table with a commit. Returns notes for the caller."""
    if not policy.is_enabled:
        return _switch_off(environment, config)
    indexes = load_metadata_indexes(
        environment.storage,
        config,
        operation=metadata.operation,
        outdated_statistics=policy.outdates_statistics,
        told_columns=policy.told_columns,
    )
    action = metadata.operation.value.lower()
    refuse_index_loss(config, indexes, action=action, consents=environment.drops_indexes)
    notes = _drop_unmaintained(environment, config, indexes)
    if not indexes.updated:
        return notes
    ranges: Mapping[str, Sequence[ColumnRange]] = {}
    if indexes.has_statistics:
        ranges = load_missing_ranges(
            environment.storage,
            metadata.stats,
            known=known_ranges,
            columns=indexes.columns,
            runtime=environment.runtime,
        )
    write_metadata_update(
        environment.storage,
        config,
        change_of_commit(metadata, ranges=ranges),
        indexes,
        requested_at=requested_at,
        completed_at=completed_at,
        runtime=environment.runtime,
        changes=changes,
    )
    return notes


def sync_rollback(
    environment: LockedTable,
    config: TableConfig,
    *,
    target: RequestedTime,
    deleted: Iterable[str],
    requested_at: RequestedTime,
    completed_at: CompletionTime,
) -> None:
    """Undo what a commit that is being rolled back wrote to the metadata table. `deleted` are file paths."""
    if not config.has_metadata_table:
        return
    by_partition: dict[str, list[str]] = {}
    for path in deleted:
        partition, _, name = path.rpartition("/")
        by_partition.setdefault(partition, []).append(name)
    indexes = load_metadata_indexes(environment.storage, config)
    has_filters = BLOOM_FILTERS in indexes.updated
    knows_filters = has_filters and is_begun_after(environment.storage, config, BLOOM_FILTERS, target)
    rollback_metadata_update(
        environment.storage,
        config,
        indexes,
        target=target,
        deleted=by_partition,
        requested_at=requested_at,
        completed_at=completed_at,
        runtime=environment.runtime,
    )
    # A partition that was built after the commit has its files from a listing, not from a delta commit.
    listed = load_listed_files(environment.storage, config, by_partition, runtime=environment.runtime)
    if knows_filters or any(listed.values()):
        write_metadata_update(
            environment.storage,
            config,
            change_of_clean(by_partition),
            indexes,
            requested_at=requested_at,
            completed_at=completed_at,
            runtime=environment.runtime,
        )


def take_back_update(environment: LockedTable, target: RequestedTime) -> None:
    """Remove what an action that did not complete wrote to the metadata table, even if it wrote nothing else."""
    config = load_table_config(environment.storage)
    if config.has_metadata_table:
        remove_metadata_update(environment.storage, config, target=target, runtime=environment.runtime)


def sync_clean(
    environment: LockedTable,
    config: TableConfig,
    *,
    deleted: Mapping[str, Iterable[str]],
    removed_partitions: Iterable[str],
    requested_at: RequestedTime,
    completed_at: CompletionTime,
) -> None:
    """Remove files that a clean has deleted from the metadata table: names by partition path.

    No index has to be switched off: entries of files that no commit needs any more are never looked up.
    """
    if not config.has_metadata_table:
        return
    write_metadata_update(
        environment.storage,
        config,
        change_of_clean(deleted, removed_partitions=removed_partitions),
        load_metadata_indexes(environment.storage, config),
        requested_at=requested_at,
        completed_at=completed_at,
        runtime=environment.runtime,
    )


def release_indexes(environment: LockedTable, *, action: str, targets: Iterable[RequestedTime]) -> None:
    """Before an action that rolls back the completed commits `targets`: drop the indexes that cannot follow.

    Raises `UnsupportedFeatureError` unless the caller consents. Indexes of keys and values can follow a rollback; if
    base files of a record index include the commits, it is dropped without consent, because the caller rebuilds it.
    Under the table lock.
    """
    config = load_table_config(environment.storage)
    if not config.has_metadata_table:
        return
    indexes = load_metadata_indexes(environment.storage, config)
    taken_back = list(targets)

    def has_what_goes(index: str) -> bool:
        return has_merged(environment.storage, config, index, taken_back)

    merged = [name for name in indexes.values if has_what_goes(name)]
    if merged:
        indexes = without_indexes(indexes, *merged)
    refuse_index_loss(config, indexes, action=action, consents=environment.drops_indexes)
    if indexes.has_record_index and has_what_goes(RECORD_INDEX):
        indexes = without_indexes(indexes, RECORD_INDEX)
    _drop_unmaintained(environment, config, indexes)


def switch_off_metadata_table(environment: LockedTable) -> tuple[str, ...]:
    """Switch off the metadata table: readers list directories, and a Java writer rebuilds it.

    The caller holds the table lock. Returns the partitions that the metadata table had.
    """
    config = load_table_config(environment.storage)
    _switch_off(environment, config)
    return config.metadata_partitions


def _switch_off(environment: LockedTable, config: TableConfig) -> tuple[str, ...]:
    change_properties(environment.storage, {METADATA_PARTITIONS_KEY: "", METADATA_INFLIGHT_KEY: ""})
    delete_metadata_table(environment.storage)
    return (f"the metadata table ({', '.join(config.metadata_partitions)}) was switched off, as asked",)


def _drop_unmaintained(environment: LockedTable, config: TableConfig, indexes: MetadataIndexes) -> tuple[str, ...]:
    if not indexes.dropped:
        return ()
    building = [name for name in config.metadata_partitions_inflight if name not in indexes.dropped]
    change_properties(
        environment.storage,
        {METADATA_PARTITIONS_KEY: ",".join(indexes.listed), METADATA_INFLIGHT_KEY: ",".join(building)},
    )
    drop_metadata_indexes(environment.storage, indexes)
    names = ", ".join(indexes.dropped)
    return (f"the metadata indexes {names} were switched off: this write would have left them wrong",)
