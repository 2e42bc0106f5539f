"""What a service would do if it were scheduled now, and why: a readable draft. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tablekeeper.model import PlanFlags, RequestedTime, Work
from tablekeeper.services.plans.schedule import load_draft
from tablekeeper.services.plans.service import LeftOut, Service
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["Explanation", "explain_plan"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Explanation:
    """A dry run: `work` would be done; `left_out` would not, each with a reason.

    The window is that of incremental planning: it covers instants that completed from `since` on, and `partitions` says
    why each partition is in it. With `is_full` all partitions were examined, because of `why_full`.
    """

    service: str
    since: RequestedTime | None
    until: RequestedTime
    is_full: bool
    why_full: str
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    work: tuple[Work, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    missing_partitions: tuple[str, ...] = ()

    @property
    def file_groups(self) -> int:
        return sum(len(work.slices) for work in self.work)

    @property
    def bytes_in(self) -> int:
        """Bytes that would be read."""
        return sum(work.size for work in self.work)

    @property
    def bytes_out(self) -> int:
        """An estimate of the bytes written: the base files, and half of the logs."""
        slices = [file_slice for work in self.work for file_slice in work.slices]
        bases = sum(each.base.size for each in slices if each.base is not None)
        return bases + (self.bytes_in - bases) // 2

    def to_dict(self) -> dict[str, Any]:
        return {
            "service": self.service,
            "since": self.since.value if self.since is not None else None,
            "until": self.until.value,
            "full_listing": self.is_full,
            "why_full": self.why_full,
            "partitions": {partition: list(reasons) for partition, reasons in self.partitions.items()},
            "file_groups": self.file_groups,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "work": [
                {"file_groups": sorted(str(group) for group in work.file_groups), "bytes": work.size}
                for work in self.work
            ],
            "left_out": [
                {
                    "partition": each.partition,
                    "reason": each.reason,
                    "file_groups": each.file_groups,
                    "bytes": each.bytes,
                    "comes_back": each.comes_back,
                }
                for each in self.left_out
            ],
            "missing_partitions": list(self.missing_partitions),
        }

    def __repr__(self) -> str:
        lines = [
            f"{self.service}: {self.file_groups} file groups, {self.bytes_in:,} bytes in, about {self.bytes_out:,} out",
            f"  looked at all partitions: {self.why_full}"
            if self.is_full
            else f"  looked at {len(self.partitions)} partitions touched or missing since {self.since}",
        ]
        lines += _shown([f"  {p or '(table)'}: {', '.join(why)}" for p, why in self.partitions.items()])
        by_partition: dict[str, list[Work]] = defaultdict(list)
        for work in self.work:
            by_partition[work.partition].append(work)
        lines += _shown(
            [
                f"  do {p or '(table)'}: {sum(len(w.slices) for w in works)} file groups, "
                f"{sum(w.size for w in works):,} bytes"
                for p, works in sorted(by_partition.items())
            ]
        )
        lines += _shown(
            [
                f"  leave {each.partition or '(table)'}: {each.reason}{' (comes back)' if each.comes_back else ''}"
                for each in self.left_out
            ]
        )
        return "\n".join(lines)


def explain_plan(
    environment: TableEnvironment, service: Service, *, flags: PlanFlags, incremental: bool
) -> Explanation:
    """What scheduling with these arguments would put on the timeline."""
    drafted = load_draft(environment, service, flags=flags, incremental=incremental)
    window = drafted.window
    return Explanation(
        service=service.kind.value,
        since=window.since,
        until=window.until,
        is_full=window.is_full,
        why_full=window.why_full,
        partitions=window.reasons,
        work=drafted.draft.work,
        left_out=drafted.draft.left_out,
        missing_partitions=drafted.draft.missing,
    )


def _shown(lines: list[str]) -> list[str]:
    if len(lines) <= _SHOWN:
        return lines
    return [*lines[:_SHOWN], f"  … and {len(lines) - _SHOWN} more"]
