"""Wrong requests, damaged tables and stores that refuse: one clear error each, and nothing is changed."""

from __future__ import annotations

import datetime as dt
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import (
    CorruptTableError,
    InvalidRequestError,
    StorageError,
    TablekeeperError,
    UnsupportedFeatureError,
)
from tablekeeper.storage import Storage
from tablekeeper.storage.faults import storage_fault
from tests.support.storage_wrappers import WatchedStorage
from tests.support.table_builder import TRIPS, TableBuilder, listing, rows_of, trips

T = TypeVar("T")
Call = Callable[[tk.Table], object]

ROWS = trips(("a", "sf", 1, 1.0), ("b", "la", 1, 2.0))
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
NESTED = pa.schema([*TRIPS, ("at", pa.struct([("ts", pa.int64())])), ("tags", pa.list_(pa.string()))])


@pytest.fixture
def table(tables: TableBuilder, table_type: str) -> tk.Table:
    """Two rows, and for MOR a log."""
    made = tables.create(table_type=table_type)
    made.upsert(ROWS)
    made.upsert(trips(("a", "sf", 2, 3.0)))
    return made


def refused(tables: TableBuilder, table: tk.Table, call: Call, *, kind: type[TablekeeperError], message: str) -> str:
    """The message, after checking that not one object of the table was touched."""
    before = listing(tables.storage(table))
    with pytest.raises(kind, match=message) as caught:
        call(table)
    assert listing(tables.storage(table)) == before
    return str(caught.value)


STAGED = ["upsert", "insert", "delete"]
WRITES = [*STAGED, "bulk_insert", "insert_overwrite", "insert_overwrite_table"]


@pytest.mark.parametrize("operation", WRITES)
@pytest.mark.parametrize("column", ["id", "city"])
def test_rows_without_a_key_or_partition_column_are_refused(
    tables: TableBuilder, table: tk.Table, operation: str, column: str
) -> None:
    rows = ROWS.drop_columns([column])
    refused(
        tables, table, lambda t: getattr(t, operation)(rows), kind=InvalidRequestError, message=f"no column {column}"
    )


def test_rows_without_the_ordering_column_are_refused(tables: TableBuilder, table: tk.Table) -> None:
    rows = ROWS.drop_columns(["ts"])
    refused(tables, table, lambda t: t.upsert(rows), kind=InvalidRequestError, message="no column ts")


@pytest.mark.parametrize("operation", WRITES)
@pytest.mark.parametrize("key", [None, ""])
def test_null_and_empty_keys_are_refused_with_their_number(
    tables: TableBuilder, table: tk.Table, operation: str, key: str | None
) -> None:
    rows = trips(("c", "sf", 1, 1.0), (key, "sf", 1, 1.0), (key, "la", 1, 1.0))
    message = "2 of 3 rows have a null or empty record key"
    refused(tables, table, lambda t: getattr(t, operation)(rows), kind=InvalidRequestError, message=message)


def test_a_null_key_found_late_in_a_bulk_insert_leaves_the_rows_as_they_were(
    tables: TableBuilder, table: tk.Table
) -> None:
    good = trips(*((f"k{n}", f"p{n}", 1, 1.0) for n in range(200)))
    bad = trips((None, "sf", 1, 1.0))
    small = tables.through(table, options={"tablekeeper.write.task.memory.bytes": "1000"})
    reader = pa.RecordBatchReader.from_batches(TRIPS, [*good.to_batches(max_chunksize=10), *bad.to_batches()])
    before = rows_of(table.read())
    with pytest.raises(InvalidRequestError, match="1 of 1 rows have a null or empty record key"):
        small.bulk_insert(reader)
    assert rows_of(table.read()) == before
    data = [f.path for f in tables.storage(table).walk("") if not f.path.startswith(".hoodie")]
    assert [path for path in data if path.startswith("p")] == []


