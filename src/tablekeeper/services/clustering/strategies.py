"""Which file slices a clustering rewrites together: Hudi's plan strategies under their names, and users' own.

A class of a user's own derives from `ClusteringStrategy`, overrides `choose_partitions`, `is_candidate` or
`group_slices`, and is named by its Python path in the options, or registered.

Where Java forgets partitions that its own next plan would take, they come back here: partitions that have to wait for
their hour (DAY_ROLLING), that were not among the selected ones, and those with file groups in another plan.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from tablekeeper.config.service_settings import ClusteringSettings, PartitionFilter, SliceOrder
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.model import FileGroupId, FileSlice, Work
from tablekeeper.services.plans.service import Draft, LeftOut, PartitionChoice
from tablekeeper.services.plans.strategies import (
    SettingsStrategy,
    StrategyRegistry,
    leave_out_partitions,
    leave_out_slices,
    split_planned,
)

__all__ = [
    "CLUSTERING_STRATEGIES",
    "ClusteringStrategy",
    "SingleFileSortStrategy",
    "SizeBasedStrategy",
    "clustering_strategy",
]

_PACKAGE = "org.apache.hudi.client.clustering.plan.strategy."
_RECENT_DAYS = (
    "SparkRecentDaysClusteringPlanStrategy",
    "JavaRecentDaysClusteringPlanStrategy",
    "FlinkRecentDaysClusteringPlanStrategy",
)
_SELECTED = ("SparkSelectedPartitionsClusteringPlanStrategy", "FlinkSelectedPartitionsClusteringPlanStrategy")
_UNSUPPORTED = {
    "ConsistentBucket": "it resizes the buckets of a consistent hashing index, which only Java does",
    "ConsistentHashing": "it resizes the buckets of a consistent hashing index, which only Java does",
    "StreamCopy": "it copies files without looking at rows, which only Java does",
}
_MS_PER_HOUR = 3_600_000
_HOURS = 24
_RANKING = frozenset({PartitionFilter.RECENT_DAYS, PartitionFilter.DAY_ROLLING})


class ClusteringStrategy(SettingsStrategy[ClusteringSettings]):
    """Base of all strategies of clustering. As it stands it packs all slices of a partition into groups by size.

    `now_ms` is the moment of planning, in milliseconds since the epoch, for filters that look at the hour (in UTC).
    """

    is_incremental = True

    def __init__(self, settings: ClusteringSettings, *, now_ms: int) -> None:
        super().__init__(settings)
        self.now_ms = now_ms

    @property
    def name(self) -> str:
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def class_name(self) -> str:
        return self.settings.layout.class_name

    @property
    def ranks_partitions(self) -> bool:
        """Whether `choose_partitions` compares partitions with each other: it is given all of the table then."""
        return not self.settings.selected_partitions and self.settings.partition_filter in _RANKING

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        """Which partitions to look into, sorted, by the selection, the regular expression and the filter mode."""
        settings = self.settings
        if settings.selected_partitions:
            chosen = tuple(sorted(set(settings.selected_partitions)))
            others = [each for each in partitions if each not in settings.selected_partitions]
            return PartitionChoice(
                chosen, leave_out_partitions(others, reason="not among the selected ones", comes_back=True)
            )
        matching, unmatched = _split_by_regex(partitions, settings.partition_regex)
        choice = _FILTERS[settings.partition_filter](self, matching)
        return PartitionChoice(tuple(sorted(choice.chosen)), (*unmatched, *choice.left_out))

    def is_candidate(self, file_slice: FileSlice) -> bool:
        """Whether the slice is worth to be clustered; all of them here."""
        del file_slice
        return True

    def group_slices(self, slices: Sequence[FileSlice]) -> Sequence[Work]:
        """The candidates of one partition, all of them, packed into groups; `plan` takes as many as a plan may have."""
        groups: list[list[FileSlice]] = []
        room = 0
        for each in sorted(slices, key=self._order):
            size = self.size_of(each)
            if not groups or size > room:
                groups.append([])
                room = self.settings.max_group_bytes
            groups[-1].append(each)
            room -= size
        return [Work(tuple(group), self.outputs_of(group)) for group in groups]

    def plan(self, slices: Sequence[FileSlice], *, planned: frozenset[FileGroupId]) -> Draft:
        """Groups of slices, partition by partition, as many as a plan may have."""
        candidates = [each for each in slices if self.is_candidate(each)]
        passed = {each.group for each in candidates}
        large = leave_out_slices(
            (each for each in slices if each.group not in passed), reason=self.passed_over, comes_back=False
        )
        free, taken = split_planned(candidates, planned)
        by_partition: dict[str, list[FileSlice]] = defaultdict(list)
        for each in free:
            by_partition[each.group.partition].append(each)
        grouped = [work for p in sorted(by_partition) for work in self.group_slices(by_partition[p])]
        worth = [work for work in grouped if self._is_worth(work)]
        single = leave_out_slices(
            (work.slices[0] for work in grouped if not self._is_worth(work)),
            reason="a single file that would stay one",
            comes_back=False,
        )
        most = self.settings.max_groups
        cut = leave_out_slices(
            (each for work in worth[most:] for each in work.slices),
            reason=f"most groups of a plan ({most}) reached",
            comes_back=True,
        )
        return Draft(tuple(worth[:most]), (*large, *taken, *single, *cut))

    @property
    def passed_over(self) -> str:
        """Why slices that are no candidates are not clustered."""
        return "no candidate"

    def size_of(self, file_slice: FileSlice) -> int:
        """Bytes that the slice counts for; without a base file as much as a new one would have."""
        return file_slice.base.size if file_slice.base is not None else self.settings.new_file_bytes

    def outputs_of(self, slices: Sequence[FileSlice]) -> int:
        """File groups that a group of slices becomes."""
        total = sum(self.size_of(each) for each in slices)
        return max(1, math.ceil(total / self.settings.target_file_bytes))

    def _is_worth(self, work: Work) -> bool:
        return self.settings.single_group or len(work.slices) > 1 or work.outputs > 1

    def _order(self, file_slice: FileSlice) -> tuple[object, ...]:
        keys: dict[SliceOrder, object] = {
            SliceOrder.SIZE: -self.size_of(file_slice),
            SliceOrder.INSTANT_TIME: file_slice.base.instant.order if file_slice.base is not None else "",
        }
        return tuple(keys[field] for field in self.settings.slice_order)


CLUSTERING_STRATEGIES: StrategyRegistry[ClusteringStrategy] = StrategyRegistry(
    ClusteringStrategy, option=ClusteringSettings.key("strategy")
)
"""The strategies that are found by name."""


@CLUSTERING_STRATEGIES.register(
    "SparkSizeBasedClusteringPlanStrategy",
    "JavaSizeBasedClusteringPlanStrategy",
    "FlinkSizeBasedClusteringPlanStrategy",
    *_RECENT_DAYS,
    *_SELECTED,
)
class SizeBasedStrategy(ClusteringStrategy):
    """Slices whose base file is small, packed into groups. The default."""

    @property
    def name(self) -> str:
        return f"{_PACKAGE}SparkSizeBasedClusteringPlanStrategy"

    def is_candidate(self, file_slice: FileSlice) -> bool:
        return (file_slice.base.size if file_slice.base is not None else 0) < self.settings.small_file_bytes

    @property
    def passed_over(self) -> str:
        return f"too large for clustering: {self.settings.small_file_bytes} bytes or more"


@CLUSTERING_STRATEGIES.register("SparkSingleFileSortPlanStrategy")
class SingleFileSortStrategy(SizeBasedStrategy):
    """Each small slice by itself, so that its rows are ordered and nothing else moves."""

    @property
    def name(self) -> str:
        return f"{_PACKAGE}SparkSingleFileSortPlanStrategy"

    def group_slices(self, slices: Sequence[FileSlice]) -> Sequence[Work]:
        return [Work((each,)) for each in sorted(slices, key=self._order)]

    def _is_worth(self, work: Work) -> bool:
        del work
        return True


def clustering_strategy(settings: ClusteringSettings, *, now_ms: int) -> ClusteringStrategy:
    """The strategy that the settings name, planning at this moment."""
    short = settings.strategy.strip().rpartition(".")[2]
    for part, why in _UNSUPPORTED.items():
        if part in short:
            raise UnsupportedFeatureError(
                f"{settings.key('strategy')}: {settings.strategy} is not supported, because {why}. Run it with Java "
                f"Hudi, or use {_PACKAGE}SparkSizeBasedClusteringPlanStrategy."
            )
    if short in _RECENT_DAYS:
        settings = replace(settings, partition_filter=PartitionFilter.RECENT_DAYS)
    if short in _SELECTED:
        settings = replace(settings, partition_filter=PartitionFilter.SELECTED_PARTITIONS)
    if settings.partition_filter is PartitionFilter.RECENT_DAYS and settings.lookback_partitions < 0:
        raise InvalidRequestError(
            f"{settings.key('lookback_partitions')}: {settings.lookback_partitions} is negative. Raise it."
        )
    return CLUSTERING_STRATEGIES.find(settings.strategy)(settings, now_ms=now_ms)


def _all(strategy: ClusteringStrategy, partitions: Sequence[str]) -> PartitionChoice:
    del strategy
    return PartitionChoice(tuple(partitions))


def _recent_days(strategy: ClusteringStrategy, partitions: Sequence[str]) -> PartitionChoice:
    """Partitions by name, the last ones first: some are left for later, the next ones are taken, older ones are not.

    All that are not taken come back: new partitions push the others on, and dropped ones let older ones move up.
    """
    skip, most = strategy.settings.skip_latest_partitions, strategy.settings.lookback_partitions
    newest_first = sorted(partitions, reverse=True)
    end = skip + most if most else len(newest_first)
    latest = leave_out_partitions(newest_first[:skip], reason=f"among the {skip} newest, which wait", comes_back=True)
    older = leave_out_partitions(newest_first[end:], reason=f"older than the {end} newest", comes_back=True)
    return PartitionChoice(tuple(newest_first[skip:end]), (*latest, *older))


def _selected_range(strategy: ClusteringStrategy, partitions: Sequence[str]) -> PartitionChoice:
    begin, end = strategy.settings.begin_partition, strategy.settings.end_partition
    chosen = tuple(each for each in partitions if (begin is None or each >= begin) and (end is None or each <= end))
    kept = set(chosen)
    reason = f"not from {begin or 'the first'} to {end or 'the last'}"
    others = [each for each in partitions if each not in kept]
    return PartitionChoice(chosen, leave_out_partitions(others, reason=reason, comes_back=False))


def _day_rolling(strategy: ClusteringStrategy, partitions: Sequence[str]) -> PartitionChoice:
    """Each hour another part of the partitions."""
    hour = strategy.now_ms // _MS_PER_HOUR % _HOURS
    ordered = sorted(partitions)
    chosen = tuple(each for number, each in enumerate(ordered) if number % _HOURS == hour)
    others = [each for number, each in enumerate(ordered) if number % _HOURS != hour]
    return PartitionChoice(chosen, leave_out_partitions(others, reason=f"not the turn in hour {hour}", comes_back=True))


_FILTERS: dict[PartitionFilter, Callable[[ClusteringStrategy, Sequence[str]], PartitionChoice]] = {
    PartitionFilter.NONE: _all,
    PartitionFilter.RECENT_DAYS: _recent_days,
    PartitionFilter.SELECTED_PARTITIONS: _selected_range,
    PartitionFilter.DAY_ROLLING: _day_rolling,
}


def _split_by_regex(partitions: Sequence[str], regex: str | None) -> tuple[list[str], tuple[LeftOut, ...]]:
    if not regex:
        return list(partitions), ()
    pattern = re.compile(regex)
    matching = [each for each in partitions if pattern.fullmatch(each)]
    kept = set(matching)
    others = [each for each in partitions if each not in kept]
    return matching, leave_out_partitions(others, reason=f"no match for {regex!r}", comes_back=False)
