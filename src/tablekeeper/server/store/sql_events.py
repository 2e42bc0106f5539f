"""What happened to operations and tables, in SQL."""

from __future__ import annotations

from sqlalchemy import insert, select

from tablekeeper.server.model import Event
from tablekeeper.server.store.database import Database
from tablekeeper.server.store.protocol import Page
from tablekeeper.server.store.rows import event_of
from tablekeeper.server.store.schema import EVENT
from tablekeeper.server.store.sql_tables import is_of_tables
from tablekeeper.server.store.wanted import EVERY_TABLE, TableFilter

__all__ = ["SqlEvents"]

_MAX_TEXT = 2000


class SqlEvents:
    """The part of the job store that is about events. They are pruned with the operations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_event(
        self,
        kind: str,
        text: str,
        *,
        table_id: int | None = None,
        operation_id: int | None = None,
        instance_id: str = "",
    ) -> None:
        statement = insert(EVENT).values(
            at_ms=self._database.now,
            kind=kind,
            text=text[:_MAX_TEXT],
            tbl_id=table_id,
            operation_id=operation_id,
            instance_id=instance_id,
        )
        self._database.write(lambda connection: connection.execute(statement))

    def list_events(
        self,
        page: Page,
        *,
        table_id: int | None = None,
        operation_id: int | None = None,
        tables: TableFilter = EVERY_TABLE,
    ) -> list[Event]:
        about = is_of_tables(EVENT.c.tbl_id, tables)
        query = select(EVENT).where(*about).order_by(EVENT.c.event_id.desc()).limit(page.limit)
        if table_id is not None:
            query = query.where(EVENT.c.tbl_id == table_id)
        if operation_id is not None:
            query = query.where(EVENT.c.operation_id == operation_id)
        if int(page.after):
            query = query.where(EVENT.c.event_id < int(page.after))
        return self._database.read(lambda connection: [event_of(row) for row in connection.execute(query)])
