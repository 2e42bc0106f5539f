"""Which partitions of a metadata table this package keeps in step, and what happens to the others.

Kept in step are `files`, `column_stats`, `partition_stats`, `bloom_filters`, a record index, and with one of the whole
table secondary indexes over columns whose texts are known. The others (expression, other secondary ones) stay as they
are through actions that leave them right. An index that misses a commit silently gives wrong answers, and rebuilding it
can take hours: an action that would leave one wrong is refused, unless the caller consents to losing it. It is then
switched off before the commit that it would miss: first it is removed from the table's properties, then its definition
and directory are deleted, as when Java drops an index.

What an index contains decides which actions leave it right:

| index | holds | compaction | log compaction | clustering |
|---|---|---|---|---|
| secondary | the keys of each value | right: no value changes | right | right |
| expression | statistics of each file | wrong: new files | wrong: new files | wrong |

A clean only deletes files that nothing refers to any more.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tablekeeper.config.keys import INDEX_DROP
from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import NotFoundError, UnsupportedFeatureError
from tablekeeper.format.column_stats import value_type_of
from tablekeeper.format.index_definitions import IndexDefinition, decode_index_definitions, remove_index_definitions
from tablekeeper.format.record_index import RECORD_INDEX
from tablekeeper.format.secondary_index import SECONDARY_INDEX_PREFIX
from tablekeeper.metadata_table.layout import BLOOM_FILTERS, COLUMN_STATS, FILES, METADATA_DIRECTORY, PARTITION_STATS
from tablekeeper.model import Operation, join_path
from tablekeeper.storage import Storage

__all__ = [
    "INDEX_DEFINITIONS_PATH",
    "NO_INDEXES",
    "MetadataIndexes",
    "delete_metadata_table",
    "drop_metadata_indexes",
    "load_metadata_indexes",
    "plan_metadata_indexes",
    "refuse_index_loss",
    "statistics_outdate",
    "without_indexes",
]

INDEX_DEFINITIONS_PATH = ".hoodie/.index_defs/index.json"
_MAINTAINED = (FILES, COLUMN_STATS, PARTITION_STATS)
_TOLD = (BLOOM_FILTERS, RECORD_INDEX, SECONDARY_INDEX_PREFIX)
_INDEX_VERSION = "V2"
_STAYS_RIGHT = {
    Operation.COMPACT: (SECONDARY_INDEX_PREFIX,),
    Operation.LOG_COMPACT: (SECONDARY_INDEX_PREFIX,),
    Operation.CLUSTER: (SECONDARY_INDEX_PREFIX,),
    # Building an index changes no other one.
    Operation.INDEX: ("",),
}


@dataclass(frozen=True, slots=True)
class MetadataIndexes:
    """What a commit has to do for the metadata table.

    `updated` are the metadata partitions that get a log file with each commit, `listed` what the table's
    properties should name (also those that need no update), `dropped` what has to be switched off first. `columns` are
    those with statistics, `values` the column of each secondary index that is kept. `keys_by_partition` tells
    whether a record index looks for a key in its partition only.
    """

    updated: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    keys_by_partition: bool = False
    definitions: bytes | None = None

    @property
    def has_statistics(self) -> bool:
        return COLUMN_STATS in self.updated

    @property
    def told(self) -> tuple[str, ...]:
        """Updated indexes whose changes are computed from the files (see `index_changes.py`)."""
        return tuple(name for name in self.updated if name.startswith(_TOLD))

    @property
    def has_record_index(self) -> bool:
        """Whether a record index is kept in step."""
        return RECORD_INDEX in self.updated

    @property
    def lost(self) -> tuple[str, ...]:
        """Dropped indexes that no writer rebuilds by itself."""
        return tuple(name for name in self.dropped if name not in _MAINTAINED)


NO_INDEXES = MetadataIndexes()
"""For a table without metadata table."""


def load_metadata_indexes(
    storage: Storage,
    config: TableConfig,
    *,
    operation: Operation | None = None,
    outdated_statistics: bool = False,
    told_columns: Container[str] | None = None,
) -> MetadataIndexes:
    """Read the index definitions, if the table has a metadata table, and plan."""
    definitions = None
    if config.has_metadata_table:
        try:
            definitions = storage.read(INDEX_DEFINITIONS_PATH)
        except NotFoundError:
            definitions = None
    return plan_metadata_indexes(
        config,
        definitions,
        operation=operation,
        outdated_statistics=outdated_statistics,
        told_columns=told_columns,
    )


def plan_metadata_indexes(
    config: TableConfig,
    definitions: bytes | None,
    *,
    operation: Operation | None = None,
    outdated_statistics: bool = False,
    told_columns: Container[str] | None = None,
) -> MetadataIndexes:
    """Decide what to keep. `definitions` is the content of index.json, None if there is none.

    Indexes that `operation` leaves right stay as they are; without one, only those that are kept in step do.
    `outdated_statistics` switches the statistics off, for a commit that changes the schema in a way that
    the statistics cannot follow (see `statistics_outdate`). `told_columns` are the columns of which the action can tell
    a secondary index; None for one that changes no value.
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
    if BLOOM_FILTERS in named:
        kept = (*kept, BLOOM_FILTERS)
    by_partition = RECORD_INDEX in known and known[RECORD_INDEX].is_partitioned
    if RECORD_INDEX in named:
        kept = (*kept, RECORD_INDEX)
    # A secondary index gives keys, whose files an index of the whole table has to tell.
    values = _kept_values(known, named if RECORD_INDEX in named and not by_partition else (), told_columns)
    kept = (*kept, *values)
    stays_right = () if operation is None else _STAYS_RIGHT.get(operation, ())
    stays = (*kept, *(name for name in named if name.startswith(stays_right)))
    dropped = tuple(name for name in dict.fromkeys(present) if name not in stays)
    remaining = definitions
    if definitions is not None and any(name in known for name in dropped):
        remaining = remove_index_definitions(definitions, names=dropped, file=INDEX_DEFINITIONS_PATH)
    return MetadataIndexes(
        updated=tuple(name for name in kept if name in present),
        listed=tuple(name for name in named if name in stays),
        dropped=dropped,
        columns=stats.columns if stats is not None and keeps_stats else (),
        values=values,
        keys_by_partition=by_partition,
        definitions=remaining,
    )


