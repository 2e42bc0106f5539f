"""Bringing the schema up to date with Alembic, by one instance at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, text

__all__ = ["current_revision", "migrate"]

_LOCK = "tablekeeper_migrate"
_LOCK_NUMBER = 20_430_043
_PATIENCE_S = 120


def migrate(engine: Engine, revision: str = "head") -> None:
    """Upgrade to `revision`. Whoever comes second waits, and finds nothing to do."""
    with engine.connect() as plain:
        connection = plain.execution_options(tablekeeper_writes=True)
        with connection.begin(), _alone(connection):
            config = Config()
            config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
            config.attributes["connection"] = connection
            command.upgrade(config, revision)


def current_revision(engine: Engine) -> str | None:
    """The revision that the database is at; None before the first migration."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """SQLite's write lock is held already. PostgreSQL lets go of its lock with the transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK_NUMBER})
    if connection.dialect.name not in ("mysql", "mariadb"):
        yield
        return
    connection.execute(text("SELECT GET_LOCK(:name, :patience)"), {"name": _LOCK, "patience": _PATIENCE_S})
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": _LOCK})
