"""What every engine promises: kernels run once for each task or part, results come in order, errors keep their type.

One suite for the local engine and for Spark. Kernels are functions of this module, because they travel to workers.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.engine.local import LocalEngine
from tablekeeper.engine.protocol import Engine, Frame
from tablekeeper.errors import CorruptTableError, InvalidRequestError, StorageError
from tests.support.history import Model, make_history
from tests.support.rows import describe_difference, exact_rows
from tests.support.table_builder import rows_of, trips

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ALL_TYPES = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.field("element", pa.float64())))])),
    ]
)
VALUES = {
    "flag": True,
    "small": -1,
    "big": 2**40,
    "single": 1.5,
    "double": 0.1,
    "text": "é🙂",
    "raw": b"\x00\xff",
    "price": Decimal("1.25"),
    "day": dt.date(2024, 2, 29),
    "moment": dt.datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC),
    "local": dt.datetime(2024, 1, 1, 1, 2, 3, 4),
    "tags": ["a", None],
    "counts": [("a", 1)],
    "place": {"x": 1, "y": [0.5]},
}
ENGINES = os.environ.get("TABLEKEEPER_CONTRACT_ENGINE", "local spark").split()
# More than Spark's engine would do on the driver.
HEAVY = 1e12


@dataclass(frozen=True, slots=True)
class Square:
    number: int
    text: str = "payload"


def square(task: Square) -> tuple[int, int]:
    return task.number, task.number**2


def refuse(task: Square) -> int:
    if task.number == 3:
        raise CorruptTableError(file="some/file", reason="task three found damage")
    return task.number


def fail_as_store(task: Square) -> int:
    raise StorageError(f"task {task.number}", path="some/path", transient=True)


def count_rows(context: str, part: int, batches: Iterator[pa.RecordBatch]) -> list[tuple[str, int, list[int]]]:
    numbers = [n for batch in batches for n in batch.column("n").to_pylist()]
    return [(context, part, numbers)] if numbers else []


def see_types(context: str, part: int, batches: Iterator[pa.RecordBatch]) -> list[pa.Schema]:
    del context, part
    return [batch.schema for batch in batches if batch.num_rows]


def refuse_rows(context: str, part: int, batches: Iterator[pa.RecordBatch]) -> list[int]:
    for batch in batches:
        if batch.num_rows:
            raise InvalidRequestError(f"{context} {part}: these rows are refused")
    return []


def make_rows(task: Square) -> Iterator[pa.RecordBatch]:
    for n in range(task.number):
        yield pa.RecordBatch.from_pylist([{"n": n, "text": f"{task.number}"}], schema=SCHEMA)


def make_all_types(task: Square) -> Iterator[pa.RecordBatch]:
    rows = [VALUES, dict.fromkeys(ALL_TYPES.names)]
    yield pa.RecordBatch.from_pylist(rows * task.number, schema=ALL_TYPES)


# Flink runs the suite inside of a program of its own (tests/support/flink_contract.py).
@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "local":
        return LocalEngine(threads=2)
    if request.param == "flink":
        from tablekeeper.engine.flink import submitted_engine  # noqa: PLC0415  (is in Flink's environment only)

        return submitted_engine("contract")
    from tablekeeper.engine.spark import SparkEngine  # noqa: PLC0415  (local runs need no PySpark)

    return SparkEngine(request.getfixturevalue("spark"))


def frame_of(engine: Engine, table: pa.Table, request: pytest.FixtureRequest, *, parts: int = 2) -> Frame:
    """The rows as the engine's own kind of table."""
    if engine.name != "spark":
        return table
    frame = request.getfixturevalue("spark").createDataFrame(table, engine.native_schema(table.schema))
    return frame.repartition(parts)


def arrow_of(frame: Frame) -> pa.Table:
    return frame if isinstance(frame, pa.Table) else frame.toArrow()


def test_results_come_in_the_order_of_the_tasks(engine: Engine) -> None:
    tasks = [Square(n) for n in range(25)]
    expected = [(n, n**2) for n in range(25)]
    assert engine.run(square, tasks, label="plain") == expected
    assert engine.run(square, tasks, label="weighted", weights=[HEAVY * (n % 5 + 1) for n in range(25)]) == expected
    assert engine.run(square, tasks, label="light", weights=[1.0] * 25) == expected


def test_no_tasks_give_no_results(engine: Engine) -> None:
    assert engine.run(square, [], label="nothing") == []


