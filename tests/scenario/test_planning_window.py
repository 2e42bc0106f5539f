"""What brings work back without a commit in the window of incremental planning, and what planning costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tablekeeper.config.service_settings import ClusteringSettings, CompactionSettings, PartitionFilter
from tablekeeper.format.plans import (
    CompactionPlan,
    decode_compaction_plan,
    encode_compaction_plan,
)
from tablekeeper.model import Action, Instant, RequestedTime, ServiceKind, State
from tablekeeper.services.plans.window import pending_record, recorded_pending
from tablekeeper.timeline import Timeline, create_requested, load_content, start_inflight
from tests.support.planning_world import PlanningWorld, group, time_of
from tests.support.storage_wrappers import CountingStorage

__all__: list[str] = []


@pytest.fixture
def world() -> Iterator[PlanningWorld]:
    made = PlanningWorld()
    yield made
    made.forget()


class TestWhatCannotBeSeenInTheWindow:
    def test_partitions_of_a_compaction_that_was_rolled_back_are_work_again(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        first = world.compact()
        world.write({group("b"): 1})
        world.compact()
        undone = world.timeline.find(first.instant)
        assert undone is not None
        world.roll_back(undone)
        rollback = world.timeline.completed[-1]
        window = world.window()
        assert window.reasons == {"a": (f"rolled back by {rollback.requested_at}",)}
        assert world.compact().partitions == ("a",)

    def test_after_the_rollback_of_a_replace_commit_all_partitions_are_taken(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        hiding = world.delete_partition("a", [group("a")])
        world.write({group("b"): 1})
        world.compact()
        world.roll_back(hiding)
        assert "undid the replace commit" in world.window().why_full
        assert world.compact().partitions == ("a",)

    def test_a_commit_that_overlapped_the_last_plan_and_was_archived_is_noticed(self, world: PlanningWorld) -> None:
        late = world.begin({group("b"): 1})
        world.write({group("a"): 1})
        world.compact()
        overlapping = late()
        world.archive(overlapping)
        window = world.window()
        assert (window.is_full, window.partitions) == (True, ("a", "b"))
        assert "and was archived" in window.why_full
        assert world.compact().partitions == ("b",)

    def test_it_is_noticed_too_if_java_made_the_plan(self, world: PlanningWorld) -> None:
        late = world.begin({group("b"): 1})
        world.write({group("a"): 1})
        plan = world.compact()
        world.storage.put(world.plan_path(plan.instant), encode_compaction_plan(CompactionPlan()))
        world.archive(late())
        assert "and was archived" in world.window().why_full

    def test_a_commit_that_completes_at_the_very_time_of_a_plan_belongs_to_the_next_window(
        self, world: PlanningWorld
    ) -> None:
        """Who planned had loaded the timeline before: the commit was not there."""
        late = world.begin({group("b"): 1})
        world.write({group("a"): 1})
        plan = world.schedule(world.compaction())
        assert plan is not None
        overlapping = late(world.now())
        assert overlapping.completed_at is not None
        assert overlapping.completed_at.value == plan.instant.value
        world.execute(plan.instant)
        assert world.window().partitions == ("b",)

    def test_a_restore_from_before_the_plan_makes_no_full_window_and_one_after_it_does(
        self, world: PlanningWorld
    ) -> None:
        world.restore(world.write({group("a"): 1}))
        world.write({group("a"): 1})
        world.compact()
        undone = world.write({group("b"): 1})
        assert not world.window().is_full
        world.restore(undone)
        assert "came after plan" in world.window().why_full

    def test_a_restore_that_has_not_completed_makes_a_full_window(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        world.compact()
        requested_at = RequestedTime(time_of(world.tick()))
        create_requested(world.storage, world.config, requested_at=requested_at, action=Action.RESTORE)
        assert "came after plan" in world.window().why_full

    def test_all_writes_that_were_pending_when_a_plan_was_made_are_remembered(self) -> None:
        times = ["20240101000000001", "20240101000000002"]
        pending = Timeline.of(Instant(RequestedTime(time), Action.COMMIT, State.INFLIGHT) for time in times)
        assert sorted(time.value for time in recorded_pending(pending_record(pending))) == times
        assert recorded_pending({}) == frozenset()

    def test_a_failed_write_that_was_under_way_when_the_last_plan_was_made_is_no_reason_to_list_all(
        self, world: PlanningWorld
    ) -> None:
        world.begin({group("b"): 1})
        failed = world.timeline.pending[0]
        world.write({group("a"): 1})
        world.compact()
        world.roll_back(failed)
        assert not world.window().is_full

    def test_a_savepointed_plan_from_which_later_instants_were_archived_is_not_trusted(
        self, world: PlanningWorld
    ) -> None:
        world.write({group("a"): 1})
        plan = world.compact()
        requested = create_requested(world.storage, world.config, requested_at=plan.instant, action=Action.SAVEPOINT)
        start_inflight(world.storage, world.config, requested)
        archived = world.write({group("b"): 1})
        world.write({group("c"): 1})
        world.archive(world.timeline.completed_writes[0], archived)
        window = world.window()
        assert window.why_full == f"compaction {plan.instant} is older than the rest of the active timeline"
        assert window.partitions == ("a", "b", "c")

    def test_plans_that_were_pending_when_java_planned_are_looked_at(self, world: PlanningWorld) -> None:
        world.write({group("a"): 1})
        pending = world.schedule(world.compaction())
        world.write({group("b"): 1})
        javas = world.compact()
        content = load_content(world.storage, world.config, Instant(javas.instant, Action.COMPACTION, State.REQUESTED))
        operations = decode_compaction_plan(content, file="plan").operations
        world.storage.put(world.plan_path(javas.instant), encode_compaction_plan(CompactionPlan(operations)))
        assert pending is not None
        assert world.window().reasons == {"a": (f"planned by {pending.instant} before {javas.instant}",)}
        world.give_up(pending.instant)
        assert f"gave up the plan {pending.instant}" in world.window().why_full


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
    world.compact()
    world.write({group("p001"): 1, group("p007"): 1})
    counting = CountingStorage(world.storage)
    world.use(counting)
    assert world.window().partitions == ("p001", "p007")
    world.forget()
    return counting.calls


class TestRanks:
    """Strategies that compare partitions with each other compare all of the table, whatever was touched."""

    days = tuple(f"2026-01-0{day}" for day in range(1, 6))

    def test_day_based_compaction_ranks_all_partitions_of_the_table(self, world: PlanningWorld) -> None:
        newest = CompactionSettings(strategy="DayBasedCompactionStrategy", day_partitions=2)
        world.write({group(day): 1 for day in self.days})
        assert world.compact(newest).partitions == self.days[-2:]
        world.write({group(self.days[0]): 1, group(self.days[3]): 1})
        incremental = world.draft(world.compaction(newest))
        full = world.draft(world.compaction(newest), incremental=False)
        assert (incremental.window.is_full, full.window.is_full) == (False, True)
        assert [work.partition for work in incremental.draft.work] == [self.days[3]]
        assert incremental.draft.work == full.draft.work

    def test_a_partition_that_moves_up_because_newer_ones_went_is_work(self, world: PlanningWorld) -> None:
        newest = CompactionSettings(strategy="DayBasedCompactionStrategy", day_partitions=1)
        world.write({group(day): 1 for day in self.days[:2]})
        assert world.compact(newest).partitions == (self.days[1],)
        world.storage.delete_tree(self.days[1])
        incremental = world.draft(world.compaction(newest))
        assert not incremental.window.is_full
        assert [work.partition for work in incremental.draft.work] == [self.days[0]]

    @pytest.mark.parametrize(
        ("settings", "touched", "chosen"),
        [
            (
                ClusteringSettings(
                    partition_filter=PartitionFilter.RECENT_DAYS, skip_latest_partitions=1, lookback_partitions=2
                ),
                (0, 3),
                (3,),
            ),
            (ClusteringSettings(partition_filter=PartitionFilter.DAY_ROLLING), (1, 2), ()),
        ],
    )
    def test_clustering_filters_rank_all_partitions_of_the_table(
        self, world: PlanningWorld, settings: ClusteringSettings, touched: tuple[int, ...], chosen: tuple[int, ...]
    ) -> None:
        world.insert(*(group(day, number) for day in self.days for number in (1, 2)))
        first = world.schedule(world.clustering(settings))
        assert first is not None
        world.execute(first.instant, ServiceKind.CLUSTERING, mb=1000)
        world.insert(*(group(self.days[day], number) for day in touched for number in (3, 4)))
        incremental = world.draft(world.clustering(settings))
        full = world.draft(world.clustering(settings), incremental=False)
        assert (incremental.window.is_full, full.window.is_full) == (False, True)
        assert {work.partition for work in incremental.draft.work} == {self.days[day] for day in chosen}
        assert incremental.draft.work == full.draft.work
