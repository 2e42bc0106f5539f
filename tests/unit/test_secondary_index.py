"""Shards of a secondary index: what is stored, by Java too, and what the logs take away."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.index_shard import encode_index_log
from tablekeeper.format.metadata_log import decode_metadata_log, encode_metadata_base
from tablekeeper.format.metadata_records import metadata_schema_json
from tablekeeper.format.secondary_index import SECONDARY_INDEX_VALUE, SecondaryIndexShard, has_indexed_text

__all__: list[str] = []

NAME = "secondary_index_by_note"


def stored_by_java(*, kind: int = 7, is_deleted: bool = False) -> bytes:
    """A value whose meta columns are filled, as a compaction of Java's leaves it."""
    record = {
        "_hoodie_commit_time": "1",
        "_hoodie_file_name": "f",
        "key": "",
        "type": kind,
        "SecondaryIndexMetadata": {"isDeleted": is_deleted},
    }
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(json.loads(metadata_schema_json())), record)
    return sink.getvalue()


def shard(base: dict[str, bytes], *logs: tuple[list[str], list[str]]) -> SecondaryIndexShard:
    """A shard with a base file and logs, each of which brings entries and takes some away."""
    entries = sorted((key.encode(), value) for key, value in base.items())
    blocks = []
    for number, (come, go) in enumerate(logs, start=1):
        there = [(key.encode(), SECONDARY_INDEX_VALUE) for key in sorted(come)]
        gone = pa.array(go, pa.string())
        log = encode_index_log(there, gone, index=NAME, instant=f"{number:017d}", created_ms=0)
        blocks += decode_metadata_log(log, file="log")
    return SecondaryIndexShard(HFileReader(encode_metadata_base(entries), file="base"), blocks, base_file="base")


def test_the_stored_value_is_that_of_an_avro_record_that_is_there() -> None:
    schema = fastavro.parse_schema(json.loads(metadata_schema_json()))
    record = fastavro.schemaless_reader(io.BytesIO(SECONDARY_INDEX_VALUE), schema, None)
    assert isinstance(record, dict)
    filled = {name: value for name, value in record.items() if value is not None}
    assert filled == {"key": "", "type": 7, "SecondaryIndexMetadata": {"isDeleted": False}}


def test_entries_are_those_of_the_base_file_with_what_the_logs_say() -> None:
    base = {"a$1": SECONDARY_INDEX_VALUE, "b$1": stored_by_java(), "c$1": stored_by_java(is_deleted=True)}
    found = shard(base, (["d$1", "e$1"], ["a$1"]), (["a$1"], ["e$1", "nothing$1"]))
    assert list(found.entries()) == [(key, SECONDARY_INDEX_VALUE) for key in (b"a$1", b"b$1", b"d$1")]


@pytest.mark.parametrize("value", [b"", b"\0\0", stored_by_java(kind=5)])
def test_an_entry_of_another_kind_is_damage(value: bytes) -> None:
    with pytest.raises(CorruptTableError, match="base: an entry of a secondary index does not decode"):
        list(shard({"a$1": value}).entries())


def test_only_texts_and_whole_numbers_have_one_text_in_java() -> None:
    told = [pa.string(), pa.large_string(), pa.int8(), pa.int32(), pa.int64()]
    assert all(map(has_indexed_text, told))
    others = [pa.float64(), pa.date32(), pa.timestamp("us", "UTC"), pa.bool_(), pa.binary(), pa.decimal128(5, 2)]
    assert not any(map(has_indexed_text, others))
