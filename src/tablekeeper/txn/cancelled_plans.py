"""Writers, too, remove cancelled plans that nobody holds.

A cancel waits only a limited time for a running executor, which may die before it sees the request. A clean and the
service loop remove such plans. So does a writer, if plans are pending: one listing shows whether there are requests.
"""

from __future__ import annotations

import logging

from tablekeeper.errors import TablekeeperError
from tablekeeper.model import Instant, RequestedTime
from tablekeeper.timeline import Timeline
from tablekeeper.txn.cancel_requests import load_cancel_request, load_cancelled_instants
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.rollback import rollback_approved

__all__ = ["remove_cancelled_plans"]

_LOG = logging.getLogger(__name__)


def remove_cancelled_plans(environment: TableEnvironment, timeline: Timeline) -> tuple[RequestedTime, ...]:
    """Remove the cancelled plans of `timeline` that no executor holds; returns which they were.

    Failures are logged and left to the next process: the caller has other work to do.
    """
    pending = [i.requested_at for i in timeline.pending_plans]
    if not pending:
        return ()
    wanted = load_cancelled_instants(environment.storage).intersection(pending)
    return tuple(plan for plan in sorted(wanted) if _remove(environment, plan))


def _remove(environment: TableEnvironment, plan: RequestedTime) -> bool:
    def may_go(_: LockedEnvironment, __: Timeline, current: Instant) -> bool:
        if current.is_completed or load_cancel_request(environment.storage, plan) is None:
            return False
        heartbeats = environment.load_heartbeats()
        return not heartbeats.is_active(plan)

    try:
        removed = rollback_approved(environment, plan, approve=may_go, removes_plan=True)
    except TablekeeperError as error:
        _LOG.warning("cancelled plan %s could not be removed and is left to the next clean: %s", plan, error)
        return False
    return removed is not None
