"""Strategies of clustering: which slices go together, into how many files, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tablekeeper.config.clustering_order import Layout
from tablekeeper.config.service_settings import ClusteringSettings, PartitionFilter, SliceOrder
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, LogFile, RequestedTime
from tablekeeper.services.clustering.strategies import (
    CLUSTERING_STRATEGIES,
    ClusteringStrategy,
    SingleFileSortStrategy,
    SizeBasedStrategy,
    clustering_strategy,
)
from tablekeeper.services.plans.service import Draft, LeftOut

__all__: list[str] = []

MB = 1 << 20
PACKAGE = "org.apache.hudi.client.clustering.plan.strategy."
SIZE_BASED = f"{PACKAGE}SparkSizeBasedClusteringPlanStrategy"
HOUR_MS = 3_600_000


def file_slice(name: str, mb: int | None, *, partition: str = "p", second: int = 0) -> FileSlice:
    group = FileGroupId(partition, name)
    instant = RequestedTime(f"202601010000{second:02d}000")
    base = None if mb is None else BaseFile(group, instant, "0-0-0", f"{name}.parquet", mb * MB)
    logs = (LogFile(group, instant, 1, "0-0-0", f".{name}.1", MB),) if mb is None else ()
    return FileSlice(group, instant, base, logs)


def strategy(name: str = SIZE_BASED, *, now_ms: int = 0, **settings: Any) -> ClusteringStrategy:
    return clustering_strategy(ClusteringSettings(strategy=name, **settings), now_ms=now_ms)


def shape(draft: Draft) -> list[tuple[list[str], int]]:
    return [([each.group.file_id for each in work.slices], work.outputs) for work in draft.work]


def plan(chosen: ClusteringStrategy, *slices: FileSlice, planned: Sequence[FileSlice] = ()) -> Draft:
    return chosen.plan(slices, planned=frozenset(each.group for each in planned))


def test_small_files_of_a_partition_go_together_the_largest_first() -> None:
    draft = plan(strategy(), file_slice("a", 10), file_slice("b", 30), file_slice("c", 20, partition="q"))
    assert shape(draft) == [(["b", "a"], 1), (["c"], 1)]


def test_a_group_becomes_as_many_files_as_the_target_size_asks_for() -> None:
    draft = plan(strategy(target_file_bytes=25 * MB), file_slice("a", 40), file_slice("b", 30))
    assert shape(draft) == [(["a", "b"], 3)]


def test_a_group_is_closed_before_it_gets_too_large() -> None:
    draft = plan(
        strategy(max_group_bytes=50 * MB),
        *(file_slice(name, mb) for name, mb in (("a", 60), ("b", 40), ("c", 10), ("d", 1))),
    )
    assert shape(draft) == [(["a"], 1), (["b", "c"], 1), (["d"], 1)]


def test_files_from_the_small_file_limit_on_are_too_large() -> None:
    large = file_slice("l", 100)
    draft = plan(strategy(small_file_bytes=100 * MB), large, file_slice("s", 99))
    assert shape(draft) == [(["s"], 1)]
    assert draft.left_out == (LeftOut("p", f"too large for clustering: {100 * MB} bytes or more", 1, large.size),)


def test_a_slice_of_logs_alone_is_small_and_counts_as_a_new_file() -> None:
    draft = plan(
        strategy(small_file_bytes=MB, new_file_bytes=120 * MB, target_file_bytes=100 * MB), file_slice("log", None)
    )
    assert shape(draft) == [(["log"], 2)]


def test_more_groups_than_a_plan_may_have_come_back() -> None:
    cut = file_slice("b", 1, partition="q")
    draft = plan(strategy(max_groups=1), file_slice("a", 1), cut)
    assert shape(draft) == [(["a"], 1)]
    assert draft.left_out == (LeftOut("q", "most groups of a plan (1) reached", 1, cut.size, comes_back=True),)


def test_a_partition_that_is_cut_in_the_middle_comes_back_too() -> None:
    draft = plan(strategy(max_groups=1, max_group_bytes=MB), file_slice("a", 1), file_slice("b", 1))
    assert (shape(draft), draft.missing) == ([(["a"], 1)], ("p",))


def test_busy_slices_come_back() -> None:
    taken = file_slice("t", 1)
    draft = plan(strategy(), taken, file_slice("f", 1), planned=[taken])
    assert shape(draft) == [(["f"], 1)]
    assert draft.left_out == (LeftOut("p", "in another plan", 1, taken.size, comes_back=True),)


def test_a_single_file_that_would_stay_one_is_left_alone_where_that_is_asked_for() -> None:
    alone = file_slice("a", 1)
    draft = plan(
        strategy(single_group=False), alone, file_slice("b", 1, partition="q"), file_slice("c", 1, partition="q")
    )
    assert shape(draft) == [(["b", "c"], 1)]
    assert draft.left_out == (LeftOut("p", "a single file that would stay one", 1, alone.size),)


def test_slices_may_be_packed_oldest_first() -> None:
    order = (SliceOrder.INSTANT_TIME, SliceOrder.SIZE)
    slices = [file_slice("new", 9, second=5), file_slice("small", 1, second=2), file_slice("large", 3, second=2)]
    assert shape(plan(strategy(slice_order=order), *slices)) == [(["large", "small", "new"], 1)]


def test_single_file_sort_takes_each_small_file_by_itself() -> None:
    chosen = strategy(f"{PACKAGE}SparkSingleFileSortPlanStrategy", single_group=False, target_file_bytes=MB)
    assert isinstance(chosen, SingleFileSortStrategy)
    assert shape(plan(chosen, file_slice("a", 5), file_slice("b", 7))) == [(["b"], 1), (["a"], 1)]
    assert chosen.class_name.endswith("SparkSingleFileSortExecutionStrategy")


def test_recent_days_leaves_the_newest_for_later_and_the_old_alone() -> None:
    choice = strategy(
        partition_filter=PartitionFilter.RECENT_DAYS, skip_latest_partitions=1, lookback_partitions=2
    ).choose_partitions(["d1", "d4", "d3", "d2"])
    assert choice.chosen == ("d2", "d3")
    assert choice.left_out == (
        LeftOut("d4", "among the 1 newest, which wait", comes_back=True),
        LeftOut("d1", "older than the 3 newest", comes_back=True),
    )


def test_recent_days_with_fewer_partitions_than_are_skipped_leaves_them_all_for_later() -> None:
    recent = strategy(partition_filter=PartitionFilter.RECENT_DAYS, skip_latest_partitions=3)
    choice = recent.choose_partitions(["d1"])
    assert (choice.chosen, choice.left_out[0].comes_back) == ((), True)


def test_selected_partitions_lie_between_two_names() -> None:
    choice = strategy(
        partition_filter=PartitionFilter.SELECTED_PARTITIONS, begin_partition="b", end_partition="c"
    ).choose_partitions(["a", "b", "c", "d"])
    assert choice.chosen == ("b", "c")
    assert choice.left_out == (LeftOut("a", "not from b to c"), LeftOut("d", "not from b to c"))


def test_named_partitions_are_taken_touched_or_not_and_the_others_come_back() -> None:
    choice = strategy(selected_partitions=("b", "untouched")).choose_partitions(["a", "b"])
    assert choice.chosen == ("b", "untouched")
    assert choice.left_out == (LeftOut("a", "not among the selected ones", comes_back=True),)


def test_the_regular_expression_has_to_match_the_whole_path() -> None:
    choice = strategy(partition_regex="city=s.").choose_partitions(["city=sf", "city=sfo", "x/city=sf"])
    assert choice.chosen == ("city=sf",)
    assert [each.comes_back for each in choice.left_out] == [False, False]


def test_day_rolling_takes_another_part_each_hour_and_all_in_a_day() -> None:
    partitions = [f"p{number:02d}" for number in range(50)]
    taken: list[str] = []
    for hour in range(24):
        rolling = strategy(partition_filter=PartitionFilter.DAY_ROLLING, now_ms=hour * HOUR_MS)
        choice = rolling.choose_partitions(partitions)
        assert all(each.comes_back for each in choice.left_out)
        taken += choice.chosen
    assert sorted(taken) == partitions


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SparkRecentDaysClusteringPlanStrategy", PartitionFilter.RECENT_DAYS),
        ("JavaRecentDaysClusteringPlanStrategy", PartitionFilter.RECENT_DAYS),
        ("SparkSelectedPartitionsClusteringPlanStrategy", PartitionFilter.SELECTED_PARTITIONS),
        ("SparkSizeBasedClusteringPlanStrategy", PartitionFilter.NONE),
        ("JavaSizeBasedClusteringPlanStrategy", PartitionFilter.NONE),
    ],
)
def test_older_names_of_strategies_mean_the_size_based_one_with_a_filter(name: str, expected: PartitionFilter) -> None:
    chosen = strategy(PACKAGE + name)
    assert isinstance(chosen, SizeBasedStrategy)
    assert (chosen.settings.partition_filter, chosen.name) == (expected, SIZE_BASED)


@pytest.mark.parametrize(
    "name", ["SparkConsistentBucketClusteringPlanStrategy", "SparkStreamCopyClusteringPlanStrategy"]
)
def test_strategies_that_only_java_has_are_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="Run it with Java Hudi, or use"):
        strategy(PACKAGE + name)


def test_a_negative_lookback_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"lookback\.partitions: -1 is negative"):
        strategy(partition_filter=PartitionFilter.RECENT_DAYS, lookback_partitions=-1)


class OnlyLogs(ClusteringStrategy):
    """A strategy of a user's own: slices that have logs."""

    def is_candidate(self, file_slice: FileSlice) -> bool:
        return bool(file_slice.logs)


