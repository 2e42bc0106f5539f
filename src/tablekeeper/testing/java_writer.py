"""A stand-in for writers of Java Hudi: it takes its time first, loads late, and checks what Java checks and no more.

It is our writer behind a store that makes three differences. Its heartbeats are empty files, so that others know it for
somebody else's. Between taking its time and loading the timeline it pauses. What was requested after it and had
completed when it loaded is no candidate for conflicts: Java compares a write with what came after the newest commit
that it loaded. It takes no scopes: nothing keeps its late changes out.

It brings back keys that are there and keys of its own, since Java does not look for new keys of others.
"""

from __future__ import annotations

from typing import Any, cast

from tablekeeper.storage.protocol import FileInfo, Storage, VersionedBytes
from tablekeeper.table import Table
from tablekeeper.testing.history import Shape
from tablekeeper.testing.jobs import job
from tablekeeper.testing.story import puts
from tablekeeper.testing.worker import KEYS, Worker, own_rows, trips
from tablekeeper.timeline.timeline import decode_instant_name

__all__ = ["java_insert", "java_upsert"]

_TIMELINE = ".hoodie/timeline"
_HEARTBEATS = ".hoodie/.heartbeat/"
_PAUSES_S = (0.0, 0.5, 2.0, 8.0)


class _JavaStorage:
    """The store as one write of Java uses it; what is not here is the process's own."""

    def __init__(self, worker: Worker) -> None:
        self._inner = worker.storage.without_scopes()
        self._process = worker.process
        self._pause_s = worker.chance.choice(_PAUSES_S)
        self._owner = b""
        self._began = ""
        self._overlooked: frozenset[str] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        self._inner.put(path, self._said(path, data))

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        return self._inner.replace(path, self._said(path, data), version=version)

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        is_done = self._inner.put_if_absent(path, self._said(path, data))
        if path.startswith(_TIMELINE) and path.endswith("commit.requested") and not self._began:
            self._began = path.rpartition("/")[2].partition(".")[0]
        return is_done

    def read(self, path: str) -> bytes:
        data = self._inner.read(path)
        return self._owner if path.endswith(f"{_HEARTBEATS}{self._began}") and not data else data

    def read_versioned(self, path: str) -> VersionedBytes | None:
        found = self._inner.read_versioned(path)
        if found is None or not path.startswith(_HEARTBEATS) or found.data:
            return found
        return VersionedBytes(self._owner, found.version)

    def list_names(self, directory: str) -> list[str]:
        if directory != _TIMELINE or not self._began:
            return self._inner.list_names(directory)
        if self._overlooked is None:
            self._process.sleep(self._pause_s)
            names = self._inner.list_names(directory)
            self._overlooked = frozenset(filter(self._is_overlooked, names))
            return names
        return [name for name in self._inner.list_names(directory) if name not in self._overlooked]

    def list_files(self, directory: str) -> list[FileInfo]:
        overlooked = (self._overlooked if directory == _TIMELINE else None) or frozenset()
        return [file for file in self._inner.list_files(directory) if file.name not in overlooked]

    def _said(self, path: str, data: bytes) -> bytes:
        """What others read there: nothing in a heartbeat, of which only this writer knows whose it is."""
        if not path.startswith(_HEARTBEATS):
            return data
        self._owner = data
        return b""

    def _is_overlooked(self, name: str) -> bool:
        instant = decode_instant_name(name)
        return instant is not None and instant.is_completed and instant.requested_at.value > self._began


def _as_java(worker: Worker) -> Table:
    table = worker.table
    return Table(cast(Storage, _JavaStorage(worker)), table._engine, table._options, runtime=table._runtime)


def _is_for_java(shape: Shape) -> bool:
    """A base file that Java makes after a late load is hidden by one that any writer made meanwhile. Logs are not."""
    return shape.table_type == "mor" and shape.index == "simple" and not shape.metadata


@job("java writer", calls=60, weight=2, fits=_is_for_java)
def java_upsert(worker: Worker) -> None:
    """Update rows that are there since the beginning, or bring them back."""
    key = worker.chance.choice(list(KEYS))
    rows = {key: (KEYS[key], float(100 + len(worker.story.writes)))}
    table = _as_java(worker)
    worker.write(lambda extra: table.upsert(trips(rows), extra=extra), puts(rows))


@job("java writer", calls=55, weight=2, fits=_is_for_java)
def java_insert(worker: Worker) -> None:
    """Bring keys that nobody else brings, into small base files where there are any."""
    rows = own_rows(worker)
    table = _as_java(worker)
    worker.write(lambda extra: table.insert(trips(rows), extra=extra), puts(rows))
