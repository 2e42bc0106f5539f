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
from tablekeeper.format.hashing import HASH_SPACE, spread_hashes
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, LogFile, RequestedTime
from tablekeeper.write.context import WriteContext
from tablekeeper.write.plan import (
    GroupWork,
    OwnBuckets,
    PartitionRows,
    PlannedRows,
    SharedBuckets,
    WorkKind,
    plan_bins,
    plan_buckets,
    plan_partition,
    restage_shares,
)
from tablekeeper.write.routing import BinRows, RestageTask, Routes, load_rows_by_work, restage_rows
from tablekeeper.write.staging import StagedBatch, load_staged, stage_rows
from tablekeeper.write.tagging import LookedUp, TagPage, save_tags
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


def rows_of(
    staged_rows: int, *slices: FileSlice, found: dict[int, int] | None = None, base_rows: int = 10, **more: Any
) -> PartitionRows:
    """So many staged rows of which `found[n]` are in the slice `n`; slices that are not named were not looked into."""
    looked_up = tuple(LookedUp(number, count, base_rows) for number, count in (found or {}).items())
    known = sum((found or {}).values())
    return PartitionRows("p", (staged(staged_rows),), slices, looked_up, known_rows=known, **more)


def plan(rows: PartitionRows, *, is_mor: bool = False, only_updates: bool = False, **changes: Any) -> PlannedRows:
    return plan_partition(rows, replace(SETTINGS, **changes), is_mor=is_mor, only_updates=only_updates, ids=FakeIds())


def routes_of(planned: PlannedRows) -> Routes:
    assert planned.routes is not None
    return planned.routes


def kinds(work: tuple[GroupWork, ...]) -> dict[str, WorkKind]:
    return {each.group.file_id: each.kind for each in work}


@pytest.mark.parametrize(("is_mor", "kind"), [(False, WorkKind.MERGE), (True, WorkKind.APPEND)])
def test_known_keys_go_to_their_group_as_a_merge_or_a_log(is_mor: bool, kind: WorkKind) -> None:
    planned = plan(rows_of(2, slice_of("f"), slice_of("g"), found={0: 0, 1: 2}), is_mor=is_mor)
    (work,) = planned.work
    assert (work.kind, work.group.file_id, work.rows) == (kind, "g", 2)
    assert routes_of(planned).of_slices == (-1, 0)
    assert routes_of(planned).fresh == ()


def test_a_delete_leaves_out_rows_with_unknown_keys() -> None:
    planned = plan(rows_of(3, slice_of("g"), found={0: 1}), only_updates=True)
    assert [work.rows for work in planned.work] == [1]
    assert routes_of(planned).fresh == ()
    assert plan(rows_of(3, slice_of("g"), found={0: 0}), only_updates=True).work == ()


def test_new_rows_of_an_empty_partition_make_a_new_group() -> None:
    planned = plan(rows_of(3))
    (work,) = planned.work
    assert (work.kind, work.file_slice, work.rows) == (WorkKind.CREATE, None, 3)
    assert (routes_of(planned).fresh, routes_of(planned).ends) == ((0,), (HASH_SPACE,))


def test_rows_that_counts_cannot_tell_from_known_ones_have_a_group_to_go_to() -> None:
    rows = rows_of(4, slice_of("g"), slice_of("h"), found={0: 2, 1: 2}, counts_twice=True)
    planned = plan(rows)
    assert [work.kind for work in planned.work] == [WorkKind.MERGE, WorkKind.MERGE, WorkKind.CREATE]
    assert routes_of(planned).fresh == (2,)
    assert len(plan(rows, only_updates=True).work) == 2


@pytest.mark.parametrize("is_mor", [False, True])
def test_new_rows_fill_a_small_file_and_its_updates_are_merged_with_them(is_mor: bool) -> None:
    planned = plan(rows_of(4, slice_of("g"), slice_of("h"), found={0: 1, 1: 1}), is_mor=is_mor)
    # The first by size and name takes the new rows.
    assert kinds(planned.work) == {"g": WorkKind.MERGE, "h": WorkKind.APPEND if is_mor else WorkKind.MERGE}
    assert [work.rows for work in planned.work] == [3, 1]
    assert routes_of(planned).fresh == (0,)


