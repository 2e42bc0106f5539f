"""The protocol of a table service, and the values that all share: drafts, what they left out and why, and results.

A strategy decides which slices are rewritten, and the service how. Everything else about a plan (publishing it,
guarding it, retrying or giving it up) is the same for all services, and in the other modules of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tablekeeper.config.table_config import TableConfig
from tablekeeper.engine.protocol import Engine
from tablekeeper.model import CompletionTime, FileGroupId, FileSlice, Plan, RequestedTime, ServiceKind, Strategy, Work
from tablekeeper.model.results import Result
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.write.context import WriteContext
from tablekeeper.write.results import WrittenFile

__all__ = [
    "Attempt",
    "Draft",
    "LeftOut",
    "PartitionChoice",
    "PlanningStrategy",
    "Rewritten",
    "Service",
    "ServiceResult",
]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Work that is not in a plan, and why. `comes_back`: the partition is recorded as missing for the next plan."""

    partition: str
    reason: str
    file_groups: int = 0
    bytes: int = 0
    comes_back: bool = False


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """A strategy's choice among the partitions that may need work."""

    chosen: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan before it is published: what would be done, and what would be left out and why."""

    work: tuple[Work, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Partitions to look at again next time, sorted."""
        return tuple(sorted({each.partition for each in self.left_out if each.comes_back}))


@dataclass(frozen=True)
class Attempt:
    """One execution of a plan: what the data work needs. `context.instant` is the plan's requested time.

    Kernels call `context.check()` before each row group or so.
    """

    engine: Engine
    context: WriteContext
    config: TableConfig


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of the data work. The commit hides the `replaced` file groups; None if there are none."""

    files: tuple[WrittenFile, ...]
    replaced: Mapping[str, tuple[str, ...]] | None = None


class PlanningStrategy(Protocol):
    """What the services need from a strategy."""

    @property
    def name(self) -> str:
        """The name of the strategy: Java's class name, or the Python path of the user's own class."""
        ...

    @property
    def class_name(self) -> str:
        """The class that plans name for their execution."""
        ...

    @property
    def params(self) -> Mapping[str, str]:
        """What plans record of the strategy's settings."""
        ...

    @property
    def scope(self) -> str:
        """The settings that decide what is never taken; plans of equal scope can be incremental."""
        ...

    @property
    def is_incremental(self) -> bool:
        """Whether the strategy only needs the partitions that were touched; otherwise it gets all of them."""
        ...

    @property
    def ranks_partitions(self) -> bool:
        """Whether the choice of a partition depends on the others, so that it needs the names of all."""
        ...

    def choose_partitions(self, partitions: Sequence[str]) -> PartitionChoice:
        """Which of these partitions to look into."""
        ...

    def plan(self, slices: Sequence[FileSlice], *, planned: frozenset[FileGroupId]) -> Draft:
        """What to rewrite of these slices. `planned` file groups belong to other plans."""
        ...


class Service(Protocol):
    """What differs between the kinds of plans. It contains strategy and settings, and does not touch the timeline."""

    @property
    def kind(self) -> ServiceKind: ...

    @property
    def strategy(self) -> PlanningStrategy:
        """Which slices are rewritten."""
        ...

    def plan(self, snapshot: Snapshot, *, planned: frozenset[FileGroupId]) -> Draft:
        """The work in the partitions of `snapshot`, without the groups in other plans. Pure."""
        ...

    @property
    def plan_strategy(self) -> Strategy:
        """The strategy that the plans name, so that every executor does the same."""
        ...

    def rewrite(self, attempt: Attempt, plan: Plan) -> Rewritten:
        """Do the data work through the engine. Can be repeated after a failure; each attempt has its own file names."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceResult(Result):
    """The result of an execution. `outcome` is "completed", or "already completed" if another process was faster."""

    instant: RequestedTime
    service: str
    outcome: str
    completed_at: CompletionTime | None = None
    file_groups: int = 0
    files: tuple[str, ...] = ()
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    lock_held_s: float = 0.0
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"{self.service} {self.instant} {self.outcome}: {self.file_groups} file groups, {self.rows:,} rows, "
            f"{self.bytes_read:,} bytes read, {self.bytes_written:,} written, {self.seconds:.2f} s"
        )
