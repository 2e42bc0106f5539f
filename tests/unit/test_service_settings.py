"""Settings of the table services: Java's keys and defaults, and values that are refused."""

from __future__ import annotations

import pytest

from tablekeeper.config.clustering_order import Layout
from tablekeeper.config.options import OPTIONS, Options
from tablekeeper.config.registry import Settings
from tablekeeper.config.service_settings import (
    ClusteringSettings,
    CompactionSettings,
    CompactionTrigger,
    LogCompactionSettings,
    PartitionFilter,
    SliceOrder,
)
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__: list[str] = []

JAVA_DEFAULTS = {
    "hoodie.table.services.incremental.enabled": "true",
    "hoodie.compact.inline": "false",
    "hoodie.compact.schedule.inline": "false",
    "hoodie.compact.inline.trigger.strategy": "NUM_COMMITS",
    "hoodie.compact.inline.max.delta.commits": "5",
    "hoodie.compact.inline.max.delta.seconds": "3600",
    "hoodie.compaction.strategy": ("org.apache.hudi.table.action.compact.strategy.LogFileSizeBasedCompactionStrategy"),
    "hoodie.compaction.target.io": "512000",
    "hoodie.compaction.logfile.size.threshold": "0",
    "hoodie.compaction.logfile.num.threshold": "0",
    "hoodie.compaction.daybased.target.partitions": "10",
    "hoodie.log.compaction.enable": "false",
    "hoodie.log.compaction.inline": "false",
    "hoodie.log.compaction.blocks.threshold": "5",
    "hoodie.clustering.inline": "false",
    "hoodie.clustering.schedule.inline": "false",
    "hoodie.clustering.async.enabled": "false",
    "hoodie.clustering.inline.max.commits": "4",
    "hoodie.clustering.async.max.commits": "4",
    "hoodie.clustering.plan.strategy.class": (
        "org.apache.hudi.client.clustering.plan.strategy.SparkSizeBasedClusteringPlanStrategy"
    ),
    "hoodie.clustering.plan.partition.filter.mode": "NONE",
    "hoodie.clustering.plan.strategy.small.file.limit": str(300 * 1024 * 1024),
    "hoodie.clustering.plan.strategy.target.file.max.bytes": str(1024 * 1024 * 1024),
    "hoodie.clustering.plan.strategy.max.bytes.per.group": str(2 * 1024 * 1024 * 1024),
    "hoodie.clustering.plan.strategy.max.num.groups": "30",
    "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true",
    "hoodie.clustering.plan.strategy.file.slices.sort.by": "SIZE",
    "hoodie.clustering.plan.strategy.daybased.lookback.partitions": "2",
    "hoodie.clustering.plan.strategy.daybased.skipfromlatest.partitions": "0",
    "hoodie.layout.optimize.strategy": "LINEAR",
    "hoodie.layout.optimize.curve.build.method": "DIRECT",
}


@pytest.mark.parametrize(("name", "default"), JAVA_DEFAULTS.items())
def test_options_have_javas_names_and_defaults(name: str, default: str) -> None:
    assert OPTIONS[name].default_text == default


def test_every_setting_that_is_declared_is_an_option() -> None:
    """A class of settings that `options.py` does not list would be refused as unknown."""
    declared = {each.name for kind in Settings.__subclasses__() for each in kind.all_settings()}
    assert "hoodie.clean.policy" in declared
    assert declared <= set(OPTIONS)


def test_the_settings_of_no_options_are_the_defaults() -> None:
    compaction = CompactionSettings.from_options({})
    clustering = ClusteringSettings.from_options({})
    assert compaction == CompactionSettings(strategy=compaction.strategy)
    assert clustering == ClusteringSettings(strategy=clustering.strategy)
    assert LogCompactionSettings.from_options({}) == LogCompactionSettings()
    assert (compaction.scope, clustering.scope) == (CompactionSettings().scope, ClusteringSettings().scope)


