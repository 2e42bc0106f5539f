"""Tables for tests, made through the real write path: on the local engine, in memory unless a place is given.

`TableBuilder.create` makes a table, `TableBuilder.through` opens the same table again with a wrapper in front of
its store (one that counts, or fails), and `forget` drops everything that was kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

import tablekeeper as tk
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.storage import Storage, forget_memory, open_storage
from tablekeeper.table.writer_options import load_writer_options

__all__ = ["TRIPS", "Row", "TableBuilder", "listing", "rows_of", "trips"]

Row = dict[str, Any]

TRIPS = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("fare", pa.float64())])
"""The schema of most tests: a key, a partition, an ordering value and a payload."""

_SCRATCH = ".hoodie/.tablekeeper/"


def trips(*rows: tuple[Any, ...], schema: pa.Schema = TRIPS) -> pa.Table:
    """Rows given as tuples in the order of `schema`; values left out at the end are null."""
    named = [dict(zip(schema.names, row, strict=False)) for row in rows]
    return pa.Table.from_pylist(named, schema=schema)


def rows_of(frame: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    """The rows as tuples of `columns` (all by default), sorted, so that two tables can be compared."""
    names = list(columns) or frame.column_names
    values = [frame.column(name).to_pylist() for name in names]
    return sorted(zip(*values, strict=True), key=repr)


def listing(storage: Storage) -> dict[str, bytes]:
    """Every object of a table with its bytes, but for the scratch folder: equal before and after means untouched."""
    files = [file.path for file in storage.walk("")]
    return {path: storage.read(path) for path in files if not path.startswith(_SCRATCH)}


class TableBuilder:
    """Makes tables and remembers those in memory, so that a fixture can drop them."""

    def __init__(self, *, runtime: Runtime = SYSTEM_RUNTIME, threads: int = 2) -> None:
        self.runtime = runtime
        self._threads = threads
        self._names: list[str] = []

    def create(
        self,
        place: str | None = None,
        *,
        schema: pa.Schema = TRIPS,
        key: str | Sequence[str] = "id",
        partition_by: str | Sequence[str] | None = "city",
        ordering: str | Sequence[str] | None = "ts",
        table_type: str = "cow",
        options: Mapping[str, object] | None = None,
    ) -> tk.Table:
        """A new table, at `place` or in memory."""
        return tk.Table.create(
            place or self.new_place(),
            name="trips",
            schema=schema,
            key=key,
            partition_by=partition_by,
            ordering=ordering,
            table_type=table_type,
            engine="local",
            options=options,
            runtime=self.runtime,
        )

    def new_place(self) -> str:
        """A URI in memory where nothing is yet."""
        name = f"builder-{uuid4()}"
        self._names.append(name)
        return f"memory://{name}/table"

    def storage(self, table: tk.Table) -> Storage:
        """The store of the table, without any wrapper."""
        return open_storage(table.path, runtime=self.runtime)

    def through(
        self,
        table: tk.Table,
        store: Storage | None = None,
        *,
        options: Mapping[str, object] | None = None,
        runtime: Runtime | None = None,
    ) -> tk.Table:
        """The same table, opened with its remembered options and `options`, on `store` (its own by default)."""
        storage = self.storage(table)
        chosen = runtime or self.runtime
        merged = Options(options).merged_over(load_writer_options(storage))
        return tk.Table(store or storage, LocalEngine(threads=self._threads, runtime=chosen), merged, runtime=chosen)

    def forget(self, names: Iterable[str] | None = None) -> None:
        """Drop the tables in memory."""
        for name in names if names is not None else self._names:
            forget_memory(name)
