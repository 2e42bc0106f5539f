"""A writer made by hand from the codecs: one file a commit, with the metadata table kept in step.

It shows what the parts of the metadata table do without the write path around them, and can stop where a crash
would: after the files, or after the commit to the metadata table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tablekeeper.config.table_config import TableConfig, parse_table_config
from tablekeeper.format.bloom import build_bloom_filter
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.format.data_files import (
    PARTITION_METADATA_NAME,
    encode_base_name,
    encode_footer,
    encode_log_name,
    encode_partition_metadata,
)
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_data import encode_parquet_block_content
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.format.plans.clean import (
    CleanedPartition,
    CleanFile,
    CleanMetadata,
    CleanPlan,
    RetainedInstant,
    encode_clean_metadata,
    encode_clean_plan,
)
from tablekeeper.format.properties import decode_properties
from tablekeeper.metadata_table.delta_commit import write_metadata_update
from tablekeeper.metadata_table.indexes import MetadataIndexes, load_metadata_indexes
from tablekeeper.metadata_table.listing import open_metadata_table
from tablekeeper.metadata_table.ranges import load_missing_ranges
from tablekeeper.metadata_table.records import change_of_clean, change_of_commit
from tablekeeper.model import (
    SCHEMA_KEY,
    Action,
    CommitMetadata,
    CompletionTime,
    FileGroupId,
    Instant,
    Operation,
    RequestedTime,
    WriteStat,
    join_path,
)
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.snapshot.slices import load_files_by_listing, load_partitions_by_listing
from tablekeeper.storage import Storage, hadoop_path, open_storage
from tablekeeper.timeline import (
    Timeline,
    complete_instant,
    create_requested,
    format_time,
    load_commit_metadata,
    load_timeline,
    start_inflight,
)
from tablekeeper.txn.markers import MarkerKind, create_marker

__all__ = ["HandWriter", "listing_by_directories", "listing_by_metadata_table"]

_META = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path")
_PROPERTIES = ".hoodie/hoodie.properties"
_POLICY = "KEEP_LATEST_COMMITS"


@dataclass
class HandWriter:
    """Writes into a table that Java made. `key` and `partition_by` are column names; paths are not hive style."""

    path: str
    key: str
    partition_by: str | None = None
    _last_ms: int = field(default=0)

    @property
    def storage(self) -> Storage:
        return open_storage(self.path)

    @property
    def config(self) -> TableConfig:
        properties = decode_properties(self.storage.read(_PROPERTIES), file=_PROPERTIES)
        return parse_table_config(properties, file=_PROPERTIES)

    @property
    def timeline(self) -> Timeline:
        return load_timeline(self.storage, self.config)

    @property
    def indexes(self) -> MetadataIndexes:
        return load_metadata_indexes(self.storage, self.config)

    def time(self) -> str:
        """An instant time that was not given out before."""
        now = max(SYSTEM_RUNTIME.clock.now_ms(), self._last_ms + 1)
        self._last_ms = now
        return format_time(now, zone="UTC")

    def insert(self, rows: pa.Table, *, stop_before: str | None = None) -> Instant:
        """One new base file for each partition among `rows`."""
        instant = self.time()
        return self._commit(instant, self._split(rows), self._write_base, stop_before=stop_before)

    def append(self, rows: pa.Table, group_of: Mapping[str, str]) -> Instant:
        """One log file with `rows` on the given file group of each partition."""
        return self._append(rows, group_of, deletes=False)

    def delete(self, rows: pa.Table, group_of: Mapping[str, str]) -> Instant:
        """One log file with nothing but deletes of the keys of `rows`."""
        return self._append(rows, group_of, deletes=True)

    def _append(self, rows: pa.Table, group_of: Mapping[str, str], *, deletes: bool) -> Instant:
        instant = self.time()

        def write(number: int, partition: str, part: pa.Table, at: str) -> WriteStat:
            return self._write_log(partition, group_of[partition], part, at, deletes=deletes)

        return self._commit(instant, self._split(rows), write)

    def _split(self, rows: pa.Table) -> dict[str, pa.Table]:
        if self.partition_by is None:
            return {"": rows}
        values = sorted(set(rows.column(self.partition_by).to_pylist()))
        column = pa.compute.field(self.partition_by)
        return {str(value): rows.filter(column == value) for value in values}

    def _commit(
        self, instant: str, parts: Mapping[str, pa.Table], write: Any, *, stop_before: str | None = None
    ) -> Instant:
        storage, config = self.storage, self.config
        action = Action.DELTA_COMMIT if config.is_mor else Action.COMMIT
        requested_at = RequestedTime(instant)
        requested = create_requested(storage, config, requested_at=requested_at, action=action)
        inflight = start_inflight(storage, config, requested)
        stats = [write(number, partition, part, instant) for number, (partition, part) in enumerate(parts.items())]
        metadata = CommitMetadata(Operation.UPSERT, tuple(stats), {SCHEMA_KEY: self._schema_json()})
        if stop_before == "metadata":
            return inflight
        self.sync(metadata, requested_at)
        if stop_before == "completion":
            return inflight
        completed_at = CompletionTime(self.time())
        return complete_instant(
            storage, config, inflight, completed_at=completed_at, content=encode_commit_metadata(metadata)
        )

    def clean(self, files: Mapping[str, Sequence[str]]) -> None:
        """Delete files of old slices, as a clean of its own on both timelines."""
        storage, config, last = self.storage, self.config, self.timeline.completed_writes[-1]
        requested_at = RequestedTime(self.time())
        newest = last.requested_at.value
        retained = RetainedInstant(newest, last.action.value, "COMPLETED")
        paths = {p: tuple(CleanFile(hadoop_path(storage.spec, join_path(p, n))) for n in files[p]) for p in files}
        plan = CleanPlan(_POLICY, paths, earliest_instant_to_retain=retained, last_completed_commit=newest)
        content = encode_clean_plan(plan)
        requested = create_requested(storage, config, requested_at=requested_at, action=Action.CLEAN, content=content)
        inflight = start_inflight(storage, config, requested)
        storage.delete_many(join_path(partition, name) for partition, names in files.items() for name in names)
        write_metadata_update(
            storage,
            config,
            change_of_clean(files),
            self.indexes,
            requested_at=requested_at,
            completed_at=CompletionTime(self.time()),
            runtime=SYSTEM_RUNTIME,
        )
        cleaned = {p: CleanedPartition(p, _POLICY, tuple(files[p]), tuple(files[p])) for p in files}
        done = CleanMetadata(requested_at.value, 1, sum(map(len, files.values())), newest, newest, cleaned)
        complete_instant(
            storage,
            config,
            inflight,
            completed_at=CompletionTime(self.time()),
            content=encode_clean_metadata(done),
        )

    def sync(self, metadata: CommitMetadata, requested_at: RequestedTime) -> None:
        """Commit to the metadata table what `metadata` says."""
        indexes = self.indexes
        ranges = load_missing_ranges(
            self.storage, metadata.stats, known={}, columns=indexes.columns, runtime=SYSTEM_RUNTIME
        )
        write_metadata_update(
            self.storage,
            self.config,
            change_of_commit(metadata, ranges=ranges),
            indexes,
            requested_at=requested_at,
            completed_at=CompletionTime(self.time()),
            runtime=SYSTEM_RUNTIME,
        )

    def _schema_json(self) -> str:
        last = self.timeline.completed_writes[-1]
        return load_commit_metadata(self.storage, self.config, last).extra[SCHEMA_KEY]

    def _with_meta(self, rows: pa.Table, *, partition: str, instant: str, file_name: str) -> pa.Table:
        count = rows.num_rows
        keys = [str(key) for key in rows.column(self.key).to_pylist()]
        values: Sequence[list[str]] = (
            [instant] * count,
            [f"{instant}_0_{number}" for number in range(count)],
            keys,
            [partition] * count,
        )
        columns = [pa.array(each, pa.string()) for each in (*values, [file_name] * count)]
        return pa.table([*columns, *rows.columns], names=[*_META, "_hoodie_file_name", *rows.column_names])

    def _avro_with_meta(self) -> str:
        schema = json.loads(self._schema_json())
        meta = [{"name": name, "type": ["null", "string"], "default": None} for name in (*_META, "_hoodie_file_name")]
        return json.dumps(schema | {"fields": meta + schema["fields"]})

    def _write_base(self, number: int, partition: str, rows: pa.Table, instant: str) -> WriteStat:
        storage = self.storage
        file_id = f"{SYSTEM_RUNTIME.ids.uuid()}-0"
        name = encode_base_name(file_id=file_id, write_token=f"{number}-0-0", instant=instant)
        create_marker(storage, instant=instant, partition=partition, file_name=name, kind=MarkerKind.CREATE)
        table = self._with_meta(rows, partition=partition, instant=instant, file_name=name)
        keys = table.column("_hoodie_record_key").combine_chunks()
        footer = encode_footer(
            avro_schema_json=self._avro_with_meta(),
            min_key=min(keys.to_pylist()),
            max_key=max(keys.to_pylist()),
            bloom=build_bloom_filter(keys, expected_entries=1000, false_positive_rate=1e-6),
            bloom_type="SIMPLE",
        )
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(footer)
        depth = len([part for part in partition.split("/") if part])
        storage.put_if_absent(
            join_path(partition, PARTITION_METADATA_NAME), encode_partition_metadata(commit_time=instant, depth=depth)
        )
        path = join_path(partition, name)
        storage.put(path, sink.getvalue().to_pybytes())
        size = sink.getvalue().size
        return WriteStat(FileGroupId(partition, file_id), path, size, writes=rows.num_rows, inserts=rows.num_rows)

    def _write_log(self, partition: str, file_id: str, rows: pa.Table, instant: str, *, deletes: bool) -> WriteStat:
        name = encode_log_name(file_id=file_id, instant=instant, version=1, write_token="0-0-0")
        create_marker(self.storage, instant=instant, partition=partition, file_name=name, kind=MarkerKind.CREATE)
        if deletes:
            keys = pa.array([str(key) for key in rows.column(self.key).to_pylist()])
            content = encode_deletes(keys, partition=partition, ordering=None)
            data = encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: instant}, content)
        else:
            schema = self._avro_with_meta()
            table = self._with_meta(rows, partition=partition, instant=instant, file_name=file_id)
            header = {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: schema}
            content = encode_parquet_block_content(table, avro_schema_json=schema)
            data = encode_block(BlockType.PARQUET_DATA, header, content)
        path = join_path(partition, name)
        self.storage.put(path, data)
        return WriteStat(
            FileGroupId(partition, file_id),
            path,
            len(data),
            writes=rows.num_rows,
            updates=0 if deletes else rows.num_rows,
            deletes=rows.num_rows if deletes else 0,
            previous_commit=instant,
            log_version=1,
        )


def listing_by_directories(writer: HandWriter) -> dict[str, list[tuple[str, int]]]:
    """Data files by partition as they lie in the store."""
    partitions = load_partitions_by_listing(writer.storage, runtime=SYSTEM_RUNTIME)
    files = load_files_by_listing(writer.storage, partitions, runtime=SYSTEM_RUNTIME)
    return {
        partition: sorted(file for file in found if not file[0].startswith(PARTITION_METADATA_NAME))
        for partition, found in files.items()
    }


def listing_by_metadata_table(writer: HandWriter) -> dict[str, list[tuple[str, int]]]:
    """The same as the metadata table has it."""
    table = open_metadata_table(writer.storage, writer.config, writer.timeline, runtime=SYSTEM_RUNTIME)
    assert table is not None, "the table has no metadata table"
    return table.files(table.partitions())
