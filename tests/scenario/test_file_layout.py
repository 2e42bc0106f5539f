"""How rows are laid out in files: target sizes, small files that are filled up, and work that is cut into shares."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tablekeeper as tk
from tablekeeper.engine import local
from tablekeeper.write import staging
from tests.support.table_builder import TableBuilder, rows_of, trips

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "4"}
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.float64())])


def rows(start: int, end: int, *, partitions: int = 1, ts: int = 1, seed: int = 0) -> pa.Table:
    """Rows with the keys k<start> to k<end - 1>, in random order, with values that do not compress."""
    rng = np.random.default_rng(seed + start)
    numbers = rng.permutation(np.arange(start, end))
    return pa.table(
        {
            "id": [f"k{n:07d}" for n in numbers],
            "p": [f"p{n % partitions}" for n in numbers],
            "ts": np.full(len(numbers), ts),
            "v": rng.random(len(numbers)),
        },
        schema=SCHEMA,
    )


def latest(*writes: pa.Table) -> list[tuple[object, ...]]:
    """What must be there after upserts of these tables, one after the other."""
    versions: dict[tuple[object, object], tuple[object, ...]] = {}
    for table in writes:
        for row in rows_of(table):
            versions[row[0], row[1]] = row
    return sorted(versions.values(), key=repr)


def sizes(table: tk.Table) -> list[int]:
    return sorted(s.base.size for s in table.files() if s.base is not None)


def create(tables: TableBuilder, table_type: str, **options: object) -> tk.Table:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return tables.create(schema=SCHEMA, partition_by="p", table_type=table_type, options=named)


def test_inserts_are_cut_into_files_of_the_target_size(tables: TableBuilder, table_type: str) -> None:
    table = create(tables, table_type, hoodie_parquet_max_file_size=100_000, hoodie_parquet_small_file_limit=0)
    given = rows(0, 20_000)
    table.insert(given)
    assert len(sizes(table)) >= 3
    assert max(sizes(table)) < 150_000
    assert rows_of(table.read()) == rows_of(given)


def test_keys_that_occur_twice_end_up_in_one_file_when_inserts_are_cut(tables: TableBuilder, table_type: str) -> None:
    table = create(tables, table_type, hoodie_parquet_max_file_size=60_000, hoodie_parquet_small_file_limit=0)
    first, second = rows(0, 5_000, ts=1), rows(0, 5_000, ts=2, seed=1)
    table.upsert(pa.concat_tables([second, first]))
    assert len(sizes(table)) > 2
    assert rows_of(table.read()) == rows_of(second)


def test_small_files_are_filled_up_before_new_ones_are_made(tables: TableBuilder, table_type: str) -> None:
    table = create(tables, table_type)
    parts = [rows(n * 100, n * 100 + 100) for n in range(4)]
    for part in parts:
        table.upsert(part)
    assert len(table.files()) == 1
    assert rows_of(table.read()) == latest(*parts)


def test_a_small_file_limit_of_zero_makes_a_new_file_for_every_insert(tables: TableBuilder, table_type: str) -> None:
    table = create(tables, table_type, hoodie_parquet_small_file_limit=0)
    for n in range(3):
        table.insert(rows(n * 100, n * 100 + 100))
    assert len(table.files()) == 3


def test_new_rows_fill_a_small_file_and_spill_into_new_ones_while_updates_go_home(
    tables: TableBuilder, table_type: str
) -> None:
    table = create(tables, table_type, hoodie_parquet_max_file_size=100_000, hoodie_parquet_small_file_limit=90_000)
    first = rows(0, 1_500)
    table.upsert(first)
    assert len(sizes(table)) == 1
    second = rows(1_000, 12_000, ts=2)
    table.upsert(second)
    assert len(sizes(table)) >= 3
    assert rows_of(table.read()) == latest(first, second)
    third = rows(500, 11_000, ts=3)
    table.upsert(third)
    assert rows_of(table.read()) == latest(first, second, third)


def test_in_a_merge_on_read_table_a_file_with_logs_takes_no_new_rows(tables: TableBuilder) -> None:
    table = create(tables, "mor")
    table.upsert(rows(0, 10))
    table.upsert(rows(0, 5, ts=2))
    table.upsert(rows(10, 20))
    assert [len(s.logs) for s in table.files()] == [0, 1] or [len(s.logs) for s in table.files()] == [1, 0]
    assert table.read().num_rows == 20


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
def test_rows_that_are_staged_in_many_flushes_and_lanes_come_out_whole(
    tables: TableBuilder, table_type: str, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_ROWS_A_LANE", 50)
    table = create(
        tables,
        table_type,
        hoodie_index_type=index,
        tablekeeper_write_task_memory_bytes=20_000,
        hoodie_parquet_max_file_size=40_000,
        hoodie_parquet_small_file_limit=30_000,
    )
    first, second, third = rows(0, 3_000, partitions=3), rows(1_500, 6_000, partitions=3, ts=2), rows(0, 50, ts=3)
    for part in (first, second, third):
        batches = part.to_batches(max_chunksize=97)
        table.upsert(pa.RecordBatchReader.from_batches(SCHEMA, batches))
    assert rows_of(table.read()) == latest(first, second, third)


def test_the_last_of_equal_rows_wins_across_flushes_and_lanes(
    tables: TableBuilder, table_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_ROWS_A_LANE", 20)
    table = create(tables, table_type, tablekeeper_write_task_memory_bytes=2_000)
    versions = [rows(0, 200, seed=n) for n in range(5)]
    table.upsert(pa.concat_tables(versions))
    assert rows_of(table.read()) == rows_of(versions[-1])


def test_rows_that_are_staged_by_several_threads_keep_their_order(
    tables: TableBuilder, table_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MIN_ROWS_A_PART", 10)
    table = tables.through(create(tables, table_type))
    versions = [rows(0, 100, seed=n, partitions=3) for n in range(6)]
    table.upsert(pa.concat_tables(versions))
    assert rows_of(table.read()) == rows_of(versions[-1])
    more = rows(50, 400, ts=2, partitions=3)
    table.bulk_insert(rows(1000, 1300, partitions=3))
    table.upsert(more)
    assert rows_of(table.read()) == latest(versions[-1], rows(1000, 1300, partitions=3), more)


def test_few_keys_in_many_lanes_leave_some_shares_empty(
    tables: TableBuilder, table_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_ROWS_A_LANE", 1)
    table = create(tables, table_type, hoodie_parquet_max_file_size=10, hoodie_parquet_small_file_limit=0)
    given = pa.concat_tables([rows(0, 3, seed=n) for n in range(20)])
    table.upsert(given)
    assert rows_of(table.read()) == rows_of(given.slice(57))


def test_a_merge_goes_through_all_row_groups_of_a_base_file(tables: TableBuilder, table_type: str) -> None:
    table = create(tables, table_type, hoodie_parquet_block_size=20_000)
    first, second = rows(0, 5_000), rows(2_000, 7_000, ts=2)
    table.upsert(pa.RecordBatchReader.from_batches(SCHEMA, first.to_batches(max_chunksize=500)))
    table.upsert(second)
    table.delete(first.slice(0, 100).select(["id", "p"]))
    gone = set(first.slice(0, 100).column("id").to_pylist())
    assert rows_of(table.read()) == [row for row in latest(first, second) if row[0] not in gone]


def test_a_bulk_insert_over_many_partitions_keeps_every_row(tables: TableBuilder, table_type: str) -> None:
    table = create(tables, table_type, tablekeeper_write_task_memory_bytes=5_000)
    given = rows(0, 3_000, partitions=300)
    table.bulk_insert(given)
    assert rows_of(table.read()) == rows_of(given)


def test_log_blocks_written_as_avro_and_as_parquet_read_the_same(tables: TableBuilder) -> None:
    writes = [rows(0, 200), rows(100, 150, ts=2), rows(120, 160, ts=3)]
    answers = []
    for kind in ("avro", "parquet"):
        table = create(tables, "mor", hoodie_logfile_data_block_format=kind)
        for part in writes:
            table.upsert(part)
        assert sum(len(s.logs) for s in table.files()) == 2
        answers.append(rows_of(table.read()))
    assert answers[0] == answers[1] == latest(*writes)


@pytest.mark.parametrize("options", [{}, BUCKETS], ids=["simple", "bucket"])
def test_keys_and_partitions_may_lie_inside_of_structs(
    tables: TableBuilder, table_type: str, options: dict[str, str]
) -> None:
    place = pa.struct([("id", pa.int32()), ("city", pa.string())])
    schema = pa.schema([("place", place), ("ts", pa.int64())])
    table = tables.create(
        schema=schema, key="place.id", partition_by="place.city", table_type=table_type, options=options
    )
    first, second = {"id": 1, "city": "sf"}, {"id": 2, "city": "la"}
    table.upsert(trips((first, 1), (second, 1), schema=schema))
    assert table.upsert(trips((first, 2), schema=schema)).rows_updated == 1
    assert table.delete(trips((second,), schema=pa.schema([("place", place)]))).rows_deleted == 1
    assert table.read().to_pylist() == [{"place": first, "ts": 2}]
    assert table.read(where="place.city = 'la'").num_rows == 0


def bounds_of_floats(tables: TableBuilder, table: tk.Table) -> list[list[bool]]:
    """For each base file and each of its row groups, whether the footer has bounds of the column `v`."""
    storage = tables.storage(table)
    footers = [pq.read_metadata(storage.open_input(s.base.path)) for s in table.files() if s.base is not None]
    position = footers[0].schema.names.index("v")
    return [
        [footer.row_group(group).column(position).is_stats_set for group in range(footer.num_row_groups)]
        for footer in footers
    ]


def with_nan(table: pa.Table) -> pa.Table:
    values = table.column("v").to_pylist()
    values[-1] = float("nan")
    return table.set_column(table.schema.get_field_index("v"), "v", pa.array(values))


def test_floats_have_bounds_where_it_is_known_that_all_of_them_are_numbers(
    tables: TableBuilder, table_type: str
) -> None:
    table = create(tables, table_type, hoodie_parquet_block_size=20_000)
    table.upsert(rows(0, 200))
    assert bounds_of_floats(tables, table) == [[True]]
    table.upsert(rows(200, 3_000))
    table.upsert(rows(0, 3_000, ts=2))
    table.cluster(order_by=["v"])
    (whole,) = bounds_of_floats(tables, table)
    assert len(whole) > 1
    assert all(whole)
    table.upsert(rows(0, 100, ts=3))
    if table_type == "mor":
        assert table.compact() is not None
    (merged,) = bounds_of_floats(tables, table)
    assert len(merged) > 1
    assert all(merged)


def test_floats_have_no_bounds_beside_one_that_is_not_a_number(tables: TableBuilder, table_type: str) -> None:
    table = create(tables, table_type, hoodie_parquet_block_size=20_000)
    table.upsert(with_nan(rows(0, 3_000)))
    table.cluster(order_by=["ts"])
    (clustered,) = bounds_of_floats(tables, table)
    assert len(clustered) > 1
    assert not any(clustered)
    table.upsert(rows(0, 100, ts=2))
    if table_type == "mor":
        assert table.compact() is not None
    assert not any(flag for flags in bounds_of_floats(tables, table) for flag in flags)


def test_a_change_that_is_not_a_number_takes_the_bounds_away(tables: TableBuilder, table_type: str) -> None:
    table = create(tables, table_type, hoodie_parquet_block_size=20_000)
    table.upsert(rows(0, 3_000))
    table.cluster(order_by=["v"])
    table.upsert(with_nan(rows(0, 100, ts=2)))
    if table_type == "mor":
        assert table.compact() is not None
    assert not any(flag for flags in bounds_of_floats(tables, table) for flag in flags)
