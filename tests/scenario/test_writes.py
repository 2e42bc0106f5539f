"""Every write operation from rows to rows, on both table types, compared with a plain model after each commit."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.record.partition_paths import partition_paths, partition_spec
from tests.support.history import History, Model, Step, history_seeds, make_history
from tests.support.rows import describe_difference, exact_rows
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

TOMBSTONES = pa.schema([*TRIPS, ("_hoodie_is_deleted", pa.bool_())])
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}


@pytest.fixture(params=["simple", "bucket"])
def index(request: pytest.FixtureRequest) -> dict[str, str]:
    return BUCKETS if request.param == "bucket" else {}


def write(table: tk.Table, step: Step, history: History) -> tk.WriteResult:
    """Execute one step of a history."""
    if step.operation != "delete_partitions":
        result: tk.WriteResult = getattr(table, step.operation)(history.shape.table(step.rows))
        return result
    names = history.shape.partition_by
    schema = pa.schema([history.shape.schema.field(name) for name in names])
    values = pa.Table.from_pylist([dict(zip(names, each, strict=True)) for each in step.partitions], schema=schema)
    return table.delete_partitions(partition_paths(values, partition_spec(table.config)).dictionary.to_pylist())


def create(tables: TableBuilder, history: History, *, place: str | None = None) -> tk.Table:
    shape = history.shape
    return tables.create(
        place,
        schema=shape.schema,
        key=shape.key,
        partition_by=shape.partition_by or None,
        ordering=shape.ordering,
        table_type=shape.table_type,
        options=shape.options,
    )


@pytest.mark.parametrize("seed", history_seeds())
def test_a_random_history_reads_as_the_model_says_now_and_at_every_moment(tables: TableBuilder, seed: int) -> None:
    history = make_history(seed, steps=8)
    table, model = create(tables, history), Model(history.shape)
    states: list[tuple[Any, list[str]]] = []
    for number, step in enumerate(history.steps):
        result = write(table, step, history)
        model.apply(step)
        states.append((result.instant, exact_rows(model.table())))
        difference = describe_difference(expected=states[-1][1], actual=exact_rows(table.read()))
        assert not difference, f"{history}, step {number}: {difference}"
    for instant, expected in states:
        difference = describe_difference(expected=expected, actual=exact_rows(table.read(as_of=instant)))
        assert not difference, f"{history}, as of {instant}: {difference}"


@pytest.mark.parametrize("seed", [0, 1, 6, 7])
def test_a_random_history_on_a_file_system_reads_as_the_model_says(
    tables: TableBuilder, table_path: str, seed: int
) -> None:
    history = make_history(seed, steps=5)
    table, model = create(tables, history, place=table_path), Model(history.shape)
    for step in history.steps:
        write(table, step, history)
        model.apply(step)
        difference = describe_difference(expected=exact_rows(model.table()), actual=exact_rows(table.read()))
        assert not difference, f"{history}, {step}: {difference}"


def test_an_upsert_updates_known_keys_and_inserts_the_others(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    first = table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 2.0), ("c", "la", 1, 3.0)))
    second = table.upsert(trips(("b", "sf", 2, 20.0), ("d", "la", 1, 4.0)))
    assert (first.rows_inserted, first.rows_updated, first.rows_deleted) == (3, 0, 0)
    # A log on a bucket takes new rows and changed ones alike, without looking which is which.
    if not (table_type == "mor" and index):
        assert (second.rows_inserted, second.rows_updated, second.rows_deleted) == (1, 1, 0)
    assert rows_of(table.read()) == [
        ("a", "sf", 1, 1.0),
        ("b", "sf", 2, 20.0),
        ("c", "la", 1, 3.0),
        ("d", "la", 1, 4.0),
    ]
    assert set(second.partitions) == {"sf", "la"}
    assert second.completed_at is not None
    assert first.instant < second.instant


def test_the_newest_of_duplicate_rows_in_the_input_wins(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 5, 1.0), ("a", "sf", 9, 2.0), ("a", "sf", 9, 3.0), ("a", "sf", 7, 4.0)))
    assert rows_of(table.read()) == [("a", "sf", 9, 3.0)]
    table.upsert(trips(("a", "sf", 12, 5.0), ("a", "sf", 10, 6.0)))
    assert rows_of(table.read()) == [("a", "sf", 12, 5.0)]


def test_with_commit_time_ordering_the_last_of_duplicate_rows_wins(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type, ordering=None)
    table.upsert(trips(("a", "sf", 5, 1.0), ("a", "sf", 9, 2.0), ("a", "sf", 7, 4.0)))
    table.upsert(trips(("a", "sf", 3, 5.0), ("a", "sf", 1, 6.0)))
    assert rows_of(table.read()) == [("a", "sf", 1, 6.0)]


def test_a_stale_row_does_not_replace_a_newer_one(tables: TableBuilder, table_type: str, index: dict[str, str]) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 5, 1.0)))
    table.upsert(trips(("a", "sf", 4, 2.0)))
    table.upsert(trips(("a", "sf", None, 3.0)))
    assert rows_of(table.read()) == [("a", "sf", 5, 1.0)]
    table.upsert(trips(("a", "sf", 5, 4.0)))
    assert rows_of(table.read()) == [("a", "sf", 5, 4.0)]


def test_a_delete_needs_keys_only_and_unknown_keys_do_no_harm(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 5, 1.0), ("b", "sf", 5, 2.0), ("a", "la", 5, 3.0)))
    result = table.delete(pa.table({"city": ["sf", "sf", "ny"], "id": ["a", "zz", "a"]}))
    assert rows_of(table.read()) == [("a", "la", 5, 3.0), ("b", "sf", 5, 2.0)]
    if not index:
        assert result.rows_deleted == 1


def test_a_delete_wins_whatever_the_ordering_value_and_the_key_can_come_back(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 50, 1.0)))
    table.delete(trips(("a", "sf", 1, None)))
    assert rows_of(table.read()) == []
    table.upsert(trips(("a", "sf", 50, 2.0)))
    assert rows_of(table.read()) == [("a", "sf", 50, 2.0)]


def test_a_deleted_key_that_comes_back_with_a_smaller_ordering_value_meets_the_row_below_its_logs(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 50, 1.0)))
    table.delete(trips(("a", "sf", 1, None)))
    table.upsert(trips(("a", "sf", 7, 2.0)))
    # A copy-on-write table has forgotten the old row. In a merge-on-read table it still lies in the base file, and
    # Java Hudi and hudi-rs compare with it, too.
    assert rows_of(table.read()) == [("a", "sf", 7, 2.0) if table_type == "cow" else ("a", "sf", 50, 1.0)]


def test_a_row_marked_as_deleted_deletes_its_key_if_it_is_not_stale(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(schema=TOMBSTONES, table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 5, 1.0), ("b", "sf", 5, 1.0), ("c", "sf", 5, 1.0, True), schema=TOMBSTONES))
    table.upsert(trips(("a", "sf", 6, None, True), ("b", "sf", 4, None, True), schema=TOMBSTONES))
    assert rows_of(table.read(), "id") == [("b",)]


def test_deleting_every_row_of_a_file_group_leaves_a_table_that_can_be_written_again(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, schema=TOMBSTONES, options=index)
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("x", "la", 1, 1.0), schema=TOMBSTONES))
    table.upsert(trips(("a", "sf", 2, None, True), ("b", "sf", 2, None, True), schema=TOMBSTONES))
    assert rows_of(table.read(), "id") == [("x",)]
    table.delete(pa.table({"id": ["x"], "city": ["la"]}))
    assert table.read().num_rows == 0
    table.insert(trips(("n", "sf", 1, 1.0), schema=TOMBSTONES))
    table.upsert(trips(("a", "sf", 3, 9.0), ("x", "la", 3, 9.0), schema=TOMBSTONES))
    assert rows_of(table.read(), "id", "fare") == [("a", 9.0), ("n", 1.0), ("x", 9.0)]


def test_an_insert_adds_rows_whether_or_not_their_keys_are_there(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    table.insert(trips(("a", "sf", 5, 1.0), ("a", "sf", 6, 2.0)))
    result = table.insert(trips(("a", "sf", 1, 3.0), ("b", "sf", 1, 4.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 1.0), ("a", 2.0), ("a", 3.0), ("b", 4.0)]
    assert result.rows_inserted == 2


def test_an_insert_drops_duplicates_of_the_input_if_told_to(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type, options={"hoodie.combine.before.insert": "true"})
    for operation in (table.insert, table.bulk_insert, table.insert_overwrite, table.insert_overwrite_table):
        operation(trips(("a", "sf", 5, 1.0), ("a", "sf", 6, 2.0), ("b", "sf", 5, 1.0)))
    assert rows_of(table.read(), "id", "ts") == [("a", 6), ("b", 5)]


def test_an_insert_into_buckets_updates_the_keys_that_are_there(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type, options=BUCKETS)
    table.insert(trips(("a", "sf", 5, 1.0)))
    table.bulk_insert(trips(("a", "sf", 6, 2.0), ("b", "sf", 5, 3.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 3.0)]


def test_a_bulk_insert_makes_new_files_and_keeps_duplicates(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    table.bulk_insert(trips(("a", "sf", 5, 1.0), ("a", "sf", 5, 1.0), ("b", "la", 5, 1.0)))
    result = table.bulk_insert(trips(("a", "sf", 5, 1.0)))
    assert table.read().num_rows == 4
    assert len(table.files()) == 3
    assert result.rows_inserted == 1


def test_an_insert_overwrite_replaces_the_partitions_that_it_falls_into(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 9, 1.0), ("b", "sf", 9, 1.0), ("c", "la", 9, 1.0)))
    table.upsert(trips(("a", "sf", 10, 2.0)))
    before = table.insert_overwrite(trips(("a", "sf", 1, 5.0), ("n", "ny", 1, 5.0))).instant
    assert rows_of(table.read(), "id", "city", "fare") == [("a", "sf", 5.0), ("c", "la", 1.0), ("n", "ny", 5.0)]
    table.upsert(trips(("a", "sf", 2, 6.0), ("b", "sf", 1, 6.0)))
    assert rows_of(table.read(where="city = 'sf'"), "id", "fare") == [("a", 6.0), ("b", 6.0)]
    assert rows_of(table.read(as_of=before), "id", "fare") == [("a", 5.0), ("c", 1.0), ("n", 5.0)]


def test_an_insert_overwrite_with_rows_that_all_delete_empties_the_partition(
    tables: TableBuilder, table_type: str
) -> None:
    table = tables.create(table_type=table_type, schema=TOMBSTONES, options=BUCKETS)
    table.upsert(trips(("a", "sf", 9, 1.0), ("c", "la", 9, 1.0), schema=TOMBSTONES))
    table.insert_overwrite(trips(("b", "sf", 9, 1.0, True), schema=TOMBSTONES))
    assert rows_of(table.read(), "id") == [("c",)]


def test_an_insert_overwrite_of_the_table_replaces_everything(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    before = table.upsert(trips(("a", "sf", 9, 1.0), ("c", "la", 9, 1.0))).instant
    table.insert_overwrite_table(trips(("z", "ny", 1, 5.0)))
    assert rows_of(table.read(), "id", "city") == [("z", "ny")]
    assert rows_of(table.read(as_of=before), "id", "city") == [("a", "sf"), ("c", "la")]
    table.upsert(trips(("a", "sf", 1, 7.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 7.0), ("z", 5.0)]


def test_deleted_partitions_are_gone_and_can_be_filled_again(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 9, 1.0), ("c", "la", 9, 1.0), ("d", "ny", 9, 1.0)))
    result = table.delete_partitions(["sf", "ny"])
    assert result.partitions == ("ny", "sf")
    assert rows_of(table.read(), "id") == [("c",)]
    table.upsert(trips(("a", "sf", 1, 7.0)))
    assert rows_of(table.read(), "id", "ts") == [("a", 1), ("c", 9)]


def test_the_same_key_in_two_partitions_is_two_rows(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 1, 1.0), ("a", "la", 1, 2.0)))
    table.upsert(trips(("a", "la", 2, 3.0)))
    assert rows_of(table.read()) == [("a", "la", 2, 3.0), ("a", "sf", 1, 1.0)]


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({}, {"2024/x y": 1, "__HIVE_DEFAULT_PARTITION__/x y": 1, "-1/50%": 1}),
        (
            {"hoodie.datasource.write.hive_style_partitioning": True},
            {"day=2024/city=x y": 1, "day=__HIVE_DEFAULT_PARTITION__/city=x y": 1, "day=-1/city=50%": 1},
        ),
        (
            {"hoodie.datasource.write.partitionpath.urlencode": True},
            {"2024/x y": 1, "__HIVE_DEFAULT_PARTITION__/x y": 1, "-1/50%25": 1},
        ),
    ],
    ids=["plain", "hive", "encoded"],
)
def test_two_levels_of_partitions_with_numbers_nulls_and_special_characters(
    tables: TableBuilder, table_type: str, options: dict[str, Any], paths: dict[str, int]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.int32()), ("city", pa.string()), ("v", pa.string())])
    table = tables.create(
        schema=schema, partition_by=["day", "city"], ordering=None, table_type=table_type, options=options
    )
    table.insert(trips((1, 2024, "x y", "a"), (1, None, "x y", "b"), (1, -1, "50%", "c"), schema=schema))
    table.upsert(trips((1, None, "x y", "B"), (1, -1, "50%", "C"), schema=schema))
    assert {s.group.partition: 1 for s in table.files()} == paths
    assert rows_of(table.read()) == rows_of(
        trips((1, 2024, "x y", "a"), (1, None, "x y", "B"), (1, -1, "50%", "C"), schema=schema)
    )
    assert rows_of(table.read(where="day = -1"), "v") == [("C",)]
    assert rows_of(table.read(where="day is null and city = 'x y'"), "v") == [("B",)]
    table.delete(pa.table({"id": [1], "day": pa.array([None], pa.int32()), "city": ["x y"]}))
    assert rows_of(table.read(), "v") == [("C",), ("a",)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [0, -1, 2**31 - 1]),
        (pa.date32(), [dt.date(2024, 2, 29), dt.date(1969, 12, 31), dt.date(1, 1, 1)]),
        (pa.string(), ["ключ", "🙂" * 3, "a:b,c:d"]),
        (pa.decimal128(10, 2), [1, 2, -3]),
        (pa.bool_(), [True, False]),
        (pa.float64(), [1.0, 2.5, -1e300]),
        (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC)]),
        (pa.binary(), [b"\x00\xff", b"a"]),
    ],
    ids=str,
)
def test_keys_of_any_plain_type_are_found_again(
    tables: TableBuilder, table_type: str, index: dict[str, str], kind: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("id", kind), ("v", pa.int64())])
    table = tables.create(schema=schema, partition_by=None, ordering=None, table_type=table_type, options=index)
    table.upsert(pa.table({"id": pa.array(values, kind), "v": list(range(len(values)))}, schema=schema))
    table.upsert(pa.table({"id": pa.array(values, kind), "v": [10 + i for i in range(len(values))]}, schema=schema))
    assert sorted(table.read().column("v").to_pylist()) == [10 + i for i in range(len(values))]
    table.delete(pa.table({"id": pa.array(values[:1], kind)}))
    assert sorted(table.read().column("v").to_pylist()) == [11 + i for i in range(len(values) - 1)]


def test_composite_keys_tell_null_from_empty_and_take_part_in_the_identity(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())])
    table = tables.create(
        schema=schema, key=["a", "b"], partition_by=None, ordering=None, table_type=table_type, options=index
    )
    table.upsert(trips(("x", 1, 1), ("x", None, 2), ("", 1, 3), (None, 1, 4), schema=schema))
    table.upsert(trips(("x", None, 20), (None, 1, 40), schema=schema))
    assert sorted(table.read().column("v").to_pylist()) == [1, 3, 20, 40]
    table.delete(trips(("", 1, None), schema=schema))
    assert sorted(table.read().column("v").to_pylist()) == [1, 20, 40]


def test_keys_to_delete_may_come_in_another_type_than_the_table_has(tables: TableBuilder, table_type: str) -> None:
    schema = pa.schema([("id", pa.float64()), ("day", pa.date32()), ("v", pa.int64())])
    table = tables.create(schema=schema, partition_by="day", ordering=None, table_type=table_type)
    table.insert(trips((1.0, dt.date(2024, 1, 1), 1), (2.5, dt.date(2024, 1, 1), 2), schema=schema))
    keys = pa.table({"id": pa.array([1], pa.int32()), "day": pa.array([dt.date(2024, 1, 1)], pa.date64())})
    assert table.delete(keys).rows_deleted == 1
    assert rows_of(table.read(), "id") == [(2.5,)]


@pytest.mark.parametrize("form", ["batches", "reader", "batch", "chunks", "dictionary", "large", "shuffled", "extra"])
def test_rows_may_come_in_any_arrow_form(
    tables: TableBuilder, table_type: str, index: dict[str, str], form: str
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    table.upsert(_in_form(trips(("a", "sf", 2, 2.0), ("c", "sf", 2, 2.0)), form))
    assert rows_of(table.read(), "id", "city", "ts", "fare") == [
        ("a", "sf", 2, 2.0),
        ("b", "la", 1, 1.0),
        ("c", "sf", 2, 2.0),
    ]
    assert table.schema.equals(TRIPS if form != "extra" else table.schema)


def _in_form(rows: pa.Table, form: str) -> Any:
    empty = pa.RecordBatch.from_pylist([], schema=rows.schema)
    pieces = rows.to_batches(max_chunksize=1)
    large = pa.schema([*(pa.field(name, pa.large_string()) for name in ("id", "city")), *list(TRIPS)[2:]])
    return {
        "batches": pieces,
        "reader": pa.RecordBatchReader.from_batches(rows.schema, [empty, *pieces, empty]),
        "batch": rows.to_batches()[0],
        "chunks": pa.concat_tables([rows.slice(0, 1), rows.slice(0, 0), rows.slice(1)]),
        "dictionary": rows.set_column(1, "city", rows.column("city").dictionary_encode()),
        "large": rows.cast(large),
        "shuffled": rows.select(["fare", "ts", "city", "id"]),
        "extra": rows.append_column("note", pa.array(["x", None])),
    }[form]


def test_rows_read_with_meta_columns_can_be_written_back(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    first = table.upsert(trips(("a", "sf", 1, 1.0)))
    back = table.read(meta_columns=True)
    assert back.column("_hoodie_commit_time").to_pylist() == [first.instant.value]
    second = table.upsert(back)
    assert rows_of(table.read()) == [("a", "sf", 1, 1.0)]
    meta = table.read(meta_columns=True).to_pylist()[0]
    assert meta["_hoodie_commit_time"] == second.instant.value
    assert (meta["_hoodie_record_key"], meta["_hoodie_partition_path"]) == ("a", "sf")


def test_rows_that_did_not_change_keep_their_commit_time(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    first = table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    second = table.upsert(trips(("b", "sf", 2, 2.0)))
    stamps = dict(rows_of(table.read(meta_columns=True), "id", "_hoodie_commit_time"))
    assert stamps == {"a": first.instant.value, "b": second.instant.value}
    numbers = table.read(columns=["_hoodie_commit_seqno"]).column(0).to_pylist()
    assert len(set(numbers)) == 2


def test_what_the_caller_adds_to_a_commit_is_kept_with_it(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    result = table.upsert(trips(("a", "sf", 1, 1.0)), extra={"checkpoint": "42"})
    storage = tables.storage(table)
    files = [f.path for f in storage.list_files(".hoodie/timeline") if f.name.startswith(f"{result.instant}_")]
    assert len(files) == 1
    assert b"checkpoint" in storage.read(files[0])


def test_a_write_leaves_no_scratch_files_markers_or_heartbeats(
    tables: TableBuilder, table_type: str, index: dict[str, str]
) -> None:
    table = tables.create(table_type=table_type, options=index)
    table.upsert(trips(("a", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 1.0), ("b", "sf", 2, 1.0)))
    table.delete(trips(("a", "sf")))
    left = [f.path for f in tables.storage(table).walk(".hoodie")]
    scratch = (".hoodie/.tablekeeper/staging", ".hoodie/.temp", ".hoodie/.heartbeat")
    assert [path for path in left if path.startswith(scratch)] == []


def test_partitions_made_of_times_are_found_again(tables: TableBuilder, table_type: str) -> None:
    schema = pa.schema([("id", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
    options = {
        "hoodie.table.keygenerator.type": "TIMESTAMP",
        "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
        "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
    }
    table = tables.create(schema=schema, partition_by="at", ordering=None, table_type=table_type, options=options)
    table.upsert(trips(("a", 1704067200000, 1), ("b", 1709528767000, 2), schema=schema))
    # Another moment of the same day: the same partition, so the same row.
    table.upsert(trips(("a", 1704067200999, 3), schema=schema))
    assert {s.group.partition for s in table.files()} == {"2024/01/01", "2024/03/04"}
    assert rows_of(table.read(), "id", "v") == [("a", 3), ("b", 2)]
    table.delete(trips(("b", 1709528700000), schema=schema))
    assert rows_of(table.read(), "id") == [("a",)]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int64(), 1709528767000000, "1709528767000000"),
        (pa.timestamp("us", "UTC"), dt.datetime(2024, 3, 4, 5, 6, 7, tzinfo=dt.UTC), "2024-03-04 05:06:07"),
        (pa.timestamp("us", "UTC"), dt.datetime(2024, 3, 4, 5, 6, 7, 120, tzinfo=dt.UTC), "2024-03-04 05:06:07.00012"),
        (pa.timestamp("ms"), dt.datetime(2024, 3, 4), "2024-03-04 00:00:00"),
    ],
)
def test_a_field_that_partitions_by_time_is_read_as_text_and_the_schema_says_so(
    tables: TableBuilder, table_type: str, kind: pa.DataType, value: Any, text: str
) -> None:
    schema = pa.schema([("id", pa.string()), ("at", kind), ("v", pa.int64())])
    options = {
        "hoodie.table.keygenerator.type": "TIMESTAMP",
        "hoodie.keygen.timebased.timestamp.type": "SCALAR",
        "hoodie.keygen.timebased.timestamp.scalar.time.unit": "microseconds",
    }
    table = tables.create(schema=schema, partition_by="at", ordering=None, table_type=table_type, options=options)
    table.upsert(trips(("a", value, 1), ("b", value, 2), schema=schema))
    table.upsert(trips(("b", value, 3), schema=schema))
    assert rows_of(table.read(), "id", "at", "v") == [("a", text, 1), ("b", text, 3)]
    assert table.schema == table.read().schema
    assert dict(table.describe().columns)["at"] == "string"
    assert rows_of(table.read(where=f"at = '{text}'"), "id") == [("a",), ("b",)]


def test_a_custom_key_generator_leaves_its_fields_as_they_are(tables: TableBuilder, table_type: str) -> None:
    schema = pa.schema([("id", pa.string()), ("n", pa.int32()), ("at", pa.int64())])
    options = {
        "hoodie.table.keygenerator.type": "CUSTOM",
        "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
        "hoodie.keygen.timebased.output.dateformat": "yyyyMMdd",
    }
    by = ["n:SIMPLE", "at:TIMESTAMP"]
    table = tables.create(schema=schema, partition_by=by, ordering=None, table_type=table_type, options=options)
    table.upsert(trips(("a", 7, 1709528767000), schema=schema))
    assert rows_of(table.read(), "n", "at") == [(7, 1709528767000)]
    assert table.schema == schema
    assert [s.group.partition for s in table.files()] == ["7/20240304"]
