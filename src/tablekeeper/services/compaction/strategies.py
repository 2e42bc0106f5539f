"""Which file slices a compaction rewrites: Hudi's strategies under their names, and users' own.

A class of a user's own derives from `CompactionStrategy`, overrides `choose_partitions` or `choose_slices`, and is
named by its Python path in the options, or registered.

Where Java forgets partitions that its own next plan would take, they come back here: partitions that are too young for
`UnBoundedPartitionAwareCompactionStrategy`, and those with file groups in another plan.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tablekeeper.config.service_settings import CompactionSettings
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import FileGroupId, FileSlice, Work
from tablekeeper.services.plans.service import Draft, LeftOut, PartitionChoice
from tablekeeper.services.plans.strategies import (
    SettingsStrategy,
    StrategyRegistry,
    day_of_partition,
    leave_out_partitions,
    leave_out_slices,
    split_planned,
)
from tablekeeper.timeline.plans import slice_metrics

__all__ = [
    "COMPACTION_STRATEGIES",
    "BoundedIOCompactionStrategy",
    "BoundedPartitionAwareCompactionStrategy",
    "CompactionStrategy",
    "CompositeCompactionStrategy",
    "DayBasedCompactionStrategy",
    "LogFileNumBasedCompactionStrategy",
    "LogFileSizeBasedCompactionStrategy",
    "PartitionRegexBasedCompactionStrategy",
    "SliceChoice",
    "UnBoundedCompactionStrategy",
    "UnBoundedPartitionAwareCompactionStrategy",
    "compaction_strategy",
]

_PACKAGE = "org.apache.hudi.table.action.compact."
# What Java's plans name is who executes them. Releases before 1.2 load this class, so that it must not be the strategy.
_EXECUTOR = _PACKAGE + "CompactionExecutionHelper"
_MS_PER_DAY = 86_400_000
_EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class SliceChoice:
    """Slices to compact, the most urgent first, and an account of the others."""

    chosen: tuple[FileSlice, ...]
    left_out: tuple[LeftOut, ...] = ()


class CompactionStrategy(SettingsStrategy[CompactionSettings]):
    """Base of all strategies of compaction. As it stands it compacts every slice that has logs.

    `now_ms` is the moment of planning, in milliseconds since the epoch, for strategies that look at the day (in UTC).
    """

    is_incremental = True
    ranks_partitions = False
    """Set it where `choose_partitions` compares partitions with each other: it is given all of the table then."""

    def __init__(self, settings: CompactionSettings, *, now_ms: int) -> None:
        super().__init__(settings)
        self.now_ms = now_ms

    @property
    def name(self) -> str:
        cls = type(self)
        shipped = cls.__module__ == __name__
        return f"{_PACKAGE}strategy.{cls.__name__}" if shipped else f"{cls.__module__}.{cls.__qualname__}"

    @property
    def class_name(self) -> str:
        return _EXECUTOR

    def choose_slices(self, slices: Sequence[FileSlice]) -> SliceChoice:
        """Which of these slices, which all have logs and are free, to compact; all of them here."""
        return SliceChoice(tuple(slices))

    def plan(self, slices: Sequence[FileSlice], *, planned: frozenset[FileGroupId]) -> Draft:
        """One piece of work a slice, the most urgent first."""
        free, taken = split_planned([each for each in slices if each.logs], planned)
        bare = leave_out_slices((each for each in slices if not each.logs), reason="no log files", comes_back=False)
        choice = self.choose_slices(free)
        work = tuple(Work((each,)) for each in choice.chosen)
        return Draft(work, (*bare, *taken, *choice.left_out))

    @property
    def today(self) -> dt.date:
        """The day of planning."""
        return _EPOCH + dt.timedelta(days=self.now_ms // _MS_PER_DAY)

    def io_mb(self, file_slice: FileSlice) -> int:
        """Megabytes that compacting the slice reads and writes, as Java counts them."""
        return int(
            slice_metrics([file_slice], new_file_bytes=self.settings.new_file_bytes, in_whole_mb=True)["TOTAL_IO_MB"]
        )


COMPACTION_STRATEGIES: StrategyRegistry[CompactionStrategy] = StrategyRegistry(
    CompactionStrategy, option=CompactionSettings.key("strategy")
)
"""The strategies that are found by name."""


@COMPACTION_STRATEGIES.register()
class UnBoundedCompactionStrategy(CompactionStrategy):
    """Everything that has logs, at once."""


@COMPACTION_STRATEGIES.register()
class BoundedIOCompactionStrategy(CompactionStrategy):
    """Slices in their order until the target IO is spent; the one that crosses the line is still taken."""

    def choose_slices(self, slices: Sequence[FileSlice]) -> SliceChoice:
        return self.within_target(self.ordered(slices))

    def ordered(self, slices: Sequence[FileSlice]) -> Sequence[FileSlice]:
        """The slices, the most urgent first."""
        return slices

    def within_target(self, slices: Iterable[FileSlice]) -> SliceChoice:
        """The first slices that the target IO allows for; the others come back."""
        remaining_mb = self.settings.target_io_mb
        chosen: list[FileSlice] = []
        cut: list[FileSlice] = []
        for each in slices:
            if remaining_mb > 0:
                remaining_mb -= self.io_mb(each)
                chosen.append(each)
            else:
                cut.append(each)
        reason = f"target IO of {self.settings.target_io_mb} MB reached"
        return SliceChoice(tuple(chosen), leave_out_slices(cut, reason=reason, comes_back=True))


@COMPACTION_STRATEGIES.register()
class LogFileSizeBasedCompactionStrategy(BoundedIOCompactionStrategy):
    """Slices with the most bytes of logs first, from a threshold on, within the target IO. The default."""

    def choose_slices(self, slices: Sequence[FileSlice]) -> SliceChoice:
        least = self.settings.log_size_threshold
        enough = sorted((each for each in slices if _log_bytes(each) >= least), key=_log_bytes, reverse=True)
        below = [each for each in slices if _log_bytes(each) < least]
        choice = self.within_target(enough)
        small = leave_out_slices(below, reason=f"less than {least} bytes of logs", comes_back=True)
        return SliceChoice(choice.chosen, (*small, *choice.left_out))


@COMPACTION_STRATEGIES.register()
class LogFileNumBasedCompactionStrategy(BoundedIOCompactionStrategy):
    """Slices with the most log files first, from a threshold on, within the target IO."""

    def choose_slices(self, slices: Sequence[FileSlice]) -> SliceChoice:
        least = self.settings.log_count_threshold
        enough = sorted((each for each in slices if len(each.logs) >= least), key=lambda s: len(s.logs), reverse=True)
        below = [each for each in slices if len(each.logs) < least]
        choice = self.within_target(enough)
        few = leave_out_slices(below, reason=f"less than {least} log files", comes_back=True)
        return SliceChoice(choice.chosen, (*few, *choice.left_out))


@COMPACTION_STRATEGIES.register()
class DayBasedCompactionStrategy(BoundedIOCompactionStrategy):
    """The newest partitions, which are named after days, the newest first, within the target IO.

    Older partitions come back: they are among the newest again once newer ones have been dropped.
    """

    ranks_partitions = True

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        newest_first = sorted(partitions, key=day_of_partition, reverse=True)
        most = self.settings.day_partitions
        older = leave_out_partitions(
            newest_first[most:], reason=f"not among the {most} newest partitions", comes_back=True
        )
        return PartitionChoice(tuple(newest_first[:most]), older)

    def ordered(self, slices: Sequence[FileSlice]) -> Sequence[FileSlice]:
        return sorted(slices, key=lambda each: day_of_partition(each.group.partition), reverse=True)


@COMPACTION_STRATEGIES.register()
class BoundedPartitionAwareCompactionStrategy(CompactionStrategy):
    """Partitions of the last days, the newest first, without a bound on the IO."""

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        recent, older = _split_by_day(partitions, self._first_day)
        reason = f"older than {self._first_day}"
        return PartitionChoice(recent, leave_out_partitions(older, reason=reason, comes_back=False))

    def choose_slices(self, slices: Sequence[FileSlice]) -> SliceChoice:
        return SliceChoice(tuple(sorted(slices, key=lambda each: day_of_partition(each.group.partition), reverse=True)))

    @property
    def _first_day(self) -> dt.date:
        return self.today - dt.timedelta(days=self.settings.day_partitions)


@COMPACTION_STRATEGIES.register()
class UnBoundedPartitionAwareCompactionStrategy(CompactionStrategy):
    """Partitions older than the last days, which `BoundedPartitionAwareCompactionStrategy` leaves to it.

    Partitions that are too young come back: they grow old without being touched again.
    """

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        first_day = self.today - dt.timedelta(days=self.settings.day_partitions)
        recent, older = _split_by_day(partitions, first_day)
        return PartitionChoice(older, leave_out_partitions(recent, reason=f"from {first_day} on", comes_back=True))


@COMPACTION_STRATEGIES.register()
class PartitionRegexBasedCompactionStrategy(CompactionStrategy):
    """Partitions in whose path a regular expression is found."""

    def __init__(self, settings: CompactionSettings, *, now_ms: int) -> None:
        super().__init__(settings, now_ms=now_ms)
        if not settings.partition_regex:
            raise InvalidRequestError(f"{type(self).__name__} needs {settings.key('partition_regex')}: give one.")
        self._pattern = re.compile(settings.partition_regex)

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        chosen = tuple(each for each in partitions if self._pattern.search(each))
        others = [each for each in partitions if not self._pattern.search(each)]
        reason = f"no match for {self._pattern.pattern!r}"
        return PartitionChoice(chosen, leave_out_partitions(others, reason=reason, comes_back=False))


class CompositeCompactionStrategy(CompactionStrategy):
    """Several strategies, each of which narrows what the one before it chose."""

    def __init__(self, settings: CompactionSettings, *, now_ms: int, strategies: Sequence[CompactionStrategy]) -> None:
        super().__init__(settings, now_ms=now_ms)
        self._strategies = tuple(strategies)
        self.is_incremental = all(each.is_incremental for each in strategies)
        self.ranks_partitions = any(each.ranks_partitions for each in strategies)

    @property
    def name(self) -> str:
        return ",".join(each.name for each in self._strategies)

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        chosen, left_out = tuple(partitions), list[LeftOut]()
        for strategy in self._strategies:
            choice = strategy.choose_partitions(chosen)
            chosen = choice.chosen
            left_out += choice.left_out
        return PartitionChoice(chosen, tuple(left_out))

    def choose_slices(self, slices: Sequence[FileSlice]) -> SliceChoice:
        chosen, left_out = tuple(slices), list[LeftOut]()
        for strategy in self._strategies:
            choice = strategy.choose_slices(chosen)
            chosen = choice.chosen
            left_out += choice.left_out
        return SliceChoice(chosen, tuple(left_out))


def compaction_strategy(settings: CompactionSettings, *, now_ms: int) -> CompactionStrategy:
    """The strategy that the settings name, planning at this moment."""
    names = [name for name in settings.strategy.split(",") if name.strip()]
    if not names:
        raise InvalidRequestError(f"{settings.key('strategy')}: {settings.strategy!r} names no strategy.")
    strategies = [COMPACTION_STRATEGIES.find(name)(settings, now_ms=now_ms) for name in names]
    if len(strategies) == 1:
        return strategies[0]
    return CompositeCompactionStrategy(settings, now_ms=now_ms, strategies=strategies)


def _log_bytes(file_slice: FileSlice) -> int:
    return sum(log.size for log in file_slice.logs)


def _split_by_day(partitions: Sequence[str], first_day: dt.date) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Partitions from `first_day` on, and older ones; both with the newest first."""
    newest_first = sorted(partitions, key=day_of_partition, reverse=True)
    recent = tuple(each for each in newest_first if day_of_partition(each) >= first_day)
    return recent, tuple(newest_first[len(recent) :])
