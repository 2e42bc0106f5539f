"""What the metadata table asks of the table that it belongs to; the transactions of the layer above fill it in."""

from __future__ import annotations

from typing import Protocol

from tablekeeper.config.table_config import TableConfig
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage

__all__ = ["OpenTable"]


class OpenTable(Protocol):
    """An open table. What changes its metadata table is called while the table lock is held."""

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
