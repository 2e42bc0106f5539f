"""Settings of the life cycle that all plans of table services share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tablekeeper.errors import InvalidRequestError

__all__ = ["LIFECYCLE_OPTIONS", "LifecycleSettings"]

_GUARD = "hoodie.table.service.execution.guard.enable"
_DELAY = "hoodie.table.service.rollback.delay.minutes"

LIFECYCLE_OPTIONS: tuple[tuple[str, str | None, type, str], ...] = (
    (
        _GUARD,
        "true",
        bool,
        "Refuse to execute a plan of a table service that another process is at work on, by its heartbeat.",
    ),
    (
        _DELAY,
        "60",
        int,
        "Minutes that a mutable plan may wait to be executed before a clean removes it; 0 removes it at once.",
    ),
)
"""Known options as (name, default, type, meaning)."""


@dataclass(frozen=True, slots=True)
class LifecycleSettings:
    """`guard`: one executor a plan, by heartbeat. `rollback_delay_minutes`: how long a mutable plan may stay requested.

    The delay is the `table_service_rollback_delay` of seed 000.
    """

    guard: bool = True
    rollback_delay_minutes: int = 60

    def __post_init__(self) -> None:
        if self.rollback_delay_minutes < 0:
            raise InvalidRequestError(f"{_DELAY}: {self.rollback_delay_minutes} is negative. Give 0 or more minutes.")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> LifecycleSettings:
        """From options by name, already checked; the defaults where they say nothing."""
        return cls(
            guard=options.get(_GUARD, "true").lower() == "true",
            rollback_delay_minutes=int(options.get(_DELAY, "60")),
        )
