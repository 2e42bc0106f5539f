"""Sends rows to the partition that they go to, after their keys were looked up in all partitions.

Most rows are clear: their key was found only in the partition that they name, or nowhere. For the others
(`write/settle.py`) a task may need to know whether a slice still has a row of the key, and its ordering value. Then the
task ends with questions, and runs again with the answers. A task takes a range of key hashes, and so gets all rows of a
key.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.format.hashing import HASH_SPACE, spread_hashes
from tablekeeper.record.columns import combined
from tablekeeper.record.merge import KEY_COLUMN, Versions, collapse, not_older
from tablekeeper.write.context import WriteContext
from tablekeeper.write.homes import NOWHERE, Assigned, Located, keep_tags, stage_by_home
from tablekeeper.write.settle import Found, Hits, settle
from tablekeeper.write.staging import ARRIVAL_COLUMN, StagedBatch, each_staged, staging_file
from tablekeeper.write.tagging import TagPage, Tags, load_tags

__all__ = ["Questions", "SendTask", "SlicePlace", "send_rows", "stored_schema"]

_MARKS = ("_hoodie_is_deleted", "_hoodie_operation")
# Extra columns of the rows of unclear keys.
_ROW = "\0row"
_PART = "\0part"
_SLICE = "\0slice"

_Numbers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SlicePlace:
    """The partition of a slice, and its number in it."""

    partition: str
    number: int
    has_logs: bool


@dataclass(frozen=True, slots=True)
class SendTask:
    """Send the rows of these batches whose keys have a hash in the range `hashes`.

    `places` are the places of the slices that were searched. The files `stored` have the answers to the questions. If
    it `deletes`, the rows are keys to delete.
    """

    context: WriteContext
    staged: tuple[tuple[int, StagedBatch], ...]
    tags: tuple[Tags, ...]
    places: tuple[SlicePlace, ...]
    hashes: tuple[int, int]
    deletes: bool
    stored: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Questions:
    """A file of keys whose stored rows a task needs: batch `n` has the keys to read from slice `slices[n]`."""

    file: str
    slices: tuple[int, ...]


def stored_schema(context: WriteContext) -> pa.Schema:
    """Columns to read of stored rows: the number of the slice, the key, and the ordering columns if they count."""
    ordering = context.rule.ordering if context.rule.by_event_time else ()
    fields = [context.file_schema.field(name) for name in (KEY_COLUMN, *ordering)]
    return pa.schema([pa.field(_SLICE, pa.int64()), *fields])


def send_rows(task: SendTask) -> tuple[Located, ...] | Questions:
    """Kernel: the rows by the partition that they go to, or the questions to answer first."""
    rows, hits = _load(task)
    if task.deletes:
        # Deleting a key that is not there does no harm.
        places, slices = hits.join(rows.keys)
        return _staged(task, rows, _Sent(places, slices, np.zeros(len(places), bool)))
    is_unclear = _unclear(rows, hits)
    mixed = hits.where(is_unclear[hits.keys])
    asked = _asked(task, mixed)
    if task.stored is None and asked.any():
        return _save_questions(task.context, rows.distinct, mixed.where(asked))
    clear = np.flatnonzero(~is_unclear[rows.keys])
    places, slices = hits.join(rows.keys[clear])
    new = np.delete(clear, places)
    sent = [_Sent(clear[places], slices, np.zeros(len(places), bool)), _new(new)]
    if is_unclear.any():
        sent.append(_settled(task, rows, is_unclear, mixed, asked))
    return _staged(task, rows, _Sent(*(np.concatenate(parts) for parts in zip(*map(_columns, sent), strict=True))))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of the task by number.

    It has their keys and the partitions that they name by number, the position of their batch in the task, and their
    position in the batch. `paths` are the partitions, including those of slices.
    """

    distinct: pa.Array
    keys: _Numbers
    homes: _Numbers
    batches: _Numbers
    positions: _Numbers
    paths: tuple[str, ...]
    home_of_slice: _Numbers


@dataclass(frozen=True, slots=True)
class _Sent:
    """Rows, the slice that each goes to or `NOWHERE`, and whether only its key goes there, to be deleted."""

    rows: _Numbers
    slices: _Numbers
    leaves: _Mask


def _columns(sent: _Sent) -> tuple[_Numbers, _Numbers, _Mask]:
    return sent.rows, sent.slices, sent.leaves


def _new(rows: _Numbers) -> _Sent:
    return _Sent(rows, np.full(len(rows), NOWHERE), np.zeros(len(rows), bool))


