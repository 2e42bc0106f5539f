"""Listing partitions and files from the metadata table instead of from directories.

The cost does not depend on the number of partitions: two listings, one read of the base file of the
`files` partition and one read for each of its log files. The timeline of the data table must have been
loaded before: whatever is committed there was committed to the metadata table even earlier.
"""

from __future__ import annotations

from collections.abc import Iterable

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, NotFoundError, UnsupportedFeatureError
from tablekeeper.format.metadata_keys import metadata_file_group_index, metadata_partition_name
from tablekeeper.format.metadata_log import MetadataFileGroup
from tablekeeper.format.metadata_records import PARTITION_LIST_KEY, FileListRecord, MetadataRecord, PartitionListRecord
from tablekeeper.metadata_table.layout import (
    FILES,
    METADATA_DIRECTORY,
    load_metadata_file_group,
    load_metadata_timeline,
    metadata_config,
    plan_metadata_slices,
)
from tablekeeper.metadata_table.presence import refuse_lost_listing
from tablekeeper.model import join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline
from tablekeeper.timeline.history import archived_completions

__all__ = ["MetadataTable", "open_metadata_table"]

_OLDEST_VERSION = 8
_ATTEMPTS = 3


class MetadataTable:
    """The listing of a table according to its metadata table, at one moment."""

    def __init__(self, groups: tuple[MetadataFileGroup, ...]) -> None:
        self._groups = groups

    def partitions(self) -> list[str]:
        """All partition paths, sorted; `[""]` for a table without partitions that has files."""
        record = self._find(PARTITION_LIST_KEY)
        if record is None:
            return []
        if not isinstance(record, PartitionListRecord):
            raise _wrong_kind(record)
        return list(record.live)

    def files(self, partitions: Iterable[str]) -> dict[str, list[tuple[str, int]]]:
        """(name, size) of the files in each of `partitions`, by name; none for a partition that is not there."""
        listing: dict[str, list[tuple[str, int]]] = {}
        for partition in partitions:
            record = self._find(metadata_partition_name(partition))
            if record is not None and not isinstance(record, FileListRecord):
                raise _wrong_kind(record)
            listing[partition] = [] if record is None else sorted(record.live.items())
        return listing

    def _find(self, key: str) -> MetadataRecord | None:
        return self._groups[metadata_file_group_index(key, groups=len(self._groups))].find(key)


def open_metadata_table(
    storage: Storage, config: TableConfig, timeline: Timeline, *, runtime: Runtime
) -> MetadataTable | None:
    """The metadata table of a table, or None where directories have to be listed instead.

    That is so for a table without one, for tables older than version 8, and if the metadata table has been
    deleted or holds blocks that are not read here: directories are always right.
    """
    if not config.has_metadata_table or config.version < _OLDEST_VERSION:
        return None
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _load(storage, config, timeline, runtime=runtime)
        except UnsupportedFeatureError:
            return None
        except (NotFoundError, CorruptTableError):
            # A compaction and a clean of the metadata table can replace its files between listing and reading.
            if attempt == _ATTEMPTS:
                raise
    return None


def _load(storage: Storage, config: TableConfig, timeline: Timeline, *, runtime: Runtime) -> MetadataTable | None:
    # In this order, so that files whose instant completed after the first listing are ignored.
    metadata_timeline = load_metadata_timeline(storage, config)
    files = storage.list_files(join_path(METADATA_DIRECTORY, FILES))
    refuse_lost_listing(storage, config, files, metadata_timeline=metadata_timeline, data=timeline)
    slices = plan_metadata_slices(
        files,
        metadata_timeline=metadata_timeline,
        data_timeline=timeline,
        archived_completion=archived_completions(storage, metadata_config(config)),
    )
    if not slices:
        return None
    groups = tuple(load_metadata_file_group(storage, each, runtime=runtime) for each in slices)
    # A file of another metadata partition in this place says nothing about the files of the table.
    for file, record in (first for group in groups for first in group.first_of_each_file()):
        if not isinstance(record, FileListRecord | PartitionListRecord):
            raise _wrong_kind(record, file=file)
    return MetadataTable(groups)


def _wrong_kind(record: MetadataRecord, *, file: str = "") -> CorruptTableError:
    path = file or join_path(METADATA_DIRECTORY, FILES)
    return CorruptTableError(file=path, reason=f"record {record.key!r} is a {type(record).__name__}")
