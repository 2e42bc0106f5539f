"""Who executes a clean: one process at a time, by its heartbeat on the clean's instant.

Deletions can be repeated, so a clean whose process died is simply taken over, without a rollback. Checking the old
heartbeat and starting a new one is one transaction.

A plan that nobody has begun is dropped if commits were rolled back or a savepoint was made since its time. On an object
store a process that lost the lock while it slept can publish its plan after them, with files that are needed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tablekeeper.format.plans import CleanPlan
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.services.plans.hold import refuse_held
from tablekeeper.timeline import Timeline, remove_instant_files, start_inflight
from tablekeeper.timeline.plans import load_clean_plan
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.heartbeat import Heartbeat, start_heartbeat
from tablekeeper.txn.publish import confirm_pending

__all__ = ["Taken", "begin_taken", "take_clean"]

_WAYS_BACK = frozenset({Action.ROLLBACK, Action.RESTORE, Action.SAVEPOINT})


@dataclass(frozen=True)
class Taken:
    """An inflight clean that this process may execute as long as its heartbeat is active."""

    inflight: Instant
    plan: CleanPlan
    heartbeat: Heartbeat
    was_resumed: bool = False


def take_clean(environment: TableEnvironment, clean: RequestedTime) -> Taken | None:
    """Take over a clean that is on the timeline; None if it has been finished, never had a plan, or was dropped.

    Raises `PlanHeldError` if another process is executing it.
    """
    with environment.locked() as held:
        timeline = held.load_timeline()
        current = timeline.find(clean)
        if current is None or current.is_completed:
            return None
        refuse_held(held, current, held.load_heartbeats())
        outdated = _is_outdated(timeline, current)
        plan = None if outdated else load_clean_plan(held.storage, held.config, current)
        # Nothing was deleted without a plan.
        if plan is None:
            states = (State.INFLIGHT, State.REQUESTED)
            held.lease.check()
            remove_instant_files(held.storage, held.config, *(Instant(clean, Action.CLEAN, state) for state in states))
            return None
        return begin_taken(held, clean, plan, create=lambda: current, was_resumed=True)


def begin_taken(
    held: LockedEnvironment,
    clean: RequestedTime,
    plan: CleanPlan,
    *,
    create: Callable[[], Instant],
    was_resumed: bool = False,
) -> Taken:
    """Start the heartbeat, which outlives the lock, then the clean that `create` gives."""
    heartbeat = start_heartbeat(
        held.unlocked.storage,
        clean,
        settings=held.heartbeat_settings,
        runtime=held.runtime,
        owner=f"{held.runtime.process_name} {held.runtime.ids.uuid()}",
        look=held.lease.look,
    )
    try:
        instant = create()
        if instant.state is State.REQUESTED:
            instant = start_inflight(held.storage, held.config, instant)
            confirm_pending(held, instant)
    except BaseException:
        heartbeat.stop()
        raise
    return Taken(instant, plan, heartbeat, was_resumed)


def _is_outdated(timeline: Timeline, clean: Instant) -> bool:
    """Whether files of a plan that nobody has begun may be needed again, or for the first time."""
    return clean.state is State.REQUESTED and any(
        i.action in _WAYS_BACK and i.completed_at is not None and i.completed_at.value > clean.requested_at.value
        for i in timeline.completed
    )
