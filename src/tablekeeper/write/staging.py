"""Staging: the rows of a write, conformed to the table, split by partition and parked until their file groups are
known.

Each source task writes one Arrow file under `.hoodie/.tablekeeper/staging/<id of the write>/` with one record batch
for each of its partitions (and buckets), and returns an index of these batches. This takes the place of a shuffle:
both engines run it in the same way, rows never pass through the JVM again, and a later task reads only the batches that
it needs. A task that runs twice writes two files; only the one whose index was returned counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.config.keys import MAX_PARTITIONS
from tablekeeper.config.write_settings import IndexKind
from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.hashing import HASH_SPACE, bucket_of_values, spread_hashes
from tablekeeper.model import FileGroupId, join_path
from tablekeeper.record.columns import columns_holding, combined
from tablekeeper.record.evolution import conform
from tablekeeper.record.keys import bucket_field_values, record_keys, refuse_ambiguous_keys, refuse_ambiguous_partitions
from tablekeeper.record.merge import DELETED_COLUMN, KEY_COLUMN
from tablekeeper.record.partition_paths import partition_paths
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.write.context import WriteContext
from tablekeeper.write.grouping import PartitionNumbers, group_rows

__all__ = [
    "ARRIVAL_COLUMN",
    "LEAVES_COLUMN",
    "NO_BUCKET",
    "StagedBatch",
    "each_staged",
    "identities",
    "keyed_rows",
    "load_staged",
    "ordered_by_key",
    "refuse_too_many_partitions",
    "stage_keyed_rows",
    "stage_keys",
    "stage_rows",
    "staging_file",
    "staging_format",
    "stamp_log_rows",
    "stamp_rows",
    "without_deleted",
]


ARRIVAL_COLUMN = "\0arrival"
"""Extra column of rows whose keys are looked up in all partitions: the position of the row in its source part."""
LEAVES_COLUMN = "\0leaves"
"""Extra column of the same rows: true if only the key is for the file group, to be deleted from it."""


def keyed_rows(context: WriteContext, batch: pa.RecordBatch) -> tuple[pa.Table, pa.DictionaryArray]:
    """The rows with the table's columns and their record key, and the partition path of each."""
    rows = pa.Table.from_batches([conform(batch, context.schema)])
    keys, paths = identities(context, rows)
    return rows.append_column(KEY_COLUMN, keys), paths


def identities(context: WriteContext, rows: pa.Table) -> tuple[pa.Array, pa.DictionaryArray]:
    """Record key and partition path of each row; refuses values that could make two different rows one."""
    keys, paths = record_keys(rows, context.key), partition_paths(rows, context.partition)
    refuse_ambiguous_keys(rows, context.key, keys=keys)
    refuse_ambiguous_partitions(rows, context.partition, paths=paths)
    return keys, paths


def ordered_by_key(rows: pa.Table) -> pa.Table:
    """The rows in the order of the text of their record keys."""
    return rows.take(pc.sort_indices(rows.column(KEY_COLUMN)))


def without_deleted(rows: pa.Table) -> pa.Table:
    """The rows that are not marked as deleted."""
    if DELETED_COLUMN not in rows.column_names:
        return rows
    return rows.filter(pc.invert(rows.column(DELETED_COLUMN).fill_null(False)))


def stamp_rows(context: WriteContext, rows: pa.Table, *, task: int, first_row: int) -> pa.Table:
    """`rows` (with their record key) with the meta columns of this instant, for a base file writer."""
    count = rows.num_rows
    numbers = pc.cast(pa.array(np.arange(first_row, first_row + count)), pa.string())
    sequence = pc.binary_join_element_wise(pa.scalar(f"{context.instant}_{task}"), numbers, "_")
    zeros = pa.array(np.zeros(count, dtype=np.int32))
    commit_time = pa.DictionaryArray.from_arrays(zeros, pa.array([context.instant]))
    stamps = {"_hoodie_commit_time": commit_time, "_hoodie_commit_seqno": sequence}
    names = [KEY_COLUMN, *context.schema.names]
    return pa.table(stamps | {name: rows.column(name) for name in names})


def stamp_log_rows(context: WriteContext, rows: pa.Table, *, group: FileGroupId, task: int) -> pa.Table:
    """`rows` (with their record key) as rows of `context.file_schema`, as a log file holds them."""
    stamped = stamp_rows(context, rows, task=task, first_row=0)
    places = {"_hoodie_partition_path": group.partition, "_hoodie_file_name": group.file_id}
    for name, value in places.items():
        stamped = stamped.append_column(name, pa.repeat(pa.scalar(value), rows.num_rows))
    return conform(stamped, context.file_schema)


