"""Two writers, one of whom changes the schema: no column and no value is lost, no matter who comes first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import BinaryIO

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.keys import WIDEN_TO_STRING
from tablekeeper.errors import ConflictError, InvalidRequestError
from tablekeeper.storage import Storage
from tablekeeper.write import prepare
from tests.support.storage_wrappers import WatchedStorage
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

NOTE = pa.schema([*TRIPS, ("note", pa.string())])
MARK = pa.schema([*TRIPS, ("mark", pa.int64())])


@pytest.fixture(params=["cow", "mor"])
def table(request: pytest.FixtureRequest, tables: TableBuilder) -> tk.Table:
    made = tables.create(table_type=request.param)
    made.upsert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    return made


@pytest.fixture(autouse=True)
def _rows_are_staged_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more rows than are carried along: another writer is let in while they are."""
    monkeypatch.setattr(prepare, "_CARRIED_BYTES", 0)


class Interrupted(WatchedStorage):
    """Lets another writer in, once, just before the first file of a kind is written."""

    def __init__(self, storage: Storage, *, during: str, other: Callable[[], object]) -> None:
        super().__init__(storage)
        self._during = during
        self._other: Callable[[], object] | None = other

    def _let_in(self, path: str) -> None:
        is_staging = path.endswith(".arrow")
        is_data = not path.startswith(".hoodie") and not path.endswith(".hoodie_partition_metadata")
        if self._other is not None and (is_staging if self._during == "staging" else is_data):
            other, self._other = self._other, None
            other()

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        self._let_in(path)
        return super().open_output(path, scope=scope)

    def put(self, path: str, data: bytes, *, scope: str | None = None) -> None:
        self._let_in(path)
        super().put(path, data, scope=scope)


def interrupted(
    tables: TableBuilder, table: tk.Table, other: Callable[[], object], *, during: str = "writing"
) -> tk.Table:
    return tables.through(table, Interrupted(tables.storage(table), during=during, other=other))


def test_a_column_that_was_added_meanwhile_stays(tables: TableBuilder, table: tk.Table) -> None:
    slow = interrupted(tables, table, lambda: table.upsert(trips(("b", "la", 2, 2.0, "hello"), schema=NOTE)))
    slow.upsert(trips(("a", "sf", 2, 2.0)))
    assert table.schema.names == NOTE.names
    table.upsert(trips(("c", "la", 1, 1.0)))
    assert rows_of(table.read(), "id", "fare", "note") == [("a", 2.0, None), ("b", 2.0, "hello"), ("c", 1.0, None)]


def test_columns_that_two_writers_add_at_once_are_both_there(tables: TableBuilder, table: tk.Table) -> None:
    slow = interrupted(tables, table, lambda: table.upsert(trips(("b", "la", 2, 2.0, "hello"), schema=NOTE)))
    slow.upsert(trips(("a", "sf", 2, 2.0, 7), schema=MARK))
    assert table.schema.names == [*NOTE.names, "mark"]
    assert rows_of(table.read(), "id", "note", "mark") == [("a", None, 7), ("b", "hello", None)]


def test_a_type_that_was_widened_meanwhile_stays_wide(tables: TableBuilder, table: tk.Table) -> None:
    wide = TRIPS.set(3, pa.field("fare", pa.string()))
    asking = tk.Table.open(table.path, engine="local", options={WIDEN_TO_STRING: True})
    slow = interrupted(tables, table, lambda: asking.upsert(trips(("b", "la", 2, "much"), schema=wide)))
    slow.upsert(trips(("a", "sf", 2, 2.5)))
    assert table.schema.field("fare").type == pa.string()
    assert rows_of(table.read(), "id", "fare") == [("a", "2.5"), ("b", "much")]


def test_changes_that_do_not_go_together_are_a_conflict_and_then_refused(tables: TableBuilder, table: tk.Table) -> None:
    number = pa.schema([*TRIPS, ("note", pa.bool_())])
    add_text = trips(("b", "la", 2, 2.0, "hello"), schema=NOTE)
    slow = interrupted(tables, table, lambda: table.upsert(add_text))
    with pytest.raises(ConflictError, match="changed the schema"):
        slow.upsert(trips(("a", "sf", 2, 2.0, True), schema=number))
    assert rows_of(table.read(), "id", "note") == [("a", None), ("b", "hello")]
    with pytest.raises(InvalidRequestError, match="column note: table has string, data has bool"):
        slow.upsert(trips(("a", "sf", 2, 2.0, True), schema=number))


@pytest.mark.parametrize("retries", [0, 1])
def test_a_write_that_was_planned_on_an_older_schema_starts_over(
    tables: TableBuilder, table: tk.Table, retries: int
) -> None:
    """The other writer is done before this one begins: it would rewrite the new column away."""
    slow = interrupted(
        tables, table, lambda: table.upsert(trips(("a", "sf", 2, 2.0, "hello"), schema=NOTE)), during="staging"
    )
    rows = trips(("c", "sf", 1, 1.0), ("a", "sf", 1, 0.5))
    if retries == 0:
        with pytest.raises(ConflictError, match="changed the schema"):
            slow.upsert(rows)
        assert rows_of(table.read(), "id", "note") == [("a", "hello"), ("b", None)]
    else:
        slow.upsert(rows, retries=retries)
        assert rows_of(table.read(), "id", "note") == [("a", "hello"), ("b", None), ("c", None)]


def test_a_commit_that_changes_no_schema_is_no_reason_to_start_over(tables: TableBuilder, table: tk.Table) -> None:
    slow = interrupted(tables, table, lambda: table.upsert(trips(("b", "la", 2, 2.0))), during="staging")
    slow.upsert(trips(("a", "sf", 2, 2.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 2.0)]
