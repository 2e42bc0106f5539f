"""RFC-83, incremental planning: the window, the worked example T0 to T11, what is missing, and when all is listed.

Times are seconds of one day: T3 is the third second. The timeline and the plans are real, the data files are empty.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings, LogCompactionSettings
from tablekeeper.format.plans import (
    CompactionPlan,
    decode_compaction_plan,
    decode_requested_replace_metadata,
    encode_compaction_plan,
)
from tablekeeper.model import Action, Instant, RequestedTime, ServiceKind, State
from tablekeeper.services.clustering.strategies import CLUSTERING_STRATEGIES
from tablekeeper.services.compaction.strategies import COMPACTION_STRATEGIES, CompactionStrategy
from tablekeeper.timeline import create_requested, load_content
from tests.support.planning_world import PlanningWorld, group, time_of

__all__: list[str] = []


@pytest.fixture
def world() -> Iterator[PlanningWorld]:
    made = PlanningWorld()
    yield made
    made.forget()


def at(second: int) -> RequestedTime:
    return RequestedTime(time_of(second))


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
        window = world.window()
        assert (window.since, window.until, window.is_full) == (at(3), at(11), False)

    def test_t2_and_t5_are_selected_because_they_completed_in_the_window(self, world: PlanningWorld) -> None:
        worked_example(world, t7_completes=False)
        window = world.window()
        assert [instant.requested_at for instant in window.instants] == [at(2), at(5)]
        assert window.partitions == ("left open by T3", "p2", "p5")

    def test_t7_which_the_text_passes_over_is_selected_too_by_the_rule_that_the_text_gives(
        self, world: PlanningWorld
    ) -> None:
        # T7 completed at T9, inside [T3, T11). The window of the next plan begins at T11 and would never see it.
        worked_example(world)
        window = world.window()
        assert [instant.requested_at for instant in window.instants] == [at(2), at(5), at(7)]

    def test_each_partition_of_the_union_says_why_it_is_there(self, world: PlanningWorld) -> None:
        worked_example(world)
        assert world.window().reasons == {
            "left open by T3": (f"missing since {time_of(3)}",),
            "p2": (f"touched by {time_of(2)}",),
            "p5": (f"touched by {time_of(5)}",),
            "p7": (f"touched by {time_of(7)}",),
        }

    def test_neither_t0_which_the_compaction_saw_nor_t10_which_is_pending_is_selected(
        self, world: PlanningWorld
    ) -> None:
        worked_example(world)
        assert not {"p0", "p10"} & set(world.window().partitions)

    def test_the_plan_made_at_t11_compacts_them_and_records_what_it_could_not_finish(
        self, world: PlanningWorld
    ) -> None:
        worked_example(world)
        bounded = CompactionSettings(target_io_mb=1)
        plan = world.schedule(world.compaction(bounded))
        assert plan is not None
        assert plan.partitions == ("p2",)
        assert plan.missing_partitions == ("p5", "p7")


class TestWindow:
    def test_planning_is_incremental_by_default_for_every_service_and_strategy(self) -> None:
        assert CompactionSettings().incremental
        assert LogCompactionSettings().incremental
        assert ClusteringSettings().incremental
        shipped = [COMPACTION_STRATEGIES.find(name) for name in COMPACTION_STRATEGIES.names]
        assert all(each.is_incremental for each in shipped)
        assert all(CLUSTERING_STRATEGIES.find(name).is_incremental for name in CLUSTERING_STRATEGIES.names)

    def test_a_commit_that_completed_at_the_very_time_of_the_last_plan_is_inside(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        late = world.begin({group("b"): 1})
        plan = world.compact()
        # The second in which the plan was requested.
        late(at=int(plan.instant.value[-5:-3]))
        assert world.window().partitions == ("b",)

    def test_a_plan_is_requested_at_or_after_the_end_of_its_window(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        end = world.window().until
        plan = world.schedule(world.compaction())
        assert plan is not None
        assert plan.instant >= end

    def test_writes_by_their_completion_and_not_by_their_request_decide(self, world: PlanningWorld) -> None:
        early = world.begin({group("early"): 1})
        world.write({group("a"): 1})
        plan = world.compact()
        committed = early()
        assert committed.requested_at < plan.instant
        assert world.window().instants == (committed,)

    def test_partitions_that_were_replaced_count_as_touched(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1, group("b"): 1})
        world.compact()
        world.delete_partition("b", [group("b")])
        assert world.window().partitions == ("b",)


class TestMissing:
    def test_partitions_cut_by_the_target_io_come_back_until_they_are_done(self, world: PlanningWorld) -> None:
        world.write({group(p): 1 for p in ("a", "b", "c")})
        bounded = CompactionSettings(target_io_mb=1)
        assert world.compact(bounded).missing_partitions == ("b", "c")
        assert world.window(world.compaction(bounded)).partitions == ("b", "c")
        assert world.compact(bounded).missing_partitions == ("c",)
        assert world.compact(bounded).missing_partitions == ()
        assert world.schedule(world.compaction(bounded)) is None

    def test_partitions_below_the_threshold_are_recorded_as_missing(self, world: PlanningWorld) -> None:
        world.write({group("large"): 9, group("small"): 1})
        plan = world.compact(CompactionSettings(log_size_threshold=5 << 20))
        assert (plan.partitions, plan.missing_partitions) == (("large",), ("small",))
        assert world.window().reasons == {"small": (f"missing since {plan.instant}",)}

    def test_a_partition_that_is_missing_and_touched_is_there_once_with_both_reasons(
        self, world: PlanningWorld
    ) -> None:
        world.write({group("a"): 1, group("b"): 1})
        plan = world.compact(CompactionSettings(target_io_mb=1))
        touching = world.write({group("b"): 1})
        window = world.window()
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
        assert world.window().partitions == ("la",)

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
        assert world.compact().partitions == ("a",)

    def test_a_plan_of_another_service_that_is_given_up_brings_its_partitions_back(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        clustering = world.schedule(world.clustering())
        world.write({group("b"): 1})
        plan = world.compact()
        assert clustering is not None
        assert (clustering.partitions, plan.partitions, plan.missing_partitions) == (("a",), ("b",), ("a",))
        world.give_up(clustering.instant, ServiceKind.CLUSTERING)
        assert world.compact().partitions == ("a",)

    def test_commits_that_complete_while_a_plan_is_made_are_not_lost(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        late = world.begin({group("b"): 1})
        plan = world.schedule(world.compaction(), meanwhile=late)
        assert plan is not None
        assert (plan.partitions, plan.missing_partitions) == (("a",), ("b",))
        world.execute(plan.instant)
        assert world.window().partitions == ("b",)


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
        window = world.window(world.clustering())
        assert (window.is_full, window.partitions) == (False, ("b",))

    def test_a_log_compaction_starts_from_the_last_log_compaction_and_not_from_a_compaction(
        self, world: PlanningWorld
    ) -> None:
        world.write({group("a"): 1})
        world.compact()
        assert world.window(world.log_compaction()).why_full == "no completed log compaction on the active timeline"

    def test_what_a_compaction_wrote_is_news_for_clustering(self, world: PlanningWorld) -> None:
        world.insert(group("a"), group("b"))
        clustering = world.schedule(world.clustering())
        assert clustering is not None
        world.execute(clustering.instant, ServiceKind.CLUSTERING, mb=900)
        before = world.begin({group("c"): 1})
        before()
        plan = world.compact()
        reasons = world.window(world.clustering()).reasons["c"]
        assert reasons[-1] == f"touched by {plan.instant}"

    def test_a_table_without_partitions_has_the_one_partition(self) -> None:
        world = PlanningWorld(is_partitioned=False)
        world.write({group(""): 1})
        full = world.window()
        world.compact()
        untouched = world.window()
        world.write({group(""): 1})
        touched = world.window()
        world.forget()
        assert (full.partitions, untouched.partitions, touched.partitions) == (("",), (), ("",))

    def test_a_strategy_that_does_not_take_part_is_given_all_partitions(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1, group("b"): 1})
        world.compact()
        own = f"{__name__}.{WantsAll.__name__}"
        window = world.window(world.compaction(CompactionSettings(strategy=own)))
        assert (window.is_full, window.partitions) == (True, ("a", "b"))


class WantsAll(CompactionStrategy):
    """A user's strategy that compares all partitions."""

    is_incremental = False


