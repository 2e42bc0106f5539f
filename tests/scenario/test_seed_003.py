"""Seed 003, incremental planning: the window, the worked example T0 to T11, what is missing, and when all is listed.

Times are seconds of one day: T3 is the third second. The timeline and the plans are real, the data files are empty.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings
from tablekeeper.format.plans import (
    CompactionPlan,
    decode_compaction_plan,
    decode_requested_replace_metadata,
    encode_compaction_plan,
)
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.services.compaction_strategies import CompactionStrategy
from tablekeeper.services.partitions import PlanningWindow, load_touched_partitions
from tablekeeper.services.plans import Service, ServiceKind
from tablekeeper.services.scheduling import ScheduledPlan
from tablekeeper.timeline import create_requested, instant_path, load_content, start_inflight
from tests.support.planning_world import PlanningWorld, group, time_of
from tests.support.storage_wrappers import CountingStorage

__all__: list[str] = []


@pytest.fixture
def world() -> Iterator[PlanningWorld]:
    made = PlanningWorld()
    yield made
    made.forget()


def at(second: int) -> RequestedTime:
    return RequestedTime(time_of(second))


def window_of(world: PlanningWorld, service: Service | None = None) -> PlanningWindow:
    return world.draft(service or world.compaction()).window


def compact(world: PlanningWorld, settings: CompactionSettings | None = None) -> ScheduledPlan:
    """Schedule and execute a compaction."""
    plan = world.schedule(world.compaction(settings))
    assert plan is not None
    world.execute(plan.instant)
    return plan


def worked_example(world: PlanningWorld, *, t7_completes: bool = True) -> None:
    """The timeline that the seed draws, up to T11. Partition p<n> is the one that the instant of T<n> writes to."""
    t0 = world.begin({group("p0"): 1}, at=0)
    t0(at=1)
    t2 = world.begin({group("p2"): 1}, at=2)
    world.go_to(3)
    plan = CompactionPlan(missing_schedule_partitions=("left open by T3",))
    create_requested(
        world.storage,
        world.config,
        requested_at=at(3),
        action=Action.COMPACTION,
        content=encode_compaction_plan(plan),
    )
    t2(at=4)
    t5 = world.begin({group("p5"): 1}, at=5)
    t5(at=6)
    t7 = world.begin({group("p7"): 1}, at=7)
    world.go_to(8)
    world.execute(at(3), completed_at=8)
    if t7_completes:
        t7(at=9)
    world.begin({group("p10"): 1}, at=10)
    world.go_to(11)


class TestWorkedExample:
    def test_the_window_at_t11_begins_with_the_requested_time_of_the_compaction_that_completed(
        self, world: PlanningWorld
    ) -> None:
        worked_example(world)
        window = window_of(world)
        assert (window.since, window.until, window.is_full) == (at(3), at(11), False)

    def test_t2_and_t5_are_selected_because_they_completed_in_the_window(self, world: PlanningWorld) -> None:
        worked_example(world, t7_completes=False)
        window = window_of(world)
        assert [instant.requested_at for instant in window.instants] == [at(2), at(5)]
        assert window.partitions == ("left open by T3", "p2", "p5")

    def test_t7_which_the_text_passes_over_is_selected_too_by_the_rule_that_the_text_gives(
        self, world: PlanningWorld
    ) -> None:
        # T7 completed at T9, inside [T3, T11). The window of the next plan begins at T11 and would never see it.
        worked_example(world)
        window = window_of(world)
        assert [instant.requested_at for instant in window.instants] == [at(2), at(5), at(7)]

    def test_each_partition_of_the_union_says_why_it_is_there(self, world: PlanningWorld) -> None:
        worked_example(world)
        assert window_of(world).reasons == {
            "left open by T3": (f"missing since {time_of(3)}",),
            "p2": (f"touched by {time_of(2)}",),
            "p5": (f"touched by {time_of(5)}",),
            "p7": (f"touched by {time_of(7)}",),
        }

    def test_neither_t0_which_the_compaction_saw_nor_t10_which_is_pending_is_selected(
        self, world: PlanningWorld
    ) -> None:
        worked_example(world)
        assert not {"p0", "p10"} & set(window_of(world).partitions)

    def test_the_plan_made_at_t11_compacts_them_and_records_what_it_could_not_finish(
        self, world: PlanningWorld
    ) -> None:
        worked_example(world)
        bounded = CompactionSettings(target_io_mb=1)
        plan = world.schedule(world.compaction(bounded))
        assert plan is not None
        assert plan.partitions == ("p2",)
        assert plan.missing_partitions == ("p5", "p7")


class TestMissing:
    def test_partitions_cut_by_the_target_io_come_back_until_they_are_done(self, world: PlanningWorld) -> None:
        world.write({group(p): 1 for p in ("a", "b", "c")})
        bounded = CompactionSettings(target_io_mb=1)
        assert compact(world, bounded).missing_partitions == ("b", "c")
        assert window_of(world, world.compaction(bounded)).partitions == ("b", "c")
        assert compact(world, bounded).missing_partitions == ("c",)
        assert compact(world, bounded).missing_partitions == ()
        assert world.schedule(world.compaction(bounded)) is None

    def test_partitions_below_the_threshold_are_recorded_as_missing(self, world: PlanningWorld) -> None:
        world.write({group("large"): 9, group("small"): 1})
        plan = compact(world, CompactionSettings(log_size_threshold=5 << 20))
        assert (plan.partitions, plan.missing_partitions) == (("large",), ("small",))
        assert window_of(world).reasons == {"small": (f"missing since {plan.instant}",)}

    def test_a_partition_that_is_missing_and_touched_is_there_once_with_both_reasons(
        self, world: PlanningWorld
    ) -> None:
        world.write({group("a"): 1, group("b"): 1})
        plan = compact(world, CompactionSettings(target_io_mb=1))
        touching = world.write({group("b"): 1})
        window = window_of(world)
        assert window.partitions == ("b",)
        assert window.reasons["b"] == (f"touched by {touching.requested_at}", f"missing since {plan.instant}")

    def test_a_strategy_decides_which_of_the_partitions_it_filters_are_recorded(self, world: PlanningWorld) -> None:
        for day in ("2025/12/01", "2025/12/30", "2025/12/31"):
            world.write({group(day): 1})
        by_day = "BoundedPartitionAwareCompactionStrategy"
        recent = world.schedule(world.compaction(CompactionSettings(strategy=by_day)))
        assert recent is not None
        assert (recent.partitions, recent.missing_partitions) == (("2025/12/30", "2025/12/31"), ())
        rest = "UnBoundedPartitionAwareCompactionStrategy"
        old = world.draft(world.compaction(CompactionSettings(strategy=rest)), incremental=False).draft
        assert old.missing == ("2025/12/30", "2025/12/31")

    def test_partitions_that_nobody_asked_for_this_time_come_back(self, world: PlanningWorld) -> None:
        world.write({group("sf"): 1, group("la"): 1})
        plan = world.schedule(world.compaction(only=lambda partition: partition == "sf"))
        assert plan is not None
        world.execute(plan.instant)
        assert (plan.partitions, plan.missing_partitions) == (("sf",), ("la",))
        assert window_of(world).partitions == ("la",)

    def test_a_plan_that_is_given_up_after_a_later_one_completed_loses_nothing(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        first = world.schedule(world.compaction())
        world.write({group("b"): 1})
        second = world.schedule(world.compaction())
        assert first is not None
        assert second is not None
        assert (second.partitions, second.missing_partitions) == (("b",), ("a",))
        world.execute(second.instant)
        world.give_up(first.instant)
        assert compact(world).partitions == ("a",)

    def test_a_plan_of_another_service_that_is_given_up_brings_its_partitions_back(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        clustering = world.schedule(world.clustering())
        world.write({group("b"): 1})
        plan = compact(world)
        assert clustering is not None
        assert (clustering.partitions, plan.partitions, plan.missing_partitions) == (("a",), ("b",), ("a",))
        world.give_up(clustering.instant, ServiceKind.CLUSTERING)
        assert compact(world).partitions == ("a",)

    def test_commits_that_complete_while_a_plan_is_made_are_not_lost(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        late = world.begin({group("b"): 1})
        plan = world.schedule(world.compaction(), meanwhile=late)
        assert plan is not None
        assert (plan.partitions, plan.missing_partitions) == (("a",), ("b",))
        world.execute(plan.instant)
        assert window_of(world).partitions == ("b",)


class TestPlanField:
    def test_the_plan_of_a_compaction_carries_the_missing_partitions_as_java_has_them(
        self, world: PlanningWorld
    ) -> None:
        world.write({group("a"): 1, group("b"): 1})
        plan = world.schedule(world.compaction(CompactionSettings(target_io_mb=1)))
        assert plan is not None
        content = load_content(world.storage, world.config, Instant(plan.instant, Action.COMPACTION, State.REQUESTED))
        assert decode_compaction_plan(content, file="plan").missing_schedule_partitions == ("b",)

    def test_the_plan_of_a_clustering_carries_them_too(self, world: PlanningWorld) -> None:
        world.insert(group("a"), group("b"))
        plan = world.schedule(world.clustering(ClusteringSettings(max_groups=1)))
        assert plan is not None
        content = load_content(world.storage, world.config, Instant(plan.instant, Action.CLUSTERING, State.REQUESTED))
        decoded = decode_requested_replace_metadata(content, file="plan").clustering_plan
        assert decoded is not None
        assert decoded.missing_schedule_partitions == ("b",)

    def test_a_plan_whose_maker_recorded_nothing_has_null_there(self) -> None:
        silent = CompactionPlan(records_missing=False)
        decoded = decode_compaction_plan(encode_compaction_plan(silent), file="plan")
        assert (decoded.records_missing, decoded.missing_schedule_partitions) == (False, ())


class TestEveryService:
    def test_a_clustering_looks_only_at_what_was_touched_since_the_last_one(self, world: PlanningWorld) -> None:
        world.insert(group("a"), group("b"))
        first = world.schedule(world.clustering())
        assert first is not None
        world.execute(first.instant, ServiceKind.CLUSTERING, mb=900)
        world.insert(group("b", 1))
        window = window_of(world, world.clustering())
        assert (window.is_full, window.partitions) == (False, ("b",))

    def test_a_log_compaction_starts_from_the_last_log_compaction_and_not_from_a_compaction(
        self, world: PlanningWorld
    ) -> None:
        world.write({group("a"): 1})
        compact(world)
        assert window_of(world, world.log_compaction()).why_full == "no completed log compaction on the active timeline"

    def test_what_a_compaction_wrote_is_news_for_clustering(self, world: PlanningWorld) -> None:
        world.insert(group("a"), group("b"))
        clustering = world.schedule(world.clustering())
        assert clustering is not None
        world.execute(clustering.instant, ServiceKind.CLUSTERING, mb=900)
        before = world.begin({group("c"): 1})
        before()
        plan = compact(world)
        reasons = window_of(world, world.clustering()).reasons["c"]
        assert reasons[-1] == f"touched by {plan.instant}"

    def test_a_table_without_partitions_has_the_one_partition(self) -> None:
        world = PlanningWorld(is_partitioned=False)
        world.write({group(""): 1})
        full = window_of(world)
        compact(world)
        untouched = window_of(world)
        world.write({group(""): 1})
        touched = window_of(world)
        world.forget()
        assert (full.partitions, untouched.partitions, touched.partitions) == (("",), (), ("",))

    def test_a_strategy_that_does_not_take_part_is_given_all_partitions(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1, group("b"): 1})
        compact(world)
        own = f"{__name__}.{WantsAll.__name__}"
        window = window_of(world, world.compaction(CompactionSettings(strategy=own)))
        assert (window.is_full, window.partitions) == (True, ("a", "b"))

    def test_others_can_ask_which_partitions_were_touched_between_two_moments(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        second = world.write({group("b"): 1})
        third = world.write({group("b"): 1, group("c"): 1})
        touched = load_touched_partitions(
            world.environment, world.timeline, completed_from=second.completed_at, completed_until=third.completed_at
        )
        everything = load_touched_partitions(world.environment, world.timeline)
        assert touched == {"b": (second,)}
        assert list(everything) == ["a", "b", "c"]


class WantsAll(CompactionStrategy):
    """A user's strategy that compares all partitions."""

    is_incremental = False


