"""The archived timeline as it grows: files, merges, versions, and what those who come too late must not do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, FencedError, NotFoundError
from tablekeeper.format.history import (
    ArchivedInstant,
    decode_history_file,
    decode_history_name,
    encode_history_file,
)
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.storage import MemoryStorage, Storage, forget_memory
from tablekeeper.timeline.history import (
    HistorySnapshot,
    archived_completions,
    find_archived,
    iterate_history,
    load_archived_content,
    load_history,
    load_history_snapshot,
)
from tablekeeper.timeline.history_writer import MergeLimits, append_history, clean_history, merge_history
from tests.support.fake_runtime import FakeClock
from tests.support.step_faults import one_thread_runtime
from tests.support.storage_wrappers import CountingStorage
from tests.support.table_builder import TableBuilder

__all__: list[str] = []

LIMITS = MergeLimits(files=3, max_bytes=1 << 30)
DIRECTORY = ".hoodie/timeline/history"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def storage(clock: FakeClock) -> Iterator[Storage]:
    name = f"history-{uuid4()}"
    yield MemoryStorage(f"memory://{name}/t", runtime=one_thread_runtime(clock, process=1))
    forget_memory(name)


@pytest.fixture(scope="module")
def config() -> Iterator[TableConfig]:
    tables = TableBuilder()
    yield tables.create().config
    tables.forget()


def archived(number: int, action: Action = Action.COMMIT, plan: bytes | None = None) -> ArchivedInstant:
    times = RequestedTime(f"20240101{number:09d}"), CompletionTime(f"20240202{number:09d}")
    return ArchivedInstant(Instant(times[0], action, State.COMPLETED, times[1]), f"m{number}".encode(), plan)


def append(storage: Storage, *instants: int, snapshot: HistorySnapshot | None = None) -> HistorySnapshot:
    before = snapshot or load_history_snapshot(storage, DIRECTORY)
    return append_history(storage, before, [archived(n) for n in instants], row_group_instants=10)


def names(storage: Storage) -> list[str]:
    return [file.name for file in storage.list_files(DIRECTORY)]


def layers(snapshot: HistorySnapshot) -> list[int]:
    found = [decode_history_name(file.name) for file in snapshot.files]
    return sorted(name.layer for name in found if name is not None)


def numbers(instants: Sequence[ArchivedInstant] | Iterator[ArchivedInstant]) -> list[int]:
    return [int(each.instant.requested_at.value[8:]) for each in instants]


def test_a_history_begins_with_version_one_and_lists_its_file(storage: Storage, config: TableConfig) -> None:
    assert load_history(storage, config) == []
    snapshot = append(storage, 2, 1)
    assert names(storage) == ["20240101000000001_20240101000000002_0.parquet", "_version_", "manifest_1"]
    assert storage.read(f"{DIRECTORY}/_version_") == b"1"
    assert load_history_snapshot(storage, DIRECTORY) == snapshot
    assert load_history(storage, config) == [archived(1), archived(2)]


def test_every_change_is_a_new_version_of_all_live_files(storage: Storage, config: TableConfig) -> None:
    for number in range(1, 5):
        append(storage, number)
    snapshot = load_history_snapshot(storage, DIRECTORY)
    assert (snapshot.version, len(snapshot.files)) == (4, 4)
    assert numbers(load_history(storage, config)) == [1, 2, 3, 4]


def test_instants_are_found_by_time_in_the_files_that_can_hold_them_only(storage: Storage, config: TableConfig) -> None:
    for first in (1, 11, 21):
        append(storage, *range(first, first + 10))
    counting = CountingStorage(storage)
    assert numbers(load_history(counting, config, first=archived(12).instant.requested_at)) == list(range(12, 31))
    files = [path for kind, path in counting.calls if path.endswith(".parquet")]
    assert len(files) == 2
    counting.reset()
    assert find_archived(counting, config, archived(15).instant) == archived(15)
    assert find_archived(counting, config, archived(99).instant) is None
    assert len([path for _, path in counting.calls if path.endswith(".parquet")]) == 1


def test_completion_times_are_looked_up_without_reading_contents_or_a_file_twice(
    storage: Storage, config: TableConfig
) -> None:
    for first in (1, 11, 21):
        append(storage, *range(first, first + 10))
    counting = CountingStorage(storage)
    completion_of = archived_completions(counting, config)
    assert completion_of(RequestedTime("20230101000000000")) is None
    for number in (12, 13, 14, 12):
        assert completion_of(archived(number).instant.requested_at) == archived(number).instant.completed_at
    assert counting.counts["open_input"] == 1
    assert counting.counts["read"] == 1


def test_the_newest_instants_come_first_and_older_files_are_not_touched_before_they_are_needed(
    storage: Storage, config: TableConfig
) -> None:
    append(storage, 1, 2, 3)
    append(storage, 4, 6)
    append(storage, 5, 7)
    counting = CountingStorage(storage)
    found = iterate_history(counting, config)
    assert numbers([next(found) for _ in range(4)]) == [7, 6, 5, 4]
    assert len([path for _, path in counting.calls if path.endswith(".parquet")]) == 2
    assert numbers(found) == [3, 2, 1]


def test_contents_of_completed_files_and_plans_are_kept(storage: Storage, config: TableConfig) -> None:
    clean = archived(1, Action.CLEAN, b"plan")
    append_history(storage, load_history_snapshot(storage, DIRECTORY), [clean], row_group_instants=1)
    requested = replace(clean.instant, state=State.REQUESTED, completed_at=None)
    assert load_archived_content(storage, config, clean.instant) == b"m1"
    assert load_archived_content(storage, config, requested) == b"plan"
    assert load_archived_content(storage, config, replace(requested, state=State.INFLIGHT)) is None
    assert load_archived_content(storage, config, archived(1).instant) is None


def test_full_layers_are_merged_into_the_next_and_so_on(storage: Storage, config: TableConfig) -> None:
    for number in range(1, 28):
        merge_history(storage, append(storage, number), LIMITS)
    snapshot = load_history_snapshot(storage, DIRECTORY)
    assert layers(snapshot) == [3]
    assert snapshot.files[0].name == "20240101000000001_20240101000000027_3.parquet"
    assert snapshot.files[0].size == len(storage.read(snapshot.path_of(snapshot.files[0])))
    assert load_history(storage, config) == [archived(n) for n in range(1, 28)]


def test_the_oldest_files_of_a_layer_are_merged_first(storage: Storage) -> None:
    snapshot = append(storage, 1)
    for number in range(2, 6):
        snapshot = append(storage, number, snapshot=snapshot)
    merged = merge_history(storage, snapshot, MergeLimits(files=4, max_bytes=1 << 30))
    assert [file.name for file in merged.files] == [
        "20240101000000005_20240101000000005_0.parquet",
        "20240101000000001_20240101000000004_1.parquet",
    ]


def test_files_too_large_to_be_merged_are_left_alone(storage: Storage) -> None:
    for number in range(1, 6):
        append(storage, number)
    snapshot = load_history_snapshot(storage, DIRECTORY)
    assert merge_history(storage, snapshot, MergeLimits(files=4, max_bytes=1)) == snapshot
    size = max(file.size for file in snapshot.files)
    merged = merge_history(storage, snapshot, MergeLimits(files=4, max_bytes=size + size // 2))
    assert layers(merged) == [0, 0, 0, 1]


def test_layer_nine_is_the_last_because_java_reads_one_digit(storage: Storage) -> None:
    snapshot = append(storage, 1)
    tops = [replace(snapshot.files[0], name=f"{n}_{n}_9.parquet") for n in range(1, 5)]
    for file in tops:
        storage.put(snapshot.path_of(file), encode_history_file([archived(1)]))
    crowded = replace(snapshot, files=tuple(tops))
    assert merge_history(storage, crowded, LIMITS) == crowded


def test_an_instant_in_two_files_is_loaded_once_and_merged_into_one(storage: Storage, config: TableConfig) -> None:
    append(storage, 1, 2)
    append(storage, 2, 3)
    assert numbers(load_history(storage, config)) == [1, 2, 3]
    assert numbers(iterate_history(storage, config)) == [3, 2, 1]
    merged = merge_history(storage, append(storage, 3, 4), LIMITS)
    path = merged.path_of(merged.files[0])
    assert numbers(decode_history_file(storage.read(path), file=path)) == [1, 2, 3, 4]


def test_old_manifests_go_with_the_files_that_only_they_name(
    storage: Storage, config: TableConfig, clock: FakeClock
) -> None:
    for number in range(1, 8):
        snapshot = merge_history(storage, append(storage, number), LIMITS)
        clock.advance(1)
        clean_history(storage, snapshot, manifests_kept=2)
        clock.advance(1)
    assert [name for name in names(storage) if name.startswith("manifest")] == ["manifest_8", "manifest_9"]
    live = {file.name for file in load_history_snapshot(storage, DIRECTORY).files}
    assert {name for name in names(storage) if name.endswith(".parquet")} - live <= {
        "20240101000000004_20240101000000004_0.parquet",
        "20240101000000005_20240101000000005_0.parquet",
        "20240101000000006_20240101000000006_0.parquet",
    }
    assert numbers(load_history(storage, config)) == list(range(1, 8))


def test_a_clean_leaves_alone_what_is_younger_than_the_manifests_it_knows(storage: Storage, clock: FakeClock) -> None:
    for number in range(1, 6):
        snapshot = append(storage, number)
        clock.advance(1)
    fresh = f"{DIRECTORY}/20240101000000006_20240101000000006_0.parquet"
    stray = f"{DIRECTORY}/20230101000000006_20230101000000006_0.parquet"
    storage.put(fresh, b"another archive, which has not published it yet")
    removed = clean_history(storage, snapshot, manifests_kept=1)
    assert removed == tuple(f"{DIRECTORY}/manifest_{n}" for n in (1, 2, 3, 4))
    assert storage.stat(fresh) is not None
    storage.put(stray, b"an archive that died")
    clock.advance(1)
    snapshot = append(storage, 6)
    clock.advance(1)
    append(storage, 7)
    assert clean_history(storage, snapshot, manifests_kept=1) == (f"{DIRECTORY}/manifest_5", stray, fresh)


def test_a_file_left_behind_keeps_its_name_to_itself(storage: Storage, config: TableConfig) -> None:
    leftover = f"{DIRECTORY}/20240101000000001_20240101000000002_0.parquet"
    storage.put(leftover, b"half an archive")
    snapshot = append(storage, 1, 2)
    assert snapshot.files[0].name == "20240101000000001_20240101000000003_0.parquet"
    assert storage.read(leftover) == b"half an archive"
    assert numbers(load_history(storage, config)) == [1, 2]


def test_a_manifest_left_behind_is_replaced(storage: Storage, config: TableConfig) -> None:
    append(storage, 1)
    storage.put(f"{DIRECTORY}/manifest_2", b'{"files"')
    assert numbers(load_history(storage, config)) == [1]
    assert append(storage, 2).version == 2
    assert numbers(load_history(storage, config)) == [1, 2]


def test_the_highest_manifest_counts_where_the_version_file_is_gone_or_damaged(
    storage: Storage, config: TableConfig
) -> None:
    append(storage, 1)
    append(storage, 2)
    storage.delete(f"{DIRECTORY}/_version_")
    assert numbers(load_history(storage, config)) == [1, 2]
    assert append(storage, 3).version == 3
    storage.put(f"{DIRECTORY}/_version_", b"?")
    assert numbers(load_history(storage, config)) == [1, 2, 3]
    assert append(storage, 4).version == 4
    assert storage.read(f"{DIRECTORY}/_version_") == b"4"
    storage.put(f"{DIRECTORY}/_version_", b"77")
    assert numbers(load_history(storage, config)) == [1, 2, 3, 4]


def test_of_two_archives_on_one_snapshot_the_second_is_told_that_it_lost(storage: Storage, config: TableConfig) -> None:
    start = append(storage, 1)
    append(storage, 2, snapshot=start)
    for instants in [(3,), (2,)]:
        with pytest.raises(FencedError, match="run the archive again"):
            append(storage, *instants, snapshot=start)
    assert numbers(load_history(storage, config)) == [1, 2]
    beginner = HistorySnapshot(DIRECTORY, 0, ())
    with pytest.raises(FencedError):
        append(storage, 9, snapshot=beginner)
    assert numbers(load_history(storage, config)) == [1, 2]


def test_a_reader_whose_files_go_while_it_reads_starts_again(storage: Storage, config: TableConfig) -> None:
    for number in range(1, 4):
        snapshot = append(storage, number)

    class Late(CountingStorage):
        """Merges and removes everything old when the first file is asked for."""

        def read(self, path: str) -> bytes:
            if path.endswith("_0.parquet"):
                merged = merge_history(storage, snapshot, LIMITS) if snapshot.version == 3 else snapshot
                for file in snapshot.files:
                    storage.delete(merged.path_of(file))
            return super().read(path)

    assert numbers(load_history(Late(storage), config)) == [1, 2, 3]


def test_a_file_that_is_really_missing_is_an_error(storage: Storage, config: TableConfig) -> None:
    snapshot = append(storage, 1)
    storage.delete(snapshot.path_of(snapshot.files[0]))
    with pytest.raises(NotFoundError):
        load_history(storage, config)
    with pytest.raises(NotFoundError):
        list(iterate_history(storage, config))
    storage.put(f"{DIRECTORY}/manifest_1", b'{"files": [{"fileName": "x", "fileLen": 1}]}')
    with pytest.raises(CorruptTableError, match="foreign file"):
        load_history(storage, config)


def test_tables_of_version_six_have_no_such_history(storage: Storage, config: TableConfig) -> None:
    append(storage, 1)
    old = replace(config, version=6)
    assert load_history(storage, old) == []
    assert list(iterate_history(storage, old)) == []
    assert archived_completions(storage, old)(archived(1).instant.requested_at) is None
