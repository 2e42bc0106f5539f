"""Which tables and events somebody wants."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVERY_TABLE", "EventFilter", "TableFilter"]


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Which tables; None, "" and () mean all. `search` is a part of `db_name.table_name` or of the path, any case.

    `databases` and `path_prefixes` are the limits of a caller: a place is the prefix itself and everything below it.
    """

    db_name: str | None = None
    queue: str | None = None
    owner: str | None = None
    search: str = ""
    is_paused: bool | None = None
    is_quarantined: bool | None = None
    is_behind: bool | None = None
    databases: tuple[str, ...] = ()
    path_prefixes: tuple[str, ...] = ()


EVERY_TABLE = TableFilter()
"""The filter that leaves nothing out."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events, by the names that a request has for tables; what is left out means all."""

    db_name: str = ""
    table_name: str = ""
    operation_id: int | None = None
