"""One clustering group: rows of many slices come out in order, in new file groups, with their meta columns."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.config.clustering_order import ClusteringOrder, Layout, OutputLayout
from tablekeeper.errors import InvalidRequestError, PlanCancelledError
from tablekeeper.format.data_files import decode_base_name
from tablekeeper.model import RequestedTime
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.services.clustering.kernels import ClusterTask, cluster_group, refuse_bad_order
from tablekeeper.snapshot.snapshot import load_snapshot
from tablekeeper.storage import Storage
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.timeline import load_timeline
from tablekeeper.timeline.properties_file import load_table_config
from tablekeeper.txn.cancel_requests import CancelRequest, save_cancel_request
from tablekeeper.write.results import WrittenFile
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips
from tests.support.write_context import begun, make_context

__all__: list[str] = []

INSTANT = "20990101000000000"
BY_FARE = OutputLayout(ClusteringOrder(("fare",)))


def _task(
    storage: Storage, *, schema: pa.Schema = TRIPS, settings: dict[str, Any] | None = None, **changes: Any
) -> Any:
    config = load_table_config(storage)
    timeline = load_timeline(storage, config)
    snapshot = load_snapshot(storage, config, timeline, runtime=SYSTEM_RUNTIME)
    store = StorageHandle(storage)
    context = begun(make_context(schema=schema, store=store, instant=INSTANT))
    context = replace(context, settings=replace(context.settings, **(settings or {})))
    fields: dict[str, Any] = {
        "context": context,
        "slices": tuple(snapshot.latest),
        "outputs": 1,
        "number": 0,
        "layout": BY_FARE,
    }
    return ClusterTask(**(fields | changes))


def _written(storage: Storage, files: Sequence[WrittenFile]) -> list[pa.Table]:
    return [pq.read_table(io.BytesIO(storage.read(file.stat.path))) for file in files]


def _many(table: tk.Table, *, inserts: int, rows: int) -> None:
    """Slices with overlapping ranges of fares, some of them null."""
    for turn in range(inserts):
        numbers = range(turn, rows * inserts, inserts)
        table.insert(
            trips(*((f"{n:05}", "sf", n, None if n % 17 == 0 else float(n * 7919 % 1000)) for n in numbers)),
        )


@pytest.fixture
def builder() -> Any:
    made = TableBuilder()
    yield made
    made.forget()


def _fares(table: pa.Table) -> list[tuple[bool, float]]:
    return [(fare is not None, fare or 0.0) for fare in table.column("fare").to_pylist()]


@pytest.mark.parametrize("memory", [1 << 28, 1 << 14], ids=["in memory", "through files"])
def test_rows_come_out_in_order_with_nulls_first(builder: TableBuilder, memory: int) -> None:
    table = builder.create(options={"hoodie.parquet.small.file.limit": 0})
    _many(table, inserts=4, rows=700)
    storage = builder.storage(table)
    before = table.read()
    task = _task(storage, settings={"task_memory_bytes": memory, "row_group_bytes": 1 << 14}, outputs=3)

    files = cluster_group(task)

    written = _written(storage, files)
    assert [part.num_rows for part in written] == [934, 934, 932]
    fares = [fare for part in written for fare in _fares(part)]
    assert fares == sorted(fares)
    assert rows_of(pa.concat_tables(written).select(TRIPS.names)) == rows_of(before)
    assert not [file.path for file in storage.walk(task.context.staging)]


@pytest.mark.parametrize("memory", [1 << 28, 1 << 14], ids=["in memory", "through files"])
def test_texts_that_repeat_come_out_as_they_went_in(builder: TableBuilder, memory: int) -> None:
    """They travel as dictionaries, which differ between files, and logs have none."""
    schema = TRIPS.append(pa.field("kind", pa.string()))
    table = builder.create(schema=schema, table_type="mor", options={"hoodie.parquet.small.file.limit": 0})
    for turn in range(3):
        kinds = [None, "", f"only in {turn}", "everywhere"]
        rows = [(f"{n:05}", "sf", n, float(n % 7), kinds[n % 4]) for n in range(turn, 9000, 3)]
        table.insert(trips(*rows, schema=schema))
    table.upsert(trips(*((f"{n:05}", "sf", 10**6, 1.0, "changed") for n in range(0, 2000, 7)), schema=schema))
    storage = builder.storage(table)
    task = _task(storage, schema=schema, settings={"task_memory_bytes": memory, "row_group_bytes": 1 << 14}, outputs=2)

    written = _written(storage, cluster_group(task))

    assert rows_of(pa.concat_tables(written).select(schema.names)) == rows_of(table.read())
    assert {part.schema.field("kind").type for part in written} == {pa.string()}
    stored = pq.read_metadata(io.BytesIO(storage.read(task.slices[0].base.path))).row_group(0).column(9)
    assert stored.path_in_schema == "kind"
    assert stored.total_uncompressed_size < 4 * stored.num_values, "the column is not one that repeats"


@pytest.mark.parametrize("layout", [Layout.ZORDER, Layout.HILBERT])
@pytest.mark.parametrize("memory", [1 << 28, 1 << 14], ids=["in memory", "through files"])
def test_a_curve_brings_rows_together_that_are_near_in_both_columns(
    builder: TableBuilder, memory: int, layout: Layout
) -> None:
    table = builder.create(options={"hoodie.parquet.small.file.limit": 0})
    side = 40
    for turn in range(2):
        grid = [(f"{x}-{y}", "sf", x, float(y)) for x in range(side) for y in range(turn, side, 2)]
        table.insert(trips(*grid))
    storage = builder.storage(table)
    task = _task(
        storage,
        settings={"task_memory_bytes": memory, "row_group_bytes": 1 << 13},
        outputs=16,
        layout=OutputLayout(ClusteringOrder(("ts", "fare"), layout)),
    )

    written = _written(storage, cluster_group(task))

    assert len(written) == 16
    assert sum(part.num_rows for part in written) == side * side
    for part in written:
        xs, ys = set(part.column("ts").to_pylist()), set(part.column("fare").to_pylist())
        assert len(xs) * len(ys) <= 4 * part.num_rows


def test_rows_keep_their_key_commit_time_and_sequence_and_get_the_new_file_name(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor", options={"hoodie.parquet.small.file.limit": 0})
    table.insert(trips(("1", "sf", 1, 3.0), ("2", "sf", 1, 2.0), ("3", "sf", 1, 1.0)))
    table.upsert(trips(("2", "sf", 2, 9.0)))
    table.delete(trips(("3", "sf")).select(["id", "city"]))
    storage = builder.storage(table)
    meta = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key"]
    before = table.read(meta_columns=True)
    task = _task(storage)
    assert any(each.logs for each in task.slices)

    [file] = cluster_group(task)

    [rows] = _written(storage, [file])
    assert rows_of(rows, *meta, *TRIPS.names) == rows_of(before, *meta, *TRIPS.names)
    assert rows.column("fare").to_pylist() == [3.0, 9.0]
    assert len(set(rows.column("_hoodie_commit_time").to_pylist())) == 2
    assert set(rows.column("_hoodie_file_name").to_pylist()) == {file.stat.path.rsplit("/", 1)[-1]}
    assert set(rows.column("_hoodie_partition_path").to_pylist()) == {"sf"}
    assert file.stat.group not in {each.group for each in task.slices}
    name = decode_base_name(file.stat.path.rsplit("/", 1)[-1])
    assert name is not None
    assert name.instant == INSTANT


def test_an_old_plan_that_does_not_keep_meta_columns_stamps_the_rows_anew(builder: TableBuilder) -> None:
    table = builder.create()
    table.insert(trips(("1", "sf", 1, 3.0), ("2", "sf", 1, 2.0)))
    storage = builder.storage(table)

    [rows] = _written(storage, cluster_group(_task(storage, preserves_metadata=False)))

    assert rows.column("_hoodie_commit_time").to_pylist() == [INSTANT] * 2
    assert rows.column("_hoodie_commit_seqno").to_pylist() == [f"{INSTANT}_0_0", f"{INSTANT}_0_1"]
    assert rows.column("fare").to_pylist() == [2.0, 3.0]


def test_a_full_file_is_followed_by_another_one_unless_the_group_is_a_single_file(builder: TableBuilder) -> None:
    table = builder.create()
    _many(table, inserts=1, rows=4000)
    storage = builder.storage(table)
    small = {"row_group_bytes": 1 << 14}
    layout = replace(BY_FARE, target_file_bytes=1 << 15)

    several = cluster_group(_task(storage, settings=small, layout=layout))
    single = cluster_group(_task(storage, settings=small, layout=replace(layout, single_file=True)))

    assert len(several) > 1
    assert len(single) == 1
    assert sum(file.stat.writes for file in several) == single[0].stat.writes == 4000
    assert all(file.stat.size >= 1 << 15 for file in several[:-1])


def test_rows_without_an_order_stay_as_they_come(builder: TableBuilder) -> None:
    table = builder.create(options={"hoodie.parquet.small.file.limit": 0})
    table.insert(trips(("1", "sf", 1, 3.0), ("2", "sf", 1, 2.0)))
    table.insert(trips(("3", "sf", 1, 1.0)))
    storage = builder.storage(table)
    task = _task(storage, layout=OutputLayout())

    [rows] = _written(storage, cluster_group(task))

    expected = [part for each in task.slices for part in _file(storage, each)]
    assert rows.column("id").to_pylist() == expected


def _file(storage: Storage, file_slice: Any) -> list[str]:
    ids: list[str] = pq.read_table(io.BytesIO(storage.read(file_slice.base.path))).column("id").to_pylist()
    return ids


def test_slices_whose_rows_were_all_deleted_leave_no_file(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor")
    table.insert(trips(("1", "sf", 1, 3.0)))
    table.delete(trips(("1", "sf")).select(["id", "city"]))
    assert cluster_group(_task(builder.storage(table))) == []


def test_a_plan_that_was_cancelled_stops_and_publishes_nothing(builder: TableBuilder) -> None:
    table = builder.create()
    table.insert(trips(("1", "sf", 1, 3.0)))
    storage = builder.storage(table)
    task = _task(storage)
    save_cancel_request(storage, CancelRequest(RequestedTime(INSTANT), "changed our minds"))

    with pytest.raises(PlanCancelledError, match="changed our minds"):
        cluster_group(task)

    assert not [file.path for file in storage.walk("sf") if INSTANT in file.path]


@pytest.mark.parametrize(
    ("columns", "message"),
    [(("fair",), "did you mean fare"), (("fare", "fare"), "twice"), (("place",), "a plain one")],
)
def test_an_order_that_does_not_fit_the_table_is_refused(columns: tuple[str, ...], message: str) -> None:
    schema = TRIPS.append(pa.field("place", pa.struct([("lat", pa.float64())])))
    with pytest.raises(InvalidRequestError, match=message):
        refuse_bad_order(ClusteringOrder(columns), schema)
    refuse_bad_order(ClusteringOrder(("place.lat", "fare"), Layout.HILBERT), schema)
