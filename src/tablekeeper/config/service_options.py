"""Options of compaction, log compaction and clustering, with Java's names and defaults.

The names are here alone; `service_settings.py` turns them into typed settings.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CLUSTERING_KEYS",
    "COMPACTION_KEYS",
    "INCREMENTAL",
    "LOG_COMPACTION_KEYS",
    "NEW_FILE_BYTES",
    "SERVICES_ENABLED",
    "SERVICE_OPTIONS",
    "ClusteringKeys",
    "CompactionKeys",
    "LogCompactionKeys",
]

SERVICES_ENABLED = "hoodie.table.services.enabled"
INCREMENTAL = "hoodie.table.services.incremental.enabled"
NEW_FILE_BYTES = "hoodie.parquet.max.file.size"

_COMPACT_STRATEGIES = "org.apache.hudi.table.action.compact.strategy."
_CLUSTER_STRATEGIES = "org.apache.hudi.client.clustering.plan.strategy."
_PLAN = "hoodie.clustering.plan.strategy."


@dataclass(frozen=True, slots=True)
class CompactionKeys:
    """Names of the options of compaction."""

    inline: str = "hoodie.compact.inline"
    schedule_inline: str = "hoodie.compact.schedule.inline"
    run_async: str = "hoodie.datasource.compaction.async.enable"
    trigger: str = "hoodie.compact.inline.trigger.strategy"
    delta_commits: str = "hoodie.compact.inline.max.delta.commits"
    delta_seconds: str = "hoodie.compact.inline.max.delta.seconds"
    strategy: str = "hoodie.compaction.strategy"
    target_io: str = "hoodie.compaction.target.io"
    log_size: str = "hoodie.compaction.logfile.size.threshold"
    log_count: str = "hoodie.compaction.logfile.num.threshold"
    day_partitions: str = "hoodie.compaction.daybased.target.partitions"
    regex: str = "hoodie.compaction.partition.path.regex"


@dataclass(frozen=True, slots=True)
class LogCompactionKeys:
    """Names of the options of log compaction."""

    enable: str = "hoodie.log.compaction.enable"
    inline: str = "hoodie.log.compaction.inline"
    blocks: str = "hoodie.log.compaction.blocks.threshold"


@dataclass(frozen=True, slots=True)
class ClusteringKeys:
    """Names of the options of clustering."""

    inline: str = "hoodie.clustering.inline"
    schedule_inline: str = "hoodie.clustering.schedule.inline"
    run_async: str = "hoodie.clustering.async.enabled"
    inline_commits: str = "hoodie.clustering.inline.max.commits"
    async_commits: str = "hoodie.clustering.async.max.commits"
    strategy: str = "hoodie.clustering.plan.strategy.class"
    execution: str = "hoodie.clustering.execution.strategy.class"
    filter_mode: str = "hoodie.clustering.plan.partition.filter.mode"
    small_file: str = _PLAN + "small.file.limit"
    target_file: str = _PLAN + "target.file.max.bytes"
    group_bytes: str = _PLAN + "max.bytes.per.group"
    groups: str = _PLAN + "max.num.groups"
    single_group: str = _PLAN + "single.group.clustering.enabled"
    slice_order: str = _PLAN + "file.slices.sort.by"
    sort_columns: str = _PLAN + "sort.columns"
    lookback: str = _PLAN + "daybased.lookback.partitions"
    skip_latest: str = _PLAN + "daybased.skipfromlatest.partitions"
    begin: str = _PLAN + "cluster.begin.partition"
    end: str = _PLAN + "cluster.end.partition"
    selected: str = _PLAN + "partition.selected"
    regex: str = _PLAN + "partition.regex.pattern"
    layout: str = "hoodie.layout.optimize.strategy"
    curve: str = "hoodie.layout.optimize.curve.build.method"


COMPACTION_KEYS = CompactionKeys()
LOG_COMPACTION_KEYS = LogCompactionKeys()
CLUSTERING_KEYS = ClusteringKeys()

_C, _L, _G = COMPACTION_KEYS, LOG_COMPACTION_KEYS, CLUSTERING_KEYS

_COMPACTION: tuple[tuple[str, str | None, type, str], ...] = (
    (_C.inline, "false", bool, "Compact after a write, when a compaction is due."),
    (_C.schedule_inline, "false", bool, "Schedule a compaction after a write when one is due, for others to execute."),
    (_C.run_async, "true", bool, "Accepted for Java's sake; `Table.services` names what runs beside the writes."),
    (
        _C.trigger,
        "NUM_COMMITS",
        str,
        "When one is due: NUM_COMMITS, NUM_COMMITS_AFTER_LAST_REQUEST, TIME_ELAPSED, NUM_AND_TIME or NUM_OR_TIME.",
    ),
    (_C.delta_commits, "5", int, "Delta commits since the last compaction that make the next one due."),
    (_C.delta_seconds, "3600", int, "Seconds since the last compaction that make the next one due."),
    (
        _C.strategy,
        _COMPACT_STRATEGIES + "LogFileSizeBasedCompactionStrategy",
        str,
        "Which file groups are compacted first: a strategy by Java's class name or Python path; several with commas.",
    ),
    (_C.target_io, "512000", int, "Megabytes that one compaction reads and writes, with strategies that are bounded."),
    (_C.log_size, "0", int, "Bytes of logs from which a file group is compacted, with the strategy by log size."),
    (_C.log_count, "0", int, "Log files from which a file group is compacted, with the strategy by log count."),
    (_C.day_partitions, "10", int, "Newest partitions, or days back from today, that strategies by day compact."),
    (_C.regex, None, str, "Partitions that are compacted, by a regular expression found in their path."),
)

_LOG_COMPACTION: tuple[tuple[str, str | None, type, str], ...] = (
    (_L.enable, "false", bool, "Accepted for Java's sake; `Table.services` names what runs beside the writes."),
    (_L.inline, "false", bool, "Compact logs after a write, when a log compaction is due."),
    (_L.blocks, "5", int, "Log blocks or log files from which a file group's logs are compacted."),
)

_CLUSTERING: tuple[tuple[str, str | None, type, str], ...] = (
    (_G.inline, "false", bool, "Cluster after a write, when a clustering is due."),
    (_G.schedule_inline, "false", bool, "Schedule a clustering after a write when one is due, for others to execute."),
    (_G.run_async, "false", bool, "Accepted for Java's sake; `Table.services` names what runs beside the writes."),
    (_G.inline_commits, "4", int, "Commits since the last clustering that make the next inline one due."),
    (_G.async_commits, "4", int, "Commits since the last clustering that make the next background one due."),
    (
        _G.strategy,
        _CLUSTER_STRATEGIES + "SparkSizeBasedClusteringPlanStrategy",
        str,
        "Which file slices are clustered: a strategy by Java's class name or Python path.",
    ),
    (_G.execution, None, str, "Java's class that carries plans out; follows the plan strategy by default."),
    (
        _G.filter_mode,
        "NONE",
        str,
        "Partitions that are clustered: NONE (all), RECENT_DAYS, SELECTED_PARTITIONS, DAY_ROLLING.",
    ),
    (_G.small_file, "314572800", int, "Base files below this many bytes are clustered."),
    (_G.target_file, "1073741824", int, "Bytes at which clustering begins a new file."),
    (_G.group_bytes, "2147483648", int, "Most bytes that are clustered together."),
    (_G.groups, "30", int, "Most groups of slices in one clustering plan."),
    (_G.single_group, "true", bool, "Cluster a single file slice that would become a single file, to sort it."),
    (_G.slice_order, "SIZE", str, "Order in which slices are packed: SIZE (largest first), INSTANT_TIME, or both."),
    (_G.sort_columns, None, str, "Columns that rows are ordered by, with commas."),
    (_G.lookback, "2", int, "Newest partitions that are clustered, with RECENT_DAYS."),
    (_G.skip_latest, "0", int, "Newest partitions that are left for later, with RECENT_DAYS."),
    (_G.begin, None, str, "First partition that is clustered, with SELECTED_PARTITIONS."),
    (_G.end, None, str, "Last partition that is clustered, with SELECTED_PARTITIONS."),
    (_G.selected, None, str, "Partitions that are clustered, with commas, touched or not."),
    (_G.regex, None, str, "Partitions that are clustered, by a regular expression that their whole path matches."),
    (_G.layout, "LINEAR", str, "How several sort columns share the order: LINEAR, ZORDER or HILBERT."),
    (_G.curve, "DIRECT", str, "Accepted for Java's sake; curves are always built from the values themselves."),
)

SERVICE_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (SERVICES_ENABLED, "true", bool, "Services after writes, where options ask for them; false turns all of them off."),
    (INCREMENTAL, "true", bool, "Plan table services from the partitions touched since the last plan, not from all."),
    *_COMPACTION,
    *_LOG_COMPACTION,
    *_CLUSTERING,
)
"""Known options as (name, default, type, meaning)."""
