"""Avro object container files: the contents of every non-empty file on the timeline.

Each holds one record, uncompressed, with the writer's schema in its header. The framing is read here
rather than by fastavro, because a damaged file must end in a `CorruptTableError`, in bounded time and
memory: lengths are checked against the bytes at hand, and a writer schema is only used if decoding with
it costs no more than the input is long (no recursion, no items of zero bytes, bounded size).

The schemas that this package knows are package data in `avro_schemas`, one record a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from io import BytesIO
from typing import Any

import fastavro

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.varint import encode_zigzag

__all__ = [
    "decode_any_record",
    "decode_notes",
    "decode_record",
    "encode_record",
    "load_schema",
    "schema_json",
]

_MAGIC = b"Obj\x01"
_SYNC_LENGTH = 16
_MAX_VARINT_BYTES = 10
_MAX_SCHEMA_DEPTH = 64
_MAX_SCHEMA_NODES = 20_000
_PRIMITIVE_SIZES = {
    "null": 0,
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 4,
    "double": 8,
    "bytes": 1,
    "string": 1,
}


@cache
def schema_json(name: str) -> str:
    """The schema called `name` as one self-contained JSON text, nested records written out at first use."""
    return json.dumps(_inline(name, written=set()), separators=(",", ":"))


@cache
def load_schema(name: str) -> Any:
    """The schema called `name`, parsed for fastavro."""
    return fastavro.parse_schema(json.loads(schema_json(name)))


def encode_record(schema_name: str, record: Mapping[str, Any], *, notes: Mapping[str, bytes] | None = None) -> bytes:
    """A container file with one record. Equal records give equal bytes.

    `notes` go into the header, where readers find them without the record, and others ignore them.
    """
    body = BytesIO()
    fastavro.schemaless_writer(body, load_schema(schema_name), record)
    content = body.getvalue()
    schema = schema_json(schema_name).encode()
    # Readers only need the marker to repeat after the block; deriving it keeps encoding repeatable.
    sync = hashlib.md5(schema + content, usedforsecurity=False).digest()
    header = {b"avro.schema": schema, b"avro.codec": b"null"}
    header |= {key.encode(): value for key, value in (notes or {}).items()}
    entries = b"".join(_bytes_field(key) + _bytes_field(value) for key, value in header.items())
    return b"".join(
        (
            _MAGIC,
            encode_zigzag(len(header)),
            entries,
            encode_zigzag(0),
            sync,
            encode_zigzag(1),
            _bytes_field(content),
            sync,
        )
    )


def decode_record(
    data: bytes, *, file: str, schema_name: str | None = None, without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The one record of a container file.

    With `schema_name` the result has exactly that schema's fields and types, missing ones at their
    defaults. Without, the schema is the known one of the writer's record name. Fields named in `without`, at any
    depth, are stepped over, which is faster than decoding them.
    """
    name, record = _decode(data, file=file, schema_name=schema_name, without=without)
    if schema_name is not None and name != schema_name:
        raise CorruptTableError(file=file, reason=f"holds a {name} where a {schema_name} belongs")
    return record


def decode_any_record(data: bytes, *, file: str) -> tuple[str, dict[str, Any]]:
    """The writer's record name and the one record of a container file."""
    return _decode(data, file=file, schema_name=None)


def decode_notes(data: bytes, *, file: str) -> dict[str, bytes]:
    """The header of a container file, of which `data` need be no more than the beginning."""
    return _read_header(_Cursor(data, file))


def _decode(
    data: bytes, *, file: str, schema_name: str | None, without: frozenset[str] = frozenset()
) -> tuple[str, dict[str, Any]]:
    cursor = _Cursor(data, file)
    header = _read_header(cursor)
    codec = header.get("avro.codec", b"null")
    if codec != b"null":
        raise CorruptTableError(file=file, reason=f"compressed with {codec!r}, timeline files are not compressed")
    sync = cursor.take(_SYNC_LENGTH)
    count = cursor.varint()
    content = cursor.take(cursor.varint())
    if count != 1 or cursor.take(_SYNC_LENGTH) != sync or cursor.remaining:
        raise CorruptTableError(file=file, reason="not an Avro container with exactly one record")
    try:
        name, writer = _writer_schema(header.get("avro.schema", b""))
        reader = _reader_schema(schema_name or name, writer_name=name, without=without)
        source = BytesIO(content)
        record = fastavro.schemaless_reader(source, writer, None if reader == writer else reader)
    except Exception as error:  # whatever a decoder trips over, the bytes are at fault
        raise CorruptTableError(file=file, reason=f"the Avro record does not decode ({error})") from error
    if source.tell() != len(content) or not isinstance(record, dict):
        raise CorruptTableError(file=file, reason="the Avro record has the wrong length")
    return name, record


def _read_header(cursor: _Cursor) -> dict[str, bytes]:
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise CorruptTableError(file=cursor.file, reason="not an Avro container file")
    header: dict[str, bytes] = {}
    while count := cursor.varint():
        if count < 0:
            count = -count
            cursor.varint()
        for _ in range(count):
            key = cursor.take(cursor.varint())
            header[key.decode("utf-8", errors="replace")] = cursor.take(cursor.varint())
    return header


