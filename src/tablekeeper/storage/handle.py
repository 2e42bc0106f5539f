"""`StorageHandle`: a store as a part of a task.

Inside one process it is the store itself, so that a wrapped or in-memory store stays the same one; sent
to another process it travels as its spec and is opened there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.storage.open import open_storage
from tablekeeper.storage.protocol import Storage, StorageSpec

__all__ = ["StorageHandle"]


@dataclass(frozen=True)
class StorageHandle:
    """Picklable reference to a store."""

    storage: Storage

    def __reduce__(self) -> tuple[object, tuple[StorageSpec]]:
        return _reopen, (self.storage.spec,)


def _reopen(spec: StorageSpec) -> StorageHandle:
    return StorageHandle(open_storage(spec))
