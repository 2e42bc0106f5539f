"""Reading a table: which slices a query needs, and the frame of their rows.

Partitions are pruned by their path, row groups by their statistics. Slices without logs are scanned by the
engine's own Parquet reader where it has one and the files have the table's present schema; everything else
goes through the merge kernel. The two are united.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tablekeeper.config.table_config import TableConfig
from tablekeeper.engine.protocol import Engine, Frame
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.avro_arrow import avro_to_arrow_schema, with_meta_columns, without_meta_columns
from tablekeeper.model import SCHEMA_KEY, CommitMetadata, FileSlice, Instant, RequestedTime
from tablekeeper.read.log_changes import BlockVisibility
from tablekeeper.read.pruning import PartitionPruner
from tablekeeper.read.slice_rows import SliceTask, read_slice
from tablekeeper.record.keys import key_spec
from tablekeeper.record.merge import MergeRule, merge_rule
from tablekeeper.record.partition_paths import partition_spec, partition_values
from tablekeeper.record.predicate import Predicate
from tablekeeper.runtime import Runtime
from tablekeeper.snapshot.snapshot import Snapshot, load_snapshot
from tablekeeper.storage import Storage, hadoop_path
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.timeline import Timeline, load_commit_metadata

__all__ = [
    "Query",
    "ReadMode",
    "load_query_snapshot",
    "load_slice_tasks",
    "partition_pruner",
    "plan_slice_tasks",
    "read_rows",
    "read_tasks",
    "refuse_bad_query",
    "shown_schema",
]

ReadMode = str
"""`snapshot` merges logs into base files; `read_optimized` reads base files alone."""

_MODES = ("snapshot", "read_optimized")


@dataclass(frozen=True)
class Query:
    """What to read. `schema` is the table's at that moment, without meta columns.

    `known` are commits that were loaded on the way; what they wrote has to be there.
    """

    storage: Storage
    config: TableConfig
    timeline: Timeline
    schema: pa.Schema
    runtime: Runtime
    columns: tuple[str, ...] | None = None
    predicate: Predicate | None = None
    as_of: RequestedTime | None = None
    mode: ReadMode = "snapshot"
    with_meta_columns: bool = False
    commit_times: frozenset[str] | None = None
    known: tuple[tuple[Instant, CommitMetadata], ...] = ()

    @property
    def file_schema(self) -> pa.Schema:
        """Columns as they are in the table's files."""
        schema = with_meta_columns(self.schema) if self.config.has_meta_columns else self.schema
        return shown_schema(schema, self.config)

    @property
    def output(self) -> pa.Schema:
        """Columns of the result, in the order asked for."""
        available = self.file_schema
        if self.columns is None:
            return available if self.with_meta_columns else without_meta_columns(available)
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise InvalidRequestError(
                f"columns={list(self.columns)}: name at least one column, and none twice; leave it out for all of them"
            )
        missing = [name for name in self.columns if name not in available.names]
        if missing:
            raise InvalidRequestError(
                f"no column {', '.join(repr(name) for name in missing)} in table {self.config.name}. "
                f"It has {', '.join(self.schema.names)}."
            )
        return pa.schema([available.field(name) for name in self.columns])


def refuse_bad_query(query: Query) -> None:
    """Raise `InvalidRequestError` for unknown columns and modes, before anything is listed or read."""
    if query.mode not in _MODES:
        raise InvalidRequestError(f"mode {query.mode!r}: use 'snapshot' or 'read_optimized'")
    if not query.output.names:
        raise InvalidRequestError(f"table {query.config.name} has no columns to read")
    if query.predicate is not None:
        query.predicate.to_arrow(query.file_schema)


def load_query_snapshot(query: Query) -> Snapshot:
    """The slices of the partitions that can hold matching rows."""
    refuse_bad_query(query)
    return load_snapshot(
        query.storage,
        query.config,
        query.timeline,
        runtime=query.runtime,
        as_of=query.as_of,
        pruning=partition_pruner(query),
        known=query.known,
    )


