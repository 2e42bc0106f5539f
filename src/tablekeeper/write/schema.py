"""The schema of a write: whether the rows fit the table's, and how it may change while the write runs.

Keys and partition paths are made of the text of values. So the type of such a column may change only if the text of
every value stays the same; otherwise existing rows would not be found again, and rows with the same key would be added.

Another writer may add columns or widen types at the same time. A write is planned with the schema that it finds. If the
schema changes before the write begins, base files with new columns would be rewritten without them, so the write must
start again. If it changes later, other file groups are affected (the same ones would be a conflict anyway), and the
write only has to record the merged schema: the last recorded schema is the table's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import ConflictError, InvalidRequestError
from tablekeeper.model import SCHEMA_KEY, CommitMetadata, CompletionTime, Operation
from tablekeeper.record.evolution import TypeChange, plan_evolution
from tablekeeper.record.merge import DELETED_COLUMN
from tablekeeper.snapshot.schema import load_table_schema
from tablekeeper.timeline import Timeline
from tablekeeper.txn.commit import OpenWrite
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext, avro_schema_json

__all__ = ["KnownSchema", "refuse_changed_schema", "refuse_missing_keys", "schema_after", "with_present_schema"]


def schema_after(
    config: TableConfig,
    table: pa.Schema,
    *,
    operation: Operation,
    incoming: pa.Schema,
    widens_to_string: bool = False,
) -> pa.Schema:
    """The table's schema once rows of schema `incoming` are written; refuses rows that do not fit.

    Number columns become strings only with `widens_to_string`; key, partition and ordering columns never do.
    """
    if operation is Operation.DELETE:
        return table
    identity = [*config.key_fields, *config.partition_columns]
    _refuse_missing(config, [*identity, *config.ordering_fields], incoming)
    _refuse_odd_marks(incoming)
    lived_by = {_top(name, table) for name in (*identity, *config.ordering_fields)}
    evolution = plan_evolution(table, incoming, widens_to_string=widens_to_string, never_strings=lived_by)
    for change in evolution.widened:
        if _top(change.column, table) in {_top(name, table) for name in identity} and not _keeps_text(change):
            raise InvalidRequestError(
                f"column {change.column}: table has {change.before}, data has {change.after}. The column is part of "
                "the keys or partitions, and the rows that are there would not be found under the new type: "
                "cast the data to the table's type."
            )
    return evolution.schema


def refuse_missing_keys(config: TableConfig, incoming: pa.Schema, *, looks_everywhere: bool) -> None:
    """For rows to delete, which need no partition columns if their keys are looked up in all partitions."""
    partition = () if looks_everywhere else config.partition_columns
    _refuse_missing(config, [*config.key_fields, *partition], incoming)


def _refuse_missing(config: TableConfig, needed: Sequence[str], incoming: pa.Schema) -> None:
    missing = [name for name in dict.fromkeys(needed) if _top(name, incoming) not in incoming.names]
    if missing:
        raise InvalidRequestError(
            f"the rows have no column {', '.join(missing)}, which table {config.name} needs for its keys, partitions "
            f"or ordering. They have {', '.join(incoming.names)}."
        )


def _refuse_odd_marks(incoming: pa.Schema) -> None:
    marks = incoming.field(DELETED_COLUMN).type if incoming.names.count(DELETED_COLUMN) == 1 else pa.bool_()
    if not pa.types.is_boolean(marks) and not pa.types.is_null(marks):
        raise InvalidRequestError(
            f"column {DELETED_COLUMN} marks rows as deleted and takes booleans, not {marks}: cast it, or rename it "
            "if it means something else."
        )


def _top(path: str, schema: pa.Schema) -> str:
    return path if path in schema.names else path.split(".", maxsplit=1)[0]


def _keeps_text(change: TypeChange) -> bool:
    before, after = change.before, change.after
    if pa.types.is_integer(before) and pa.types.is_integer(after):
        return True
    return bool(pa.types.is_decimal(before) and pa.types.is_decimal(after) and before.scale == after.scale)


@dataclass(frozen=True)
class KnownSchema:
    """The table's schema when a write was planned, and when the newest commit at that moment had completed."""

    schema: pa.Schema
    completed_at: CompletionTime | None

    @classmethod
    def of(cls, schema: pa.Schema, timeline: Timeline) -> KnownSchema:
        return cls(schema, _newest_completion(timeline))


def refuse_changed_schema(environment: TableEnvironment, known: KnownSchema, write: OpenWrite) -> None:
    """Raise `ConflictError` if the table had another schema when the write began than the write was planned on."""
    if _load_news(environment, known, write.at_start) is not None:
        instant = write.inflight.requested_at.value
        raise _conflict(environment, write.at_start, instant, "before this write began")


def with_present_schema(
    environment: TableEnvironment,
    known: KnownSchema,
    context: WriteContext,
    metadata: CommitMetadata,
    timeline: Timeline,
) -> CommitMetadata:
    """The metadata to publish on `timeline`, with what others have added to the schema in the meantime."""
    present = _load_news(environment, known, timeline)
    if present is None:
        return metadata
    try:
        # If the schema of this write has strings where the current one has numbers, its caller asked for them.
        both = plan_evolution(present, context.schema, widens_to_string=True).schema
    except InvalidRequestError as error:
        how = "in a way that does not go together with the rows of this write"
        raise _conflict(environment, timeline, context.instant, how) from error
    text = avro_schema_json(both, table=environment.config.name)
    return replace(metadata, extra={**metadata.extra, SCHEMA_KEY: text})


def _load_news(environment: TableEnvironment, known: KnownSchema, timeline: Timeline) -> pa.Schema | None:
    """The current schema if it is another one."""
    if _newest_completion(timeline) == known.completed_at:
        return None
    present = load_table_schema(environment.storage, environment.config, timeline)
    return None if present.equals(known.schema) else present


def _newest_completion(timeline: Timeline) -> CompletionTime | None:
    return max((i.completed_at for i in timeline.completed_writes if i.completed_at is not None), default=None)


def _conflict(environment: TableEnvironment, timeline: Timeline, instant: str, how: str) -> ConflictError:
    newest = timeline.completed_writes_by_completion[-1].requested_at
    return ConflictError(
        f"another writer changed the schema of table {environment.config.name} {how}. Nothing was committed: write "
        "again, or pass retries=…",
        instant=instant,
        beaten_by=newest.value,
        file_groups=(),
    )
