"""What the metadata table needs from the table that it belongs to: protocols, because locks are in the layer above."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from tablekeeper.config.table_config import TableConfig
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage

__all__ = ["HeldLock", "LockedTable", "OpenTable"]


class HeldLock(Protocol):
    """The lock of the table while it is held."""

    @property
    def held_s(self) -> float: ...

    def check(self) -> None:
        """Raise `FencedError` if another writer may hold the lock by now."""
        ...


class OpenTable(Protocol):
    """An open table, whose lock can be taken."""

    @property
    def storage(self) -> Storage: ...

    @property
    def config(self) -> TableConfig: ...

    @property
    def runtime(self) -> Runtime: ...

    @property
    def drops_indexes(self) -> bool:
        """The caller consents to losing indexes that an action would leave wrong."""
        ...

    def locked(self) -> AbstractContextManager[LockedTable]: ...


class LockedTable(OpenTable, Protocol):
    """The table while its lock is held, as required by all changes of the metadata table."""

    @property
    def lease(self) -> HeldLock: ...