class TestFullListing:
    def test_without_a_completed_plan_all_partitions_are_taken(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1, group("b"): 1})
        window = window_of(world)
        assert (window.is_full, window.partitions) == (True, ("a", "b"))
        assert window.why_full == "no completed compaction on the active timeline"

    def test_a_pending_plan_does_not_open_a_window(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        world.schedule(world.compaction())
        assert window_of(world).is_full

    def test_when_the_last_plan_was_archived_all_partitions_are_taken(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        compact(world)
        world.write({group("b"): 1})
        world.archive(*world.timeline.completed[:2])
        window = window_of(world)
        assert (window.is_full, window.partitions) == (True, ("a", "b"))

    def test_switched_off_it_takes_all_partitions(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        compact(world)
        window = world.draft(world.compaction(), incremental=False).window
        assert (window.why_full, window.partitions) == ("incremental planning is switched off", ("a",))

    def test_a_plan_that_cannot_be_read_is_not_trusted(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        plan = compact(world)
        world.storage.put(plan_path(world, plan), b"scrambled")
        assert f"the plan of compaction {plan.instant} cannot be read" in window_of(world).why_full

    def test_a_plan_that_does_not_say_what_it_left_out_is_not_trusted(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        plan = compact(world)
        content = encode_compaction_plan(CompactionPlan(records_missing=False))
        world.storage.put(plan_path(world, plan), content)
        assert window_of(world).why_full == f"the plan of compaction {plan.instant} does not say what it left out"

    def test_a_plan_whose_file_is_gone_is_passed_over(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        first = compact(world)
        world.write({group("b"): 1})
        second = compact(world)
        world.storage.delete(plan_path(world, second))
        window = window_of(world)
        assert (window.since, window.partitions) == (first.instant, ("b",))

    def test_other_settings_look_at_what_the_last_plan_passed_over(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1, group("b"): 1})
        regex = "PartitionRegexBasedCompactionStrategy"
        plan = compact(world, CompactionSettings(strategy=regex, partition_regex="a"))
        assert (plan.partitions, plan.missing_partitions) == (("a",), ())
        again = window_of(world, world.compaction(CompactionSettings(strategy=regex, partition_regex="a")))
        assert (again.is_full, again.partitions) == (False, ())
        other = window_of(world, world.compaction(CompactionSettings(strategy=regex, partition_regex="b")))
        assert other.why_full == f"plan {plan.instant} was made with other settings"
        assert other.partitions == ("a", "b")

    def test_after_a_restore_all_partitions_are_taken_until_the_next_plan(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        first = compact(world)
        world.write({group("a"): 1})
        second = compact(world)
        undone = world.timeline.find(second.instant)
        assert undone is not None
        world.restore(undone)
        window = window_of(world)
        assert window.is_full
        assert f"came after plan {first.instant}" in window.why_full
        assert compact(world).partitions == ("a",)
        assert not window_of(world).is_full


def plan_path(world: PlanningWorld, plan: ScheduledPlan) -> str:
    return instant_path(world.config, Instant(plan.instant, Action.COMPACTION, State.REQUESTED))


class TestWhatCannotBeSeenInTheWindow:
    def test_partitions_of_a_compaction_that_was_rolled_back_are_work_again(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        first = compact(world)
        world.write({group("b"): 1})
        compact(world)
        undone = world.timeline.find(first.instant)
        assert undone is not None
        world.roll_back(undone)
        rollback = world.timeline.completed[-1]
        window = window_of(world)
        assert window.reasons == {"a": (f"rolled back by {rollback.requested_at}",)}
        assert compact(world).partitions == ("a",)

    def test_after_the_rollback_of_a_replace_commit_all_partitions_are_taken(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        hiding = world.delete_partition("a", [group("a")])
        world.write({group("b"): 1})
        compact(world)
        world.roll_back(hiding)
        assert "undid the replace commit" in window_of(world).why_full
        assert compact(world).partitions == ("a",)

    def test_a_commit_that_overlapped_the_last_plan_and_was_archived_is_noticed(self, world: PlanningWorld) -> None:
        late = world.begin({group("b"): 1})
        world.write({group("a"): 1})
        compact(world)
        overlapping = late()
        world.archive(overlapping)
        window = window_of(world)
        assert (window.is_full, window.partitions) == (True, ("a", "b"))
        assert "and was archived" in window.why_full
        assert compact(world).partitions == ("b",)

    def test_it_is_noticed_too_if_java_made_the_plan(self, world: PlanningWorld) -> None:
        late = world.begin({group("b"): 1})
        world.write({group("a"): 1})
        plan = compact(world)
        world.storage.put(plan_path(world, plan), encode_compaction_plan(CompactionPlan()))
        world.archive(late())
        assert "and was archived" in window_of(world).why_full

    def test_a_failed_write_that_was_under_way_when_the_last_plan_was_made_is_no_reason_to_list_all(
        self, world: PlanningWorld
    ) -> None:
        world.begin({group("b"): 1})
        failed = world.timeline.pending[0]
        world.write({group("a"): 1})
        compact(world)
        world.roll_back(failed)
        assert not window_of(world).is_full

    def test_a_savepointed_plan_from_which_later_instants_were_archived_is_not_trusted(
        self, world: PlanningWorld
    ) -> None:
        world.write({group("a"): 1})
        plan = compact(world)
        requested = create_requested(world.storage, world.config, requested_at=plan.instant, action=Action.SAVEPOINT)
        start_inflight(world.storage, world.config, requested)
        archived = world.write({group("b"): 1})
        world.write({group("c"): 1})
        world.archive(world.timeline.completed_writes[0], archived)
        window = window_of(world)
        assert window.why_full == f"compaction {plan.instant} is older than the rest of the active timeline"
        assert window.partitions == ("a", "b", "c")

    def test_plans_that_were_pending_when_java_planned_are_looked_at(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        pending = world.schedule(world.compaction())
        world.write({group("b"): 1})
        javas = compact(world)
        content = load_content(world.storage, world.config, Instant(javas.instant, Action.COMPACTION, State.REQUESTED))
        operations = decode_compaction_plan(content, file="plan").operations
        world.storage.put(plan_path(world, javas), encode_compaction_plan(CompactionPlan(operations)))
        assert pending is not None
        assert window_of(world).reasons == {"a": (f"planned by {pending.instant} before {javas.instant}",)}
        world.give_up(pending.instant)
        assert f"gave up the plan {pending.instant}" in window_of(world).why_full


class TestCost:
    def test_the_number_of_storage_calls_does_not_depend_on_the_number_of_partitions(self) -> None:
        few, many = calls_to_plan(partitions=20), calls_to_plan(partitions=400)
        assert few == many
        # Two listings of the timeline, one of them verified, the last plan, one commit, and the two partitions.
        assert len(few) <= 8


def calls_to_plan(*, partitions: int) -> list[tuple[str, str]]:
    """Storage calls that planning makes where two partitions were touched since the last plan."""
    world = PlanningWorld()
    world.write({group(f"p{number:03d}"): 1 for number in range(partitions)})
    compact(world)
    world.write({group("p001"): 1, group("p007"): 1})
    counting = CountingStorage(world.storage)
    world.use(counting)
    assert window_of(world).partitions == ("p001", "p007")
    world.forget()
    return counting.calls