@pytest.mark.parametrize("weight", [1.0, HEAVY], ids=["light", "heavy"])
def test_an_error_of_a_task_reaches_the_caller_with_its_type_and_fields(engine: Engine, weight: float) -> None:
    with pytest.raises(CorruptTableError) as caught:
        engine.run(refuse, [Square(n) for n in range(5)], label="refuse", weights=[weight] * 5)
    assert (caught.value.file, caught.value.reason) == ("some/file", "task three found damage")
    with pytest.raises(StorageError) as failed:
        engine.run(fail_as_store, [Square(7)], label="fail", weights=[weight])
    assert (failed.value.path, failed.value.transient, str(failed.value)) == ("some/path", True, "task 7")


def test_every_row_of_the_source_is_consumed_once_in_numbered_parts(
    engine: Engine, request: pytest.FixtureRequest
) -> None:
    table = pa.table({"n": list(range(1000)), "text": ["x"] * 1000}, schema=SCHEMA)
    results = engine.consume(count_rows, "context", frame_of(engine, table, request), label="count")
    assert sorted(n for _, _, numbers in results for n in numbers) == list(range(1000))
    assert {context for context, _, _ in results} == {"context"}
    parts = [part for _, part, _ in results]
    assert parts == sorted(set(parts))


def test_a_source_without_rows_gives_no_results(engine: Engine, request: pytest.FixtureRequest) -> None:
    empty = frame_of(engine, SCHEMA.empty_table(), request)
    assert engine.consume(count_rows, "context", empty, label="count") == []
    assert engine.schema_of(empty).names == ["n", "text"]


def test_rows_arrive_in_the_types_that_were_announced(engine: Engine, request: pytest.FixtureRequest) -> None:
    frame = frame_of(engine, pa.Table.from_pylist([VALUES], schema=ALL_TYPES), request, parts=1)
    announced = engine.schema_of(frame)
    (seen,) = engine.consume(see_types, "", frame, label="types")
    assert seen.names == announced.names == ALL_TYPES.names
    for name in ALL_TYPES.names:
        arrived, expected = seen.field(name).type, ALL_TYPES.field(name).type
        if pa.types.is_nested(expected) or pa.types.is_string(expected) or pa.types.is_binary(expected):
            continue
        assert arrived == announced.field(name).type == expected, name


def test_an_error_over_the_callers_rows_reaches_the_caller_with_its_type(
    engine: Engine, request: pytest.FixtureRequest
) -> None:
    table = pa.table({"n": [1], "text": ["x"]}, schema=SCHEMA)
    with pytest.raises(InvalidRequestError, match="these rows are refused"):
        engine.consume(refuse_rows, "part", frame_of(engine, table, request), label="refuse")


@pytest.mark.parametrize("source", [None, [1, 2], {"n": [1]}, "text"], ids=str)
def test_what_is_no_table_of_the_engine_is_refused(engine: Engine, source: Any) -> None:
    with pytest.raises(InvalidRequestError, match="engine takes"):
        engine.schema_of(source)
    with pytest.raises(InvalidRequestError):
        engine.arrow_schema(source)


def test_schemas_go_to_the_engines_own_kind_and_back(engine: Engine) -> None:
    native = engine.native_schema(ALL_TYPES)
    back = engine.arrow_schema(native)
    assert back.names == ALL_TYPES.names
    assert [back.field(name).type for name in back.names] == [ALL_TYPES.field(name).type for name in back.names]
    assert engine.arrow_schema(ALL_TYPES).equals(ALL_TYPES)


def test_rows_made_by_tasks_become_one_table(engine: Engine) -> None:
    tasks = [Square(n) for n in (3, 0, 2)]
    frame = engine.rows(make_rows, tasks, schema=SCHEMA, weights=[3.0, 0.0, 2.0])
    assert rows_of(arrow_of(frame)) == [(0, "2"), (0, "3"), (1, "2"), (1, "3"), (2, "3")]
    assert engine.schema_of(frame).names == SCHEMA.names


def test_no_tasks_make_an_empty_table_with_the_schema(engine: Engine) -> None:
    frame = engine.rows(make_rows, [], schema=SCHEMA, weights=[])
    assert arrow_of(frame).num_rows == 0
    assert engine.schema_of(frame).equals(SCHEMA)


