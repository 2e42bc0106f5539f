"""Writing to the metadata table: which records a change makes, how it is committed, retried and taken back."""

from __future__ import annotations

import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.format.log_blocks import decode_blocks
from tablekeeper.format.metadata_keys import column_stats_key, metadata_file_group_index, partition_stats_key
from tablekeeper.format.metadata_records import (
    ColumnRange,
    ColumnStatsRecord,
    FileEntry,
    FileListRecord,
    MetadataRecord,
    PartitionListRecord,
    ValueType,
)
from tablekeeper.metadata_table.delta_commit import (
    remove_metadata_update,
    rollback_metadata_update,
    write_metadata_update,
)
from tablekeeper.metadata_table.indexes import MetadataIndexes, plan_metadata_indexes
from tablekeeper.metadata_table.layout import load_metadata_file_group, load_metadata_timeline, plan_metadata_slices
from tablekeeper.metadata_table.listing import open_metadata_table
from tablekeeper.metadata_table.records import (
    MetadataChange,
    change_of_clean,
    change_of_commit,
    plan_metadata_update,
)
from tablekeeper.model import CommitMetadata, CompletionTime, FileGroupId, Operation, RequestedTime
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.timeline import Timeline, load_timeline
from tests.support.metadata_builder import COLUMNS, MetadataBuilder, stat

__all__: list[str] = []

T1, T2 = "20240102000000000", "20240103000000000"
AT = RequestedTime(T1)
ALL = MetadataIndexes(updated=("files", "column_stats", "partition_stats"), columns=COLUMNS)
GROUPS = {"files": ["f0"], "column_stats": ["c0", "c1"], "partition_stats": ["p0"]}


def id_range(low: int, high: int) -> ColumnRange:
    return ColumnRange("id", ValueType.LONG, low, high, 0, 2)


def commit(*files: tuple[str, str, int], **ranges: ColumnRange) -> MetadataChange:
    metadata = CommitMetadata(Operation.UPSERT, tuple(stat(*file) for file in files))
    return change_of_commit(metadata, ranges={path.replace("__", "/"): [each] for path, each in ranges.items()})


def records_of(plan: dict[FileGroupId, list[MetadataRecord]], partition: str) -> list[MetadataRecord]:
    return [record for group, records in plan.items() if group.partition == partition for record in records]


def indexes_of(built: MetadataBuilder) -> MetadataIndexes:
    return plan_metadata_indexes(built.config, built.storage.read(".hoodie/.index_defs/index.json"))


def write(built: MetadataBuilder, change: MetadataChange, time: str, *, completed: str | None = None) -> None:
    write_metadata_update(
        built.storage,
        built.config,
        change,
        indexes_of(built),
        requested_at=RequestedTime(time),
        completed_at=CompletionTime(completed or time[:-1] + "5"),
        runtime=SYSTEM_RUNTIME,
    )


def listing(built: MetadataBuilder) -> dict[str, list[tuple[str, int]]]:
    table = open_metadata_table(
        built.storage, built.config, load_timeline(built.storage, built.config), runtime=SYSTEM_RUNTIME
    )
    assert table is not None
    return table.files(table.partitions())


def stats_of(built: MetadataBuilder, partition: str) -> dict[str, ColumnStatsRecord]:
    slices = plan_metadata_slices(
        built.storage.list_files(f".hoodie/metadata/{partition}"),
        metadata_timeline=load_metadata_timeline(built.storage, built.config),
        data_timeline=Timeline(),
    )
    groups = [load_metadata_file_group(built.storage, each, runtime=SYSTEM_RUNTIME) for each in slices]
    found = [record for group in groups for record in group.records()]
    return {record.key: record for record in found if isinstance(record, ColumnStatsRecord)}


