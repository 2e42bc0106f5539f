"""What planning strategies of all services share: finding them by name, measuring slices, saying what was left out.

A strategy is pure. It makes two choices: which partitions to look into, and which of their slices to rewrite. For
everything that it leaves out it gives a reason, and says whether the next plan has to look at the partition again
(`comes_back`): yes if work was left undone, no if the next plan would leave it out as well.
"""

from __future__ import annotations

import datetime as dt
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tablekeeper.config.service_settings import (
    SCOPE_PARAM,
    ClusteringSettings,
    CompactionSettings,
    LogCompactionSettings,
)
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import FileGroupId, FileSlice, Strategy
from tablekeeper.services.plans.service import Draft, LeftOut, PartitionChoice, PlanningStrategy

__all__ = [
    "OnlyPartitions",
    "SettingsStrategy",
    "StrategyRegistry",
    "StrategyService",
    "day_of_partition",
    "leave_out_partitions",
    "leave_out_slices",
    "split_planned",
]

_DAY = re.compile(r"(\d{4})[/-]?(\d{1,2})[/-]?(\d{1,2})(?!\d)")
_HIVE_NAME = re.compile(r"[^/=]+=")
_JAVA = "org.apache.hudi."

S = TypeVar("S")
T = TypeVar("T", bound=CompactionSettings | LogCompactionSettings | ClusteringSettings)


class StrategyService:
    """The base of services that leave the choice to a strategy, which their plans name."""

    def __init__(self, strategy: PlanningStrategy) -> None:
        self.strategy = strategy

    @property
    def plan_strategy(self) -> Strategy:
        return Strategy(self.strategy.class_name, dict(self.strategy.params))


class SettingsStrategy(Generic[T]):
    """The base of strategies made of settings: plans record the settings, which also define the scope."""

    def __init__(self, settings: T) -> None:
        self.settings = settings

    @property
    def params(self) -> Mapping[str, str]:
        return {**self.settings.params, SCOPE_PARAM: self.scope}

    @property
    def scope(self) -> str:
        return self.settings.scope

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        """Which of these partitions to look into; all of them here."""
        return PartitionChoice(tuple(partitions))


class StrategyRegistry(Generic[S]):
    """Strategies by class name: Java's, with or without its package, or the Python path of a class."""

    def __init__(self, base: type[S], *, option: str) -> None:
        self._base = base
        self._option = option
        self._classes: dict[str, type[S]] = {}

    def register(self, *names: str) -> Callable[[type[S]], type[S]]:
        """A class decorator: the class is found under these names, or under its own if there are none."""

        def add(cls: type[S]) -> type[S]:
            for name in names or (cls.__name__,):
                self._classes[name] = cls
            return cls

        return add

    def find(self, name: str) -> type[S]:
        """The class of this name. An unregistered one is imported, so the name must come from the caller."""
        known = self._registered(name.strip())
        return known if known is not None else self._load(name.strip())

    def knows(self, name: str) -> bool:
        """Whether the class of this name is registered, so that finding it imports nothing."""
        return self._registered(name.strip()) is not None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._classes))

    def _registered(self, name: str) -> type[S] | None:
        package, _, short = name.rpartition(".")
        return self._classes.get(short if not package or name.startswith(_JAVA) else name)

    def _load(self, path: str) -> type[S]:
        module_name, _, class_name = path.rpartition(".")
        hint = f"Use one of {', '.join(self.names)}, or the Python path of a class of your own"
        if not module_name:
            raise InvalidRequestError(f"{self._option}: {path!r} is not known. {hint}.")
        try:
            found = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise InvalidRequestError(f"{self._option}: {path!r} cannot be loaded ({error}). {hint}.") from error
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise InvalidRequestError(f"{self._option}: {path!r} is no subclass of {self._base.__qualname__}. {hint}.")
        return found


@dataclass(frozen=True)
class OnlyPartitions:
    """A strategy restricted to some partitions, once: the others are left to the next plan.

    This does not add partitions that do not exist or were not touched since the last plan.
    """

    strategy: PlanningStrategy
    may_match: Callable[[str], bool]

    @property
    def name(self) -> str:
        return self.strategy.name

    @property
    def class_name(self) -> str:
        return self.strategy.class_name

    @property
    def params(self) -> Mapping[str, str]:
        return self.strategy.params

    @property
    def scope(self) -> str:
        return self.strategy.scope

    @property
    def is_incremental(self) -> bool:
        return self.strategy.is_incremental

    @property
    def ranks_partitions(self) -> bool:
        return self.strategy.ranks_partitions

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        wanted = [partition for partition in partitions if self.may_match(partition)]
        kept = set(wanted)
        others = [partition for partition in partitions if partition not in kept]
        choice = self.strategy.choose_partitions(wanted)
        unasked = leave_out_partitions(others, reason="not asked for", comes_back=True)
        return PartitionChoice(choice.chosen, (*unasked, *choice.left_out))

    def plan(self, slices: Sequence[FileSlice], *, planned: frozenset[FileGroupId]) -> Draft:
        return self.strategy.plan(slices, planned=planned)


def leave_out_slices(slices: Iterable[FileSlice], *, reason: str, comes_back: bool) -> tuple[LeftOut, ...]:
    """One entry for each partition of the slices."""
    counts: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for each in slices:
        counts[each.group.partition] += 1
        sizes[each.group.partition] += each.size
    return tuple(LeftOut(p, reason, counts[p], sizes[p], comes_back) for p in sorted(counts))


def leave_out_partitions(partitions: Iterable[str], *, reason: str, comes_back: bool) -> tuple[LeftOut, ...]:
    """One entry for each partition."""
    return tuple(LeftOut(partition, reason, comes_back=comes_back) for partition in partitions)


def split_planned(
    slices: Iterable[FileSlice], planned: frozenset[FileGroupId]
) -> tuple[list[FileSlice], tuple[LeftOut, ...]]:
    """Slices that are free, and an account of the others.

    The partitions of the others are left to the next plan: another plan may be cancelled after this one completed, and
    nothing else would show that its slices still have to be rewritten.
    """
    free: list[FileSlice] = []
    taken: list[FileSlice] = []
    for each in slices:
        (taken if each.group in planned else free).append(each)
    return free, leave_out_slices(taken, reason="in another plan", comes_back=True)


def day_of_partition(partition: str) -> dt.date:
    """The day that a partition path begins with: 2026/01/31, 2026-01-31 or 20260131, with or without `name=`."""
    text = _HIVE_NAME.sub("", partition)
    found = _DAY.match(text)
    try:
        if found is None:
            raise ValueError("no day")
        return dt.date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        raise InvalidRequestError(
            f"partition {partition!r} does not begin with a day (2026/01/31, 2026-01-31 or 20260131), which strategies "
            "by day need. Choose another strategy."
        ) from None
