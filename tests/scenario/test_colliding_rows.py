"""Rows that differ in their columns and would have one key in one partition: refused, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tablekeeper.errors import InvalidRequestError
from tests.support.table_builder import TableBuilder, listing, rows_of, trips

__all__: list[str] = []

HIVE = {"hoodie.datasource.write.hive_style_partitioning": True}
ENCODED = {"hoodie.datasource.write.partitionpath.urlencode": True}
TWO = pa.schema([("id", pa.string()), ("x", pa.string()), ("y", pa.string()), ("v", pa.int64())])
DEFAULT = "__HIVE_DEFAULT_PARTITION__"


OPERATIONS = ["upsert", "insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table", "delete"]
PARTITIONS: list[tuple[dict[str, Any], tuple[Any, Any], tuple[Any, Any]]] = [
    ({}, ("a/b", "c"), ("a", "b/c")),
    (HIVE, ("a/y=b", "c"), ("a", "b/y=c")),
    ({}, ("", "c"), (None, "c")),
    ({}, (DEFAULT, "c"), (None, "c")),
    (HIVE, ("a", ""), ("a", None)),
    (ENCODED, ("a", DEFAULT), ("a", None)),
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", PARTITIONS)
def test_values_that_share_a_partition_path_are_refused(
    tables: TableBuilder, table_type: str, operation: str, case: tuple[dict[str, Any], tuple[Any, Any], tuple[Any, Any]]
) -> None:
    options, one, other = case
    table = tables.create(schema=TWO, partition_by=["x", "y"], ordering=None, table_type=table_type, options=options)
    table.upsert(trips(("k", "p", "q", 0), schema=TWO))
    before = listing(tables.storage(table))
    rows = trips(("k", *one, 1), ("k", *other, 2), schema=TWO)
    with pytest.raises(InvalidRequestError, match=r"partition column .* different rows would become one"):
        getattr(table, operation)(rows)
    if operation not in ("bulk_insert", "insert_overwrite", "insert_overwrite_table"):
        assert listing(tables.storage(table)) == before
    assert rows_of(table.read(), "v") == [(0,)]


@pytest.mark.parametrize(
    ("options", "values"),
    [
        (ENCODED, [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), (None, "c"), ("a ", "c"), ("A", "c")]),
        (HIVE, [("a/b", "c"), ("a", "b/c"), ("a", "c"), ("y=1", "c"), (None, None)]),
        ({}, [("a", "b"), ("a ", "b"), ("A", "b"), (None, "b"), ("a", None), ("a:b", "b,c")]),
    ],
)
def test_values_with_paths_of_their_own_stay_apart(
    tables: TableBuilder, table_type: str, options: dict[str, Any], values: list[tuple[Any, Any]]
) -> None:
    table = tables.create(schema=TWO, partition_by=["x", "y"], ordering=None, table_type=table_type, options=options)
    rows = [("k", *pair, number) for number, pair in enumerate(values)]
    table.upsert(trips(*rows, schema=TWO))
    table.upsert(trips(*rows, schema=TWO))
    assert rows_of(table.read(), "x", "y") == sorted(values, key=repr)


KEYS: list[tuple[tuple[Any, Any], tuple[Any, Any]]] = [
    (("1,y:2", "3"), ("1", "2,y:3")),
    (("__null__", "3"), (None, "3")),
    (("__empty__", "3"), ("", "3")),
    (("1", "__null__"), ("1", None)),
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("one", "other"), KEYS)
def test_parts_that_join_to_one_key_are_refused(
    tables: TableBuilder, table_type: str, operation: str, one: tuple[Any, Any], other: tuple[Any, Any]
) -> None:
    table = tables.create(schema=TWO, key=["x", "y"], partition_by=None, ordering=None, table_type=table_type)
    table.upsert(trips(("k", "p", "q", 0), schema=TWO))
    with pytest.raises(InvalidRequestError, match="rows would become one"):
        getattr(table, operation)(trips(("k", *one, 1), ("k", *other, 2), schema=TWO))
    assert rows_of(table.read(), "v") == [(0,)]


def test_a_value_is_refused_also_where_its_twin_is_in_the_table_already(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(schema=TWO, key=["x", "y"], partition_by=None, ordering=None, table_type=table_type)
    table.upsert(trips(("k", None, "3", 0), schema=TWO))
    for operation in (table.upsert, table.delete):
        with pytest.raises(InvalidRequestError, match="'__null__', which stands for a missing value"):
            operation(trips(("k", "__null__", "3", 1), schema=TWO))
    assert rows_of(table.read(), "x", "v") == [(None, 0)]


def test_commas_and_colons_that_leave_a_key_clear_are_taken(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(schema=TWO, key=["x", "y"], partition_by=None, ordering=None, table_type=table_type)
    pairs = [("1,x:2", "3"), ("1", "2,3"), ("y:1", "2"), ("1,", ",2"), ("a,b", "c:d"), ("", "1"), (None, "1")]
    rows = trips(*(("k", *pair, number) for number, pair in enumerate(pairs)), schema=TWO)
    table.upsert(rows)
    table.upsert(rows)
    assert rows_of(table.read(), "x", "y") == sorted(pairs, key=repr)


def test_a_slash_in_a_single_partition_column_is_a_deeper_folder(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(schema=TWO, partition_by="x", ordering=None, table_type=table_type)
    table.upsert(trips(("k", "a/b", "", 1), ("k", "c", "", 2), ("k", None, "", 3), schema=TWO))
    assert rows_of(table.read(), "x", "v") == [("a/b", 1), ("c", 2), (None, 3)]
