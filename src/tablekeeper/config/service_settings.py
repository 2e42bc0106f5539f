"""Typed settings of compaction, log compaction and clustering, from options.

`params` is what a plan records of the settings that its maker chose by, and `scope` the part of it that decides what a
plan leaves out without recording the partition as missing. Two plans of one scope can follow each other incrementally;
where the scope changed, what the older plan passed over may be work for the newer one, so that all partitions are
looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tablekeeper.config.clustering_order import ClusteringOrder, Layout, OutputLayout
from tablekeeper.config.registry import Setting, Settings, field_of, named, regex, setting, words
from tablekeeper.config.write_settings import NEW_FILE_BYTES
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = [
    "SCOPE_PARAM",
    "ClusteringSettings",
    "CompactionSettings",
    "CompactionTrigger",
    "LogCompactionSettings",
    "PartitionFilter",
    "SliceOrder",
]

SCOPE_PARAM = "tablekeeper.planning.scope"
"""Key in the parameters of a plan's strategy: the scope that the plan was made with."""

INCREMENTAL = Setting(
    "hoodie.table.services.incremental.enabled",
    True,
    "Plan table services from the partitions touched since the last plan, not from all.",
)

_PLAN = "hoodie.clustering.plan.strategy."
_COMPACT_STRATEGIES = "org.apache.hudi.table.action.compact.strategy."
_CLUSTER_STRATEGIES = "org.apache.hudi.client.clustering.plan.strategy."
_SINGLE_FILE = "SparkSingleFileSortExecutionStrategy"
_EXECUTIONS = ("SparkSortAndSizeExecutionStrategy", "JavaSortAndSizeExecutionStrategy", _SINGLE_FILE)
_SINGLE_FILE_PLAN = "SparkSingleFileSortPlanStrategy"


class CompactionTrigger(enum.Enum):
    """What makes a compaction due; the names are Hudi's."""

    NUM_COMMITS = "NUM_COMMITS"
    NUM_COMMITS_AFTER_LAST_REQUEST = "NUM_COMMITS_AFTER_LAST_REQUEST"
    TIME_ELAPSED = "TIME_ELAPSED"
    NUM_AND_TIME = "NUM_AND_TIME"
    NUM_OR_TIME = "NUM_OR_TIME"


class PartitionFilter(enum.Enum):
    """Which partitions a clustering plan takes; the names are Hudi's."""

    NONE = "NONE"
    RECENT_DAYS = "RECENT_DAYS"
    SELECTED_PARTITIONS = "SELECTED_PARTITIONS"
    DAY_ROLLING = "DAY_ROLLING"


class SliceOrder(enum.Enum):
    """By what slices are ordered before they are packed into clustering groups; the names are Hudi's."""

    SIZE = "SIZE"
    INSTANT_TIME = "INSTANT_TIME"


@dataclass(frozen=True, slots=True)
class CompactionSettings(Settings):
    """When to compact, and what. `strategy` is a class name, or several with commas that narrow one after the other."""

    strategy: str = setting(
        "hoodie.compaction.strategy",
        _COMPACT_STRATEGIES + "LogFileSizeBasedCompactionStrategy",
        "Which file groups are compacted first: a strategy by Java's class name or Python path; several with commas.",
    )
    target_io_mb: int = setting(
        "hoodie.compaction.target.io",
        512_000,
        "Megabytes that one compaction reads and writes, with strategies that are bounded.",
        least=1,
    )
    log_size_threshold: int = setting(
        "hoodie.compaction.logfile.size.threshold",
        0,
        "Bytes of logs from which a file group is compacted, with the strategy by log size.",
        least=0,
    )
    log_count_threshold: int = setting(
        "hoodie.compaction.logfile.num.threshold",
        0,
        "Log files from which a file group is compacted, with the strategy by log count.",
        least=0,
    )
    day_partitions: int = setting(
        "hoodie.compaction.daybased.target.partitions",
        10,
        "Newest partitions, or days back from today, that strategies by day compact.",
        least=1,
    )
    partition_regex: str | None = setting(
        "hoodie.compaction.partition.path.regex",
        None,
        "Partitions that are compacted, by a regular expression found in their path.",
        parse=regex,
    )
    new_file_bytes: int = field_of(NEW_FILE_BYTES)
    incremental: bool = field_of(INCREMENTAL)
    inline: bool = setting("hoodie.compact.inline", False, "Compact after a write, when a compaction is due.")
    schedule_inline: bool = setting(
        "hoodie.compact.schedule.inline",
        False,
        "Schedule a compaction after a write when one is due, for others to execute.",
    )
    run_async: bool = setting(
        "hoodie.datasource.compaction.async.enable",
        True,
        "Accepted for compatibility with Java; `Table.services` runs services in the background.",
    )
    trigger: CompactionTrigger = setting(
        "hoodie.compact.inline.trigger.strategy",
        CompactionTrigger.NUM_COMMITS,
        "When one is due: NUM_COMMITS, NUM_COMMITS_AFTER_LAST_REQUEST, TIME_ELAPSED, NUM_AND_TIME or NUM_OR_TIME.",
    )
    max_delta_commits: int = setting(
        "hoodie.compact.inline.max.delta.commits",
        5,
        "Delta commits since the last compaction that make the next one due.",
        least=1,
    )
    max_delta_s: int = setting(
        "hoodie.compact.inline.max.delta.seconds",
        3_600,
        "Seconds since the last compaction that make the next one due.",
        least=0,
    )

    @property
    def params(self) -> dict[str, str]:
        """What a plan records of the settings that it was made with."""
        thresholds = ("target_io_mb", "log_size_threshold", "log_count_threshold")
        return self.texts("strategy", *thresholds, "day_partitions", "partition_regex")

    @property
    def scope(self) -> str:
        """Thresholds and bounds are not in it: partitions that they leave work in are recorded as missing."""
        found = self.texts("strategy", "day_partitions", "partition_regex")
        return _scope({**found, self.key("strategy"): _short_names(self.strategy)})


