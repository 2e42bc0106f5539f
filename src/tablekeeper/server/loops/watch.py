"""Watches the attempts of this instance: renews their leases, polls their jobs, settles their operations.

An instance that lost a lease forgets the attempt and changes nothing: the instance that has the operation now watches
its job, or found that the plan is held.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from tablekeeper.errors import TablekeeperError
from tablekeeper.server.decisions.outcomes import judge_attempt
from tablekeeper.server.decisions.reconcile import has_completed
from tablekeeper.server.engines.protocol import JobReport, JobState
from tablekeeper.server.loops.context import LoopContext, Watched, about, settle
from tablekeeper.server.model import AttemptOutcome, Operation, Signal, Status, transition
from tablekeeper.server.store.protocol import EndedAttempt, LeaseLostError

__all__ = ["WatchLoop"]

_LOG = logging.getLogger(__name__)


class WatchLoop:
    """Watches everything in `context.watched`."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context

    def run_once(self) -> int:
        """One round over all attempts; returns how many ended."""
        ended = 0
        for watched in list(self._context.watched.values()):
            try:
                is_over = self._look_after(watched)
            except LeaseLostError as error:
                _LOG.warning("%s", error)
                is_over = True
            except SQLAlchemyError:
                # Not this attempt's fault: the database cannot be reached, for the others either.
                raise
            except Exception:  # noqa: BLE001 (one attempt must not keep the leases of the others from being renewed)
                _LOG.exception("operation %d: cannot look after it", watched.operation.operation_id)
                is_over = False
            if is_over:
                self._context.watched.pop(watched.operation.operation_id, None)
                ended += 1
        return ended

    def _look_after(self, watched: Watched) -> bool:
        """Whether this instance is done with it."""
        self._renew(watched)
        report = self._poll(watched)
        if report.plan is not None and not watched.is_planned:
            self._context.store.record_plan(watched.operation.lease, report.plan)
            watched.is_planned = True
        if report.state is JobState.RUNNING:
            return False
        self._settle(watched, report)
        return True

    def _poll(self, watched: Watched) -> JobReport:
        try:
            return self._context.engines.find(watched.engine).poll(watched.job_id, watched.job)
        except Exception as error:  # noqa: BLE001 (whatever damaged files make of it)
            # A job with damaged files must not block the others: it counts as lost.
            _LOG.warning("operation %d: cannot tell how it is doing: %s", watched.operation.operation_id, error)
            return JobReport(JobState.UNKNOWN)

    def _renew(self, watched: Watched) -> None:
        now_s = self._context.runtime.clock.monotonic_s()
        timing = self._context.settings.timing
        if now_s - watched.renewed_s < timing.renew_every_s:
            return
        renewed = self._context.store.renew(watched.operation.lease, lease_s=timing.lease_s)
        watched.renewed_s = now_s
        if renewed.cancel_reason and not watched.is_cancelling:
            self._context.engines.find(watched.engine).cancel(watched.job_id)
            watched.is_cancelling = True

    def _has_completed(self, operation: Operation) -> bool:
        """Whether its plan is completed on the timeline: a job that was asked to stop may just have committed."""
        if not (operation.is_planned and operation.action.has_plan):
            return False
        try:
            table = self._context.store.load_table(operation.table_id)
            was_archived = partial(self._context.was_archived, table)
            return has_completed(operation.instant, self._context.look(table), was_archived)
        except (TablekeeperError, OSError) as error:
            _LOG.warning("operation %d: cannot look at its plan: %s", operation.operation_id, error)
            return False

    def _settle(self, watched: Watched, report: JobReport) -> None:
        store = self._context.store
        outcome = report.outcome or AttemptOutcome.LOST
        message = report.message if report.outcome is not None else "its worker vanished without a word"
        operation = store.load_operation(watched.operation.operation_id)
        if outcome is AttemptOutcome.CANCELLED and self._has_completed(operation):
            outcome, message = AttemptOutcome.COMPLETED, "it had completed when it was asked to stop"
        verdict = judge_attempt(
            operation,
            outcome,
            message,
            max_failures=watched.max_failures,
            timing=self._context.settings.timing,
            jitter=self._context.runtime.ids.jitter(),
            has_fallback=watched.has_fallback,
        )
        seconds = self._context.runtime.clock.monotonic_s() - watched.since_s
        self._context.metrics.attempt_ended(operation.action, outcome, seconds=seconds, result=report.result)
        lease = watched.operation.lease
        held = replace(operation, lease_token=lease.token, instance_id=lease.instance_id)
        settle(self._context, held, verdict, EndedAttempt(watched.number, outcome, message, report.result))
        # The reason for which it failed for good has been told when it was settled.
        reason = f": {message}" if verdict.signal is Signal.RETRY and message else ""
        _LOG.log(
            logging.WARNING if verdict.counts_as_failure else logging.INFO,
            "operation %d: attempt %d %s%s",
            operation.operation_id,
            watched.number,
            outcome.value,
            reason,
            extra=about(operation),
        )
        if verdict.signal is not Signal.RETRY:
            store.add_event(
                transition(Status.RUNNING, verdict.signal).word,
                verdict.note or outcome.value,
                table_id=operation.table_id,
                operation_id=operation.operation_id,
                instance_id=self._context.instance_id,
            )
            # The timeline has changed: something else may be due now.
            store.notice_commit(operation.table_id)
