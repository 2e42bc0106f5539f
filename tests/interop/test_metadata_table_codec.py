"""Java's metadata table stays right after our commits: listings, filters on new values, later Java writes, crashes."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tablekeeper as tk
from tablekeeper.format.data_files import decode_base_name
from tests.interop.hand_writer import HandWriter, listing_by_directories, listing_by_metadata_table
from tests.support.java_hudi import JavaTable, rust_read

__all__: list[str] = []

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("city", pa.string()),
        ("ts", pa.int64()),
        ("amount", pa.decimal128(10, 2)),
        ("score", pa.float64()),
        ("small", pa.int32()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("note", pa.string()),
        ("raw", pa.binary()),
    ]
)


def rows(ids: range, city: str, *, ts: int = 1) -> pa.Table:
    """Rows whose every value follows from the id, so that a filter on any column finds one of them."""
    day = dt.date(2024, 1, 1)
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    return pa.table(
        [
            list(ids),
            [city] * len(ids),
            [ts * 1000 + i for i in ids],
            [Decimal(i) / 4 - 3 for i in ids],
            [i / 8 for i in ids],
            list(ids),
            [i % 2 == 0 for i in ids],
            [day + dt.timedelta(days=i) for i in ids],
            [noon + dt.timedelta(microseconds=i) for i in ids],
            [f"note-{i:05d}" for i in ids],
            [bytes([i % 256, 1]) for i in ids],
        ],
        schema=SCHEMA,
    )


def filters(number: int, *, ts: int = 1) -> list[str]:
    """Conditions that only the row with this id fulfils, one for each column that tells rows apart.

    None on the binary column: Java 1.2.0 fails on such a filter as soon as there are column statistics, its own.
    """
    return [
        f"id = {number}",
        f"ts = {ts * 1000 + number}",
        f"amount = cast('{Decimal(number) / 4 - 3}' as decimal(10,2))",
        f"score = {number / 8}D",
        f"small = {number}",
        f"day = date_add(date'2024-01-01', {number})",
        f"at = timestamp'2024-01-01 12:00:00.{number:06d}'",
        f"note = 'note-{number:05d}'",
    ]


class Peer:
    """A table that Java made, with our hand-made writer beside it."""

    def __init__(self, spark: Any, path: Path, *, table_type: str, partition_by: str | None, **extra: str) -> None:
        options = JavaTable.options_for(
            name="t",
            key=["id"],
            partition_by=[partition_by] if partition_by else [],
            ordering="ts",
            table_type=table_type,
            extra={"hoodie.metadata.enable": "true", **{key.replace("__", "."): value for key, value in extra.items()}},
        )
        self.java = JavaTable(spark, str(path), options)
        self.ours = HandWriter(str(path), key="id", partition_by=partition_by)

    def ids(self, *, where: str | None = None) -> list[int]:
        frame = self.java.scan(hoodie__metadata__enable="true", hoodie__enable__data__skipping="true")
        return sorted(row["id"] for row in (frame.where(where) if where else frame).select("id").collect())

    def check(self, expected: list[int], *, probes: list[tuple[int, int]], by_every_column: bool = False) -> None:
        """Everyone sees `expected`; filters find the probed (id, ts) rows; both listings are one.

        The last probe can be made by every column, the others are by two, which the id chooses.
        """
        assert self.ids() == expected
        for number, ts in probes:
            conditions = filters(number, ts=ts)
            is_last = (number, ts) == probes[-1]
            for condition in conditions if is_last and by_every_column else conditions[number % 4 :: 4]:
                assert self.ids(where=condition) == [number], condition
        assert sorted(rust_read(self.java.path).column("id").to_pylist()) == expected
        assert listing_by_metadata_table(self.ours) == listing_by_directories(self.ours)

    def group_in(self, partition: str) -> str:
        """File id of a base file in the partition."""
        names = [decode_base_name(name) for name, _ in listing_by_directories(self.ours)[partition]]
        return next(name.file_id for name in names if name is not None)


@pytest.fixture(params=["cow", "mor"])
def table_type(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def test_java_and_rust_see_our_commit_through_every_filter(spark: Any, tmp_path: Path, table_type: str) -> None:
    peer = Peer(spark, tmp_path / "t", table_type=table_type, partition_by="city")
    peer.java.write(pa.concat_tables([rows(range(10), "a"), rows(range(10, 20), "b")]), "bulk_insert")
    peer.check([*range(20)], probes=[(3, 1)])
    peer.ours.insert(pa.concat_tables([rows(range(100, 110), "a"), rows(range(200, 210), "c")]))
    expected = [*range(20), *range(100, 110), *range(200, 210)]
    peer.check(expected, probes=[(3, 1), (105, 1), (209, 1)], by_every_column=True)
    peer.java.write(rows(range(105, 106), "a", ts=2), "upsert")
    peer.check(expected, probes=[(3, 1), (209, 1), (105, 2)], by_every_column=True)


def test_a_table_without_partitions_stays_right_over_compactions_of_the_metadata_table(
    spark: Any, tmp_path: Path, table_type: str
) -> None:
    compact = {"hoodie__metadata__compact__max__delta__commits": "2"}
    peer = Peer(spark, tmp_path / "t", table_type=table_type, partition_by=None, **compact)
    peer.java.write(rows(range(10), "a"), "bulk_insert")
    expected = [*range(10)]
    for turn in range(3):
        start = 100 * (turn + 1)
        peer.ours.insert(rows(range(start, start + 5), "a"))
        peer.java.write(rows(range(start + 50, start + 55), "a"), "insert")
        expected += [*range(start, start + 5), *range(start + 50, start + 55)]
        peer.check(sorted(expected), probes=[(start, 1), (start + 51, 1)])
    compacted = [name for name in Path(peer.java.path, ".hoodie/metadata/files").iterdir() if name.suffix == ".hfile"]
    assert len(compacted) > 1, "the metadata table was not compacted"


def test_values_that_only_a_log_file_holds_are_found(spark: Any, tmp_path: Path) -> None:
    peer = Peer(spark, tmp_path / "t", table_type="mor", partition_by="city")
    peer.java.write(pa.concat_tables([rows(range(10), "a"), rows(range(10, 20), "b")]), "bulk_insert")
    groups = {city: peer.group_in(city) for city in ("a", "b")}
    peer.ours.append(pa.concat_tables([rows(range(5, 6), "a", ts=7), rows(range(300, 302), "b")]), groups)
    expected = [*range(20), 300, 301]
    peer.check(expected, probes=[(5, 7), (3, 1), (301, 1)], by_every_column=True)
    peer.ours.delete(rows(range(3, 5), "a"), groups)
    expected = [number for number in expected if number not in (3, 4)]
    peer.check(expected, probes=[(5, 7), (301, 1)])
    assert peer.ids(where="id = 3") == []
    peer.java.write(rows(range(400, 401), "a"), "upsert")
    peer.java.compact()
    peer.check([*expected, 400], probes=[(5, 7), (400, 1), (301, 1)], by_every_column=True)


@pytest.mark.parametrize("stop_before", ["metadata", "completion"])
def test_a_commit_that_died_leaves_no_trace_after_javas_next_write(
    stop_before: str, spark: Any, tmp_path: Path, table_type: str
) -> None:
    peer = Peer(spark, tmp_path / "t", table_type=table_type, partition_by="city")
    peer.java.write(rows(range(10), "a"), "bulk_insert")
    peer.ours.insert(rows(range(100, 110), "a"), stop_before=stop_before)
    assert peer.ids() == [*range(10)]
    peer.java.write(rows(range(20, 30), "a"), "insert")
    peer.check([*range(10), *range(20, 30)], probes=[(25, 1)])


def test_statistics_of_every_type_are_those_that_java_writes(spark: Any, tmp_path: Path) -> None:
    peer = Peer(spark, tmp_path / "t", table_type="cow", partition_by="city")
    peer.java.write(rows(range(10), "a"), "bulk_insert")
    definitions = json.loads(Path(peer.java.path, ".hoodie/.index_defs/index.json").read_text(encoding="utf-8"))
    assert set(SCHEMA.names) <= set(definitions["indexDefinitions"]["column_stats"]["sourceFields"])
    assert peer.ours.indexes.columns == tuple(definitions["indexDefinitions"]["column_stats"]["sourceFields"])


def test_values_of_a_new_column_are_found_before_and_after_javas_next_write(spark: Any, tmp_path: Path) -> None:
    peer = Peer(spark, tmp_path / "t", table_type="cow", partition_by="city")
    peer.java.write(pa.concat_tables([rows(range(10), "a"), rows(range(10, 20), "b")]), "bulk_insert")

    def with_extra(table: pa.Table) -> pa.Table:
        return table.append_column("extra", pc.add(table.column("id"), 1000))

    result = tk.Table.open(peer.java.path, engine="local").insert(with_extra(rows(range(100, 105), "b")))
    assert any("column_stats" in note for note in result.notes)
    assert peer.ids(where="extra = 1103") == [103]
    assert peer.ids(where="extra is null") == [*range(20)]
    peer.java.write(with_extra(rows(range(200, 205), "a")), "insert")
    assert "column_stats" in peer.ours.config.metadata_partitions
    assert peer.ids(where="extra = 1103") == [103]
    assert peer.ids(where="extra = 1204") == [204]
    peer.check([*range(20), *range(100, 105), *range(200, 205)], probes=[(103, 1), (204, 1)])


def test_the_metadata_table_can_be_switched_off_and_java_builds_it_anew(spark: Any, tmp_path: Path) -> None:
    peer = Peer(spark, tmp_path / "t", table_type="cow", partition_by="city")
    peer.java.write(rows(range(10), "a"), "bulk_insert")
    table = tk.Table.open(peer.java.path, engine="local", options={"hoodie.metadata.enable": "false"})
    assert table.upsert(rows(range(100, 105), "a")).notes
    assert not Path(peer.java.path, ".hoodie/metadata").exists()
    assert peer.ids() == [*range(10), *range(100, 105)]
    assert peer.ids(where="id = 103") == [103]
    peer.java.write(rows(range(200, 205), "a"), "insert")
    peer.check([*range(10), *range(100, 105), *range(200, 205)], probes=[(103, 1)])


def test_files_that_we_cleaned_are_gone_from_javas_listing(spark: Any, tmp_path: Path, table_type: str) -> None:
    peer = Peer(spark, tmp_path / "t", table_type=table_type, partition_by="city")
    peer.java.write(rows(range(10), "a"), "bulk_insert")
    writer = peer.ours
    (old,) = [name for name, _ in listing_by_directories(writer)["a"]]
    peer.java.write(rows(range(10), "a", ts=2), "insert_overwrite")
    writer.clean({"a": [old]})
    peer.check([*range(10)], probes=[(5, 2)])
    peer.java.write(rows(range(20, 25), "a"), "insert")
    peer.check([*range(10), *range(20, 25)], probes=[(5, 2), (21, 1)])


def test_values_of_a_widened_column_are_found_before_and_after_javas_next_write(spark: Any, tmp_path: Path) -> None:
    peer = Peer(spark, tmp_path / "t", table_type="cow", partition_by="city")
    peer.java.write(pa.concat_tables([rows(range(10), "a"), rows(range(10, 20), "b")]), "bulk_insert")

    def widened(table: pa.Table) -> pa.Table:
        position = SCHEMA.get_field_index("small")
        return table.set_column(position, "small", pc.add(table.column("small").cast(pa.int64()), 1 << 40))

    tk.Table.open(peer.java.path, engine="local").insert(widened(rows(range(100, 105), "b")))
    assert peer.ids(where=f"small = {(1 << 40) + 103}") == [103]
    assert peer.ids(where="small = 12") == [12]
    peer.java.write(widened(rows(range(200, 205), "a")), "insert")
    assert peer.ids(where=f"small = {(1 << 40) + 103}") == [103]
    assert peer.ids(where=f"small = {(1 << 40) + 204}") == [204]
    assert peer.ids(where="small = 12") == [12]
    assert listing_by_metadata_table(peer.ours) == listing_by_directories(peer.ours)


def test_a_table_of_version_8_keeps_its_listing_and_loses_its_old_statistics(
    spark: Any, tmp_path: Path, table_type: str
) -> None:
    old = {"hoodie__write__table__version": "8", "hoodie__write__auto__upgrade": "false"}
    peer = Peer(spark, tmp_path / "t", table_type=table_type, partition_by="city", **old)
    peer.java.write(pa.concat_tables([rows(range(10), "a"), rows(range(10, 20), "b")]), "bulk_insert")
    config = peer.ours.config
    assert config.version == 8
    assert {"files", "column_stats", "partition_stats"} <= set(config.metadata_partitions)
    tk.Table.open(peer.java.path, engine="local").upsert(rows(range(5, 12), "a", ts=2))
    assert peer.ours.config.metadata_partitions == ("files",)
    expected = sorted([*range(10), *range(10, 12), *range(10, 20)])
    assert peer.ids() == expected
    assert peer.ids(where="ts = 2011") == [11]
    assert listing_by_metadata_table(peer.ours) == listing_by_directories(peer.ours)
    peer.java.write(rows(range(30, 32), "a"), "upsert")
    assert peer.ids() == [*expected, 30, 31]
    assert peer.ids(where="ts = 2011") == [11]
    assert listing_by_metadata_table(peer.ours) == listing_by_directories(peer.ours)
