"""Claims, leases and attempts in SQL.

Every update by a holder names its token and that the lease has not lapsed, in the statement itself: a holder that
slept cannot change anything once its lease is over, whether or not somebody else has the operation by then.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from tablekeeper.server.model import (
    FINISHED,
    Attempt,
    AttemptOutcome,
    Lease,
    Operation,
    ServiceAction,
    Signal,
    Status,
    transition,
)
from tablekeeper.server.store.database import Database, database_utc_now
from tablekeeper.server.store.protocol import (
    EndedAttempt,
    LeaseLostError,
    Load,
    NewAlarm,
    Queued,
    RunningLoad,
    UnknownRecordError,
)
from tablekeeper.server.store.rows import attempt_of, json_text, operation_of, shown_again
from tablekeeper.server.store.schema import ATTEMPT, OPERATION, TURN
from tablekeeper.server.store.sql_alarms import open_alarm_in
from tablekeeper.server.store.sql_waiting import select_window

__all__ = ["SqlClaims"]

_HELD = (Status.CLAIMED, Status.RUNNING)
_MAX_TEXT = 2000
_MAX_RESULT = 100_000


class SqlClaims:
    """The part of the job store that is about operations somebody holds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _window(self) -> Select[Any]:
        # Making it takes as long as running it.
        return select_window(self._database.now)

    def load_work(self, limit: int) -> Load:
        def work(connection: Connection) -> Load:
            running = self._load_running(connection)
            rows = connection.execute(self._window, {"limit": limit})
            return Load(tuple(map(_queued, rows)), running)

        return self._database.read(work)

    def claim(
        self, operation_id: int, *, instance_id: str, lease_s: float, queue_limit: int = 0, owner_limit: int = 0
    ) -> Operation | None:
        def work(connection: Connection) -> Operation | None:
            query = select(OPERATION).where(
                OPERATION.c.operation_id == operation_id,
                OPERATION.c.status == Status.PENDING,
                OPERATION.c.not_before_ms <= self._database.now,
            )
            row = connection.execute(query.with_for_update(skip_locked=True)).one_or_none()
            if row is None or not self._has_room(connection, row, queue_limit, owner_limit):
                return None
            changed = connection.execute(
                update(OPERATION)
                .where(OPERATION.c.operation_id == operation_id, OPERATION.c.status == Status.PENDING)
                .values(
                    status=transition(Status.PENDING, Signal.CLAIM),
                    lease_token=OPERATION.c.lease_token + 1,
                    lease_until_ms=self._database.after(lease_s),
                    instance_id=instance_id,
                    running_key=f"{row.tbl_id}:{row.action}",
                    schedule_time=database_utc_now(),
                    update_time=database_utc_now(),
                )
            )
            return _load(connection, operation_id) if changed.rowcount else None

        try:
            return self._database.write(work)
        except IntegrityError:
            # The table has a running operation of this action.
            return None

    def start_attempt(self, lease: Lease, *, engine: str, log_path: str, why: str = "") -> Attempt:
        def work(connection: Connection) -> Attempt:
            held = self._held(connection, lease)
            lost = connection.execute(
                update(ATTEMPT)
                .where(
                    ATTEMPT.c.operation_id == lease.operation_id,
                    ATTEMPT.c.outcome == AttemptOutcome.RUNNING.value,
                )
                .values(
                    outcome=AttemptOutcome.LOST.value,
                    ended_ms=self._database.now,
                    message="the worker vanished, or its instance did",
                )
            ).rowcount
            number = held.run_times + 1
            self._update(
                connection,
                lease,
                status=transition(held.status, Signal.START),
                run_times=number,
                failures=held.failures + lost,
                engine=engine,
            )
            connection.execute(
                insert(ATTEMPT).values(
                    operation_id=lease.operation_id,
                    number=number,
                    engine=engine,
                    instance_id=lease.instance_id,
                    outcome=AttemptOutcome.RUNNING.value,
                    job_id="",
                    started_ms=self._database.now,
                    message="",
                    result="{}",
                    log_path=log_path,
                    why=why[:_MAX_TEXT],
                )
            )
            return _load_attempt(connection, lease.operation_id, number)

        return self._database.write(work)

    def resume_attempt(self, lease: Lease, number: int) -> Attempt:
        def work(connection: Connection) -> Attempt:
            held = self._held(connection, lease)
            self._update(connection, lease, status=transition(held.status, Signal.START))
            self._update_attempt(connection, lease, number, instance_id=lease.instance_id)
            return _load_attempt(connection, lease.operation_id, number)

        return self._database.write(work)

    def record_job(self, lease: Lease, number: int, job_id: str) -> None:
        def work(connection: Connection) -> None:
            self._held(connection, lease)
            self._update_attempt(connection, lease, number, job_id=job_id)

        self._database.write(work)

    def record_plan(self, lease: Lease, instant: str) -> None:
        def work(connection: Connection) -> None:
            held = self._held(connection, lease)
            same = (OPERATION.c.tbl_id == held.table_id, OPERATION.c.instant == instant)
            connection.execute(delete(OPERATION).where(*same, OPERATION.c.status == Status.PENDING))
            taken = connection.execute(select(OPERATION.c.operation_id).where(*same)).scalar_one_or_none()
            if taken is None:
                self._update(connection, lease, instant=instant)

        self._database.write(work)

    def renew(self, lease: Lease, *, lease_s: float) -> Operation:
        def work(connection: Connection) -> Operation:
            self._update(connection, lease, lease_until_ms=self._database.after(lease_s))
            return _load(connection, lease.operation_id)

        return self._database.write(work)

    def settle(
        self,
        lease: Lease,
        signal: Signal,
        *,
        note: str,
        delay_s: float = 0.0,
        counts_as_failure: bool = False,
        ended: EndedAttempt | None = None,
        alarm: NewAlarm | None = None,
    ) -> Operation:
        def work(connection: Connection) -> Operation:
            held = self._held(connection, lease)
            after = transition(held.status, signal)
            self._update(
                connection,
                lease,
                status=after,
                finished_ms=self._database.now if after in FINISHED else None,
                not_before_ms=self._database.after(delay_s),
                lease_until_ms=None,
                running_key=None,
                failures=held.failures + counts_as_failure,
                note=note[:_MAX_TEXT],
                **shown_again(after),
            )
            if ended is not None:
                self._close_attempt(connection, lease, ended)
            if alarm is not None:
                open_alarm_in(self._database, connection, alarm)
            return _load(connection, lease.operation_id)

        return self._database.write(work)

    def expire_leases(self, limit: int) -> list[Operation]:
        lapsed = (
            select(OPERATION)
            .where(OPERATION.c.status.in_(_HELD), OPERATION.c.lease_until_ms <= self._database.now)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> list[Operation]:
            expired = [operation_of(row) for row in connection.execute(lapsed)]
            for operation in expired:
                connection.execute(
                    update(OPERATION)
                    .where(OPERATION.c.operation_id == operation.operation_id)
                    .values(
                        status=transition(operation.status, Signal.RETRY),
                        lease_until_ms=None,
                        running_key=None,
                        not_before_ms=self._database.now,
                        note=f"the lease of instance {operation.instance_id} lapsed",
                        update_time=database_utc_now(),
                    )
                )
            return expired

        return self._database.write(work)

    def _close_attempt(self, connection: Connection, lease: Lease, ended: EndedAttempt) -> None:
        text = json_text(dict(ended.result))
        self._update_attempt(
            connection,
            lease,
            ended.number,
            outcome=ended.outcome.value,
            ended_ms=self._database.now,
            message=ended.message[:_MAX_TEXT],
            result=text if len(text) <= _MAX_RESULT else "{}",
        )

    @staticmethod
    def _load_running(connection: Connection) -> RunningLoad:
        query = select(OPERATION.c.queue, OPERATION.c.owner, OPERATION.c.tbl_id, OPERATION.c.action).where(
            OPERATION.c.status.in_(_HELD)
        )
        shares: Counter[tuple[str, str]] = Counter()
        busy = set()
        for queue, owner, table_id, action in connection.execute(query):
            shares[queue, owner] += 1
            busy.add((table_id, ServiceAction(action)))
        by_queue: Counter[str] = Counter()
        by_owner: Counter[str] = Counter()
        for (queue, owner), count in shares.items():
            by_queue[queue] += count
            by_owner[owner] += count
        return RunningLoad(by_queue, by_owner, shares, frozenset(busy))

    @staticmethod
    def _has_room(connection: Connection, row: Any, queue_limit: int, owner_limit: int) -> bool:
        """Whether the limits allow one more. Claims with limits count one after the other, over all instances."""
        limits = [
            (OPERATION.c.queue == row.queue, queue_limit),
            (OPERATION.c.owner == row.owner, owner_limit),
        ]
        if any(limit for _, limit in limits):
            connection.execute(select(TURN.c.name).with_for_update()).all()
        for share, limit in limits:
            held = select(func.count()).select_from(OPERATION).where(OPERATION.c.status.in_(_HELD), share)
            if limit and connection.execute(held).scalar_one() >= limit:
                return False
        return True

    def _held(self, connection: Connection, lease: Lease) -> Operation:
        """The operation, locked, if this lease is the newest and in force."""
        query = select(OPERATION).where(*self._in_force(lease)).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            raise _lost(lease)
        return operation_of(row)

    def _in_force(self, lease: Lease) -> tuple[Any, ...]:
        return (
            OPERATION.c.operation_id == lease.operation_id,
            OPERATION.c.lease_token == lease.token,
            OPERATION.c.instance_id == lease.instance_id,
            OPERATION.c.status.in_(_HELD),
            OPERATION.c.lease_until_ms > self._database.now,
        )

    def _update(self, connection: Connection, lease: Lease, **changes: Any) -> None:
        statement = (
            update(OPERATION)
            .where(*self._in_force(lease))
            # Always another value, so that MariaDB counts the row as changed.
            .values(update_time=database_utc_now(), **changes)
        )
        if not connection.execute(statement).rowcount:
            raise _lost(lease)

    @staticmethod
    def _update_attempt(connection: Connection, lease: Lease, number: int, **changes: Any) -> None:
        connection.execute(
            update(ATTEMPT)
            .where(ATTEMPT.c.operation_id == lease.operation_id, ATTEMPT.c.number == number)
            .values(**changes)
        )


def _lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(
        f"instance {lease.instance_id} lost its lease {lease.token} of operation {lease.operation_id} and leaves it"
    )


def _load(connection: Connection, operation_id: int) -> Operation:
    return operation_of(connection.execute(select(OPERATION).where(OPERATION.c.operation_id == operation_id)).one())


def _load_attempt(connection: Connection, operation_id: int, number: int) -> Attempt:
    query = select(ATTEMPT).where(ATTEMPT.c.operation_id == operation_id, ATTEMPT.c.number == number)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise UnknownRecordError(f"operation {operation_id} has no attempt {number}")
    return attempt_of(row)


def _queued(row: Any) -> Queued:
    return Queued(
        operation_id=row.operation_id,
        table_id=row.tbl_id,
        action=ServiceAction(row.action),
        queue=row.queue,
        owner=row.owner,
        priority=row.priority,
        deadline_in_s=None if row.deadline_in_ms is None else row.deadline_in_ms / 1000,
        waited_s=max(0.0, row.waited_ms / 1000),
    )
