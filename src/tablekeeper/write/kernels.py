"""The kernels that write: a task makes one file for each file group of its bin.

It reads the staged rows of the bin. Then, group by group, it reduces them to one version a key, and creates a base
file, merges into the next version of one (row group by row group), or puts a log file on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tablekeeper.read.slice_rows import open_base_file, read_row_group
from tablekeeper.record.columns import combined
from tablekeeper.record.evolution import conform
from tablekeeper.record.merge import KEY_COLUMN, Deletes, Winners, collapse
from tablekeeper.write.base_files import BaseFileWriter, holds_nan, is_known_free_of_nan
from tablekeeper.write.context import FILLED_COLUMNS, WriteContext
from tablekeeper.write.log_files import log_name, write_log_file
from tablekeeper.write.plan import Bin, GroupWork, WorkKind
from tablekeeper.write.results import WrittenFile
from tablekeeper.write.routing import load_rows_by_work
from tablekeeper.write.staging import (
    ARRIVAL_COLUMN,
    LEAVES_COLUMN,
    ordered_by_key,
    stamp_log_rows,
    stamp_rows,
    without_deleted,
)

__all__ = ["BinTask", "write_bin"]


@dataclass(frozen=True, slots=True)
class BinTask:
    """Do the work of a bin; its first file has this number among those of the write.

    `combines` drops duplicate keys from the rows; `deletes_keys` takes rows as keys to delete. A new base file also
    gets rows that are marked as deleted if it `keeps_deleted`, and has its rows in the order of their keys if
    it `orders_keys`.
    """

    context: WriteContext
    bin: Bin
    number: int
    combines: bool
    deletes_keys: bool = False
    keeps_deleted: bool = False
    orders_keys: bool = False


@dataclass(frozen=True, slots=True)
class _GroupTask:
    """Write one file group, from which these keys are `leaving`."""

    context: WriteContext
    work: GroupWork
    number: int
    how: BinTask
    leaving: pa.Array


def write_bin(task: BinTask) -> list[WrittenFile]:
    """Kernel: do the work of a bin. Work that has no rows leaves no file."""
    rows = load_rows_by_work(task.context.store, task.bin.rows, [number for number, _ in task.bin.work])
    files: list[WrittenFile | None] = []
    for place, (number, work) in enumerate(task.bin.work):
        mine = rows.pop(number, None)
        if mine is not None:
            mine, leaving = _leaving_apart(mine)
            files.append(_write_group(_GroupTask(task.context, work, task.number + place, task, leaving), mine))
    return [file for file in files if file is not None]


def _leaving_apart(rows: pa.Table) -> tuple[pa.Table, pa.Array]:
    """The rows that are written, and the keys of the others, which leave the file group."""
    if LEAVES_COLUMN not in rows.column_names:
        return rows, pa.array([], pa.string())
    leaves = combined(rows.column(LEAVES_COLUMN))
    rows = rows.drop_columns([ARRIVAL_COLUMN, LEAVES_COLUMN])
    if leaves.true_count == 0:
        return rows, pa.array([], pa.string())
    return rows.filter(pc.invert(leaves)), combined(rows.column(KEY_COLUMN).filter(leaves)).unique()


def _write_group(task: _GroupTask, rows: pa.Table) -> WrittenFile | None:
    match task.work.kind:
        case WorkKind.APPEND:
            return _append(task, rows)
        case WorkKind.MERGE | WorkKind.EXTEND:
            return _rewrite(task, rows)
        case WorkKind.CREATE:
            return _create(task, rows)


def _winners(task: _GroupTask, rows: pa.Table) -> Winners:
    """The newest version of each key, as rows of the file schema."""
    if task.how.deletes_keys:
        keys = rows.column(KEY_COLUMN).combine_chunks()
        return collapse([Deletes(keys)], task.context.rule, schema=task.context.file_schema)
    return collapse([rows], task.context.rule, schema=rows.schema)


def _create(task: _GroupTask, rows: pa.Table) -> WrittenFile | None:
    context, group = task.context, task.work.group
    fresh = _fresh_rows(task, rows)
    if fresh.num_rows == 0:
        return None
    with BaseFileWriter(context, group, task=task.number) as writer:
        writer.write(stamp_rows(context, fresh, task=task.number, first_row=0))
        return writer.close(inserts=fresh.num_rows, updates=0, deletes=0)


def _rewrite(task: _GroupTask, rows: pa.Table) -> WrittenFile:
    context, group = task.context, task.work.group
    file_slice = task.work.file_slice
    assert file_slice is not None
    assert file_slice.base is not None
    schema = context.rewritten_schema
    if task.work.kind is WorkKind.EXTEND:
        winners = collapse([], context.rule, schema=schema)
        added = stamp_rows(context, _fresh_rows(task, rows), task=task.number, first_row=0)
    else:
        winners, added = _stamped_winners(task, rows), None
    base = open_base_file(context.store, file_slice.base, verifies_pages=True)
    with (
        base,
        BaseFileWriter(
            context,
            group,
            task=task.number,
            replaces=file_slice.base.name,
            expected_rows=base.metadata.num_rows + rows.num_rows,
            is_free_of_nan=is_known_free_of_nan(base.metadata) and not holds_nan(rows),
        ) as writer,
    ):
        columns = [name for name in base.schema_arrow.names if name not in FILLED_COLUMNS]
        for number in range(base.num_row_groups):
            # Nothing may hold on to the old rows while the new ones are encoded: row groups are large.
            writer.write(winners.apply(_base_rows(base, number, file_slice.base.path, columns, schema)))
        fresh = winners.unmatched() if added is None else added
        writer.write(conform(fresh, schema))
        return writer.close(
            inserts=fresh.num_rows,
            updates=winners.updated,
            deletes=winners.removed,
            previous_commit=file_slice.base_instant.value,
        )


def _base_rows(base: pq.ParquetFile, number: int, path: str, columns: list[str], schema: pa.Schema) -> pa.Table:
    return conform(read_row_group(base, number, columns=columns, file=path), schema)


def _append(task: _GroupTask, rows: pa.Table) -> WrittenFile | None:
    context, group, file_slice = task.context, task.work.group, task.work.file_slice
    name = log_name(context, group, task=task.number)
    if task.how.deletes_keys:
        keys = rows.column(KEY_COLUMN).combine_chunks()
        keys = keys.unique() if task.how.combines else keys
        return write_log_file(context, group, file_slice=file_slice, name=name, rows=None, deletes=keys)
    latest = collapse([rows], context.rule, schema=rows.schema).rows_with_deletes() if task.how.combines else rows
    if latest.num_rows == 0 and len(task.leaving) == 0:
        return None
    stamped = stamp_log_rows(context, latest, group=group, task=task.number)
    return write_log_file(context, group, file_slice=file_slice, name=name, rows=stamped, deletes=task.leaving)


def _fresh_rows(task: _GroupTask, rows: pa.Table) -> pa.Table:
    """The rows to add if older versions do not matter: usually those not marked as deleted, one per key if wanted."""
    if task.how.combines:
        winners = _winners(task, rows)
        fresh = winners.rows_with_deletes() if task.how.keeps_deleted else winners.unmatched()
    else:
        fresh = rows if task.how.keeps_deleted else without_deleted(rows)
    return ordered_by_key(fresh) if task.how.orders_keys else fresh


def _stamped_winners(task: _GroupTask, rows: pa.Table) -> Winners:
    if task.how.deletes_keys:
        return _winners(task, rows)
    stamped = stamp_rows(task.context, rows, task=task.number, first_row=0)
    return collapse([stamped, Deletes(task.leaving)], task.context.rule, schema=stamped.schema)