def read_rows(query: Query, engine: Engine, slices: Sequence[FileSlice]) -> Frame:
    """The rows of these slices that match."""
    slices = _as_mode_says(query, slices)
    plain: list[FileSlice] = []
    if engine.scans_parquet:
        plain = _scannable(query, slices)
    scanned = set(map(id, plain))
    frames = []
    if plain:
        uris = [hadoop_path(query.storage.spec, s.base.path) for s in plain if s.base is not None]
        where = query.predicate.to_sql(query.file_schema) if query.predicate is not None else None
        frame = engine.scan_parquet(uris, schema=query.file_schema, output=query.output, where=where)
        if frame is None:
            scanned = set()
        else:
            frames.append(frame)
    rest = [s for s in slices if id(s) not in scanned]
    if rest or not frames:
        frames.append(read_tasks(query, engine, rest))
    return engine.union(frames)


def read_tasks(query: Query, engine: Engine, slices: Sequence[FileSlice]) -> Frame:
    """The rows of these slices by the merge kernel."""
    tasks = plan_slice_tasks(query, slices)
    return engine.rows(read_slice, tasks, schema=query.output, weights=[float(s.size) for s in slices])


def plan_slice_tasks(query: Query, slices: Sequence[FileSlice]) -> list[SliceTask]:
    """One task a slice."""
    config = query.config
    merges = any(s.logs for s in slices)
    rule = merge_rule(config) if merges else MergeRule(config.merge_mode, config.ordering_fields)
    visibility = BlockVisibility.of(query.timeline, config, as_of=query.as_of)
    # Made once and shared by all tasks, of which there may be a hundred thousand.
    store, schema, output, key = StorageHandle(query.storage), query.file_schema, query.output, key_spec(config)
    return [
        SliceTask(
            store=store,
            file_slice=s,
            schema=schema,
            output=output,
            rule=rule,
            key=key,
            visibility=visibility,
            predicate=query.predicate,
            commit_times=query.commit_times,
            constants=_constants(config, s),
            runtime=query.runtime,
        )
        for s in slices
    ]


def load_slice_tasks(query: Query) -> list[SliceTask]:
    """The whole query as tasks for `read_slice`, for those who run them in workers of their own."""
    return plan_slice_tasks(query, _as_mode_says(query, load_query_snapshot(query).latest))


def _as_mode_says(query: Query, slices: Sequence[FileSlice]) -> Sequence[FileSlice]:
    if query.mode == "read_optimized":
        return [replace(s, logs=()) for s in slices if s.base is not None]
    return slices


def shown_schema(schema: pa.Schema, config: TableConfig) -> pa.Schema:
    """The table's schema as reads give it: as in Java, the fields of a timestamp-based key generator are text.

    Rows are still stored and written in the type of the table's schema.
    """
    if not config.has_timestamp_partitions:
        return schema
    names = set(config.partition_columns)
    return pa.schema([f.with_type(pa.string()) if f.name in names else f for f in schema])


def partition_pruner(query: Query) -> PartitionPruner | None:
    """Which partitions can hold matching rows; None if all can."""
    if query.predicate is None or not query.config.is_partitioned:
        return None
    return PartitionPruner(query.predicate, partition_spec(query.config), query.file_schema)


def _constants(config: TableConfig, file_slice: FileSlice) -> dict[str, str | None] | None:
    """Partition columns that the writer left out of the files, from the path."""
    if not config.drops_partition_columns:
        return None
    values = partition_values(file_slice.group.partition, partition_spec(config))
    return dict(zip(config.partition_columns, values, strict=False))


def _scannable(query: Query, slices: Sequence[FileSlice]) -> list[FileSlice]:
    """Slices without logs whose base file has exactly the table's present schema."""
    if query.config.drops_partition_columns or query.commit_times:
        return []
    if not shown_schema(query.schema, query.config).equals(query.schema):
        return []
    plain = [s for s in slices if not s.logs and s.base is not None]
    writers = {s.base.instant for s in plain if s.base is not None}
    instants = [i for i in query.timeline.completed_writes if i.requested_at in writers]
    schemas = dict(zip(instants, query.runtime.threads.map(lambda i: _schema_of(query, i), instants), strict=True))
    same = {i.requested_at for i, schema in schemas.items() if schema is not None and schema.equals(query.schema)}
    return [s for s in plain if s.base is not None and s.base.instant in same]


def _schema_of(query: Query, instant: Instant) -> pa.Schema | None:
    text = load_commit_metadata(query.storage, query.config, instant).extra.get(SCHEMA_KEY)
    return without_meta_columns(avro_to_arrow_schema(text, file=str(instant))) if text else None
