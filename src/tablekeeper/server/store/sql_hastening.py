"""What changes when an operation that waits may start: a deadline, somebody who asks, what its table is told."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, or_, update

from tablekeeper.server.model import ManagedTable, Status
from tablekeeper.server.store.database import Database, database_utc_now
from tablekeeper.server.store.protocol import NewTable
from tablekeeper.server.store.schema import OPERATION

__all__ = ["SqlHastening", "follow_table", "try_before_windows"]

_MAX_TEXT = 2000


class SqlHastening:
    """The part of the job store that shortens the waiting of operations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hasten(self, operation_id: int, *, deadline_in_s: float) -> None:
        deadline = self._database.after(deadline_in_s)
        is_later = or_(OPERATION.c.deadline_ms.is_(None), OPERATION.c.deadline_ms > deadline)
        waits = (OPERATION.c.operation_id == operation_id, OPERATION.c.status == Status.PENDING)
        statement = update(OPERATION).where(*waits, is_later).values(deadline_ms=deadline)
        self._database.write(lambda connection: connection.execute(statement))

    def ask_for(self, operation_id: int, *, instant: str, why: str) -> bool:
        waits = (OPERATION.c.operation_id == operation_id, OPERATION.c.status == Status.PENDING)
        values = {"instant": instant, "why": why[:_MAX_TEXT], "not_before_ms": self._database.now, "note": ""}
        statement = update(OPERATION).where(*waits).values(update_time=database_utc_now(), **values)
        return bool(self._database.write(lambda connection: connection.execute(statement).rowcount))


def try_before_windows(connection: Connection, now: ColumnElement[int], of_tables: ColumnElement[bool]) -> None:
    """Let what waits for a window of the day be claimed at once: with another policy there may be none to wait for.

    If there still is, the claim is given back until it opens. What waits after a failure goes on waiting.
    """
    connection.execute(
        update(OPERATION)
        .where(
            of_tables,
            OPERATION.c.status == Status.PENDING,
            OPERATION.c.failures == 0,
            OPERATION.c.not_before_ms > now,
        )
        .values(not_before_ms=now)
    )


def follow_table(connection: Connection, known: ManagedTable, new: NewTable) -> None:
    """What waits takes the new priority, queue and owner of its table, but for those that its request named."""
    waits = (OPERATION.c.tbl_id == known.table_id, OPERATION.c.status == Status.PENDING)
    for column, before, after in (
        (OPERATION.c.priority, known.priority, new.priority),
        (OPERATION.c.queue, known.queue, new.queue),
        (OPERATION.c.owner, known.owner, new.owner),
    ):
        if before != after:
            connection.execute(update(OPERATION).where(*waits, column == before).values({column: after}))
