"""What a secondary index says, and what the rows say: the same, if it was kept in step."""

from __future__ import annotations

import tablekeeper as tk
from tablekeeper.metadata_table.record_index import load_secondary_index_shard
from tablekeeper.model import Operation
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import Storage
from tests.support.metadata_content import load_slices

__all__ = ["indexed_values", "refuse_wrong_secondary_index", "stored_values"]


def indexed_values(storage: Storage, name: str) -> set[tuple[str | None, str]]:
    """Value and record key of each entry."""
    return {
        _decoded(key.decode())
        for each in load_slices(storage)[name]
        for key, _ in load_secondary_index_shard(storage, each, runtime=SYSTEM_RUNTIME).entries()
    }


def stored_values(table: tk.Table, column: str, key: str) -> set[tuple[str | None, str]]:
    """Value and record key of each row."""
    rows = table.read(columns=list(dict.fromkeys([key, column]))).to_pylist()
    return {(None if row[column] is None else str(row[column]), str(row[key])) for row in rows}


def refuse_wrong_secondary_index(table: tk.Table, name: str, column: str, *, key: str = "id") -> None:
    """The index has just the values of the rows that are there."""
    storage = table._load_write(Operation.INDEX, None).environment.storage
    assert indexed_values(storage, name) == stored_values(table, column, key)


def _decoded(entry: str) -> tuple[str | None, str]:
    """The two texts, each written with a backslash before what has a meaning."""
    texts, place = [""], 0
    if entry.startswith("\0$"):
        return None, _decoded("$" + entry[2:])[1]
    while place < len(entry):
        if entry[place] == "\\":
            place += 1
            texts[-1] += entry[place]
        elif entry[place] == "$":
            texts.append("")
        else:
            texts[-1] += entry[place]
        place += 1
    value, key = texts
    return value, key
