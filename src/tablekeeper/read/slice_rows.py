"""The rows of one file slice: the base file, row group by row group, with the changes of its logs laid over.

This is the kernel of snapshot reads, of incremental reads and of compaction. Memory is bounded by one row
group and the slice's changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tablekeeper.errors import CorruptTableError, NotFoundError, UnsupportedFeatureError
from tablekeeper.model import BaseFile, FileSlice
from tablekeeper.read.log_changes import EVERY_BLOCK, BlockVisibility, Change, PartialRows, load_changes
from tablekeeper.read.statistics import row_group_ranges
from tablekeeper.read.vanished import vanished_file
from tablekeeper.record.evolution import conform
from tablekeeper.record.keys import KeySpec, record_keys
from tablekeeper.record.merge import KEY_COLUMN, Deletes, MergeRule, Winners, collapse
from tablekeeper.record.predicate import Predicate
from tablekeeper.storage.handle import StorageHandle

__all__ = ["SliceTask", "open_base_file", "read_row_group", "read_slice"]

_COMMIT_TIME = "_hoodie_commit_time"
_MARKS = ("_hoodie_is_deleted", "_hoodie_operation")


@dataclass(frozen=True, slots=True)
class SliceTask:
    """Read one slice: `output` columns of the rows that match.

    `schema` is the table's, with meta columns where it has them. `commit_times` keeps only rows changed by
    these instants (incremental reads). `constants` are columns that are in the path and not in the files.
    """

    store: StorageHandle
    file_slice: FileSlice
    schema: pa.Schema
    output: pa.Schema
    rule: MergeRule
    key: KeySpec
    visibility: BlockVisibility = EVERY_BLOCK
    predicate: Predicate | None = None
    commit_times: frozenset[str] | None = None
    constants: Mapping[str, str | None] | None = None


def read_slice(task: SliceTask) -> Iterator[pa.RecordBatch]:
    """All rows of the slice that match, in batches of `task.output`."""
    needed = _needed_schema(task)
    winners = None
    if task.file_slice.logs:
        changes = load_changes(
            task.store.storage,
            task.file_slice.logs,
            schema=needed,
            rule=task.rule,
            key=task.key,
            visibility=task.visibility,
        )
        if any(isinstance(change, PartialRows) for change in changes):
            yield from _finish(task, _fold_changes(task, changes, needed))
            return
        winners = collapse(changes, task.rule, schema=needed)
    if task.file_slice.base is not None:
        for rows in _base_rows(task, task.file_slice.base, needed, winners):
            yield from _finish(task, rows if winners is None else winners.apply(rows))
    if winners is not None:
        yield from _finish(task, winners.unseen())


def open_base_file(store: StorageHandle, base: BaseFile) -> pq.ParquetFile:
    """Open a base file; damage is reported with the file's name."""
    # Arrow keeps what it has buffered ahead until the file is closed: worth it where reads are requests over a network.
    is_local = store.storage.spec.uri.startswith(("file:", "memory:"))
    try:
        return pq.ParquetFile(store.storage.open_input(base.path), pre_buffer=not is_local)
    except NotFoundError as error:
        raise vanished_file(base.path) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptTableError(file=base.path, reason=f"not a readable Parquet file ({error})") from error