def test_a_commit_lists_its_partitions_and_files() -> None:
    plan = plan_metadata_update(commit(("a", "x", 5), ("a", "y", 6), ("b", "z", 7)), ALL, groups=GROUPS, instant=AT)
    assert records_of(plan, "files") == [
        PartitionListRecord({"a": True, "b": True}),
        FileListRecord("a", {"x": FileEntry(5), "y": FileEntry(6)}),
        FileListRecord("b", {"z": FileEntry(7)}),
    ]


def test_statistics_of_files_go_to_the_file_group_of_their_key() -> None:
    change = commit(("a", "x", 5), ("a", "y", 6), a__x=id_range(1, 4), a__y=id_range(9, 9))
    plan = plan_metadata_update(change, ALL, groups=GROUPS, instant=AT)
    for name, column_range in (("x", id_range(1, 4)), ("y", id_range(9, 9))):
        key = column_stats_key(partition="a", file_name=name, column="id")
        group = FileGroupId("column_stats", f"c{metadata_file_group_index(key, groups=2)}")
        assert ColumnStatsRecord(key, name, column_range) in plan[group]


def test_statistics_of_a_partition_span_its_new_files_and_widen_what_was_known() -> None:
    change = commit(("a", "x", 5), ("a", "y", 6), a__x=id_range(1, 4), a__y=id_range(9, 9))
    (record,) = records_of(plan_metadata_update(change, ALL, groups=GROUPS, instant=AT), "partition_stats")
    assert isinstance(record, ColumnStatsRecord)
    assert (record.key, record.subject) == (partition_stats_key(partition="a", column="id"), "a")
    assert record.range == ColumnRange("id", ValueType.LONG, 1, 9, 0, 4)
    assert not record.is_tight


def test_a_log_of_nothing_but_deletes_adds_nothing_to_the_partition() -> None:
    change = commit(("a", "x", 5), a__x=ColumnRange("id", ValueType.NULL, None, None, 0, 0))
    assert records_of(plan_metadata_update(change, ALL, groups=GROUPS, instant=AT), "partition_stats") == []


def test_a_clean_takes_files_and_their_statistics_back() -> None:
    plan = plan_metadata_update(change_of_clean({"a": ["x"]}, removed_partitions=["b"]), ALL, groups=GROUPS, instant=AT)
    assert records_of(plan, "files") == [
        PartitionListRecord({"b": False}),
        FileListRecord("a", {"x": FileEntry(0, is_deleted=True)}),
    ]
    found = records_of(plan, "column_stats")
    assert {record.range.column for record in found if isinstance(record, ColumnStatsRecord)} == set(COLUMNS)
    assert all(isinstance(record, ColumnStatsRecord) and record.is_deleted for record in found)


def test_what_a_clean_takes_back_comes_in_one_order_in_every_process() -> None:
    # A set of texts has another order in each: the same run would write other logs, or the same ones in another order.
    names = [f"file-{number:02d}" for number in range(40)]
    plan = plan_metadata_update(change_of_clean({"a": names[::-1]}), ALL, groups=GROUPS, instant=AT)
    (listed,) = records_of(plan, "files")
    assert isinstance(listed, FileListRecord)
    assert list(listed.files) == names
    for group in GROUPS["column_stats"]:
        told = [
            each.subject for each in plan[FileGroupId("column_stats", group)] if isinstance(each, ColumnStatsRecord)
        ]
        assert told == sorted(told)


def test_a_metadata_partition_without_file_groups_is_reported() -> None:
    with pytest.raises(CorruptTableError, match="column_stats"):
        plan_metadata_update(commit(("a", "x", 5)), ALL, groups={"files": ["f0"]}, instant=AT)


