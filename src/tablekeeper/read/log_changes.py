"""The changes that the log files of a slice hold, in the order in which they take effect.

Blocks count in file order, with three exceptions: a rollback block cancels the blocks of its target that
come before it, blocks of instants that are not visible are left out (version 6, where one log file holds
blocks of several instants), and a log-compaction block stands in for the blocks that it was made of.

From version 8 on a write makes log files of its own, which are whole once it has committed: bytes that are no block
or bear another instant are damage there. Only files from before may hold what a crashed writer left half written,
which readers skip; they are told by their instants, and looked for only in tables that began before version 8.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, NotFoundError, UnsupportedFeatureError
from tablekeeper.format.avro_columnar import decode_avro_block
from tablekeeper.format.log_blocks import (
    BlockType,
    HeaderKey,
    LogBlock,
    compacted_instants,
    decode_blocks,
    effective_instants,
)
from tablekeeper.format.log_data import decode_parquet_block, each_row_group
from tablekeeper.format.log_deletes import decode_deletes
from tablekeeper.model import LogFile, RequestedTime
from tablekeeper.read.vanished import vanished_file
from tablekeeper.record.columns import show_times
from tablekeeper.record.evolution import conform
from tablekeeper.record.keys import KeySpec, record_keys
from tablekeeper.record.merge import KEY_COLUMN, Deletes, MergeRule
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.timeline import Timeline

__all__ = [
    "EVERY_BLOCK",
    "BlockVisibility",
    "Change",
    "LogChanges",
    "PartialRows",
    "decode_every_row",
    "hand_over_changes",
    "load_blocks",
    "load_changes",
    "load_log_keys",
]


@dataclass(frozen=True, slots=True)
class PartialRows:
    """Updates that have some of the columns only; the others keep the values of the older version of the row."""

    rows: pa.Table


Change: TypeAlias = "pa.Table | PartialRows | Deletes"


@dataclass(frozen=True, slots=True)
class LogChanges:
    """The changes in the order in which they take effect, and the instants whose blocks they come from."""

    changes: list[Change]
    instants: tuple[str, ...]

    @property
    def has_partial_rows(self) -> bool:
        return any(isinstance(change, PartialRows) for change in self.changes)


@dataclass(frozen=True, slots=True)
class BlockVisibility:
    """Which blocks count, by the instant in their header. All do unless `completed` is given.

    `knows_sizes` says that log files come with the sizes of a listing or a commit, not with the estimates of a plan,
    `may_share_files` that some logs of the table may be from before version 8, and hold blocks of several writes.
    """

    completed: frozenset[str] | None = None
    archived_before: str | None = None
    as_of: str | None = None
    knows_sizes: bool = False
    may_share_files: bool = False

    @classmethod
    def of(cls, timeline: Timeline, config: TableConfig, *, as_of: RequestedTime | None) -> BlockVisibility:
        """From version 8 on the names of log files say it all; before, each block has to be checked."""
        limit = as_of.value if as_of is not None else None
        if config.version >= 8:
            return cls(as_of=limit, knows_sizes=True, may_share_files=config.may_have_old_log_names)
        first = timeline.first_active_write
        completed = frozenset(i.requested_at.value for i in timeline.completed_writes)
        return cls(completed, first.value if first is not None else None, limit)

    def shows(self, instant: str) -> bool:
        if self.as_of is not None and RequestedTime(instant) > RequestedTime(self.as_of):
            return False
        if self.completed is None or instant in self.completed:
            return True
        return self.archived_before is not None and RequestedTime(instant) < RequestedTime(self.archived_before)


EVERY_BLOCK = BlockVisibility()
"""Nothing is hidden."""


@dataclass(frozen=True, slots=True)
class _PlacedBlock:
    """A block, where it is, and its number among all blocks of the slice."""

    file: str
    block: LogBlock
    number: int

    @property
    def instant(self) -> str:
        return _header(self.block, HeaderKey.INSTANT_TIME, file=self.file)


def load_changes(
    storage: Storage,
    logs: Sequence[LogFile],
    *,
    schema: pa.Schema,
    rule: MergeRule,
    key: KeySpec,
    visibility: BlockVisibility,
    runtime: Runtime,
) -> LogChanges:
    """Row changes as tables of `schema` (which has the record key column), or of a part of it, and deletes."""
    blocks = _effective_blocks(storage, logs, visibility, runtime)
    changes: list[Change] = []
    for placed in blocks:
        if placed.block.type is BlockType.DELETE:
            changes.append(_deletes(placed, schema, rule))
        else:
            changes.append(_as_change(placed, _rows(placed, schema, key)))
    return LogChanges(changes, tuple(dict.fromkeys(placed.instant for placed in blocks)))


def hand_over_changes(
    storage: Storage,
    logs: Sequence[LogFile],
    *,
    schema: pa.Schema,
    rule: MergeRule,
    key: KeySpec,
    visibility: BlockVisibility,
    take: Callable[[int, Change], None],
) -> tuple[list[int], tuple[str, ...]]:
    """The changes of `load_changes` for logs that do not fit into memory: one log, and of that a row group, at a time.

    `take` gets each with the number of its block. What is returned are the numbers of the blocks that count, in the
    order in which they take effect, which is known only once all logs were seen, and their instants.
    """

    def each_log() -> Iterator[tuple[LogFile, list[LogBlock]]]:
        number = 0
        for log in logs:
            outlines: list[LogBlock] = []
            for block in _load_log(storage, log, visibility):
                placed = _PlacedBlock(log.path, block, number)
                if block.type is not BlockType.COMMAND and visibility.shows(placed.instant):
                    for change in _parts(placed, schema, rule, key):
                        take(number, change)
                outlines.append(replace(block, content=b""))
                number += 1
            yield log, outlines

    blocks = _effective(each_log(), visibility)
    return [placed.number for placed in blocks], tuple(dict.fromkeys(placed.instant for placed in blocks))


def load_log_keys(
    storage: Storage,
    logs: Sequence[LogFile],
    *,
    key: KeySpec,
    key_types: pa.Schema,
    visibility: BlockVisibility,
    runtime: Runtime,
) -> list[pa.Array]:
    """Record keys of all rows in the logs, deleted or not."""
    found = []
    for placed in _effective_blocks(storage, logs, visibility, runtime):
        if placed.block.type is not BlockType.DELETE:
            rows = _rows(placed, key_types, key)
            found.append(pc.cast(rows.column(KEY_COLUMN).combine_chunks(), pa.string()))
    return found


def _effective_blocks(
    storage: Storage, logs: Sequence[LogFile], visibility: BlockVisibility, runtime: Runtime
) -> list[_PlacedBlock]:
    loaded = runtime.threads.map(lambda log: _load_log(storage, log, visibility), logs)
    return _effective(zip(logs, loaded, strict=True), visibility)


def _load_log(storage: Storage, log: LogFile, visibility: BlockVisibility) -> list[LogBlock]:
    least = log.size if visibility.knows_sizes else 0
    return load_blocks(storage, log, least_bytes=least, visibility=visibility)


def _effective(found: Iterable[tuple[LogFile, list[LogBlock]]], visibility: BlockVisibility) -> list[_PlacedBlock]:
    """Those blocks that count, in the order in which they take effect."""
    blocks: list[_PlacedBlock] = []
    numbers = itertools.count()
    for log, of_log in found:
        for block in of_log:
            placed = _PlacedBlock(log.path, block, next(numbers))
            if block.type is BlockType.COMMAND:
                # Whenever it was rolled back, the target never counted: the command takes effect at any moment.
                target = _header(block, HeaderKey.TARGET_INSTANT_TIME, file=log.path)
                blocks = [earlier for earlier in blocks if earlier.instant != target]
            elif visibility.shows(placed.instant):
                blocks.append(placed)
    return _with_compacted_blocks(blocks)


def load_blocks(
    storage: Storage, log: LogFile, *, least_bytes: int, visibility: BlockVisibility = EVERY_BLOCK
) -> list[LogBlock]:
    """The blocks of a committed log file; `CorruptTableError` if it is shorter than `least_bytes`, or not whole.

    Blocks that were not written to their end are left out of a file that several writes share, as version 6 has them:
    those that say so, and in an upgraded table those with blocks of another instant than the one in their name.
    """
    data = _read_log(storage, log.path)
    if len(data) < least_bytes:
        reason = f"it has {len(data)} bytes, and {least_bytes} were committed: it was cut off"
        raise CorruptTableError(file=log.path, reason=reason)
    blocks = list(decode_blocks(data, file=log.path))
    whole = [block for block in blocks if block.type is not BlockType.CORRUPT]
    if visibility.completed is None:
        _refuse_damaged(log, blocks, whole, may_be_shared=visibility.may_share_files)
    for block in whole:
        if block.type is BlockType.CDC_DATA:
            raise CorruptTableError(file=log.path, reason=f"the block at byte {block.offset} is of change data")
    return whole


def decode_every_row(block: LogBlock, *, file: str) -> int:
    """How many rows or deletes the block holds, after all of them were decoded; none for a command."""
    if block.type is BlockType.DELETE:
        return int(decode_deletes(block, file=file).num_rows)
    decode = _DECODERS.get(block.type)
    return int(decode(block, file=file).num_rows) if decode is not None else 0


def _refuse_damaged(
    log: LogFile, blocks: Sequence[LogBlock], whole: Sequence[LogBlock], *, may_be_shared: bool
) -> None:
    """Raise `CorruptTableError` unless every byte belongs to a block of the file's commit, or writes share the file."""
    if not blocks:
        raise CorruptTableError(file=log.path, reason="the log file is empty")
    others = [block for block in whole if block.header.get(HeaderKey.INSTANT_TIME) != log.instant.value]
    if others and may_be_shared:
        # Written before the table was upgraded, when several writes shared a file that was named after the first.
        return
    strange = [block for block in blocks if block.type is BlockType.CORRUPT] or others
    if strange:
        at = strange[0].offset
        raise CorruptTableError(file=log.path, reason=f"the bytes from {at} on are no block of its commit")
    for block in whole:
        if block.type in _DECODERS and HeaderKey.SCHEMA not in block.header:
            raise CorruptTableError(file=log.path, reason=f"the data block at byte {block.offset} names no schema")