def test_rows_whose_keys_nobody_looked_up_extend_a_small_file() -> None:
    (work,) = plan(rows_of(4, slice_of("g"))).work
    assert work.kind is WorkKind.EXTEND


def test_files_with_logs_take_no_new_rows_in_a_merge_on_read_table() -> None:
    slices = (slice_of("g", logs=1), slice_of("h", has_base=False, logs=1))
    (work,) = plan(rows_of(4, *slices), is_mor=True).work
    assert work.kind is WorkKind.CREATE
    (work,) = plan(rows_of(4, *slices)).work
    assert (work.kind, work.group.file_id) == (WorkKind.EXTEND, "g")


def test_files_above_the_limit_are_left_alone() -> None:
    rows = rows_of(4, slice_of("g", size=1000))
    assert [each.kind for each in plan(rows, small_file_bytes=1000).work] == [WorkKind.CREATE]
    assert [each.kind for each in plan(rows, small_file_bytes=1001).work] == [WorkKind.EXTEND]


def test_a_file_takes_what_it_has_room_for_and_the_rest_makes_new_files_of_the_target_size() -> None:
    # A megabyte and a half of 15,000 rows: a hundred bytes a row. Room for 5,000 more; 25,000 make 1.25 files of 2 MB.
    rows = rows_of(30_000, slice_of("g", size=1_500_000), found={0: 0}, base_rows=15_000)
    planned = plan(rows, max_file_bytes=2_000_000, small_file_bytes=1_900_000)
    assert [each.kind for each in planned.work] == [WorkKind.MERGE, WorkKind.CREATE, WorkKind.CREATE]
    assert routes_of(planned).fresh == (0, 1, 2)
    shares = np.diff(routes_of(planned).ends, prepend=0) / HASH_SPACE
    assert list(shares) == pytest.approx([5 / 30, 12.5 / 30, 12.5 / 30], abs=1e-3)
    assert routes_of(planned).ends[-1] == HASH_SPACE


def test_a_tiny_file_does_not_tell_how_large_rows_are() -> None:
    # One row of 3,000 bytes, nearly all of it footer; 10,000 such rows would make 30 files.
    rows = rows_of(10_000, slice_of("g", size=3_000), found={0: 0}, base_rows=1)
    assert len(plan(rows, max_file_bytes=1_000_000, small_file_bytes=900_000).work) == 1


def test_a_bucket_is_the_group_whose_id_begins_with_its_number() -> None:
    existing = slice_of("00000002-x-0")
    batches = (staged(3, bucket=2), staged(1, bucket=0, number=1), staged(2, bucket=2, number=2))
    rows = PartitionRows("p", batches, (existing,))
    created, merged = plan_buckets(rows, is_mor=False, only_updates=False, new_buckets=OwnBuckets(FakeIds()))
    (new,), (merge,) = created.work, merged.work
    assert new.kind is WorkKind.CREATE
    assert new.group.file_id.startswith("00000000-")
    assert (merge.kind, merge.group) == (WorkKind.MERGE, existing.group)
    assert [batch.number for batch in merged.staged] == [0, 2]
    assert (new.rows, merge.rows) == (1, 5)
    (appended,) = plan_buckets(rows, is_mor=True, only_updates=True, new_buckets=OwnBuckets(FakeIds()))
    (append,) = appended.work
    assert append.kind is WorkKind.APPEND


def test_a_bucket_that_writers_share_has_the_id_that_all_of_them_know_and_begins_with_a_log_file() -> None:
    rows = PartitionRows("p", (staged(1, bucket=3), staged(1, bucket=11)), (slice_of("00000011-x-0"),))
    planned = plan_buckets(rows, is_mor=True, only_updates=False, new_buckets=SharedBuckets())
    new, existing = (each.work[0] for each in planned)
    assert (new.kind, new.file_slice) == (WorkKind.APPEND, None)
    assert new.group == FileGroupId("p", "00000003-0000-0000-0000-000000000000-0")
    assert (existing.kind, existing.group.file_id) == (WorkKind.APPEND, "00000011-x-0")


def test_a_shared_bucket_whose_group_a_replace_commit_hides_goes_on_under_the_next_id() -> None:
    rows = PartitionRows("p", (staged(1, bucket=3),), ())
    hidden = [FileGroupId("p", f"00000003-0000-0000-0000-000000000000-{number}") for number in (0, 1)]
    elsewhere = FileGroupId("q", "00000003-0000-0000-0000-000000000000-2")
    (planned,) = plan_buckets(rows, is_mor=True, only_updates=False, new_buckets=SharedBuckets({*hidden, elsewhere}))
    assert planned.work[0].group.file_id == "00000003-0000-0000-0000-000000000000-2"


