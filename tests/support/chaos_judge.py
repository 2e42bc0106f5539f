"""The judgement on a chaos run: what the database, the timelines and the rows say once everything is quiet.

- every operation has ended: completed, cancelled because its plan had left the timeline, or failed or quarantined with
  an alarm;
- every plan that was scheduled is known to the service, and completed unless its operation failed with an alarm;
- no operation completed in two attempts; every instant has one completed file; no two services that rewrote the same
  file group were at it at the same time;
- no lease, no running key and no open attempt is left;
- every table holds the rows of its model, and no base file was written twice by one instant.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, func, or_, select

from tablekeeper.model import RequestedTime, State
from tablekeeper.server.decisions.reconcile import has_completed
from tablekeeper.server.model import AttemptOutcome, Status
from tablekeeper.server.store.schema import ALARM, ATTEMPT, OPERATION, TBL
from tablekeeper.timeline import load_instant_files
from tablekeeper.timeline.history import load_history
from tests.support.chaos_lake import ChaosTable
from tests.support.stress_plans import SERVICE_OPERATIONS, load_past

__all__ = ["count_statuses", "find_faults"]

_UNFINISHED = (Status.PENDING, Status.CLAIMED, Status.RUNNING)
_FAILED = (Status.FAILED, Status.QUARANTINED)
_DONE = (AttemptOutcome.COMPLETED.value,)


def count_statuses(connection: Connection) -> dict[str, int]:
    """Operations by status."""
    query = select(OPERATION.c.status, func.count()).group_by(OPERATION.c.status)
    return {Status(status).word: count for status, count in connection.execute(query)}


def find_faults(connection: Connection, lake: Sequence[ChaosTable]) -> list[str]:
    """Everything that is wrong; nothing, one hopes."""
    faults = [*_operations(connection), *_attempts(connection)]
    for table in lake:
        faults += [f"{table.name}: {fault}" for fault in (*_plans(connection, table), *_timeline(table), *_rows(table))]
    return faults


def _operations(connection: Connection) -> Iterable[str]:
    held = or_(OPERATION.c.lease_until_ms.is_not(None), OPERATION.c.running_key.is_not(None))
    for row in connection.execute(select(OPERATION).where(or_(OPERATION.c.status.in_(_UNFINISHED), held))):
        status = Status(row.status).word
        yield f"operation {row.operation_id} is {status}, lease {row.lease_until_ms}, key {row.running_key}: {row.note}"
    told = select(ALARM.c.operation_id).where(ALARM.c.operation_id.is_not(None))
    silent = select(OPERATION).where(OPERATION.c.status.in_(_FAILED), OPERATION.c.operation_id.not_in(told))
    for row in connection.execute(silent):
        yield f"operation {row.operation_id} is {Status(row.status).word} and no alarm says so: {row.note}"


def _attempts(connection: Connection) -> Iterable[str]:
    still = select(ATTEMPT).where(ATTEMPT.c.outcome == AttemptOutcome.RUNNING.value)
    for row in connection.execute(still):
        yield f"attempt {row.number} of operation {row.operation_id} has no end"
    twice = (
        select(ATTEMPT.c.operation_id, func.count())
        .where(ATTEMPT.c.outcome.in_(_DONE))
        .group_by(ATTEMPT.c.operation_id)
        .having(func.count() > 1)
    )
    for operation_id, count in connection.execute(twice):
        yield f"operation {operation_id} completed in {count} attempts"


def _plans(connection: Connection, table: ChaosTable) -> Iterable[str]:
    query = (
        select(OPERATION.c.instant, OPERATION.c.status, OPERATION.c.note)
        .join(TBL, TBL.c.id == OPERATION.c.tbl_id)
        .where(TBL.c.table_name == table.name)
    )
    known = {instant: (Status(status), note) for instant, status, note in connection.execute(query)}
    summary = table.table.timeline_summary()

    def was_archived(instant: str) -> bool:
        at = RequestedTime(instant)
        return bool(load_history(table.table._storage, table.table.config, first=at, last=at, with_contents=False))

    for plan in table.plans:
        status, note = known.get(plan, (None, ""))
        if status is None:
            yield f"plan {plan} never became an operation"
        elif (is_done := has_completed(plan, summary, was_archived)) and status is not Status.COMPLETED:
            yield f"plan {plan} is completed on the timeline and {status.word} in the service: {note}"
        elif not is_done and status is Status.COMPLETED:
            yield f"plan {plan} is completed in the service and not on the timeline"


def _timeline(table: ChaosTable) -> Iterable[str]:
    opened = table.table
    files = load_instant_files(opened._storage, opened.config)
    ends = Counter(each.requested_at.value for each in files if each.state is State.COMPLETED)
    yield from (f"{instant} has {count} completed files" for instant, count in ends.items() if count > 1)
    rewrites: dict[Any, list[tuple[str, str]]] = {}
    for instant, metadata in load_past(opened).commits:
        bases = Counter(stat.path for stat in metadata.stats if not stat.is_log)
        yield from (f"{instant} names {path} {count} times" for path, count in bases.items() if count > 1)
        if metadata.operation in SERVICE_OPERATIONS and instant.completed_at is not None:
            for group in metadata.replaced_groups or metadata.file_groups:
                rewrites.setdefault(group, []).append((instant.requested_at.value, instant.completed_at.value))
    for group, spans in rewrites.items():
        spans.sort()
        for (_, ended), (begun, _) in itertools.pairwise(spans):
            if begun < ended:
                yield f"file group {group} was rewritten by two services at once: {spans}"


def _rows(table: ChaosTable) -> Iterable[str]:
    found = table.load_rows()
    if found != table.rows:
        wrong = {key for key in {*found, *table.rows} if found.get(key) != table.rows.get(key)}
        key = min(wrong)
        yield f"{len(wrong)} rows differ, such as {key}: {found.get(key)} instead of {table.rows.get(key)}"