def read_row_group(opened: pq.ParquetFile, number: int, *, columns: list[str], file: str) -> pa.Table:
    """Columns of one row group of the base file `file`; damage is reported with the file's name."""
    try:
        return opened.read_row_group(number, columns=columns, use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptTableError(file=file, reason=f"row group {number} does not decode ({error})") from error


def _needed_schema(task: SliceTask) -> pa.Schema:
    """Output columns and those that merging and filtering look at, in the order of the table."""
    names = set(task.output.names)
    if task.predicate is not None:
        # A nested column is read as a part of the column that it lies in.
        names |= {path if path in task.schema.names else path.split(".")[0] for path in task.predicate.columns()}
    if task.commit_times is not None:
        names.add(_COMMIT_TIME)
    if task.file_slice.logs:
        names |= {KEY_COLUMN, *task.rule.ordering, *_MARKS}
        if KEY_COLUMN not in task.schema.names:
            names |= {name.split(".")[0] for name in task.key.fields}
    fields = [field for field in task.schema if field.name in names]
    if KEY_COLUMN in names and KEY_COLUMN not in task.schema.names:
        fields.append(pa.field(KEY_COLUMN, pa.string()))
    return pa.schema(fields)


def _fold_changes(task: SliceTask, changes: list[Change], needed: pa.Schema) -> pa.Table:
    """All rows of a slice with partial updates, which build on the version before them: change after change."""
    base = task.file_slice.base
    # No row group may be skipped: an update may make a row match that did not.
    unfiltered = replace(task, predicate=None)
    parts = [] if base is None else list(_base_rows(unfiltered, base, needed, None))
    rows = pa.concat_tables([needed.empty_table(), *parts])
    for change in changes:
        content = change.rows if isinstance(change, PartialRows) else change
        schema = needed if isinstance(content, Deletes) else content.schema
        winners = collapse([content], task.rule, schema=schema)
        if winners.has_deletes and task.rule.by_event_time and not _is_by_commit_time(content):
            raise UnsupportedFeatureError(
                f"file group {task.file_slice.group} has deletes with ordering values beside partial updates in its "
                "logs, which are not merged here. Compact the table with Java Hudi first."
            )
        rows = pa.concat_tables([winners.apply(rows), conform(winners.unseen(), needed)])
    return rows


def _is_by_commit_time(change: pa.Table | Deletes) -> bool:
    return isinstance(change, Deletes) and change.ordering is None


def _base_rows(task: SliceTask, base: BaseFile, needed: pa.Schema, winners: Winners | None) -> Iterator[pa.Table]:
    file = open_base_file(task.store, base)
    try:
        stored = set(file.schema_arrow.names)
        columns = [name for name in needed.names if name in stored]
        for group in range(file.num_row_groups):
            if _is_skipped(task, file, group, needed, winners):
                continue
            rows = read_row_group(file, group, columns=columns, file=base.path)
            yield conform(_with_extra_columns(task, rows, needed), needed)
    finally:
        file.close()


def _is_skipped(task: SliceTask, file: pq.ParquetFile, group: int, needed: pa.Schema, winners: Winners | None) -> bool:
    """Whether no row of the group matches, neither as it is nor as the logs change it."""
    if task.predicate is None or task.predicate.may_match(row_group_ranges(file.metadata, group, needed)):
        return False
    if winners is None:
        return True
    if KEY_COLUMN not in file.schema_arrow.names or task.file_slice.base is None:
        return False
    # A changed row may match, and a change has to meet the row that it changes: it may be stale.
    keys = read_row_group(file, group, columns=[KEY_COLUMN], file=task.file_slice.base.path)
    return not winners.touches(keys.column(KEY_COLUMN))


def _with_extra_columns(task: SliceTask, rows: pa.Table, needed: pa.Schema) -> pa.Table:
    for name, text in (task.constants or {}).items():
        if name in needed.names and name not in rows.column_names:
            value = pa.scalar(text, pa.string()).cast(needed.field(name).type)
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    if KEY_COLUMN in needed.names and KEY_COLUMN not in rows.column_names:
        rows = rows.append_column(KEY_COLUMN, record_keys(rows, task.key))
    return rows


def _finish(task: SliceTask, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    if task.commit_times is not None:
        rows = rows.filter(pc.is_in(rows.column(_COMMIT_TIME), value_set=pa.array(sorted(task.commit_times))))
    if task.predicate is not None:
        rows = rows.filter(task.predicate.to_arrow(rows.schema))
    if rows.num_rows:
        yield from conform(rows.select(task.output.names), task.output).combine_chunks().to_batches()