@dataclass(frozen=True, slots=True)
class LogCompactionSettings(Settings):
    """When to compact logs, and which. `inline`: also after writes."""

    blocks_threshold: int = setting(
        "hoodie.log.compaction.blocks.threshold",
        5,
        "Log blocks or log files from which a file group's logs are compacted.",
        least=1,
    )
    incremental: bool = field_of(INCREMENTAL)
    enabled: bool = setting(
        "hoodie.log.compaction.enable",
        False,
        "Accepted for compatibility with Java; `Table.services` runs services in the background.",
    )
    inline: bool = setting(
        "hoodie.log.compaction.inline", False, "Compact logs after a write, when a log compaction is due."
    )

    @property
    def params(self) -> dict[str, str]:
        """What a plan records of the settings that it was made with."""
        return self.texts("blocks_threshold")

    @property
    def scope(self) -> str:
        return _scope(self.params)


def _slice_order(text: str) -> tuple[SliceOrder, ...]:
    return tuple(map(named(SliceOrder), words(text)))


@dataclass(frozen=True, slots=True)
class ClusteringSettings(Settings):
    """When to cluster, what, and how the rows are laid out. `strategy` is a class name."""

    strategy: str = setting(
        "hoodie.clustering.plan.strategy.class",
        _CLUSTER_STRATEGIES + "SparkSizeBasedClusteringPlanStrategy",
        "Which file slices are clustered: a strategy by Java's class name or Python path.",
    )
    execution: str | None = setting(
        "hoodie.clustering.execution.strategy.class",
        None,
        "Java's class that executes plans; follows the plan strategy by default.",
    )
    partition_filter: PartitionFilter = setting(
        "hoodie.clustering.plan.partition.filter.mode",
        PartitionFilter.NONE,
        "Partitions that are clustered: NONE (all), RECENT_DAYS, SELECTED_PARTITIONS, DAY_ROLLING.",
    )
    small_file_bytes: int = setting(
        _PLAN + "small.file.limit", 300 << 20, "Base files below this many bytes are clustered.", least=0
    )
    target_file_bytes: int = setting(
        _PLAN + "target.file.max.bytes", 1 << 30, "Bytes at which clustering begins a new file.", least=1
    )
    max_group_bytes: int = setting(
        _PLAN + "max.bytes.per.group", 2 << 30, "Most bytes that are clustered together.", least=1
    )
    max_groups: int = setting(_PLAN + "max.num.groups", 30, "Most groups of slices in one clustering plan.", least=1)
    single_group: bool = setting(
        _PLAN + "single.group.clustering.enabled",
        True,
        "Cluster a single file slice that would become a single file, to sort it.",
    )
    slice_order: tuple[SliceOrder, ...] = setting(
        _PLAN + "file.slices.sort.by",
        (SliceOrder.SIZE,),
        "Order in which slices are packed: SIZE (largest first), INSTANT_TIME, or both.",
        parse=_slice_order,
    )
    lookback_partitions: int = setting(
        _PLAN + "daybased.lookback.partitions", 2, "Newest partitions that are clustered, with RECENT_DAYS."
    )
    skip_latest_partitions: int = setting(
        _PLAN + "daybased.skipfromlatest.partitions",
        0,
        "Newest partitions that are left for later, with RECENT_DAYS.",
        least=0,
    )
    begin_partition: str | None = setting(
        _PLAN + "cluster.begin.partition", None, "First partition that is clustered, with SELECTED_PARTITIONS."
    )
    end_partition: str | None = setting(
        _PLAN + "cluster.end.partition", None, "Last partition that is clustered, with SELECTED_PARTITIONS."
    )
    selected_partitions: tuple[str, ...] = setting(
        _PLAN + "partition.selected", (), "Partitions that are clustered, with commas, touched or not."
    )
    partition_regex: str | None = setting(
        _PLAN + "partition.regex.pattern",
        None,
        "Partitions that are clustered, by a regular expression that their whole path matches.",
        parse=regex,
    )
    sort_columns: tuple[str, ...] = setting(
        _PLAN + "sort.columns", (), "Columns that rows are ordered by, with commas."
    )
    layout_kind: Layout = setting(
        "hoodie.layout.optimize.strategy",
        Layout.LINEAR,
        "How several sort columns share the order: LINEAR, ZORDER or HILBERT.",
        parse=Layout.named,
    )
    new_file_bytes: int = field_of(NEW_FILE_BYTES)
    incremental: bool = field_of(INCREMENTAL)
    inline: bool = setting("hoodie.clustering.inline", False, "Cluster after a write, when a clustering is due.")
    schedule_inline: bool = setting(
        "hoodie.clustering.schedule.inline",
        False,
        "Schedule a clustering after a write when one is due, for others to execute.",
    )
    run_async: bool = setting(
        "hoodie.clustering.async.enabled",
        False,
        "Accepted for compatibility with Java; `Table.services` runs services in the background.",
    )
    max_inline_commits: int = setting(
        "hoodie.clustering.inline.max.commits",
        4,
        "Commits since the last clustering that make the next inline one due.",
    )
    max_async_commits: int = setting(
        "hoodie.clustering.async.max.commits",
        4,
        "Commits since the last clustering that make the next background one due.",
    )

    besides: ClassVar[tuple[Setting, ...]] = (
        Setting(
            "hoodie.layout.optimize.curve.build.method",
            "DIRECT",
            "Accepted for compatibility with Java; curves are always built from the values themselves.",
        ),
    )

    def _check(self) -> None:
        if not self.slice_order:
            raise InvalidRequestError(f"{self.key('slice_order')}: name at least one of SIZE and INSTANT_TIME.")
        name = (self.execution or "").rpartition(".")[2]
        if name and name not in _EXECUTIONS:
            raise UnsupportedFeatureError(
                f"{self.key('execution')}: {self.execution} is not supported. Remove it, or use "
                f"{' or '.join(_EXECUTIONS)}."
            )

    @property
    def layout(self) -> OutputLayout:
        """How an executor lays the rows out."""
        single = self.strategy.rpartition(".")[2] == _SINGLE_FILE_PLAN
        single = single or (self.execution or "").rpartition(".")[2] == _SINGLE_FILE
        return OutputLayout(ClusteringOrder(self.sort_columns, self.layout_kind), self.target_file_bytes, single)

    @property
    def params(self) -> dict[str, str]:
        """What a plan records of the settings that it was made with; sort columns are Java's own parameter."""
        sizes = ("small_file_bytes", "max_group_bytes", "max_groups", "single_group")
        partitions = ("partition_regex", "begin_partition", "end_partition")
        return self.texts("strategy", "partition_filter", *sizes, *partitions, "sort_columns")

    @property
    def scope(self) -> str:
        """The layout is in it: rows that were ordered otherwise are work again. Bounds of a plan are not."""
        bounds = {self.key("max_group_bytes"), self.key("max_groups")}
        found = {name: text for name, text in self.params.items() if name not in bounds}
        more = self.texts("lookback_partitions", "skip_latest_partitions", "layout_kind", "target_file_bytes")
        return _scope({**found, **more, self.key("strategy"): _short_names(self.strategy)})


def _scope(values: Mapping[str, str]) -> str:
    return ";".join(f"{name}={value}" for name, value in sorted(values.items()))


def _short_names(class_names: str) -> str:
    """Classes without their packages: both ways of naming one mean the same."""
    return ",".join(name.rpartition(".")[2] for name in words(class_names))
