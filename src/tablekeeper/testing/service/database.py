"""The database of a simulated service: SQLite in memory, where each transaction is a step, on the simulated clock.

The production store runs on it, with its own statements. SQLite lets one transaction write at a time, so that nothing
could come between the statements of one; what other databases allow there is not played (`tests/contract` asks real
ones). The clock of the database is the simulated one: the functions by which SQLite tells the time are ours.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from tablekeeper.runtime import Runtime
from tablekeeper.server.store.database import Database, connect
from tablekeeper.server.store.migrate import migrate
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.testing.loop import Call, Loop
from tablekeeper.testing.process import START_MS, Process
from tablekeeper.testing.store import Witness, take_step

__all__ = ["ServiceDatabase"]

T = TypeVar("T")

_EPOCH_AS_JULIAN_DAY = 2440587.5
_WRITES = "tablekeeper_writes"


class ServiceDatabase:
    """The one database of a run, empty but for its tables. `saw_change` is called after each transaction that writes.

    `rows` asks beside all transactions, for a judge.
    """

    def __init__(self, loop: Loop) -> None:
        self._engine, self._connection, empty = _prepared()
        self._connection.deserialize(empty)
        self._loop = loop
        self._connection.create_function("julianday", 1, lambda _: self._now_ms / 86_400_000 + _EPOCH_AS_JULIAN_DAY)
        self._connection.create_function("strftime", 2, lambda _, __: self._now_text)
        self.saw_change: Callable[[Process, str], None] = lambda process, what: None

    def store_of(self, process: Process, witness: Witness) -> SqlJobStore:
        """The job store as one process has it."""
        return SqlJobStore(_SteppingDatabase(self._engine, process, witness, self))

    def plain_store(self, runtime: Runtime) -> SqlJobStore:
        """The job store of a judge, who takes no turns."""
        return SqlJobStore(_KeptDatabase(self._engine, runtime=runtime))

    def rows(self, statement: str) -> list[dict[str, Any]]:
        cursor = self._connection.execute(statement)
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    @property
    def _now_ms(self) -> int:
        return START_MS + int(self._loop.now_s * 1000)

    @property
    def _now_text(self) -> str:
        # In milliseconds, as SQLite tells it.
        return dt.datetime.fromtimestamp(self._now_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


class _KeptDatabase(Database):
    """The tables outlive whoever closes the database."""

    def close(self) -> None:
        return None


class _SteppingDatabase(_KeptDatabase):
    def __init__(self, engine: Engine, process: Process, witness: Witness, shared: ServiceDatabase) -> None:
        super().__init__(engine, runtime=process.runtime)
        self._process = process
        self._witness = witness
        self._shared = shared

    def _run(self, work: Callable[[Connection], T], options: Mapping[str, Any]) -> T:
        is_change = _WRITES in options
        what = _name_of(work)
        about_to = Call("write" if is_change else "read", f"database/{what}", is_change)

        def transact() -> T:
            result = super(_SteppingDatabase, self)._run(work, dict(options))
            if is_change:
                self._shared.saw_change(self._process, what)
            return result

        return take_step(self._process, self._witness, about_to, transact, failure=_connection_error)


def _name_of(work: Callable[[Connection], object]) -> str:
    """The method of the store that this is the work of."""
    return work.__qualname__.partition(".<locals>")[0].rpartition(".")[2].strip("_")


def _connection_error(path: str, what: str) -> OperationalError:
    return OperationalError(path, {}, sqlite3.OperationalError(what))


@cache
def _prepared() -> tuple[Engine, sqlite3.Connection, bytes]:
    """An engine on a database in memory, its only connection, and what an empty database with all tables is.

    Once in a process: statements are compiled once, and migrating takes longer than a history.
    """
    engine = connect("sqlite://")
    migrate(engine)
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
    if not isinstance(raw, sqlite3.Connection):
        raise TypeError(f"{type(raw)} is no connection of SQLite")
    return engine, raw, raw.serialize()