def test_a_written_update_is_listed_and_committed_like_javas() -> None:
    built = MetadataBuilder()
    write(built, commit(("a", "x", 5), a__x=id_range(1, 4)), T1)
    assert listing(built) == {"a": [("x", 5)]}
    assert len(stats_of(built, "column_stats")) == 1
    assert len(stats_of(built, "partition_stats")) == 1
    directory = ".hoodie/metadata/.hoodie/timeline"
    names = {file.name for file in built.storage.list_files(directory) if file.name.startswith(T1)}
    completed = f"{T1}_{T1[:-1]}5.deltacommit"
    assert names == {f"{T1}.deltacommit.requested", f"{T1}.deltacommit.inflight", completed}
    metadata = decode_commit_metadata(built.storage.read(f"{directory}/{completed}"), file=completed)
    assert metadata.partitions == {"files", "column_stats", "partition_stats"}
    for written in metadata.stats:
        found = built.storage.stat(f".hoodie/metadata/{written.path}")
        assert found is not None
        assert found.size == written.size


def test_a_retry_of_the_same_action_replaces_what_the_first_attempt_wrote() -> None:
    built = MetadataBuilder()
    built.data_instant(T1, None)
    write(built, commit(("a", "x", 5), a__x=id_range(1, 4)), T1)
    write(built, commit(("b", "y", 6)), T1, completed="20240102000000999")
    built.data_instant(T1, "20240102000001000")
    assert listing(built) == {"b": [("y", 6)]}
    assert stats_of(built, "partition_stats") == {}


def test_an_action_that_did_not_complete_is_removed_without_a_trace() -> None:
    built = MetadataBuilder()
    before = sorted(file.path for file in built.storage.walk(".hoodie/metadata"))
    write(built, commit(("a", "x", 5), a__x=id_range(1, 4)), T1)
    remove_metadata_update(built.storage, built.config, target=RequestedTime(T1), runtime=SYSTEM_RUNTIME)
    assert sorted(file.path for file in built.storage.walk(".hoodie/metadata")) == before
    remove_metadata_update(built.storage, built.config, target=RequestedTime(T1), runtime=SYSTEM_RUNTIME)


def test_the_delta_commit_completes_after_everything_on_the_timeline() -> None:
    built = MetadataBuilder()
    built.metadata_instant("20240102000000001", "20240102000059999")
    write(built, commit(("a", "x", 5)), T1, completed="20240102000000002")
    completed = load_metadata_timeline(built.storage, built.config).completion_of(RequestedTime(T1))
    assert completed == CompletionTime("20240102000100000")


def roll_back(built: MetadataBuilder) -> None:
    rollback_metadata_update(
        built.storage,
        built.config,
        indexes_of(built),
        target=RequestedTime(T1),
        deleted={"a": ["x"]},
        requested_at=RequestedTime(T2),
        completed_at=CompletionTime(T2[:-1] + "5"),
        runtime=SYSTEM_RUNTIME,
    )


def test_a_rollback_removes_the_delta_commit() -> None:
    built = MetadataBuilder()
    write(built, commit(("a", "x", 5)), T1)
    roll_back(built)
    assert listing(built) == {}
    assert load_metadata_timeline(built.storage, built.config).find(RequestedTime(T2)) is None


def test_a_rollback_of_what_was_compacted_is_a_delta_commit_of_its_own() -> None:
    built = MetadataBuilder()
    write(built, commit(("a", "x", 5), ("a", "y", 6)), T1)
    # A compaction that began after the delta commit had completed has merged it.
    compaction = "20240102000000100"
    built.metadata_instant(compaction, "20240102000000200", "commit")
    for file in built.storage.list_files(".hoodie/metadata/files"):
        if T1 in file.name:
            name = f".hoodie/metadata/files/files-0000-0_0-0-0_{compaction}.hfile"
            built.storage.put(name, _hfile_of_log(built.storage.read(file.path)))
    assert listing(built) == {"a": [("x", 5), ("y", 6)]}
    roll_back(built)
    assert listing(built) == {"a": [("y", 6)]}


def _hfile_of_log(data: bytes) -> bytes:
    (block,) = decode_blocks(data, file="log")
    return bytes(block.content)