def loaded_by_work(context: WriteContext, planned: PlannedRows, *, parallelism: int) -> dict[int, pa.Table]:
    """What the tasks of all bins would load, by the number of the work."""
    (binned,) = plan_bins([planned], parallelism=parallelism)
    found: dict[int, pa.Table] = {}
    restaged = []
    if binned.needs_restaging:
        for share in restage_shares(planned):
            restaged += restage_rows(RestageTask(context, share, routes_of(planned), binned.bin_of_work))
    for place, each in enumerate(binned.bins):
        source = each.rows
        if binned.needs_restaging:
            source = BinRows(tuple(enumerate(r.batch for r in restaged if r.bin == place)))
        mine = load_rows_by_work(context.store, source, [number for number, _ in each.work])
        assert set(mine) <= {number for number, _ in each.work}
        found |= mine
    return found


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(1, 40),
    file_rows=st.integers(1, 60),
    smalls=st.integers(0, 3),
    parallelism=st.integers(1, 4),
    bin_bytes=st.sampled_from([1, 500, 1 << 20]),
    data=st.data(),
)
def test_every_row_goes_to_exactly_one_group_and_equal_keys_to_the_same(
    *, lanes: int, file_rows: int, smalls: int, parallelism: int, bin_bytes: int, data: st.DataObject
) -> None:
    """Rows are really staged, in several files and lanes, and what each bin would load is put side by side."""
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
    ids = loaded.column("id").to_pylist()
    known = {ids[n] for n in found} if smalls else set()
    ends = np.cumsum([batch.rows for batch in batches])
    tags_of = [
        np.flatnonzero(np.array([key in known for key in ids[end - batch.rows : end]])).astype(np.int32)
        for batch, end in zip(batches, ends, strict=True)
    ]
    pages = [TagPage(rows_known, np.zeros_like(rows_known)) for rows_known in tags_of]
    hits = sum(map(len, tags_of))
    planned = plan(
        PartitionRows(
            "p",
            tuple(batches),
            tuple(slice_of(f"g{n}", size=file_rows) for n in range(smalls)),
            tuple(LookedUp(n, hits if n == 0 else 0, 10) for n in range(smalls)),
            tags=(save_tags(context.store, range(len(batches)), pages, file="tags"),) if smalls else (),
            known_rows=hits,
        ),
        max_file_bytes=file_rows * 2,
        small_file_bytes=file_rows + 1,
        row_bytes_estimate=1,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_STAGED_BYTES", "_TINY_BYTES"):
            patch.setattr(f"tablekeeper.write.plan.{name}", bin_bytes)
        by_work = loaded_by_work(context, planned, parallelism=parallelism)
    homes: dict[str, set[str]] = {}
    seen: Counter[tuple[str, int, float]] = Counter()
    for number, rows in by_work.items():
        assert rows.column_names == loaded.column_names
        for row in rows.to_pylist():
            homes.setdefault(row["id"], set()).add(planned.work[number].group.file_id)
            seen[row["id"], row["ts"], row["fare"]] += 1
        # Of rows with one key the one that came last wins where nothing else decides.
        for key in set(rows.column("id").to_pylist()):
            assert [r for r in rows.to_pylist() if r["id"] == key] == [r for r in loaded.to_pylist() if r["id"] == key]
    assert seen == Counter((row["id"], row["ts"], row["fare"]) for row in loaded.to_pylist())
    assert all(len(groups) == 1 for groups in homes.values())
    assert all(homes[key] == {"g0"} for key in known)


def test_key_hashes_are_spread_evenly_also_for_short_and_similar_keys() -> None:
    for keys in ([str(n) for n in range(20_000)], [f"user-{n:09d}" for n in range(20_000)]):
        hashes = spread_hashes(pa.array(keys))
        assert hashes.min() >= 0
        assert hashes.max() < HASH_SPACE
        shares = np.histogram(hashes, bins=16, range=(0, HASH_SPACE))[0] / len(keys)
        assert shares.max() < 2 / 16
