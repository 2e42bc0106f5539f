"""Merging versions of rows, vectorised: which version of a key wins, and applying winners to base rows.

Changes come in the order in which they were written. First they are merged among themselves, then the winner of
each key with the base row: Java Hudi and hudi-rs read in these two steps, and the outcome depends on it. Laws
(checked by property tests against a row-by-row model):

- Commit-time ordering: the later change wins.
- Event-time ordering: the change with the greater ordering value wins, the later one on a tie. Not-a-number is the
  greatest value. A missing value is the smallest, but 0 where values are 32-bit integers or dates.
- A row whose `_hoodie_is_deleted` is true, or whose `_hoodie_operation` is D or -U, is a delete with that
  row's ordering value.
- A delete without an ordering value (or with the integer 0, which stands for none) goes by commit time: it wins over
  everything before it, the base row as well, and the next row wins over it. That row then faces the base row by its
  own ordering value, so that a row with a smaller one than the base row's does not come back.

`collapse` reduces any number of changes to one for each key; `Winners.apply` lays them over base rows,
one batch at a time, so that memory is bounded by a batch plus the changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.config.table_config import MergeMode, TableConfig
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.record.columns import combined

__all__ = [
    "DELETED_COLUMN",
    "KEY_COLUMN",
    "Deletes",
    "MergeRule",
    "Versions",
    "Winners",
    "collapse",
    "merge_rule",
    "not_older",
    "positions_in",
    "replaced",
]

KEY_COLUMN = "_hoodie_record_key"
DELETED_COLUMN = "_hoodie_is_deleted"
_OPERATION_COLUMN = "_hoodie_operation"

# Java stands the integer 0 in for a missing value, which compares with values that it keeps as integers.
_ZERO_STANDS_FOR_NONE = (pa.int32(), pa.date32())

_Mask = npt.NDArray[np.bool_]
_Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MergeRule:
    """How two versions of a row are compared. Without ordering columns, by commit time."""

    mode: MergeMode
    ordering: tuple[str, ...] = ()

    @property
    def by_event_time(self) -> bool:
        return self.mode is MergeMode.EVENT_TIME and bool(self.ordering)


def merge_rule(config: TableConfig) -> MergeRule:
    """Which version of a row wins. Tables with mergers of their own are refused."""
    if config.merge_mode is MergeMode.CUSTOM:
        raise UnsupportedFeatureError(
            f"table {config.name} merges rows with a custom payload or merger class, which only Java can run. "
            "Read it with mode='read_optimized', or compact it with Java first."
        )
    if config.special_merging is not None:
        raise UnsupportedFeatureError(
            f"table {config.name} merges rows in a way that only Java knows ({config.special_merging}). "
            "Read it with mode='read_optimized', or compact it with Java first."
        )
    return MergeRule(config.merge_mode, config.ordering_fields)


@dataclass(frozen=True, slots=True)
class Deletes:
    """Deleted keys. Without `ordering` (a table with the ordering columns, in their types) by commit time.

    `by_commit_time` marks deletes that ignore their ordering value; all do if it is None.
    """

    keys: pa.Array
    ordering: pa.Table | None = None
    by_commit_time: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class Versions:
    """One change for each key, spelled out: a row (of nulls where a delete has none), and what decides when it meets
    another. `ordering` is None where the ordering values do not count.
    """

    keys: pa.Array
    rows: pa.Table
    deleted: _Mask
    by_commit_time: _Mask
    ordering: pa.Table | None


class Winners:
    """One change for each key: a row that replaces, or a delete.

    `keys[i]` is changed to `rows[row_of[i]]`, or deleted where `row_of[i]` is -1 or `deleted[i]`. Where
    `forced[i]`, the change wins over the base row whatever that row's ordering value is. Where `by_commit_time[i]`, it
    is a delete without an ordering value.
    """

    def __init__(
        self,
        rule: MergeRule,
        *,
        keys: pa.Array,
        rows: pa.Table,
        row_of: _Positions,
        deleted: _Mask,
        forced: _Mask,
        by_commit_time: _Mask,
        ordering: pa.Table | None,
    ) -> None:
        self._rule = rule
        self._keys = keys
        self._rows = rows
        self._row_of = row_of
        self._deleted = deleted
        self._forced = forced
        self._by_commit_time = by_commit_time
        self._ordering = ordering
        self.seen: _Mask = np.zeros(len(keys), dtype=bool)
        self.updated = 0
        self.removed = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def rows(self) -> pa.Table:
        """All rows among the changes, those that lost to another change included."""
        return self._rows

    def apply(self, base: pa.Table, *, keys: pa.Array | pa.ChunkedArray | None = None) -> pa.Table:
        """`base` with its changed rows replaced and its deleted rows left out.

        Columns that the changes do not have keep their values. `keys` are the record keys of `base` where the
        table itself does not hold them.
        """
        base_keys = base.column(KEY_COLUMN) if keys is None else keys
        positions, change = positions_in(base_keys, self._keys)
        if len(positions) == 0:
            return base
        self.seen[change] = True
        wins = self._wins(base, positions, change)
        positions, change = positions[wins], change[wins]
        deleted = self._deleted[change]
        self.updated += int(len(change) - deleted.sum())
        self.removed += int(deleted.sum())
        return self._rewrite(base, positions, change, deleted)

    def touches(self, keys: pa.Array | pa.ChunkedArray) -> bool:
        """Whether any of these keys is changed."""
        return bool(pc.any(pc.is_in(keys, value_set=self._keys)).as_py())

    def unmatched(self) -> pa.Table:
        """Rows of keys that no base row had: to be added. Call it after all base rows went through `apply`."""
        fresh = self._row_of[~self.seen & ~self._deleted]
        if len(fresh) == self._rows.num_rows and np.array_equal(fresh, np.arange(len(fresh))):
            return self._rows
        return self._rows.take(pa.array(fresh))

    def rows_with_deletes(self) -> pa.Table:
        """The winning row of each key, rows that delete included; keys deleted without a row are left out."""
        rows = self._row_of[self._row_of >= 0]
        if len(rows) == self._rows.num_rows and np.array_equal(rows, np.arange(len(rows))):
            return self._rows
        return self._rows.take(pa.array(rows))

    def as_versions(self) -> Versions:
        """The same winners side by side, to be merged with others column by column."""
        places = pa.array(self._row_of, mask=self._row_of < 0)
        return Versions(self._keys, self._rows.take(places), self._deleted, self._by_commit_time, self._ordering)

    def as_changes(self) -> list[pa.Table | Deletes]:
        """The same winners as changes again, one a key: what comes later, and the base row, merge with them alike."""
        has_row = self._row_of >= 0
        plain = ~has_row if self._ordering is None else ~has_row & self._by_commit_time
        ordered = ~has_row & ~plain
        changes: list[pa.Table | Deletes] = []
        if has_row.any():
            changes.append(self.rows_with_deletes())
        if plain.any():
            changes.append(Deletes(self._keys.filter(pa.array(plain))))
        if self._ordering is not None and ordered.any():
            mask = pa.array(ordered)
            marks = pa.array(np.zeros(int(ordered.sum()), dtype=bool))
            changes.append(Deletes(self._keys.filter(mask), self._ordering.filter(mask), marks))
        return changes

    def _wins(self, base: pa.Table, positions: _Positions, change: _Positions) -> _Mask:
        wins = self._forced[change]
        if wins.all() or self._ordering is None:
            return np.ones(len(change), dtype=bool) if self._ordering is None else wins
        names = list(self._rule.ordering)
        old, new = base.select(names).take(pa.array(positions)), self._ordering.select(names).take(pa.array(change))
        return wins | not_older(new, old)

    def _rewrite(self, base: pa.Table, positions: _Positions, change: _Positions, deleted: _Mask) -> pa.Table:
        rewritten = positions[~deleted]
        if len(rewritten):
            chosen = np.arange(base.num_rows)
            chosen[rewritten] = base.num_rows + np.arange(len(rewritten))
            places, source = pa.array(chosen), pa.array(self._row_of[change[~deleted]])
            changed = set(self._rows.column_names)
            columns = [
                replaced(base.column(name), self._rows.column(name).take(source), places)
                if name in changed
                else base.column(name)
                for name in base.column_names
            ]
            base = pa.table(columns, schema=base.schema)
        if deleted.any():
            keep = np.ones(base.num_rows, dtype=bool)
            keep[positions[deleted]] = False
            base = base.filter(pa.array(keep))
        return base


def positions_in(keys: pa.Array | pa.ChunkedArray, known: pa.Array) -> tuple[_Positions, _Positions]:
    """Positions of those of `keys` that are in `known`, and where they are there."""
    found = combined(pc.index_in(keys, value_set=known).fill_null(-1)).to_numpy(zero_copy_only=False)
    positions: _Positions = np.flatnonzero(found >= 0)
    return positions, found[positions]


def not_older(new: pa.Table, old: pa.Table) -> _Mask:
    """Row by row, whether ordering values of a later change let it win over those of an earlier one."""
    new, old = _comparable(new), _comparable(old)
    return _not_less(list(map(combined, new.columns)), list(map(combined, old.columns)))


def replaced(column: pa.ChunkedArray, fresh: pa.ChunkedArray, places: pa.Array) -> pa.Array:
    """The values at `places` of `column` with `fresh` behind it: faster than replacing them by a mask."""
    base = combined(column)
    return combined(pa.chunked_array([base, combined(fresh).cast(base.type)])).take(places)


@dataclass(slots=True)
class _Collected:
    """All changes side by side: one entry a change, in the order in which they were written."""

    keys: list[pa.Array] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)
    row_of: list[_Positions] = field(default_factory=list)
    deleted: list[_Mask] = field(default_factory=list)
    by_commit_time: list[_Mask] = field(default_factory=list)
    ordering: list[pa.Table] = field(default_factory=list)
    row_count: int = 0


def collapse(changes: Sequence[pa.Table | Deletes], rule: MergeRule, *, schema: pa.Schema) -> Winners:
    """The winning change of each key. Row changes are tables of `schema`, which holds the record key."""
    collected = _Collected()
    for change in changes:
        _collect(collected, change, rule, schema)
    keys = _concat(collected.keys, pa.string())
    rows = pa.concat_tables(collected.rows) if collected.rows else schema.empty_table()
    row_of: _Positions = np.concatenate([np.zeros(0, np.int64), *collected.row_of])
    deleted: _Mask = np.concatenate([np.zeros(0, np.bool_), *collected.deleted])
    by_commit: _Mask = np.concatenate([np.zeros(0, np.bool_), *collected.by_commit_time])
    ordering = pa.concat_tables(collected.ordering) if rule.by_event_time and collected.ordering else None

    codes = pc.dictionary_encode(keys)
    number = codes.indices.to_numpy(zero_copy_only=False)
    if len(codes.dictionary) == len(keys):
        winner: _Positions = np.arange(len(keys))
    elif rule.by_event_time and ordering is not None:
        entries = _Entries(number, by_commit=by_commit, is_row=row_of >= 0)
        winner = _latest_by_event_time(entries, len(codes.dictionary), ordering)
    else:
        # With repeated indices numpy keeps the last value: the latest change of each key.
        winner = np.zeros(len(codes.dictionary), dtype=np.int64)
        winner[number] = np.arange(len(keys))
    return Winners(
        rule,
        keys=codes.dictionary,
        rows=rows,
        row_of=row_of[winner],
        deleted=deleted[winner],
        forced=by_commit[winner] if rule.by_event_time else np.ones(len(winner), dtype=bool),
        by_commit_time=by_commit[winner],
        ordering=ordering.take(pa.array(winner)) if ordering is not None else None,
    )


def _collect(collected: _Collected, change: pa.Table | Deletes, rule: MergeRule, schema: pa.Schema) -> None:
    if isinstance(change, Deletes):
        count = len(change.keys)
        collected.keys.append(change.keys)
        collected.row_of.append(np.full(count, -1, dtype=np.int64))
        collected.deleted.append(np.ones(count, dtype=bool))
        if rule.by_event_time:
            types = pa.schema([schema.field(name) for name in rule.ordering])
            given = change.ordering if change.ordering is not None else _nulls(types, count)
            collected.ordering.append(given.cast(types))
        marks = change.by_commit_time if change.ordering is not None else None
        commit_time = np.ones(count, dtype=bool) if marks is None else marks.to_numpy(zero_copy_only=False)
        collected.by_commit_time.append(commit_time)
        return
    count = change.num_rows
    collected.keys.append(combined(change.column(KEY_COLUMN)))
    collected.rows.append(change)
    collected.row_of.append(np.arange(collected.row_count, collected.row_count + count))
    collected.row_count += count
    deleted = _deleted_rows(change)
    collected.deleted.append(deleted)
    collected.by_commit_time.append(deleted & _without_value(change, rule))
    if rule.by_event_time:
        collected.ordering.append(change.select(list(rule.ordering)))


@dataclass(frozen=True, slots=True)
class _Entries:
    """All changes: the number of the key of each, whether it is a delete by commit time, and whether it has a row."""

    number: npt.NDArray[np.int32]
    by_commit: _Mask
    is_row: _Mask


def _latest_by_event_time(entries: _Entries, keys: int, ordering: pa.Table) -> _Positions:
    """For each key the entry that wins among the changes."""
    number = entries.number
    sequence = np.arange(len(number))
    barrier: _Positions = np.full(keys, -1, dtype=np.int64)
    marks = sequence[entries.by_commit]
    barrier[number[marks]] = marks
    # What is deleted already takes no further delete; only a row ends it.
    after = sequence > barrier[number]
    revival: _Positions = np.full(keys, len(number), dtype=np.int64)
    # With repeated indices numpy keeps the last value: from the end, the first row of each key.
    revivals = sequence[after & entries.is_row][::-1]
    revival[number[revivals]] = revivals
    alive = sequence[after & ((barrier[number] < 0) | (sequence >= revival[number]))]
    winner = barrier.copy()
    values = _comparable(ordering.take(pa.array(alive))).append_column("\0sequence", pa.array(alive))
    order = alive[_sorted_positions(values)]
    winner[number[order]] = order
    return winner


def _without_value(rows: pa.Table, rule: MergeRule) -> _Mask:
    """Rows whose ordering value is none, or the integer 0 that stands for none."""
    if not rule.by_event_time or len(rule.ordering) != 1:
        # Several ordering values always make a value.
        return np.zeros(rows.num_rows, dtype=bool)
    values = combined(rows.column(rule.ordering[0]))
    missing = _mask(pc.is_null(values))
    zero = _zero_for_none(values.type)
    return missing if zero is None else missing | _mask(pc.equal(values, zero))


def _zero_for_none(kind: pa.DataType) -> pa.Scalar | None:
    # Made when it is asked for: the first scalar that pyarrow makes imports pandas where that is installed.
    return pa.scalar(0, pa.int32()).cast(kind) if kind in _ZERO_STANDS_FOR_NONE else None


def _comparable(values: pa.Table) -> pa.Table:
    """Ordering values with 0 for a missing one, in the types where Java has it so."""
    for position, name in enumerate(values.column_names):
        zero = _zero_for_none(values.schema.field(name).type)
        if zero is not None:
            values = values.set_column(position, name, pc.fill_null(values.column(name), zero))
    return values


def _sorted_positions(table: pa.Table) -> _Positions:
    """Row positions in the order of all columns from the left, nulls first.

    Nulls are ordered by a column of their own: the way to ask Arrow for it differs between its versions.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    for name in table.column_names:
        if table.column(name).null_count:
            columns[f"{name}\0present"] = table.column(name).is_valid()
        columns[name] = table.column(name)
    by = [(name, "ascending") for name in columns]
    positions: _Positions = pc.sort_indices(pa.table(columns), sort_keys=by).to_numpy().astype(np.int64)
    return positions


