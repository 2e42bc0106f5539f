"""The life of a plan after it was scheduled: guard, execute, commit, roll back. The same for all kinds of plans.

First the executor passes the guard, in one transaction: it stops if the plan is held, that is, has an active heartbeat,
or if a mutable plan is inflight or being rolled back; then it starts its own heartbeat. So a plan has at most one
executor, and nobody rolls it back in the meantime.

A failed attempt is rolled back, by its executor if possible, otherwise by the next one. An immutable plan stays and is
executed again; a mutable one is removed with its attempt. A cancellable plan that has to yield and any cancelled plan
is removed: a cancel request is saved first, so that the removal is finished even if the process dies.

A process that slept until its heartbeat expired notices before it publishes a file (`AttemptGuard`), and at the latest
under the lock of the commit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    CorruptTableError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PlanCancelledError,
    StorageError,
    TablekeeperError,
)
from tablekeeper.model import Action, Instant, Plan, RequestedTime, State
from tablekeeper.services.plans.cancel import remove_plan
from tablekeeper.services.plans.foreign_plans import load_executable_plan
from tablekeeper.services.plans.hold import refuse_cancelled, refuse_held
from tablekeeper.services.plans.input_check import refuse_damaged_input
from tablekeeper.services.plans.service import Attempt, Rewritten, Service, ServiceResult
from tablekeeper.services.plans.window import recorded_pending
from tablekeeper.snapshot.slices import load_files_of_instant
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.timeline import (
    Timeline,
    load_commit_metadata,
    start_inflight,
)
from tablekeeper.timeline.plans import find_plan, find_rollback, was_rolled_back
from tablekeeper.txn.attempts import AttemptGuard, AttemptId, begin_attempt
from tablekeeper.txn.cancel_requests import CancelRequest, load_cancel_request, save_cancel_request
from tablekeeper.txn.commit import OpenWrite, refuse_during_restore
from tablekeeper.txn.concurrent_commits import NoPhantoms
from tablekeeper.txn.conflict import WriteKind
from tablekeeper.txn.environment import LockedEnvironment, TableEnvironment
from tablekeeper.txn.heartbeat import Heartbeat, load_heartbeat_owner
from tablekeeper.txn.lost_completions import refuse_lost_completion
from tablekeeper.txn.publish import confirm_pending
from tablekeeper.txn.rollback import rollback_approved
from tablekeeper.write.finish import finish_write
from tablekeeper.write.layout_checks import ensure_partitions
from tablekeeper.write.prepare import WriteRequest
from tablekeeper.write.schema import refuse_changed_schema

__all__ = ["execute_plan"]

_LOG = logging.getLogger(__name__)


def execute_plan(
    request: WriteRequest, service: Service, instant: RequestedTime, settings: LifecycleSettings
) -> ServiceResult:
    """Execute the plan, or raise and leave the table as it was.

    `PlanHeldError` if another process is executing it. If the plan is already completed, the result says so. `request`
    is a prepared write of the service's operation.
    """
    clock = request.runtime.clock
    started_s = clock.monotonic_s()
    entered = _pass_guard(request.environment, service, instant, settings)
    if isinstance(entered, Instant):
        return _completed_before(request.environment, service, entered)
    try:
        result = _execute(request, service, entered)
    except BaseException as error:
        _give_up(request.environment, entered, error)
        raise
    return replace(result, seconds=clock.monotonic_s() - started_s)


@dataclass(frozen=True)
class _Entered:
    """An executor that has passed the guard. `is_retry`: an earlier attempt has to be rolled back first."""

    instant: Instant
    plan: Plan
    timeline: Timeline
    heartbeat: Heartbeat
    attempt: AttemptId
    is_retry: bool


def _pass_guard(
    environment: TableEnvironment, service: Service, instant: RequestedTime, settings: LifecycleSettings
) -> _Entered | Instant:
    """The guard: one transaction that lets at most one executor through. The instant of a plan that is completed."""
    with environment.locked() as held:
        threads = held.runtime.threads
        timeline, (heartbeats, cancelled) = threads.together(
            held.load_timeline,
            lambda: (held.load_heartbeats(), load_cancel_request(held.storage, instant)),
        )
        current, kind = find_plan(timeline, instant)
        if current.is_completed:
            return current
        if kind is not service.kind:
            raise InvalidRequestError(f"{current} is a plan of {kind.value}, not of {service.kind.value}.")
        refuse_during_restore(held, timeline, instant)
        if settings.guard:
            refuse_held(held, current, heartbeats)
        try:
            plan, _ = threads.together(lambda: load_executable_plan(held, current), held.lease.check)
        except NotFoundError:
            # Nobody removes a plan while the lock is held here: it was lost in the meantime.
            held.lease.check()
            raise
        is_retry = (
            current.state is State.INFLIGHT or find_rollback(held.storage, held.config, timeline, current) is not None
        )
        if is_retry and plan.flags.mutable:
            raise FencedError(
                f"{current} is a mutable plan that was begun or is being rolled back, and is not executed again. The "
                "next clean removes it; schedule a new plan."
            )
        refuse_cancelled(current, cancelled)
        refuse_lost_completion(held, current)
        if is_retry:
            # Reading took some time.
            held.lease.check()
        attempt, heartbeat = begin_attempt(held, instant)
        if not is_retry:
            try:
                current = start_inflight(held.storage, held.config, current)
                confirm_pending(held, current)
            except BaseException:
                heartbeat.stop()
                raise
    return _Entered(current, plan, timeline, heartbeat, attempt, is_retry)


def _execute(request: WriteRequest, service: Service, entered: _Entered) -> ServiceResult:
    environment = request.environment
    inflight = _begin_again(environment, entered) if entered.is_retry else entered.instant
    requested_at = inflight.requested_at
    write = OpenWrite(
        inflight,
        service.kind.operation,
        entered.timeline,
        entered.heartbeat,
        entered.attempt,
        kind=WriteKind.of(service.kind),
        is_cancellable=entered.plan.flags.cancellable,
        planned_beside=recorded_pending(entered.plan.extra),
    )
    refuse_changed_schema(environment, request.known_schema, write)
    context = request.context.for_attempt(entered.attempt, is_plan=True)
    try:
        partitions = sorted({group.partition for group in entered.plan.file_groups})
        environment.runtime.threads.together(
            lambda: refuse_damaged_input(environment, entered.plan, inflight, entered.timeline),
            lambda: ensure_partitions(environment, write, context, partitions),
        )
        rewritten = service.rewrite(Attempt(request.engine, context, environment.config), entered.plan)
    except CorruptTableError as error:
        reason = (
            f"{error.reason}. Restore the file and execute {requested_at} again; if it cannot be restored, or the plan "
            "was made without it, Table.cancel() removes the plan"
        )
        raise CorruptTableError(file=error.file, reason=reason) from error
    except StorageError:
        # Another process may have taken the plan over and completed it, and a clean may have deleted its input.
        AttemptGuard(StorageHandle(environment.storage), entered.attempt, runtime=environment.runtime).check_now()
        raise
    written = finish_write(
        environment,
        write,
        context,
        files=rewritten.files,
        replaced=rewritten.replaced,
        extra=request.extra,
        engine=request.engine,
        policy=request.policy,
        phantoms=NoPhantoms(),
        known_schema=request.known_schema,
        refuse=_Approval(environment, entered, rewritten),
        ensured=partitions,
    )
    return ServiceResult(
        instant=requested_at,
        service=service.kind.value,
        outcome="completed",
        completed_at=written.completed_at,
        file_groups=len(entered.plan.file_groups),
        files=written.files,
        rows=sum(file.stat.writes for file in rewritten.files),
        bytes_read=entered.plan.size,
        bytes_written=written.bytes_written,
        lock_held_s=written.lock_held_s,
        notes=written.notes,
    )


class _Approval:
    """Checks, under the lock of the commit, that the attempt is still ours and wanted.

    Files that an earlier attempt published after its rollback would become visible with this commit, and are deleted.
    """

    def __init__(self, environment: TableEnvironment, entered: _Entered, rewritten: Rewritten) -> None:
        self._environment = environment
        self._entered = entered
        store = StorageHandle(environment.storage)
        self._guard = AttemptGuard(store, entered.attempt, runtime=environment.runtime, is_plan=True)
        self._own = frozenset(file.stat.path for file in rewritten.files)
        self._has_predecessors = entered.is_retry or was_rolled_back(
            environment.storage, environment.config, entered.timeline, entered.instant.requested_at
        )

    def __call__(self, timeline: Timeline) -> None:
        del timeline
        strays: frozenset[str] = frozenset()
        if self._has_predecessors:
            strays = _load_files_of_attempts(self._environment, self._entered) - self._own
        # After the listing: as long as the attempt is ours, the listed files are not those of a successor.
        self._guard.check_now()
        if strays:
            self._entered.attempt.driver_storage(self._environment.storage).delete_many(sorted(strays))


def _begin_again(environment: TableEnvironment, entered: _Entered) -> Instant:
    """Roll back an earlier attempt, and put the plan inflight again."""
    requested_at = entered.instant.requested_at

    def approve(_: LockedEnvironment, __: Timeline, current: Instant) -> bool:
        _refuse_lost(environment, entered)
        return current.is_pending

    rollback_approved(
        environment,
        requested_at,
        approve=approve,
        also_files=_load_files_of_attempts(environment, entered),
        keeps_heartbeat=True,
    )
    with environment.locked() as held:
        timeline = held.load_timeline()
        current = timeline.find(requested_at)
        _refuse_lost(held, entered)
        if current is None or current.state is not State.REQUESTED:
            raise _lost(requested_at)
        held.lease.check()
        inflight = start_inflight(held.storage, held.config, current)
        confirm_pending(held, inflight)
        return inflight


def _refuse_lost(environment: TableEnvironment, entered: _Entered) -> None:
    """Raise `FencedError` if another executor may have taken the plan over. Under the lock nobody can."""
    entered.heartbeat.check()
    if not _is_ours(environment, entered):
        raise _lost(entered.instant.requested_at)


def _is_ours(environment: TableEnvironment, entered: _Entered) -> bool:
    return load_heartbeat_owner(environment.storage, entered.instant.requested_at) == entered.attempt.owner


def _lost(plan: RequestedTime) -> FencedError:
    return FencedError(f"plan {plan} was taken over or removed by another process. Nothing was committed; reload.")


def _load_files_of_attempts(environment: TableEnvironment, entered: _Entered) -> frozenset[str]:
    """Files of earlier attempts that no marker names: their names carry the plan's instant."""
    partitions = sorted({group.partition for group in entered.plan.file_groups})
    return load_files_of_instant(
        environment.storage, partitions, entered.instant.requested_at, runtime=environment.runtime
    )