@pytest.mark.parametrize("rows", [ROWS.slice(0, 0), TRIPS.empty_table()], ids=["slice", "no chunks"])
@pytest.mark.parametrize("operation", WRITES)
def test_a_write_without_rows_is_refused(tables: TableBuilder, table: tk.Table, operation: str, rows: pa.Table) -> None:
    refused(tables, table, lambda t: getattr(t, operation)(rows), kind=InvalidRequestError, message="has no rows")


def test_a_reader_without_batches_is_refused(tables: TableBuilder, table: tk.Table) -> None:
    reader = pa.RecordBatchReader.from_batches(TRIPS, [])
    refused(tables, table, lambda t: t.upsert(reader), kind=InvalidRequestError, message="has no rows")


@pytest.mark.parametrize(
    "rows",
    [[{"id": "a"}], {"id": ["a"]}, None, []],
    ids=["list", "dict", "None", "[]"],
)
def test_rows_of_another_kind_than_the_engine_takes_are_refused(
    tables: TableBuilder, table: tk.Table, rows: Any
) -> None:
    message = refused(tables, table, lambda t: t.upsert(rows), kind=InvalidRequestError, message="takes pyarrow tables")
    assert "from_pylist" in message


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.field("fare", pa.bool_()), "column fare: table has double, data has bool"),
        (pa.field("ts", pa.bool_()), "column ts: table has int64, data has bool"),
        (pa.field("ts", pa.timestamp("us")), "column ts: table has int64, data has timestamp"),
        (pa.field("ts", pa.list_(pa.int64())), "column ts: table has int64, data has list"),
        (pa.field("new", pa.uint64()), "cast it to decimal"),
        (pa.field("new", pa.null()), "give it a type"),
        (pa.field("FARE", pa.float64()), "differs only in case"),
        (pa.field("spaced name", pa.float64()), "rename it"),
    ],
    ids=str,
)
def test_a_schema_that_does_not_fit_is_refused_with_what_differs(
    tables: TableBuilder, table: tk.Table, column: pa.Field, message: str
) -> None:
    kept = [field for field in TRIPS if field.name != column.name]
    schema = pa.schema([*kept, column])
    rows = pa.Table.from_pylist([{"id": "c", "city": "sf", "ts": None if column.name == "ts" else 1}], schema=schema)
    refused(tables, table, lambda t: t.upsert(rows), kind=InvalidRequestError, message=message)


def test_a_value_that_does_not_fit_the_tables_type_is_refused(tables: TableBuilder) -> None:
    schema = pa.schema([("id", pa.string()), ("price", pa.decimal128(4, 2)), ("at", pa.timestamp("ms"))])
    table = tables.create(schema=schema, partition_by=None, ordering=None)
    table.insert(trips(("a", 1, dt.datetime(2024, 1, 1)), schema=schema))
    finer = schema.set(2, pa.field("at", pa.timestamp("us")))
    rows = trips(("a", 1, dt.datetime(2024, 1, 1, 0, 0, 0, 1)), schema=finer)
    refused(tables, table, lambda t: t.upsert(rows), kind=InvalidRequestError, message="column at")


@pytest.mark.parametrize("name", ["id", "p"])
def test_a_key_or_partition_column_gets_no_type_that_changes_its_text(tables: TableBuilder, name: str) -> None:
    schema = pa.schema([("id", pa.int32()), ("p", pa.int32()), ("v", pa.int64())])
    table = tables.create(schema=schema, partition_by="p", ordering=None)
    table.insert(trips((1, 1, 1), schema=schema))
    position = schema.get_field_index(name)
    floating = trips((1, 1, 2), schema=schema.set(position, pa.field(name, pa.float64())))
    refused(tables, table, lambda t: t.upsert(floating), kind=InvalidRequestError, message=f"column {name}: ")
    table.upsert(trips((1, 1, 2), schema=schema.set(position, pa.field(name, pa.int64()))))
    assert rows_of(table.read()) == [(1, 1, 2)]


