"""Two clients of one table, where one acts in the middle of what the other does.

`Interrupted` is the store of the first client: at a chosen call it lets somebody else act, once, on the same thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tablekeeper as tk
from tablekeeper.storage import Storage
from tests.support.storage_wrappers import CountingStorage
from tests.support.table_builder import TableBuilder, rows_of

__all__ = ["Arena", "Interrupted", "Rows", "tasks_have_ended", "writes_data"]

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
When = str | Callable[[str, str], bool]


class Interrupted(CountingStorage):
    """Lets somebody else act once, at the first call for a path that ends in `when`, or for which it says so."""

    action: Callable[[], object] | None = None
    when: When = ""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.watch: Callable[[str, str], None] = lambda kind, path: None

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        self.watch(kind, path)
        if self.action is not None and self._is_time(kind, path):
            action, self.action = self.action, None
            action()
        return super().around(kind, path, call)

    def _is_time(self, kind: str, path: str) -> bool:
        return path.endswith(self.when) if isinstance(self.when, str) else self.when(kind, path)


def writes_data(kind: str, path: str) -> bool:
    """A moment for `Interrupted`: a data file is about to be written."""
    return kind in ("put", "open_output") and not path.startswith(".hoodie/")


def tasks_have_ended(kind: str, path: str) -> bool:
    """A moment for `Interrupted`: all data files of a write are there, and it is about to commit."""
    return kind == "fence" and path.endswith("-tasks")


class Arena:
    """One table and two clients: what `other` does happens during the write of `writer`."""

    def __init__(self, builder: TableBuilder, table: tk.Table, *, options: Mapping[str, object] | None = None) -> None:
        self.builder = builder
        self.table = table
        self.other = builder.through(table, options=options)
        self.storage = Interrupted(builder.storage(table))
        self.writer = builder.through(table, self.storage, options=options)

    def meanwhile(self, action: Callable[[tk.Table], object], *, when: When = tasks_have_ended) -> None:
        """Let `other` do this when the files of the writer's next write are there, and it is about to commit."""
        self.storage.when = when
        self.storage.action = lambda: action(self.other)

    def rows(self, *columns: str) -> Rows:
        return rows_of(self.table.read(), *(columns or ("id", "city", "ts")))
