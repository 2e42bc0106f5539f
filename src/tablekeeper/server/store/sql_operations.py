"""The queue in SQL: what is asked for, looked up, cancelled, revived and pruned. Claims are in `sql_claims.py`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    RowMapping,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DataError, IntegrityError

from tablekeeper.server.model import (
    ACTIVE,
    ASKED_BY_WRITER,
    FINISHED,
    Attempt,
    AttemptOutcome,
    ManagedTable,
    Operation,
    Signal,
    Status,
    transition,
)
from tablekeeper.server.store.database import Database, database_utc_now
from tablekeeper.server.store.protocol import (
    KnownPlans,
    NamedPlans,
    OperationFilter,
    Page,
    PastOperation,
    QueueDepth,
    Submission,
    Submitted,
    UnknownRecordError,
)
from tablekeeper.server.store.rows import attempt_of, operation_of, parameters_text, shown_again, table_of
from tablekeeper.server.store.schema import ALARM, ATTEMPT, EVENT, INSTANCE, OPERATION, TBL, TBL_STATE
from tablekeeper.server.store.sql_tables import JOINED, is_of_tables
from tablekeeper.server.store.wanted import EVERY_TABLE, TableFilter

__all__ = ["SqlOperations"]

_SHOWN_ATTEMPTS = 50
_MAX_TEXT = 2000
_FROM_TIMELINE = "the timeline has it as completed"
_ENDED_UNDONE = (Status.CANCELLED, Status.FAILED)
_ASKED = ("engine", "queue", "owner", "parameters", "why", "trace")
"""What a request says of how its plan is to be executed."""


class SqlOperations:
    """The part of the job store that is about operations nobody holds."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(self, submission: Submission) -> Submitted:
        [submitted] = self.submit_all([submission])
        if isinstance(submitted, UnknownRecordError):
            raise submitted
        return submitted

    def submit_all(self, submissions: Sequence[Submission]) -> list[Submitted | UnknownRecordError]:
        try:
            return self._database.write(lambda connection: self._submit_all(connection, submissions))
        except (IntegrityError, DataError):
            # A table was removed meanwhile, or a value is none for this database: the others are not to blame.
            if len(submissions) == 1:
                raise
        return [answer for each in submissions for answer in self.submit_all([each])]

    def find_plans(self, named: Sequence[NamedPlans]) -> list[KnownPlans]:
        names: dict[str, set[str]] = {}
        for each in named:
            names.setdefault(each.db_name, set()).add(each.table_name)
        is_named = or_(*(and_(TBL.c.db_name == db, TBL.c.table_name.in_(sorted(names[db]))) for db in sorted(names)))
        instants = sorted({instant for each in named for instant in each.instants})

        def work(connection: Connection) -> list[KnownPlans]:
            found = list(map(table_of, connection.execute(select(TBL, TBL_STATE).select_from(JOINED).where(is_named))))
            tables = {(each.db_name, each.table_name): each for each in found}
            operations: dict[int, dict[str, Operation]] = {each.table_id: {} for each in found}
            of_these = (OPERATION.c.tbl_id.in_(sorted(operations)), OPERATION.c.instant.in_(instants))
            for operation in map(operation_of, connection.execute(select(OPERATION).where(*of_these))):
                operations[operation.table_id][operation.instant] = operation
            return [_known(each, tables.get((each.db_name, each.table_name)), operations) for each in named]

        return self._database.read(work)

    def record_past(self, table_id: int, past: Sequence[PastOperation]) -> int:
        def work(connection: Connection) -> int:
            known = set(connection.execute(select(OPERATION.c.instant).where(OPERATION.c.tbl_id == table_id)).scalars())
            table = _tables(connection, {table_id}).get(table_id)
            if table is None:
                raise _unknown_table(table_id)
            noted = 0
            for each in past:
                if each.instant in known:
                    continue
                values = _row(table, Submission(table_id, each.instant, each.action, why=_FROM_TIMELINE)) | {
                    "status": Status.COMPLETED,
                    "create_time": _moment(each.requested_ms),
                    "schedule_time": _moment(each.requested_ms),
                    "update_time": _moment(each.completed_ms),
                    "not_before_ms": each.requested_ms,
                    "finished_ms": each.completed_ms,
                    "note": _FROM_TIMELINE,
                }
                noted += self._database.insert_or_none(connection, insert(OPERATION).values(**values)) is not None
            return noted

        return self._database.write(work)

    def remove(self, table_id: int, instants: Sequence[str]) -> list[Operation]:
        def work(connection: Connection) -> list[Operation]:
            removed = []
            for instant in instants:
                known = _find(connection, table_id, instant, lock=True)
                if known is None:
                    continue
                self._cancel(connection, known, "taken back by the client")
                _change(connection, known.operation_id, isDeleted=True)
                removed.append(_load(connection, known.operation_id))
            return removed

        return self._database.write(work)

    def load_operation(self, operation_id: int) -> Operation:
        return self._database.read(lambda connection: _load(connection, operation_id))

    def find_operation(self, table_id: int, instant: str) -> Operation | None:
        return self._database.read(lambda connection: _find(connection, table_id, instant))

    def list_operations(self, wanted: OperationFilter, page: Page) -> list[Operation]:
        conditions = _conditions(wanted)
        if int(page.after):
            conditions.append(OPERATION.c.operation_id < int(page.after))
        query = select(OPERATION).where(*conditions).order_by(OPERATION.c.operation_id.desc()).limit(page.limit)
        return self._database.read(lambda connection: [operation_of(row) for row in connection.execute(query)])

    def list_active(self, table_id: int) -> list[Operation]:
        query = (
            select(OPERATION)
            .where(OPERATION.c.tbl_id == table_id, OPERATION.c.status.in_(ACTIVE))
            .order_by(OPERATION.c.operation_id)
        )
        return self._database.read(lambda connection: [operation_of(row) for row in connection.execute(query)])

    def load_attempts(self, operation_id: int) -> list[Attempt]:
        query = (
            select(ATTEMPT)
            .where(ATTEMPT.c.operation_id == operation_id)
            .order_by(ATTEMPT.c.number.desc())
            .limit(_SHOWN_ATTEMPTS)
        )
        return self._database.read(lambda connection: [attempt_of(row) for row in connection.execute(query)])

    def settle_waiting(self, operation_id: int, signal: Signal, *, note: str) -> bool:
        def work(connection: Connection) -> bool:
            known = _load(connection, operation_id, lock=True)
            if known.status not in (Status.PENDING, Status.QUARANTINED):
                return False
            after = transition(known.status, signal)
            finished = self._database.now if after in FINISHED else None
            changed = connection.execute(
                update(OPERATION)
                .where(OPERATION.c.operation_id == operation_id, OPERATION.c.status == known.status)
                .values(status=after, finished_ms=finished, note=note[:_MAX_TEXT], update_time=database_utc_now())
                .values(**shown_again(after))
            )
            if changed.rowcount:
                self._close_attempts(connection, operation_id, signal, note)
            return bool(changed.rowcount)

        return self._database.write(work)

    def request_cancel(self, operation_id: int, reason: str) -> Operation:
        def work(connection: Connection) -> Operation:
            known = _load(connection, operation_id, lock=True)
            if known.status in FINISHED:
                transition(known.status, Signal.CANCEL)
            self._cancel(connection, known, reason)
            return _load(connection, operation_id)

        return self._database.write(work)

    def revive(self, operation_id: int, *, note: str) -> Operation:
        def work(connection: Connection) -> Operation:
            self._back_to_pending(connection, _load(connection, operation_id, lock=True), note=note)
            return _load(connection, operation_id)

        return self._database.write(work)

    def clear(self, table_id: int) -> int:
        gone = (*FINISHED, Status.PENDING, Status.QUARANTINED)
        cleared = (OPERATION.c.tbl_id == table_id, OPERATION.c.status.in_(gone))

        def work(connection: Connection) -> int:
            # An operation that gets the number of one of these later has nothing to do with what happened to it.
            theirs = EVENT.c.operation_id.in_(select(OPERATION.c.operation_id).where(*cleared))
            connection.execute(delete(EVENT).where(EVENT.c.tbl_id == table_id, theirs))
            return int(connection.execute(delete(OPERATION).where(*cleared)).rowcount)

        return self._database.write(work)

    def prune(self, *, keep_s: float, limit: int) -> int:
        def work(connection: Connection) -> int:
            before = self._database.after(-keep_s)
            gone = 0
            for column, moment in (
                (OPERATION.c.operation_id, OPERATION.c.finished_ms),
                (EVENT.c.event_id, EVENT.c.at_ms),
                (ALARM.c.alarm_id, ALARM.c.resolved_ms),
                (INSTANCE.c.instance_id, INSTANCE.c.seen_ms),
            ):
                old = list(connection.execute(select(column).where(moment < before).limit(limit)).scalars())
                if old:
                    gone += connection.execute(delete(column.table).where(column.in_(old))).rowcount
            return gone + self._prune_attempts(connection, limit)

        return self._database.write(work)

    @staticmethod
    def _prune_attempts(connection: Connection, limit: int) -> int:
        """Of operations that are tried for ever, because somebody else holds their plan, only the newest stay."""
        often = (OPERATION.c.status.in_(ACTIVE), OPERATION.c.run_times > _SHOWN_ATTEMPTS)
        gone = 0
        for row in connection.execute(
            select(OPERATION.c.operation_id, OPERATION.c.run_times).where(*often).limit(limit)
        ):
            older = ATTEMPT.c.number <= row.run_times - _SHOWN_ATTEMPTS
            gone += connection.execute(
                delete(ATTEMPT).where(ATTEMPT.c.operation_id == row.operation_id, older)
            ).rowcount
        return gone

    def queue_depths(self, wanted: TableFilter = EVERY_TABLE) -> list[QueueDepth]:
        query = (
            select(OPERATION.c.queue, OPERATION.c.status, func.count())
            .where(OPERATION.c.status.in_(ACTIVE), *is_of_tables(OPERATION.c.tbl_id, wanted))
            .group_by(OPERATION.c.queue, OPERATION.c.status)
            .order_by(OPERATION.c.queue, OPERATION.c.status)
        )
        return self._database.read(
            lambda connection: [QueueDepth(queue, Status(status), n) for queue, status, n in connection.execute(query)]
        )

    def longest_waiting_tables(self, limit: int) -> list[int]:
        query = (
            select(OPERATION.c.tbl_id)
            .where(OPERATION.c.status.in_(sorted(ACTIVE)))
            .group_by(OPERATION.c.tbl_id)
            .order_by(func.min(OPERATION.c.operation_id))
            .limit(limit)
        )
        return self._database.read(lambda connection: [int(each) for each in connection.execute(query).scalars()])

    def shortest_lease_s(self) -> float | None:
        first = func.min(OPERATION.c.lease_until_ms) - self._database.now
        query = select(first).where(OPERATION.c.status.in_((Status.CLAIMED, Status.RUNNING)))
        left_ms = self._database.read(lambda connection: connection.execute(query).scalar_one())
        return None if left_ms is None else float(left_ms) / 1000

    def _close_attempts(self, connection: Connection, operation_id: int, signal: Signal, note: str) -> None:
        """An attempt whose holder is gone has ended as the timeline says."""
        outcome = AttemptOutcome.COMPLETED if signal is Signal.COMPLETE else AttemptOutcome.LOST
        connection.execute(
            update(ATTEMPT)
            .where(ATTEMPT.c.operation_id == operation_id, ATTEMPT.c.outcome == AttemptOutcome.RUNNING.value)
            .values(outcome=outcome.value, ended_ms=self._database.now, message=note[:_MAX_TEXT])
        )

    def _submit_all(
        self, connection: Connection, submissions: Sequence[Submission]
    ) -> list[Submitted | UnknownRecordError]:
        tables = _tables(connection, {each.table_id for each in submissions})
        # In one order, so that two transactions with the same plans wait for each other once and not in a circle.
        rows = {(each.table_id, each.instant): each for each in reversed(submissions) if each.table_id in tables}
        columns = [_row(tables[key[0]], rows[key]) | _delays(rows[key]) for key in sorted(rows)]
        made = self._database.insert_missing(connection, OPERATION, self._times(), columns) if columns else []
        new = {(each.table_id, each.instant): each for each in map(operation_of, made)}
        answers: list[Submitted | UnknownRecordError] = []
        for each in submissions:
            operation = new.pop((each.table_id, each.instant), None)
            if each.table_id not in tables:
                answers.append(_unknown_table(each.table_id))
            elif operation is not None:
                answers.append(Submitted(operation, is_new=True))
            else:
                answers.append(self._submit_again(connection, each, tables[each.table_id]))
        return answers

    def _submit_again(
        self, connection: Connection, submission: Submission, table: RowMapping
    ) -> Submitted | UnknownRecordError:
        known = _find(connection, submission.table_id, submission.instant)
        if known is None:
            return UnknownRecordError(f"operation {submission.instant} was removed meanwhile; submit it again")
        if not known.is_deleted or known.status not in _ENDED_UNDONE:
            return Submitted(self._taken_over(connection, known, submission, table), is_new=False)
        known = _load(connection, known.operation_id, lock=True)
        if known.status in _ENDED_UNDONE:
            self._back_to_pending(connection, known, note="submitted again after it was removed")
            asked = _row(table, submission)
            _change(connection, known.operation_id, **{name: asked[name] for name in _ASKED})
        return Submitted(_load(connection, known.operation_id), is_new=True)

    def _times(self) -> dict[str, ColumnElement[Any]]:
        """The columns of a new operation that the database's clock tells; see `_delays`."""
        now = self._database.now
        return {
            "create_time": database_utc_now(),
            "update_time": database_utc_now(),
            "not_before_ms": now + bindparam("delay_ms", type_=BigInteger()),
            "deadline_ms": now + bindparam("deadline_in_ms", type_=BigInteger()),
        }

    def _taken_over(
        self, connection: Connection, known: Operation, submission: Submission, table: RowMapping
    ) -> Operation:
        """The first request of a writer for a plan that the service had found by itself says how it is to be run."""
        if submission.why != ASKED_BY_WRITER or known.why == ASKED_BY_WRITER or known.run_times:
            return known
        asked = _row(table, submission)
        connection.execute(
            update(OPERATION)
            .where(
                OPERATION.c.operation_id == known.operation_id,
                OPERATION.c.status == Status.PENDING,
                OPERATION.c.run_times == 0,
                OPERATION.c.why != ASKED_BY_WRITER,
            )
            .values({name: asked[name] for name in _ASKED})
        )
        return _load(connection, known.operation_id)

    def _cancel(self, connection: Connection, operation: Operation, reason: str) -> None:
        """End what nobody holds; leave a request for its holder otherwise. What has ended stays as it is."""
        if operation.status in (Status.COMPLETED, Status.CANCELLED):
            return
        if operation.status in (Status.PENDING, Status.QUARANTINED, Status.FAILED):
            _change(
                connection,
                operation.operation_id,
                status=transition(operation.status, Signal.CANCEL),
                finished_ms=self._database.now,
                cancel_reason=reason[:_MAX_TEXT],
                note=f"cancelled: {reason}"[:_MAX_TEXT],
            )
        else:
            _change(connection, operation.operation_id, cancel_reason=(reason or "asked for")[:_MAX_TEXT])

    def _back_to_pending(self, connection: Connection, operation: Operation, *, note: str) -> None:
        _change(
            connection,
            operation.operation_id,
            status=transition(operation.status, Signal.REVIVE),
            failures=0,
            isDeleted=False,
            cancel_reason="",
            finished_ms=None,
            not_before_ms=self._database.now,
            note=note[:_MAX_TEXT],
        )