def test_duplicate_columns_are_refused(tables: TableBuilder, table: tk.Table) -> None:
    rows = pa.Table.from_arrays([*ROWS.columns, ROWS.column("ts")], names=[*ROWS.column_names, "ts"])
    refused(tables, table, lambda t: t.upsert(rows), kind=InvalidRequestError, message="ts")


@pytest.mark.parametrize("write", ["upsert", "insert", "bulk_insert", "insert_overwrite"])
def test_marks_of_deleted_rows_are_booleans(table: tk.Table, write: str) -> None:
    rows = trips(("a", "sf", 1, 1.0)).append_column("_hoodie_is_deleted", pa.array(["no"]))
    with pytest.raises(InvalidRequestError, match="_hoodie_is_deleted marks rows as deleted and takes booleans"):
        getattr(table, write)(rows)


@pytest.mark.parametrize("flag", ["fix", "yes", "deep"])
def test_a_text_is_no_consent_to_what_the_doctor_deletes(table: tk.Table, flag: str) -> None:
    given: dict[str, Any] = {flag: "no"}
    with pytest.raises(InvalidRequestError, match=f"{flag}='no': give True or False"):
        table.doctor(**given)


@pytest.mark.parametrize("operation", WRITES)
def test_too_many_partitions_in_one_write_are_refused_with_a_number(
    tables: TableBuilder, table: tk.Table, operation: str
) -> None:
    rows = trips(*((str(n), f"p{n}", 1, 1.0) for n in range(11)))
    narrow = tables.through(table, options={"tablekeeper.write.max.partitions": "10"})
    write = getattr(narrow, operation)
    message = refused(tables, table, lambda _: write(rows), kind=InvalidRequestError, message="at least 11 partitions")
    assert "tablekeeper.write.max.partitions" in message


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"hoodie.parquet.max.filesize": "1"}, "hoodie.parquet.max.file.size"),
        ({"hoodie.index.typ": "BUCKET"}, "Did you mean 'hoodie.index.type'"),
        ({"hoodie.parquet.max.file.size": "many"}, "not a valid int"),
        ({"hoodie.parquet.max.file.size": "0"}, "0 is too small, the least is 1"),
        ({"hoodie.combine.before.upsert": "maybe"}, "not a valid bool"),
        ({"hoodie.index.type": "HBASE"}, "HBASE is not supported"),
        ({"hoodie.logfile.data.block.format": "hfile"}, "Use one of parquet, avro"),
        ({"hoodie.index.type": "BUCKET", "hoodie.bucket.index.hash.field": "fare"}, "by the key alone"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_before_anything_is_made(
    tables: TableBuilder, option: dict[str, str], message: str
) -> None:
    place = tables.new_place()
    with pytest.raises((InvalidRequestError, UnsupportedFeatureError), match=message):
        tables.create(place, options=option)
    with pytest.raises(InvalidRequestError, match="is not a Hudi table"):
        tk.Table.open(place, engine="local")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "nope"}, "key: the schema has no column 'nope'"),
        ({"key": []}, "needs a key"),
        ({"key": ["id", "id"]}, "named twice"),
        ({"partition_by": "nope"}, "partition_by: the schema has no column"),
        ({"ordering": "nope"}, "ordering: the schema has no column"),
        ({"key": "at.nope", "schema": NESTED}, "no column at.nope"),
        ({"key": "at", "schema": NESTED}, "key: column at is struct"),
        ({"partition_by": ["tags"], "schema": NESTED}, "partition_by: column tags is list"),
        ({"ordering": "tags", "schema": NESTED}, "ordering: column tags is list"),
        ({"ordering": "at.ts", "schema": NESTED}, "ordering: column at.ts lies inside"),
        ({"table_type": "log"}, "use 'cow'"),
        ({"schema": pa.schema([("id", pa.uint8()), ("city", pa.string()), ("ts", pa.int64())])}, "cast it to int32"),
        ({"ordering": None, "options": {"hoodie.record.merge.mode": "EVENT_TIME_ORDERING"}}, "needs an ordering"),
        ({"options": {"hoodie.record.merge.mode": "NEWEST"}}, "use EVENT_TIME_ORDERING"),
    ],
    ids=str,
)
def test_a_table_that_cannot_be_is_not_made(tables: TableBuilder, arguments: dict[str, Any], message: str) -> None:
    place = tables.new_place()
    with pytest.raises(InvalidRequestError, match=message):
        tables.create(place, **arguments)
    with pytest.raises(InvalidRequestError, match="is not a Hudi table"):
        tk.Table.open(place, engine="local")