NO_BUCKET = -1
_ROWS_A_LANE = 500_000


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The place of the rows of one partition (and bucket, and range of key hashes) in a staging file.

    `data` is the content of that file if it is carried along instead of being in the store.
    """

    partition: str
    bucket: int
    file: str
    number: int
    rows: int
    bytes: int
    hash_from: int = 0
    hash_to: int = HASH_SPACE
    data: pa.Buffer | None = field(default=None, repr=False)


def stage_rows(context: WriteContext, part: int, batches: Iterator[pa.RecordBatch]) -> list[StagedBatch]:
    """Source kernel: stage whole rows, with their record keys."""
    keyed = (keyed_rows(context, batch) for batch in batches if batch.num_rows)
    return stage_keyed_rows(context, part, _as_they_arrive(keyed) if context.looks_everywhere else keyed)


def _as_they_arrive(
    keyed: Iterator[tuple[pa.Table, pa.DictionaryArray]],
) -> Iterator[tuple[pa.Table, pa.DictionaryArray]]:
    # Rows of one key can name several partitions, and are about to be split by partition.
    arrived = 0
    for rows, paths in keyed:
        arrivals = np.arange(arrived, arrived + rows.num_rows)
        arrived += rows.num_rows
        marked = rows.append_column(ARRIVAL_COLUMN, pa.array(arrivals))
        yield marked.append_column(LEAVES_COLUMN, pa.repeat(False, rows.num_rows)), paths


def stage_keyed_rows(
    context: WriteContext, part: int, keyed: Iterator[tuple[pa.Table, pa.DictionaryArray]]
) -> list[StagedBatch]:
    """Stage rows that already have record keys, with the partition path of each."""
    return _Stager(context, part).stage(keyed)


def stage_keys(context: WriteContext, part: int, batches: Iterator[pa.RecordBatch]) -> list[StagedBatch]:
    """Source kernel: stage only record keys, for deletes. Rows need just the key and partition columns."""

    # In the table's own types first: the text of a key depends on its type (1 and 1.0).
    schema = _key_schema(context)
    kept = context.settings.bucket_fields if context.settings.index is IndexKind.BUCKET else ()

    def keyed(batch: pa.RecordBatch) -> tuple[pa.Table, pa.DictionaryArray]:
        rows = pa.Table.from_batches([conform(batch, schema)])
        keys, paths = identities(context, rows)
        return rows.select(columns_holding(kept, schema).names).append_column(KEY_COLUMN, keys), paths

    return _Stager(context, part).stage(keyed(batch) for batch in batches if batch.num_rows)


def load_staged(store: StorageHandle, staged: Sequence[StagedBatch], *, keys_only: bool = False) -> pa.Table:
    """The staged rows in the order of `staged`, one chunk a batch."""
    columns = [KEY_COLUMN] if keys_only else None
    found = dict(each_staged(store, list(enumerate(staged)), columns=columns))
    return pa.Table.from_batches([found[place] for place in range(len(staged))])


def each_staged(
    store: StorageHandle, staged: Sequence[tuple[int, StagedBatch]], *, columns: Collection[str] | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Staged batches with their numbers, one file after the other; only these columns, if given."""
    by_file: dict[str, list[tuple[int, StagedBatch]]] = defaultdict(list)
    for number, batch in staged:
        by_file[batch.file].append((number, batch))
    for file, batches in by_file.items():
        data = batches[0][1].data
        with store.storage.open_input(file) if data is None else pa.BufferReader(data) as stream:
            reader = pa.ipc.open_file(stream)
            if columns is not None:
                # The others are not read.
                places = [place for place, column in enumerate(reader.schema.names) if column in columns]
                wanted = pa.ipc.IpcReadOptions(included_fields=places)
                reader = pa.ipc.open_file(stream, options=wanted)
            for number, batch in batches:
                yield number, reader.get_batch(batch.number)


def staging_file(context: WriteContext, name: str) -> str:
    """A new path among the staged files of the write, different in each run of a task."""
    return join_path(context.staging, f"{name}-{context.runtime.ids.number(1 << 62)}.arrow")


def staging_format(context: WriteContext) -> pa.ipc.IpcWriteOptions:
    """Compressed if the bytes are sent to another machine."""
    is_local = context.store.storage.spec.uri.startswith(("file:", "memory:"))
    return pa.ipc.IpcWriteOptions(compression=None if is_local else "lz4")


