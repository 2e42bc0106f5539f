"""Merging changes of which some have a part of the columns only: Java's MERGE INTO writes such partial updates.

As with whole rows, the changes are first merged among themselves and then with the base row, and whole changes, partial
ones and deletes follow one law (checked by property tests against a row-by-row model):

- The later of two changes wins, by event time the one with the greater ordering value, as whole rows do. The winner
  keeps its columns and takes those that it lacks from the loser: a change that came too late still gives the columns
  that nobody else has.
- Where one of the two is a delete, the winner stands alone. A row after a delete by commit time stands alone too.
- The winner of all changes is laid over the base row by the same law; the base row has every column, so that a change
  with a smaller ordering value has no effect on it.
- A column that no change gave is null in a row that the base file does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.record.columns import combined
from tablekeeper.record.merge import (
    KEY_COLUMN,
    Deletes,
    MergeRule,
    Versions,
    collapse,
    not_older,
    positions_in,
    replaced,
)

__all__ = ["PartialWinners"]

_Mask = npt.NDArray[np.bool_]
_Positions = npt.NDArray[np.int64]


class PartialWinners:
    """The winning change of each key, with the columns that are known of it. Used as `Winners` is."""

    def __init__(self, changes: Iterable[pa.Table | Deletes], rule: MergeRule, *, schema: pa.Schema) -> None:
        self.updated = 0
        self.removed = 0
        self._rule = rule
        self._schema = schema
        self._all = collapse([], rule, schema=schema).as_versions()
        self._known: dict[str, _Mask] = {name: np.zeros(0, dtype=bool) for name in schema.names}
        for change in changes:
            for part in _once_each(change):
                self._add(part)
        self.seen: _Mask = np.zeros(len(self), dtype=bool)

    def __len__(self) -> int:
        return len(self._all.keys)

    @property
    def rows(self) -> pa.Table:
        """What is known of each changed row, nulls for the rest."""
        return self._all.rows

    def touches(self, keys: pa.Array | pa.ChunkedArray) -> bool:
        """Whether any of these keys is changed."""
        return bool(pc.any(pc.is_in(keys, value_set=self._all.keys)).as_py())

    def apply(self, base: pa.Table) -> pa.Table:
        """`base` with what is known of its changed rows laid over them, and its deleted rows left out."""
        positions, change = positions_in(base.column(KEY_COLUMN), self._all.keys)
        self.seen[change] = True
        wins = self._wins_over(base, positions, change)
        positions, change = positions[wins], change[wins]
        deleted = self._all.deleted[change]
        self.updated += int(len(change) - deleted.sum())
        self.removed += int(deleted.sum())
        columns = []
        for name in base.column_names:
            known = self._known[name][change] & ~deleted
            columns.append(_overlaid(base.column(name), positions[known], self._all.rows.column(name), change[known]))
        keep: _Mask = np.ones(base.num_rows, dtype=bool)
        keep[positions[deleted]] = False
        return pa.table(columns, schema=base.schema).filter(pa.array(keep))

    def unmatched(self) -> pa.Table:
        """Rows of keys that no base row had: to be added. Call it after all base rows went through `apply`."""
        return self._all.rows.filter(pa.array(~self.seen & ~self._all.deleted))

    def _wins_over(self, base: pa.Table, positions: _Positions, change: _Positions) -> _Mask:
        ordering = self._all.ordering
        if ordering is None:
            return np.ones(len(change), dtype=bool)
        old = base.select(ordering.column_names).take(pa.array(positions))
        return self._all.by_commit_time[change] | not_older(ordering.take(pa.array(change)), old)

    def _add(self, change: pa.Table | Deletes) -> None:
        """Merge a change, in which no key comes twice, with what is known so far."""
        given: set[str] = set()
        if not isinstance(change, Deletes):
            given = set(change.column_names)
            change = _padded(change, self._schema)
        new = collapse([change], self._rule, schema=self._schema).as_versions()
        meeting = _Meeting(self._all, new, is_deletion=isinstance(change, Deletes))
        columns = []
        for name in self._schema.names:
            takes, self._known[name] = meeting.settle(self._known[name], is_given=name in given)
            columns.append(meeting.merged(self._all.rows.column(name), new.rows.column(name), takes))
        self._all = Versions(
            keys=pa.concat_arrays([self._all.keys, new.keys.take(pa.array(meeting.fresh))]),
            rows=pa.table(columns, schema=self._schema),
            deleted=meeting.decided(self._all.deleted, new.deleted),
            by_commit_time=meeting.decided(self._all.by_commit_time, new.by_commit_time),
            ordering=meeting.decided_table(self._all.ordering, new.ordering),
        )


class _Meeting:
    """Versions that are known meet new ones: of the keys `fresh` nothing is known yet, the others meet a version.

    Where `wins`, the new version does. Where `alone`, the loser gives no columns.
    """

    def __init__(self, known: Versions, new: Versions, *, is_deletion: bool) -> None:
        self.places, self.slots = positions_in(new.keys, known.keys)
        self.fresh: _Positions = np.setdiff1d(np.arange(len(new.keys)), self.places)
        deleted = known.deleted[self.slots] | new.deleted[self.places]
        self.wins: _Mask = np.ones(len(self.places), dtype=bool)
        self.alone: _Mask = deleted
        if known.ordering is None or new.ordering is None:
            return
        old_by_commit, by_commit = known.by_commit_time[self.slots], new.by_commit_time[self.places]
        later = not_older(new.ordering.take(pa.array(self.places)), known.ordering.take(pa.array(self.slots)))
        # What is deleted by commit time already takes no further deletion; only a row ends it.
        self.wins = ~old_by_commit & (by_commit | later) if is_deletion else old_by_commit | by_commit | later

    def settle(self, known: _Mask, *, is_given: bool) -> tuple[_Mask, _Mask]:
        """Which meetings take the new value of a column, and for which versions it is known after them."""
        before = known[self.slots]
        takes: _Mask = np.where(self.wins, self.alone | is_given, is_given & ~before & ~self.alone)
        after = known.copy()
        after[self.slots] = np.where(self.alone, np.where(self.wins, is_given, before), before | is_given)
        return takes, np.concatenate([after, np.full(len(self.fresh), is_given)])

    def merged(self, old: pa.ChunkedArray, new: pa.ChunkedArray, takes: _Mask) -> pa.Array:
        """A column after the meeting, that of fresh keys last."""
        column = _overlaid(old, self.slots[takes], new, self.places[takes])
        return pa.concat_arrays([column, combined(new.take(pa.array(self.fresh)))])

    def decided(self, old: _Mask, new: _Mask) -> _Mask:
        """The same for something that the winner alone decides."""
        after = old.copy()
        after[self.slots[self.wins]] = new[self.places[self.wins]]
        return np.concatenate([after, new[self.fresh]])

    def decided_table(self, old: pa.Table | None, new: pa.Table | None) -> pa.Table | None:
        if old is None or new is None:
            return new if old is None else old
        columns = [self.merged(old.column(name), new.column(name), self.wins) for name in new.column_names]
        return pa.table(columns, schema=new.schema)


def _once_each(change: pa.Table | Deletes) -> Iterator[pa.Table | Deletes]:
    """The change in parts in which each key comes once: what comes after a delete meets that, and not what was before.

    The parts are in order: the first of each key, then the second of those that come again, and so on.
    """
    keys = change.keys if isinstance(change, Deletes) else combined(change.column(KEY_COLUMN))
    codes = pc.dictionary_encode(keys)
    if len(codes.dictionary) == len(keys):
        yield change
        return
    number = codes.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(number, kind="stable")
    firsts = np.searchsorted(number[order], number[order])
    turn: _Positions = np.empty(len(keys), dtype=np.int64)
    turn[order] = np.arange(len(keys)) - firsts
    for each in range(int(turn.max()) + 1):
        yield _filtered(change, pa.array(turn == each))


def _filtered(change: pa.Table | Deletes, mask: pa.Array) -> pa.Table | Deletes:
    if not isinstance(change, Deletes):
        return change.filter(mask)
    ordering = None if change.ordering is None else change.ordering.filter(mask)
    by_commit_time = None if change.by_commit_time is None else change.by_commit_time.filter(mask)
    return Deletes(change.keys.filter(mask), ordering, by_commit_time)


def _overlaid(column: pa.ChunkedArray, at: _Positions, source: pa.ChunkedArray, chosen: _Positions) -> pa.Array:
    """`column` with the `chosen` values of `source` in the places `at`."""
    if len(at) == 0:
        return combined(column)
    places = np.arange(len(column))
    places[at] = len(column) + np.arange(len(at))
    return replaced(column, source.take(pa.array(chosen)), pa.array(places))


def _padded(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with nulls for the columns that they lack."""
    columns = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
