"""Plans of compaction, log compaction and clustering: which file slices are rewritten together, and how a plan may end.

A plan is a list of `Work`: compaction and log compaction have one slice each, clustering has many. It is the same value
no matter whether we or Java made it. `timeline/plans.py` loads plans and puts them into bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.model.files import FileGroupId, FileSlice

__all__ = ["Plan", "PlanFlags", "PlanOutline", "Strategy", "Work"]

_CANCELLABLE_KEY = "tablekeeper.cancellable"
_MUTABLE_KEY = "tablekeeper.mutable"
_CANCEL_AFTER_KEY = "tablekeeper.cancel.after.s"
_OWNER_KEY = "tablekeeper.scheduled.by"


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """How a plan may end, kept in its extra metadata, where Java ignores and keeps it.

    `mutable`: a failed attempt removes the plan. `cancellable`: the plan yields to ingestion, and may be cancelled.
    `cancel_after_s`: it is cancelled automatically once it is that old and not held.
    """

    mutable: bool = False
    cancellable: bool = False
    cancel_after_s: int | None = None
    scheduled_by: str = ""

    @property
    def can_be_removed(self) -> bool:
        """Whether the plan may leave the timeline without having been executed."""
        return self.mutable or self.cancellable

    def to_metadata(self) -> dict[str, str]:
        entries = {
            _CANCELLABLE_KEY: "true" if self.cancellable else "",
            _MUTABLE_KEY: "true" if self.mutable else "",
            _CANCEL_AFTER_KEY: "" if self.cancel_after_s is None else str(self.cancel_after_s),
            _OWNER_KEY: self.scheduled_by,
        }
        return {key: value for key, value in entries.items() if value}

    @classmethod
    def from_metadata(cls, extra: Mapping[str, str]) -> PlanFlags:
        after = extra.get(_CANCEL_AFTER_KEY, "")
        return cls(
            mutable=extra.get(_MUTABLE_KEY) == "true",
            cancellable=extra.get(_CANCELLABLE_KEY) == "true",
            cancel_after_s=int(after) if after.isascii() and after.isdigit() else None,
            scheduled_by=extra.get(_OWNER_KEY, ""),
        )


@dataclass(frozen=True, slots=True)
class Strategy:
    """A Java class name, its parameters, and the version of this record."""

    class_name: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    version: int | None = 1


@dataclass(frozen=True, slots=True)
class Work:
    """Slices rewritten together. `outputs` is how many new file groups a clustering makes of them."""

    slices: tuple[FileSlice, ...]
    outputs: int = 1

    @property
    def file_groups(self) -> frozenset[FileGroupId]:
        return frozenset(each.group for each in self.slices)

    @property
    def partition(self) -> str:
        return self.slices[0].group.partition

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(each.size for each in self.slices)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan on the timeline, ours or Java's."""

    work: tuple[Work, ...]
    flags: PlanFlags = PlanFlags()
    missing: tuple[str, ...] = ()
    strategy: Strategy | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    preserves_metadata: bool = True

    @property
    def file_groups(self) -> frozenset[FileGroupId]:
        return frozenset(group for each in self.work for group in each.file_groups)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.work)


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """A plan without its slices. `missing` partitions were left out; None if its maker did not record them.

    `file_groups` are known only where they were asked for: a plan may have tens of thousands.
    """

    missing: tuple[str, ...] | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    file_groups: frozenset[FileGroupId] = frozenset()

    @property
    def flags(self) -> PlanFlags:
        """How the plan may end."""
        return PlanFlags.from_metadata(self.extra)
