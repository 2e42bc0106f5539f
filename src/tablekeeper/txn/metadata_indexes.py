"""Which partitions of a metadata table this package keeps in step, and what becomes of the others.

Kept are `files`, `column_stats` and `partition_stats`. An index that nobody maintains answers queries
wrongly and without a word, so the others (record, bloom, secondary, expression) are switched off
before the first commit that they would miss: first the table's properties stop naming them, then
their definitions and directories go. That is what Java does when an index is dropped; a Java writer
that wants the index builds it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import NotFoundError, UnsupportedFeatureError
from tablekeeper.format.column_stats import value_type_of
from tablekeeper.format.index_definitions import decode_index_definitions, remove_index_definitions
from tablekeeper.model import join_path
from tablekeeper.storage import Storage
from tablekeeper.timeline.metadata_layout import COLUMN_STATS, FILES, METADATA_DIRECTORY, PARTITION_STATS

__all__ = [
    "INDEX_DEFINITIONS_PATH",
    "MetadataIndexes",
    "delete_metadata_table",
    "drop_metadata_indexes",
    "load_metadata_indexes",
    "plan_metadata_indexes",
    "statistics_outdate",
]

INDEX_DEFINITIONS_PATH = ".hoodie/.index_defs/index.json"
_MAINTAINED = (FILES, COLUMN_STATS, PARTITION_STATS)
_INDEX_VERSION = "V2"


@dataclass(frozen=True, slots=True)
class MetadataIndexes:
    """What a commit has to do for the metadata table.

    `updated` are the metadata partitions that get a log file with each commit, `listed` what the table's
    properties should name, `dropped` what has to be switched off first. `columns` are those with statistics.
    """

    updated: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    definitions: bytes | None = None

    @property
    def has_statistics(self) -> bool:
        return COLUMN_STATS in self.updated


def load_metadata_indexes(
    storage: Storage, config: TableConfig, *, outdated_statistics: bool = False
) -> MetadataIndexes:
    """Read the index definitions, if the table has a metadata table, and plan."""
    definitions = None
    if config.has_metadata_table:
        try:
            definitions = storage.read(INDEX_DEFINITIONS_PATH)
        except NotFoundError:
            definitions = None
    return plan_metadata_indexes(config, definitions, outdated_statistics=outdated_statistics)


def plan_metadata_indexes(
    config: TableConfig, definitions: bytes | None, *, outdated_statistics: bool = False
) -> MetadataIndexes:
    """Decide what to keep. `definitions` is the content of index.json, None if there is none.

    `outdated_statistics` switches the statistics off, for a commit that changes the schema in a way that
    the statistics cannot follow (see `statistics_outdate`).
    """
    named = config.metadata_partitions
    building = config.metadata_partitions_inflight
    if FILES not in named:
        return MetadataIndexes(dropped=tuple(named), definitions=definitions)
    strange = [name for name in building if name not in _MAINTAINED]
    if strange:
        raise UnsupportedFeatureError(
            f"table {config.name}: the index {strange[0]} is being built by another writer and would miss this commit. "
            "Let the indexing finish or drop the index, then retry."
        )
    known = {} if definitions is None else decode_index_definitions(definitions, file=INDEX_DEFINITIONS_PATH)
    stats = known.get(COLUMN_STATS)
    present = (*named, *building)
    keeps_stats = (
        stats is not None and stats.version == _INDEX_VERSION and COLUMN_STATS in present and not outdated_statistics
    )
    kept = _MAINTAINED if keeps_stats else (FILES,)
    dropped = tuple(name for name in dict.fromkeys(present) if name not in kept)
    remaining = definitions
    if definitions is not None and any(name in known for name in dropped):
        remaining = remove_index_definitions(definitions, names=dropped, file=INDEX_DEFINITIONS_PATH)
    return MetadataIndexes(
        updated=tuple(name for name in kept if name in present),
        listed=tuple(name for name in named if name in kept),
        dropped=dropped,
        columns=stats.columns if stats is not None and keeps_stats else (),
        definitions=remaining,
    )


def statistics_outdate(*, before: Any, after: Any) -> bool:
    """True if column statistics do not survive a change of the table's Arrow schema.

    Java indexes new columns by itself and would then miss the files in between; and it cannot merge partition
    statistics of two types. Without statistics, Java's next write builds them from the files.
    """
    old = {field.name: value_type_of(field.type) for field in before}
    return any(field.name not in old or old[field.name] != value_type_of(field.type) for field in after)


def drop_metadata_indexes(storage: Storage, indexes: MetadataIndexes) -> None:
    """Remove definitions and directories of the dropped indexes. The table's properties no longer name them."""
    if not indexes.dropped:
        return
    if indexes.definitions is not None:
        storage.put(INDEX_DEFINITIONS_PATH, indexes.definitions)
    for name in indexes.dropped:
        storage.delete_tree(join_path(METADATA_DIRECTORY, name))


def delete_metadata_table(storage: Storage) -> None:
    """Remove the metadata table and its index definitions. The table's properties no longer name its partitions."""
    storage.delete_tree(METADATA_DIRECTORY)
    storage.delete(INDEX_DEFINITIONS_PATH)
