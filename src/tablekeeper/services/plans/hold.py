"""Held plans: a plan is held while its executor has an active heartbeat, and nobody else may execute it.

Java Hudi has a guard for compactions, and executes clusterings and log compactions without one. It also knows nothing
of our flags and cancel requests. Before Java executes a plan for us, the caller checks these here, and holds the plan
with a heartbeat while Java executes it, so that nobody else executes it or rolls it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tablekeeper.errors import PlanCancelledError, PlanHeldError, UnsupportedFeatureError
from tablekeeper.model import Instant
from tablekeeper.timeline.plans import load_plan_outline
from tablekeeper.txn.cancel_requests import CancelRequest, load_cancel_request
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.heartbeat import Heartbeat, HeartbeatView, load_heartbeat_owner, start_heartbeat

__all__ = ["hold_plan", "refuse_cancelled", "refuse_for_others", "refuse_held"]

_OWNER = "another-program"


def refuse_held(environment: TableEnvironment, plan: Instant, heartbeats: HeartbeatView) -> None:
    """Raise `PlanHeldError` if another process is executing this plan or clean."""
    requested_at = plan.requested_at
    if not heartbeats.is_active(requested_at):
        return
    age_s = heartbeats.ages[requested_at]
    owner = (load_heartbeat_owner(environment.storage, requested_at) or "").partition(" ")[0]
    raise PlanHeldError(
        f"{plan}: {owner or 'another process'} is executing it, its heartbeat is {age_s:.0f} s old. Leave it to that "
        f"process; if it died, the plan is free {heartbeats.lapses_after_s:.0f} s after the last beat.",
        instant=requested_at.value,
        heartbeat_age_s=age_s,
    )


def refuse_cancelled(plan: Instant, request: CancelRequest | None) -> None:
    """Raise `PlanCancelledError` if there is a request to cancel this plan."""
    if request is not None:
        raise PlanCancelledError(
            f"{plan} was cancelled ({request.reason}) and is not executed. The next clean removes what is left.",
            instant=plan.requested_at.value,
            reason=request.reason,
        )


def refuse_for_others(environment: TableEnvironment, plan: Instant) -> None:
    """Raise if another program must not execute this plan now.

    `PlanHeldError` if another process executes it, `PlanCancelledError` if it was cancelled, `UnsupportedFeatureError`
    if it may have to yield: only our own executor looks for that before it commits.
    """
    flags = load_plan_outline(environment.storage, environment.config, plan).flags
    if flags.can_be_removed:
        raise UnsupportedFeatureError(
            f"{plan} is a plan that can be cancelled, and only tablekeeper yields then. Execute it with an engine of "
            "tablekeeper, or schedule a plan that is neither cancellable nor mutable."
        )
    refuse_cancelled(plan, load_cancel_request(environment.storage, plan.requested_at))
    refuse_held(environment, plan, environment.load_heartbeats())


@contextmanager
def hold_plan(environment: TableEnvironment, plan: Instant) -> Iterator[Heartbeat]:
    """Pass the guard in one transaction, and keep a heartbeat for the plan until the block ends.

    The heartbeat ends by itself if it cannot be renewed in time: the holder asks its `check`.
    """
    with environment.locked() as held:
        timeline = held.load_timeline()
        current = timeline.find(plan.requested_at)
        if current is None or current.is_completed:
            raise PlanCancelledError(
                f"{plan} has left the timeline or was completed meanwhile.", instant=plan.requested_at.value, reason=""
            )
        refuse_for_others(held, current)
        held.lease.check()
        heartbeat = start_heartbeat(
            # The heartbeat outlives the lock.
            held.unlocked.storage,
            plan.requested_at,
            settings=held.heartbeat_settings,
            runtime=held.runtime,
            owner=f"{_OWNER} {held.runtime.ids.uuid()}",
            look=held.lease.look,
        )
    with heartbeat:
        yield heartbeat
