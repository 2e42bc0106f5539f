"""A store that fails when told to, in front of a real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tablekeeper.errors import StorageError
from tablekeeper.storage.protocol import Storage


class FaultyStorage:
    """Passes calls on to `storage`. Operations named in `before` fail; those in `after` fail once they are done."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.before: set[str] = set()
        self.after: set[str] = set()
        self.calls: list[str] = []
        self.on_call: Callable[[str], None] = lambda _: None

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._storage, name)
        if not callable(target):
            return target

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.on_call(name)
            if name in self.before:
                raise StorageError(f"{name} did not happen", transient=True)
            result = target(*args, **kwargs)
            if name in self.after:
                raise StorageError(f"{name} happened but the answer was lost", transient=True)
            return result

        return call
