"""Looks at timelines: after commit events, and now and then at idle tables. What is due becomes operations.

A look costs one read and one listing. A table on which nothing happens is looked at less and less often, up to the
longest pause; one that cannot be read is tried again a few times and then quarantined, with the reason.

A look that hangs, because its storage never answers, blocks only its own thread: the pass continues without it, and it
counts as failed once the hold on the table has expired.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tablekeeper.runtime import Event
from tablekeeper.server.decisions.due import (
    REMEMBERED,
    DueWork,
    first_deadline_s,
    misses_target,
    plan_due,
    seconds_until_due,
    table_facts,
)
from tablekeeper.server.decisions.reconcile import plan_corrections, should_revive
from tablekeeper.server.loops.context import LoopContext, about
from tablekeeper.server.model import ManagedTable, ServiceAction, Status, unplanned_instant
from tablekeeper.server.policy import Policy
from tablekeeper.server.store.fruitless import load_found_nothing
from tablekeeper.server.store.protocol import Submission
from tablekeeper.table.summary import TimelineSummary

__all__ = ["LookLoop"]

_LOG = logging.getLogger(__name__)
_WIDTH = 8
_MOST_SLOW = 32
_LONGEST_DOUBLING = 20


class _Looker:
    """One thread of a pass: the table that it is looking at, since when, and whether the pass has given it up."""

    def __init__(self, done: Event) -> None:
        self.done = done
        self.table: ManagedTable | None = None
        self.since_s = 0.0
        self.is_given_up = False


class LookLoop:
    """Claims tables that are due for a look, and looks."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._slow: list[_Looker] = []

    def run_once(self) -> int:
        """Look at a bounded number of tables that are due; returns how many were claimed."""
        self._give_up_slow_ones()
        if len(self._slow) >= _MOST_SLOW:
            _LOG.warning("%d looks have not come back: waiting for them before others begin", len(self._slow))
            return 0
        limits, timing = self._context.settings.limits, self._context.settings.timing
        tables = self._context.store.claim_looks(limits.looks_per_pass, hold_s=timing.look_hold_s)
        self._look_at_all(tables)
        return len(tables)

    def look_at(self, table: ManagedTable) -> None:
        """One table: reconcile, decide, submit."""
        self._look(table, _Looker(self._context.runtime.threads.event()))

    def _look_at_all(self, tables: Sequence[ManagedTable]) -> None:
        waiting = deque(tables)
        threads = self._context.runtime.threads
        lookers = [_Looker(threads.event()) for _ in range(min(_WIDTH, len(waiting)))]
        for looker in lookers:
            threads.start(lambda looker=looker: self._work_off(waiting, looker), name="tablekeeper-look")  # type: ignore[misc]
        until_s = self._now_s + self._context.settings.timing.look_timeout_s
        for looker in lookers:
            if not looker.done.wait(max(0.0, until_s - self._now_s)):
                self._slow.append(looker)

    def _work_off(self, waiting: deque[ManagedTable], looker: _Looker) -> None:
        try:
            while not looker.is_given_up:
                try:
                    looker.table = waiting.popleft()
                except IndexError:
                    return
                looker.since_s = self._now_s
                self._finish_or_log(looker.table, looker)
        finally:
            looker.table = None
            looker.done.set()

    def _finish_or_log(self, table: ManagedTable, looker: _Looker) -> None:
        try:
            self._look(table, looker)
        except Exception:  # noqa: BLE001 (the database was away: the table is looked at again when its hold is over)
            _LOG.exception("the look at %s was not finished", table.name)

    def _give_up_slow_ones(self) -> None:
        hold_s = self._context.settings.timing.look_hold_s
        self._slow = [each for each in self._slow if not each.done.wait(0)]
        for looker in list(self._slow):
            table = looker.table
            if table is not None and self._now_s - looker.since_s > hold_s:
                looker.is_given_up = True
                self._slow.remove(looker)
                self._note_failure(table, f"its storage did not answer within {hold_s:.0f} s")

    def _look(self, table: ManagedTable, looker: _Looker) -> None:
        try:
            summary = self._context.look(table)
        except Exception as error:  # noqa: BLE001 (whatever a damaged table makes of it; it must not hold up the others)
            if not looker.is_given_up:
                self._note_failure(table, f"{type(error).__name__}: {error}")
            return
        if looker.is_given_up:
            return
        # What the first look finds has to be known to those that follow, and to the work that this one submits.
        first_look_ms = table.facts.first_look_ms or (0 if table.facts.newest_time else self._context.store.now_ms())
        table = replace(table, facts=replace(table.facts, first_look_ms=first_look_ms))
        self._reconcile(table, summary)
        has_work = self._submit_due(table, summary)
        facts = replace(table_facts(summary), first_look_ms=first_look_ms)
        if facts.behind_since_ms is not None and self._found_nothing_to_compact(table, summary):
            facts = replace(facts, commits_behind=0, behind_since_ms=None, read_amplification=1.0)
        is_idle = not has_work and summary.newest_time == table.facts.newest_time
        next_in_s = self._pause_s(table, is_idle=is_idle)
        store = self._context.store
        due_in_s = seconds_until_due(summary, store.effective_policy(table), now_ms=store.now_ms())
        if due_in_s is not None:
            next_in_s = min(next_in_s, max(due_in_s, self._context.settings.timing.look_min_s))
        store.finish_look(table.table_id, facts, next_in_s=next_in_s, is_idle=is_idle)

    def _found_nothing_to_compact(self, table: ManagedTable, summary: TimelineSummary) -> bool:
        """Whether a compaction found no logs on this timeline: delta commits may consist of base files."""
        looked = self._context.store.find_operation(
            table.table_id, unplanned_instant(ServiceAction.COMPACTION, summary.newest_time)
        )
        return looked is not None and looked.status is Status.COMPLETED

    def _reconcile(self, table: ManagedTable, summary: TimelineSummary) -> None:
        store = self._context.store
        was_archived = partial(self._context.was_archived, table)
        for correction in plan_corrections(store.list_active(table.table_id), summary, was_archived):
            if store.settle_waiting(correction.operation_id, correction.signal, note=correction.note):
                told = {"operation_id": correction.operation_id, "table_id": table.table_id}
                _LOG.info("operation %d: %s", correction.operation_id, correction.note, extra=told)

    def _submit_due(self, table: ManagedTable, summary: TimelineSummary) -> bool:
        store = self._context.store
        policy = store.effective_policy(table)
        active = store.list_active(table.table_id)
        unplanned = frozenset(each.action for each in active if not each.is_planned)
        has_work = bool(active)
        if misses_target(summary, policy):
            # The table has missed its target since they were submitted: they are due now.
            first_s = first_deadline_s(policy, now_ms=store.now_ms(), first_look_ms=table.facts.first_look_ms)
            for each in active:
                if each.action.merges_logs and each.status is Status.PENDING:
                    store.hasten(each.operation_id, deadline_in_s=first_s)
        for work in self._due(table, summary, policy, active=unplanned):
            submitted = store.submit(
                Submission(
                    table.table_id,
                    work.instant,
                    work.action,
                    engine=policy.engine or "",
                    delay_s=work.delay_s,
                    deadline_in_s=work.deadline_in_s,
                    why=work.why,
                    note=policy.outside_windows if work.delay_s else "",
                )
            )
            has_work = has_work or submitted.is_new
            if submitted.is_new:
                _LOG.info(
                    "operation %d: %s of %s, %s",
                    submitted.operation.operation_id,
                    work.action.value,
                    table.name,
                    work.why,
                    extra=about(submitted.operation),
                )
            elif should_revive(submitted.operation) and submitted.operation.is_planned:
                store.revive(submitted.operation.operation_id, note="its plan is on the timeline now")
        return has_work

    def _due(
        self, table: ManagedTable, summary: TimelineSummary, policy: Policy, *, active: frozenset[ServiceAction]
    ) -> list[DueWork]:
        store = self._context.store
        now_ms, first_look_ms = store.now_ms(), table.facts.first_look_ms
        due = plan_due(summary, policy, now_ms=now_ms, active=active, first_look_ms=first_look_ms)
        # The database is only queried if it can make a difference, which is rarely the case.
        doubtful = {each.action for each in due} & REMEMBERED
        found_nothing = load_found_nothing(store, table.table_id, doubtful)
        return plan_due(
            summary,
            policy,
            now_ms=now_ms,
            active=active,
            found_nothing=found_nothing,
            first_look_ms=first_look_ms,
        )

    def _note_failure(self, table: ManagedTable, reason: str) -> None:
        store = self._context.store
        _LOG.warning("cannot look at %s: %s", table.name, reason)
        # Look again soon, although nothing happens on the table: the alarm has to come within minutes, not hours.
        store.finish_look(table.table_id, None, next_in_s=self._pause_s(table, is_idle=False), is_idle=False)
        if table.failed_looks + 1 >= self._context.settings.limits.failed_looks:
            store.quarantine_table(table.table_id, f"cannot be looked at: {reason}"[:1000])
            store.add_event("quarantined", reason, table_id=table.table_id, instance_id=self._context.instance_id)

    def _pause_s(self, table: ManagedTable, *, is_idle: bool) -> float:
        timing = self._context.settings.timing
        doublings = min(table.idle_looks + 1, _LONGEST_DOUBLING) if is_idle else 0
        # Spread out, so that tables that were registered together are not always looked at together.
        return min(timing.look_max_s, timing.look_min_s * 2.0**doublings) * (
            0.9 + 0.2 * self._context.runtime.ids.jitter()
        )

    @property
    def _now_s(self) -> float:
        return self._context.runtime.clock.monotonic_s()
