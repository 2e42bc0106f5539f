"""The schema of a table at an instant, from the newest commit that records one."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.avro_arrow import META_COLUMNS, avro_to_arrow_schema, without_meta_columns
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.model import SCHEMA_KEY, CommitMetadata, Instant, RequestedTime
from tablekeeper.snapshot.integrity import refuse_lost_timeline
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline, instant_path, load_commit_metadata
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.properties_file import PROPERTIES_FILE

__all__ = ["load_schema_and_commits", "load_table_schema"]

_CHECKED_VERSION = 8
"""Older tables may name columns that they do not have: defaults of Hudi that nobody used."""


def load_table_schema(
    storage: Storage, config: TableConfig, timeline: Timeline, *, as_of: RequestedTime | None = None
) -> pa.Schema:
    """Columns of the table without meta columns, as of a requested time (now by default).

    Everybody who reads or writes begins here: a table whose timeline was lost is refused.
    """
    return load_schema_and_commits(storage, config, timeline, as_of=as_of)[0]


def load_schema_and_commits(
    storage: Storage, config: TableConfig, timeline: Timeline, *, as_of: RequestedTime | None = None
) -> tuple[pa.Schema, tuple[tuple[Instant, CommitMetadata], ...]]:
    """The same, and the commits that had to be loaded for it: the newest one at least."""
    commits: list[tuple[Instant, CommitMetadata]] = []
    for instant in reversed(timeline.completed_writes_by_completion):
        if as_of is not None and instant.requested_at > as_of:
            continue
        commits.append((instant, load_commit_metadata(storage, config, instant)))
        text = commits[-1][1].extra.get(SCHEMA_KEY)
        if text:
            file = instant_path(config, instant)
            schema = without_meta_columns(avro_to_arrow_schema(text, file=file))
            _refuse_damaged_properties(config, schema, commits)
            return schema, tuple(commits)
    return _schema_without_commits(storage, config, timeline, as_of), tuple(commits)


def _refuse_damaged_properties(
    config: TableConfig, schema: pa.Schema, commits: Iterable[tuple[Instant, CommitMetadata]]
) -> None:
    """A table is what its writers took it for: properties that say otherwise were damaged, and rows would be wrong."""
    if not config.key_fields:
        raise UnsupportedFeatureError(
            f"{PROPERTIES_FILE} names no key columns. Tables without keys are for Java; if this one had some, the file "
            "was damaged: bring it back from a backup."
        )
    if config.version < _CHECKED_VERSION:
        return
    fields = {field.partition(".")[0] for field in (*config.key_fields, *config.ordering_fields)}
    unknown = sorted(fields - set(schema.names) - frozenset(META_COLUMNS))
    if unknown:
        reason = f"it names key or ordering columns that the table does not have: {', '.join(map(repr, unknown))}"
        raise CorruptTableError(file=PROPERTIES_FILE, reason=reason)
    if config.is_partitioned:
        return
    for instant, commit in commits:
        for stat in commit.stats:
            if stat.group.partition:
                reason = f"it names no partition columns, and {instant} wrote to the partition {stat.group.partition}"
                raise CorruptTableError(file=PROPERTIES_FILE, reason=reason)


def _schema_without_commits(
    storage: Storage, config: TableConfig, timeline: Timeline, as_of: RequestedTime | None
) -> pa.Schema:
    """If no commit on the active timeline has it: from the archived ones, or as the table was created."""
    refuse_lost_timeline(storage, config, timeline)
    if as_of is not None and timeline.completed_writes:
        return _archived_schema(storage, config, timeline, as_of)
    if config.create_schema:
        try:
            return without_meta_columns(avro_to_arrow_schema(config.create_schema, file=".hoodie/hoodie.properties"))
        except CorruptTableError as error:
            raise CorruptTableError(
                file=error.file, reason=f"the create schema does not parse: {error.reason}"
            ) from error
    raise InvalidRequestError(
        f"table {config.name} has no schema: it has no commits and was created without one. Write to it first, or open "
        "an existing table."
    )


def _archived_schema(storage: Storage, config: TableConfig, timeline: Timeline, as_of: RequestedTime) -> pa.Schema:
    """The schema at a moment before the active timeline."""
    for archived in reversed(load_history(storage, config)):
        if archived.instant.requested_at > as_of or not archived.instant.action.writes_data or not archived.metadata:
            continue
        file = f"archived {archived.instant}"
        text = decode_commit_metadata(archived.metadata, file=file).extra.get(SCHEMA_KEY)
        if text:
            return without_meta_columns(avro_to_arrow_schema(text, file=file))
    raise InvalidRequestError(
        f"table {config.name} has no commit at or before {as_of}: the first one on its timeline is "
        f"{timeline.completed_writes[0].requested_at}. Ask for a later moment."
    )