def _give_up(environment: TableEnvironment, entered: _Entered, cause: BaseException) -> None:
    """After a failed attempt: clean up what belongs to it. The next process does what cannot be done here."""
    if isinstance(cause, CommitOutcomeUnknownError):
        # The last request may still succeed: nobody may touch the attempt before the heartbeat has expired.
        entered.heartbeat.abandon()
        return
    try:
        entered.heartbeat.check()
    except FencedError:
        # Another process may hold the plan by now.
        entered.heartbeat.stop()
        return
    try:
        if _is_lost(entered, cause):
            _cancel(environment, entered, cause)
        else:
            _roll_back(environment, entered)
    except TablekeeperError as second:
        cause.add_note(f"Cleaning up after {entered.instant} failed as well ({second}); the next clean will do it.")
    finally:
        entered.heartbeat.stop()


def _is_lost(entered: _Entered, cause: BaseException) -> bool:
    """Whether no later attempt can succeed: cancelled, lost to a writer while cancellable, or its rows have changed.

    The last case is clustering: it must not rewrite file groups that a writer has changed since (RFC-71).
    """
    if isinstance(cause, ConflictError):
        is_stale = entered.instant.action is Action.CLUSTERING and bool(cause.file_groups)
        return entered.plan.flags.cancellable or is_stale
    return isinstance(cause, PlanCancelledError)


