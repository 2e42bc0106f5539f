"""From tagged rows to the work of each file group: every row goes to exactly one place, and to the right one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekeeper.config.write_settings import WriteSettings
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, LogFile, RequestedTime
from tablekeeper.write.kernels import GroupTask, _load_rows
from tablekeeper.write.plan import (
    GroupWork,
    OwnBuckets,
    PartitionRows,
    SharedBuckets,
    WorkKind,
    plan_buckets,
    plan_partition,
)
from tablekeeper.write.staging import HASH_SPACE, StagedBatch, key_hashes, load_staged, stage_rows
from tablekeeper.write.tagging import Tagged
from tests.support.fake_runtime import FakeIds
from tests.support.table_builder import TRIPS, trips
from tests.support.write_context import make_context

SETTINGS = WriteSettings.of_table({}, key_fields=("id",))
INSTANT = RequestedTime("20240101000000000")


def staged(rows: int, *, size: int = 100, bucket: int = -1, number: int = 0) -> StagedBatch:
    return StagedBatch(partition="p", bucket=bucket, file="f", number=number, rows=rows, bytes=rows * size)


def slice_of(name: str, *, size: int = 1000, logs: int = 0, has_base: bool = True) -> FileSlice:
    group = FileGroupId("p", name)
    base = BaseFile(group, INSTANT, "0-0-0", f"{name}.parquet", size) if has_base else None
    made = tuple(LogFile(group, INSTANT, n + 1, "0-0-0", f"{name}.log.{n}", 10) for n in range(logs))
    return FileSlice(group, INSTANT, base, made)


def tagged(name: str, *positions: int, base_rows: int = 10) -> Tagged:
    return Tagged(FileGroupId("p", name), np.array(positions, np.int32).tobytes(), base_rows)


def plan(rows: PartitionRows, *, is_mor: bool = False, only_updates: bool = False, **changes: Any) -> list[GroupWork]:
    return plan_partition(rows, replace(SETTINGS, **changes), is_mor=is_mor, only_updates=only_updates, ids=FakeIds())


def kinds(work: list[GroupWork]) -> dict[str, WorkKind]:
    return {each.group.file_id: each.kind for each in work}


@pytest.mark.parametrize(("is_mor", "kind"), [(False, WorkKind.MERGE), (True, WorkKind.APPEND)])
def test_known_keys_go_to_their_group_as_a_merge_or_a_log(is_mor: bool, kind: WorkKind) -> None:
    rows = PartitionRows("p", (staged(2),), (slice_of("g"), slice_of("h")), (tagged("g", 0, 1), tagged("h")))
    (work,) = plan(rows, is_mor=is_mor)
    assert (work.kind, work.group.file_id) == (kind, "g")
    assert work.sources[0].positions == np.array([0, 1], np.int32).tobytes()


def test_a_delete_leaves_out_rows_with_unknown_keys() -> None:
    rows = PartitionRows("p", (staged(3),), (slice_of("g"),), (tagged("g", 1),))
    (work,) = plan(rows, only_updates=True)
    assert work.sources[0].positions == np.array([1], np.int32).tobytes()
    assert plan(PartitionRows("p", (staged(3),), (slice_of("g"),), (tagged("g"),)), only_updates=True) == []


def test_new_rows_of_an_empty_partition_make_a_new_group() -> None:
    (work,) = plan(PartitionRows("p", (staged(3),), (), ()))
    assert (work.kind, work.file_slice) == (WorkKind.CREATE, None)
    assert work.sources[0].positions is None


@pytest.mark.parametrize("is_mor", [False, True])
def test_new_rows_fill_a_small_file_and_its_updates_are_merged_with_them(is_mor: bool) -> None:
    rows = PartitionRows("p", (staged(4),), (slice_of("g"), slice_of("h")), (tagged("g", 0), tagged("h", 1)))
    work = plan(rows, is_mor=is_mor)
    # The first by size and name takes the new rows.
    assert kinds(work) == {"g": WorkKind.MERGE, "h": WorkKind.APPEND if is_mor else WorkKind.MERGE}
    assert len(work[0].sources) == 2


def test_rows_whose_keys_nobody_looked_up_extend_a_small_file() -> None:
    (work,) = plan(PartitionRows("p", (staged(4),), (slice_of("g"),), ()))
    assert work.kind is WorkKind.EXTEND


def test_files_with_logs_take_no_new_rows_in_a_merge_on_read_table() -> None:
    slices = (slice_of("g", logs=1), slice_of("h", has_base=False, logs=1))
    (work,) = plan(PartitionRows("p", (staged(4),), slices, ()), is_mor=True)
    assert work.kind is WorkKind.CREATE
    (work,) = plan(PartitionRows("p", (staged(4),), slices, ()))
    assert (work.kind, work.group.file_id) == (WorkKind.EXTEND, "g")


def test_files_above_the_limit_are_left_alone() -> None:
    rows = PartitionRows("p", (staged(4),), (slice_of("g", size=1000),), ())
    assert [each.kind for each in plan(rows, small_file_bytes=1000)] == [WorkKind.CREATE]
    assert [each.kind for each in plan(rows, small_file_bytes=1001)] == [WorkKind.EXTEND]


def test_a_file_takes_what_it_has_room_for_and_the_rest_makes_new_files_of_the_target_size() -> None:
    # A megabyte and a half of 15,000 rows: a hundred bytes a row. Room for 5,000 more; 25,000 make 1.25 files of 2 MB.
    rows = PartitionRows("p", (staged(30_000),), (slice_of("g", size=1_500_000),), (tagged("g", base_rows=15_000),))
    work = plan(rows, max_file_bytes=2_000_000, small_file_bytes=1_900_000)
    assert [each.kind for each in work] == [WorkKind.MERGE, WorkKind.CREATE, WorkKind.CREATE]
    shares = [each.sources[0].hashes for each in work]
    widths = [(share.end - share.start) / HASH_SPACE for share in shares if share is not None]
    assert widths == pytest.approx([5 / 30, 12.5 / 30, 12.5 / 30], abs=1e-3)
    assert shares[0] is not None
    assert shares[0].start == 0
    assert shares[-1] is not None
    assert shares[-1].end == HASH_SPACE


def test_a_tiny_file_does_not_tell_how_large_rows_are() -> None:
    # One row of 3,000 bytes, nearly all of it footer; 10,000 such rows would make 30 files.
    rows = PartitionRows("p", (staged(10_000),), (slice_of("g", size=3_000),), (tagged("g", base_rows=1),))
    assert len(plan(rows, max_file_bytes=1_000_000, small_file_bytes=900_000)) == 1


def test_a_bucket_is_the_group_whose_id_begins_with_its_number() -> None:
    existing = slice_of("00000002-x-0")
    batches = (staged(3, bucket=2), staged(1, bucket=0, number=1), staged(2, bucket=2, number=2))
    rows = PartitionRows("p", batches, (existing,), ())
    new, merge = plan_buckets(rows, is_mor=False, only_updates=False, new_buckets=OwnBuckets(FakeIds()))
    assert new.kind is WorkKind.CREATE
    assert new.group.file_id.startswith("00000000-")
    assert (merge.kind, merge.group) == (WorkKind.MERGE, existing.group)
    assert [batch.number for batch in merge.sources[0].staged] == [0, 2]
    (append,) = plan_buckets(rows, is_mor=True, only_updates=True, new_buckets=OwnBuckets(FakeIds()))
    assert append.kind is WorkKind.APPEND


def test_a_bucket_that_writers_share_has_the_id_that_all_of_them_know_and_begins_with_a_log_file() -> None:
    rows = PartitionRows("p", (staged(1, bucket=3), staged(1, bucket=11)), (slice_of("00000011-x-0"),), ())
    new, existing = plan_buckets(rows, is_mor=True, only_updates=False, new_buckets=SharedBuckets())
    assert (new.kind, new.file_slice) == (WorkKind.APPEND, None)
    assert new.group == FileGroupId("p", "00000003-0000-0000-0000-000000000000-0")
    assert (existing.kind, existing.group.file_id) == (WorkKind.APPEND, "00000011-x-0")


def test_a_shared_bucket_whose_group_a_replace_commit_hides_goes_on_under_the_next_id() -> None:
    rows = PartitionRows("p", (staged(1, bucket=3),), (), ())
    hidden = [FileGroupId("p", f"00000003-0000-0000-0000-000000000000-{number}") for number in (0, 1)]
    elsewhere = FileGroupId("q", "00000003-0000-0000-0000-000000000000-2")
    (work,) = plan_buckets(rows, is_mor=True, only_updates=False, new_buckets=SharedBuckets({*hidden, elsewhere}))
    assert work.group.file_id == "00000003-0000-0000-0000-000000000000-2"


@settings(max_examples=60, deadline=None)
@given(lanes=st.integers(1, 40), file_rows=st.integers(1, 60), smalls=st.integers(0, 3), data=st.data())
def test_every_row_goes_to_exactly_one_group_and_equal_keys_to_the_same(
    lanes: int, file_rows: int, smalls: int, data: st.DataObject
) -> None:
    """Rows are really staged, in several files and lanes, and what each task would load is put side by side."""
    counts = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    found = data.draw(st.sets(st.integers(0, sum(counts) - 1)))
    context = make_context(settings=replace(SETTINGS, task_memory_bytes=max(1, 2000 // lanes)))
    batches: list[StagedBatch] = []
    keys: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tablekeeper.write.staging._ROWS_A_LANE", max(1, 40 // lanes))
        for part, count in enumerate(counts):
            drawn = data.draw(st.lists(st.sampled_from([f"k{n}" for n in range(30)]), min_size=count, max_size=count))
            rows = trips(*((key, "p", n, float(part)) for n, key in enumerate(drawn)), schema=TRIPS)
            batches += stage_rows(context, part, iter(rows.to_batches(max_chunksize=7)))
            keys += drawn
    loaded = load_staged(context.store, batches)
    assert Counter(loaded.column("id").to_pylist()) == Counter(keys)
    known = {loaded.column("id")[n].as_py() for n in found}
    positions = [n for n, key in enumerate(loaded.column("id").to_pylist()) if key in known]
    slices = tuple(slice_of(f"g{n}", size=file_rows) for n in range(smalls))
    tags = tuple(tagged(s.group.file_id, *(positions if n == 0 else ())) for n, s in enumerate(slices))
    work = plan(
        PartitionRows("p", tuple(batches), slices, tags),
        max_file_bytes=file_rows * 2,
        small_file_bytes=file_rows + 1,
        row_bytes_estimate=1,
    )
    homes: dict[str, set[str]] = {}
    seen: Counter[tuple[str, int, float]] = Counter()
    for number, each in enumerate(work):
        rows = _load_rows(GroupTask(context, each, number, combines=False))
        for row in rows.to_pylist():
            homes.setdefault(row["id"], set()).add(each.group.file_id)
            seen[row["id"], row["ts"], row["fare"]] += 1
    assert seen == Counter((row["id"], row["ts"], row["fare"]) for row in loaded.to_pylist())
    assert all(len(groups) == 1 for groups in homes.values())
    if slices:
        assert all(homes[key] == {"g0"} for key in known)


def test_key_hashes_are_spread_evenly_also_for_short_and_similar_keys() -> None:
    for keys in ([str(n) for n in range(20_000)], [f"user-{n:09d}" for n in range(20_000)]):
        hashes = key_hashes(pa.array(keys))
        assert hashes.min() >= 0
        assert hashes.max() < HASH_SPACE
        shares = np.histogram(hashes, bins=16, range=(0, HASH_SPACE))[0] / len(keys)
        assert shares.max() < 2 / 16