def _known(
    named: NamedPlans, table: ManagedTable | None, operations: Mapping[int, Mapping[str, Operation]]
) -> KnownPlans:
    if table is None:
        return KnownPlans(None)
    of_table = operations[table.table_id]
    return KnownPlans(table, {instant: of_table[instant] for instant in named.instants if instant in of_table})


def _tables(connection: Connection, ids: Collection[int]) -> dict[int, RowMapping]:
    """What operations take over from their tables."""
    query = select(TBL.c.id, TBL.c.owner, TBL.c.queue, TBL.c.priority).where(TBL.c.id.in_(sorted(ids)))
    return {row["id"]: row for row in connection.execute(query).mappings()}


def _row(table: RowMapping, submission: Submission) -> dict[str, Any]:
    """A new operation on this table, but for its times."""
    return {
        "tbl_id": submission.table_id,
        "instant": submission.instant,
        "action": submission.action.value,
        "status": Status.PENDING,
        "engine": submission.engine,
        "retry_on_error": submission.retry_on_error,
        "run_times": 0,
        "isDeleted": False,
        "failures": 0,
        "priority": int(table["priority"]) if submission.priority is None else submission.priority,
        "queue": submission.queue or table["queue"],
        "owner": submission.owner or table["owner"],
        "parameters": parameters_text(submission.parameters),
        "lease_token": 0,
        "instance_id": "",
        "cancel_reason": "",
        "why": submission.why[:_MAX_TEXT],
        "note": submission.note[:_MAX_TEXT],
        "trace": submission.trace or None,
    }


