"""`ScopedStorage`: a store whose every change goes through one scope, after a last look.

Handed to code that may have lost its right to change anything: the lock's holder, the driver of an attempt. It
changes as they always do, and is stopped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO

from tablekeeper.storage.protocol import FileInfo, Storage, StorageSpec, VersionedBytes

__all__ = ["ScopedStorage"]


class ScopedStorage:
    """`storage` through `scope`. `look` runs before each change, and raises if there must be none any more."""

    def __init__(self, storage: Storage, scope: str, *, look: Callable[[], None] = lambda: None) -> None:
        self._storage = storage
        self._scope = scope
        self._look = look

    def __repr__(self) -> str:
        return f"ScopedStorage({self._storage!r}, {self._scope!r})"

    @property
    def spec(self) -> StorageSpec:
        return self._storage.spec

    @property
    def has_scopes(self) -> bool:
        return self._storage.has_scopes

    def take_scope(
        self, group: str, *names: str, scope: str | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        def look_both() -> None:
            self._look()
            look()

        self._storage.take_scope(group, *names, scope=scope or self._scope, look=look_both)

    def fence(self, target: str, *, scope: str | None = None) -> None:
        self._look()
        self._storage.fence(target, scope=scope or self._scope)

    def stat(self, path: str) -> FileInfo | None:
        return self._storage.stat(path)

    def read(self, path: str) -> bytes:
        return self._storage.read(path)

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        return self._storage.read_range(path, start=start, length=length)

    def read_versioned(self, path: str) -> VersionedBytes | None:
        return self._storage.read_versioned(path)

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        self._look()
        self._storage.put(path, data, scope=scope or self._scope)

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        self._look()
        return self._storage.put_if_absent(path, data, scope=scope or self._scope)

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        self._look()
        return self._storage.replace(path, data, version=version, scope=scope or self._scope)

    def delete(self, path: str, *, scope: str | None = None) -> None:
        self._look()
        self._storage.delete(path, scope=scope or self._scope)

    def delete_many(self, paths: Iterable[str], *, scope: str | None = None) -> None:
        self._look()
        self._storage.delete_many(paths, scope=scope or self._scope)

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        self._look()
        self._storage.delete_tree(prefix, scope=scope or self._scope)

    def list_files(self, directory: str) -> list[FileInfo]:
        return self._storage.list_files(directory)

    def list_names(self, directory: str) -> list[str]:
        return self._storage.list_names(directory)

    def list_directories(self, directory: str) -> list[str]:
        return self._storage.list_directories(directory)

    def walk(self, directory: str) -> Iterator[FileInfo]:
        return self._storage.walk(directory)

    def open_input(self, path: str) -> BinaryIO:
        return self._storage.open_input(path)

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        self._look()
        return self._storage.open_output(path, scope=scope or self._scope)