def _not_less(new: list[pa.Array], old: list[pa.Array]) -> _Mask:
    """Row by row `new >= old`, field by field from the left; null is the smallest, not-a-number the greatest."""
    result: _Mask = np.ones(len(new[0]), dtype=bool)
    undecided: _Mask = np.ones(len(new[0]), dtype=bool)
    for a, b in zip(new, old, strict=True):
        less, greater = _less(a, b), _less(b, a)
        result[undecided & less] = False
        undecided &= ~(less | greater)
    return result


def _less(a: pa.Array, b: pa.Array) -> _Mask:
    no_a, no_b = _mask(pc.is_null(a)), _mask(pc.is_null(b))
    less: _Mask = _mask(pc.less(a, b)) | (no_a & ~no_b)
    if pa.types.is_floating(a.type):
        less |= _mask(pc.is_nan(b)) & ~no_a & ~_mask(pc.is_nan(a))
    return less


def _deleted_rows(rows: pa.Table) -> _Mask:
    deleted: _Mask = np.zeros(rows.num_rows, dtype=bool)
    if DELETED_COLUMN in rows.column_names:
        deleted |= _mask(pc.equal(rows.column(DELETED_COLUMN), True))
    if _OPERATION_COLUMN in rows.column_names:
        deleted |= _mask(pc.is_in(rows.column(_OPERATION_COLUMN), value_set=pa.array(["D", "-U"])))
    return deleted


def _mask(values: pa.Array | pa.ChunkedArray) -> _Mask:
    mask: _Mask = combined(values).fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _nulls(schema: pa.Schema, count: int) -> pa.Table:
    return pa.table([pa.nulls(count, field.type) for field in schema], schema=schema)


def _concat(arrays: list[pa.Array], kind: pa.DataType) -> pa.Array:
    flat = [combined(array).cast(kind) for array in arrays]
    return pa.concat_arrays(flat) if flat else pa.array([], type=kind)
