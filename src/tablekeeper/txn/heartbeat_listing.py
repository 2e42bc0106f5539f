"""Who is writing to a table: the heartbeats of its writes, as values that print well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tablekeeper.model import RequestedTime
from tablekeeper.model.results import Listing
from tablekeeper.txn.environment import TableEnvironment

__all__ = ["HeartbeatListing", "WriterHeartbeat", "load_heartbeat_listing"]


@dataclass(frozen=True, slots=True)
class WriterHeartbeat:
    """The heartbeat of one write. `age_s` is negative for one from the future, `state` None if there is no instant."""

    instant: RequestedTime
    age_s: float
    is_active: bool
    state: str | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "instant": self.instant.value,
            "age_s": round(self.age_s, 3),
            "active": self.is_active,
            "state": self.state,
        }

    def __str__(self) -> str:
        life = "active" if self.is_active else "expired"
        return f"{self.instant}  {life}, last beat {self.age_s:.0f} s ago, {self.state or 'not on the timeline'}"


@dataclass(frozen=True, slots=True)
class HeartbeatListing(Listing[WriterHeartbeat]):
    """All heartbeats of a table by instant."""

    heartbeats: tuple[WriterHeartbeat, ...]

    def __repr__(self) -> str:
        return "\n".join(map(str, self.heartbeats)) or "no heartbeats"


def load_heartbeat_listing(environment: TableEnvironment) -> HeartbeatListing:
    """The heartbeats as they are now."""
    view = environment.load_heartbeats()
    timeline = environment.load_timeline()
    entries = []
    for instant, age_s in sorted(view.ages.items(), key=lambda item: item[0].value):
        found = timeline.find(instant)
        state = None if found is None else f"{found.action.value} {found.state.value}"
        entries.append(WriterHeartbeat(instant, age_s, view.is_active(instant), state))
    return HeartbeatListing(tuple(entries))
