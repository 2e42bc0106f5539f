"""Base files of the metadata table that take the place of a base file and its logs."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.hfile_writer import encode_hfile
from tablekeeper.format.log_blocks import BlockType, HeaderKey, encode_block
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.format.metadata_log import (
    MetadataBaseName,
    MetadataBlock,
    MetadataFileGroup,
    decode_metadata_base_name,
    decode_metadata_log,
    encode_metadata_base,
    encode_metadata_base_name,
    encode_metadata_log,
)
from tablekeeper.format.metadata_records import (
    ColumnRange,
    ColumnStatsRecord,
    FileEntry,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    ValueType,
    column_stats_record,
    encode_metadata_record,
    metadata_schema_json,
    partition_stats_record,
)

__all__: list[str] = []

GONE = FileEntry(0, is_deleted=True)


def blocks(*logs: list[MetadataRecord]) -> list[MetadataBlock]:
    found = []
    for number, records in enumerate(logs):
        data = encode_metadata_log(records, instant=f"2024010200000000{number}")
        found += decode_metadata_log(data, file=f"log {number}")
    return found


def base_of(*records: MetadataRecord, schema: str | None = None) -> HFileReader:
    entries = sorted((record.key.encode(), encode_metadata_record(record)) for record in records)
    return HFileReader(encode_hfile(entries, schema_json=schema or metadata_schema_json()), file="base")


def compacted(base: HFileReader | None, *logs: list[MetadataRecord]) -> MetadataFileGroup:
    entries = list(MetadataFileGroup(base, blocks(*logs), base_file="base").compacted())
    return MetadataFileGroup(HFileReader(encode_metadata_base(entries), file="new"), [], base_file="new")


def test_files_that_were_deleted_leave_no_trace() -> None:
    new = compacted(
        base_of(FileListRecord("p", {"a": FileEntry(1), "b": FileEntry(2)}), FileListRecord("q", {"z": FileEntry(3)})),
        [FileListRecord("p", {"a": GONE, "never there": GONE}), FileListRecord("q", {"z": GONE})],
        [FileListRecord("p", {"c": FileEntry(4)})],
    )
    assert list(new.records()) == [FileListRecord("p", {"b": FileEntry(2), "c": FileEntry(4)})]


def test_the_list_of_partitions_stays_even_when_it_is_empty() -> None:
    new = compacted(base_of(PartitionListRecord({"p": True})), [PartitionListRecord({"p": False, "q": False})])
    assert list(new.records()) == [PartitionListRecord({})]


def range_of(low: int, high: int) -> ColumnRange:
    return ColumnRange("id", ValueType.LONG, low, high, 0, 2)


def test_statistics_of_deleted_files_go_and_those_of_partitions_stay_as_wide_as_they_were() -> None:
    there = column_stats_record(partition="p", file_name="a", column_range=range_of(1, 2))
    gone = ColumnStatsRecord(there.key, "a", range_of(1, 2), is_deleted=True)
    assert list(compacted(base_of(there), [gone]).records()) == []
    assert list(compacted(base_of(there), [gone], [there]).records()) == [there]
    wide = partition_stats_record(partition="p", column_range=range_of(1, 2), is_tight=False)
    wider = partition_stats_record(partition="p", column_range=range_of(5, 9), is_tight=False)
    (found,) = compacted(base_of(wide), [wider]).records()
    assert isinstance(found, ColumnStatsRecord)
    assert (found.range.minimum, found.range.maximum, found.is_tight) == (1, 9, False)


def test_what_no_log_touches_is_copied_byte_by_byte() -> None:
    # Not what this package would write for the record: a deletion that Java left in a base file.
    record = FileListRecord("p", {"a": GONE})
    base = base_of(record, FileListRecord("q", {"b": FileEntry(1)}))
    entries = dict(MetadataFileGroup(base, blocks([FileListRecord("q", {"c": FileEntry(2)})])).compacted())
    assert entries[b"p"] == encode_metadata_record(record)
    assert entries[b"q"] != base.get(b"q")


def test_values_in_another_layout_are_written_anew() -> None:
    schema = json.loads(metadata_schema_json())
    schema["fields"].append({"name": "later", "type": ["null", "string"], "default": None})
    record = FileListRecord("p", {"a": FileEntry(1)})
    value = encode_metadata_record(record) + b"\0"
    base = HFileReader(encode_hfile([(b"p", value)], schema_json=json.dumps(schema)), file="base")
    assert list(MetadataFileGroup(base, []).compacted()) == [(b"p", encode_metadata_record(record))]


def test_records_that_a_delete_block_removed_are_gone() -> None:
    content = encode_deletes(pa.array(["p"]), partition="files", ordering=None)
    block = encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: "20240102000000000"}, content)
    logs = decode_metadata_log(block, file="log")
    group = MetadataFileGroup(base_of(FileListRecord("p", {"a": FileEntry(1)}), PartitionListRecord({})), logs)
    assert [key for key, _ in group.compacted()] == [b"__all_partitions__"]


def test_a_file_group_without_records_becomes_an_empty_base_file() -> None:
    entries = list(MetadataFileGroup(None, []).compacted())
    reader = HFileReader(encode_metadata_base(entries), file="new")
    assert (list(reader.items()), reader.get(b"k"), reader.entry_count) == ([], None, 0)
    assert b"minRecordKey" not in reader.info


def test_a_base_file_says_its_first_and_last_key_and_when_it_was_made() -> None:
    entries = [(b"a", b"1"), (b"m", b"2"), (b"z", b"3")]
    reader = HFileReader(encode_metadata_base(entries, created_ms=7), file="new")
    assert (reader.info[b"minRecordKey"], reader.info[b"maxRecordKey"]) == (b"a", b"z")
    assert reader.info[b"hfile.CREATE_TIME_TS"] == (7).to_bytes(8, "big")
    assert list(reader.items()) == entries


@pytest.mark.parametrize("file_id", ["files-0000-0", "col-stats-0001-0"])
def test_names_of_base_files_are_read_as_they_are_written(file_id: str) -> None:
    name = MetadataBaseName(file_id, "0-0-0", "20240102000000000")
    assert decode_metadata_base_name(encode_metadata_base_name(name)) == name
