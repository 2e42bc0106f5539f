"""Reading: columns, conditions, moments of the past, base files alone, and what changed, each against brute force."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.record.predicate import parse_predicate
from tests.support.history import Model, make_history
from tests.support.rows import describe_difference, exact_rows
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

TOMBSTONES = pa.schema([*TRIPS, ("_hoodie_is_deleted", pa.bool_())])
INNER = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])
WIDE = pa.schema(
    [
        ("id", pa.string()),
        ("city", pa.string()),
        ("ts", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("at", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("ratio", pa.float32()),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("place", INNER),
    ]
)
CONDITIONS = [
    "ts > 30",
    "ts between 10 and 20 and city = 'sf'",
    "city in ('la', 'ny') or ts = 7",
    "not (city = 'sf')",
    "price >= 5.25",
    "seen < timestamp '2024-01-01 00:00:30+00:00'",
    "at >= timestamp '2024-01-01 00:00:10'",
    "day = date '2024-01-03'",
    "ratio > 0.5 and flag = true",
    "flag is null",
    "city like 's%'",
    "place.x = 3",
    "place.y.z = 'z4' or place.x is null",
    "id = 'k17'",
    "_hoodie_record_key = 'k17'",
    "_hoodie_partition_path = 'la'",
    "ts is not null and price is null",
    "ts > 30 and ts < 10",
]


def wide_rows(seed: int, count: int, *, ts: int = 0) -> pa.Table:
    rng = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    start = dt.datetime(2024, 1, 1)
    rows = [
        {
            "id": f"k{rng.randrange(60)}",
            "city": rng.choice(["sf", "la", "ny"]),
            "ts": ts + rng.randrange(50),
            "price": maybe(rng.randrange(1000) / 100),
            "seen": maybe(start.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=rng.randrange(60))),
            "at": maybe(start + dt.timedelta(seconds=rng.randrange(20))),
            "day": maybe(dt.date(2024, 1, rng.randint(1, 5))),
            "ratio": maybe(rng.choice([0.25, 0.5, 0.75, float("nan")])),
            "flag": maybe(rng.random() < 0.5),
            "raw": maybe(rng.randbytes(3)),
            "tags": maybe([maybe("t"), "u"][: rng.randrange(3)]),
            "place": maybe({"x": maybe(rng.randrange(5)), "y": maybe({"z": f"z{rng.randrange(5)}"})}),
        }
        for _ in range(count)
    ]
    for row in rows:
        row["price"] = None if row["price"] is None else pa.scalar(row["price"]).cast(pa.decimal128(12, 2)).as_py()
    return pa.Table.from_pylist(rows, schema=WIDE)


@pytest.fixture(params=["event time", "commit time"])
def wide(request: pytest.FixtureRequest, tables: TableBuilder, table_type: str) -> tk.Table:
    """Several files in each partition, with several row groups and logs on top."""
    table = tables.create(
        schema=WIDE,
        table_type=table_type,
        ordering="ts" if request.param == "event time" else None,
        options={"hoodie.parquet.block.size": 3000, "hoodie.parquet.small.file.limit": 0},
    )
    table.upsert(wide_rows(1, 60))
    table.upsert(wide_rows(2, 40))
    table.upsert(wide_rows(3, 20, ts=20))
    table.delete(wide_rows(4, 5))
    return table


@pytest.mark.parametrize("where", CONDITIONS)
def test_a_condition_gives_the_rows_that_filtering_afterwards_gives(wide: tk.Table, where: str) -> None:
    everything = wide.read(meta_columns=True)
    expected = everything.filter(parse_predicate(where).to_arrow(everything.schema))
    assert exact_rows(wide.read(where=where)) == exact_rows(expected.select(WIDE.names))
    assert rows_of(wide.read(columns=["id", "city"], where=where)) == rows_of(expected, "id", "city")
    whole = wide.changes(meta_columns=True)
    expected = whole.filter(parse_predicate(where).to_arrow(whole.schema))
    assert exact_rows(wide.changes(where=where)) == exact_rows(expected.select(WIDE.names))


def test_an_update_that_leaves_the_condition_hides_the_old_version_too(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 5.0)))
    table.upsert(trips(("a", "sf", 2, 100.0)))
    assert rows_of(table.read(where="fare < 10"), "id") == [("b",)]
    assert rows_of(table.read(where="fare >= 10"), "id") == [("a",)]


def test_a_stale_update_does_not_show_up_when_the_row_group_of_the_newer_row_could_be_skipped(
    tables: TableBuilder,
) -> None:
    table = tables.create(table_type="mor")
    table.upsert(trips(("a", "sf", 100, 1.0)))
    table.upsert(trips(("a", "sf", 3, 50.0)))
    assert table.files()[0].logs
    assert rows_of(table.read(where="fare > 10")) == []
    assert rows_of(table.read(where="ts < 10")) == []


def test_a_condition_gives_the_same_rows_where_keys_are_there_more_than_once(tables: TableBuilder) -> None:
    for ordering in ("ts", None):
        table = tables.create(table_type="mor", ordering=ordering, options={"hoodie.parquet.block.size": 1})
        batches = [trips(("a", "sf", 1, 1.0)), trips(("a", "sf", 2, 50.0)), trips(("b", "sf", 2, 99.0))]
        table.insert(batches[0])
        table.insert(batches[1])
        table.insert(batches[2])
        table.upsert(trips(("a", "sf", 9, 60.0)))
        assert table.files()[0].logs
        everything = rows_of(table.read())
        assert [row for row in everything if row[3] > 55] == rows_of(table.read(where="fare > 55"))
        assert [row for row in everything if row[3] < 55] == rows_of(table.read(where="fare < 55"))


def test_columns_come_in_the_order_asked_for_with_the_tables_types(wide: tk.Table) -> None:
    read = wide.read(columns=["place", "id", "_hoodie_commit_time", "ts"])
    assert read.schema.names == ["place", "id", "_hoodie_commit_time", "ts"]
    assert read.schema.field("place").type == wide.schema.field("place").type
    assert exact_rows(read.select(["place", "id", "ts"])) == exact_rows(wide.read().select(["place", "id", "ts"]))


def test_an_empty_result_has_the_columns_all_the_same(wide: tk.Table) -> None:
    assert wide.read(where="ts < -1").schema.equals(wide.schema)
    assert wide.read(columns=["id"], where="city = 'nowhere'").schema.names == ["id"]


def test_a_table_without_commits_reads_as_empty(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    assert table.read().schema.equals(TRIPS)
    assert table.read().num_rows == table.changes().num_rows == 0
    assert table.read(as_of="2030-01-01").num_rows == 0
    assert len(table.files()) == len(table.timeline()) == 0
    assert table.describe().commits == 0


def test_a_moment_of_the_past_can_be_given_as_an_instant_text_or_datetime(
    tables: TableBuilder, table_type: str
) -> None:
    table = tables.create(table_type=table_type)
    first = table.upsert(trips(("a", "sf", 1, 1.0)))
    second = table.upsert(trips(("a", "sf", 2, 2.0), ("b", "sf", 1, 1.0)))
    text = first.instant.value
    moment = dt.datetime.strptime(text + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=dt.UTC)
    assert second.completed_at is not None
    as_of: object
    for as_of in (first.instant, text, moment, moment.isoformat(), moment.replace(tzinfo=None)):
        assert rows_of(table.read(as_of=as_of), "id", "fare") == [("a", 1.0)], as_of
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))
    assert rows_of(table.read(as_of=elsewhere), "id", "fare") == [("a", 1.0)]
    for as_of in (second.instant, second.completed_at, "2100-01-01", dt.date(2100, 1, 1)):
        assert rows_of(table.read(as_of=as_of), "id", "fare") == [("a", 2.0), ("b", 1.0)], as_of
    just_before = moment - dt.timedelta(milliseconds=1)
    with pytest.raises(tk.errors.InvalidRequestError, match="no commit at or before"):
        table.read(as_of=just_before)


def test_the_files_of_a_moment_are_those_that_a_reader_saw_then(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor")
    first = table.upsert(trips(("a", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    assert [len(s.logs) for s in table.files()] == [1]
    assert [len(s.logs) for s in table.files(as_of=first.instant)] == [0]
    assert [s.group.partition for s in table.files(partitions=["la"])] == []


def test_read_optimized_shows_base_files_without_the_logs_on_top(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor", options={"hoodie.parquet.small.file.limit": 0})
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    before = table.upsert(trips(("a", "sf", 2, 2.0), ("c", "la", 1, 1.0))).instant
    table.delete(trips(("b", "sf")))
    assert rows_of(table.read(mode="read_optimized"), "id", "fare") == [("a", 1.0), ("b", 1.0), ("c", 1.0)]
    assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("c", 1.0)]
    assert rows_of(table.read(mode="read_optimized", as_of=before, where="city = 'la'"), "id") == [("c",)]


def test_read_optimized_is_the_whole_truth_of_a_copy_on_write_table(tables: TableBuilder) -> None:
    table = tables.create()
    table.upsert(trips(("a", "sf", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    assert rows_of(table.read(mode="read_optimized")) == rows_of(table.read()) == [("a", "sf", 2, 2.0)]


@pytest.mark.parametrize("seed", range(12))
def test_the_changes_of_any_window_are_the_rows_last_changed_in_it(tables: TableBuilder, seed: int) -> None:
    """On histories without stale rows, where a change is always visible."""
    history = make_history(seed, steps=6, merge_mode="COMMIT_TIME_ORDERING", index="simple" if seed % 2 else "bucket")
    shape = history.shape
    table = tables.create(
        schema=shape.schema,
        key=shape.key,
        partition_by=shape.partition_by or None,
        ordering=None,
        table_type=shape.table_type,
        options=shape.options,
    )
    models: list[Model] = []
    results: list[tk.WriteResult] = []
    model = Model(shape)
    for step in history.steps:
        if step.operation == "delete_partitions":
            continue
        results.append(getattr(table, step.operation)(shape.table(step.rows)))
        model.apply(step)
        frozen = Model(shape)
        frozen.__dict__.update({**model.__dict__, "_rows": dict(model._rows)})
        models.append(frozen)
    for end, until in enumerate(models):
        for start in range(end + 1):
            since = results[start - 1] if start else None
            actual = table.changes(since=since.instant if since else None, until=results[end].completed_at)
            difference = describe_difference(expected=exact_rows(until.changed_after(start)), actual=exact_rows(actual))
            assert not difference, f"{history}, after {start} up to {end + 1}: {difference}"


def test_changes_are_ordered_by_completion_and_bounds_are_after_and_up_to(
    tables: TableBuilder, table_type: str
) -> None:
    table = tables.create(table_type=table_type)
    results = [table.upsert(trips((key, "sf", 1, float(n)))) for n, key in enumerate("abc")]
    a, b, c = results
    assert rows_of(table.changes(), "id") == [("a",), ("b",), ("c",)]
    assert rows_of(table.changes(since=a.instant), "id") == [("b",), ("c",)]
    assert rows_of(table.changes(since=a.completed_at, until=b.instant), "id") == [("b",)]
    assert rows_of(table.changes(until=a.completed_at), "id") == [("a",)]
    assert rows_of(table.changes(since=c.instant), "id") == []
    assert rows_of(table.changes(since="2100-01-01"), "id") == []
    stamps = table.changes(since=b.instant, meta_columns=True).column("_hoodie_commit_time").to_pylist()
    assert stamps == [c.instant.value]


def test_a_row_changed_several_times_shows_its_last_version_in_the_window(
    tables: TableBuilder, table_type: str
) -> None:
    table = tables.create(table_type=table_type)
    first = table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    second = table.upsert(trips(("a", "sf", 2, 2.0)))
    table.upsert(trips(("a", "sf", 3, 3.0)))
    assert rows_of(table.changes(since=first.instant)) == [("a", "sf", 3, 3.0)]
    assert rows_of(table.changes(since=first.instant, until=second.instant)) == [("a", "sf", 2, 2.0)]


def test_deleted_rows_are_no_changes_and_tombstones_do_not_show(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type, schema=TOMBSTONES)
    first = table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "sf", 1, 1.0), schema=TOMBSTONES))
    table.delete(trips(("a", "sf")))
    table.upsert(trips(("b", "sf", 2, None, True), ("c", "sf", 2, 2.0), schema=TOMBSTONES))
    assert rows_of(table.changes(since=first.instant), "id") == [("c",)]


def test_what_happens_after_the_window_does_not_change_its_rows(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    first = table.upsert(trips(("a", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    second = table.insert_overwrite(trips(("b", "sf", 1, 1.0)))
    table.delete_partitions(["sf"])
    assert rows_of(table.changes(until=first.instant), "id") == [("a",), ("c",)]
    assert rows_of(table.changes(until=second.instant), "id") == [("b",), ("c",)]
    assert rows_of(table.changes(), "id") == [("c",)]


def test_what_the_table_says_of_itself(tables: TableBuilder, table_type: str) -> None:
    table = tables.create(table_type=table_type)
    result = table.upsert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    described = table.describe()
    assert (described.partitions, described.file_groups, described.commits, described.pending) == (2, 2, 1, 0)
    assert described.last_commit == result.instant.value
    assert described.to_dict()["columns"] == {"id": "string", "city": "string", "ts": "int64", "fare": "double"}
    assert "trips at memory://" in repr(described)
    assert [i.requested_at for i in table.timeline()] == [result.instant]
    assert result.instant.value in repr(table.timeline())
    assert {s.group.partition for s in table.files()} == {"sf", "la"}
    assert sum(d["base_bytes"] for d in table.files().to_dicts()) == described.bytes
    assert "sf" in repr(table.files())
    assert "1 inserted" not in str(result)
    assert "2 inserted, 0 updated, 0 deleted" in str(result)
    assert repr(table).startswith("Table('memory://")