def _delays(submission: Submission) -> dict[str, int | None]:
    in_s = submission.deadline_in_s
    return {
        "delay_ms": round(submission.delay_s * 1000),
        "deadline_in_ms": None if in_s is None else round(in_s * 1000),
    }


def _unknown_table(table_id: int) -> UnknownRecordError:
    return UnknownRecordError(f"there is no table with the number {table_id}")


def _moment(ms: int) -> dt.datetime:
    """As the columns of the RFC keep it: UTC, without a zone."""
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).replace(tzinfo=None)


def _load(connection: Connection, operation_id: int, *, lock: bool = False) -> Operation:
    query = select(OPERATION).where(OPERATION.c.operation_id == operation_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise UnknownRecordError(f"there is no operation with the number {operation_id}")
    return operation_of(row)


def _find(connection: Connection, table_id: int, instant: str, *, lock: bool = False) -> Operation | None:
    query = select(OPERATION).where(OPERATION.c.tbl_id == table_id, OPERATION.c.instant == instant)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else operation_of(row)


def _change(connection: Connection, operation_id: int, **changes: Any) -> None:
    connection.execute(
        update(OPERATION)
        .where(OPERATION.c.operation_id == operation_id)
        .values(update_time=database_utc_now(), **changes)
    )


def _conditions(wanted: OperationFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    for column, value in (
        (OPERATION.c.tbl_id, wanted.table_id),
        (OPERATION.c.queue, wanted.queue),
        (OPERATION.c.owner, wanted.owner),
    ):
        if value is not None:
            conditions.append(column == value)
    if wanted.statuses is not None:
        conditions.append(OPERATION.c.status.in_(wanted.statuses))
    if wanted.actions is not None:
        conditions.append(OPERATION.c.action.in_([action.value for action in wanted.actions]))
    if not wanted.with_deleted:
        conditions.append(OPERATION.c.isDeleted.is_(False))
    conditions += is_of_tables(OPERATION.c.tbl_id, wanted.tables)
    return conditions
