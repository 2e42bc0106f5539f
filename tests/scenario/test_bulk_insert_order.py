"""How a bulk insert orders and spreads rows, and what becomes of rows that say they are deleted."""

from __future__ import annotations

import functools
import io
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper import InvalidRequestError
from tests.support.table_builder import TableBuilder

__all__: list[str] = []

SORT_MODE = "hoodie.bulkinsert.sort.mode"
SCHEMA = pa.schema([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64()), ("_hoodie_is_deleted", pa.bool_())])
MANY = 200_000


@functools.cache
def shuffled(count: int) -> pa.Table:
    """Rows of two partitions, in no order; enough of them are worked on in two parts."""
    numbers = list(range(count))
    random.Random(5).shuffle(numbers)
    ids = [f"k{number:06d}" for number in numbers]
    cities = ["la" if number % 2 else "sf" for number in numbers]
    columns: Sequence[Any] = [ids, cities, [1] * count, [False] * count]
    return pa.table(columns, schema=SCHEMA)


def keys_by_file(tables: TableBuilder, table: tk.Table) -> dict[str, list[list[str]]]:
    """Partition -> the record keys of each of its base files, as they lie there."""
    storage = tables.storage(table)
    found: dict[str, list[list[str]]] = {}
    for file_slice in table.files():
        assert file_slice.base is not None
        content = pq.read_table(io.BytesIO(storage.read(file_slice.base.path)), columns=["_hoodie_record_key"])
        found.setdefault(file_slice.group.partition, []).append(content.column(0).to_pylist())
    return found


def bulk_inserted(tables: TableBuilder, rows: pa.Table, **options: str) -> tk.Table:
    table = tables.create(schema=SCHEMA, options={name.replace("__", "."): text for name, text in options.items()})
    assert table.bulk_insert(rows).rows_inserted == rows.num_rows
    assert table.read(columns=["id"]).sort_by("id").column("id") == rows.sort_by("id").column("id")
    return table


def test_rows_stay_in_their_order_unless_another_is_wanted(tables: TableBuilder) -> None:
    rows = shuffled(2000)
    table = bulk_inserted(tables, rows)
    expected = {city: [[row["id"] for row in rows.to_pylist() if row["city"] == city]] for city in ("la", "sf")}
    assert keys_by_file(tables, table) == expected


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
@pytest.mark.parametrize("mode", ["PARTITION_SORT", "global_sort"])
def test_files_hold_their_rows_in_the_order_of_their_keys(tables: TableBuilder, mode: str, index: str) -> None:
    table = bulk_inserted(tables, shuffled(2000), hoodie__bulkinsert__sort__mode=mode, hoodie__index__type=index)
    files = [keys for partition in keys_by_file(tables, table).values() for keys in partition]
    assert sum(map(len, files)) == 2000
    assert all(keys == sorted(keys) for keys in files)


def test_with_a_global_sort_files_have_ranges_of_keys_that_do_not_overlap(tables: TableBuilder) -> None:
    by_partition = keys_by_file(
        tables, bulk_inserted(tables, shuffled(MANY), hoodie__bulkinsert__sort__mode="GLOBAL_SORT")
    )
    # Rows are sorted by partition first: the first half of them is one partition, the second half the other.
    ranges = {city: sorted((keys[0], keys[-1]) for keys in files) for city, files in by_partition.items()}
    assert all(one[1] < other[0] for each in ranges.values() for one, other in itertools.pairwise(each))
    assert sum(len(each) for each in ranges.values()) < sum(
        len(each) for each in keys_by_file(tables, bulk_inserted(tables, shuffled(MANY))).values()
    )


@pytest.mark.parametrize("mode", ["PARTITION_PATH_REPARTITION", "PARTITION_PATH_REPARTITION_AND_SORT"])
def test_a_partition_that_is_brought_together_has_no_more_files_than_it_needs(tables: TableBuilder, mode: str) -> None:
    scattered = keys_by_file(tables, bulk_inserted(tables, shuffled(MANY)))
    assert [len(files) for files in scattered.values()] == [2, 2]
    together = bulk_inserted(tables, shuffled(MANY), hoodie__bulkinsert__sort__mode=mode)
    assert [len(files) for files in keys_by_file(tables, together).values()] == [1, 1]
    # A bulk insert makes files of its own, also where there are small ones that would take its rows.
    together.bulk_insert(shuffled(100))
    assert [len(files) for files in keys_by_file(tables, together).values()] == [2, 2]


