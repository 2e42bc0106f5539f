"""Deliberate bugs of the Table Management Service: of its database, its loops, its engines and its workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sqlalchemy import update

from tablekeeper.errors import PlanHeldError
from tablekeeper.server.decisions import reconcile
from tablekeeper.server.engines import worker
from tablekeeper.server.loops import looks
from tablekeeper.server.loops.housekeeping import ExpireLoop
from tablekeeper.server.loops.schedule import ScheduleLoop
from tablekeeper.server.loops.watch import WatchLoop
from tablekeeper.server.model import AttemptOutcome, Signal, Status
from tablekeeper.server.store.schema import OPERATION
from tablekeeper.server.store.sql_claims import SqlClaims, _load
from tablekeeper.server.store.sql_operations import SqlOperations, _find
from tests.support.bug_registry import MOR, Patch, both, bug, says

__all__: list[str] = []


# ---- leases


@bug("sleeping service", MOR)
def the_number_of_a_lease_is_not_checked() -> Patch:
    """Whoever holds the operation by now, an earlier holder changes it."""
    original = SqlClaims._in_force

    def in_force(self: SqlClaims, lease: Any) -> tuple[Any, ...]:
        return _without(original(self, lease), "lease_token", "instance_id")

    return patch.object(SqlClaims, "_in_force", in_force)


@bug("sleeping service", MOR)
def a_lease_that_is_over_is_as_good_as_any() -> Patch:
    original = SqlClaims._in_force

    def in_force(self: SqlClaims, lease: Any) -> tuple[Any, ...]:
        return _without(original(self, lease), "lease_until_ms")

    return patch.object(SqlClaims, "_in_force", in_force)


@bug("service", MOR)
def nobody_notices_that_a_lease_is_over() -> Patch:
    return patch.object(ExpireLoop, "run_once", says(0))


@bug("service", MOR)
def operations_are_claimed_whoever_holds_them() -> Patch:
    def claim(self: SqlClaims, operation_id: int, *, instance_id: str, lease_s: float, **_: Any) -> Any:
        def work(connection: Any) -> Any:
            connection.execute(
                update(OPERATION)
                .where(OPERATION.c.operation_id == operation_id)
                .values(
                    status=Status.CLAIMED,
                    lease_token=OPERATION.c.lease_token + 1,
                    lease_until_ms=self._database.after(lease_s),
                    instance_id=instance_id,
                )
            )
            return _load(connection, operation_id)

        return self._database.write(work)

    return patch.object(SqlClaims, "claim", claim)


# ---- attempts


@bug("service", MOR)
def a_job_that_runs_is_not_adopted() -> Patch:
    return both(patch.object(ScheduleLoop, "_adopt", says(False)), patch.object(ScheduleLoop, "_is_held", says(False)))


@bug("workers of a service", MOR)
def whatever_is_at_work_elsewhere_counts_as_done() -> Patch:
    """It is reported as completed before anybody has looked at the timeline."""
    original = worker._outcome_of

    def outcome_of(error: Any, *rest: Any) -> AttemptOutcome:
        return AttemptOutcome.COMPLETED if isinstance(error, PlanHeldError) else original(error, *rest)

    return patch.object(worker, "_outcome_of", outcome_of)


@bug("requests to a service", MOR)
def a_plan_that_left_the_timeline_counts_as_done() -> Patch:
    original = reconcile.plan_corrections

    def corrections(*arguments: Any) -> list[Any]:
        return [replace(each, signal=Signal.COMPLETE) for each in original(*arguments)]

    return patch.object(looks, "plan_corrections", corrections)


@bug("workers of a service", MOR)
def what_was_asked_to_stop_counts_as_stopped() -> Patch:
    """Also where it had just completed."""
    return patch.object(WatchLoop, "_has_completed", says(False))


@bug("workers of a service", MOR)
def an_attempt_that_failed_is_not_closed() -> Patch:
    original = SqlClaims.settle

    def settle(self: SqlClaims, lease: Any, signal: Signal, **named: Any) -> Any:
        ended = named.get("ended")
        if ended is not None and signal is Signal.RETRY:
            named["ended"] = None
        return original(self, lease, signal, **named)

    return patch.object(SqlClaims, "settle", settle)


# ---- requests


@bug("requests to a service", MOR)
def a_repeated_request_is_executed_again() -> Patch:
    original = SqlOperations._submit_again

    def submit_again(self: SqlOperations, connection: Any, submission: Any, table: Any) -> Any:
        known = _find(connection, submission.table_id, submission.instant)
        if known is not None and known.status is Status.COMPLETED:
            connection.execute(
                update(OPERATION)
                .where(OPERATION.c.operation_id == known.operation_id)
                .values(status=Status.PENDING, finished_ms=None)
            )
        return original(self, connection, submission, table)

    return patch.object(SqlOperations, "_submit_again", submit_again)


@bug("requests to a service", MOR)
def what_was_asked_for_is_forgotten() -> Patch:
    """Operations that wait are deleted with those that have ended."""

    def expire(self: ExpireLoop) -> int:
        operations = self._context.store.list_active(1)
        return sum(self._context.store.clear(1) for each in operations[:1] if each.status is Status.PENDING)

    return patch.object(ExpireLoop, "run_once", expire)


def _without(conditions: tuple[Any, ...], *columns: str) -> tuple[Any, ...]:
    return tuple(each for each in conditions if each.left.name not in columns)
