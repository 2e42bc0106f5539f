"""Restore: everything that happened after a savepoint is rolled back, newest first.

The steps are Java's: a plan with the instants is requested and goes inflight, each of them is rolled back, and the
restore completes with the metadata of the rollbacks. While it is pending no write begins or commits. If a restore dies,
the next one to the same savepoint continues it with its plan; instants that no longer exist are done.

Completion times decide what is rolled back: a commit that began before the savepointed one and completed after it was
not protected by the savepoint. The plan of a table service that existed before stays, in the state requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tablekeeper.errors import InvalidRequestError
from tablekeeper.format.plans import (
    InstantInfo,
    RestoreMetadata,
    RestorePlan,
    RollbackMetadata,
    decode_restore_plan,
    encode_restore_metadata,
    encode_restore_plan,
)
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.timeline import (
    Timeline,
    create_requested,
    instant_path,
    load_content,
    start_inflight,
)
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment, next_time
from tablekeeper.txn.publish import Publication, confirm_pending
from tablekeeper.txn.rollback import rollback_approved

__all__ = ["Restored", "execute_restore", "load_restore_plan", "plan_restore"]


@dataclass(frozen=True, slots=True)
class Restored:
    """A completed restore; `instants` are those that it rolled back, and `files` the files that it deleted."""

    restore: Instant
    instants: tuple[InstantInfo, ...]
    files: tuple[str, ...]


def plan_restore(timeline: Timeline, commit: Instant) -> tuple[Instant, ...]:
    """The instants to roll back so that the table is as it was when `commit` completed, in this order.

    Pending clustering comes first, because its replaced groups are the ones that others wrote to; then whatever else
    is pending, then completed writes, each newest first.
    """
    if commit.completed_at is None:
        raise ValueError(f"{commit} has not completed")
    pending = [i for i in reversed(timeline.pending) if i.action.writes_data and not _stays(i, commit)]
    clustering = [i for i in pending if i.action is Action.CLUSTERING]
    completed = [
        i
        for i in reversed(timeline.completed_writes_by_completion)
        if i.completed_at is not None and i.completed_at > commit.completed_at
    ]
    return (*clustering, *(i for i in pending if i not in clustering), *completed)


def execute_restore(
    environment: TableEnvironment,
    commit: RequestedTime,
    *,
    approve: Callable[[LockedEnvironment, Timeline], Instant],
) -> Restored:
    """Restore to the savepoint of `commit`, or continue a restore to it that died.

    `approve` runs under the lock; it gives the savepointed commit, or raises and nothing has happened.
    """
    config = environment.config
    with environment.locked() as held:
        timeline = held.load_timeline()
        restore, plan = _find_pending(held, timeline, commit)
        if restore is None or plan is None:
            instants = plan_restore(timeline, approve(held, timeline))
            plan = RestorePlan(tuple(_info(i) for i in instants), savepoint=commit.value)
            held.lease.check()
            restore = create_requested(
                held.storage,
                config,
                requested_at=RequestedTime(next_time(held, timeline)),
                action=Action.RESTORE,
                content=encode_restore_plan(plan),
            )
            confirm_pending(held, restore)
        if restore.state is State.REQUESTED:
            held.lease.check()
            restore = start_inflight(held.storage, config, restore)
            confirm_pending(held, restore)
    started_ms = environment.runtime.clock.now_ms()
    rollbacks = _roll_back_all(environment, plan, commit)
    with environment.locked() as held:
        timeline = held.load_timeline()
        mine = timeline.find(restore.requested_at)
        if mine is not None and mine.is_pending:
            metadata = RestoreMetadata(
                started_at=restore.requested_at.value,
                duration_ms=max(0, held.runtime.clock.now_ms() - started_ms),
                commits=tuple(info.commit_time for info in plan.instants),
                rollbacks={key: (metadata,) for key, (metadata, _) in rollbacks.items()},
                instants=plan.instants,
            )
            publication = Publication(held, restore, known=timeline)
            restore = publication.complete(encode_restore_metadata(metadata)).instant
    return Restored(restore, plan.instants, tuple(file for _, files in rollbacks.values() for file in files))


def load_restore_plan(environment: TableEnvironment, restore: Instant) -> RestorePlan:
    """The plan of a restore."""
    requested = Instant(restore.requested_at, Action.RESTORE, State.REQUESTED)
    content = load_content(environment.storage, environment.config, requested)
    return decode_restore_plan(content, file=instant_path(environment.config, requested))


def _stays(pending: Instant, commit: Instant) -> bool:
    """Whether it is a service that was planned before the savepoint and has not begun."""
    planned = pending.action.is_plan and pending.state is State.REQUESTED
    return planned and pending.requested_at < commit.requested_at


def _find_pending(
    environment: TableEnvironment, timeline: Timeline, commit: RequestedTime
) -> tuple[Instant | None, RestorePlan | None]:
    for restore in timeline.pending:
        if restore.action is not Action.RESTORE:
            continue
        plan = load_restore_plan(environment, restore)
        if plan.savepoint != commit.value:
            raise InvalidRequestError(
                f"table {environment.config.name} is in the middle of a restore to {plan.savepoint} ({restore}). "
                f"Finish that one first: restore({plan.savepoint!r})."
            )
        return restore, plan
    return None, None


def _roll_back_all(
    environment: TableEnvironment, plan: RestorePlan, commit: RequestedTime
) -> dict[str, tuple[RollbackMetadata, Sequence[str]]]:
    """Roll back the rest of the plan, which was approved before."""
    done: dict[str, tuple[RollbackMetadata, Sequence[str]]] = {}
    for info in plan.instants:
        target = RequestedTime(info.commit_time)
        outcome = rollback_approved(
            environment,
            target,
            approve=lambda _, __, current: current.action.writes_data,
            removes_plan=target > commit,
            is_wanted=True,
        )
        if outcome is not None and outcome.metadata is not None:
            done[info.commit_time] = (outcome.metadata, outcome.files)
    return done


def _info(instant: Instant) -> InstantInfo:
    return InstantInfo(instant.requested_at.value, instant.action.value)
