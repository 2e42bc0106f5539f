"""Before a write: check that the rows fit the table, and collect what the kernels need to know.

A `WriteRequest` is a requested write that has been checked and has not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tablekeeper.config.keys import METADATA_ENABLE, WIDEN_TO_STRING
from tablekeeper.config.options import Options
from tablekeeper.config.write_settings import IndexKind, WriteSettings
from tablekeeper.engine.protocol import Engine
from tablekeeper.format.avro_arrow import with_meta_columns
from tablekeeper.format.plans import RequestedReplaceMetadata, encode_requested_replace_metadata
from tablekeeper.format.secondary_index import has_indexed_text
from tablekeeper.metadata_table.indexes import load_metadata_indexes, refuse_index_loss, statistics_outdate
from tablekeeper.metadata_table.update import MetadataPolicy
from tablekeeper.model import Action, CommitMetadata, Instant, Operation
from tablekeeper.read.log_changes import BlockVisibility
from tablekeeper.record.keys import key_spec
from tablekeeper.record.merge import merge_rule
from tablekeeper.record.partition_paths import partition_spec
from tablekeeper.runtime import Runtime
from tablekeeper.snapshot.schema import load_schema_and_commits
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.timeline import Timeline, load_timeline_beside
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext, avro_schema_json, staging_directory
from tablekeeper.write.schema import KnownSchema, refuse_missing_keys, schema_after

__all__ = [
    "KnownCommits",
    "WriteRequest",
    "load_begin",
    "prepare_write",
    "refuse_lost_indexes",
]


KnownCommits = tuple[tuple[Instant, CommitMetadata], ...]


@dataclass(frozen=True)
class WriteRequest:
    """A requested write. `extra` goes into the commit's metadata; `known_schema` is the schema it was planned with.

    `known_commits` were loaded on the way, the newest one at least: what they wrote must be there to be built upon.
    `refuse` is called under the commit's lock, with the timeline as it is then, and raises if the write is not wanted.
    """

    environment: TableEnvironment
    engine: Engine
    context: WriteContext
    operation: Operation
    extra: dict[str, str]
    policy: MetadataPolicy
    known_schema: KnownSchema
    known_commits: KnownCommits = ()
    refuse: Callable[[Timeline], None] = lambda _: None

    @property
    def runtime(self) -> Runtime:
        return self.environment.runtime

    @property
    def is_mor(self) -> bool:
        return self.environment.config.is_mor

    @property
    def replaces(self) -> bool:
        return self.operation in (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE)

    @property
    def combines(self) -> bool:
        settings = self.context.settings
        if self.operation is Operation.UPSERT:
            return settings.combine_before_upsert
        if self.operation is Operation.DELETE:
            return settings.combine_before_delete
        return settings.combine_before_insert

    @property
    def looks_up_keys(self) -> bool:
        """Whether existing rows affect what happens to the given rows."""
        return self.operation in (Operation.UPSERT, Operation.DELETE)

    @property
    def is_bulk(self) -> bool:
        return self.operation is Operation.BULK_INSERT

    @property
    def has_buckets(self) -> bool:
        return self.context.settings.index is IndexKind.BUCKET

    @property
    def tags_keys(self) -> bool:
        """Whether keys are looked up. With the bucket index the hash determines the file group."""
        return self.looks_up_keys and not self.has_buckets

    @property
    def uses_record_index(self) -> bool:
        """Whether keys are looked up in the record index: if there is one and no other index was requested."""
        settings, indexes = self.context.settings, self.policy.indexes
        kind = IndexKind.RECORD_LEVEL_INDEX if indexes.keys_by_partition else IndexKind.RECORD_INDEX
        asks = settings.index is kind or not settings.names_index
        return self.tags_keys and indexes.has_record_index and asks

    @property
    def writes_directly(self) -> bool:
        """Whether rows go directly into new files, because they need no existing file group."""
        gathers = self.is_bulk and self.context.settings.bulk_insert_sort.gathers_partitions
        return (self.is_bulk or self.replaces) and not (self.has_buckets or self.combines or gathers)

    @property
    def action(self) -> Action:
        if self.replaces or self.operation is Operation.DELETE_PARTITION:
            return Action.REPLACE_COMMIT
        return Action.DELTA_COMMIT if self.is_mor else Action.COMMIT

    @property
    def plan(self) -> bytes:
        if self.action is not Action.REPLACE_COMMIT:
            return b""
        return encode_requested_replace_metadata(RequestedReplaceMetadata(operation=self.operation))


# Small enough for each thread of this process; for tasks in other processes it would be sent many times.
_CARRIED_BYTES = 1 << 20


def load_begin(
    environment: TableEnvironment, *, names: Sequence[str] | None = None
) -> tuple[Timeline, pa.Schema, KnownCommits]:
    """The beginning of any work on a table: loads the timeline, from these `names` if given, and its schema.

    The commits that tell the schema are returned too. It also reads the lock, which will be needed soon.
    """
    timeline, ((schema, commits), _) = load_timeline_beside(
        environment.storage,
        environment.config,
        lambda timeline: environment.runtime.threads.together(
            lambda: load_schema_and_commits(environment.storage, environment.config, timeline),
            environment.lock.look_ahead,
        ),
        runtime=environment.runtime,
        names=names,
    )
    return timeline, schema, commits


def prepare_write(
    environment: TableEnvironment,
    engine: Engine,
    options: Options,
    operation: Operation,
    *,
    incoming: pa.Schema | None,
    extra: Mapping[str, str],
    names: Sequence[str] | None = None,
) -> WriteRequest:
    """A checked write of rows with the schema `incoming` (None if the operation brings no rows), not begun yet.

    `names` are those on the timeline, where they were just listed.
    """
    config, storage = environment.config, environment.storage
    if operation in (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE):
        environment.concurrency.refuse_overwrite(operation=operation.value.lower())
    timeline, table_schema, commits = load_begin(environment, names=names)
    schema = table_schema
    if incoming is not None:
        schema = schema_after(
            config,
            table_schema,
            operation=operation,
            incoming=incoming,
            widens_to_string=options.flag(WIDEN_TO_STRING),
        )
    policy = MetadataPolicy(
        is_enabled=options.flag(METADATA_ENABLE),
        outdates_statistics=schema != table_schema and statistics_outdate(before=table_schema, after=schema),
        told_columns=_told_columns(environment, schema),
    )
    stats_columns: tuple[str, ...] = ()
    if config.metadata_partitions:
        indexes = load_metadata_indexes(
            storage,
            config,
            operation=operation,
            outdated_statistics=policy.outdates_statistics,
            told_columns=policy.told_columns,
        )
        if policy.is_enabled:
            # The commit looks again, under the lock; a refusal should come before the work.
            refuse_index_loss(config, indexes, action=operation.value.lower(), consents=environment.drops_indexes)
            policy = replace(policy, indexes=indexes)
            stats_columns = indexes.columns
    context = WriteContext(
        store=StorageHandle(storage),
        staging=staging_directory(environment.runtime.ids.uuid()),
        schema=schema,
        avro_schema=avro_schema_json(with_meta_columns(schema), table=config.name),
        table_schema=avro_schema_json(schema, table=config.name),
        key=key_spec(config),
        partition=partition_spec(config),
        rule=merge_rule(config),
        settings=WriteSettings.of_table(options.given, key_fields=config.key_fields),
        stats_columns=stats_columns,
        runtime=environment.runtime,
        blocks=BlockVisibility(may_share_files=config.may_have_old_log_names),
        carried_bytes=0 if engine.has_workers else _CARRIED_BYTES,
    )
    known = KnownSchema.of(table_schema, timeline)
    request = WriteRequest(environment, engine, context, operation, dict(extra), policy, known, commits)
    has_global_index = request.uses_record_index and not policy.indexes.keys_by_partition
    is_global = has_global_index or context.settings.index.is_global
    context = replace(context, looks_everywhere=request.tags_keys and is_global)
    if operation is Operation.DELETE and incoming is not None:
        refuse_missing_keys(config, incoming, looks_everywhere=context.looks_everywhere)
    return replace(request, context=context)


def _told_columns(environment: TableEnvironment, schema: pa.Schema) -> frozenset[str]:
    """The columns of which secondary indexes can be told.

    Where writers share file groups, none of them knows what a key had before: another one may be changing it.
    """
    if environment.concurrency.is_non_blocking:
        return frozenset()
    return frozenset(field.name for field in schema if has_indexed_text(field.type))


def refuse_lost_indexes(environment: TableEnvironment, options: Options, operation: Operation) -> None:
    """Raise `UnsupportedFeatureError` if the operation costs an index and the caller has not consented to that."""
    if options.flag(METADATA_ENABLE):
        indexes = load_metadata_indexes(environment.storage, environment.config, operation=operation)
        action = operation.value.lower()
        refuse_index_loss(environment.config, indexes, action=action, consents=environment.drops_indexes)
