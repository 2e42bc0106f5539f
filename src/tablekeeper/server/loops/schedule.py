"""Claims operations and starts them, or adopts jobs of an earlier holder that are still running."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError

from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.server.decisions.choose import choose_next, tell_order
from tablekeeper.server.decisions.outcomes import Verdict, choose_engine, judge_attempt
from tablekeeper.server.engines.protocol import Job, JobState
from tablekeeper.server.loops.context import LoopContext, Watched, about, make_job, settle
from tablekeeper.server.model import Attempt, AttemptOutcome, ManagedTable, Operation, Signal, is_asked_for
from tablekeeper.server.places import AllowedPlaces, ForbiddenPlaceError
from tablekeeper.server.policy import DEFAULT_POLICY, MINUTES_PER_DAY, Policy
from tablekeeper.server.store.protocol import EndedAttempt, LeaseLostError, UnknownRecordError
from tablekeeper.tracing import span

__all__ = ["ScheduleLoop"]

_LOG = logging.getLogger(__name__)


class ScheduleLoop:
    """Fills the free slots of this instance."""

    def __init__(self, context: LoopContext, places: AllowedPlaces) -> None:
        self._context = context
        self._places = places
        self.is_draining = False

    def run_once(self) -> int:
        """Start operations in their order; returns how many."""
        limits = self._context.settings.limits
        free = limits.slots - len(self._context.watched)
        if free <= 0 or self.is_draining:
            return 0
        load = self._context.store.load_work(limits.scheduler_window)
        started = 0
        for chosen in choose_next(load, limits, slots=free):
            if self.is_draining:
                break
            claimed = self._context.store.claim(
                chosen.operation_id,
                instance_id=self._context.instance_id,
                lease_s=self._context.settings.timing.lease_s,
                # The choice was based on what was running a moment ago; the claim enforces the limits.
                queue_limit=limits.queue_limit(chosen.queue),
                owner_limit=limits.owner_limit(chosen.owner),
            )
            if claimed is not None:
                ready_ms = max(claimed.create_ms, claimed.not_before_ms)
                self._context.metrics.claimed(claimed.action, waited_s=(claimed.schedule_ms - ready_ms) / 1000)
                self._begin(claimed, why=tell_order(chosen, load))
                started += 1
        return started

    def _begin(self, operation: Operation, *, why: str) -> None:
        store = self._context.store
        try:
            table = store.load_table(operation.table_id)
            policy = store.effective_policy(table)
            attempts = store.load_attempts(operation.operation_id)
            left = next((each for each in attempts if each.outcome is AttemptOutcome.RUNNING), None)
            if left is not None and self._adopt(operation, table, policy, left):
                return
            if left is not None and self._is_held(operation, table):
                # Its job runs where this instance cannot see it. A second job would find the plan held, and end.
                held = "another process holds the plan, out of reach of this instance"
                self._settle(operation, policy, AttemptOutcome.ELSEWHERE, held)
                return
            if left is not None and operation.failures + 1 >= (policy.max_failures or 1):
                self._settle(operation, policy, AttemptOutcome.LOST, "its worker vanished")
                return
            if self._has_to_wait(operation, policy):
                return
            about_it = {"operation": operation.operation_id, "table": table.name}
            with span(f"start {operation.action.value}", parent=operation.trace, **about_it):
                self._start(operation, table, policy, attempts, why=why)
        except (LeaseLostError, UnknownRecordError) as error:
            _LOG.warning("operation %d: %s", operation.operation_id, error, extra=about(operation))
        except (InvalidRequestError, ForbiddenPlaceError) as error:
            # An engine that is not here, a link that leads out of what is allowed, a policy of a newer release: waiting
            # does not help.
            self._settle(operation, DEFAULT_POLICY, AttemptOutcome.REFUSED, str(error))
        except SQLAlchemyError:
            raise
        except Exception as error:  # noqa: BLE001 (it counts, so that it ends as failed and not in a circle)
            _LOG.exception("operation %d: cannot be started", operation.operation_id, extra=about(operation))
            self._settle(operation, DEFAULT_POLICY, AttemptOutcome.FAILED, f"{type(error).__name__}: {error}")

    def _adopt(self, operation: Operation, table: ManagedTable, policy: Policy, left: Attempt) -> bool:
        """Continue an attempt of an earlier holder, if its job can be reached and has left a trace."""
        engine = self._context.engines.find(left.engine)
        job = make_job(self._context, operation, table, policy, left.number, log_path=left.log_path)
        job_id = left.job_id or engine.find(job)
        if not job_id or not engine.can_reach(job_id):
            return False
        try:
            is_known = engine.poll(job_id, job).state is not JobState.UNKNOWN
        except (OSError, ValueError) as error:
            _LOG.warning("cannot tell how %s is doing: %s", job_id, error, extra=about(operation))
            return False
        if not is_known:
            return False
        self._context.store.resume_attempt(operation.lease, left.number)
        if not left.job_id:
            self._context.store.record_job(operation.lease, left.number, job_id)
        _LOG.info(
            "operation %d: attempt %d adopted as %s",
            operation.operation_id,
            left.number,
            job_id,
            extra=about(operation),
        )
        self._watch(operation, policy, number=left.number, job=job, job_id=job_id, engine=left.engine)
        return True

    def _has_to_wait(self, operation: Operation, policy: Policy) -> bool:
        """Give the claim back until a window of the day opens, unless somebody requested this run."""
        minutes = policy.minutes_until_window(self._context.store.now_ms() // 60_000 % MINUTES_PER_DAY)
        if not minutes or is_asked_for(operation.instant):
            return False
        settle(self._context, operation, Verdict(Signal.RETRY, policy.outside_windows, delay_s=60.0 * minutes))
        return True

    def _is_held(self, operation: Operation, table: ManagedTable) -> bool:
        if not (operation.is_planned and operation.action.has_plan):
            return False
        try:
            return self._context.is_held(table, operation.instant)
        except (TablekeeperError, OSError) as error:
            _LOG.warning("operation %d: cannot look at its plan: %s", operation.operation_id, error)
            return False

    def _start(
        self, operation: Operation, table: ManagedTable, policy: Policy, attempts: Sequence[Attempt], *, why: str
    ) -> None:
        store = self._context.store
        self._places.recheck(table.base_path)
        engine = self._context.engines.find(choose_engine(operation, policy, attempts))
        job = make_job(self._context, operation, table, policy, operation.run_times + 1)
        attempt = store.start_attempt(operation.lease, engine=engine.name, log_path=job.log_path, why=why)
        try:
            asked_s = self._now_s
            job_id = engine.start(job)
            self._context.metrics.submitted(engine.name, seconds=self._now_s - asked_s)
        except (TablekeeperError, OSError) as error:
            message = f"it could not be started: {error}"
            self._settle(operation, policy, AttemptOutcome.FAILED, message, number=attempt.number)
            return
        store.record_job(operation.lease, attempt.number, job_id)
        self._watch(operation, policy, number=attempt.number, job=job, job_id=job_id, engine=engine.name)
        _LOG.info(
            "operation %d: attempt %d started as %s: %s of %s",
            operation.operation_id,
            attempt.number,
            job_id,
            operation.action.value,
            table.name,
            extra=about(operation),
        )

    def _settle(
        self, operation: Operation, policy: Policy, outcome: AttemptOutcome, message: str, *, number: int | None = None
    ) -> None:
        """End the claim, and with it the attempt of this number."""
        verdict = judge_attempt(
            operation,
            outcome,
            message,
            max_failures=policy.max_failures or 1,
            timing=self._context.settings.timing,
            jitter=self._context.runtime.ids.jitter(),
        )
        ended = None if number is None else EndedAttempt(number, outcome, message)
        settle(self._context, operation, verdict, ended)

    def _watch(self, operation: Operation, policy: Policy, *, number: int, job: Job, job_id: str, engine: str) -> None:
        """Watch the attempt of this number from here on."""
        self._context.watched[operation.operation_id] = Watched(
            operation=operation,
            number=number,
            job=job,
            job_id=job_id,
            engine=engine,
            max_failures=policy.max_failures or 1,
            has_fallback=_has_fallback(policy, engine),
            renewed_s=self._now_s,
            since_s=self._now_s,
            is_planned=operation.is_planned,
        )

    @property
    def _now_s(self) -> float:
        return self._context.runtime.clock.monotonic_s()


def _has_fallback(policy: Policy, engine: str) -> bool:
    return policy.fallback_engine is not None and policy.fallback_engine != engine
