"""Commit metadata in Avro and in the JSON of table version 6."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.commit_metadata import decode_commit_metadata, encode_commit_metadata
from tablekeeper.format.plans import CompactionPlan, encode_compaction_plan
from tablekeeper.model import CommitMetadata, FileGroupId, Operation, WriteStat

__all__: list[str] = []

FILE = "t/.hoodie/timeline/1_2.commit"


def _record(data: bytes) -> dict[str, Any]:
    reader = fastavro.reader(io.BytesIO(data))
    assert reader.codec == "null"
    (record,) = reader
    assert isinstance(record, dict)
    return record


def _base_stat() -> WriteStat:
    return WriteStat(
        FileGroupId("p=1", "f-0"), "p=1/f-0_0-0-0_1.parquet", 10, writes=3, inserts=2, updates=1, deletes=4
    )


def test_a_base_file_is_written_with_numbers_that_java_can_unbox() -> None:
    record = _record(encode_commit_metadata(CommitMetadata(Operation.UPSERT, (_base_stat(),), {"schema": "{}"})))
    (stat,) = record["partitionToWriteStats"]["p=1"]
    assert record["operationType"] == "UPSERT"
    assert record["extraMetadata"] == {"schema": "{}"}
    assert (stat["fileId"], stat["path"], stat["partitionPath"]) == ("f-0", "p=1/f-0_0-0-0_1.parquet", "p=1")
    assert (stat["fileSizeInBytes"], stat["totalWriteBytes"], stat["prevCommit"]) == (10, 10, "null")
    nullable = {"prevBaseFile", "minEventTime", "maxEventTime", "runtimeStats", "tempPath", "cdcStats"}
    log_only = {"logVersion", "logOffset", "logFiles", "baseFile"}
    assert {name for name, value in stat.items() if value is None} == nullable | log_only


def test_a_log_file_is_written_with_its_version_and_name() -> None:
    path = "p=1/.f-0_5.log.1_0-0-0"
    stat = WriteStat(FileGroupId("p=1", "f-0"), path, 10, previous_commit="5", log_version=1)
    record = _record(encode_commit_metadata(CommitMetadata(Operation.UPSERT, (stat,))))
    (written,) = record["partitionToWriteStats"]["p=1"]
    assert written["logFiles"] == [".f-0_5.log.1_0-0-0"]
    assert (written["logVersion"], written["logOffset"], written["baseFile"]) == (1, 0, "")


def test_only_a_replace_commit_has_replaced_file_ids() -> None:
    plain = encode_commit_metadata(CommitMetadata(Operation.INSERT))
    replacing = encode_commit_metadata(CommitMetadata(Operation.CLUSTER, replaced={"p=1": ("f-0",), "": ()}))
    assert "partitionToReplaceFileIds" not in _record(plain)
    assert _record(replacing)["partitionToReplaceFileIds"] == {"p=1": ["f-0"], "": []}
    assert decode_commit_metadata(plain, file=FILE).replaced is None
    assert decode_commit_metadata(replacing, file=FILE).replaced == {"p=1": ("f-0",), "": ()}


def test_an_empty_file_says_nothing() -> None:
    assert decode_commit_metadata(b"", file=FILE) == CommitMetadata(Operation.UNKNOWN)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("UPSERT", Operation.UPSERT),
        ("UPSERT_PREPPED", Operation.UPSERT),
        ("BULK_INSERT_PREPPED", Operation.BULK_INSERT),
        ("BUCKET_RESCALE", Operation.UNKNOWN),
        ("", Operation.UNKNOWN),
        (None, Operation.UNKNOWN),
    ],
)
def test_operations_are_read_by_name(name: str | None, operation: Operation) -> None:
    data = json.dumps({"operationType": name}).encode()
    assert decode_commit_metadata(data, file=FILE).operation is operation


def test_json_of_version_6_is_read() -> None:
    stat = {"fileId": "f-0", "path": "f-0_0-0-0_1.parquet", "prevCommit": "null", "numWrites": 3, "fileSizeInBytes": 9}
    log = {"fileId": "f-0", "path": ".f-0_1.log.1_0-0-0", "prevCommit": "1", "logVersion": 1, "baseFile": "b"}
    data = json.dumps(
        {
            "partitionToWriteStats": {"": [stat, log]},
            "compacted": True,
            "extraMetadata": {"schema": "{}", "nothing": None},
            "operationType": "COMPACT",
            "partitionToReplaceFileIds": {"": ["g-0"]},
        },
        indent=2,
    )
    metadata = decode_commit_metadata(data.encode(), file=FILE)
    group = FileGroupId("", "f-0")
    assert metadata == CommitMetadata(
        Operation.COMPACT,
        (
            WriteStat(group, "f-0_0-0-0_1.parquet", 9, writes=3),
            WriteStat(group, ".f-0_1.log.1_0-0-0", 0, previous_commit="1", log_version=1, base_file="b"),
        ),
        {"schema": "{}"},
        compacted=True,
        replaced={"": ("g-0",)},
    )


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"{}x",
        b"[]",
        b"\xff\xfe",
        b"Obj\x01",
        b'{"partitionToWriteStats": []}',
        b'{"partitionToWriteStats": {"p": {}}}',
        b'{"partitionToWriteStats": {"p": [1]}}',
        b'{"partitionToWriteStats": {"p": [{"numWrites": "x"}]}}',
        b'{"partitionToWriteStats": {"p": [{"numWrites": true}]}}',
        b'{"partitionToWriteStats": {"p": [{"numWrites": 1e3}]}}',
        b'{"partitionToWriteStats": {"p": [{"numWrites": 99999999999999999999}]}}',
        b'{"partitionToReplaceFileIds": {"p": [1]}}',
        b'{"operationType": 1}',
        b'{"extraMetadata": 1}',
        b'{"a":' * 100_000,
    ],
    ids=range(16),
)
def test_what_is_no_commit_metadata_is_reported_with_the_file_name(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match=FILE):
        decode_commit_metadata(data, file=FILE)


def test_another_record_in_the_place_of_commit_metadata_is_refused() -> None:
    with pytest.raises(CorruptTableError, match="HoodieCompactionPlan"):
        decode_commit_metadata(encode_compaction_plan(CompactionPlan()), file=FILE)
