"""The table's schema while a write is at work: another writer may give the table new columns or wider types.

A write is planned on the schema that it finds. If that has changed before the write begins, base files that hold
the new columns would be rewritten without them, so that the write must start over. If it changes later, other
file groups are concerned (the same ones would be a conflict anyway), and the write only has to record the schema
of both: the one recorded last is the table's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from tablekeeper.errors import ConflictError, InvalidRequestError
from tablekeeper.model import SCHEMA_KEY, CommitMetadata, CompletionTime
from tablekeeper.record.evolution import plan_evolution
from tablekeeper.snapshot.schema import load_table_schema
from tablekeeper.timeline import Timeline
from tablekeeper.txn.commit import OpenWrite
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.write.context import WriteContext, avro_schema_json

__all__ = ["KnownSchema", "refuse_changed_schema", "with_present_schema"]


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
    """The metadata to publish on `timeline`: with whatever others added to the schema meanwhile."""
    present = _load_news(environment, known, timeline)
    if present is None:
        return metadata
    try:
        # If the schema of this write has strings where the present one has numbers, its caller asked for them.
        both = plan_evolution(present, context.schema, widens_to_string=True).schema
    except InvalidRequestError as error:
        how = "in a way that does not go together with the rows of this write"
        raise _conflict(environment, timeline, context.instant, how) from error
    text = avro_schema_json(both, table=environment.config.name)
    return replace(metadata, extra={**metadata.extra, SCHEMA_KEY: text})


def _load_news(environment: TableEnvironment, known: KnownSchema, timeline: Timeline) -> pa.Schema | None:
    """The present schema if it is another one."""
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
