"""`spark.read.format("tablekeeper")` and `df.write.format("tablekeeper")` agree with `Table`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tablekeeper import InvalidRequestError, Table, WriteResult
from tablekeeper.table.source_options import ReadOptions
from tests.support.rows import exact_rows

api = pytest.importorskip("pyspark.sql.datasource", reason="the Python data source API came with Spark 4")

from tablekeeper.engine.spark_types import spark_from_arrow  # noqa: E402 (needs PySpark 4, like what follows)
from tablekeeper.spark_datasource import FilteringReader, SliceReader, register  # noqa: E402

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
NOON = dt.datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("city", pa.string()),
        ("ts", pa.int64()),
        ("fare", pa.float64()),
        ("count", pa.int32()),
        ("price", pa.decimal128(12, 3)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("sizes", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("lat", pa.float64()), ("name", pa.string())])),
    ]
)


def trip(number: int, *, ts: int = 1, **changes: Any) -> dict[str, Any]:
    row = {
        "id": f"t{number}",
        "city": ("sf", "nyc", "lima")[number % 3],
        "ts": ts,
        "fare": float("nan") if number == 5 else number * 1.5,
        "count": number,
        "price": Decimal(number) / 8,
        "at": NOON + dt.timedelta(hours=number),
        "local": NOON.replace(tzinfo=None) + dt.timedelta(days=number),
        "day": NOON.date() + dt.timedelta(days=number),
        "raw": bytes([number]),
        "flag": number % 2 == 0,
        "tags": ["a", None, f"tag{number}"],
        "sizes": [("x", number)],
        "place": {"lat": number / 2, "name": f"place_{number}"},
    }
    if number == 7:
        row.update({name: None for name in SCHEMA.names if name not in ("id", "city", "ts")})
    return {**row, **changes}


def table_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


class Trips:
    """A merge-on-read table of nine trips, of which two were changed in logs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.table = Table.create(
            path, name="trips", schema=SCHEMA, key="id", partition_by="city", ordering="ts", engine="local"
        )
        self.first: WriteResult = self.table.insert(table_of(*map(trip, range(9))))
        self.second: WriteResult = self.table.upsert(table_of(trip(0, ts=2, fare=99.0), trip(1, ts=2, count=None)))


