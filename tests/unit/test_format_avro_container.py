"""Avro container files: framing, schemas, and writer schemas that must not be trusted."""

from __future__ import annotations

import io
import json
from importlib import resources
from typing import Any

import fastavro
import pytest

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.avro_container import (
    decode_any_record,
    decode_record,
    encode_record,
    load_schema,
    schema_json,
)

__all__: list[str] = []

FILE = "t/.hoodie/timeline/1.clean.requested"
NAMES = sorted(
    path.name.removesuffix(".avsc")
    for path in (resources.files("tablekeeper.format") / "avro_schemas").iterdir()
    if path.name.endswith(".avsc")
)
RESTORE_PLAN = {"instantsToRollback": [{"commitTime": "1", "action": "commit"}], "version": 2}


def _container(schema: object, content: bytes, *, count: int = 1, codec: bytes = b"null") -> bytes:
    """A container file with any schema and any content, valid or not."""

    def varint(value: int) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, "long", value)
        return out.getvalue()

    def text(value: bytes) -> bytes:
        return varint(len(value)) + value

    header = text(b"avro.schema") + text(json.dumps(schema).encode()) + text(b"avro.codec") + text(codec)
    sync = bytes(16)
    return b"Obj\x01" + varint(2) + header + b"\0" + sync + varint(count) + text(content) + sync


def _record_of(field_type: object) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": field_type}]}


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_complete_and_in_the_namespace_of_java(name: str) -> None:
    schema = json.loads(schema_json(name))
    assert (schema["name"], schema["namespace"]) == (name, "org.apache.hudi.avro.model")
    assert load_schema(name)["name"] == f"org.apache.hudi.avro.model.{name}"
    assert load_schema(name) is load_schema(name)


def test_another_avro_library_call_reads_what_was_written() -> None:
    data = encode_record("HoodieRestorePlan", RESTORE_PLAN)
    reader = fastavro.reader(io.BytesIO(data))
    assert reader.metadata["avro.codec"] == "null"
    assert list(reader) == [RESTORE_PLAN | {"savepointToRestoreTimestamp": None}]


def test_equal_records_give_equal_bytes() -> None:
    assert encode_record("HoodieRestorePlan", RESTORE_PLAN) == encode_record("HoodieRestorePlan", dict(RESTORE_PLAN))


def test_fields_that_an_older_writer_did_not_know_get_their_defaults() -> None:
    schema = json.loads(schema_json("HoodieRestorePlan"))
    schema["fields"] = schema["fields"][:1]
    data = _container(schema, b"\0")
    record = decode_record(data, file=FILE, schema_name="HoodieRestorePlan")
    assert record == {"instantsToRollback": [], "version": 2, "savepointToRestoreTimestamp": None}


def test_fields_that_only_a_newer_writer_knows_are_left_out() -> None:
    schema = json.loads(schema_json("HoodieRestorePlan"))
    schema["fields"].insert(0, {"name": "novelty", "type": "string"})
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"novelty": "new", **RESTORE_PLAN})
    record = decode_record(_container(schema, out.getvalue()), file=FILE, schema_name="HoodieRestorePlan")
    assert record == RESTORE_PLAN | {"savepointToRestoreTimestamp": None}


def test_a_record_that_is_not_known_is_read_with_its_own_schema() -> None:
    assert decode_any_record(_container(_record_of("long"), b"\x04"), file=FILE) == ("R", {"f": 2})


def test_the_wrong_record_is_refused() -> None:
    data = encode_record("HoodieRestorePlan", RESTORE_PLAN)
    with pytest.raises(CorruptTableError, match="HoodieRestorePlan where a HoodieCleanerPlan belongs"):
        decode_record(data, file=FILE, schema_name="HoodieCleanerPlan")


RECURSIVE = {"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", "R"]}]}
DOUBLING: dict[str, Any] = {"type": "record", "name": "R0", "fields": []}
for level in range(1, 50):
    DOUBLING = {
        "type": "record",
        "name": f"R{level}",
        "fields": [{"name": "a", "type": DOUBLING}, {"name": "b", "type": f"R{level - 1}"}],
    }
DEEP: Any = "long"
for _ in range(500):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        (_record_of({"type": "array", "items": "null"}), b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0"),
        (_record_of({"type": "array", "items": _record_of("null") | {"name": "E"}}), b"\xfe\xff\xff\xff\x0f\0"),
        (_record_of({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), b"\xfe\xff\xff\xff\x0f\0"),
        (RECURSIVE, b"\x02" * 1_000_000 + b"\0"),
        (_record_of("R"), b""),
        (DOUBLING, b""),
        (_record_of(DEEP), b"\0"),
        (_record_of("bytes"), b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        (_record_of("bytes"), b"\x01abc"),
        (_record_of({"type": "fixed", "name": "F", "size": 2**40}), b"abc"),
        (_record_of({"type": "array", "items": "long"}), b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0"),
        (_record_of("long"), b"\x04\x04"),
        (_record_of("string"), b"\x02\xff"),
        (_record_of("unheard of"), b""),
        ("long", b"\x04"),
        ([], b""),
        ({"type": "record", "name": "R"}, b""),
    ],
    ids=range(17),
)
def test_a_writer_schema_cannot_make_decoding_hang_or_crash(schema: object, content: bytes) -> None:
    with pytest.raises(CorruptTableError, match=FILE):
        decode_any_record(_container(schema, content), file=FILE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Obj",
        b"Obj\x02" + bytes(100),
        b"Obj\x01" + b"\xff" * 20,
        _container(_record_of("long"), b"\x04", count=2),
        _container(_record_of("long"), b"\x04", count=0),
        _container(_record_of("long"), b"\x04", codec=b"deflate"),
        _container(_record_of("long"), b"\x04") + b"more",
        _container(_record_of("long"), b"\x04")[:-1] + b"x",
    ],
    ids=range(9),
)
def test_broken_framing_is_reported_with_the_file_name(data: bytes) -> None:
    with pytest.raises(CorruptTableError, match=FILE):
        decode_any_record(data, file=FILE)
