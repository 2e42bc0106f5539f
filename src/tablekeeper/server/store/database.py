"""`Database`: connections, transactions and the database's clock, the same on SQLite, PostgreSQL and MariaDB.

A transaction that writes takes SQLite's write lock at once (`BEGIN IMMEDIATE`), so that it never fails half-way for
want of it. Isolation is READ COMMITTED on the others. A deadlock, or a connection that broke before the commit, is
tried again; a commit whose outcome is unknown is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Engine,
    Row,
    Table,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import Runtime

__all__ = ["DATABASE_AWAY", "Database", "connect", "database_now_ms", "database_utc_now"]

DATABASE_AWAY = (OperationalError, InterfaceError, NoConnectionError)
"""What a call raises while the database cannot be reached, restarts, or has no connection left."""

T = TypeVar("T")

_TRIES = 5
_PAUSE_S = 0.05
# MySQL has no such setting.
_IDLE_LIMITS = {
    "postgresql": "SET idle_in_transaction_session_timeout = 30000",
    "mariadb": "SET SESSION idle_transaction_timeout = 30",
    "mysql": "SET SESSION idle_transaction_timeout = 30",
}
_WRITES = "tablekeeper_writes"
# Where every statement sees the newest state anyway, a transaction around those that read costs two more of them.
_READS: Mapping[str, dict[str, Any]] = {"postgresql": {"isolation_level": "AUTOCOMMIT"}}
# MariaDB and MySQL have no such statement that keeps other errors apart.
_UPSERTS: Mapping[str, Callable[[Table], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
# Deadlock and lock wait of MariaDB, deadlock and serialization failure of PostgreSQL.
_TRANSIENT_NUMBERS = frozenset({1205, 1213})
_TRANSIENT_STATES = frozenset({"40001", "40P01"})


class database_now_ms(FunctionElement[int]):  # noqa: N801 (a SQL function, spelled as one)
    """The database's clock in epoch milliseconds, as of now and not of the transaction's start."""

    type = BigInteger()
    inherit_cache = True


class database_utc_now(FunctionElement[Any]):  # noqa: N801 (a SQL function, spelled as one)
    """The same as a timestamp in UTC."""

    type = DateTime()
    inherit_cache = True


@compiles(database_now_ms, "sqlite")
def _now_ms_sqlite(*_: Any, **__: Any) -> str:
    return "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(database_now_ms, "postgresql")
def _now_ms_postgresql(*_: Any, **__: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(database_now_ms, "mysql")
@compiles(database_now_ms, "mariadb")
def _now_ms_mysql(*_: Any, **__: Any) -> str:
    return "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)"


@compiles(database_utc_now, "sqlite")
def _utc_now_sqlite(*_: Any, **__: Any) -> str:
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')"


@compiles(database_utc_now, "postgresql")
def _utc_now_postgresql(*_: Any, **__: Any) -> str:
    return "(clock_timestamp() AT TIME ZONE 'UTC')"


@compiles(database_utc_now, "mysql")
@compiles(database_utc_now, "mariadb")
def _utc_now_mysql(*_: Any, **__: Any) -> str:
    return "UTC_TIMESTAMP(6)"


class Database:
    """An engine with the manners above. `now_ms` is the clock; a test may hand in its own."""

    def __init__(
        self, engine: Engine, *, runtime: Runtime, now_ms: Callable[[], ColumnElement[int]] = database_now_ms
    ) -> None:
        self.engine = engine
        self._runtime = runtime
        self._now_ms = now_ms

    @property
    def now(self) -> ColumnElement[int]:
        """The time as a SQL expression."""
        return self._now_ms()

    def after(self, seconds: float) -> ColumnElement[int]:
        """So many seconds from now, as a SQL expression."""
        return self.now + round(seconds * 1000)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run queries. On SQLite they see one state of the database, elsewhere each sees the newest."""
        return self._run(work, _READS.get(self.engine.dialect.name, {}))

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run changes in one transaction: all of them or none. `work` may run more than once."""
        return self._run(work, {_WRITES: True})

    def insert_or_none(
        self, connection: Connection, statement: Any, parameters: Mapping[str, Any] | None = None
    ) -> int | None:
        """Insert a row; None if a unique key is taken. The transaction goes on in both cases."""
        try:
            with connection.begin_nested():
                result = connection.execute(statement, parameters)
        except IntegrityError:
            return None
        key = result.inserted_primary_key
        return int(key[0]) if key is not None and isinstance(key[0], int) else 0

    def insert_missing(
        self, connection: Connection, table: Table, computed: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
    ) -> list[Row[Any]]:
        """Insert those whose unique keys are free, and return them as they are now.

        `computed` are columns of all of them that are SQL expressions; rows hold the parameters of these, too.
        Those returned come in any order.
        """
        upserts = _UPSERTS.get(self.engine.dialect.name)
        if upserts is not None:
            statement = upserts(table).values(**computed).on_conflict_do_nothing().returning(*table.c)
            return list(connection.execute(statement, list(rows)))
        made = [self.insert_or_none(connection, insert(table).values(**computed), row) for row in rows]
        [key] = table.primary_key.columns
        return list(connection.execute(select(table).where(key.in_([each for each in made if each is not None]))))

    def load_now_ms(self) -> int:
        return int(self.read(lambda connection: connection.execute(select(self.now)).scalar_one()))

    def close(self) -> None:
        self.engine.dispose()

    def _run(self, work: Callable[[Connection], T], options: dict[str, Any]) -> T:
        for tries in range(1, _TRIES + 1):
            with self.engine.connect() as connection:
                marked = connection.execution_options(**options)
                try:
                    begun = marked.begin()
                    result = work(marked)
                except DBAPIError as error:
                    marked.rollback()
                    if tries == _TRIES or not _is_transient(error):
                        raise
                else:
                    begun.commit()
                    return result
            self._runtime.clock.sleep(_PAUSE_S * 2**tries * (0.5 + self._runtime.ids.jitter()))
        raise AssertionError("the last try returns or raises")


def connect(url: str) -> Engine:
    """An engine for a URL; `InvalidRequestError` if there is no such database here."""
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _with_clean_texts(_with_write_locks(create_engine(parsed, connect_args={"timeout": 60})))
        # A connection that broke while it was idle is noticed by its next statement, which is tried again.
        engine = create_engine(parsed, isolation_level="READ COMMITTED", pool_size=10, max_overflow=20)
        return _with_clean_texts(_with_idle_limit(engine))
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        scheme = url.partition("://")[0]
        raise InvalidRequestError(
            f"database {scheme}://…: use sqlite:///file, postgresql://… or mysql://… ({type(error).__name__})"
        ) from error


def _with_idle_limit(engine: Engine) -> Engine:
    """A process that is stopped inside of a transaction must not keep its rows from the others for ever."""
    setting = _IDLE_LIMITS.get(engine.dialect.name)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        if setting is None or getattr(engine.dialect, "is_mariadb", True) is False:
            return
        cursor = connection.cursor()
        cursor.execute(setting)
        cursor.close()
        connection.commit()

    return engine


def _with_clean_texts(engine: Engine) -> Engine:
    """What no database takes becomes a replacement character: NUL, and halves of characters.

    They come in requests, where they match nothing, and in messages of engines: those must not keep an attempt from
    ending.
    """

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def clean(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> tuple[str, Any]:
        return statement, _clean(parameters)

    return engine


def _clean(value: Any) -> Any:
    """The same in one text, or in the parameters of one or many statements."""
    match value:
        case str():
            is_plain = value.isascii() and "\0" not in value
            whole = value if is_plain else value.encode("utf-8", "replace").decode()
            return whole if is_plain else whole.replace("\0", "\ufffd")
        case Mapping():
            return {name: _clean(each) for name, each in value.items()}
        case list() | tuple():
            return type(value)(map(_clean, value))
        case _:
            return value


def _with_write_locks(engine: Engine) -> Engine:
    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        # The driver's own transactions begin too late; ours begin below.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=60000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _is_transient(error: DBAPIError) -> bool:
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None)
    arguments: tuple[Any, ...] = getattr(error.orig, "args", ())
    return state in _TRANSIENT_STATES or (bool(arguments) and arguments[0] in _TRANSIENT_NUMBERS)
