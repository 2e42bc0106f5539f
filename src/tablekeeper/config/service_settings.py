"""Typed settings of compaction, log compaction and clustering, from options.

`params` is what a plan records of the settings that its maker chose by, and `scope` the part of it that decides what a
plan leaves out without recording the partition as missing. Two plans of one scope can follow each other incrementally;
where the scope changed, what the older plan passed over may be work for the newer one, so that all partitions are
looked at.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from tablekeeper.config.clustering_order import ClusteringOrder, Layout, OutputLayout
from tablekeeper.config.options import Options
from tablekeeper.config.service_options import (
    CLUSTERING_KEYS,
    COMPACTION_KEYS,
    INCREMENTAL,
    LOG_COMPACTION_KEYS,
    NEW_FILE_BYTES,
)
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

E = TypeVar("E", bound=enum.Enum)

_C, _L, _G = COMPACTION_KEYS, LOG_COMPACTION_KEYS, CLUSTERING_KEYS
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
class CompactionSettings:
    """When to compact, and what. `strategy` is a class name, or several with commas that narrow one after the other."""

    strategy: str = "LogFileSizeBasedCompactionStrategy"
    target_io_mb: int = 512_000
    log_size_threshold: int = 0
    log_count_threshold: int = 0
    day_partitions: int = 10
    partition_regex: str | None = None
    new_file_bytes: int = 125_829_120
    incremental: bool = True
    inline: bool = False
    schedule_inline: bool = False
    run_async: bool = True
    trigger: CompactionTrigger = CompactionTrigger.NUM_COMMITS
    max_delta_commits: int = 5
    max_delta_s: int = 3_600

    def __post_init__(self) -> None:
        _at_least(_C.target_io, self.target_io_mb, 1)
        _at_least(_C.log_size, self.log_size_threshold, 0)
        _at_least(_C.log_count, self.log_count_threshold, 0)
        _at_least(_C.day_partitions, self.day_partitions, 1)
        _at_least(_C.delta_commits, self.max_delta_commits, 1)
        _at_least(_C.delta_seconds, self.max_delta_s, 0)
        _check_regex(_C.regex, self.partition_regex)

    @classmethod
    def from_options(cls, options: Options) -> CompactionSettings:
        return cls(
            strategy=options.required_text(_C.strategy),
            target_io_mb=options.integer(_C.target_io),
            log_size_threshold=options.integer(_C.log_size),
            log_count_threshold=options.integer(_C.log_count),
            day_partitions=options.integer(_C.day_partitions),
            partition_regex=options.text(_C.regex) or None,
            new_file_bytes=options.integer(NEW_FILE_BYTES),
            incremental=options.flag(INCREMENTAL),
            inline=options.flag(_C.inline),
            schedule_inline=options.flag(_C.schedule_inline),
            run_async=options.flag(_C.run_async),
            trigger=_named(CompactionTrigger, _C.trigger, options.required_text(_C.trigger)),
            max_delta_commits=options.integer(_C.delta_commits),
            max_delta_s=options.integer(_C.delta_seconds),
        )

    @property
    def params(self) -> dict[str, str]:
        """What a plan records of the settings that it was made with."""
        return _texts(
            {
                _C.strategy: self.strategy,
                _C.target_io: self.target_io_mb,
                _C.log_size: self.log_size_threshold,
                _C.log_count: self.log_count_threshold,
                _C.day_partitions: self.day_partitions,
                _C.regex: self.partition_regex,
            }
        )

    @property
    def scope(self) -> str:
        """Thresholds and bounds are not in it: partitions that they leave work in are recorded as missing."""
        return _scope(
            {
                _C.strategy: _short_names(self.strategy),
                _C.day_partitions: self.day_partitions,
                _C.regex: self.partition_regex,
            }
        )


@dataclass(frozen=True, slots=True)
class LogCompactionSettings:
    """When to compact logs, and which. `inline`: also after writes."""

    blocks_threshold: int = 5
    incremental: bool = True
    enabled: bool = False
    inline: bool = False

    def __post_init__(self) -> None:
        _at_least(_L.blocks, self.blocks_threshold, 1)

    @classmethod
    def from_options(cls, options: Options) -> LogCompactionSettings:
        return cls(
            blocks_threshold=options.integer(_L.blocks),
            incremental=options.flag(INCREMENTAL),
            enabled=options.flag(_L.enable),
            inline=options.flag(_L.inline),
        )

    @property
    def params(self) -> dict[str, str]:
        """What a plan records of the settings that it was made with."""
        return {_L.blocks: str(self.blocks_threshold)}

    @property
    def scope(self) -> str:
        return _scope(self.params)


@dataclass(frozen=True, slots=True)
class ClusteringSettings:
    """When to cluster, what, and how the rows are laid out. `strategy` is a class name."""

    strategy: str = "SparkSizeBasedClusteringPlanStrategy"
    execution: str | None = None
    partition_filter: PartitionFilter = PartitionFilter.NONE
    small_file_bytes: int = 300 << 20
    target_file_bytes: int = 1 << 30
    max_group_bytes: int = 2 << 30
    max_groups: int = 30
    single_group: bool = True
    slice_order: tuple[SliceOrder, ...] = (SliceOrder.SIZE,)
    lookback_partitions: int = 2
    skip_latest_partitions: int = 0
    begin_partition: str | None = None
    end_partition: str | None = None
    selected_partitions: tuple[str, ...] = ()
    partition_regex: str | None = None
    sort_columns: tuple[str, ...] = ()
    layout_kind: Layout = Layout.LINEAR
    new_file_bytes: int = 125_829_120
    incremental: bool = True
    inline: bool = False
    schedule_inline: bool = False
    run_async: bool = False
    max_inline_commits: int = 4
    max_async_commits: int = 4

    def __post_init__(self) -> None:
        _at_least(_G.small_file, self.small_file_bytes, 0)
        _at_least(_G.target_file, self.target_file_bytes, 1)
        _at_least(_G.group_bytes, self.max_group_bytes, 1)
        _at_least(_G.groups, self.max_groups, 1)
        _at_least(_G.skip_latest, self.skip_latest_partitions, 0)
        _check_regex(_G.regex, self.partition_regex)
        if not self.slice_order:
            raise InvalidRequestError(f"{_G.slice_order}: name at least one of SIZE and INSTANT_TIME.")
        named = (self.execution or "").rpartition(".")[2]
        if named and named not in _EXECUTIONS:
            raise UnsupportedFeatureError(
                f"{_G.execution}: {self.execution} is not supported. Remove it, or use {' or '.join(_EXECUTIONS)}."
            )

    @classmethod
    def from_options(cls, options: Options) -> ClusteringSettings:
        return cls(
            strategy=options.required_text(_G.strategy),
            execution=options.text(_G.execution) or None,
            partition_filter=_named(PartitionFilter, _G.filter_mode, options.required_text(_G.filter_mode)),
            small_file_bytes=options.integer(_G.small_file),
            target_file_bytes=options.integer(_G.target_file),
            max_group_bytes=options.integer(_G.group_bytes),
            max_groups=options.integer(_G.groups),
            single_group=options.flag(_G.single_group),
            slice_order=tuple(
                _named(SliceOrder, _G.slice_order, name) for name in _list(options.required_text(_G.slice_order))
            ),
            lookback_partitions=options.integer(_G.lookback),
            skip_latest_partitions=options.integer(_G.skip_latest),
            begin_partition=options.text(_G.begin),
            end_partition=options.text(_G.end),
            selected_partitions=_list(options.text(_G.selected)),
            partition_regex=options.text(_G.regex) or None,
            sort_columns=_list(options.text(_G.sort_columns)),
            layout_kind=Layout.named(options.required_text(_G.layout)),
            new_file_bytes=options.integer(NEW_FILE_BYTES),
            incremental=options.flag(INCREMENTAL),
            inline=options.flag(_G.inline),
            schedule_inline=options.flag(_G.schedule_inline),
            run_async=options.flag(_G.run_async),
            max_inline_commits=options.integer(_G.inline_commits),
            max_async_commits=options.integer(_G.async_commits),
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
        return _texts(
            {
                _G.strategy: self.strategy,
                _G.filter_mode: self.partition_filter.value,
                _G.small_file: self.small_file_bytes,
                _G.group_bytes: self.max_group_bytes,
                _G.groups: self.max_groups,
                _G.single_group: self.single_group,
                _G.regex: self.partition_regex,
                _G.begin: self.begin_partition,
                _G.end: self.end_partition,
                _G.sort_columns: ",".join(self.sort_columns) or None,
            }
        )

    @property
    def scope(self) -> str:
        """The layout is in it: rows that were ordered otherwise are work again. Bounds of a plan are not."""
        bounds = {_G.group_bytes, _G.groups}
        filters: dict[str, object] = {
            _G.strategy: _short_names(self.strategy),
            _G.lookback: self.lookback_partitions,
            _G.skip_latest: self.skip_latest_partitions,
            _G.layout: self.layout_kind.value,
            _G.target_file: self.target_file_bytes,
        }
        return _scope({**{name: value for name, value in self.params.items() if name not in bounds}, **filters})


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _scope(values: Mapping[str, object]) -> str:
    return ";".join(f"{name}={value}" for name, value in sorted(_texts(values).items()))


def _short_names(class_names: str) -> str:
    """Classes without their packages: both ways of naming one mean the same."""
    return ",".join(name.rpartition(".")[2] for name in _list(class_names))


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _named(kind: type[E], option: str, name: str) -> E:
    try:
        return kind(name.strip().upper())
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidRequestError(f"{option}: {name!r} is not known. Use one of {known}.") from None


def _check_regex(option: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise InvalidRequestError(f"{option}: {pattern!r} is no regular expression ({error}). Correct it.") from None


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidRequestError(f"{option}: {value} is too small, the least is {least}. Raise it.")