class _Stager:
    """Gathers rows up to the task's memory budget, then writes them out group by group."""

    def __init__(self, context: WriteContext, part: int) -> None:
        self._context = context.within_memory()
        self._file = staging_file(context, str(part))
        self._partitions = PartitionNumbers()
        self._rows: list[pa.Table] = []
        self._groups: list[npt.NDArray[np.int64]] = []
        self._bytes = 0
        self._staged: list[StagedBatch] = []
        self._writer: pa.RecordBatchFileWriter | None = None

    def stage(self, keyed: Iterator[tuple[pa.Table, pa.DictionaryArray]]) -> list[StagedBatch]:
        first = next(keyed, None)
        if first is None:
            return []
        schema = first[0].schema
        self._add(*first)
        while self._bytes <= self._context.carried_bytes:
            following = next(keyed, None)
            if following is None:
                return self._carried(schema)
            self._add(*following)
        with (
            self._context.store.storage.open_output(self._file) as sink,
            pa.ipc.new_file(sink, schema, options=staging_format(self._context)) as writer,
        ):
            self._writer = writer
            self._flush_if_large()
            for rows, paths in keyed:
                self._add(rows, paths)
                self._flush_if_large()
            self._flush()
        return self._staged

    def _carried(self, schema: pa.Schema) -> list[StagedBatch]:
        """All rows, in a file that is never written to the store."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            self._writer = writer
            self._flush()
        data = sink.getvalue()
        return [replace(batch, data=data) for batch in self._staged]

    def _add(self, rows: pa.Table, paths: pa.DictionaryArray) -> None:
        numbers = self._partitions.of(paths)
        refuse_too_many_partitions(len(self._partitions), self._context)
        if self._context.settings.index is IndexKind.BUCKET:
            values = bucket_field_values(rows, self._context.settings.bucket_fields, key=self._context.key)
            buckets = bucket_of_values(values, buckets=self._context.settings.buckets)
            numbers = numbers * self._context.settings.buckets + buckets
        self._rows.append(rows)
        self._groups.append(numbers)
        self._bytes += rows.nbytes

    def _flush_if_large(self) -> None:
        if self._bytes >= self._context.settings.task_memory_bytes:
            self._flush()

    def _flush(self) -> None:
        if not self._rows or self._writer is None:
            return
        rows = pa.concat_tables(self._rows)
        groups = np.concatenate(self._groups)
        lanes = self._lanes(groups)
        if lanes > 1:
            lane = spread_hashes(combined(rows.column(KEY_COLUMN))) * lanes // HASH_SPACE
            groups = groups * lanes + lane
        for number, part in group_rows(rows, groups):
            self._write(number // lanes, number % lanes, lanes, part.combine_chunks())
        self._rows, self._groups, self._bytes = [], [], 0

    def _lanes(self, groups: npt.NDArray[np.int64]) -> int:
        """The number of key hash ranges per group: no task has to read much more than its share."""
        if self._context.settings.index is IndexKind.BUCKET:
            return 1
        # With a global index a task takes a range of hashes from all partitions.
        shared = 1 if self._context.looks_everywhere else len(self._partitions)
        rows_a_group = len(groups) / max(1, shared)
        return max(1, int(rows_a_group // _ROWS_A_LANE))

    def _write(self, group: int, lane: int, lanes: int, rows: pa.Table) -> None:
        bucketed = self._context.settings.index is IndexKind.BUCKET
        buckets = self._context.settings.buckets if bucketed else 1
        assert self._writer is not None
        for batch in rows.to_batches():
            self._writer.write_batch(batch)
            self._staged.append(
                StagedBatch(
                    partition=self._partitions.names[group // buckets],
                    bucket=group % buckets if bucketed else NO_BUCKET,
                    file=self._file,
                    number=len(self._staged),
                    rows=batch.num_rows,
                    bytes=batch.nbytes,
                    hash_from=-(-lane * HASH_SPACE // lanes),
                    hash_to=-(-(lane + 1) * HASH_SPACE // lanes),
                )
            )


def _key_schema(context: WriteContext) -> pa.Schema:
    """The columns from which keys and partition paths are made."""
    return columns_holding([*context.key.fields, *(field.name for field in context.partition.fields)], context.schema)


def refuse_too_many_partitions(count: int, context: WriteContext) -> None:
    """A wrong partition column makes a partition for nearly every row: stop before the store is full of them."""
    limit = context.settings.max_partitions
    if count > limit:
        raise InvalidRequestError(
            f"the rows fall into at least {count:,} partitions, more than the {limit:,} that one write may touch. "
            f"Check the partition columns; if that is what you want, raise the option {MAX_PARTITIONS}."
        )
