"""What an action changes in the indexes of the metadata table that tasks compute: those of keys, values and filters.

An action changes them in its own delta commit, so that the completion that makes the rows visible also updates the
indexes. Their logs are made before the lock is taken; those of an index that was added in the meantime, under it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import decode_log_name
from tablekeeper.format.metadata_log import decode_metadata_base_name
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.metadata_table.indexes import MetadataIndexes
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY, load_metadata_files
from tablekeeper.model import join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage import FileInfo, Storage

__all__ = [
    "NO_INDEX_CHANGES",
    "IndexChanges",
    "IndexLog",
    "IndexShards",
    "NoIndexChanges",
    "index_shards",
    "load_index_shards",
    "shard_ids",
]


@dataclass(frozen=True, slots=True)
class IndexShards:
    """An index: the name of its partition in the metadata table, its file groups by number, and the indexed column.

    A record index `by_partition` has file groups for each partition of the table, so it can have none.
    """

    name: str
    file_ids: tuple[str, ...]
    column: str = ""
    by_partition: bool = False


@dataclass(frozen=True, slots=True)
class IndexLog:
    """What a commit writes to one shard: a log file of so many entries, which `load` gives."""

    entries: int
    load: Callable[[], bytes]


class IndexChanges(Protocol):
    """What a commit adds, moves and removes."""

    def logs(self, index: IndexShards) -> Mapping[str, IndexLog]:
        """The logs of the index, by file id; shards without changes are left out.

        Called before the lock is taken, and again under it, where the same answer costs nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoIndexChanges:
    """For an action that moves no key, value or file, or only deletes files."""

    def logs(self, index: IndexShards) -> Mapping[str, IndexLog]:
        return {}


NO_INDEX_CHANGES = NoIndexChanges()


def load_index_shards(storage: Storage, indexes: MetadataIndexes, *, runtime: Runtime) -> tuple[IndexShards, ...]:
    """The indexes among `indexes` that tasks compute, without the lock: one that was dropped since has no shards."""
    return _shards_of(indexes, load_metadata_files(storage, indexes.told, runtime=runtime))


def index_shards(indexes: MetadataIndexes, listings: Mapping[str, Sequence[FileInfo]]) -> tuple[IndexShards, ...]:
    """The indexes that tasks compute. `listings` has the files of their partitions."""
    found = _shards_of(indexes, listings)
    for index in found:
        if not index.file_ids and not index.by_partition:
            path = join_path(METADATA_DIRECTORY, index.name)
            raise CorruptTableError(file=path, reason="the index has no file group here, though it is in use")
    return found


def shard_ids(files: Sequence[FileInfo]) -> tuple[str, ...]:
    """The file ids of the shards that these files of a partition belong to, by number.

    They are created with the partition, before any commit to it completes, and do not change; only a record index by
    partitions gets more.
    """
    names = [decode_metadata_base_name(file.name) or decode_log_name(file.name) for file in files]
    # Numbers have four digits, and more from the ten-thousandth on.
    return tuple(sorted({name.file_id for name in names if name is not None}, key=lambda text: (len(text), text)))


def _shards_of(indexes: MetadataIndexes, listings: Mapping[str, Sequence[FileInfo]]) -> tuple[IndexShards, ...]:
    return tuple(
        IndexShards(
            name,
            shard_ids(listings[name]),
            indexes.values.get(name, ""),
            by_partition=name == RECORD_INDEX and indexes.keys_by_partition,
        )
        for name in indexes.told
    )