def test_a_table_without_a_name_is_not_made(tables: TableBuilder) -> None:
    with pytest.raises(InvalidRequestError, match="needs a name"):
        tk.Table.create(tables.new_place(), name="", schema=TRIPS, key="id", engine="local")


def test_the_engine_must_be_chosen_clearly(tables: TableBuilder) -> None:
    with pytest.raises(InvalidRequestError, match="pass spark="):
        tk.Table.open(tables.new_place())
    with pytest.raises(InvalidRequestError, match="use 'spark'"):
        tk.Table.open(tables.new_place(), engine="dask")


def test_a_path_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is not a Hudi table"):
        tk.Table.open(tmp_path / "nothing", engine="local")
    assert not (tmp_path / "nothing").exists()


def test_a_table_is_not_created_twice_and_keeps_its_options(tables: TableBuilder, table: tk.Table) -> None:
    def again(existing: tk.Table) -> None:
        tables.create(existing.path, options=BUCKETS)

    refused(tables, table, again, kind=InvalidRequestError, message="a table at .* already")
    reopened = tk.Table.open(table.path, engine="local")
    reopened.upsert(trips(("a", "sf", 9, 9.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 9.0), ("b", 2.0)]


def edit_properties(storage: Storage, old: bytes, new: bytes) -> None:
    path = ".hoodie/hoodie.properties"
    content = storage.read(path)
    assert old in content
    storage.put(path, content.replace(old, new))


def test_a_version_that_is_too_new_is_refused(tables: TableBuilder, table: tk.Table) -> None:
    edit_properties(tables.storage(table), b"hoodie.table.version=9", b"hoodie.table.version=10")
    refused(tables, table, lambda t: t.upsert(ROWS), kind=UnsupportedFeatureError, message="Upgrade tablekeeper")
    refused(tables, table, lambda t: t.read(), kind=UnsupportedFeatureError, message="version 10")


def test_rows_that_lie_outside_of_the_table_are_not_read_as_missing_ones(tables: TableBuilder, table: tk.Table) -> None:
    name = b"hoodie.table.name=trips"
    edit_properties(tables.storage(table), name, name + b"\nhoodie.bootstrap.base.path=/elsewhere")
    refused(tables, table, lambda t: t.read(), kind=UnsupportedFeatureError, message="bootstrapped")


def test_a_table_with_a_change_log_is_read_and_not_written(tables: TableBuilder, table: tk.Table) -> None:
    name = b"hoodie.table.name=trips"
    edit_properties(tables.storage(table), name, name + b"\nhoodie.table.cdc.enabled=true")
    refused(tables, table, lambda t: t.upsert(ROWS), kind=UnsupportedFeatureError, message="change log")
    assert table.read().num_rows == ROWS.num_rows


@pytest.mark.parametrize(
    "line",
    [
        b"hoodie.table.partial.update.mode=IGNORE_DEFAULTS",
        b"hoodie.record.merge.property.hoodie.payload.delete.field=Op",
    ],
)
def test_merging_that_only_java_knows_is_refused_and_base_files_can_be_read(tables: TableBuilder, line: bytes) -> None:
    table = tables.create(table_type="mor")
    table.upsert(ROWS)
    table.upsert(trips(("a", "sf", 2, 3.0)))
    edit_properties(tables.storage(table), b"hoodie.table.name=trips", line + b"\nhoodie.table.name=trips")
    refused(tables, table, lambda t: t.read(), kind=UnsupportedFeatureError, message="only Java knows")
    refused(tables, table, lambda t: t.upsert(ROWS), kind=UnsupportedFeatureError, message="only Java knows")
    assert table.read(mode="read_optimized").num_rows == 2


def test_damaged_properties_are_refused(tables: TableBuilder, table: tk.Table) -> None:
    edit_properties(tables.storage(table), b"hoodie.table.name=trips", b"hoodie.table.name=other")
    refused(tables, table, lambda t: t.read(), kind=CorruptTableError, message="checksum")


def test_an_unknown_log_block_is_refused_with_the_file_name(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor")
    table.upsert(ROWS)
    table.upsert(trips(("a", "sf", 2, 3.0)))
    log = next(s.logs[0] for s in table.files() if s.logs)
    storage = tables.storage(table)
    content = bytearray(storage.read(log.path))
    # Magic, size and format version come before the type.
    struct.pack_into(">i", content, 6 + 8 + 4, 99)
    storage.put(log.path, bytes(content))
    message = refused(tables, table, lambda t: t.read(), kind=UnsupportedFeatureError, message="type 99")
    assert log.name in message


@pytest.mark.parametrize("call", ["read", "upsert", "delete"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "page"])
def test_a_damaged_base_file_is_reported_with_its_name(
    tables: TableBuilder, table: tk.Table, call: str, damage: str
) -> None:
    storage = tables.storage(table)
    base = next(s.base for s in table.files() if s.group.partition == "sf")
    assert base is not None
    content = storage.read(base.path)
    # A page header that does not parse, behind a footer that does.
    page = content[:4] + b"\xff" * (len(content) // 3) + content[4 + len(content) // 3 :]
    broken = {"cut": content[: len(content) // 2], "garbage": b"x" * 500, "empty": b"", "page": page}[damage]
    storage.put(base.path, broken)
    calls: dict[str, Call] = {
        "read": lambda t: t.read(),
        "upsert": lambda t: t.upsert(ROWS),
        "delete": lambda t: t.delete(ROWS),
    }
    message = refused(tables, table, calls[call], kind=CorruptTableError, message="doctor")
    assert base.name in message


def test_a_damaged_log_block_is_reported_with_the_file_name(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor")
    table.upsert(ROWS)
    table.upsert(trips(("a", "sf", 2, 3.0)))
    log = next(s.logs[0] for s in table.files() if s.logs)
    storage = tables.storage(table)
    content = storage.read(log.path)
    start, end = content.index(b"PAR1") + 4, content.index(b"PAR1") + len(content) // 4
    storage.put(log.path, content[:start] + b"\xff" * (end - start) + content[end:])
    message = refused(tables, table, lambda t: t.read(), kind=CorruptTableError, message="doctor")
    assert log.name in message


def test_a_damaged_commit_is_reported_with_the_file_name(tables: TableBuilder, table: tk.Table) -> None:
    storage = tables.storage(table)
    commit = next(f for f in reversed(storage.list_files(".hoodie/timeline")) if f.name.endswith("commit"))
    storage.put(commit.path, b"garbage")
    message = refused(tables, table, lambda t: t.read(), kind=CorruptTableError, message="doctor")
    assert commit.name in message
    refused(tables, table, lambda t: t.upsert(ROWS), kind=CorruptTableError, message="doctor")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"where": "nope = 1"}, "no column nope"),
        ({"where": "ts ="}, "ts ="),
        ({"where": "ts = 'x'"}, "cannot be compared"),
        ({"where": "drop table trips"}, "drop table"),
        ({"columns": ["nope"]}, "no column 'nope'"),
        ({"columns": []}, "at least one column"),
        ({"columns": ["id", "id"]}, "none twice"),
        ({"columns": "id"}, "takes a list"),
        ({"mode": "fast"}, "use 'snapshot'"),
        ({"as_of": "yesterday"}, "is not a moment"),
        ({"as_of": 20240101}, "is not a moment"),
        ({"as_of": ""}, "is not a moment"),
        ({"as_of": "2001-01-01"}, "no commit at or before"),
        ({"as_of": dt.datetime(2001, 1, 1, tzinfo=dt.UTC)}, "no commit at or before"),
    ],
    ids=str,
)
def test_a_read_that_makes_no_sense_is_refused(
    tables: TableBuilder, table: tk.Table, arguments: dict[str, Any], message: str
) -> None:
    refused(tables, table, lambda t: t.read(**arguments), kind=InvalidRequestError, message=message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"since": "soon"}, "is not a moment"),
        ({"until": "x"}, "is not a moment"),
        ({"where": "nope = 1"}, "no column nope"),
        ({"columns": ["nope"]}, "no column 'nope'"),
    ],
    ids=str,
)
def test_changes_that_make_no_sense_are_refused(
    tables: TableBuilder, table: tk.Table, arguments: dict[str, Any], message: str
) -> None:
    refused(tables, table, lambda t: t.changes(**arguments), kind=InvalidRequestError, message=message)


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ("sf", "takes a list"),
        ([], "takes a list"),
        (["nope"], "no rows in the partitions nope"),
        (["../sf"], "not a path inside"),
        (["sf/"], "not a path inside"),
    ],
    ids=str,
)
def test_deleting_partitions_that_are_not_there_is_refused(
    tables: TableBuilder, table: tk.Table, partitions: Any, message: str
) -> None:
    refused(tables, table, lambda t: t.delete_partitions(partitions), kind=InvalidRequestError, message=message)