def _roll_back(environment: TableEnvironment, entered: _Entered) -> None:
    def approve(_: LockedEnvironment, __: Timeline, current: Instant) -> bool:
        if current.state is not State.INFLIGHT or not _is_ours(environment, entered):
            return False
        # Under the lock: once it is free, the next executor may start its heartbeat under the same name.
        entered.heartbeat.stop()
        return True

    rollback_approved(
        environment,
        entered.instant.requested_at,
        approve=approve,
    )


def _cancel(environment: TableEnvironment, entered: _Entered, cause: BaseException) -> None:
    """Remove a plan that cannot succeed. The cancel request comes first, in case this process dies."""
    instant = entered.instant.requested_at
    with environment.locked() as held:
        current = held.load_timeline().find(instant)
        if current is None or current.is_completed or not _is_ours(held, entered):
            return
        held.lease.check()
        now_ms = held.runtime.clock.now_ms()
        reason = cause.reason if isinstance(cause, PlanCancelledError) else f"yields: {cause}"
        save_cancel_request(held.storage, CancelRequest(instant, reason, held.runtime.process_name, now_ms))

    def approve(_: Instant) -> bool:
        if not _is_ours(environment, entered):
            return False
        entered.heartbeat.stop()
        return True

    remove_plan(environment, instant, approve=approve)


def _completed_before(environment: TableEnvironment, service: Service, completed: Instant) -> ServiceResult:
    metadata = load_commit_metadata(environment.storage, environment.config, completed)
    if metadata.operation is not service.kind.operation:
        raise InvalidRequestError(f"{completed} is no plan of {service.kind.value}: there is nothing to execute.")
    # The file groups of the plan: a clustering replaced them and wrote new ones.
    planned = metadata.file_groups if metadata.replaced is None else metadata.replaced_groups
    return ServiceResult(
        instant=completed.requested_at,
        service=service.kind.value,
        outcome="already completed",
        completed_at=completed.completed_at,
        file_groups=len(planned),
        files=tuple(stat.path for stat in metadata.stats),
        rows=sum(stat.writes for stat in metadata.stats),
        bytes_written=sum(stat.size for stat in metadata.stats),
    )