def _read_log(storage: Storage, path: str) -> bytes:
    try:
        return storage.read(path)
    except NotFoundError as error:
        raise vanished_file(path) from error


def _with_compacted_blocks(blocks: list[_PlacedBlock]) -> list[_PlacedBlock]:
    """The blocks that count once those of log compactions have taken their places."""
    by_instant: dict[str, list[_PlacedBlock]] = {}
    for placed in blocks:
        by_instant.setdefault(placed.instant, []).append(placed)
    merged = {instant: compacted_instants(group[0].block) for instant, group in by_instant.items()}
    return [placed for instant in effective_instants(merged) for placed in by_instant[instant]]


def _rows(placed: _PlacedBlock, schema: pa.Schema, key: KeySpec) -> pa.Table:
    decode = _DECODERS.get(placed.block.type)
    if decode is None:
        raise UnsupportedFeatureError(f"{placed.file}: data blocks of type {placed.block.type.name} are not supported")
    return _conformed(decode(placed.block, file=placed.file, columns={*schema.names, *key.fields}), placed, schema, key)


def _conformed(table: pa.Table, placed: _PlacedBlock, schema: pa.Schema, key: KeySpec) -> pa.Table:
    if KEY_COLUMN not in table.column_names:
        table = table.append_column(KEY_COLUMN, record_keys(table, key))
    if _is_partial(placed):
        schema = pa.schema([field for field in schema if field.name in table.column_names])
    return conform(show_times(table, schema), schema)