def test_a_users_own_class_is_loaded_by_its_python_path() -> None:
    own = strategy(f"{__name__}.OnlyLogs")
    assert shape(plan(own, file_slice("base", 1), file_slice("log", None))) == [(["log"], 1)]
    assert own.name == f"{__name__}.OnlyLogs"


def test_a_users_own_class_can_be_registered_under_a_name() -> None:
    CLUSTERING_STRATEGIES.register("only-logs")(OnlyLogs)
    assert isinstance(strategy("only-logs"), OnlyLogs)


def test_plans_record_the_sort_columns_under_javas_name_and_the_scope() -> None:
    params = strategy(sort_columns=("ts", "id")).params
    assert params["hoodie.clustering.plan.strategy.sort.columns"] == "ts,id"
    assert "tablekeeper.planning.scope" in params


@pytest.mark.parametrize(
    ("change", "equal"),
    [
        ({"max_groups": 3}, True),
        ({"max_group_bytes": 3}, True),
        ({"selected_partitions": ("a",)}, True),
        ({"sort_columns": ("ts",)}, False),
        ({"layout_kind": Layout.ZORDER}, False),
        ({"small_file_bytes": 3}, False),
        ({"partition_regex": "a"}, False),
        ({"partition_filter": PartitionFilter.RECENT_DAYS}, False),
    ],
)
def test_another_order_of_rows_or_another_filter_is_another_scope(change: dict[str, Any], equal: bool) -> None:
    assert (strategy(**change).scope == strategy().scope) is equal
