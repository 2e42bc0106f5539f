"""Writes that do not fit how the table lies in its files: another index, another number of buckets, nested partitions.

Each would make rows that nobody finds, or rows that are there twice; each is refused.
"""

from __future__ import annotations

import pytest

from tablekeeper.errors import CorruptTableError, InvalidRequestError
from tablekeeper.timeline.properties_file import change_properties
from tests.support.table_builder import TableBuilder, listing, rows_of, trips

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
WRITES = ["upsert", "insert", "delete", "bulk_insert", "insert_overwrite", "insert_overwrite_table"]


@pytest.mark.parametrize("operation", WRITES)
def test_a_bucket_table_is_not_written_as_a_plain_one(tables: TableBuilder, table_type: str, operation: str) -> None:
    table = tables.create(table_type=table_type, options=BUCKETS)
    table.upsert(trips(*((str(n), "sf", 1, 1.0) for n in range(20))))
    plain = tables.through(table, options={"hoodie.index.type": "SIMPLE"})
    before = rows_of(table.read())
    with pytest.raises(InvalidRequestError, match=r"hoodie\.bucket\.index\.num\.buckets"):
        getattr(plain, operation)(trips(("1", "sf", 2, 2.0)))
    assert rows_of(table.read()) == before


def test_a_plain_table_is_not_written_as_a_bucket_table(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 2.0)))
    before = listing(tables.storage(table))
    with pytest.raises(InvalidRequestError, match="is no bucket"):
        tables.through(table, options=BUCKETS).upsert(trips(("a", "sf", 2, 2.0)))
    assert listing(tables.storage(table)) == before


def test_a_table_with_logs_is_not_taken_for_copy_on_write(tables: TableBuilder) -> None:
    """The next version of the file would be written without them."""
    table = tables.create(table_type="mor")
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    storage = tables.storage(table)
    change_properties(storage, {"hoodie.table.type": "COPY_ON_WRITE"})
    for call in (table.read, lambda: table.upsert(trips(("b", "sf", 3, 3.0))), table.cluster):
        with pytest.raises(CorruptTableError, match="is copy on write, and sf/"):
            call()
    assert [finding.kind for finding in table.doctor().findings] == ["unreadable-table"]
    change_properties(storage, {"hoodie.table.type": "MERGE_ON_READ"})
    table.compact()
    change_properties(storage, {"hoodie.table.type": "COPY_ON_WRITE"})
    table.upsert(trips(("b", "sf", 3, 3.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 3.0)]


@pytest.mark.parametrize("count", ["2", "3", "5", "8"])
def test_another_number_of_buckets_than_the_table_has_is_refused(
    tables: TableBuilder, table_type: str, count: str
) -> None:
    table = tables.create(table_type=table_type, options=BUCKETS)
    table.upsert(trips(*((str(n), "sf", 1, 1.0) for n in range(40))))
    other = tables.through(table, options={"hoodie.bucket.index.num.buckets": count})
    before = listing(tables.storage(table))
    with pytest.raises(InvalidRequestError, match=rf"num\.buckets is {count}"):
        other.upsert(trips(("1", "sf", 2, 2.0)))
    assert listing(tables.storage(table)) == before


@pytest.mark.parametrize(("first", "second"), [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a"), ("a", "a/b/c")])
def test_a_partition_inside_another_is_refused_because_readers_would_not_find_it(
    tables: TableBuilder, table_type: str, first: str, second: str
) -> None:
    table = tables.create(table_type=table_type)
    table.upsert(trips(("x", first, 1, 1.0), ("y", "ab", 1, 1.0)))
    before = rows_of(table.read())
    for operation in (table.upsert, table.bulk_insert):
        with pytest.raises(InvalidRequestError, match="would lie inside"):
            operation(trips(("z", second, 1, 1.0)))
        assert rows_of(table.read()) == before
    with pytest.raises(InvalidRequestError, match="would lie inside"):
        table.upsert(trips(("z", "new", 1, 1.0), ("z", "new/er", 1, 1.0)))
    table.upsert(trips(("z", f"{first}b", 1, 1.0), ("z", "other/place", 1, 1.0)))
    assert len(rows_of(table.read())) == len(before) + 2


def test_encoded_partition_paths_do_not_nest(tables: TableBuilder) -> None:
    table = tables.create(options={"hoodie.datasource.write.partitionpath.urlencode": "true"})
    table.upsert(trips(("x", "a", 1, 1.0), ("y", "a/b", 1, 1.0)))
    assert rows_of(table.read(), "city") == [("a",), ("a/b",)]