class TestFullListing:
    def test_without_a_completed_plan_all_partitions_are_taken(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1, group("b"): 1})
        window = world.window()
        assert (window.is_full, window.partitions) == (True, ("a", "b"))
        assert window.why_full == "no completed compaction on the active timeline"

    def test_a_pending_plan_does_not_open_a_window(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        world.schedule(world.compaction())
        assert world.window().is_full

    def test_when_the_last_plan_was_archived_all_partitions_are_taken(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        world.compact()
        world.write({group("b"): 1})
        world.archive(*world.timeline.completed[:2])
        window = world.window()
        assert (window.is_full, window.partitions) == (True, ("a", "b"))

    def test_switched_off_it_takes_all_partitions(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        world.compact()
        window = world.draft(world.compaction(), incremental=False).window
        assert (window.why_full, window.partitions) == ("incremental planning is switched off", ("a",))

    def test_a_plan_that_cannot_be_read_is_not_trusted(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        plan = world.compact()
        world.storage.put(world.plan_path(plan.instant), b"scrambled")
        assert f"the plan of compaction {plan.instant} cannot be read" in world.window().why_full

    def test_a_plan_that_does_not_say_what_it_left_out_is_not_trusted(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        plan = world.compact()
        content = encode_compaction_plan(CompactionPlan(records_missing=False))
        world.storage.put(world.plan_path(plan.instant), content)
        assert world.window().why_full == f"the plan of compaction {plan.instant} does not say what it left out"

    def test_a_plan_whose_file_is_gone_is_passed_over(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        first = world.compact()
        world.write({group("b"): 1})
        second = world.compact()
        world.storage.delete(world.plan_path(second.instant))
        window = world.window()
        assert (window.since, window.partitions) == (first.instant, ("b",))

    def test_other_settings_look_at_what_the_last_plan_passed_over(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1, group("b"): 1})
        regex = "PartitionRegexBasedCompactionStrategy"
        plan = world.compact(CompactionSettings(strategy=regex, partition_regex="a"))
        assert (plan.partitions, plan.missing_partitions) == (("a",), ())
        again = world.window(world.compaction(CompactionSettings(strategy=regex, partition_regex="a")))
        assert (again.is_full, again.partitions) == (False, ())
        other = world.window(world.compaction(CompactionSettings(strategy=regex, partition_regex="b")))
        assert other.why_full == f"plan {plan.instant} was made with other settings"
        assert other.partitions == ("a", "b")

    def test_after_a_restore_all_partitions_are_taken_until_the_next_plan(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        first = world.compact()
        world.write({group("a"): 1})
        second = world.compact()
        undone = world.timeline.find(second.instant)
        assert undone is not None
        world.restore(undone)
        window = world.window()
        assert window.is_full
        assert f"came after plan {first.instant}" in window.why_full
        assert world.compact().partitions == ("a",)
        assert not world.window().is_full