def _load(task: SendTask) -> tuple[_Rows, Hits]:
    store = task.context.store
    batches = [batch for _, batch in task.staged]
    read = dict(each_staged(store, list(enumerate(batches)), columns=[KEY_COLUMN]))
    columns = [read[place].column(KEY_COLUMN).cast(pa.large_string()) for place in range(len(read))]
    encoded = combined(pc.dictionary_encode(pa.chunked_array(columns, pa.large_string())))
    keys, distinct = encoded.indices.to_numpy().astype(np.int64), encoded.dictionary
    counts = np.array([batch.rows for batch in batches], np.int64)
    starts = np.cumsum(counts) - counts
    paths = sorted({batch.partition for batch in batches} | {place.partition for place in task.places})
    number_of = {path: number for number, path in enumerate(paths)}
    is_mine = np.ones(len(distinct), bool)
    if task.hashes != (0, HASH_SPACE):
        hashes = spread_hashes(distinct)
        is_mine = (hashes >= task.hashes[0]) & (hashes < task.hashes[1])
    mine = np.flatnonzero(is_mine[keys])
    batch_of = np.repeat(np.arange(len(batches)), counts)[mine]
    rows = _Rows(
        distinct,
        keys[mine],
        np.array([number_of[batch.partition] for batch in batches], np.int64)[batch_of],
        batch_of,
        mine - starts[batch_of],
        tuple(paths),
        np.array([number_of[place.partition] for place in task.places], np.int64),
    )
    pages = load_tags(store, task.tags, [number for number, _ in task.staged])
    found = [
        (keys[start + page.rows], page.slices.astype(np.int64))
        for start, (number, _) in zip(starts, task.staged, strict=True)
        for page in pages[number]
    ]
    hit = np.concatenate([np.zeros(0, np.int64), *(of_page for of_page, _ in found)])
    slices = np.concatenate([np.zeros(0, np.int64), *(of_page for _, of_page in found)])
    return rows, Hits.of(hit[is_mine[hit]], slices[is_mine[hit]], slice_count=max(1, len(task.places)))


def _unclear(rows: _Rows, hits: Hits) -> _Mask:
    """By key: whether its rows and the slices that have it are in several partitions."""
    keys = np.concatenate([rows.keys, hits.keys])
    homes = np.concatenate([rows.homes, rows.home_of_slice[hits.slices]])
    one = np.zeros(len(rows.distinct), np.int64)
    # With repeated indices numpy keeps the last value; any of them will do for the comparison.
    one[keys] = homes
    unclear: _Mask = np.zeros(len(rows.distinct), bool)
    unclear[keys[homes != one[keys]]] = True
    return unclear


def _asked(task: SendTask, hits: Hits) -> _Mask:
    """For which hits the stored row is needed: all, if values are compared; otherwise where a log may have deleted it.

    If rows do not move, a row whose key is in one slice only goes there, whatever is stored.
    """
    if task.context.settings.moves_rows and task.context.rule.by_event_time:
        return np.ones(len(hits), bool)
    may_be_gone = np.array([place.has_logs for place in task.places], bool)[hits.slices]
    if task.context.settings.moves_rows:
        return may_be_gone
    is_repeated: _Mask = np.bincount(hits.keys)[hits.keys] > 1
    return may_be_gone & is_repeated


def _save_questions(context: WriteContext, distinct: pa.Array, hits: Hits) -> Questions:
    file = staging_file(context, "questions")
    slices = np.unique(hits.slices)
    schema = pa.schema([(KEY_COLUMN, pa.string())])
    with context.store.storage.open_output(file) as sink, pa.ipc.new_file(sink, schema) as writer:
        for number in slices:
            keys = distinct.take(pa.array(hits.keys[hits.slices == number])).cast(pa.string())
            writer.write_batch(pa.RecordBatch.from_arrays([keys], schema=schema))
    return Questions(file, tuple(int(number) for number in slices))


