"""What a compaction of the metadata table merges, when it takes place, and which files are old."""

from __future__ import annotations

import pytest

from tablekeeper.metadata_table.clean import plan_old_files
from tablekeeper.metadata_table.compaction_plan import (
    MetadataState,
    choose_time,
    plan_merge,
    uncompacted_commits,
)
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.storage import FileInfo
from tablekeeper.timeline import Timeline, parse_time

__all__: list[str] = []

FILES = ".hoodie/metadata/files"


def time(minute: int, ms: int = 0) -> str:
    return f"2024010200{minute:02d}00{ms:03d}"


def done(minute: int, at: str | None = None, action: Action = Action.DELTA_COMMIT) -> Instant:
    return Instant(RequestedTime(time(minute)), action, State.COMPLETED, CompletionTime(at or time(minute, 500)))


def pending(minute: int, action: Action = Action.DELTA_COMMIT) -> Instant:
    return Instant(RequestedTime(time(minute)), action, State.INFLIGHT)


def log(minute: int) -> FileInfo:
    return FileInfo(f"{FILES}/.files-0000-0_{time(minute)}.log.1_0-0-0", 10, 0)


def base(at: str) -> FileInfo:
    return FileInfo(f"{FILES}/files-0000-0_0-0-0_{at}.hfile", 10, 0)


def state(*instants: Instant, files: list[FileInfo], data: list[Instant] | None = None) -> MetadataState:
    on_data = [i for i in instants if i.is_completed] if data is None else data
    return MetadataState(Timeline.of(on_data), Timeline.of(instants), {"files": files}, "UTC")


NOW_MS = parse_time(time(59), zone="UTC")


def test_the_compaction_takes_place_in_the_first_free_millisecond_after_what_it_merges() -> None:
    there = state(done(1), done(2), files=[log(1), log(2)])
    merge = plan_merge(there)
    assert merge is not None
    assert [i.requested_at.value for i in merge.commits] == [time(1), time(2)]
    assert [file.path for _, each in merge.slices for file in each.logs] == [log(1).path, log(2).path]
    assert choose_time(merge, there, now_ms=NOW_MS) == RequestedTime(time(2, 501))
    crowded = state(done(1), done(2), files=[log(1), log(2)], data=[done(1), done(2, time(2, 501))])
    assert choose_time(merge, crowded, now_ms=NOW_MS) == RequestedTime(time(2, 502))


def test_a_delta_commit_that_completes_after_the_merge_lies_on_top() -> None:
    before = state(done(1), done(3), files=[log(1), log(3)])
    merge = plan_merge(before)
    assert merge is not None
    # It was requested before the last one that is merged, and completed after it.
    after = state(done(1), done(3), done(2, time(3, 900)), files=[log(1), log(2), log(3)])
    assert plan_merge(after, among=merge.commits) == merge
    at = choose_time(merge, after, now_ms=NOW_MS)
    assert at is not None
    assert time(3, 500) < at.value < time(3, 900)


def test_there_is_no_moment_between_two_completions_one_millisecond_apart() -> None:
    merge = plan_merge(state(done(1), files=[log(1)]))
    assert merge is not None
    after = state(done(1), done(2, time(1, 501)), files=[log(1), log(2)])
    assert choose_time(merge, after, now_ms=NOW_MS) is None


def test_the_compaction_never_takes_place_in_the_future() -> None:
    there = state(done(1), files=[log(1)])
    merge = plan_merge(there)
    assert merge is not None
    assert choose_time(merge, there, now_ms=parse_time(time(1, 501), zone="UTC")) is None
    assert choose_time(merge, there, now_ms=parse_time(time(1, 502), zone="UTC")) is not None


def test_what_an_unfinished_action_wrote_is_not_merged_nor_anything_that_completed_after_it_began() -> None:
    instants = [done(1), done(2), done(4, time(6)), done(5)]
    files = [log(minute) for minute in (1, 2, 4, 5)]
    there = state(*instants, files=files, data=[done(1), done(2), pending(4, Action.COMMIT), done(5)])
    merge = plan_merge(there)
    assert merge is not None
    assert [i.requested_at.value for i in merge.commits] == [time(1), time(2)]
    at = choose_time(merge, there, now_ms=NOW_MS)
    assert at == RequestedTime(time(2, 501))
    first = state(*instants, files=files, data=[pending(1, Action.COMMIT), done(2), done(4), done(5)])
    assert plan_merge(first) is None


