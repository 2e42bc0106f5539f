"""A store as object stores are: it cannot keep a late change out, and passes over scopes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, cast

from tablekeeper.storage import Storage

__all__ = ["ScopelessStorage"]


class ScopelessStorage:
    """Any store, without its scopes."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    @property
    def as_storage(self) -> Storage:
        store: Any = self
        return cast("Storage", store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    has_scopes = False

    def take_scope(
        self, group: str, *names: str, scope: str | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        """There is no such thing here."""
        look()

    def fence(self, target: str, *, scope: str | None = None) -> None:
        """There is no such thing here."""

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        self._storage.put(path, data)

    def put_if_absent(self, path: str, data: bytes, *, scope: str | None = None) -> bool:
        return bool(self._storage.put_if_absent(path, data))

    def replace(self, path: str, data: bytes, *, version: str, scope: str | None = None) -> str | None:
        found: str | None = self._storage.replace(path, data, version=version)
        return found

    def delete(self, path: str, *, scope: str | None = None) -> None:
        self._storage.delete(path)

    def delete_many(self, paths: Any, *, scope: str | None = None) -> None:
        self._storage.delete_many(paths)

    def delete_tree(self, prefix: str, *, scope: str | None = None) -> None:
        self._storage.delete_tree(prefix)

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        output: AbstractContextManager[BinaryIO] = self._storage.open_output(path)
        return output