def test_rows_of_every_type_come_out_as_they_were_made(engine: Engine) -> None:
    frame = engine.rows(make_all_types, [Square(2)], schema=ALL_TYPES, weights=[1.0])
    made = pa.Table.from_batches(make_all_types(Square(2)))
    assert exact_rows(arrow_of(frame)) == exact_rows(made)


def test_tables_are_united(engine: Engine) -> None:
    one = engine.rows(make_rows, [Square(1)], schema=SCHEMA, weights=[1.0])
    two = engine.rows(make_rows, [Square(2)], schema=SCHEMA, weights=[1.0])
    assert rows_of(arrow_of(engine.union([one, two]))) == [(0, "1"), (0, "2"), (1, "2")]
    assert rows_of(arrow_of(engine.union([one]))) == [(0, "1")]


def test_a_scan_of_its_own_gives_the_files_rows_or_is_declined(engine: Engine, tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3], "text": ["a", None, "c"]}, schema=SCHEMA)
    pq.write_table(table, tmp_path / "a.parquet")
    uri = (tmp_path / "a.parquet").as_uri()
    output = pa.schema([SCHEMA.field("text")])
    frame = engine.scan_parquet([uri], schema=SCHEMA, output=output, where="n >= 2")
    if frame is None:
        assert engine.name in ("local", "flink")
    else:
        assert rows_of(arrow_of(frame)) == [("c",), (None,)]


def batch_sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"rows": [batch.num_rows]})


def numbers_seen(context: None, part: int, batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column(0).to_pylist()]


def test_the_settings_of_a_spark_session_stay_the_users_while_rows_are_consumed(spark: Any) -> None:
    from tablekeeper.engine.spark import SparkEngine  # noqa: PLC0415  (local runs need no PySpark)

    rows_a_batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    source = spark.range(0, 100, 1, 1).mapInArrow(batch_sizes, "rows long")
    spark.conf.set(rows_a_batch, "16")
    try:
        seen = SparkEngine(spark).consume(numbers_seen, None, source, label="test")
        assert seen == [16] * 6 + [4]
        assert spark.conf.get(rows_a_batch) == "16"
    finally:
        spark.conf.unset(rows_a_batch)


def test_an_engine_says_how_it_runs(engine: Engine) -> None:
    assert engine.name in ("local", "spark", "flink")
    assert engine.parallelism >= 1
    assert engine.may_repeat_tasks == (engine.name != "local")


@pytest.fixture
def open_with(engine: Engine, request: pytest.FixtureRequest) -> dict[str, Any]:
    if engine.name != "spark":
        return {"engine": engine}
    return {"spark": request.getfixturevalue("spark")}


@pytest.mark.parametrize("seed", [1, 6, 11])
def test_a_random_history_reads_the_same_on_every_engine(
    engine: Engine, open_with: dict[str, Any], table_path: str, request: pytest.FixtureRequest, seed: int
) -> None:
    history = make_history(seed, steps=4)
    shape, model = history.shape, Model(history.shape)
    table = tk.Table.create(
        table_path,
        name=shape.name,
        schema=shape.schema,
        key=shape.key,
        partition_by=shape.partition_by or None,
        ordering=shape.ordering,
        table_type=shape.table_type,
        options=shape.options,
        **open_with,
    )
    for step in history.steps:
        if step.operation == "delete_partitions":
            continue
        rows = shape.table(step.rows)
        getattr(table, step.operation)(frame_of(engine, rows, request))
        model.apply(step)
        difference = describe_difference(expected=exact_rows(model.table()), actual=exact_rows(arrow_of(table.read())))
        assert not difference, f"{history}, {step}: {difference}"


def test_bad_rows_are_refused_with_the_same_error_on_every_engine(
    engine: Engine, open_with: dict[str, Any], table_path: str, request: pytest.FixtureRequest
) -> None:
    schema = trips().schema
    table = tk.Table.create(table_path, name="trips", schema=schema, key="id", partition_by="city", **open_with)
    for operation in (table.upsert, table.bulk_insert):
        with pytest.raises(InvalidRequestError, match="null or empty record key"):
            operation(frame_of(engine, trips((None, "sf", 1, 1.0)), request))
        with pytest.raises(InvalidRequestError, match="has no rows"):
            operation(frame_of(engine, trips(), request))
        with pytest.raises(InvalidRequestError, match="no column id"):
            operation(frame_of(engine, trips(("a", "sf", 1, 1.0)).drop_columns(["id"]), request))
    assert arrow_of(table.read()).num_rows == 0