def test_a_merge_does_not_stand_when_one_of_its_commits_is_being_taken_back() -> None:
    files = [log(1), log(2)]
    merge = plan_merge(state(done(1), done(2), files=files))
    assert merge is not None
    taken_back = state(done(1), done(2), files=files, data=[done(1), pending(2, Action.COMMIT)])
    assert plan_merge(taken_back, among=merge.commits) != merge
    gone = state(done(1), files=[log(1)])
    assert plan_merge(gone, among=merge.commits) != merge
    redone = state(done(1), done(2, time(9)), files=files)
    assert plan_merge(redone, among=merge.commits) != merge


def test_a_merge_does_not_stand_after_another_compaction() -> None:
    files = [log(1), log(2)]
    merge = plan_merge(state(done(1), done(2), files=files))
    assert merge is not None
    other = Instant(RequestedTime(time(3)), Action.COMMIT, State.COMPLETED, CompletionTime(time(3, 1)))
    after = state(done(1), done(2), other, files=[*files, base(time(3))])
    assert plan_merge(after, among=merge.commits) != merge
    assert uncompacted_commits(after.timeline) == ()


def test_log_files_of_pending_delta_commits_are_not_merged() -> None:
    there = state(done(1), pending(2), files=[log(1), log(2)])
    merge = plan_merge(there)
    assert merge is not None
    assert [file.path for _, each in merge.slices for file in each.logs] == [log(1).path]


def compaction(minute: int, ms: int) -> Instant:
    completed = CompletionTime(time(minute, ms + 1))
    return Instant(RequestedTime(time(minute, ms)), Action.COMMIT, State.COMPLETED, completed)


def test_files_below_the_second_newest_base_file_are_old() -> None:
    instants = [done(1), compaction(1, 600), done(2), compaction(2, 600), done(3), compaction(3, 600), done(4)]
    bases = [base(time(minute, 600)) for minute in (1, 2, 3)]
    logs = [log(minute) for minute in (1, 2, 3, 4)]
    there = state(*instants, files=[*bases, *logs])
    assert set(plan_old_files(there)) == {bases[0].path, logs[0].path, logs[1].path}


@pytest.mark.parametrize(("saved", "bases", "logs"), [(0, 0, 0), (1, 0, 1), (2, 1, 2), (3, 2, 3), (4, 2, 3)])
def test_what_made_up_the_metadata_table_at_a_savepoint_is_not_old(saved: int, bases: int, logs: int) -> None:
    instants = [i for minute in (1, 2, 3, 4) for i in (done(minute), compaction(minute, 600))]
    files = [file for minute in (1, 2, 3, 4) for file in (log(minute), base(time(minute, 600)))]
    savepoint = Instant(RequestedTime(time(saved, 700)), Action.SAVEPOINT, State.COMPLETED, CompletionTime(time(9)))
    old = plan_old_files(state(*instants, files=files, data=[done(1), savepoint]))
    are_bases = [path.endswith(".hfile") for path in old]
    assert (are_bases.count(True), are_bases.count(False)) == (bases, logs)


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_is_old_below_fewer_than_two_base_files(count: int) -> None:
    instants = [done(1), done(2), *[compaction(2, 600)] * count, done(3)]
    there = state(*instants, files=[log(1), log(2), *[base(time(2, 600))] * count, log(3)])
    assert plan_old_files(there) == ()


def test_a_log_that_completed_late_or_of_which_nobody_knows_when_it_did_is_not_old() -> None:
    late = done(1, time(2, 700))
    instants = [late, done(2), compaction(2, 600), done(3), compaction(3, 600)]
    there = state(*instants, files=[log(0), log(1), log(2), base(time(2, 600)), base(time(3, 600)), log(3)])
    assert plan_old_files(there) == (log(2).path,)


def test_a_base_file_without_a_completed_compaction_is_no_slice() -> None:
    waiting = Instant(RequestedTime(time(3, 600)), Action.COMPACTION, State.INFLIGHT)
    instants = [done(1), compaction(1, 600), done(2), done(3), waiting]
    there = state(*instants, files=[log(1), base(time(1, 600)), log(2), log(3), base(time(3, 600))])
    assert plan_old_files(there) == ()
    merge = plan_merge(there)
    assert merge is not None
    assert [each.base_instant for _, each in merge.slices] == [RequestedTime(time(1, 600))]
