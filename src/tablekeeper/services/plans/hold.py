"""Holding a plan for another program that executes it, and that does not pass the guard by itself.

Java Hudi takes the guard for compactions, and executes clusterings and log compactions without one. It knows nothing of
our flags and cancel requests either. Before it executes a plan for us, its caller asks here and holds the plan with
a heartbeat meanwhile, so that nobody else executes it or rolls it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tablekeeper.errors import PlanCancelledError, PlanHeldError, UnsupportedFeatureError
from tablekeeper.format.plans.outline import decode_outline
from tablekeeper.model import Action, Instant, PlanFlags, State
from tablekeeper.timeline import instant_path, load_content
from tablekeeper.txn.cancel_requests import load_cancel_request
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.heartbeat import Heartbeat, start_heartbeat

__all__ = ["hold_plan", "refuse_for_others"]

_OWNER = "another-program"


def refuse_for_others(environment: TableEnvironment, plan: Instant) -> None:
    """Raise if another program must not execute this plan now.

    `PlanHeldError` if another process executes it, `PlanCancelledError` if it was cancelled, `UnsupportedFeatureError`
    if it may have to yield: only our own executor looks for that before it commits.
    """
    if _load_flags(environment, plan).can_be_removed:
        raise UnsupportedFeatureError(
            f"{plan} is a plan that can be cancelled, and only tablekeeper yields then. Execute it with an engine of "
            "tablekeeper, or schedule a plan that is neither cancellable nor mutable."
        )
    request = load_cancel_request(environment.storage, plan.requested_at)
    if request is not None:
        raise PlanCancelledError(
            f"{plan} was cancelled ({request.reason}) and is not executed.",
            instant=plan.requested_at.value,
            reason=request.reason,
        )
    heartbeats = environment.load_heartbeats()
    if heartbeats.is_active(plan.requested_at):
        age_s = heartbeats.ages[plan.requested_at]
        raise PlanHeldError(
            f"{plan}: another process is executing it, its heartbeat is {age_s:.0f} s old. Leave it to that process.",
            instant=plan.requested_at.value,
            heartbeat_age_s=age_s,
        )


@contextmanager
def hold_plan(environment: TableEnvironment, plan: Instant) -> Iterator[Heartbeat]:
    """Pass the guard in one transaction, and beat for the plan until the block ends.

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
            # It outlives the lock.
            held.unlocked.storage,
            plan.requested_at,
            settings=held.heartbeat_settings,
            runtime=held.runtime,
            owner=f"{_OWNER} {held.runtime.ids.uuid()}",
        )
    with heartbeat:
        yield heartbeat


def _load_flags(environment: TableEnvironment, plan: Instant) -> PlanFlags:
    requested = Instant(plan.requested_at, plan.action, State.REQUESTED)
    content = load_content(environment.storage, environment.config, requested)
    file = instant_path(environment.config, requested)
    is_clustering = plan.action is Action.CLUSTERING
    return PlanFlags.from_metadata(decode_outline(content, file=file, is_clustering=is_clustering).extra)