@pytest.fixture
def trips(table_path: str) -> Trips:
    return Trips(table_path)


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    """Spark offers filters to Python sources."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def loaded(spark: Any, path: str, **options: str) -> Any:
    return spark.read.format("tablekeeper").options(**options).load(path)


def staged(path: str) -> list[Path]:
    return list((Path(path) / ".hoodie" / ".tablekeeper" / "staging").glob("*"))


# Reading


def test_a_table_reads_without_registering_the_format(spark: Any, trips: Trips) -> None:
    frame = loaded(spark, trips.path)
    assert frame.schema == spark_from_arrow(trips.table.schema)
    assert exact_rows(frame.toArrow()) == exact_rows(trips.table.read())


def test_the_past_and_the_base_files_alone_can_be_read(spark: Any, trips: Trips) -> None:
    then = loaded(spark, trips.path, as_of=str(trips.first.instant))
    assert exact_rows(then.toArrow()) == exact_rows(trips.table.read(as_of=trips.first.instant))
    optimized = loaded(spark, trips.path, mode="read_optimized")
    assert exact_rows(optimized.toArrow()) == exact_rows(trips.table.read(mode="read_optimized"))


def test_changes_can_be_read(spark: Any, trips: Trips) -> None:
    since = loaded(spark, trips.path, since=str(trips.first.instant)).toArrow()
    assert sorted(since.column("id").to_pylist()) == ["t0", "t1"]
    until = loaded(spark, trips.path, until=str(trips.first.instant)).toArrow()
    assert exact_rows(until) == exact_rows(trips.table.changes(until=trips.first.instant))


def test_columns_are_chosen_by_option_or_by_schema(spark: Any, trips: Trips) -> None:
    expected = exact_rows(trips.table.read(columns=["count", "id"]))
    by_option = loaded(spark, trips.path, columns="count,id")
    assert by_option.columns == ["count", "id"]
    assert exact_rows(by_option.toArrow()) == expected
    by_schema = spark.read.format("tablekeeper").schema("id string, count int").load(trips.path)
    assert exact_rows(by_schema.toArrow()) == expected


def test_a_schema_with_another_type_is_refused(spark: Any, trips: Trips) -> None:
    with pytest.raises(Exception, match="column count of table trips is int, not string"):
        spark.read.format("tablekeeper").schema("count string").load(trips.path).collect()


def test_meta_columns_are_read_on_request(spark: Any, trips: Trips) -> None:
    frame = loaded(spark, trips.path, meta_columns="true", where="id = 't0'")
    assert [row["_hoodie_commit_time"] for row in frame.collect()] == [str(trips.second.instant)]


CONDITIONS = (
    "city = 'sf'",
    "city <> 'sf' and fare > 4",
    "fare > 100",
    "fare <= 6 and not flag",
    "count in (1, 2, 3) or place.lat > 3",
    "count not in (1, 2, 3)",
    "count is null",
    "count <=> null",
    "not (count <=> 3)",
    "price >= 0.375 and price < 0.9",
    "at > timestamp'2026-11-15 14:00:00Z'",
    "local <= timestamp_ntz'2026-11-18 12:00:00.123456'",
    "day between date'2026-11-16' and date'2026-11-18'",
    "raw = X'02'",
    "place.name like 'place\\\\_3%'",
    "city like 's%' and id like '%3%'",
)


def kept(frame: Any, condition: str) -> list[str]:
    return sorted(row["id"] for row in frame.where(condition).select("id").collect())


@pytest.mark.usefixtures("pushdown")
def test_filters_taken_over_keep_the_rows_that_spark_would_keep(spark: Any, trips: Trips) -> None:
    here = frame_of(spark, *trips.table.read().to_pylist())
    found = {text: kept(loaded(spark, trips.path, push_filters="true"), text) for text in CONDITIONS}
    assert found == {text: kept(here, text) for text in CONDITIONS}


@pytest.mark.usefixtures("pushdown")
def test_filters_taken_over_leave_other_partitions_alone(spark: Any, trips: Trips) -> None:
    for file in (Path(trips.path) / "nyc").glob("*.parquet"):
        file.unlink()
    frame = loaded(spark, trips.path, push_filters="true").where("city = 'sf' and count >= 0")
    assert "Filter (" not in frame._jdf.queryExecution().executedPlan().toString()
    assert sorted(row["id"] for row in frame.collect()) == ["t0", "t3", "t6"]


@pytest.mark.usefixtures("pushdown")
def test_one_frame_serves_queries_with_different_filters(spark: Any, trips: Trips) -> None:
    frame = loaded(spark, trips.path)
    assert kept(frame, "city = 'sf'") == ["t0", "t3", "t6"]
    assert frame.count() == 9
    both = frame.where("city = 'nyc'").union(frame.where("city = 'lima'"))
    assert sorted(row["id"] for row in both.collect()) == ["t1", "t2", "t4", "t5", "t7", "t8"]


def test_a_condition_given_as_an_option_leaves_other_partitions_alone(spark: Any, trips: Trips) -> None:
    for file in (Path(trips.path) / "nyc").glob("*.parquet"):
        file.unlink()
    frame = loaded(spark, trips.path, where="city = 'sf' and fare > 4")
    assert sorted(row["id"] for row in frame.collect()) == ["t0", "t3", "t6"]


def test_filters_that_only_spark_can_evaluate_are_given_back(trips: Trips) -> None:
    reader = FilteringReader(ReadOptions(trips.path), spark_from_arrow(SCHEMA))
    taken = [
        api.EqualTo(("city",), "sf"),
        api.Not(api.In(("count",), (1, 2))),
        api.GreaterThan(("place", "lat"), 0.25),
        api.IsNotNull(("fare",)),
        api.StringContains(("id",), "t"),
    ]
    given_back = [
        api.Not(api.EqualNullSafe(("count",), 3)),
        api.EqualTo(("fare",), float("nan")),
        api.EqualTo(("tags",), ["a"]),
        api.EqualTo(("count",), "three"),
        api.EqualTo(("a.b",), 1),
    ]
    returned = list(reader.pushFilters([*given_back, *taken]))
    assert [id(each) for each in returned] == [id(each) for each in given_back]
    parts = reader.partitions()
    assert {task.file_slice.group.partition for part in parts for task in part.tasks} == {"sf"}
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == ["t3", "t6"]


def test_slices_are_spread_over_as_many_tasks_as_asked_for(trips: Trips) -> None:
    schema = spark_from_arrow(SCHEMA)
    shares = SliceReader(ReadOptions(trips.path, parallelism=2), schema).partitions()
    assert sorted(len(share.tasks) for share in shares) == [1, 2]
    assert len(SliceReader(ReadOptions(trips.path, parallelism=50), schema).partitions()) == 3


def test_a_table_without_rows_reads_as_none(spark: Any, table_path: str) -> None:
    Table.create(table_path, name="empty", schema=SCHEMA, key="id", engine="local")
    assert loaded(spark, table_path).collect() == []


def test_wrong_options_are_named_when_the_read_is_made(spark: Any, trips: Trips) -> None:
    with pytest.raises(Exception, match=r"unknown option 'asof'\. Did you mean 'as_of'"):
        loaded(spark, trips.path, asof="2026-11-15")
    with pytest.raises(Exception, match="is not a Hudi table"):
        loaded(spark, trips.path + "-nowhere")


def test_the_format_can_be_registered_and_again(spark: Any, trips: Trips) -> None:
    session = spark.newSession()
    register(session)
    register(session)
    assert loaded(session, trips.path, columns="id").count() == 9


# Writing


def frame_of(spark: Any, *rows: dict[str, Any]) -> Any:
    plain = [{**row, "sizes": dict(row["sizes"]) if row["sizes"] is not None else None} for row in rows]
    return spark.createDataFrame(plain, spark_from_arrow(SCHEMA))


def save(frame: Any, path: str, mode: str = "append", **options: str) -> None:
    frame.write.format("tablekeeper").mode(mode).options(**options).save(path)


def ids(path: str) -> list[str]:
    return sorted(Table.open(path, engine="local").read(columns=["id"]).column("id").to_pylist())


def test_the_first_save_makes_the_table_and_later_ones_upsert(spark: Any, table_path: str) -> None:
    settings = {"hoodie.parquet.compression.codec": "snappy"}
    save(
        frame_of(spark, *map(trip, range(9))),
        table_path,
        key="id",
        partition_by="city",
        ordering="ts",
        table_type="cow",
        name="rides",
        **settings,
    )
    table = Table.open(table_path, engine="local")
    described = table.describe()
    assert (described.name, described.table_type, described.partition_by) == ("rides", "cow", ("city",))
    assert exact_rows(table.read()) == exact_rows(table_of(*map(trip, range(9))))
    save(frame_of(spark, trip(0, ts=2, fare=99.0), trip(1, ts=0, fare=77.0), trip(9)), table_path)
    expected = [trip(0, ts=2, fare=99.0), *map(trip, range(1, 10))]
    assert exact_rows(table.read()) == exact_rows(table_of(*expected))
    assert staged(table_path) == []


def test_each_operation_does_what_its_method_does(spark: Any, trips: Trips) -> None:
    save(frame_of(spark, trip(20)), trips.path, operation="insert")
    save(frame_of(spark, trip(21)), trips.path, operation="bulk_insert")
    assert ids(trips.path) == sorted([*(f"t{n}" for n in range(9)), "t20", "t21"])
    save(frame_of(spark, trip(20), trip(3)).select("id", "city"), trips.path, operation="delete")
    assert ids(trips.path) == sorted([*(f"t{n}" for n in range(9) if n != 3), "t21"])
    save(frame_of(spark, trip(30)), trips.path, mode="overwrite", operation="insert_overwrite")
    assert ids(trips.path) == sorted(["t1", "t2", "t30", "t4", "t5", "t7", "t8"])
    save(frame_of(spark, trip(40)), trips.path, mode="overwrite")
    assert ids(trips.path) == ["t40"]
    assert staged(trips.path) == []


def test_a_write_that_fails_in_a_task_leaves_nothing_behind(spark: Any, trips: Trips) -> None:
    nameless = frame_of(spark, trip(10), trip(11)).selectExpr(
        "if(id = 't11', null, id) as id", *(name for name in SCHEMA.names if name != "id")
    )
    with pytest.raises(Exception, match="null"):
        save(nameless, trips.path)
    assert len(trips.table.timeline()) == 2
    assert len(ids(trips.path)) == 9
    assert staged(trips.path) == []


def test_a_write_without_rows_is_refused_and_leaves_nothing_behind(spark: Any, trips: Trips) -> None:
    with pytest.raises(Exception, match="the upsert has no rows"):
        save(frame_of(spark), trips.path)
    assert len(trips.table.timeline()) == 2
    assert staged(trips.path) == []


def test_rows_that_do_not_fit_are_refused_before_any_task_runs(spark: Any, trips: Trips) -> None:
    with pytest.raises(Exception, match="count"):
        save(frame_of(spark, trip(1)).withColumn("count", spark_column("named_struct('a', 1)")), trips.path)
    assert staged(trips.path) == []


def spark_column(text: str) -> Any:
    from pyspark.sql.functions import expr  # noqa: PLC0415 (needs the running session)

    return expr(text)


def test_a_first_save_without_a_key_says_what_is_missing(spark: Any, table_path: str) -> None:
    with pytest.raises(Exception, match=r"there is no table at .* give the option key"):
        save(frame_of(spark, trip(1)), table_path)
    assert not Path(table_path).exists()


def test_a_reader_refuses_a_partition_of_another_source(trips: Trips) -> None:
    reader = SliceReader(ReadOptions(trips.path), spark_from_arrow(SCHEMA))
    with pytest.raises(TypeError, match="not a partition of this reader"):
        list(reader.read(api.InputPartition(1)))
    with pytest.raises(InvalidRequestError, match="no column 'nothing'"):
        SliceReader(ReadOptions(trips.path), spark_from_arrow(pa.schema([("nothing", pa.int64())]))).partitions()


# Tables of Spark's catalog


@pytest.fixture
def catalog(spark: Any) -> Iterator[None]:
    yield
    for row in spark.sql("SHOW TABLES").collect():
        spark.sql(f"DROP TABLE IF EXISTS {row['tableName']}")


@pytest.mark.usefixtures("catalog")
@pytest.mark.parametrize("place", ["OPTIONS (path '{0}')", "LOCATION '{0}'"])
def test_a_table_of_the_catalog_is_read_written_and_dropped(spark: Any, trips: Trips, place: str) -> None:
    spark.sql(f"CREATE TABLE rides USING tablekeeper {place.format(trips.path)} COMMENT 'all' TBLPROPERTIES (team='x')")
    assert [row["col_name"] for row in spark.sql("DESCRIBE rides").collect()] == SCHEMA.names
    assert exact_rows(spark.table("rides").toArrow()) == exact_rows(trips.table.read())
    assert [row["count"] for row in spark.sql("SELECT count FROM rides WHERE id = 't4'").collect()] == [4]

    # Columns that are not named stay empty.
    values = "(id, city, ts, count) VALUES ('t4', 'nyc', 7L, 70)"
    spark.sql(f"INSERT INTO rides WITH (path = '{trips.path}') {values}")
    assert [row["count"] for row in spark.sql("SELECT count FROM rides WHERE id = 't4'").collect()] == [70]

    spark.sql("DROP TABLE rides")
    assert trips.table.read().num_rows == 9


@pytest.mark.usefixtures("catalog")
def test_options_of_a_table_of_the_catalog_hold_for_its_reads(spark: Any, trips: Trips) -> None:
    options = "OPTIONS (where \"city = 'sf'\", columns 'id,city', operation 'insert')"
    spark.sql(f"CREATE TABLE rides USING tablekeeper {options} LOCATION '{trips.path}'")
    expected = trips.table.read(columns=["id", "city"], where="city = 'sf'")
    assert exact_rows(spark.table("rides").toArrow()) == exact_rows(expected)


@pytest.mark.usefixtures("catalog")
def test_a_write_to_a_table_of_the_catalog_without_path_says_how_to_give_it(spark: Any, trips: Trips) -> None:
    spark.sql(f"CREATE TABLE rides USING tablekeeper LOCATION '{trips.path}'")
    with pytest.raises(Exception, match=r"INSERT INTO trips WITH \(path = '/lake/trips'\)"):
        spark.sql("INSERT INTO rides (id, city, ts) VALUES ('t4', 'nyc', 7L)")


@pytest.mark.usefixtures("catalog")
def test_a_temporary_view_is_read_and_written(spark: Any, trips: Trips) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW rides USING tablekeeper OPTIONS (path '{trips.path}')")
    try:
        spark.table("rides").where("id = 't3'").selectExpr(
            *("9L AS ts" if name == "ts" else name for name in SCHEMA.names)
        ).write.insertInto("rides")
        assert [row["ts"] for row in trips.table.read(where="id = 't3'").to_pylist()] == [9]
    finally:
        spark.catalog.dropTempView("rides")
