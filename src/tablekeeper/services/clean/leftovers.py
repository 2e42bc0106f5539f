"""What a clean does before it plans: it rolls back failed writes of other processes, as the heartbeat guard requires.

These are the pending writes whose heartbeat has expired. Otherwise a dead write would hold back the retained window
forever, and its files would stay.
"""

from __future__ import annotations

from tablekeeper.config.concurrency_settings import FailedWrites
from tablekeeper.model import RequestedTime
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.rollback import failed_writes, rollback_instant, withdraw_idle_rollbacks

__all__ = ["roll_back_leftovers"]


def roll_back_leftovers(environment: TableEnvironment) -> tuple[RequestedTime, ...]:
    """Roll back dead writes; returns them. Under the EAGER policy the next writer does that."""
    if environment.concurrency.failed_writes is FailedWrites.EAGER:
        return ()
    timeline = environment.load_timeline()
    withdraw_idle_rollbacks(environment, timeline)
    gone = []
    for dead in failed_writes(environment, timeline):
        if rollback_instant(environment, dead) is not None:
            gone.append(dead.requested_at)
    return tuple(gone)
