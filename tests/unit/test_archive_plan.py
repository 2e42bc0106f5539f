"""Which instants may be archived: every rule that holds an instant back, and what goes when none does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tablekeeper.config.archive_settings import ArchiveSettings
from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State
from tablekeeper.services.archive import ActiveAction, ArchivePlan, ArchiveResult, ArchiveView, plan_archive
from tablekeeper.services.archive.plan import MetadataState, RetainedByClean
from tablekeeper.timeline import Timeline

__all__: list[str] = []

BY_VERSIONS = CleanSettings(policy=CleanPolicy.VERSIONS)
KEEP = ArchiveSettings(keep_min=3, keep_max=5, clean=BY_VERSIONS, compact_after=None)


def at(number: int) -> RequestedTime:
    return RequestedTime(f"20240101{number:09d}")


def done(number: int, action: Action = Action.COMMIT, *, begun_as: Action | None = None, size: int = 1) -> ActiveAction:
    completed = CompletionTime(f"20240101{number:08d}5")
    instant = Instant(at(number * 10), action, State.COMPLETED, completed)
    requested = Instant(at(number * 10), begun_as or action, State.REQUESTED)
    return ActiveAction(instant, (instant,), (requested,), size)


def ending(action: ActiveAction, *, after: int) -> ActiveAction:
    """The same, completed later than it would have been."""
    instant = replace(action.instant, completed_at=CompletionTime(f"20240101{after:08d}9"))
    return replace(action, instant=instant, completed_files=(instant,))


def pending(number: int, action: Action = Action.COMMIT) -> Instant:
    return Instant(at(number * 10), action, State.INFLIGHT)


def view(
    actions: Iterable[ActiveAction],
    *others: Instant,
    is_mor: bool = False,
    last_clean: RetainedByClean | None = None,
    metadata: MetadataState | None = None,
    data_timeline: Timeline | None = None,
) -> ArchiveView:
    listed = tuple(sorted(actions, key=lambda action: action.instant.requested_at.order))
    timeline = Timeline.of([*(action.instant for action in listed), *others])
    return ArchiveView(timeline, listed, is_mor, "UTC", last_clean, metadata, data_timeline)


def numbers(plan: ArchivePlan) -> list[int]:
    return [int(action.instant.requested_at.value[8:]) // 10 for action in plan.actions]


def commits(first: int, last: int, action: Action = Action.COMMIT) -> list[ActiveAction]:
    return [done(number, action) for number in range(first, last + 1)]


def test_nothing_goes_while_no_more_commits_are_there_than_may_be() -> None:
    plan = plan_archive(view(commits(1, 5)), KEEP)
    assert numbers(plan) == []
    assert not plan.is_due
    assert plan.reason == "5 completed commits are on the active timeline, 5 may be"


def test_the_oldest_commits_go_until_the_least_number_is_left() -> None:
    plan = plan_archive(view(commits(1, 6)), KEEP)
    assert numbers(plan) == [1, 2, 3]
    assert plan.reason == "3 completed commits stay on the active timeline"


def test_cleans_and_rollbacks_before_the_last_commit_that_goes_go_with_it() -> None:
    others = [
        done(0, Action.ROLLBACK),
        done(2, Action.CLEAN),
        done(9, Action.CLEAN),
        done(8, Action.ROLLBACK),
    ]
    plan = plan_archive(view([*others, *(done(n) for n in (1, 3, 4, 5, 10, 11))]), KEEP)
    assert numbers(plan) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("action", [Action.RESTORE, Action.INDEXING])
def test_completed_restores_and_indexings_stay(action: Action) -> None:
    plan = plan_archive(view([done(0, action), *commits(1, 6)]), KEEP)
    assert numbers(plan) == [1, 2, 3]


@pytest.mark.parametrize(
    "action", [a for a in Action if a not in (Action.RESTORE, Action.SAVEPOINT)], ids=lambda action: action.value
)
def test_the_newest_commit_before_the_oldest_pending_instant_stays(action: Action) -> None:
    plan = plan_archive(view([done(n) for n in (1, 2, 4, 5, 6, 7, 8)], pending(3, action), pending(9)), KEEP)
    assert numbers(plan) == [1]
    assert "is pending" in plan.reason


@pytest.mark.parametrize("action", [Action.COMMIT, Action.CLUSTERING])
def test_a_commit_that_completed_after_the_oldest_pending_write_began_stays(action: Action) -> None:
    late = ending(done(3), after=6)
    others = [done(n) for n in (1, 2, 4, 5, 7, 8, 9)]
    plan = plan_archive(view([late, *others], pending(6, action)), KEEP)
    assert numbers(plan) == [1, 2]
    assert "completed while" in plan.reason
    free = plan_archive(view([late, *others], pending(6, Action.CLEAN)), KEEP)
    assert numbers(free) == [1, 2, 3, 4]


def test_the_commit_that_completed_last_stays() -> None:
    plan = plan_archive(view([ending(done(3), after=9), *(done(n) for n in (1, 2, 4, 5, 6, 7, 8, 9))]), KEEP)
    assert numbers(plan) == [1, 2]
    assert "completed last" in plan.reason


def test_nothing_goes_when_the_oldest_instant_is_pending() -> None:
    assert numbers(plan_archive(view(commits(2, 9), pending(1)), KEEP)) == []


def test_nothing_goes_while_a_restore_is_pending() -> None:
    plan = plan_archive(view(commits(1, 9), pending(10, Action.RESTORE)), KEEP)
    assert numbers(plan) == []
    assert "a restore is pending" in plan.reason


@pytest.mark.parametrize("is_completed", [True, False])
def test_the_first_savepoint_and_everything_after_it_stays(is_completed: bool) -> None:
    saved = Instant(at(30), Action.SAVEPOINT, State.INFLIGHT)
    if is_completed:
        saved = Instant(at(30), Action.SAVEPOINT, State.COMPLETED, CompletionTime(at(999).value))
    plan = plan_archive(view(commits(1, 9), saved), KEEP)
    assert numbers(plan) == ([1, 2] if is_completed else [1])


def test_delta_commits_that_trigger_the_next_compaction_stay() -> None:
    settings = ArchiveSettings(keep_min=1, keep_max=2, clean=BY_VERSIONS, compact_after=4)
    deltas = commits(1, 9, Action.DELTA_COMMIT)
    assert numbers(plan_archive(view(deltas, is_mor=True), settings)) == [1, 2, 3, 4, 5]
    assert numbers(plan_archive(view(deltas), settings)) == list(range(1, 9))


def test_with_few_delta_commits_the_last_compaction_stays() -> None:
    settings = ArchiveSettings(keep_min=1, keep_max=2, clean=BY_VERSIONS, compact_after=9, keep_last_plans=False)
    actions = [*commits(1, 3, Action.DELTA_COMMIT), done(4), *commits(5, 7, Action.DELTA_COMMIT)]
    assert numbers(plan_archive(view(actions, is_mor=True), settings)) == [1, 2, 3]
    assert numbers(plan_archive(view(commits(1, 7, Action.DELTA_COMMIT), is_mor=True), settings)) == []


def test_a_replace_commit_stays_until_a_clean_has_gone_past_it() -> None:
    actions = [*commits(1, 2), done(3, Action.REPLACE_COMMIT), *commits(4, 9)]
    assert numbers(plan_archive(view(actions), KEEP)) == [1, 2]
    before = RetainedByClean(at(95), earliest=at(30))
    assert numbers(plan_archive(view(actions, last_clean=before), KEEP)) == [1, 2]
    behind = RetainedByClean(at(95), earliest=at(40))
    assert numbers(plan_archive(view(actions, last_clean=behind), KEEP)) == [1, 2, 3, 4, 5, 6]


def test_a_clean_by_file_versions_has_gone_past_what_was_there_when_it_began() -> None:
    actions = [*commits(1, 2), done(3, Action.REPLACE_COMMIT), *commits(4, 5), done(6, Action.REPLACE_COMMIT)]
    clean = RetainedByClean(at(45), earliest=None)
    assert numbers(plan_archive(view([*actions, *commits(7, 12)], last_clean=clean), KEEP)) == [1, 2, 3, 4, 5]


def test_replace_commits_behind_a_savepoint_that_the_clean_spared_stay() -> None:
    actions = [*commits(1, 2), done(3, Action.REPLACE_COMMIT), *commits(4, 9)]
    clean = RetainedByClean(at(95), earliest=at(60), savepoints=(at(20),))
    settings = ArchiveSettings(keep_min=3, keep_max=5, clean=CleanSettings(commits=3))
    assert numbers(plan_archive(view(actions, last_clean=clean), settings)) == [1, 2]


def test_nothing_goes_before_the_metadata_table_was_compacted() -> None:
    plan = plan_archive(view(commits(1, 9), metadata=MetadataState(None)), KEEP)
    assert numbers(plan) == []
    assert "metadata table was never compacted" in plan.reason


def test_commits_that_completed_after_the_last_compaction_of_the_metadata_table_stay() -> None:
    compacted = MetadataState(RequestedTime(at(35).value))
    assert numbers(plan_archive(view(commits(1, 9), metadata=compacted), KEEP)) == [1, 2, 3]


def test_the_metadata_table_keeps_what_the_active_timeline_of_its_table_begins_with() -> None:
    table = Timeline.of([*(action.instant for action in commits(4, 9)), pending(10)])
    settings = KEEP.for_metadata_table()
    deltas = [*commits(1, 10, Action.DELTA_COMMIT), done(11), done(12, Action.DELTA_COMMIT)]
    plan = plan_archive(view(deltas, data_timeline=table), settings)
    assert numbers(plan) == [1, 2, 3]
    assert (plan.keep_min, plan.keep_max) == (4, 6)


def test_the_metadata_table_keeps_what_it_has_not_compacted() -> None:
    table = Timeline.of([done(20).instant])
    settings = KEEP.for_metadata_table()
    deltas = commits(1, 12, Action.DELTA_COMMIT)
    assert numbers(plan_archive(view(deltas, data_timeline=table), settings)) == []
    deltas[3] = done(4)
    assert numbers(plan_archive(view(deltas, data_timeline=table), settings)) == [1, 2, 3]


@pytest.mark.parametrize("service", [Action.COMPACTION, Action.LOG_COMPACTION, Action.CLUSTERING])
def test_the_last_plan_of_each_service_stays_within_reason(service: Action) -> None:
    def planned(count: int) -> list[int]:
        actions = [done(1), done(2, service.completed_as, begun_as=service), *commits(3, count)]
        clean = RetainedByClean(at(9999), earliest=at(9998))
        return numbers(plan_archive(view(actions, last_clean=clean), KEEP))

    assert planned(11) == [1]
    assert planned(12) == list(range(1, 10))


def test_a_commit_that_began_before_the_last_plan_and_completed_after_it_stays_with_it() -> None:
    late = Instant(at(10), Action.COMMIT, State.COMPLETED, CompletionTime(at(33).value))
    actions = [done(0), ActiveAction(late, (late,)), done(2), done(3, begun_as=Action.COMPACTION), *commits(4, 8)]
    assert numbers(plan_archive(view(actions), KEEP)) == [0]


def test_the_last_plan_goes_like_any_other_if_the_settings_say_so() -> None:
    actions = [done(1), done(2, begun_as=Action.COMPACTION), *commits(3, 9)]
    settings = ArchiveSettings(keep_min=3, keep_max=5, clean=BY_VERSIONS, keep_last_plans=False)
    assert numbers(plan_archive(view(actions), settings)) == [1, 2, 3, 4, 5, 6]


def test_what_the_last_clean_retained_stays_on_request() -> None:
    clean = RetainedByClean(at(95), earliest=at(30))
    settings = ArchiveSettings(keep_min=3, keep_max=5, clean=BY_VERSIONS, stop_at_clean=True)
    assert numbers(plan_archive(view(commits(1, 9), last_clean=clean), settings)) == [1, 2]


def test_no_fewer_commits_stay_than_the_next_clean_retains_and_two_more() -> None:
    settings = ArchiveSettings(keep_min=3, keep_max=5, clean=CleanSettings(commits=6))
    plan = plan_archive(view(commits(1, 10)), settings)
    assert (plan.keep_min, plan.keep_max) == (7, 9)
    assert numbers(plan) == [1, 2, 3]
    assert numbers(plan_archive(view(commits(1, 9)), settings)) == []


def test_commits_of_the_hours_that_the_next_clean_retains_stay() -> None:
    settings = ArchiveSettings(keep_min=1, keep_max=2, clean=CleanSettings(policy=CleanPolicy.HOURS, hours=1))
    hours = [f"2024010{day}{hour:02d}0000000" for day in (1, 2) for hour in range(24)]
    actions = []
    for text in hours:
        instant = Instant(RequestedTime(text), Action.COMMIT, State.COMPLETED, CompletionTime(text))
        actions.append(ActiveAction(instant, (instant,)))
    plan = plan_archive(view(actions), settings)
    assert len(plan.actions) == len(hours) - 3


def test_a_pending_write_moves_what_the_next_clean_retains_back() -> None:
    settings = ArchiveSettings(keep_min=1, keep_max=2, clean=CleanSettings(commits=2))
    plan = plan_archive(view([done(n) for n in (1, 2, 4, 5, 6, 7)], pending(3)), settings)
    assert plan.keep_min == 6
    assert numbers(plan) == []


def test_one_run_moves_a_bounded_number_of_instants_and_bytes_and_says_what_is_left() -> None:
    settings = ArchiveSettings(keep_min=3, keep_max=5, clean=BY_VERSIONS, max_instants=4)
    plan = plan_archive(view(commits(1, 20)), settings)
    assert numbers(plan) == [1, 2, 3, 4]
    assert plan.left == 13
    assert "13 more instants" in plan.reason
    large = [done(number, size=100 << 20) for number in range(1, 10)]
    assert numbers(plan_archive(view(large), settings)) == [1]


def test_settings_come_from_options_and_have_javas_defaults() -> None:
    assert ArchiveSettings.from_options({}) == ArchiveSettings()
    given = Options({"hoodie.keep.min.commits": 4, "hoodie.keep.max.commits": "6", "hoodie.archive.automatic": False})
    settings = ArchiveSettings.from_options(given.given)
    assert (settings.keep_min, settings.keep_max, settings.automatic) == (4, 6, False)
    assert (
        ArchiveSettings.from_options({"hoodie.compact.inline.trigger.strategy": "TIME_ELAPSED"}).compact_after is None
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hoodie.keep.min.commits": "30"}, "must be greater"),
        ({"hoodie.keep.min.commits": "0"}, "least is 1"),
        ({"hoodie.timeline.compaction.batch.size": "1"}, "least is 2"),
        ({"hoodie.keep.max.commits": "many"}, "not a valid int"),
        ({"hoodie.clean.policy": "KEEP_NOTHING"}, "KEEP_NOTHING"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ArchiveSettings.from_options(options)


def test_archiving_beyond_savepoints_is_refused_because_readers_lose_rows() -> None:
    with pytest.raises(UnsupportedFeatureError, match="behind a savepoint"):
        ArchiveSettings.from_options({"hoodie.archive.beyond.savepoint": "true"})
    assert ArchiveSettings.from_options({"hoodie.archive.beyond.savepoint": "false"}) == ArchiveSettings()


def test_a_result_says_in_words_and_as_values_what_happened() -> None:
    plan = plan_archive(view(commits(1, 20), metadata=MetadataState(at(999))), KEEP)
    result = ArchiveResult(
        tuple(action.instant for action in plan.actions), ("f.parquet",), 7, 3, plan.reason, seconds=1.5
    )
    text = repr(result)
    assert text.startswith("17 instants archived, 3 completed commits stay: 3 completed commits stay")
    assert "… and 7 more, up to 20240101000000170" in text
    assert "1 files written, 7 bytes, 1.50 s" in text
    values = result.to_dict()
    assert values["instants"][0] == {
        "instant": "20240101000000010",
        "action": "commit",
        "completed_at": "20240101000000015",
    }
    assert (values["files"], values["bytes_written"], values["dry_run"]) == (["f.parquet"], 7, False)
