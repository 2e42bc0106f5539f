"""File slices as Java forms them: which base file a log lies on, and what a reader sees at a moment.

Times are written short: `i(5)` is requested at 5, and a file name holds that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tablekeeper.model import Action, CompletionTime, FileGroupId, FileSlice, Instant, RequestedTime, State
from tablekeeper.snapshot.slices import SliceRules, decode_partition_files, plan_slices
from tablekeeper.timeline import Timeline

G = "a1b2c3d4-0000-4000-8000-000000000001-0"
H = "a1b2c3d4-0000-4000-8000-000000000002-0"


def at(number: int) -> str:
    """An instant time of the usual length."""
    return f"20240101{number:09d}"


def done(requested: int, completed: int | None = None, action: Action = Action.DELTA_COMMIT) -> Instant:
    completed_at = CompletionTime(at(requested if completed is None else completed))
    return Instant(RequestedTime(at(requested)), action, State.COMPLETED, completed_at)


def pending(requested: int, action: Action = Action.DELTA_COMMIT, state: State = State.INFLIGHT) -> Instant:
    return Instant(RequestedTime(at(requested)), action, state)


def base(number: int, group: str = G, token: str = "0-0-0") -> str:
    return f"{group}_{token}_{at(number)}.parquet"


def log(number: int, group: str = G, version: int = 1, token: str = "0-0-0", suffix: str = "") -> str:
    return f".{group}_{at(number)}.log.{version}_{token}{suffix}"


def slices(
    files: Iterable[str],
    timeline: Iterable[Instant],
    *,
    version: int = 9,
    as_of: int | None = None,
    replaced: Mapping[str, int] | None = None,
    archived: Mapping[int, int] | None = None,
    archived_until: int | None = None,
) -> dict[str, list[tuple[int, bool, list[int]]]]:
    """For each group its slices, newest first: base instant, whether there is a base file, instants of the logs."""
    known = {RequestedTime(at(i)): CompletionTime(at(c)) for i, c in (archived or {}).items()}
    reach = RequestedTime(at(archived_until)) if archived_until is not None else None
    rules = SliceRules(
        timeline=Timeline.of(timeline, archive=lambda: reach),
        version=version,
        as_of=RequestedTime(at(as_of)) if as_of is not None else None,
        replaced={FileGroupId("p", group): RequestedTime(at(when)) for group, when in (replaced or {}).items()},
        archived_completion=known.get,
    )
    groups = plan_slices(decode_partition_files("p", [(name, 10) for name in files]), rules)
    return {group.file_id: [shape(each) for each in found] for group, found in groups.items()}


def shape(each: FileSlice) -> tuple[int, bool, list[int]]:
    return int(each.base_instant.value[8:]), each.base is not None, [int(e.instant.value[8:]) for e in each.logs]


def test_each_committed_base_file_begins_a_slice_and_the_newest_comes_first() -> None:
    timeline = [done(1, action=Action.COMMIT), done(5, action=Action.COMMIT)]
    assert slices([base(1), base(5), base(1, H)], timeline) == {
        G: [(5, True, []), (1, True, [])],
        H: [(1, True, [])],
    }


def test_logs_lie_on_the_newest_base_file_that_is_not_after_their_completion() -> None:
    timeline = [done(1, 2), done(3, 4), done(5, 6), done(7, 9, Action.COMMIT), done(10, 11)]
    files = [base(1), log(3), log(5), base(7), log(10)]
    assert slices(files, timeline) == {G: [(7, True, [10]), (1, True, [3, 5])]}


def test_a_delta_commit_that_began_before_a_compaction_and_completed_after_it_survives_it() -> None:
    timeline = [done(1, 2), done(3, 12), done(5, 8, Action.COMMIT)]
    assert slices([base(1), log(3), base(5)], timeline) == {G: [(5, True, [3]), (1, True, [])]}


def test_a_delta_commit_that_completed_after_the_compaction_was_requested_is_kept_on_top_of_it() -> None:
    # It was not in the plan: a plan holds logs that were complete when it was made.
    timeline = [done(1, 2), done(3, 6), done(5, 8, Action.COMMIT)]
    assert slices([base(1), log(3), base(5)], timeline) == {G: [(5, True, [3]), (1, True, [])]}


def test_a_delta_commit_that_completed_before_the_compaction_is_below_it() -> None:
    timeline = [done(1, 2), done(3, 4), done(5, 8, Action.COMMIT)]
    assert slices([base(1), log(3), base(5)], timeline) == {G: [(5, True, []), (1, True, [3])]}


def test_a_group_of_logs_alone_is_one_slice_named_after_its_first_log() -> None:
    assert slices([log(3), log(1)], [done(1, 2), done(3, 4)]) == {G: [(1, False, [1, 3])]}


def test_logs_from_before_the_first_base_file_are_an_older_slice_without_one() -> None:
    timeline = [done(1, 2), done(3, 4), done(5, 6, Action.COMMIT), done(7, 8)]
    assert slices([log(1), log(3), base(5), log(7)], timeline) == {G: [(5, True, [7]), (1, False, [1, 3])]}


def test_logs_of_a_slice_are_ordered_by_instant_version_and_token_as_numbers() -> None:
    names = [log(5, version=2), log(5, version=10), log(5, token="0-10-0"), log(5, token="0-9-0"), log(3)]
    rules = SliceRules(timeline=Timeline.of([done(3), done(5)]), version=9)
    groups = plan_slices(decode_partition_files("p", [(name, 1) for name in names]), rules)
    (found,) = groups[FileGroupId("p", G)]
    assert [each.name for each in found.logs] == [names[4], names[3], names[2], names[0], names[1]]


@pytest.mark.parametrize("state", [State.REQUESTED, State.INFLIGHT])
def test_files_of_pending_instants_are_invisible(state: State) -> None:
    timeline = [done(1), pending(3, state=state), pending(5, Action.COMMIT, state)]
    assert slices([base(1), log(3), base(5), base(5, H)], timeline) == {G: [(1, True, [])]}


def test_files_of_instants_that_left_the_timeline_are_invisible_unless_they_are_older_than_it() -> None:
    assert slices([base(3), base(7, H)], [done(5), done(9)], archived_until=3) == {G: [(3, True, [])]}


def test_files_older_than_the_timeline_are_invisible_where_the_archive_does_not_reach_them() -> None:
    assert slices([base(3), base(4, H)], [done(5), done(9)]) == {}
    assert slices([base(3), base(4, H)], [done(5), done(9)], archived_until=3) == {G: [(3, True, [])]}
    # An archive that died had written what it was about to remove.
    assert slices([base(3), base(7, H)], [done(5), done(9)], archived_until=8) == {G: [(3, True, [])]}


def test_the_archive_is_asked_only_about_instants_older_than_the_timeline_and_only_once() -> None:
    asked: list[None] = []

    def reach() -> RequestedTime:
        asked.append(None)
        return RequestedTime(at(3))

    timeline = Timeline.of([done(5), done(9)], archive=reach)
    assert [timeline.is_completed(RequestedTime(at(number))) for number in (5, 6, 9, 10)] == [True, False, True, False]
    assert not asked
    assert [timeline.is_completed(RequestedTime(at(number))) for number in (2, 3, 4)] == [True, True, False]
    assert len(asked) == 1


def test_a_pending_write_at_the_start_of_the_timeline_does_not_make_its_own_files_visible() -> None:
    assert slices([base(3), base(2, H)], [pending(3), done(5)], archived_until=4) == {H: [(2, True, [])]}


def test_a_savepoint_holds_no_place_at_the_start_of_the_timeline() -> None:
    savepoint = Instant(RequestedTime(at(1)), Action.SAVEPOINT, State.COMPLETED, CompletionTime(at(9)))
    # Instants between the savepointed commit and the rest are archived.
    found = slices([base(1), base(3, H)], [done(1), savepoint, done(5)], archived_until=4)
    assert found == {G: [(1, True, [])], H: [(3, True, [])]}


def test_a_pending_compaction_changes_nothing() -> None:
    timeline = [done(1, 2), done(3, 4), pending(5, Action.COMPACTION), done(6, 7)]
    assert slices([base(1), log(3), base(5), log(6)], timeline) == {G: [(1, True, [3, 6])]}


def test_nothing_that_was_requested_after_the_moment_asked_for_is_seen() -> None:
    timeline = [done(1, 2), done(3, 4), done(5, 6, Action.COMMIT), done(7, 8)]
    files = [base(1), log(3), base(5), log(7)]
    assert slices(files, timeline, as_of=7) == {G: [(5, True, [7]), (1, True, [3])]}
    assert slices(files, timeline, as_of=6) == {G: [(5, True, []), (1, True, [3])]}
    assert slices(files, timeline, as_of=4) == {G: [(1, True, [3])]}
    assert slices(files, timeline, as_of=2) == {G: [(1, True, [])]}
    assert slices(files, timeline, as_of=0) == {}


def test_a_replaced_group_is_hidden_from_its_replacement_on() -> None:
    timeline = [done(1), done(5, action=Action.REPLACE_COMMIT)]
    files = [base(1), base(5, H)]
    assert slices(files, timeline, replaced={G: 5}) == {H: [(5, True, [])]}
    assert slices(files, timeline, replaced={G: 5}, as_of=4) == {G: [(1, True, [])]}
    assert slices(files, timeline, replaced={G: 5}, as_of=5) == {H: [(5, True, [])]}


def test_an_archived_log_under_a_newer_base_file_is_placed_by_its_archived_completion() -> None:
    timeline = [done(9), done(20)]
    files = [base(1), log(3), base(5)]
    assert slices(files, timeline, archived={3: 4}, archived_until=5) == {G: [(5, True, []), (1, True, [3])]}
    assert slices(files, timeline, archived={3: 6}, archived_until=5) == {G: [(5, True, [3]), (1, True, [])]}
    # Not in the history either: it is taken to have completed at once.
    assert slices(files, timeline, archived_until=5) == {G: [(5, True, []), (1, True, [3])]}


def test_an_archived_log_on_the_newest_base_file_needs_no_history() -> None:
    assert slices([base(1), log(3)], [done(9)], archived_until=8) == {G: [(1, True, [3])]}


def test_in_version_6_the_name_of_a_log_holds_its_base_instant() -> None:
    timeline = [done(1, action=Action.COMMIT), done(3), done(5, action=Action.COMMIT), done(7)]
    files = [base(1), log(1), log(1, version=2), base(5), log(5)]
    assert slices(files, timeline, version=6) == {G: [(5, True, [5]), (1, True, [1, 1])]}


def test_in_version_6_logs_of_a_pending_compaction_go_on_top_of_the_slice_before() -> None:
    timeline = [done(1, action=Action.COMMIT), done(3), pending(5, Action.COMPACTION), done(7)]
    assert slices([base(1), log(1), log(5)], timeline, version=6) == {G: [(1, True, [1, 5])]}


def test_logs_of_change_data_and_other_files_are_not_part_of_a_slice() -> None:
    others = [".hoodie_partition_metadata", f".{base(1)}.crc", "_SUCCESS", "notes.txt", f"{base(1)}.tmp"]
    assert slices([base(1), log(3, suffix=".cdc"), *others], [done(1), done(3)]) == {G: [(1, True, [])]}


def test_of_two_base_files_with_one_instant_only_one_counts() -> None:
    found = slices([base(1, token="0-1-1"), base(1, token="0-2-2")], [done(1)])
    assert found == {G: [(1, True, [])]}


def test_old_instants_of_14_digits_order_as_if_padded() -> None:
    old = Instant(RequestedTime("20240101000000"), Action.COMMIT, State.COMPLETED, CompletionTime(at(999)))
    files = [(f"{G}_0-0-0_20240101000000.parquet", 1), (log(1000), 1), (log(998), 1)]
    rules = SliceRules(timeline=Timeline.of([done(998), old, done(1000)]), version=9)
    newest, older = plan_slices(decode_partition_files("p", files), rules)[FileGroupId("p", G)]
    assert (newest.base is not None, [each.name for each in newest.logs]) == (True, [log(1000)])
    assert (older.base, [each.name for each in older.logs]) == (None, [log(998)])
