"""What a transaction does for the metadata table, under the lock and before it publishes.

The properties file is read anew each time: another writer may have made a metadata table, or dropped one, since the
table was opened, and a commit that goes by old knowledge would leave a stale one behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from tablekeeper.config.table_config import TableConfig
from tablekeeper.config.table_properties import METADATA_INFLIGHT_KEY, METADATA_PARTITIONS_KEY
from tablekeeper.format.avro_arrow import avro_to_arrow_schema
from tablekeeper.format.metadata_records import ColumnRange
from tablekeeper.model import SCHEMA_KEY, CommitMetadata, CompletionTime, RequestedTime
from tablekeeper.timeline import Timeline, load_commit_metadata
from tablekeeper.txn.environment import TableEnvironment, next_time
from tablekeeper.txn.metadata_indexes import (
    MetadataIndexes,
    delete_metadata_table,
    drop_metadata_indexes,
    load_metadata_indexes,
    statistics_outdate,
)
from tablekeeper.txn.metadata_ranges import load_missing_ranges
from tablekeeper.txn.metadata_sync import (
    change_of_clean,
    change_of_commit,
    remove_metadata_update,
    write_metadata_update,
)
from tablekeeper.txn.properties_file import change_properties, load_table_config

__all__ = ["sync_clean", "sync_commit", "sync_rollback"]


def sync_commit(
    environment: TableEnvironment,
    metadata: CommitMetadata,
    *,
    requested_at: RequestedTime,
    timeline: Timeline,
    ranges: Mapping[str, Sequence[ColumnRange]],
    keep: bool = True,
) -> tuple[str, ...]:
    """Bring the metadata table up to date with a commit that is about to be published.

    `ranges` are the statistics that the writer took along, by path. `keep=False` switches the metadata table off.
    Returns notes for the user about what was switched off.
    """
    config = load_table_config(environment.storage)
    if not config.metadata_partitions and not config.metadata_partitions_inflight:
        return ()
    if not keep:
        _change_partitions(environment, listed=(), building=())
        delete_metadata_table(environment.storage)
        return ("the metadata table was switched off, as hoodie.metadata.enable=false asks for",)
    outdated = _outdates_statistics(environment, config, metadata, timeline)
    indexes = load_metadata_indexes(environment.storage, config, outdated_statistics=outdated)
    notes = _switch_off(environment, config, indexes)
    if indexes.updated:
        complete = load_missing_ranges(
            environment.storage,
            metadata.stats,
            known=ranges,
            columns=indexes.columns,
            runtime=environment.runtime,
        )
        change = change_of_commit(metadata, ranges=complete)
        write_metadata_update(
            environment.storage,
            config,
            change,
            indexes,
            requested_at=requested_at,
            completed_at=lambda own: _completion(environment, timeline, own),
            runtime=environment.runtime,
        )
    return notes


def sync_clean(
    environment: TableEnvironment,
    deleted: Mapping[str, Iterable[str]],
    *,
    removed_partitions: Iterable[str] = (),
    requested_at: RequestedTime,
    timeline: Timeline,
) -> None:
    """Take deleted files (names by partition path) out of the metadata table, before the clean is published."""
    config = load_table_config(environment.storage)
    indexes = load_metadata_indexes(environment.storage, config)
    if not indexes.updated:
        return
    write_metadata_update(
        environment.storage,
        config,
        change_of_clean(deleted, removed_partitions=removed_partitions),
        indexes,
        requested_at=requested_at,
        completed_at=lambda own: _completion(environment, timeline, own),
        runtime=environment.runtime,
    )


def sync_rollback(environment: TableEnvironment, target: RequestedTime) -> None:
    """Take back what a write that did not complete has put into the metadata table, before it leaves the timeline."""
    config = load_table_config(environment.storage)
    if config.has_metadata_table:
        remove_metadata_update(environment.storage, config, target=target, runtime=environment.runtime)


def _switch_off(environment: TableEnvironment, config: TableConfig, indexes: MetadataIndexes) -> tuple[str, ...]:
    """Stop naming the indexes that are not kept, then remove them."""
    if not indexes.dropped:
        return ()
    building = [name for name in config.metadata_partitions_inflight if name in indexes.updated]
    _change_partitions(environment, listed=indexes.listed, building=building)
    drop_metadata_indexes(environment.storage, indexes)
    return (f"switched off {', '.join(indexes.dropped)} of the metadata table; a Java writer can build it anew",)


def _change_partitions(environment: TableEnvironment, *, listed: Sequence[str], building: Sequence[str]) -> None:
    changes = {METADATA_PARTITIONS_KEY: ",".join(listed), METADATA_INFLIGHT_KEY: ",".join(building)}
    change_properties(environment.storage, {name: value or None for name, value in changes.items()})


def _completion(environment: TableEnvironment, data: Timeline, own: Timeline) -> CompletionTime:
    """Later than everything on both timelines, so that the log file lies on top of the newest base file."""
    return CompletionTime(next_time(environment, Timeline((*data.instants, *own.instants))))


def _outdates_statistics(
    environment: TableEnvironment, config: TableConfig, metadata: CommitMetadata, timeline: Timeline
) -> bool:
    after = metadata.extra.get(SCHEMA_KEY)
    before = _last_schema(environment, config, timeline)
    if after is None or before is None or after == before:
        return False
    return statistics_outdate(
        before=avro_to_arrow_schema(json.loads(before), file="the last commit"),
        after=avro_to_arrow_schema(json.loads(after), file="this commit"),
    )


def _last_schema(environment: TableEnvironment, config: TableConfig, timeline: Timeline) -> str | None:
    """The table's schema so far: that of the newest completed commit that has one."""
    for instant in reversed(timeline.completed_writes_by_completion):
        schema = load_commit_metadata(environment.storage, config, instant).extra.get(SCHEMA_KEY)
        if schema:
            return schema
    return None
