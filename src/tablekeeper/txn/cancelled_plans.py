"""Cancelled plans that nobody holds leave the timeline with the next writer, too.

A cancel waits only so long for a running executor, which may die before it sees the request. A clean and the
service loop remove what is left. A writer does so where plans wait: one listing tells it whether there is a request at
all, and where no plan waits it asks nothing.
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
    """Remove the plans of `timeline` that are to be cancelled and that no executor holds; which they were.

    What fails is logged and left to the next one: the caller has other work to do.
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