def _parts(placed: _PlacedBlock, schema: pa.Schema, rule: MergeRule, key: KeySpec) -> Iterator[Change]:
    """The changes of one block, a row group at a time where it has any."""
    if placed.block.type is BlockType.DELETE:
        yield _deletes(placed, schema, rule)
    elif placed.block.type is BlockType.PARQUET_DATA:
        for rows in each_row_group(placed.block, file=placed.file, columns={*schema.names, *key.fields}):
            yield _as_change(placed, _conformed(rows, placed, schema, key))
    else:
        yield _as_change(placed, _rows(placed, schema, key))


def _as_change(placed: _PlacedBlock, rows: pa.Table) -> Change:
    return PartialRows(rows) if _is_partial(placed) else rows


def _is_partial(placed: _PlacedBlock) -> bool:
    return placed.block.header.get(HeaderKey.IS_PARTIAL, "").lower() == "true"


_DECODERS: dict[BlockType, Callable[..., pa.Table]] = {
    BlockType.PARQUET_DATA: decode_parquet_block,
    BlockType.AVRO_DATA: decode_avro_block,
}


def _deletes(placed: _PlacedBlock, schema: pa.Schema, rule: MergeRule) -> Deletes:
    decoded = decode_deletes(placed.block, file=placed.file)
    keys = decoded.column("key").combine_chunks()
    if not rule.by_event_time:
        return Deletes(keys)
    ordering = decoded.column("ordering")
    marks = decoded.column("by_commit_time").combine_chunks()
    if pa.types.is_null(ordering.type):
        return Deletes(keys)
    columns = _ordering_columns(ordering, rule)
    wanted = pa.schema([schema.field(name) for name in rule.ordering])
    # A delete by commit time carries a default value of another type than the ordering column's.
    safe = [pc.if_else(marks, pa.scalar(None, type=column.type), column) for column in columns]
    return Deletes(keys, pa.table([c.cast(f.type) for c, f in zip(safe, wanted, strict=True)], schema=wanted), marks)


def _ordering_columns(ordering: pa.ChunkedArray, rule: MergeRule) -> list[pa.Array]:
    combined = ordering.combine_chunks()
    if pa.types.is_list(combined.type):
        return [pc.list_element(combined, i) for i in range(len(rule.ordering))]
    if pa.types.is_struct(combined.type):
        return [pc.struct_field(combined, [i]) for i in range(combined.type.num_fields)]
    return [combined]


def _header(block: LogBlock, key: HeaderKey, *, file: str) -> str:
    value = block.header.get(key)
    if value is None:
        raise CorruptTableError(file=file, reason=f"a block at byte {block.offset} has no {key.name} header")
    return value
