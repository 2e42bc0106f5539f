"""A store that fails, or a process that dies, at any single step of any write: readers see the rows from before or
those from after, never a mix, and the next write succeeds and clears up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import CommitOutcomeUnknownError, TablekeeperError
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.model import RequestedTime
from tablekeeper.timeline import load_timeline
from tests.support.later_process import later_process
from tests.support.step_faults import Fault, FaultPoint, StepStorage
from tests.support.storage_wrappers import WatchedStorage
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

OLD = trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 2.0), ("c", "la", 1, 3.0))
NEW = trips(("a", "sf", 5, 5.0), ("n", "ny", 5, 5.0))
LATER_S = 3600


@dataclass(frozen=True)
class Operation:
    """A write, and the rows before and after it."""

    run: Callable[[tk.Table], object]
    after: list[tuple[Any, ...]]


BEFORE = rows_of(OLD)
OPERATIONS = {
    "upsert": Operation(lambda t: t.upsert(NEW), rows_of(pa.concat_tables([OLD.slice(1), NEW]))),
    "insert": Operation(lambda t: t.insert(NEW), rows_of(pa.concat_tables([OLD, NEW]))),
    "bulk_insert": Operation(lambda t: t.bulk_insert(NEW), rows_of(pa.concat_tables([OLD, NEW]))),
    "delete": Operation(lambda t: t.delete(OLD.slice(0, 1)), rows_of(OLD.slice(1))),
    "insert_overwrite": Operation(lambda t: t.insert_overwrite(NEW), rows_of(pa.concat_tables([OLD.slice(2), NEW]))),
    "insert_overwrite_table": Operation(lambda t: t.insert_overwrite_table(NEW), rows_of(NEW)),
    "delete_partitions": Operation(lambda t: t.delete_partitions(["sf"]), rows_of(OLD.slice(2))),
}


@pytest.fixture
def tables() -> Iterator[TableBuilder]:
    builder = TableBuilder(runtime=later_process(0), threads=1)
    yield builder
    builder.forget()


def orphans(tables: TableBuilder, table: tk.Table) -> list[str]:
    """Data files of instants that are not on the timeline as completed."""
    storage = tables.storage(table)
    timeline = load_timeline(storage, table.config)
    found = []
    for file in storage.walk(""):
        name = decode_base_name(file.name) or decode_log_name(file.name)
        is_data = name is not None and not file.path.startswith(".hoodie")
        if is_data and name is not None and timeline.completion_of(RequestedTime(name.instant)) is None:
            found.append(file.path)
    return found


def copy(tables: TableBuilder, table: tk.Table) -> tk.Table:
    """The same table at another place."""
    target = tables.create()
    storage, other = tables.storage(table), tables.storage(target)
    for file in storage.walk(""):
        other.put(file.path, storage.read(file.path))
    return target


def run_with_fault(
    tables: TableBuilder, table: tk.Table, operation: Operation, *, at: int, fault: Fault
) -> tuple[StepStorage, Exception | None]:
    store = StepStorage(tables.storage(table), FaultPoint(at, fault))
    try:
        operation.run(tables.through(table, store))
    except TablekeeperError as error:
        return store, error
    return store, None


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.OUTAGE], ids=lambda fault: fault.value)
@pytest.mark.parametrize("table_type", ["cow", "mor"])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_a_failure_at_any_call_leaves_the_old_or_the_new_rows_and_the_next_write_succeeds(
    tables: TableBuilder, name: str, table_type: str, fault: Fault
) -> None:
    operation = OPERATIONS[name]
    template = tables.create(table_type=table_type)
    template.upsert(OLD)
    for at in range(1, 400):
        table = copy(tables, template)
        store, failure = run_with_fault(tables, table, operation, at=at, fault=fault)
        if len(store.calls) < at:
            break
        context = f"{fault.value} at call {at} ({store.calls[at - 1]}), {failure!r}"
        rows = rows_of(table.read())
        assert rows in (BEFORE, operation.after), context
        if failure is None:
            assert rows == operation.after, context
        elif not isinstance(failure, CommitOutcomeUnknownError) and fault is not Fault.ERROR_AFTER:
            assert rows == BEFORE, context
        _next_writers_succeed(tables, table, rows, context)
    else:
        pytest.fail("the write never ended")


def _next_writers_succeed(tables: TableBuilder, table: tk.Table, rows: list[tuple[Any, ...]], context: str) -> None:
    """One at once, while the heartbeat of a dead writer may still look alive, and one much later, who clears up."""
    table.upsert(trips(("x", "sf", 9, 9.0)))
    expected = sorted([*rows, ("x", "sf", 9, 9.0)], key=repr)
    assert rows_of(table.read()) == expected, context
    later = tables.through(table, runtime=later_process(LATER_S))
    later.upsert(trips(("y", "la", 9, 9.0)))
    assert rows_of(table.read()) == sorted([*expected, ("y", "la", 9, 9.0)], key=repr), context
    assert orphans(tables, table) == [], context
    assert [i for i in table.timeline() if i.is_pending] == [], context


def test_a_writer_that_lost_its_place_meanwhile_commits_nothing(tables: TableBuilder) -> None:
    """Its instant is rolled back by another writer, who took it for dead, before it gets to its commit."""
    table = tables.create()
    table.upsert(OLD)
    storage = tables.storage(table)

    class SlowStorage(WatchedStorage):
        """Lets the other writer in before the first data file is written."""

        is_done = False

        def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
            if path.endswith(".parquet") and not self.is_done:
                self.is_done = True
                later = tables.through(table, runtime=later_process(LATER_S))
                later.upsert(trips(("x", "sf", 9, 9.0)))
            return self.storage.open_output(path, scope=scope)

    slow = tables.through(table, SlowStorage(storage))
    with pytest.raises(TablekeeperError):
        slow.upsert(NEW)
    assert rows_of(table.read()) == sorted([*BEFORE, ("x", "sf", 9, 9.0)], key=repr)
    assert storage.list_files(".hoodie/.temp") == []
    later = tables.through(table, runtime=later_process(3 * LATER_S))
    later.upsert(trips(("z", "sf", 9, 9.0)))
    assert rows_of(table.read(), "id") == [("a",), ("b",), ("c",), ("x",), ("z",)]
    assert TRIPS.equals(table.schema)