def scattered(count: int, *, cities: int) -> pa.Table:
    columns: Sequence[Any] = [
        [f"k{number:06d}" for number in range(count)],
        [f"city-{number % cities:03d}" for number in range(count)],
        [1] * count,
        [number % 7 == 0 for number in range(count)],
    ]
    return pa.table(columns, schema=SCHEMA)


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_rows_that_are_scattered_over_many_partitions_make_one_file_in_each(
    tables: TableBuilder, table_type: str
) -> None:
    table = tables.create(schema=SCHEMA, table_type=table_type)
    rows = scattered(MANY, cities=150)
    assert table.bulk_insert(rows).rows_inserted == MANY
    files = keys_by_file(tables, table)
    assert [len(each) for each in files.values()] == [1] * 150
    assert sorted(key for each in files.values() for key in each[0]) == rows.column("id").to_pylist()
    assert len(set(table.read(meta_columns=True).column("_hoodie_commit_seqno").to_pylist())) == MANY


def test_rows_stay_with_the_task_that_met_them_where_the_order_was_named(tables: TableBuilder) -> None:
    table = bulk_inserted(tables, scattered(MANY, cities=150), hoodie__bulkinsert__sort__mode="NONE")
    assert {len(each) for each in keys_by_file(tables, table).values()} == {2}


def test_rows_of_few_partitions_stay_with_the_task_that_met_them(tables: TableBuilder) -> None:
    table = bulk_inserted(tables, scattered(MANY, cities=64))
    assert {len(each) for each in keys_by_file(tables, table).values()} == {2}


@pytest.mark.parametrize("operation", ["insert_overwrite", "insert_overwrite_table"])
def test_an_overwrite_of_many_partitions_makes_one_file_in_each(tables: TableBuilder, operation: str) -> None:
    table = tables.create(schema=SCHEMA)
    table.upsert(marked(("old", "city-003", False), ("other", "elsewhere", False)))
    rows = scattered(MANY, cities=100)
    getattr(table, operation)(rows)
    kept = {row["id"] for row in rows.to_pylist() if not row["_hoodie_is_deleted"]}
    others = {"other"} if operation == "insert_overwrite" else set()
    assert set(table.read(columns=["id"]).column("id").to_pylist()) == kept | others
    files = [each for each in table.files() if each.group.partition != "elsewhere"]
    assert len(files) == 100


def test_an_order_that_is_not_known_is_refused_by_name(tables: TableBuilder) -> None:
    with pytest.raises(InvalidRequestError, match=r"'ZORDER' is not known\. Use one of NONE, PARTITION_SORT"):
        tables.create(schema=SCHEMA, options={SORT_MODE: "ZORDER"}).bulk_insert(shuffled(10))


def marked(*rows: tuple[str, str, bool]) -> pa.Table:
    values = [{"id": key, "city": city, "ts": 1, "_hoodie_is_deleted": deleted} for key, city, deleted in rows]
    return pa.Table.from_pylist(values, schema=SCHEMA)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hoodie.combine.before.insert": "true"},
        {"hoodie.index.type": "BUCKET"},
        {SORT_MODE: "PARTITION_PATH_REPARTITION"},
    ],
    ids=str,
)
@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_a_bulk_insert_stores_rows_that_are_marked_as_deleted(
    tables: TableBuilder, table_type: str, options: dict[str, str]
) -> None:
    table = tables.create(schema=SCHEMA, table_type=table_type, options=options)
    table.bulk_insert(marked(("a", "sf", False), ("b", "sf", True)))
    assert sorted(table.read().column("id").to_pylist()) == ["a", "b"]


@pytest.mark.parametrize("combines", ["true", "false"])
@pytest.mark.parametrize("operation", ["insert_overwrite", "insert_overwrite_table"])
@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_an_overwrite_leaves_out_rows_that_are_marked_as_deleted(
    tables: TableBuilder, table_type: str, operation: str, combines: str
) -> None:
    table = tables.create(schema=SCHEMA, table_type=table_type, options={"hoodie.combine.before.insert": combines})
    table.upsert(marked(("a", "sf", False), ("b", "la", False), ("c", "ny", False)))
    # All rows that overwrite `la` are deleted: nothing is left of it.
    overwrite = getattr(table, operation)
    overwrite(marked(("a", "sf", True), ("d", "sf", False), ("e", "la", True)))
    expected = ["c", "d"] if operation == "insert_overwrite" else ["d"]
    assert sorted(table.read().column("id").to_pylist()) == expected


@pytest.mark.parametrize("table_type", ["cow", "mor"])
@pytest.mark.parametrize("combines", ["true", "false"])
def test_duplicate_keys_of_a_delete_delete_once_whether_or_not_they_are_combined(
    tables: TableBuilder, table_type: str, combines: str
) -> None:
    table = tables.create(schema=SCHEMA, table_type=table_type, options={"hoodie.combine.before.delete": combines})
    table.upsert(marked(("a", "sf", False), ("b", "sf", False)))
    result = table.delete(marked(("a", "sf", False), ("a", "sf", False)))
    assert table.read().column("id").to_pylist() == ["b"]
    assert result.rows_deleted == (2 if (table_type, combines) == ("mor", "false") else 1)
