"""History files, manifests and the version file."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.history import (
    ArchivedInstant,
    HistoryFile,
    decode_history_file,
    decode_manifest,
    decode_version,
    encode_history_file,
    encode_manifest,
    encode_version,
)
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime, State

__all__: list[str] = []

FILE = "t/.hoodie/timeline/history/1_3_0.parquet"


def _archived(requested: str, action: Action = Action.COMMIT, plan: bytes | None = None) -> ArchivedInstant:
    instant = Instant(RequestedTime(requested), action, State.COMPLETED, CompletionTime(requested + "9"))
    return ArchivedInstant(instant, b"metadata of " + requested.encode(), plan)


def test_instants_are_stored_in_the_order_of_their_requested_times() -> None:
    archived = [_archived("3"), _archived("1", Action.CLEAN, b"plan"), _archived("2")]
    decoded = decode_history_file(encode_history_file(archived), file=FILE)
    assert decoded == [archived[1], archived[2], archived[0]]


def test_a_history_file_has_the_columns_that_java_reads() -> None:
    table = pq.read_table(pa.BufferReader(encode_history_file([_archived("1", Action.CLUSTERING)])))
    assert table.to_pylist() == [
        {
            "instantTime": "1",
            "completionTime": "19",
            "action": "replacecommit",
            "metadata": b"metadata of 1",
            "plan": None,
            "version": 1,
        }
    ]
    metadata = pq.ParquetFile(pa.BufferReader(encode_history_file([_archived("1")]))).metadata.metadata
    assert json.loads(metadata[b"parquet.avro.schema"])["name"] == "HoodieLSMTimelineInstant"


def test_contents_can_be_left_out() -> None:
    data = encode_history_file([_archived("1", plan=b"plan")])
    (archived,) = decode_history_file(data, file=FILE, with_contents=False)
    assert archived == ArchivedInstant(_archived("1").instant)


@pytest.mark.parametrize(
    "row",
    [
        {"instantTime": "x", "completionTime": "1", "action": "commit"},
        {"instantTime": None, "completionTime": "1", "action": "commit"},
        {"instantTime": "1", "completionTime": "x", "action": "commit"},
        {"instantTime": "1", "completionTime": "1", "action": "unheardof"},
        {"instantTime": "1", "completionTime": "1", "action": None},
        {"instantTime": "1", "completionTime": "1"},
    ],
    ids=range(6),
)
def test_a_row_that_is_no_instant_is_reported_with_the_file_name(row: dict[str, str | None]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([row]), sink)
    with pytest.raises(CorruptTableError, match=FILE):
        decode_history_file(bytes(sink.getvalue()), file=FILE, with_contents=False)


def test_a_manifest_lists_files_with_their_sizes() -> None:
    files = [HistoryFile("1_2_0.parquet", 100), HistoryFile("3_4_1.parquet", 0)]
    data = encode_manifest(files)
    assert json.loads(data)["files"][0] == {"fileName": "1_2_0.parquet", "fileLen": 100}
    assert decode_manifest(data, file=FILE) == files
    assert decode_manifest(b'{"files":[], "novelty": 1}', file=FILE) == []
    assert decode_manifest(b"", file=FILE) == []


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b'{"files": 1}',
        b'{"files": [1]}',
        b'{"files": [{"fileName": "a"}]}',
        b'{"files": [{"fileName": 1, "fileLen": 1}]}',
        b'{"files": [{"fileName": "a", "fileLen": -1}]}',
        b'{"files": [{"fileName": "a", "fileLen": true}]}',
        b"[" * 100_000,
    ],
    ids=range(11),
)
def test_a_broken_manifest_is_reported_with_the_file_name(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match=FILE):
        decode_manifest(data, file=FILE)


def test_the_version_file_holds_a_number() -> None:
    assert encode_version(12) == b"12"
    assert decode_version(b"12\n", file=FILE) == 12
    for data in (b"", b"x", b"-1", b"1 2", b"9" * 5000):
        with pytest.raises(CorruptTableError, match=FILE):
            decode_version(data, file=FILE)
