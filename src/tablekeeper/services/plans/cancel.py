"""Plans that are not executed: cancelled by somebody, left behind by a dead executor, or too old.

Cancelling a plan is durable: the request is written under the lock before anything else happens. A running executor
finds it within seconds and removes the plan itself; if nobody is executing the plan, the caller removes it. If the
executor has committed before, the plan stays completed, and the result says so.

Lazy clean handles each pending plan in a transaction of its own. It leaves plans with an active heartbeat alone. It
puts a rollback on the timeline for cancelled plans, for mutable ones that are inflight, half rolled back or older than
the rollback delay, and for cancellable ones older than that delay. For a plan with an age limit of its own that limit
counts instead. From then on nobody begins to execute these plans. Then the rollbacks are executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.errors import CorruptTableError, InvalidRequestError
from tablekeeper.model import Instant, PlanFlags, RequestedTime, State
from tablekeeper.model.results import Result
from tablekeeper.services.plans.damage import find_plan_damage
from tablekeeper.timeline import Timeline, parse_time
from tablekeeper.timeline.plans import find_plan, find_rollback, load_pending_outline, load_rollback_plan
from tablekeeper.txn.cancel_requests import CancelRequest, load_cancel_request, save_cancel_request
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.rollback import resume_rollback, rollback_approved, schedule_rollback

__all__ = [
    "CancelResult",
    "cancel_plan",
    "remove_failed_plan",
    "remove_failed_plans",
    "remove_plan",
    "why_removed",
]

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class CancelResult(Result):
    """The result of a request to cancel a plan.

    `outcome` is "removed"; "completed" if the executor had committed before; or "requested" if it is still running: it
    stops within seconds, and if it has died, the next clean removes the plan.
    """

    instant: RequestedTime
    outcome: str
    reason: str

    @property
    def is_removed(self) -> bool:
        return self.outcome == "removed"

    def __repr__(self) -> str:
        says = {
            "removed": "was removed",
            "completed": "was already completed, and stays",
            "requested": "is being executed; its executor has been told to stop",
        }
        return f"plan {self.instant} {says[self.outcome]} ({self.reason})"


def cancel_plan(environment: TableEnvironment, instant: RequestedTime, *, reason: str, wait_s: float) -> CancelResult:
    """Cancel a pending plan, and wait up to `wait_s` seconds for a running executor to let go of it.

    A plan that is neither cancellable nor mutable is removed only if its files are so damaged that it cannot succeed.
    """
    damage = _load_damage(environment, instant)
    asked = _ask(environment, instant, reason=reason, is_hopeless=bool(damage))
    if asked is not None:
        return asked
    clock = environment.runtime.clock
    until_s = clock.monotonic_s() + wait_s
    while True:
        if remove_plan(environment, instant, approve=lambda current: not _is_held(environment, current)):
            return CancelResult(instant, "removed", reason)
        found = environment.load_timeline().find(instant)
        if found is None or found.is_completed:
            return CancelResult(instant, "removed" if found is None else "completed", reason)
        if clock.monotonic_s() >= until_s:
            return CancelResult(instant, "requested", reason)
        clock.sleep(_POLL_S)


def remove_plan(environment: TableEnvironment, instant: RequestedTime, *, approve: Callable[[Instant], bool]) -> bool:
    """Roll back a pending plan and remove it from the timeline. False if `approve` said no.

    `approve` is called under the lock with the plan as it is then.
    """
    outcome = rollback_approved(
        environment,
        instant,
        approve=lambda _, __, current: current.is_pending and approve(current),
        removes_plan=True,
    )
    return outcome is not None


def remove_failed_plans(environment: TableEnvironment, settings: LifecycleSettings) -> tuple[RequestedTime, ...]:
    """Lazy clean: remove cancelled plans, and mutable ones that nobody is executing."""
    timeline = environment.load_timeline()
    _finish_removals(environment, timeline)
    return _remove(environment, [plan.requested_at for plan in timeline.pending_plans], settings)


def remove_failed_plan(environment: TableEnvironment, instant: RequestedTime, settings: LifecycleSettings) -> bool:
    """The same for one plan; False if it is already gone, or stays."""
    return bool(_remove(environment, [instant], settings))


def why_removed(
    plan: Instant, flags: PlanFlags, settings: LifecycleSettings, *, age_s: float, is_cancelled: bool
) -> str:
    """Why lazy clean removes a pending plan that nobody holds; `""` if it keeps it. Pure."""
    if is_cancelled:
        return "cancelled"
    if flags.mutable and plan.state is State.INFLIGHT:
        return "an attempt failed, and the plan is mutable"
    delay_s = settings.rollback_delay_minutes * 60
    limit_s = delay_s if flags.cancel_after_s is None else flags.cancel_after_s
    if age_s < limit_s or not (flags.mutable or flags.cancellable):
        return ""
    return f"{'mutable, and ' if flags.mutable else ''}not executed within {limit_s} s"


def _remove(
    environment: TableEnvironment, plans: Iterable[RequestedTime], settings: LifecycleSettings
) -> tuple[RequestedTime, ...]:
    """Schedule the rollbacks of plans to be removed, then execute them; returns the removed plans."""
    scheduled = []
    for instant in plans:
        rollback = schedule_rollback(
            environment, instant, approve=lambda held, now, current: _may_go(held, now, current, settings)
        )
        if rollback is not None:
            scheduled.append(instant)
    return tuple(
        instant
        for instant in scheduled
        if remove_plan(environment, instant, approve=lambda current: not _is_held(environment, current))
    )


def _finish_removals(environment: TableEnvironment, timeline: Timeline) -> None:
    """Finish rollbacks whose plan is already gone, and whose process died before it completed them."""
    for rollback in timeline.pending_rollbacks:
        planned = load_rollback_plan(environment.storage, environment.config, rollback)
        if planned is None or planned.instant is None:
            continue
        target = RequestedTime(planned.instant.commit_time)
        if planned.instant.is_plan and timeline.find(target) is None:
            resume_rollback(environment, rollback)


def _load_damage(environment: TableEnvironment, instant: RequestedTime) -> str:
    """Why a plan that cannot be cancelled cannot succeed. Without the lock: files are listed, and perhaps read."""
    current, _ = find_plan(environment.load_timeline(), instant)
    if current.is_completed:
        return ""
    try:
        flags = load_pending_outline(environment.storage, environment.config, current).flags
    except CorruptTableError as error:
        return str(error)
    return "" if flags.can_be_removed else find_plan_damage(environment, current)


def _ask(
    environment: TableEnvironment, instant: RequestedTime, *, reason: str, is_hopeless: bool
) -> CancelResult | None:
    """Save the request; a result if there is nothing to wait for."""
    with environment.locked() as held:
        timeline = held.load_timeline()
        current, _ = find_plan(timeline, instant)
        if current.is_completed:
            return CancelResult(instant, "completed", reason)
        if not is_hopeless:
            _refuse_binding(held, current)
        held.lease.check()
        request = CancelRequest(instant, reason, held.runtime.process_name, held.runtime.clock.now_ms())
        save_cancel_request(held.storage, request)
    return None


def _refuse_binding(environment: TableEnvironment, current: Instant) -> None:
    flags = load_pending_outline(environment.storage, environment.config, current).flags
    if not flags.can_be_removed:
        raise InvalidRequestError(
            f"{current} is neither cancellable nor mutable: writers and other services count on it being executed, and "
            "no damage of its files is known that would rule that out. Execute it; Table.rollback() takes a failed "
            "attempt back. New plans: pass cancellable=True."
        )


def _may_go(held: LockedEnvironment, now: Timeline, current: Instant, settings: LifecycleSettings) -> bool:
    """Whether lazy clean removes this plan. Called under the lock, with the plan as it is then."""
    if _is_held(held, current):
        return False
    if load_cancel_request(held.storage, current.requested_at) is not None:
        return True
    flags = load_pending_outline(held.storage, held.config, current).flags
    if flags.mutable and find_rollback(held.storage, held.config, now, current) is not None:
        # A rollback that died may have left it requested again; nobody will execute it.
        return True
    reason = why_removed(current, flags, settings, age_s=_age_s(held, current), is_cancelled=False)
    if reason and not flags.mutable:
        # A mutable plan is removed with its rollback anyway; one that is only cancellable needs a cancel request.
        held.lease.check()
        now_ms = held.runtime.clock.now_ms()
        save_cancel_request(
            held.storage, CancelRequest(current.requested_at, reason, held.runtime.process_name, now_ms)
        )
    return bool(reason)


def _is_held(environment: TableEnvironment, current: Instant) -> bool:
    return environment.load_heartbeats().is_active(current.requested_at)


def _age_s(environment: TableEnvironment, current: Instant) -> float:
    """How long the plan has been pending; 0 if its scheduler's clock is ahead of ours."""
    scheduled_ms = parse_time(current.requested_at.value, zone=environment.config.time_zone)
    return max(0.0, (environment.runtime.clock.now_ms() - scheduled_ms) / 1000)
