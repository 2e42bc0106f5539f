"""Strategies of compaction and log compaction: what they choose, in which order, and what they say of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tablekeeper.config.service_settings import CompactionSettings, LogCompactionSettings
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, LogFile, RequestedTime
from tablekeeper.services.compaction.strategies import (
    COMPACTION_STRATEGIES,
    CompactionStrategy,
    SliceChoice,
    compaction_strategy,
)
from tablekeeper.services.log_compaction.strategies import LogCompactionStrategy
from tablekeeper.services.plans.service import Draft, LeftOut
from tablekeeper.services.plans.strategies import OnlyPartitions, day_of_partition, leave_out_slices
from tablekeeper.timeline.plans import slice_metrics

__all__: list[str] = []

MB = 1 << 20
NOON_MS = 1_767_268_800_000
INSTANT = RequestedTime("20260101000000000")
PACKAGE = "org.apache.hudi.table.action.compact.strategy."
NAMES = (
    "UnBoundedCompactionStrategy",
    "BoundedIOCompactionStrategy",
    "LogFileSizeBasedCompactionStrategy",
    "LogFileNumBasedCompactionStrategy",
    "DayBasedCompactionStrategy",
    "BoundedPartitionAwareCompactionStrategy",
    "UnBoundedPartitionAwareCompactionStrategy",
    "PartitionRegexBasedCompactionStrategy",
)


def file_slice(
    name: str, *, partition: str = "p", base: int | None = 10 * MB, logs: Sequence[int] = (MB,)
) -> FileSlice:
    group = FileGroupId(partition, name)
    file = None if base is None else BaseFile(group, INSTANT, "0-0-0", f"{name}.parquet", base)
    made = tuple(LogFile(group, INSTANT, n, "0-0-0", f".{name}.{n}", size) for n, size in enumerate(logs, 1))
    return FileSlice(group, INSTANT, file, made)


def strategy(name: str, **settings: Any) -> CompactionStrategy:
    return compaction_strategy(CompactionSettings(strategy=name, **settings), now_ms=NOON_MS)


def names(draft: Draft) -> list[str]:
    return [each.group.file_id for work in draft.work for each in work.slices]


def plan(chosen: CompactionStrategy, *slices: FileSlice, planned: Sequence[FileSlice] = ()) -> Draft:
    return chosen.plan(slices, planned=frozenset(each.group for each in planned))


def test_the_metrics_of_a_slice_have_the_names_and_whole_megabytes_that_java_expects() -> None:
    slices = file_slice("a", base=10 * MB + 5, logs=(MB, MB + 7))
    assert slice_metrics([slices], in_whole_mb=True) == {
        "TOTAL_IO_READ_MB": 12.0,
        "TOTAL_IO_WRITE_MB": 10.0,
        "TOTAL_IO_MB": 22.0,
        "TOTAL_LOG_FILES_SIZE": 2.0 * MB + 7,
        "TOTAL_LOG_FILES": 2.0,
    }


def test_a_slice_without_a_base_file_is_taken_to_write_a_whole_new_file() -> None:
    new = file_slice("a", base=None, logs=(MB,))
    assert slice_metrics([new], new_file_bytes=50 * MB, in_whole_mb=True)["TOTAL_IO_MB"] == 51.0


def test_the_metrics_of_several_slices_are_those_of_all_together() -> None:
    both = slice_metrics([file_slice("a"), file_slice("b", logs=(MB, MB))], in_whole_mb=True)
    assert (both["TOTAL_LOG_FILES"], both["TOTAL_IO_MB"]) == (3.0, 43.0)


@pytest.mark.parametrize("name", NAMES)
def test_each_strategy_is_found_by_javas_name_with_and_without_its_package(name: str) -> None:
    short = strategy(name, partition_regex="x")
    whole = strategy(PACKAGE + name, partition_regex="x")
    assert type(short) is type(whole)
    assert whole.name == PACKAGE + name
    assert short.scope == whole.scope


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_leaves_out_busy_groups_and_slices_without_logs_and_says_so(name: str) -> None:
    day = "2025/12/31"
    chosen = strategy(name, partition_regex="2025")
    taken, bare, free = (file_slice(n, partition=day, logs=logs) for n, logs in (("t", (1,)), ("b", ()), ("f", (1,))))
    draft = plan(chosen, taken, bare, free, planned=[taken])
    assert names(draft) == ["f"]
    assert LeftOut(day, "no log files", 1, bare.size, comes_back=False) in draft.left_out
    assert LeftOut(day, "in another plan", 1, taken.size, comes_back=True) in draft.left_out


def test_unbounded_takes_everything_that_has_logs() -> None:
    draft = plan(strategy("UnBoundedCompactionStrategy", target_io_mb=1), file_slice("a"), file_slice("b"))
    assert (names(draft), draft.left_out) == (["a", "b"], ())


def test_bounded_io_takes_slices_until_the_target_is_spent_and_the_rest_comes_back() -> None:
    slices = [file_slice("a"), file_slice("b"), file_slice("c", partition="q")]
    draft = plan(strategy("BoundedIOCompactionStrategy", target_io_mb=22), *slices)
    assert names(draft) == ["a", "b"]
    assert draft.left_out == (LeftOut("q", "target IO of 22 MB reached", 1, slices[2].size, comes_back=True),)
    assert draft.missing == ("q",)


def test_log_size_takes_the_largest_logs_first_and_leaves_those_below_the_threshold_for_later() -> None:
    slices = [
        file_slice("s", partition="q", logs=(MB,)),
        file_slice("m", logs=(3 * MB,)),
        file_slice("l", logs=(MB, 4 * MB)),
    ]
    draft = plan(strategy("LogFileSizeBasedCompactionStrategy", log_size_threshold=2 * MB), *slices)
    assert names(draft) == ["l", "m"]
    assert draft.left_out == (LeftOut("q", f"less than {2 * MB} bytes of logs", 1, slices[0].size, comes_back=True),)


def test_log_size_is_bounded_by_the_target_io() -> None:
    draft = plan(
        strategy("LogFileSizeBasedCompactionStrategy", target_io_mb=1),
        file_slice("a", logs=(1,)),
        file_slice("b", logs=(2,)),
    )
    assert (names(draft), draft.missing) == (["b"], ("p",))


def test_log_count_takes_the_most_log_files_first_from_the_threshold_on() -> None:
    slices = [file_slice("one", partition="q"), file_slice("two", logs=(1, 1)), file_slice("three", logs=(1, 1, 1))]
    draft = plan(strategy("LogFileNumBasedCompactionStrategy", log_count_threshold=2), *slices)
    assert names(draft) == ["three", "two"]
    assert draft.missing == ("q",)


def test_day_based_takes_the_newest_partitions_the_newest_first() -> None:
    chosen = strategy("DayBasedCompactionStrategy", day_partitions=2, target_io_mb=1)
    choice = chosen.choose_partitions(["2025/12/30", "2026/01/01", "2025/01/31"])
    assert choice.chosen == ("2026/01/01", "2025/12/30")
    assert choice.left_out == (LeftOut("2025/01/31", "not among the 2 newest partitions", comes_back=True),)
    draft = plan(chosen, file_slice("old", partition="2025/12/30"), file_slice("new", partition="2026/01/01"))
    assert (names(draft), draft.missing) == (["new"], ("2025/12/30",))


def test_bounded_partition_aware_takes_the_last_days_and_forgets_the_older_ones() -> None:
    choice = strategy("BoundedPartitionAwareCompactionStrategy", day_partitions=2).choose_partitions(
        ["2025-12-29", "2025-12-30", "2026-01-01"]
    )
    assert choice.chosen == ("2026-01-01", "2025-12-30")
    assert choice.left_out == (LeftOut("2025-12-29", "older than 2025-12-30"),)


def test_unbounded_partition_aware_takes_the_older_ones_and_waits_for_the_last_days() -> None:
    choice = strategy("UnBoundedPartitionAwareCompactionStrategy", day_partitions=2).choose_partitions(
        ["2025-12-29", "2025-12-30", "2026-01-01"]
    )
    assert choice.chosen == ("2025-12-29",)
    assert [(each.partition, each.comes_back) for each in choice.left_out] == [
        ("2026-01-01", True),
        ("2025-12-30", True),
    ]


def test_the_regular_expression_may_match_anywhere_in_the_path() -> None:
    choice = strategy("PartitionRegexBasedCompactionStrategy", partition_regex="2026").choose_partitions(
        ["dt=2026-01-01", "dt=2025-12-31"]
    )
    assert choice.chosen == ("dt=2026-01-01",)
    assert choice.left_out == (LeftOut("dt=2025-12-31", "no match for '2026'"),)


def test_the_strategy_by_regular_expression_needs_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"needs hoodie\.compaction\.partition\.path\.regex"):
        strategy("PartitionRegexBasedCompactionStrategy")


def test_several_strategies_narrow_one_after_the_other() -> None:
    both = strategy(
        f"{PACKAGE}PartitionRegexBasedCompactionStrategy,LogFileNumBasedCompactionStrategy",
        partition_regex="q",
        log_count_threshold=2,
    )
    assert both.choose_partitions(["p", "q"]).chosen == ("q",)
    draft = plan(both, file_slice("one"), file_slice("two", logs=(1, 1)))
    assert (names(draft), draft.missing) == (["two"], ("p",))
    assert both.name.count(",") == 1


def test_log_compaction_takes_slices_with_many_log_files_or_blocks() -> None:
    few, many, blocks = file_slice("few"), file_slice("many", logs=(1,) * 5), file_slice("blocks", logs=(1, 1))
    counted = LogCompactionStrategy(
        LogCompactionSettings(), blocks=lambda each: 7 if each.group.file_id == "blocks" else len(each.logs)
    )
    draft = counted.plan([few, many, blocks], planned=frozenset())
    assert names(draft) == ["many", "blocks"]
    assert draft.left_out == (LeftOut("p", "less than 5 log blocks", 1, few.size),)
    by_files = LogCompactionStrategy(LogCompactionSettings()).plan([few, many, blocks], planned=frozenset([many.group]))
    assert (names(by_files), by_files.missing) == ([], ("p",))


def test_plans_name_the_class_that_executes_them_and_not_the_strategy() -> None:
    # Releases of Java before 1.2 load the class that a plan names as its executor.
    assert strategy(NAMES[0]).class_name == "org.apache.hudi.table.action.compact.CompactionExecutionHelper"
    log = LogCompactionStrategy(LogCompactionSettings())
    assert log.class_name == "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper"


def test_plans_record_the_settings_and_their_scope() -> None:
    params = strategy("DayBasedCompactionStrategy", day_partitions=3).params
    assert params["hoodie.compaction.daybased.target.partitions"] == "3"
    assert params["tablekeeper.planning.scope"] == strategy("DayBasedCompactionStrategy", day_partitions=3).scope


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"target_io_mb": 1}, {"target_io_mb": 2}, True),
        ({"log_size_threshold": 1}, {"log_size_threshold": 2}, True),
        ({"day_partitions": 1}, {"day_partitions": 2}, False),
        ({"partition_regex": "a"}, {"partition_regex": "b"}, False),
    ],
)
def test_the_scope_changes_with_what_is_passed_over_without_being_recorded(
    one: dict[str, Any], other: dict[str, Any], equal: bool
) -> None:
    name = "LogFileSizeBasedCompactionStrategy"
    assert (strategy(name, **one).scope == strategy(name, **other).scope) is equal


class EveryOther(CompactionStrategy):
    """A strategy of a user's own."""

    def choose_slices(self, slices: Sequence[FileSlice]) -> SliceChoice:
        return SliceChoice(tuple(slices[::2]), leave_out_slices(slices[1::2], reason="not this time", comes_back=True))


