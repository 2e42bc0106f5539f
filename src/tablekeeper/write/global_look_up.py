"""Tagging by a global index without a record index: the keys are looked up in the files of all partitions.

The look-up is the same as for one partition (`write/tagging.py`), with the slices of all partitions. Its result decides
where rows go (`write/sending.py`). If that depends on stored rows, which a log may have deleted, the slices are read
and merged for just these keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from tablekeeper.engine.protocol import Engine, balanced_shares
from tablekeeper.format.hashing import HASH_SPACE
from tablekeeper.model import CompletionTime, FileGroupId, FileSlice
from tablekeeper.read.slice_rows import read_slice
from tablekeeper.record.merge import KEY_COLUMN
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.write.context import WriteContext
from tablekeeper.write.homes import Located, LocatedRows
from tablekeeper.write.sending import Questions, SendTask, SlicePlace, send_rows, stored_schema
from tablekeeper.write.staging import StagedBatch, staging_file
from tablekeeper.write.tagging import LookedUp, SliceKeys, Tagged, Tags, find_keys, overtaken_logs, plan_look_up

__all__ = ["look_up_everywhere"]

_TASKS_A_CORE = 2
_KEYS_A_TASK = 4_000_000


def look_up_everywhere(
    engine: Engine,
    context: WriteContext,
    snapshot: Snapshot,
    batches: Sequence[StagedBatch],
    *,
    base_ends: Mapping[FileGroupId, CompletionTime | None],
    deletes: bool,
) -> LocatedRows:
    """Look all staged keys up in the slices of all partitions. The batches are in the order of their source parts.

    `deletes`: the rows are keys to delete.
    """
    slices = snapshot.latest
    tagged: list[Tagged] = []
    if slices:
        keys = [SliceKeys(n, each, overtaken_logs(each, base_ends.get(each.group))) for n, each in enumerate(slices)]
        count = _TASKS_A_CORE * engine.parallelism
        tasks = plan_look_up(context, keys, list(enumerate(batches)), tasks=count)
        weights = [task.weight for task in tasks]
        tagged = list(engine.run(find_keys, tasks, label="look up keys in all partitions", weights=weights))
    sent = _send(engine, context, slices, batches, [each.tags for each in tagged], deletes=deletes)
    return LocatedRows.of([snapshot], [*_row_counts(slices, tagged), *sent])


def _row_counts(slices: Sequence[FileSlice], tagged: Sequence[Tagged]) -> Iterator[Located]:
    """How many rows the look-up saw in the base files of each partition."""
    rows = {found.number: found.base_rows for task in tagged for found in task.slices}
    by_partition: dict[str, list[LookedUp]] = defaultdict(list)
    for number, each in enumerate(_places(slices)):
        by_partition[each.partition].append(LookedUp(each.number, 0, rows.get(number, 0)))
    for partition, counted in by_partition.items():
        yield Located(partition, (), Tagged(tuple(counted), Tags((), b""), 0))


def _places(slices: Sequence[FileSlice]) -> list[SlicePlace]:
    counts: dict[str, int] = defaultdict(int)
    places = []
    for each in slices:
        places.append(SlicePlace(each.group.partition, counts[each.group.partition], bool(each.logs)))
        counts[each.group.partition] += 1
    return places


def _send(
    engine: Engine,
    context: WriteContext,
    slices: Sequence[FileSlice],
    batches: Sequence[StagedBatch],
    tags: Sequence[Tags],
    *,
    deletes: bool,
) -> list[Located]:
    """All rows by the partition that they go to."""
    count = max(1, -(-sum(batch.rows for batch in batches) // _KEYS_A_TASK))
    tasks = [
        SendTask(
            context,
            tuple((n, each) for n, each in enumerate(batches) if each.hash_from < end and first < each.hash_to),
            tuple(tags),
            tuple(_places(slices)),
            (first, end),
            deletes,
        )
        for first, end in pairwise(HASH_SPACE * n // count for n in range(count + 1))
    ]
    answers = dict(enumerate(engine.run(send_rows, tasks, label="send rows to their partitions")))
    asking = {n: answer for n, answer in answers.items() if isinstance(answer, Questions)}
    if asking:
        stored = _load_stored(engine, context, slices, list(asking.values()))
        again = [replace(tasks[n], stored=stored) for n in asking]
        answers |= zip(asking, engine.run(send_rows, again, label="send rows to their partitions"), strict=True)
    return [each for answer in answers.values() if not isinstance(answer, Questions) for each in answer]


@dataclass(frozen=True, slots=True)
class _StoredTask:
    """Read the stored rows of the keys that were asked for; returns files of them."""

    context: WriteContext
    slices: tuple[tuple[int, FileSlice, tuple[tuple[str, int], ...]], ...]


def _load_stored(
    engine: Engine, context: WriteContext, slices: Sequence[FileSlice], questions: Sequence[Questions]
) -> tuple[str, ...]:
    """Files with the asked keys that slices have, and the columns that decide between rows."""
    asked: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for each in questions:
        for place, number in enumerate(each.slices):
            asked[number].append((each.file, place))
    numbers = sorted(asked)
    count = max(1, min(len(numbers), _TASKS_A_CORE * engine.parallelism))
    shares = balanced_shares([slices[number].size for number in numbers], count)
    tasks = [
        _StoredTask(context, tuple((numbers[n], slices[numbers[n]], tuple(asked[numbers[n]])) for n in share))
        for share in shares
    ]
    weights = [float(sum(each.size for _, each, _ in task.slices)) for task in tasks]
    return tuple(engine.run(_read_stored, tasks, label="read rows that may move", weights=weights))


def _read_stored(task: _StoredTask) -> str:
    """Kernel: the stored rows of some keys, with the columns that decide, in a file."""
    context = task.context
    output = stored_schema(context)
    file = staging_file(context, "stored")
    with context.store.storage.open_output(file) as sink, pa.ipc.new_file(sink, output) as writer:
        for number, file_slice, questions in task.slices:
            keys = pa.concat_arrays([_asked_keys(context, *question) for question in questions])
            stored = pa.schema([field for field in output if field.name in context.file_schema.names])
            for batch in read_slice(context.slice_task(file_slice, stored)):
                found = batch.filter(pc.is_in(batch.column(KEY_COLUMN), value_set=keys))
                numbers = pa.repeat(pa.scalar(number, pa.int64()), found.num_rows)
                writer.write_batch(pa.RecordBatch.from_arrays([numbers, *found.columns], schema=output))
    return file


def _asked_keys(context: WriteContext, file: str, place: int) -> pa.Array:
    with closing(context.store.storage.open_input(file)) as source:
        return pa.ipc.open_file(source).get_batch(place).column(0)