def test_compaction_is_read_from_options() -> None:
    read = CompactionSettings.from_options(
        Options(
            {
                "hoodie.compaction.strategy": "DayBasedCompactionStrategy",
                "hoodie.compaction.target.io": 7,
                "hoodie.compact.inline": True,
                "hoodie.compact.inline.trigger.strategy": "num_or_time",
                "hoodie.table.services.incremental.enabled": False,
                "hoodie.parquet.max.file.size": 1000,
            }
        ).given
    )
    expected = CompactionSettings(
        strategy="DayBasedCompactionStrategy",
        target_io_mb=7,
        inline=True,
        trigger=CompactionTrigger.NUM_OR_TIME,
        incremental=False,
        new_file_bytes=1000,
    )
    assert read == expected


def test_clustering_is_read_from_options() -> None:
    prefix = "hoodie.clustering.plan.strategy."
    read = ClusteringSettings.from_options(
        Options(
            {
                "hoodie.clustering.plan.partition.filter.mode": "RECENT_DAYS",
                f"{prefix}file.slices.sort.by": "instant_time, size",
                f"{prefix}partition.selected": "a,b",
                f"{prefix}sort.columns": "ts, id",
                "hoodie.layout.optimize.strategy": "z-order",
                f"{prefix}target.file.max.bytes": 5,
            }
        ).given
    )
    assert read.partition_filter is PartitionFilter.RECENT_DAYS
    assert read.slice_order == (SliceOrder.INSTANT_TIME, SliceOrder.SIZE)
    assert read.selected_partitions == ("a", "b")
    assert (read.layout.order.columns, read.layout.order.layout) == (("ts", "id"), Layout.ZORDER)
    assert (read.layout.target_file_bytes, read.layout.single_file) == (5, False)


@pytest.mark.parametrize(
    "settings",
    [
        ClusteringSettings(strategy="org.apache.hudi.client.clustering.plan.strategy.SparkSingleFileSortPlanStrategy"),
        ClusteringSettings(
            execution="org.apache.hudi.client.clustering.run.strategy.SparkSingleFileSortExecutionStrategy"
        ),
    ],
)
def test_single_file_sort_writes_single_files(settings: ClusteringSettings) -> None:
    assert settings.layout.single_file


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hoodie.compaction.target.io", 0, "is too small, the least is 1"),
        ("hoodie.compaction.logfile.size.threshold", -1, "is too small, the least is 0"),
        ("hoodie.compact.inline.max.delta.commits", 0, "is too small, the least is 1"),
        ("hoodie.compact.inline.trigger.strategy", "SOMETIMES", "'SOMETIMES' is not known. Use one of NUM_COMMITS, "),
        ("hoodie.compaction.partition.path.regex", "(", "is no regular expression"),
    ],
)
def test_bad_settings_of_compaction_are_refused_with_the_option(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        CompactionSettings.from_options(Options({name: value}).given)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hoodie.clustering.plan.strategy.max.num.groups", 0, "is too small, the least is 1"),
        ("hoodie.clustering.plan.strategy.file.slices.sort.by", "COLOUR", "'COLOUR' is not known"),
        ("hoodie.clustering.plan.strategy.file.slices.sort.by", " ", "name at least one"),
        ("hoodie.clustering.plan.strategy.partition.regex.pattern", "[", "is no regular expression"),
        ("hoodie.clustering.plan.partition.filter.mode", "SOME", "'SOME' is not known"),
    ],
)
def test_bad_settings_of_clustering_are_refused_with_the_option(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        ClusteringSettings.from_options(Options({name: value}).given)
    assert name in str(error.value)


def test_a_log_compaction_needs_at_least_one_block() -> None:
    with pytest.raises(InvalidRequestError, match=r"blocks\.threshold: 0 is too small"):
        LogCompactionSettings.from_options(Options({"hoodie.log.compaction.blocks.threshold": 0}).given)


def test_an_execution_strategy_that_is_not_there_is_refused() -> None:
    name = "org.apache.hudi.client.clustering.run.strategy.SparkBinaryCopyClusteringExecutionStrategy"
    with pytest.raises(UnsupportedFeatureError, match="SparkBinaryCopyClusteringExecutionStrategy is not supported"):
        ClusteringSettings(execution=name)
