"""Listing from the metadata table: which log files count, and when directories are listed instead."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.index_shard import encode_index_log
from tablekeeper.format.log_blocks import BlockType, HeaderKey, decode_blocks, encode_block
from tablekeeper.format.log_deletes import encode_deletes
from tablekeeper.format.metadata_log import encode_metadata_log
from tablekeeper.format.metadata_records import (
    ColumnRange,
    FileEntry,
    FileListRecord,
    PartitionListRecord,
    ValueType,
    column_stats_record,
)
from tablekeeper.format.record_index import RecordLocation, encode_record_location
from tablekeeper.metadata_table.listing import MetadataTable, open_metadata_table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.storage import FileInfo, MemoryStorage, Storage
from tablekeeper.timeline import load_timeline
from tests.support.metadata_builder import MetadataBuilder

__all__: list[str] = []

T1, T2, T3 = "20240102000000000", "20240103000000000", "20240104000000000"


def added(partition: str, **files: int) -> tuple[PartitionListRecord, FileListRecord]:
    entries = {name: FileEntry(size) for name, size in files.items()}
    return PartitionListRecord({partition: True}), FileListRecord(partition, entries)


def open_table(built: MetadataBuilder) -> MetadataTable | None:
    return open_metadata_table(
        built.storage, built.config, load_timeline(built.storage, built.config), runtime=SYSTEM_RUNTIME
    )


def listing(built: MetadataBuilder) -> dict[str, list[tuple[str, int]]]:
    table = open_table(built)
    assert table is not None
    return table.files(table.partitions())


def test_completed_delta_commits_are_merged_in_order() -> None:
    built = MetadataBuilder()
    built.data_instant(T1, "20240102000000009")
    built.metadata_instant(T1, "20240102000000005")
    built.log(T1, *added("a", x=1, y=2))
    built.data_instant(T2, "20240103000000009")
    built.metadata_instant(T2, "20240103000000005")
    built.log(T2, PartitionListRecord({"b": True}), FileListRecord("a", {"y": FileEntry(0, is_deleted=True)}))
    assert listing(built) == {"a": [("x", 1)], "b": []}


def test_a_delta_commit_whose_action_is_pending_does_not_count() -> None:
    built = MetadataBuilder()
    built.data_instant(T1, None)
    built.metadata_instant(T1, "20240102000000005")
    built.log(T1, *added("a", x=1))
    assert listing(built) == {}


def test_a_pending_delta_commit_does_not_count() -> None:
    built = MetadataBuilder()
    built.metadata_instant(T1, None)
    built.log(T1, *added("a", x=1))
    assert listing(built) == {}


def test_a_delta_commit_without_instant_on_the_data_table_counts() -> None:
    built = MetadataBuilder()
    built.metadata_instant(T1, "20240102000000005")
    built.log(T1, *added("a", x=1))
    assert listing(built) == {"a": [("x", 1)]}


def test_a_compacted_log_block_stands_for_those_that_it_replaces() -> None:
    built = MetadataBuilder()
    for time in (T1, T2):
        built.metadata_instant(time, time[:-1] + "5")
    built.log(T1, *added("a", x=1))
    built.log(T2, FileListRecord("a", {"x": FileEntry(0, is_deleted=True)}))
    built.metadata_instant(T3, T3[:-1] + "5")
    path = built.log(T3, *added("a", x=1))
    # The log compaction merged T1 only; what T2 deleted stays deleted.
    data = built.storage.read(path)
    header = {HeaderKey.INSTANT_TIME: T3, HeaderKey.COMPACTED_BLOCK_TIMES: T1}
    blocks = _with_header(data, header)
    built.storage.put(path, blocks)
    assert listing(built) == {"a": []}


def _with_header(data: bytes, extra: dict[HeaderKey, str]) -> bytes:
    (block,) = decode_blocks(data, file="log")
    return encode_block(block.type, {**block.header, **extra}, block.content)


def test_a_delete_block_removes_whole_records() -> None:
    built = MetadataBuilder()
    for time in (T1, T2):
        built.metadata_instant(time, time[:-1] + "5")
    built.log(T1, *added("a", x=1))
    content = encode_deletes(pa.array(["a"]), partition="files", ordering=None)
    block = encode_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: T2}, content)
    built.storage.put(f".hoodie/metadata/files/.files-0000-0_{T2}.log.1_0-0-0", block)
    assert listing(built) == {"a": []}


def test_a_partition_that_is_not_known_has_no_files() -> None:
    table = open_table(MetadataBuilder())
    assert table is not None
    assert table.files(["nowhere"]) == {"nowhere": []}


def test_directories_are_listed_where_there_is_no_metadata_table() -> None:
    assert open_table(MetadataBuilder(partitions=[])) is None
    deleted = MetadataBuilder()
    deleted.storage.delete_tree(".hoodie/metadata")
    assert open_table(deleted) is None
    old = MetadataBuilder(hoodie__table__version="6")
    assert open_table(old) is None


def test_a_damaged_log_file_is_reported_and_not_skipped() -> None:
    built = MetadataBuilder()
    built.metadata_instant(T1, "20240102000000005")
    path = built.log(T1, *added("a", x=1))
    built.storage.put(path, built.storage.read(path)[:-20])
    with pytest.raises(CorruptTableError, match="files-0000-0"):
        open_table(built)


class Vanishing(MemoryStorage):
    """A second client of a store, for which files vanish between listing and reading, a number of times."""

    def __init__(self, of: Storage, times: int) -> None:
        super().__init__(of.spec.uri)
        self._times = times

    def read(self, path: str) -> bytes:
        if self._times and path.endswith("0-0-0"):
            self._times -= 1
            raise NotFoundError(path)
        return super().read(path)


def test_a_file_that_vanishes_meanwhile_leads_to_a_second_look() -> None:
    built = MetadataBuilder()
    timeline = load_timeline(built.storage, built.config)
    table = open_metadata_table(Vanishing(built.storage, 1), built.config, timeline, runtime=SYSTEM_RUNTIME)
    assert table is not None
    assert table.partitions() == []
    with pytest.raises(NotFoundError):
        open_metadata_table(Vanishing(built.storage, 99), built.config, timeline, runtime=SYSTEM_RUNTIME)


class Counting(MemoryStorage):
    """A second client of a store that notes what it is asked for."""

    def __init__(self, of: Storage) -> None:
        super().__init__(of.spec.uri)
        self.calls: list[str] = []

    def read(self, path: str) -> bytes:
        self.calls.append(f"read {path.rsplit('/', 1)[-1]}")
        return super().read(path)

    def list_files(self, directory: str) -> list[FileInfo]:
        self.calls.append(f"list {directory}")
        return super().list_files(directory)


def test_the_number_of_calls_does_not_depend_on_the_number_of_partitions() -> None:
    built = MetadataBuilder()
    names = [f"p={number:04d}" for number in range(1000)]
    built.metadata_instant(T1, "20240102000000005")
    partitions = PartitionListRecord(dict.fromkeys(names, True))
    built.log(T1, partitions, *(FileListRecord(name, {"x": FileEntry(1)}) for name in names))
    timeline = load_timeline(built.storage, built.config)
    storage = Counting(built.storage)
    table = open_metadata_table(storage, built.config, timeline, runtime=SYSTEM_RUNTIME)
    assert table is not None
    assert table.files(table.partitions()) == {name: [("x", 1)] for name in names}
    assert sorted(storage.calls) == [
        "list .hoodie/metadata/.hoodie/timeline",
        "list .hoodie/metadata/files",
        "read .files-0000-0_00000000000000000.log.1_0-0-0",
        f"read .files-0000-0_{T1}.log.1_0-0-0",
    ]


def test_a_log_file_of_another_metadata_partition_is_no_listing() -> None:
    built = MetadataBuilder()
    built.metadata_instant(T1, "20240102000000005")
    path = built.log(T1, *added("a", x=1))
    ids = ColumnRange("id", ValueType.STRING, "a", "b", null_count=0, value_count=1)
    stats = column_stats_record(partition="a", file_name="x", column_range=ids)
    built.storage.put(path, encode_metadata_log([stats], instant=T1))
    with pytest.raises(CorruptTableError, match=r"files-0000-0.*ColumnStatsRecord"):
        open_table(built)
    location = encode_record_location(RecordLocation("a", "ca9638f3-6a9b-404d-a21b-7394e5863c1d-0", 1))
    index_log = encode_index_log(
        [(b"key", location)], pa.array([], pa.string()), index="record_index", instant=T1, created_ms=0
    )
    built.storage.put(path, index_log)
    assert open_table(built) is None, "directories are listed"
