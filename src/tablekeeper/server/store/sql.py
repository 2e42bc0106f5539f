"""`SqlJobStore`: the job store on SQLite, PostgreSQL or MariaDB, put together from its parts."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import ColumnElement

from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.server.store.database import Database, connect, database_now_ms
from tablekeeper.server.store.migrate import migrate
from tablekeeper.server.store.sql_alarms import SqlAlarms, SqlInstances, SqlTokens
from tablekeeper.server.store.sql_claims import SqlClaims
from tablekeeper.server.store.sql_events import SqlEvents
from tablekeeper.server.store.sql_hastening import SqlHastening
from tablekeeper.server.store.sql_operations import SqlOperations
from tablekeeper.server.store.sql_overview import SqlOverview
from tablekeeper.server.store.sql_tables import SqlTables

__all__ = ["SqlJobStore", "open_store"]


class SqlJobStore(
    SqlTables,
    SqlOperations,
    SqlHastening,
    SqlClaims,
    SqlEvents,
    SqlAlarms,
    SqlTokens,
    SqlInstances,
    SqlOverview,
):
    """See `protocol.JobStore`."""

    def migrate(self) -> None:
        migrate(self._database.engine)

    def close(self) -> None:
        self._database.close()


def open_store(
    url: str,
    *,
    runtime: Runtime = SYSTEM_RUNTIME,
    now_ms: Callable[[], ColumnElement[int]] = database_now_ms,
) -> SqlJobStore:
    """The store at a SQLAlchemy URL; nothing is created before `migrate`. A test may hand in the clock."""
    return SqlJobStore(Database(connect(url), runtime=runtime, now_ms=now_ms))
