"""Stores in front of a real one, to count what is asked of it and to fail at a chosen call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from threading import Lock
from typing import BinaryIO, TypeVar

from tablekeeper.errors import StorageError
from tablekeeper.storage.protocol import FileInfo, Storage, StorageSpec, VersionedBytes

T = TypeVar("T")
_SCOPES = ".hoodie/.tablekeeper/scopes/"


class WatchedStorage:
    """Passes every call on to `storage` through `around`, which subclasses override."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        """Execute one call. `path` is the first path of a call for several."""
        del kind, path
        return call()

    @property
    def spec(self) -> StorageSpec:
        return self.storage.spec

    def stat(self, path: str) -> FileInfo | None:
        return self.around("stat", path, lambda: self.storage.stat(path))

    def read(self, path: str) -> bytes:
        return self.around("read", path, lambda: self.storage.read(path))

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        return self.around("read_range", path, lambda: self.storage.read_range(path, start=start, length=length))

    def read_versioned(self, path: str) -> VersionedBytes | None:
        return self.around("read_versioned", path, lambda: self.storage.read_versioned(path))

    @property
    def has_scopes(self) -> bool:
        return self.storage.has_scopes

    def take_scope(
        self, group: str, *names: str, scope: str | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        take = partial(self.storage.take_scope, group, *names, scope=scope, look=look)
        self.around("take_scope", _SCOPES + group, take)

    def fence(self, target: str, *, scope: str | None = None) -> None:
        self.around("fence", _SCOPES + target, lambda: self.storage.fence(target, scope=scope))

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        self.around("put", path, lambda: self.storage.put(path, data, scope=scope))

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        return self.around("put_if_absent", path, lambda: self.storage.put_if_absent(path, data, scope=scope))

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        return self.around("replace", path, lambda: self.storage.replace(path, data, version=version, scope=scope))

    def delete(self, path: str, *, scope: str | None = None) -> None:
        self.around("delete", path, lambda: self.storage.delete(path, scope=scope))

    def delete_many(self, paths: Iterable[str], *, scope: str | None = None) -> None:
        targets = list(paths)
        first = targets[0] if targets else ""
        self.around("delete_many", first, lambda: self.storage.delete_many(targets, scope=scope))

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        self.around("delete_tree", prefix, lambda: self.storage.delete_tree(prefix, scope=scope))

    def list_files(self, directory: str) -> list[FileInfo]:
        return self.around("list_files", directory, lambda: self.storage.list_files(directory))

    def list_names(self, directory: str) -> list[str]:
        return [info.name for info in self.list_files(directory)]

    def list_directories(self, directory: str) -> list[str]:
        return self.around("list_directories", directory, lambda: self.storage.list_directories(directory))

    def walk(self, directory: str) -> Iterator[FileInfo]:
        return self.around("walk", directory, lambda: self.storage.walk(directory))

    def open_input(self, path: str) -> BinaryIO:
        return self.around("open_input", path, lambda: self.storage.open_input(path))

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        return self.around("open_output", path, lambda: self.storage.open_output(path, scope=scope))


class CountingStorage(WatchedStorage):
    """Remembers every call as (kind, path), from any thread.

    Scopes are not counted: on a file system they cost a directory, and stores with round trips have none.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.calls: list[tuple[str, str]] = []
        self._lock = Lock()

    @property
    def counts(self) -> Counter[str]:
        """Calls by kind."""
        return Counter(kind for kind, _ in self.calls)

    def paths(self, *kinds: str) -> list[str]:
        """Paths of the calls of these kinds, in order."""
        return [path for kind, path in self.calls if kind in kinds]

    def reset(self) -> None:
        self.calls.clear()

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        if kind not in ("take_scope", "fence"):
            with self._lock:
                self.calls.append((kind, path))
        return call()


class FaultyStorage(WatchedStorage):
    """Fails when told to: calls of a kind in `before` do not happen, those in `after` lose their answer."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.before: set[str] = set()
        self.after: set[str] = set()
        self.calls: list[str] = []
        self.on_call: Callable[[str], None] = lambda _: None

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        self.calls.append(kind)
        self.on_call(kind)
        if kind in self.before:
            raise StorageError(f"{path}: {kind} was not done", path=path, transient=True)
        result = call()
        if kind in self.after:
            raise StorageError(f"{path}: {kind} was done, but its answer got lost", path=path, transient=True)
        return result


class Between(WatchedStorage):
    """Runs `action` before call number `step`."""

    def __init__(self, storage: Storage, step: int, action: Callable[[], object]) -> None:
        super().__init__(storage)
        self._step = step
        self._action = action
        self.calls = 0

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls == self._step:
            self._action()
        return call()