def _settled(task: SendTask, rows: _Rows, is_unclear: _Mask, hits: Hits, asked: _Mask) -> _Sent:
    newest = _newest(task, rows, is_unclear)
    row_of = np.zeros(len(rows.distinct), np.int64)
    place_of = np.zeros(len(rows.distinct), np.int64)
    numbers = newest.rows.column(_ROW).to_numpy()
    keys = rows.keys[numbers]
    row_of[keys], place_of[keys] = numbers, np.arange(len(keys))
    is_there, is_newer = ~asked, np.zeros(len(hits), bool)
    if asked.any():
        stored, place_in_stored = _load_stored(task, rows, hits)
        is_there |= place_in_stored >= 0
        compared = np.flatnonzero(asked & is_there)
        if newest.ordering is not None and task.context.settings.moves_rows:
            names = list(task.context.rule.ordering)
            new = newest.ordering.select(names).take(pa.array(place_of[hits.keys[compared]]))
            old = stored.select(names).take(pa.array(place_in_stored[compared]))
            is_newer[compared] = ~not_older(new, old)
    is_own = rows.home_of_slice[hits.slices] == rows.homes[row_of[hits.keys]]
    found = Found(is_there, is_newer, is_own, newest.deleted[place_of[hits.keys]])
    settled = settle(hits, found, keys, moves=task.context.settings.moves_rows)
    takes, leaves = np.flatnonzero(settled.takes), np.flatnonzero(settled.leaves)
    both, fresh = np.concatenate([takes, leaves]), _new(row_of[settled.fresh])
    return _Sent(
        np.concatenate([row_of[hits.keys[both]], fresh.rows]),
        np.concatenate([hits.slices[both], fresh.slices]),
        np.concatenate([np.zeros(len(takes), bool), np.ones(len(leaves), bool), fresh.leaves]),
    )


def _newest(task: SendTask, rows: _Rows, is_unclear: _Mask) -> Versions:
    """The row that counts for each unclear key, with its number."""
    mine = np.flatnonzero(is_unclear[rows.keys])
    wanted = [KEY_COLUMN, ARRIVAL_COLUMN, *task.context.rule.ordering, *_MARKS]
    files = {batch.file: number for number, (_, batch) in reversed(list(enumerate(task.staged)))}
    places = np.unique(rows.batches[mine])
    read = dict(each_staged(task.context.store, [(int(n), task.staged[n][1]) for n in places], columns=wanted))
    tables = []
    for place in places:
        of_batch = mine[rows.batches[mine] == place]
        table = pa.Table.from_batches([read[int(place)]]).take(pa.array(rows.positions[of_batch]))
        first = pa.repeat(pa.scalar(files[task.staged[place][1].file], pa.int64()), len(of_batch))
        tables.append(table.append_column(_ROW, pa.array(of_batch)).append_column(_PART, first))
    table = pa.concat_tables(tables).sort_by([(_PART, "ascending"), (ARRIVAL_COLUMN, "ascending")])
    return collapse([table], task.context.rule, schema=table.schema).as_versions()


def _load_stored(task: SendTask, rows: _Rows, hits: Hits) -> tuple[pa.Table, _Numbers]:
    """The stored rows that were asked for, and the position of each hit's row among them, or -1."""
    tables = [stored_schema(task.context).empty_table()]
    for file in task.stored or ():
        with task.context.store.storage.open_input(file) as source:
            tables.append(pa.ipc.open_file(source).read_all())
    stored = pa.concat_tables(tables)
    known = stored.column(KEY_COLUMN).cast(pa.large_string())
    keys = combined(pc.index_in(known, value_set=rows.distinct).fill_null(-1)).to_numpy(zero_copy_only=False)
    pairs = keys.astype(np.int64) * len(task.places) + combined(stored.column(_SLICE)).to_numpy()
    wanted = hits.keys * len(task.places) + hits.slices
    at = np.searchsorted(wanted, pairs)
    is_wanted = at < len(wanted)
    is_wanted[is_wanted] = wanted[at[is_wanted]] == pairs[is_wanted]
    places: _Numbers = np.full(len(wanted), -1, np.int64)
    places[at[is_wanted]] = np.flatnonzero(is_wanted)
    return stored, places


def _staged(task: SendTask, rows: _Rows, sent: _Sent) -> tuple[Located, ...]:
    numbers = np.array([*(place.number for place in task.places), NOWHERE], np.int32)[sent.slices]
    partitions = np.append(rows.home_of_slice, 0)[sent.slices]
    partitions = np.where(sent.slices == NOWHERE, rows.homes[sent.rows], partitions)
    # In the order in which the rows came, batch by batch.
    order = np.argsort(sent.rows, kind="stable")
    ends = np.searchsorted(rows.batches[sent.rows[order]], np.arange(len(task.staged) + 1))
    pages: dict[str, list[tuple[StagedBatch, TagPage]]] = defaultdict(list)
    for place, (_, batch) in enumerate(task.staged):
        mine = order[ends[place] : ends[place + 1]]
        assigned = Assigned(rows.positions[sent.rows[mine]], partitions[mine], numbers[mine], sent.leaves[mine])
        for moved, page in stage_by_home(task.context, batch, assigned, rows.paths):
            pages[moved.partition].append((moved, page))
    return tuple(keep_tags(task.context, path, found) for path, found in pages.items())
