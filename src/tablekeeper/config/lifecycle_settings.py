"""Settings of the life cycle that all plans of table services share."""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.config.registry import Settings, setting

__all__ = ["LifecycleSettings"]


@dataclass(frozen=True, slots=True)
class LifecycleSettings(Settings):
    """`guard`: one executor a plan, by heartbeat. `rollback_delay_minutes`: how long a mutable plan may stay requested.

    The delay is the `table_service_rollback_delay` of the heartbeat guard.
    """

    guard: bool = setting(
        "hoodie.table.service.execution.guard.enable",
        True,
        "Refuse to execute a plan of a table service that another process is executing, by its heartbeat.",
    )
    rollback_delay_minutes: int = setting(
        "hoodie.table.service.rollback.delay.minutes",
        60,
        "Minutes that a mutable plan may wait to be executed before a clean removes it; 0 removes it at once.",
        least=0,
    )