def _kept_values(
    known: Mapping[str, IndexDefinition], named: Iterable[str], told_columns: Container[str] | None
) -> dict[str, str]:
    """The column of each secondary index that can be kept in step."""
    found: dict[str, str] = {}
    for name in named:
        definition = known.get(name)
        if name.startswith(SECONDARY_INDEX_PREFIX) and definition is not None and definition.version == _INDEX_VERSION:
            columns = definition.columns
            if len(columns) == 1 and (told_columns is None or columns[0] in told_columns):
                found[name] = columns[0]
    return found


def without_indexes(indexes: MetadataIndexes, *names: str) -> MetadataIndexes:
    """The same, with these dropped."""
    definitions = indexes.definitions
    if definitions is not None:
        definitions = remove_index_definitions(definitions, names=names, file=INDEX_DEFINITIONS_PATH)
    return replace(
        indexes,
        updated=tuple(name for name in indexes.updated if name not in names),
        listed=tuple(name for name in indexes.listed if name not in names),
        dropped=(*indexes.dropped, *names),
        values={name: column for name, column in indexes.values.items() if name not in names},
        definitions=definitions,
    )


def statistics_outdate(*, before: Any, after: Any) -> bool:
    """True if column statistics do not survive a change of the table's Arrow schema.

    Java indexes new columns by itself and would then miss the files in between; and it cannot merge partition
    statistics of two types. Without statistics, Java's next write builds them from the files.
    """
    old = {field.name: value_type_of(field.type) for field in before}
    return any(field.name not in old or old[field.name] != value_type_of(field.type) for field in after)


def refuse_index_loss(config: TableConfig, indexes: MetadataIndexes, *, action: str, consents: bool) -> None:
    """Raise `UnsupportedFeatureError` if the action costs an index and the caller has not consented to that."""
    if indexes.lost and not consents:
        raise UnsupportedFeatureError(
            f"table {config.name}: this {action} would leave the index {', '.join(indexes.lost)} wrong, which cannot "
            f"be kept in step through it here. Leave the {action} to Java, or pass {INDEX_DROP}=true to drop the "
            "index; building it anew can take hours."
        )


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
