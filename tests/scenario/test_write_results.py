"""What a write says of itself: how many rows it inserted, updated and deleted, as far as anybody knows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

__all__: list[str] = []


@pytest.fixture(params=["SIMPLE", "BUCKET"])
def index(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"hoodie.index.type": str(request.param)}


MARKED = pa.schema([*TRIPS, ("_hoodie_is_deleted", pa.bool_())])


def test_the_counts_of_an_upsert_are_true_for_soft_deletes_and_rows_that_lost(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(schema=MARKED, table_type=table_type, options=index)
    first = table.upsert(trips(*((key, "sf", 5, 1.0) for key in "abcd"), schema=MARKED))
    assert (first.rows_inserted, first.rows_updated, first.rows_deleted, first.counts_are_exact) == (4, 0, 0, True)
    changes = [("a", "sf", 6, None, True), ("b", "sf", 6, 2.0), ("c", "sf", 4, 3.0), ("d", "sf", 4, None, True)]
    result = table.upsert(trips(*changes, schema=MARKED))
    assert rows_of(table.read(), "id", "fare") == [("b", 2.0), ("c", 1.0), ("d", 1.0)]
    assert result.counts_are_exact == (table_type == "cow")
    # Logs do not know what lies below them: the row and the delete that came too late are among what may have won.
    exact, most = (0, 1, 1), (0, 2, 2)
    expected = exact if table_type == "cow" else most
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == expected
    assert ("up to" in repr(result)) == (table_type == "mor")


@pytest.mark.parametrize("operation", ["delete_partitions", "insert_overwrite", "insert_overwrite_table"])
def test_rows_of_replaced_files_are_not_counted_and_the_result_says_so(
    tables: TableBuilder, table_type: str, operation: str
) -> None:
    table = tables.create(table_type=table_type)
    table.upsert(trips(("a", "sf", 5, 1.0), ("b", "sf", 5, 1.0)))
    given: Any = ["sf"] if operation == "delete_partitions" else trips(("c", "sf", 1, 1.0))
    result = getattr(table, operation)(given)
    assert result.rows_deleted is None
    assert "all rows of the replaced files deleted" in repr(result)


def test_an_overwrite_of_nothing_deletes_nothing(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    assert table.insert_overwrite(trips(("c", "sf", 1, 1.0))).rows_deleted == 0


def test_a_result_of_many_files_is_shown_in_one_line(tables: TableBuilder) -> None:
    table = tables.create()
    result = table.insert(trips(*((str(n), f"city-{n}", 1, 1.0) for n in range(60))))
    assert len(result.files) == 60
    assert repr(result) == str(result)
    assert len(repr(result)) < 160
    assert "60 files" in repr(result)
