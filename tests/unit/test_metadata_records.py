"""Records of the metadata table: keys as Java computes them, values both ways, and what merging does."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import fastavro
import pytest

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.metadata_keys import column_stats_key, metadata_file_group_index, partition_stats_key
from tablekeeper.format.metadata_records import (
    ColumnRange,
    ColumnStatsRecord,
    FileEntry,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    ValueType,
    bloom_filter_record,
    column_stats_record,
    decode_metadata_record,
    encode_metadata_record,
    merge_metadata_records,
    metadata_schema_json,
    partition_stats_record,
)

__all__: list[str] = []


def decode(key: str, value: bytes) -> MetadataRecord:
    return decode_metadata_record(key, value, schema_json=metadata_schema_json(), file="log")


def long_range(minimum: int | None, maximum: int | None, *, nulls: int = 0, values: int = 1) -> ColumnRange:
    return ColumnRange("c", ValueType.LONG, minimum, maximum, nulls, values, 10, 20)


def stats(column_range: ColumnRange, *, tight: bool = False, deleted: bool = False) -> ColumnStatsRecord:
    return ColumnStatsRecord("k", "p", column_range, is_deleted=deleted, is_tight=tight, of_partition=True)


def test_the_keys_are_those_that_java_wrote() -> None:
    # Copied from a table of Java Hudi 1.2: a file in a table without partitions.
    name = ".0ad34fbd-dd1a-4a9e-b367-63404003fa9c-0_20260307162708294.log.1_0-93-193"
    key = column_stats_key(partition="", file_name=name, column="currency")
    assert key == "/m6lxu4Dh5w=FXThHwelITM=2uRTflB2M4bM2TJWm4W0Jw=="
    assert partition_stats_key(partition="", column="currency") == "/m6lxu4Dh5w=FXThHwelITM="


def test_the_file_group_of_a_key_follows_javas_string_hash() -> None:
    assert metadata_file_group_index("anything", groups=1) == 0
    # "polygenelubricants" hashes to the smallest int, whose absolute value is negative in Java.
    assert metadata_file_group_index("polygenelubricants", groups=10) == 8
    assert metadata_file_group_index("\U0001f600", groups=1000) == (31 * 0xD83D + 0xDE00) % 1000
    with pytest.raises(ValueError, match="at least one"):
        metadata_file_group_index("a", groups=0)


@pytest.mark.parametrize(
    "record",
    [
        PartitionListRecord({"a=1": True, "": True, "b/c": False}),
        FileListRecord("", {"x.parquet": FileEntry(12), ".y.log.1_0-0-0": FileEntry(0, is_deleted=True)}),
        FileListRecord("city=sf", {}),
        column_stats_record(partition="p", file_name="f", column_range=long_range(-5, 1 << 40, nulls=2, values=9)),
        partition_stats_record(partition="p", column_range=long_range(None, None, nulls=3, values=3), is_tight=True),
    ],
)
def test_a_record_survives_the_way_to_the_file(record: MetadataRecord) -> None:
    assert decode(record.key, encode_metadata_record(record)) == record


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (ValueType.BOOLEAN, True),
        (ValueType.INT, -7),
        (ValueType.DATE, 19000),
        (ValueType.TIME_MILLIS, 5),
        (ValueType.LONG, 1 << 60),
        (ValueType.TIMESTAMP_MICROS, 1_700_000_000_000_000),
        (ValueType.LOCAL_TIMESTAMP_MILLIS, -1),
        (ValueType.FLOAT, 0.5),
        (ValueType.DOUBLE, 0.1),
        (ValueType.STRING, "grüße"),
        (ValueType.UUID, "6c1b"),
        (ValueType.BYTES, b"\x00\xff"),
        (ValueType.FIXED, b"1234"),
        (ValueType.DECIMAL, b"\xff\x38"),
    ],
)
def test_a_bound_of_every_type_keeps_its_type(value_type: ValueType, value: bool | int | float | str | bytes) -> None:
    column_range = ColumnRange("c", value_type, value, value, 0, 1, type_info="10,2")
    record = column_stats_record(partition="p", file_name="f", column_range=column_range)
    found = decode(record.key, encode_metadata_record(record))
    assert found == record
    assert isinstance(found, ColumnStatsRecord)
    assert type(found.range.minimum) is type(value)


def test_a_general_avro_reader_finds_the_same_values() -> None:
    column_range = ColumnRange("c", ValueType.DOUBLE, -0.5, 2.5, 1, 300, 4, 5, type_info="x")
    record = partition_stats_record(partition="p", column_range=column_range, is_tight=True)
    schema = fastavro.parse_schema(json.loads(metadata_schema_json()))
    found: Any = fastavro.schemaless_reader(io.BytesIO(encode_metadata_record(record)), schema, None)
    assert (found["key"], found["type"], found["filesystemMetadata"]) == ("", 6, None)
    assert found["ColumnStatsMetadata"] == {
        "fileName": "p",
        "columnName": "c",
        "minValue": {"value": -0.5},
        "maxValue": {"value": 2.5},
        "valueCount": 300,
        "nullCount": 1,
        "totalSize": 4,
        "totalUncompressedSize": 5,
        "isDeleted": False,
        "isTightBound": True,
        "valueType": {"typeOrdinal": 6, "additionalInfo": "x"},
    }


@pytest.mark.parametrize(
    "record",
    [
        FileListRecord("p", {"a": FileEntry(5), "b": FileEntry(0, is_deleted=True)}),
        column_stats_record(partition="p", file_name="f", column_range=long_range(-5, 7)),
        bloom_filter_record(partition="p", file_name="f", instant="1", kind="SIMPLE", content=b"abc="),
    ],
)
def test_records_of_a_writer_with_another_schema_are_read(record: MetadataRecord) -> None:
    schema = json.loads(metadata_schema_json())
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "SecondaryIndexMetadata"]
    value = encode_metadata_record(record)[:-1]
    assert decode_metadata_record(record.key, value, schema_json=json.dumps(schema), file="log") == record


def test_a_bloom_filter_is_stored_as_java_has_it_and_the_later_one_counts() -> None:
    # The key is that of statistics without a column.
    filter_ = bloom_filter_record(partition="", file_name="f", instant="17", kind="DYNAMIC_V0", content=b"abc=")
    assert filter_.key == column_stats_key(partition="", file_name="f", column="x")[12:]
    schema = fastavro.parse_schema(json.loads(metadata_schema_json()))
    found: Any = fastavro.schemaless_reader(io.BytesIO(encode_metadata_record(filter_)), schema, None)
    assert (found["key"], found["type"], found["ColumnStatsMetadata"]) == ("", 4, None)
    stored = {"type": "DYNAMIC_V0", "timestamp": "17", "bloomFilter": b"abc=", "isDeleted": False}
    assert found["BloomFilterMetadata"] == stored
    gone = bloom_filter_record(partition="", file_name="f", instant="18", is_deleted=True)
    for record in (filter_, gone):
        assert decode(record.key, encode_metadata_record(record)) == record
    assert merge_metadata_records(filter_, gone) == gone
    assert merge_metadata_records(gone, filter_) == filter_


def test_later_files_join_earlier_ones_and_deletions_remove() -> None:
    older = FileListRecord("p", {"a": FileEntry(1), "b": FileEntry(2)})
    newer = FileListRecord("p", {"b": FileEntry(0, is_deleted=True), "c": FileEntry(3), "a": FileEntry(5)})
    merged = merge_metadata_records(older, newer)
    assert isinstance(merged, FileListRecord)
    assert merged.live == {"a": 5, "c": 3}
    assert "b" not in merged.files


def test_a_deletion_of_a_file_that_is_not_known_yet_stays_as_a_tombstone() -> None:
    deletion = FileListRecord("p", {"a": FileEntry(0, is_deleted=True)})
    logs = merge_metadata_records(FileListRecord("p", {"b": FileEntry(1)}), deletion)
    merged = merge_metadata_records(FileListRecord("p", {"a": FileEntry(9)}), logs)
    assert isinstance(merged, FileListRecord)
    assert merged.live == {"b": 1}


def test_partitions_come_and_go() -> None:
    older = PartitionListRecord({"a": True, "b": True})
    merged = merge_metadata_records(older, PartitionListRecord({"b": False, "c": True}))
    assert isinstance(merged, PartitionListRecord)
    assert merged.live == ("a", "c")


def test_statistics_widen_what_was_known() -> None:
    merged = merge_metadata_records(stats(long_range(3, 9, nulls=1, values=5)), stats(long_range(-1, 4, values=2)))
    assert isinstance(merged, ColumnStatsRecord)
    assert merged.range == ColumnRange("c", ValueType.LONG, -1, 9, 1, 7, 20, 40)


def test_tight_statistics_and_deletions_replace_what_was_known() -> None:
    wide, tight = stats(long_range(0, 100)), stats(long_range(4, 5), tight=True)
    deleted = stats(long_range(None, None), deleted=True)
    assert merge_metadata_records(wide, tight) == tight
    assert merge_metadata_records(tight, deleted) == deleted
    assert merge_metadata_records(deleted, wide) == wide


def test_bounds_compare_as_values_not_as_bytes() -> None:
    negative = ColumnRange("c", ValueType.DECIMAL, b"\xff", b"\xff", 0, 1, type_info="5,0")
    positive = ColumnRange("c", ValueType.DECIMAL, b"\x01\x00", b"\x01\x00", 0, 1, type_info="5,0")
    assert (negative.merged_with(positive).minimum, positive.merged_with(negative).maximum) == (b"\xff", b"\x01\x00")
    number = ColumnRange("c", ValueType.DOUBLE, 1.0, 2.0, 0, 1)
    merged = ColumnRange("c", ValueType.DOUBLE, math.nan, math.nan, 0, 1).merged_with(number)
    assert merged.minimum == 1.0
    assert isinstance(merged.maximum, float)
    assert math.isnan(merged.maximum)


def test_a_range_without_type_leaves_the_other_as_it_is() -> None:
    empty = ColumnRange("c", ValueType.NULL, None, None, 0, 0)
    known = long_range(1, 2)
    assert empty.merged_with(known) == known
    assert known.merged_with(empty) == known


def test_records_that_do_not_belong_together_are_not_merged() -> None:
    with pytest.raises(ValueError, match="do not merge"):
        merge_metadata_records(FileListRecord("a", {}), FileListRecord("b", {}))
    with pytest.raises(ValueError, match="do not merge"):
        merge_metadata_records(PartitionListRecord({}), FileListRecord("b", {}))
    with pytest.raises(ValueError, match="do not merge"):
        long_range(1, 2).merged_with(ColumnRange("c", ValueType.INT, 1, 2, 0, 1))


def test_mangled_values_are_reported_with_the_file_name() -> None:
    value = encode_metadata_record(FileListRecord("p", {"a.parquet": FileEntry(7)}))
    for length in range(len(value)):
        with pytest.raises(CorruptTableError, match="log: metadata record 'p'"):
            decode("p", value[:length])
    with pytest.raises(CorruptTableError, match="left over"):
        decode("p", value + b"\0")


def test_a_record_of_an_index_that_is_not_read_is_refused() -> None:
    value = bytearray(encode_metadata_record(PartitionListRecord({})))
    # Five absent meta columns and an empty key precede the type.
    assert value[6] == 2
    value[6] = 14
    with pytest.raises(UnsupportedFeatureError, match="type 7"):
        decode("k", bytes(value))
