"""Small things of the public door: versions, tables that may be there already, rows of other libraries, cursors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

ROWS = trips(("a", "sf", 1, 1.0), ("b", "la", 1, 2.0))
ARGUMENTS: dict[str, Any] = {
    "name": "trips",
    "schema": TRIPS,
    "key": "id",
    "partition_by": "city",
    "ordering": "ts",
    "table_type": "mor",
    "engine": "local",
}


class Exported:
    """Rows of a library that shares nothing with pyarrow but Arrow's C interface."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


class Broken:
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise RuntimeError("the connection is closed")


@pytest.fixture(params=["cow", "mor"])
def table(tables: TableBuilder, request: pytest.FixtureRequest) -> tk.Table:
    return tables.create(table_type=request.param)


def test_the_package_runs_as_a_module_and_says_the_version_that_it_has() -> None:
    command = [sys.executable, "-m", "tablekeeper", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"tablekeeper {tk.__version__}\n"
    assert tk.__version__[0].isdigit()


@pytest.mark.parametrize("schedule", ["schedule_compaction", "schedule_log_compaction", "schedule_clustering"])
def test_executing_no_plan_does_nothing(tables: TableBuilder, schedule: str) -> None:
    table = tables.create(table_type="mor")
    assert table.execute(getattr(table, schedule)()) is None
    assert len(table.timeline()) == 0


def test_a_table_exists_once_it_was_created(tables: TableBuilder) -> None:
    place = tables.new_place()
    assert tk.Table.exists(place) is False
    tables.create(place)
    assert tk.Table.exists(place) is True


def test_a_directory_without_a_table_and_a_file_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    assert [tk.Table.exists(tmp_path), tk.Table.exists(tmp_path / "file"), tk.Table.exists(tmp_path / "x")] == [
        False
    ] * 3


def test_create_if_not_exists_makes_a_table_and_then_opens_it_with_its_options(tables: TableBuilder) -> None:
    place = tables.new_place()
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
    tk.Table.create(place, if_not_exists=True, options=options, **ARGUMENTS).insert(ROWS)
    again = tk.Table.create(place, if_not_exists=True, **ARGUMENTS)
    again.upsert(trips(("a", "sf", 2, 5.0)))
    assert rows_of(again.read(), "id", "fare") == [("a", 5.0), ("b", 2.0)]
    assert all(fact["file_id"].startswith("00000000-") for fact in again.files().to_dicts())


@pytest.mark.parametrize(
    ("role", "value"), [("key", "ts"), ("partition_by", None), ("ordering", None), ("table_type", "cow")]
)
def test_create_if_not_exists_refuses_another_table(tables: TableBuilder, role: str, value: str | None) -> None:
    place = tables.new_place()
    tk.Table.create(place, **ARGUMENTS)
    with pytest.raises(tk.InvalidRequestError, match=f"already, with {role} "):
        tk.Table.create(place, if_not_exists=True, **{**ARGUMENTS, role: value})


def test_create_without_it_still_refuses_a_table_that_is_there(tables: TableBuilder) -> None:
    place = tables.new_place()
    tk.Table.create(place, **ARGUMENTS)
    with pytest.raises(tk.InvalidRequestError, match="already"):
        tk.Table.create(place, **ARGUMENTS)


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize(
    "bring",
    [lambda rows: rows.to_pandas(), Exported, lambda rows: rows.to_reader(), lambda rows: rows.to_batches()],
    ids=["pandas", "another library", "reader", "batches"],
)
@pytest.mark.parametrize("operation", ["upsert", "insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table"])
def test_rows_of_other_libraries_go_in_where_a_pyarrow_table_does(
    table: tk.Table, operation: str, bring: Callable[[pa.Table], Any], retries: int
) -> None:
    getattr(table, operation)(bring(ROWS), retries=retries)
    assert rows_of(table.read()) == rows_of(ROWS)
    table.delete(bring(ROWS.slice(0, 1)))
    assert rows_of(table.read()) == rows_of(ROWS.slice(1))


def test_the_index_of_a_pandas_frame_is_not_taken_for_a_column(table: tk.Table) -> None:
    frame = pa.concat_tables([ROWS, ROWS]).to_pandas()
    table.upsert(frame[frame["fare"] > 1.5])
    assert table.schema.names == TRIPS.names
    assert rows_of(table.read()) == rows_of(ROWS.slice(1))


def test_rows_that_another_library_cannot_hand_over_are_refused(table: tk.Table) -> None:
    with pytest.raises(tk.InvalidRequestError, match=r"Broken .* the connection is closed"):
        table.upsert(Broken())


def test_the_next_cursor_goes_on_where_the_last_call_ended(table: tk.Table) -> None:
    empty = table.changes_since("earliest")
    assert (empty.rows.num_rows, empty.next) == (0, "earliest")
    table.insert(ROWS)
    first = table.changes_since(empty.next)
    assert rows_of(first.rows) == rows_of(ROWS)
    table.upsert(trips(("a", "sf", 2, 5.0)))
    second = table.changes_since(first.next)
    assert rows_of(second.rows, "id", "fare") == [("a", 5.0)]
    third = table.changes_since(second.next)
    assert (third.rows.num_rows, third.next) == (0, second.next)


def test_a_bounded_window_ends_with_the_cursor_of_its_last_commit(table: tk.Table) -> None:
    first = table.insert(ROWS)
    table.upsert(trips(("a", "sf", 2, 5.0)))
    window = table.changes_since("earliest", until=first.instant)
    assert window.next == first.instant.value
    assert rows_of(table.changes_since(window.next).rows, "fare") == [(5.0,)]


def test_changes_since_the_earliest_commit_are_those_since_ever(table: tk.Table) -> None:
    table.insert(ROWS)
    assert rows_of(table.changes(since="earliest")) == rows_of(table.changes()) == rows_of(ROWS)