def test_a_users_own_class_is_loaded_by_its_python_path() -> None:
    own = strategy(f"{__name__}.EveryOther")
    draft = plan(own, file_slice("a"), file_slice("b"), file_slice("c"))
    assert (names(draft), draft.missing) == (["a", "c"], ("p",))
    assert own.name == f"{__name__}.EveryOther"


def test_a_users_own_class_can_be_registered_under_a_name() -> None:
    COMPACTION_STRATEGIES.register("every-other")(EveryOther)
    assert isinstance(strategy("every-other"), EveryOther)


def test_a_class_of_the_same_short_name_elsewhere_is_not_taken_for_hudis() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be loaded"):
        strategy("my.own.DayBasedCompactionStrategy")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoSuchStrategy", "'NoSuchStrategy' is not known"),
        ("org.apache.hudi.NoSuchStrategy", "cannot be loaded"),
        ("tablekeeper.no_such_module.Strategy", "cannot be loaded"),
        ("pathlib.NoSuchClass", "cannot be loaded"),
        ("pathlib.Path", "is no subclass of CompactionStrategy"),
        (" , ", "names no strategy"),
    ],
)
def test_a_strategy_that_is_not_there_is_refused_with_those_that_are(name: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        strategy(name)


def test_a_strategy_narrowed_to_some_partitions_leaves_the_others_for_the_next_plan() -> None:
    narrowed = OnlyPartitions(strategy("PartitionRegexBasedCompactionStrategy", partition_regex="f"), "sf".__contains__)
    choice = narrowed.choose_partitions(["f", "la", "s"])
    assert choice.chosen == ("f",)
    assert {each.partition: each.comes_back for each in choice.left_out} == {"la": True, "s": False}
    assert narrowed.scope == narrowed.strategy.scope


@pytest.mark.parametrize(
    ("partition", "day"),
    [
        ("2026/01/31", "2026-01-31"),
        ("2026/1/3", "2026-01-03"),
        ("2026-01-31", "2026-01-31"),
        ("20260131", "2026-01-31"),
        ("dt=2026-01-31", "2026-01-31"),
        ("year=2026/month=01/day=31", "2026-01-31"),
        ("dt=2026-01-31/country=de", "2026-01-31"),
    ],
)
def test_the_day_of_a_partition_is_read_from_the_beginning_of_its_path(partition: str, day: str) -> None:
    assert day_of_partition(partition).isoformat() == day


@pytest.mark.parametrize("partition", ["", "city=sf", "2026/13/01", "dt=__HIVE_DEFAULT_PARTITION__", "2026"])
def test_a_partition_that_is_no_day_is_refused_by_its_name(partition: str) -> None:
    with pytest.raises(InvalidRequestError, match="does not begin with a day"):
        day_of_partition(partition)
