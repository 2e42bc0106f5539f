"""Which files a clean deletes, on timelines made by hand.

Times are written short: `done(5)` is a commit requested at 5, and `base(5)` the base file that it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.table_config import TableConfig, parse_table_config
from tablekeeper.format.plans import CleanMetadata
from tablekeeper.model import Action, CompletionTime, FileGroupId, Instant, RequestedTime, State
from tablekeeper.services.clean.plan import (
    MISSING_KEY,
    PLANNED_ON_KEY,
    SAVEPOINTS_KEY,
    VERSIONS_KEY,
    CleanDraft,
    CleanView,
    Fate,
    Holds,
    plan_clean,
)
from tablekeeper.services.clean.view import LastClean, plan_scope
from tablekeeper.snapshot.retention import plan_retained
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.timeline import Timeline, format_time

__all__: list[str] = []

G = "a1b2c3d4-0000-4000-8000-000000000001-0"
H = "a1b2c3d4-0000-4000-8000-000000000002-0"
NOW_MS = 1_710_000_000_000


def at(number: int) -> str:
    return f"20240101{number:09d}"


def time_of(number: int) -> RequestedTime:
    return RequestedTime(at(number))


def done(requested: int, completed: int | None = None, action: Action = Action.COMMIT) -> Instant:
    completed_at = CompletionTime(at(requested if completed is None else completed))
    return Instant(time_of(requested), action, State.COMPLETED, completed_at)


def pending(requested: int, action: Action = Action.COMMIT, state: State = State.INFLIGHT) -> Instant:
    return Instant(time_of(requested), action, state)


def base(number: int, group: str = G, token: str = "0-0-0") -> str:
    return f"{group}_{token}_{at(number)}.parquet"


def log(number: int, group: str = G, suffix: str = "") -> str:
    return f".{group}_{at(number)}.log.1_0-0-0{suffix}"


def config(table_type: str = "COPY_ON_WRITE") -> TableConfig:
    properties = {
        "hoodie.table.name": "t",
        "hoodie.table.type": table_type,
        "hoodie.table.version": "9",
        "hoodie.table.partition.fields": "p",
        "hoodie.table.timeline.timezone": "UTC",
    }
    return parse_table_config(properties, file="hoodie.properties")


def keep(commits: int) -> CleanSettings:
    return CleanSettings(commits=commits)


def versions(count: int) -> CleanSettings:
    return CleanSettings(policy=CleanPolicy.VERSIONS, versions=count)


def draft(
    files: Iterable[str],
    timeline: Iterable[Instant],
    settings: CleanSettings,
    *,
    replaced: Mapping[str, int] | None = None,
    holds: Holds | None = None,
) -> CleanDraft:
    whole = Timeline.of(timeline)
    view = CleanView(
        config=config(),
        timeline=whole,
        earliest=plan_retained(whole, settings, now_ms=NOW_MS, zone="UTC"),
        files={"p": decode_partition_files("p", [(name, 10) for name in files])},
        replaced={FileGroupId("p", group): time_of(when) for group, when in (replaced or {}).items()},
        holds=holds or Holds(),
    )
    return plan_clean(view, settings)


def gone(planned: CleanDraft) -> list[str]:
    return sorted(file.name for files in planned.files.values() for file in files)


def retained(timeline: Iterable[Instant], settings: CleanSettings, previous: int | None = None) -> int | None:
    before = None if previous is None else time_of(previous)
    found = plan_retained(Timeline.of(timeline), settings, now_ms=NOW_MS, zone="UTC", previous=before)
    return None if found is None else int(found.requested_at.value[8:])


def test_the_oldest_retained_commit_is_the_first_of_the_latest() -> None:
    assert retained([done(n) for n in range(1, 16)], keep(10)) == 6
    assert retained([done(n) for n in range(1, 11)], keep(10)) is None
    assert retained([done(n) for n in range(1, 12)], keep(10)) == 2


def test_cleans_savepoints_and_rollbacks_do_not_count_as_commits() -> None:
    others = [done(20, action=Action.CLEAN), done(21, action=Action.ROLLBACK), done(3, action=Action.SAVEPOINT)]
    assert retained([*(done(n) for n in range(1, 4)), *others], keep(3)) is None


@pytest.mark.parametrize("action", [Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT, Action.COMPACTION])
def test_a_pending_write_or_plan_holds_the_oldest_retained_commit_back(action: Action) -> None:
    commits = [done(n) for n in (1, 2, 4, 5, 6)]
    assert retained([*commits, pending(3, action, State.REQUESTED)], keep(2)) == 2
    assert retained([*commits, pending(9, action)], keep(2)) == 5


def test_a_pending_write_before_all_commits_leaves_nothing_to_clean() -> None:
    assert retained([pending(1), done(2), done(3), done(4)], keep(1)) is None


def test_a_pending_log_compaction_or_clean_does_not_hold_it_back() -> None:
    commits = [done(n) for n in (1, 2, 4, 5)]
    waiting = [pending(3, Action.LOG_COMPACTION, State.REQUESTED), pending(2, Action.CLEAN, State.REQUESTED)]
    assert retained([*commits, *waiting], keep(1)) == 5


def test_by_hours_the_first_commit_inside_the_hours_is_the_oldest_retained() -> None:
    def ago(hours: float) -> Instant:
        text = format_time(NOW_MS - int(hours * 3_600_000), zone="UTC")
        return Instant(RequestedTime(text), Action.COMMIT, State.COMPLETED, CompletionTime(text))

    settings = CleanSettings(policy=CleanPolicy.HOURS, hours=5)
    commits = [ago(9), ago(6), ago(4), ago(1)]
    assert plan_retained(Timeline.of(commits), settings, now_ms=NOW_MS, zone="UTC") == commits[2]
    assert plan_retained(Timeline.of(commits[:2]), settings, now_ms=NOW_MS, zone="UTC") is None


def test_no_more_commits_leave_the_window_at_once_than_the_settings_allow() -> None:
    commits = [done(n) for n in range(1, 101)]
    assert retained(commits, CleanSettings(commits=10, most_commits=50), previous=1) == 51
    assert retained(commits, CleanSettings(commits=10, most_commits=50), previous=60) == 91
    assert retained(commits, CleanSettings(commits=10, most_commits=50)) == 91


def test_a_group_keeps_its_newest_slice_the_window_and_the_one_slice_before_it() -> None:
    planned = draft([base(n) for n in (1, 2, 3, 4, 5)], [done(n) for n in range(1, 6)], keep(2))
    assert gone(planned) == [base(1), base(2)]
    fates = {int(each.file_slice.base_instant.value[8:]): each.fate for each in planned.verdicts}
    assert fates == {1: Fate.OLD, 2: Fate.OLD, 3: Fate.WINDOW_START, 4: Fate.IN_WINDOW, 5: Fate.NEWEST}
    assert planned.bytes == 20
    assert planned.readable_from == at(3)


def test_a_group_that_was_not_touched_lately_keeps_its_newest_slice_alone() -> None:
    planned = draft([base(1), base(2), base(5, H)], [done(n) for n in range(1, 6)], keep(2))
    assert gone(planned) == [base(1)]


def test_logs_go_and_stay_with_their_slice() -> None:
    files = [base(1), log(2), base(3), log(4), base(5), log(6)]
    timeline = [
        *(done(n, action=Action.DELTA_COMMIT) for n in (1, 2, 4, 6, 7, 8)),
        *(done(n, action=Action.COMMIT) for n in (3, 5)),
    ]
    assert gone(draft(files, timeline, keep(1))) == sorted([base(1), log(2), base(3), log(4)])
    assert gone(draft(files, timeline, keep(4))) == sorted([base(1), log(2)])


def test_a_log_that_completed_after_a_compaction_began_stays_with_the_compacted_slice() -> None:
    files = [base(1), log(2), base(3)]
    timeline = [done(1), done(2, 4, Action.DELTA_COMMIT), done(3, 5), done(6), done(7)]
    assert gone(draft(files, timeline, keep(1))) == [base(1)]


def test_change_data_files_go_with_their_slice() -> None:
    files = [base(1), log(1, suffix=".cdc"), base(2), log(2, suffix=".cdc"), base(3), log(3, suffix=".cdc")]
    planned = draft(files, [done(n) for n in range(1, 4)], keep(1))
    assert gone(planned) == sorted([base(1), log(1, suffix=".cdc")])


def test_files_of_writes_that_did_not_complete_are_left_to_the_rollback() -> None:
    files = [base(2), base(3), base(4), base(5), log(3)]
    timeline = [done(2), pending(3), done(4), done(5)]
    assert gone(draft(files, timeline, versions(1))) == [base(2), base(4)]


def test_a_second_file_of_the_same_commit_goes_with_the_first() -> None:
    files = [base(1, token="0-0-0"), base(1, token="0-7-9"), base(2), base(3)]
    planned = draft(files, [done(n) for n in range(1, 4)], keep(1))
    assert gone(planned) == [base(1, token="0-0-0"), base(1, token="0-7-9")]


def test_replaced_groups_go_once_their_replacement_left_the_window() -> None:
    files = [base(1), base(2, H)]
    timeline = [done(1), done(2), done(3, action=Action.REPLACE_COMMIT), done(4), done(5)]
    assert gone(draft(files, timeline, keep(2), replaced={G: 3})) == [base(1)]
    inside = draft(files, timeline, keep(3), replaced={G: 3})
    assert gone(inside) == []
    assert [each.fate for each in inside.verdicts if each.file_slice.group.file_id == G] == [Fate.REPLACED_IN_WINDOW]


def test_by_versions_replaced_groups_go_at_once() -> None:
    timeline = [done(1), done(2), done(3, action=Action.REPLACE_COMMIT)]
    planned = draft([base(1), base(2, H)], timeline, versions(3), replaced={G: 3})
    assert gone(planned) == [base(1)]
    assert planned.readable_from == at(3)


def test_by_versions_each_group_keeps_its_newest() -> None:
    files = [base(n) for n in (1, 2, 3, 4)] + [base(n, H) for n in (1, 2)]
    planned = draft(files, [done(n) for n in range(1, 5)], versions(3))
    assert gone(planned) == [base(1)]
    assert planned.retained is None


def test_by_versions_what_a_pending_compaction_needs_counts_as_one_version() -> None:
    files = [base(1), base(2), base(3), log(4)]
    timeline = [done(1), done(2), done(3), done(4, action=Action.DELTA_COMMIT), pending(5, Action.COMPACTION)]
    holds = Holds(planned_bases={FileGroupId("p", G): time_of(3)})
    assert gone(draft(files, timeline, versions(1), holds=holds)) == [base(1), base(2)]
    assert gone(draft(files, timeline, versions(2), holds=holds)) == [base(1)]


def test_by_versions_the_newest_slice_stays_even_if_a_plan_names_a_later_one() -> None:
    holds = Holds(planned_bases={FileGroupId("p", G): time_of(9)})
    assert gone(draft([base(1), base(2)], [done(1), done(2)], versions(1), holds=holds)) == [base(1)]


def test_a_slice_with_a_savepointed_file_stays_whole() -> None:
    files = [base(1), log(2), base(3), base(4)]
    timeline = [done(1), done(2, action=Action.DELTA_COMMIT), done(3), done(4), done(5)]
    assert gone(draft(files, timeline, keep(1))) == sorted([base(1), log(2), base(3)])
    holds = Holds(savepointed={"p": frozenset({log(2)})})
    planned = draft(files, timeline, keep(1), holds=holds)
    assert gone(planned) == [base(3)]
    assert Fate.SAVEPOINT in {each.fate for each in planned.verdicts}


def test_slices_that_pending_plans_need_stay() -> None:
    files = [base(n) for n in (1, 2, 3, 4)]
    timeline = [done(n) for n in range(1, 6)]
    compaction = Holds(planned_bases={FileGroupId("p", G): time_of(2)})
    assert gone(draft(files, timeline, keep(1), holds=compaction)) == [base(1)]
    clustering = Holds(planned_files={"p": frozenset({base(1)})})
    planned = draft(files, timeline, keep(1), holds=clustering)
    assert gone(planned) == [base(2), base(3)]
    assert planned.missing == ("p",)


def test_a_partition_of_files_that_go_is_emptied() -> None:
    timeline = [done(1), done(2, action=Action.REPLACE_COMMIT), done(3), done(4)]
    assert draft([base(1)], timeline, keep(2), replaced={G: 2}).emptied == ("p",)
    assert draft([base(1)], timeline, keep(3), replaced={G: 2}).emptied == ()
    assert draft([], timeline, keep(2)).emptied == ("p",)


def test_a_partition_is_not_emptied_while_a_file_of_it_stays() -> None:
    timeline = [done(1), done(2, action=Action.REPLACE_COMMIT), done(3), done(4), pending(5)]
    assert draft([base(1), base(5, H)], timeline, keep(2), replaced={G: 2}).emptied == ()
    assert draft([base(1), log(5)], timeline, keep(2), replaced={G: 2}).emptied == ()
    saved = Holds(savepointed={"p": frozenset({base(1)})})
    assert draft([base(1)], timeline, keep(2), replaced={G: 2}, holds=saved).emptied == ()


def test_news_take_files_out_of_a_draft() -> None:
    timeline = [done(1), done(2, action=Action.REPLACE_COMMIT), done(3), done(4)]
    planned = draft([base(1)], timeline, keep(2), replaced={G: 2})
    assert gone(planned) == [base(1)]
    later = planned.without(Holds(savepointed={"p": frozenset({base(1)})}))
    assert gone(later) == []
    assert later.emptied == ()
    assert later.is_empty
    kept = planned.keeping(["p"])
    assert gone(kept) == [base(1)]
    assert (kept.emptied, kept.missing) == ((), ("p",))


def test_what_is_retained_never_goes_back_behind_an_earlier_clean() -> None:
    planned = draft([base(n) for n in range(1, 6)], [done(n) for n in range(1, 6)], keep(4))
    assert planned.retained == time_of(2)
    assert replace(planned, previous=time_of(4)).retained == time_of(4)


def test_a_plan_tells_the_next_clean_where_to_go_on() -> None:
    planned = draft([base(n) for n in (1, 2, 3)], [done(1), done(2, 9), done(3)], versions(1))
    saved = replace(planned, savepoints=(time_of(2),))
    extra = saved.extra_metadata(is_partitioned=True)
    assert extra[SAVEPOINTS_KEY] == at(2)
    assert extra[PLANNED_ON_KEY] == at(9)
    assert extra[VERSIONS_KEY] == "1"
    assert SAVEPOINTS_KEY not in saved.extra_metadata(is_partitioned=False)


def last(retained_from: int | None, extra: Mapping[str, str] | None = None, *, requested: int = 50) -> LastClean:
    instant = done(requested, action=Action.CLEAN)
    text = "" if retained_from is None else at(retained_from)
    return LastClean(instant, CleanMetadata(at(requested), 1, 1, text, extra_metadata=extra or {}))


def scope_of(
    timeline: Iterable[Instant], settings: CleanSettings, earliest: int | None, clean: LastClean | None
) -> tuple[list[int] | None, str]:
    first = None if earliest is None else done(earliest)
    known = Timeline.of(timeline, archive=lambda: RequestedTime(at(4)))
    scope = plan_scope(known, settings, earliest=first, last=clean)
    found = None if scope.instants is None else [int(i.requested_at.value[8:]) for i in scope.instants]
    return found, scope.reason


COMMITS = [done(n) for n in range(1, 9)]


def test_only_commits_that_left_the_window_since_the_last_clean_are_looked_at() -> None:
    assert scope_of(COMMITS, keep(2), 7, last(4))[0] == [4, 5, 6]
    assert scope_of(COMMITS, keep(2), 4, last(4))[0] == []


def test_a_commit_that_completed_after_the_last_clean_was_planned_is_looked_at_however_old() -> None:
    late = [*COMMITS[1:], done(1, 60)]
    assert scope_of(late, keep(2), 7, last(4))[0] == [1, 4, 5, 6]


def test_partitions_that_the_last_clean_left_open_are_looked_at_again() -> None:
    scope = plan_scope(Timeline.of(COMMITS), keep(2), earliest=done(7), last=last(4, {MISSING_KEY: '["x", "y/z"]'}))
    assert scope.also == {"x", "y/z"}


@pytest.mark.parametrize(
    ("clean", "settings", "reason"),
    [
        (None, keep(2), "no completed clean"),
        (last(4), CleanSettings(commits=2, incremental=False), "switched off"),
        (last(None), keep(2), "does not say"),
        (last(4, {SAVEPOINTS_KEY: at(3)}), keep(2), "savepoint"),
        (last(4), versions(3), "file versions"),
        (last(None, {VERSIONS_KEY: "3"}), versions(2), "file versions"),
    ],
)
def test_all_partitions_are_looked_into_where_the_last_clean_does_not_help(
    clean: LastClean | None, settings: CleanSettings, reason: str
) -> None:
    instants, why = scope_of(COMMITS, settings, 7, clean)
    assert instants is None
    assert reason in why


def test_all_partitions_are_looked_into_if_what_the_last_clean_retained_is_archived() -> None:
    instants, why = scope_of(COMMITS[4:], keep(2), 7, last(3))
    assert instants is None
    assert "archived" in why


def test_by_versions_what_completed_since_the_last_clean_is_looked_at() -> None:
    clean = last(None, {VERSIONS_KEY: "3", PLANNED_ON_KEY: at(5)}, requested=6)
    assert scope_of(COMMITS, versions(3), None, clean)[0] == [6, 7, 8]
    assert scope_of(COMMITS, versions(5), None, clean)[0] == [6, 7, 8]


def test_nothing_is_looked_into_without_an_oldest_retained_commit() -> None:
    assert scope_of(COMMITS, keep(50), None, last(4))[0] == []