class DeniedStorage(WatchedStorage):
    """Every change from the `first` on fails with `code`, the way a file system says it."""

    def __init__(self, storage: Storage, code: int, *, first: int = 1, once: bool = False) -> None:
        super().__init__(storage)
        self._code = code
        self._first = first
        self._once = once
        self.changes = 0

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        if kind in ("put", "put_if_absent", "replace", "open_output"):
            self.changes += 1
            if self.changes == self._first or (self.changes > self._first and not self._once):
                raise storage_fault(OSError(self._code, os.strerror(self._code)), action="write", location=path)
        return call()


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("operation", WRITES)
def test_a_store_that_cannot_be_written_is_reported_and_still_read(
    tables: TableBuilder, table: tk.Table, operation: str, code: int
) -> None:
    denied = tables.through(table, DeniedStorage(tables.storage(table), code))
    message = "read-only" if code == errno.EROFS else "permission denied"
    refused(tables, table, lambda _: getattr(denied, operation)(ROWS), kind=StorageError, message=message)
    assert rows_of(denied.read()) == rows_of(table.read())


@pytest.mark.parametrize("operation", WRITES)
@pytest.mark.parametrize("stays_full", [False, True], ids=["one write fails", "full from then on"])
def test_a_disk_that_gets_full_at_any_write_leaves_the_old_rows_and_the_next_write_succeeds(
    tables: TableBuilder, table_type: str, operation: str, stays_full: bool
) -> None:
    for first in range(1, 40):
        table = tables.create(table_type=table_type)
        table.upsert(ROWS)
        before = rows_of(table.read())
        store = DeniedStorage(tables.storage(table), errno.ENOSPC, first=first, once=not stays_full)
        tight = tables.through(table, store)
        failure: Exception | None = None
        try:
            getattr(tight, operation)(trips(("a", "sf", 5, 5.0), ("n", "ny", 5, 5.0)))
        except StorageError as error:
            failure = error
        if store.changes < first:
            break
        assert "disk is full" in str(failure), f"write {first}"
        assert rows_of(table.read()) == before, f"write {first}"
        table.upsert(trips(("z", "sf", 1, 1.0)))
        assert ("z", "sf", 1, 1.0) in rows_of(table.read())
    else:
        pytest.fail("the write never ended")
