"""The rows of one file slice: the base file, row group by row group, with the changes of its logs laid over.

This is the kernel of snapshot reads, of incremental reads and of compaction. Memory is bounded by one row
group and the slice's changes; where these are too many, by what `spilled_changes` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.data_files import decode_base_name
from tablekeeper.model import BaseFile, FileSlice
from tablekeeper.read.log_changes import EVERY_BLOCK, BlockVisibility, PartialRows, load_changes
from tablekeeper.read.spilled_changes import SpilledWinners, park_changes
from tablekeeper.read.statistics import row_group_ranges
from tablekeeper.read.vanished import vanished_file
from tablekeeper.record.columns import show_times
from tablekeeper.record.evolution import conform
from tablekeeper.record.keys import KeySpec, record_keys
from tablekeeper.record.merge import KEY_COLUMN, MergeRule, Winners, collapse
from tablekeeper.record.partial_merge import PartialWinners
from tablekeeper.record.predicate import Predicate
from tablekeeper.runtime import Runtime
from tablekeeper.storage.handle import StorageHandle

__all__ = ["SliceMerge", "SliceTask", "open_base_file", "read_row_group", "read_slice"]

_COMMIT_TIME = "_hoodie_commit_time"
_MARKS = ("_hoodie_is_deleted", "_hoodie_operation")

_FILE_NAME = "_hoodie_file_name"
_PARTITION_PATH = "_hoodie_partition_path"
_Merged: TypeAlias = "Winners | PartialWinners | SpilledWinners"

_LOG_BYTES = 128 << 20
_DAMAGE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, OSError, UnicodeDecodeError)
"""What Arrow raises for bytes that are no Parquet."""


@dataclass(frozen=True, slots=True)
class SliceTask:
    """Read one slice: `output` columns of the rows that match.

    `schema` is the table's, with meta columns where it has them. `commit_times` keeps only rows changed by
    these instants (incremental reads). `constants` are columns that are in the path and not in the files.
    `verifies_pages` compares the pages of the base file with their checksums, for those who write the rows again;
    that takes more than a twentieth of a scan, so that plain reads do without. Logs of more than `log_bytes` together,
    if not said otherwise 128 MB, are merged with the help of the local disk.
    """

    store: StorageHandle
    file_slice: FileSlice
    schema: pa.Schema
    output: pa.Schema
    rule: MergeRule
    key: KeySpec
    runtime: Runtime
    visibility: BlockVisibility = EVERY_BLOCK
    predicate: Predicate | None = None
    commit_times: frozenset[str] | None = None
    constants: Mapping[str, str | None] | None = None
    verifies_pages: bool = False
    log_bytes: int | None = None


def read_slice(task: SliceTask) -> Iterator[pa.RecordBatch]:
    """All rows of the slice that match, in batches of `task.output`."""
    for rows in SliceMerge(task).rows():
        yield from _finish(task, rows)


class SliceMerge:
    """The rows of one slice, once, before they are filtered; and what the logs did to them, once all were taken.

    `added` rows are new to the base file, `updated` ones replace a row of it, `removed` ones were in it.
    """

    def __init__(self, task: SliceTask) -> None:
        self.added = 0
        self.updated = 0
        self.removed = 0
        self._task = task
        self._log_bytes = _LOG_BYTES if task.log_bytes is None else task.log_bytes
        self._needed = _needed_schema(task)
        self._winners: _Merged | None = None
        self._file: pq.ParquetFile | None = None
        if task.file_slice.logs:
            self._file, self._winners = task.runtime.threads.together(self._opened, self._merged_changes)
        else:
            self._file = self._opened()

    @property
    def most_rows(self) -> int:
        """The slice has no more rows than this."""
        base = self._file.metadata.num_rows if self._file is not None else 0
        return int(base + (len(self._winners) if self._winners is not None else 0))

    @property
    def base_metadata(self) -> pq.FileMetaData | None:
        """The footer of the base file, if there is one."""
        return self._file.metadata if self._file is not None else None

    def changed_rows(self) -> Iterator[pa.Table]:
        """The rows that the logs bring; some may lose to a row of the base file."""
        if isinstance(self._winners, SpilledWinners):
            yield from self._winners.each_changed_rows()
        elif self._winners is not None:
            yield self._winners.rows

    def rows(self) -> Iterator[pa.Table]:
        """Row group by row group, the added rows last. The columns are at least those of the output."""
        try:
            for rows in self._base_pieces():
                yield rows if self._winners is None else self._winners.apply(rows)
            if self._winners is not None:
                for fresh in _unmatched(self._winners):
                    self.added += fresh.num_rows
                    yield fresh
                self.updated += self._winners.updated
                self.removed += self._winners.removed
        finally:
            if self._file is not None:
                self._file.close()
            if isinstance(self._winners, SpilledWinners):
                self._winners.close()

    def _opened(self) -> pq.ParquetFile | None:
        base = self._task.file_slice.base
        if base is None:
            return None
        return open_base_file(self._task.store, base, verifies_pages=self._task.verifies_pages)

    def _merged_changes(self) -> _Merged:
        task = self._task
        if sum(log.size for log in task.file_slice.logs) > self._log_bytes:
            return self._spilled_changes()
        loaded = load_changes(
            task.store.storage,
            task.file_slice.logs,
            schema=self._needed,
            rule=task.rule,
            key=task.key,
            visibility=task.visibility,
            runtime=task.runtime,
        )
        changes = [change.rows if isinstance(change, PartialRows) else change for change in loaded.changes]
        merge = PartialWinners if loaded.has_partial_rows else collapse
        return merge(changes, task.rule, schema=self._needed)

    def _spilled_changes(self) -> SpilledWinners:
        task = self._task
        parked, _ = park_changes(
            task.store.storage,
            task.file_slice.logs,
            limit_bytes=self._log_bytes,
            schema=self._needed,
            rule=task.rule,
            key=task.key,
            visibility=task.visibility,
        )
        return SpilledWinners(parked, task.rule, self._needed)

    def _base_pieces(self) -> Iterator[pa.Table]:
        """Row groups; where each piece goes through all spilled changes, as many together as memory holds."""
        groups = self._base_rows(self._task)
        if not isinstance(self._winners, SpilledWinners):
            yield from groups
            return
        waiting: list[pa.Table] = []
        for rows in groups:
            waiting.append(rows)
            if sum(each.nbytes for each in waiting) >= self._log_bytes:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)

    def _base_rows(self, task: SliceTask) -> Iterator[pa.Table]:
        file, base, needed = self._file, task.file_slice.base, self._needed
        if file is None or base is None:
            return
        stored = set(file.schema_arrow.names)
        columns = [name for name in needed.names if name in stored]
        for group in range(file.num_row_groups):
            if _is_skipped(task, file, group, needed, self._winners):
                continue
            rows = read_row_group(file, group, columns=columns, file=base.path)
            yield conform(show_times(_with_extra_columns(task, rows, needed), needed), needed)


def _unmatched(winners: _Merged) -> Iterator[pa.Table]:
    """Rows that are new to the base file."""
    if isinstance(winners, SpilledWinners):
        yield from winners.each_unmatched()
    else:
        yield winners.unmatched()


def open_base_file(
    store: StorageHandle, base: BaseFile, *, dictionaries: Collection[str] = (), verifies_pages: bool = False
) -> pq.ParquetFile:
    """Open a base file; damage is reported with the file's name.

    Text columns named in `dictionaries` are read as dictionaries, without spelling out values that repeat. With
    `verifies_pages` those pages that carry a checksum are compared with it.
    """
    # Arrow keeps what it has buffered ahead until the file is closed: worth it where reads are requests over a network.
    is_local = store.storage.spec.uri.startswith(("file:", "memory:"))
    try:
        stream = store.storage.open_input(base.path)
        opened = pq.ParquetFile(
            stream,
            pre_buffer=not is_local,
            read_dictionary=sorted(dictionaries),
            page_checksum_verification=verifies_pages,
        )
        # Damaged names of columns are found out here, and not where somebody asks for them.
        names = opened.schema_arrow.names
        _refuse_rows_of_another(opened, names, base)
        return opened
    except NotFoundError as error:
        raise vanished_file(base.path) from error
    except _DAMAGE as error:
        raise CorruptTableError(file=base.path, reason=f"not a readable Parquet file ({error})") from error


def _refuse_rows_of_another(opened: pq.ParquetFile, names: list[str], base: BaseFile) -> None:
    """Every row says to which file of which partition it was written; so does the footer, which is at hand.

    The rows of a directory that was copied inside the table would be read twice; one that was renamed evades pruning.
    """
    if not opened.num_row_groups:
        return
    directory, _, name = base.path.rpartition("/")
    wrote = _only_text(opened, names, _FILE_NAME)
    if wrote is not None and wrote != name and decode_base_name(wrote) is not None:
        raise CorruptTableError(file=base.path, reason=f"its rows were written to another file, {wrote}")
    partition = _only_text(opened, names, _PARTITION_PATH)
    if partition is not None and partition != directory:
        reason = f"its rows were written to the partition {partition!r}: the directory was renamed or copied"
        raise CorruptTableError(file=base.path, reason=reason)


def _only_text(opened: pq.ParquetFile, names: list[str], name: str) -> str | None:
    """The one value of a column in the first row group, if its statistics tell."""
    if name not in names:
        return None
    column = opened.metadata.row_group(0).column(opened.metadata.schema.names.index(name))
    statistics = column.statistics if column.is_stats_set else None
    if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
        return None
    return str(statistics.min)


def read_row_group(opened: pq.ParquetFile, number: int, *, columns: list[str], file: str) -> pa.Table:
    """Columns of one row group of the base file `file`; damage is reported with the file's name."""
    try:
        return opened.read_row_group(number, columns=columns, use_threads=False)
    except _DAMAGE as error:
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


def _is_skipped(task: SliceTask, file: pq.ParquetFile, group: int, needed: pa.Schema, winners: _Merged | None) -> bool:
    """Whether no row of the group matches, neither as it is nor as the logs change it."""
    if task.predicate is None or task.predicate.may_match(row_group_ranges(file.metadata, group, needed)):
        return False
    if winners is None:
        return True
    if isinstance(winners, SpilledWinners):
        return False
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
