"""The records of the metadata table that an action of the table makes. Pure.

Statistics of partitions are written as bounds that widen what was known (not tight), since the commit knows only
its own files; readers and compactions merge them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.column_stats import deleted_column_range, merge_column_ranges
from tablekeeper.format.data_files import decode_base_name
from tablekeeper.format.metadata_keys import column_stats_key, metadata_file_group_index
from tablekeeper.format.metadata_records import (
    ColumnRange,
    ColumnStatsRecord,
    FileEntry,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    ValueType,
    bloom_filter_record,
    column_stats_record,
    partition_stats_record,
)
from tablekeeper.metadata_table.indexes import MetadataIndexes
from tablekeeper.metadata_table.layout import BLOOM_FILTERS, COLUMN_STATS, FILES, METADATA_DIRECTORY, PARTITION_STATS
from tablekeeper.model import CommitMetadata, FileGroupId, RequestedTime, join_path

__all__ = ["MetadataChange", "change_of_clean", "change_of_commit", "plan_metadata_update"]


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
    added: dict[str, dict[str, int]] = {partition: {} for partition in sorted(metadata.partitions)}
    for stat in metadata.stats:
        files = added[stat.group.partition]
        files[stat.file_name] = max(stat.size, files.get(stat.file_name, 0))
    return MetadataChange(added=added, ranges=ranges)


def change_of_clean(deleted: Mapping[str, Iterable[str]], *, removed_partitions: Iterable[str] = ()) -> MetadataChange:
    """The change of a clean or of a rollback that deletes files, by partition path; names without directories."""
    names = {partition: frozenset(files) for partition, files in deleted.items()}
    return MetadataChange(deleted=names, removed_partitions=frozenset(removed_partitions))


def plan_metadata_update(
    change: MetadataChange, indexes: MetadataIndexes, *, groups: Mapping[str, Sequence[str]], instant: RequestedTime
) -> dict[FileGroupId, list[MetadataRecord]]:
    """The records that the action of `instant` writes, by file group of the metadata table.

    `groups` has the file ids of each updated metadata partition in order. Records of indexes that tasks compute are not
    among them.
    """
    records: dict[str, list[MetadataRecord]] = {FILES: _file_records(change)}
    if COLUMN_STATS in indexes.updated:
        records[COLUMN_STATS] = [*_column_records(change, indexes.columns)]
    if PARTITION_STATS in indexes.updated:
        records[PARTITION_STATS] = [*_partition_records(change, indexes.columns)]
    if BLOOM_FILTERS in indexes.updated:
        records[BLOOM_FILTERS] = [*_deleted_filters(change, instant)]
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


def _file_records(change: MetadataChange) -> list[MetadataRecord]:
    partitions = dict.fromkeys(change.added, True) | dict.fromkeys(sorted(change.removed_partitions), False)
    records: list[MetadataRecord] = []
    if partitions or not change.deleted:
        # Java writes this record with every commit, even an empty one.
        records.append(PartitionListRecord(partitions))
    for partition in sorted(change.added.keys() | change.deleted.keys()):
        files = {name: FileEntry(size) for name, size in change.added.get(partition, {}).items()}
        files |= {name: FileEntry(0, is_deleted=True) for name in sorted(change.deleted.get(partition, ()))}
        if files:
            records.append(FileListRecord(partition, files))
    return records


def _column_records(change: MetadataChange, columns: Sequence[str]) -> Iterable[MetadataRecord]:
    for partition, files in change.added.items():
        for name in files:
            for column_range in change.ranges.get(join_path(partition, name), ()):
                yield column_stats_record(partition=partition, file_name=name, column_range=column_range)
    for partition, names in change.deleted.items():
        for name in sorted(names):
            for column in columns:
                key = column_stats_key(partition=partition, file_name=name, column=column)
                yield ColumnStatsRecord(key, name, deleted_column_range(column), is_deleted=True)


def _deleted_filters(change: MetadataChange, instant: RequestedTime) -> Iterable[MetadataRecord]:
    for partition, names in change.deleted.items():
        for name in sorted(names):
            if decode_base_name(name) is not None:
                yield bloom_filter_record(partition=partition, file_name=name, instant=instant.value, is_deleted=True)


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
