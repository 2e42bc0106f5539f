"""The pending plans: their contents, who holds them, and how long they have been pending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tablekeeper.errors import NotFoundError
from tablekeeper.model import Instant, PlanFlags, RequestedTime, ServiceKind
from tablekeeper.model.results import Listing
from tablekeeper.timeline import parse_time
from tablekeeper.timeline.plans import load_plan
from tablekeeper.txn.cancel_requests import load_cancel_request
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.heartbeat import HeartbeatView, load_heartbeat_owner

__all__ = ["PendingPlanView", "PlanListing", "load_plan_listing"]


@dataclass(frozen=True, slots=True)
class PendingPlanView:
    """One plan. `owner` and `heartbeat_age_s` are of the last executor, None if there is none.

    `cancelled` is the reason for which somebody wants it gone, empty if nobody does.
    """

    instant: RequestedTime
    service: str
    state: str
    age_s: float
    file_groups: int
    bytes: int
    partitions: tuple[str, ...]
    flags: PlanFlags
    owner: str | None
    heartbeat_age_s: float | None
    is_held: bool
    cancelled: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "instant": self.instant.value,
            "service": self.service,
            "state": self.state,
            "age_s": round(self.age_s, 3),
            "file_groups": self.file_groups,
            "bytes": self.bytes,
            "partitions": list(self.partitions),
            "mutable": self.flags.mutable,
            "cancellable": self.flags.cancellable,
            "scheduled_by": self.flags.scheduled_by,
            "owner": self.owner,
            "heartbeat_age_s": None if self.heartbeat_age_s is None else round(self.heartbeat_age_s, 3),
            "held": self.is_held,
            "cancelled": self.cancelled,
        }

    def __repr__(self) -> str:
        kind = ", ".join(
            name for name, is_so in (("mutable", self.flags.mutable), ("cancellable", self.flags.cancellable)) if is_so
        )
        held = (
            f", held by {self.owner or 'somebody'}, last heartbeat {self.heartbeat_age_s:.0f} s ago"
            if self.is_held
            else ""
        )
        off = f", cancelled: {self.cancelled}" if self.cancelled else ""
        return (
            f"{self.instant}  {self.service} {self.state}{f' ({kind})' if kind else ''}, {self.age_s:.0f} s old, "
            f"{self.file_groups} file groups, {self.bytes:,} bytes{held}{off}"
        )


@dataclass(frozen=True, slots=True)
class PlanListing(Listing[PendingPlanView]):
    """All pending plans, the oldest first."""

    plans: tuple[PendingPlanView, ...]

    def __repr__(self) -> str:
        return "\n".join(map(str, self.plans)) or "no pending plans"


def load_plan_listing(environment: TableEnvironment) -> PlanListing:
    """The pending plans as they are now, without those that disappear in the meantime."""
    timeline = environment.load_timeline()
    heartbeats = environment.load_heartbeats()
    views = [_load_view(environment, instant, heartbeats) for instant in timeline.pending_plans]
    return PlanListing(tuple(view for view in views if view is not None))


def _load_view(environment: TableEnvironment, instant: Instant, heartbeats: HeartbeatView) -> PendingPlanView | None:
    requested_at = instant.requested_at
    try:
        plan = load_plan(environment.storage, environment.config, instant)
    except NotFoundError:
        return None
    request = load_cancel_request(environment.storage, requested_at)
    age_s = heartbeats.ages.get(requested_at)
    owner = None if age_s is None else load_heartbeat_owner(environment.storage, requested_at)
    scheduled_ms = parse_time(requested_at.value, zone=environment.config.time_zone)
    return PendingPlanView(
        instant=requested_at,
        service=ServiceKind.of(instant.action).value,
        state=instant.state.value,
        age_s=(environment.runtime.clock.now_ms() - scheduled_ms) / 1000,
        file_groups=len(plan.file_groups),
        bytes=plan.size,
        partitions=tuple(sorted({group.partition for group in plan.file_groups})),
        flags=plan.flags,
        owner=None if owner is None else owner.partition(" ")[0],
        heartbeat_age_s=age_s,
        is_held=heartbeats.is_active(requested_at),
        cancelled=request.reason if request is not None else "",
    )
