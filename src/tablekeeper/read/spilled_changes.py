"""Changes of a slice whose logs do not fit into memory: merged by ranges of key hashes, out of a file on local disk.

What happens to a key depends on its own changes alone. So the changes are parked by the hash of their key, in so many
lanes that one of them fits into memory, and each lane is merged as if it were all there is. A piece of base rows goes
through one lane after the other, and its rows keep their order. In memory are one log file as it is stored, one row
group or block of it, one lane, a piece of the base file, and a bit for each changed key.

The parked rows lie in a file without a name in the directory for temporary files, so that nothing is left when the
process dies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.format.hashing import HASH_SPACE, spread_hashes
from tablekeeper.model import LogFile
from tablekeeper.read.log_changes import BlockVisibility, Change, PartialRows, hand_over_changes
from tablekeeper.record.columns import combined
from tablekeeper.record.keys import KeySpec
from tablekeeper.record.merge import KEY_COLUMN, Deletes, MergeRule, Winners, collapse
from tablekeeper.record.partial_merge import PartialWinners
from tablekeeper.storage import Storage

__all__ = ["ParkedChanges", "SpilledWinners", "park_changes"]

# In memory, rows take a multiple of what they take packed, and the tables for merging them as much again.
_LANES_A_LIMIT = 4
_MOST_LANES = 1024

_MARK = "\0by_commit_time"
_Merged: TypeAlias = "Winners | PartialWinners"


@dataclass(frozen=True, slots=True)
class _Parked:
    """Changes of one block to keys of one lane, from byte `start` of the file on."""

    block: int
    kind: type[pa.Table | PartialRows | Deletes]
    start: int


class ParkedChanges:
    """Takes changes block by block and keeps them on disk, by lanes of key hashes. Close it when they are done with."""

    def __init__(self, lanes: int) -> None:
        self.has_partial_rows = False
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the merge does
        self._lanes: list[list[_Parked]] = [[] for _ in range(lanes)]

    def __len__(self) -> int:
        """How many lanes there are."""
        return len(self._lanes)

    def close(self) -> None:
        self._file.close()

    def park(self, block: int, change: Change) -> None:
        """Keep a change of the block with this number. Those of one block come in their order."""
        kind = PartialRows if isinstance(change, PartialRows) else Deletes if isinstance(change, Deletes) else pa.Table
        self.has_partial_rows |= kind is PartialRows
        rows = _as_table(change)
        lanes = spread_hashes(combined(rows.column(KEY_COLUMN))) * len(self) // HASH_SPACE
        for lane in np.unique(lanes).tolist():
            start = self._file.seek(0, 2)
            part = rows.filter(pa.array(lanes == lane))
            with pa.ipc.new_stream(self._file, part.schema) as stream:
                stream.write_table(part)
            self._lanes[lane].append(_Parked(block, kind, start))

    def drop_all_but(self, order: Sequence[int]) -> None:
        """Keep only the blocks of these numbers, in this order."""
        place = {number: position for position, number in enumerate(order)}
        for number, lane in enumerate(self._lanes):
            kept = [parked for parked in lane if parked.block in place]
            self._lanes[number] = sorted(kept, key=lambda parked: place[parked.block])

    def load(self, lane: int) -> list[Change]:
        """The changes of a lane in the order in which they take effect."""
        return [_as_change(parked.kind, self._read(parked)) for parked in self._lanes[lane]]

    def count_keys(self, lane: int) -> int:
        """How many keys the lane changes."""
        keys = [
            combined(self._read(parked, columns=[KEY_COLUMN]).column(0)).cast(pa.string())
            for parked in self._lanes[lane]
        ]
        return int(pc.count_distinct(pa.chunked_array(keys, pa.string())).as_py())

    def _read(self, parked: _Parked, *, columns: Collection[str] | None = None) -> pa.Table:
        self._file.seek(parked.start)
        with pa.ipc.open_stream(self._file) as stream:
            if columns is None:
                return stream.read_all()
            return pa.Table.from_batches([batch.select(list(columns)) for batch in stream])


def park_changes(
    storage: Storage,
    logs: Sequence[LogFile],
    *,
    limit_bytes: int,
    schema: pa.Schema,
    rule: MergeRule,
    key: KeySpec,
    visibility: BlockVisibility,
) -> tuple[ParkedChanges, tuple[str, ...]]:
    """The changes of logs of which so many bytes, as they are stored, may be in memory; and the instants they are of.

    Lanes are so small that one fits, merged. The caller closes what it gets.
    """
    stored = sum(log.size for log in logs)
    parked = ParkedChanges(min(_MOST_LANES, -(-stored * _LANES_A_LIMIT // limit_bytes)))
    try:
        order, instants = hand_over_changes(
            storage, logs, schema=schema, rule=rule, key=key, visibility=visibility, take=parked.park
        )
        parked.drop_all_but(order)
    except BaseException:
        parked.close()
        raise
    return parked, instants


@dataclass(slots=True)
class SpilledWinners:
    """The winning changes of parked ones, lane by lane. Used as `Winners` is, but gives a table for each lane."""

    parked: ParkedChanges
    rule: MergeRule
    schema: pa.Schema
    updated: int = 0
    removed: int = 0
    _seen: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(self.parked.count_keys(lane) for lane in range(len(self.parked)))

    def each_changed_rows(self) -> Iterator[pa.Table]:
        """All rows among the changes, those that lose to another one included."""
        for lane in range(len(self.parked)):
            yield self._merged(lane).rows

    def apply(self, base: pa.Table) -> pa.Table:
        """`base` with its changed rows replaced and its deleted rows left out; the longer it is, the fewer look-ups."""
        for lane in range(len(self.parked)):
            merged = self._merged(lane)
            base = merged.apply(base)
            self.updated += merged.updated
            self.removed += merged.removed
            self._seen[lane] = np.packbits(merged.seen)
        return base

    def each_unmatched(self) -> Iterator[pa.Table]:
        """Rows of keys that no base row had. Call it after all base rows went through `apply`."""
        for lane in range(len(self.parked)):
            yield self._merged(lane).unmatched()

    def close(self) -> None:
        self.parked.close()

    def _merged(self, lane: int) -> _Merged:
        changes = [each.rows if isinstance(each, PartialRows) else each for each in self.parked.load(lane)]
        merge: Callable[..., _Merged] = PartialWinners if self.parked.has_partial_rows else collapse
        merged = merge(changes, self.rule, schema=self.schema)
        if lane in self._seen:
            merged.seen = np.unpackbits(self._seen[lane], count=len(merged)).view(np.bool_)
        return merged


def _as_table(change: Change) -> pa.Table:
    if isinstance(change, PartialRows):
        return change.rows
    if not isinstance(change, Deletes):
        return change
    table = pa.table({KEY_COLUMN: change.keys})
    if change.ordering is not None:
        for name in change.ordering.column_names:
            table = table.append_column(f"\0{name}", change.ordering.column(name))
    return table if change.by_commit_time is None else table.append_column(_MARK, change.by_commit_time)


def _as_change(kind: type[pa.Table | PartialRows | Deletes], table: pa.Table) -> Change:
    if kind is not Deletes:
        return PartialRows(table) if kind is PartialRows else table
    marks = combined(table.column(_MARK)) if _MARK in table.column_names else None
    names = [name for name in table.column_names if name not in (KEY_COLUMN, _MARK)]
    ordering = table.select(names).rename_columns([name[1:] for name in names]) if names else None
    return Deletes(combined(table.column(KEY_COLUMN)), ordering, marks)
