"""Bringing the schema up to date with Alembic, by one instance at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, text

__all__ = ["current_revision", "migrate"]

_MARIADB = ("SELECT GET_LOCK('tablekeeper_migrate', 300)", "SELECT RELEASE_LOCK('tablekeeper_migrate')")
_LOCKS = {
    "postgresql": ("SELECT pg_advisory_lock(20430043)", "SELECT pg_advisory_unlock(20430043)"),
    "mysql": _MARIADB,
    "mariadb": _MARIADB,
}


def migrate(engine: Engine, revision: str = "head") -> None:
    """Upgrade to `revision`. A second process waits, and finds nothing to do."""
    with _alone(engine), engine.connect() as plain:
        connection = plain.execution_options(tablekeeper_writes=True)
        with connection.begin():
            config = Config()
            config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
            config.attributes["connection"] = connection
            command.upgrade(config, revision)


def current_revision(engine: Engine) -> str | None:
    """The revision that the database is at; None before the first migration."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Held on a connection of its own until the migration is committed. SQLite's write lock does without."""
    taken, given_back = _LOCKS.get(engine.dialect.name, ("", ""))
    if not taken:
        yield
        return
    with engine.connect() as connection:
        connection.execute(text(taken))
        try:
            yield
        finally:
            connection.execute(text(given_back))