@dataclass(slots=True)
class _Cursor:
    """Reads forward through bytes; running past the end is a `CorruptTableError`."""

    data: bytes
    file: str
    position: int = 0

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.remaining:
            raise CorruptTableError(file=self.file, reason=f"ends early, or a length in it is wrong ({length} bytes)")
        start = self.position
        self.position += length
        return self.data[start : self.position]

    def varint(self) -> int:
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise CorruptTableError(file=self.file, reason="a number in it is too long")


def _bytes_field(value: bytes) -> bytes:
    return encode_zigzag(len(value)) + value


@lru_cache(maxsize=256)
def _writer_schema(text: bytes) -> tuple[str, Any]:
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("the writer's schema is not a record")
    _SchemaMeter().measure(schema)
    return str(schema["name"]).rsplit(".", 1)[-1], fastavro.parse_schema(schema)


def _reader_schema(name: str, *, writer_name: str, without: frozenset[str]) -> Any:
    """What to decode into; None (the writer's own schema) for a record that this package does not know."""
    if name != writer_name or not (resources.files(__package__) / "avro_schemas" / f"{name}.avsc").is_file():
        return None
    return _load_part(name, without) if without else load_schema(name)


@cache
def _load_part(name: str, without: frozenset[str]) -> Any:
    return fastavro.parse_schema(_part(json.loads(schema_json(name)), without))


def _part(schema: Any, without: frozenset[str]) -> Any:
    """The schema less some fields. Records that only these fields define are used nowhere else."""
    if isinstance(schema, list):
        return [_part(each, without) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _part(value, without) if key in ("type", "items", "values") else value for key, value in schema.items()
    }
    if "fields" in schema:
        kept["fields"] = [_part(each, without) for each in schema["fields"] if each["name"] not in without]
    return kept


@dataclass(frozen=True, slots=True)
class _Cost:
    """Fewest bytes that a value takes, and how many schema nodes decoding it visits."""

    least_bytes: int
    nodes: int


class _SchemaMeter:
    """Refuses a schema whose decoding is not bounded by the input: deep, recursive, or with empty items."""

    def __init__(self) -> None:
        self._known: dict[str, _Cost | None] = {}

    def measure(self, schema: Any, *, namespace: str = "", depth: int = 0) -> _Cost:
        if depth > _MAX_SCHEMA_DEPTH:
            raise ValueError("the writer's schema is nested too deeply")
        if isinstance(schema, str):
            cost = self._reference(schema, namespace=namespace)
        elif isinstance(schema, list):
            branches = [self.measure(branch, namespace=namespace, depth=depth + 1) for branch in schema]
            cost = _Cost(1 + min(b.least_bytes for b in branches), 1 + max(b.nodes for b in branches))
        elif schema["type"] in ("array", "map"):
            cost = self._collection(schema, namespace=namespace, depth=depth)
        elif schema["type"] in ("record", "error", "fixed", "enum"):
            cost = self._definition(schema, namespace=namespace, depth=depth)
        else:
            cost = self.measure(schema["type"], namespace=namespace, depth=depth + 1)
        if cost.nodes > _MAX_SCHEMA_NODES:
            raise ValueError("the writer's schema is too large")
        return cost

    def _reference(self, name: str, *, namespace: str) -> _Cost:
        if name in _PRIMITIVE_SIZES:
            return _Cost(_PRIMITIVE_SIZES[name], 1)
        cost = self._known[_full_name(name, namespace)]
        if cost is None:
            raise ValueError(f"the writer's schema is recursive in {name}")
        return cost

    def _collection(self, schema: Any, *, namespace: str, depth: int) -> _Cost:
        is_array = schema["type"] == "array"
        item = self.measure(schema["items" if is_array else "values"], namespace=namespace, depth=depth + 1)
        if is_array and item.least_bytes == 0:
            raise ValueError("the writer's schema has items of no bytes")
        return _Cost(1, 1 + item.nodes)

    def _definition(self, schema: Any, *, namespace: str, depth: int) -> _Cost:
        name = _full_name(str(schema["name"]), str(schema.get("namespace", namespace)))
        namespace = name.rpartition(".")[0]
        self._known[name] = None
        if schema["type"] == "fixed":
            cost = _Cost(max(0, int(schema["size"])), 1)
        elif schema["type"] == "enum":
            cost = _Cost(1, 1)
        else:
            types = [field["type"] for field in schema["fields"]]
            fields = [self.measure(kind, namespace=namespace, depth=depth + 1) for kind in types]
            cost = _Cost(sum(f.least_bytes for f in fields), 1 + sum(f.nodes for f in fields))
        self._known[name] = cost
        return cost


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _inline(name: str, *, written: set[str]) -> Any:
    resource = resources.files(__package__) / "avro_schemas" / f"{name}.avsc"
    schema = json.loads(resource.read_text())
    written.add(name)
    return {key: _inline_names(value, written) if key == "fields" else value for key, value in schema.items()}


def _inline_names(schema: Any, written: set[str]) -> Any:
    if isinstance(schema, list):
        return [_inline_names(branch, written) for branch in schema]
    if isinstance(schema, dict):
        keys = ("type", "items", "values")
        return {k: _inline_names(v, written) if k in keys else v for k, v in schema.items()}
    if not isinstance(schema, str) or not schema[0].isupper() or schema in written:
        return schema
    return _inline(schema, written=written)
