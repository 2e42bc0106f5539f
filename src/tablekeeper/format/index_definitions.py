"""`.hoodie/.index_defs/index.json`: the indexes of the metadata table and the columns that they cover.

Entries and fields that are not known here are kept when the file is rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.record_index import RECORD_INDEX

__all__ = ["IndexDefinition", "add_record_index_definition", "decode_index_definitions", "remove_index_definitions"]

_DEFINITIONS = "indexDefinitions"
_PARTITIONED = "isPartitioned"


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """One index: its name (that of its metadata partition), kind, columns and format version (`V1`, `V2`).

    `is_partitioned` says of a record index that it knows keys by partition, and not of the whole table.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    version: str
    is_partitioned: bool = False


def decode_index_definitions(data: bytes, *, file: str) -> dict[str, IndexDefinition]:
    """The definitions by name."""
    try:
        return {name: _decode(name, entry) for name, entry in _load(data)[_DEFINITIONS].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptTableError(file=file, reason=f"the index definitions do not decode ({error})") from error


def remove_index_definitions(data: bytes, *, names: Collection[str], file: str) -> bytes:
    """The file without the entries called `names`."""
    decode_index_definitions(data, file=file)
    content = _load(data)
    kept = {name: entry for name, entry in content[_DEFINITIONS].items() if name not in names}
    return json.dumps(content | {_DEFINITIONS: kept}, indent=2).encode()


def add_record_index_definition(data: bytes | None, *, by_partition: bool, file: str) -> bytes:
    """The file (None if there is none yet) with the definition of a record index."""
    content: dict[str, Any] = {_DEFINITIONS: {}}
    if data is not None:
        decode_index_definitions(data, file=file)
        content = _load(data)
    definition = {
        "indexName": RECORD_INDEX,
        "indexType": RECORD_INDEX,
        "indexFunction": "",
        "sourceFields": [],
        "indexOptions": {_PARTITIONED: str(by_partition).lower()},
        "version": "V1",
    }
    return json.dumps(content | {_DEFINITIONS: content[_DEFINITIONS] | {RECORD_INDEX: definition}}, indent=2).encode()


def _load(data: bytes) -> dict[str, Any]:
    content = json.loads(data)
    if not isinstance(content, dict):
        raise TypeError("not a JSON object")
    return content


def _decode(name: str, entry: dict[str, Any]) -> IndexDefinition:
    columns = entry.get("sourceFields") or []
    if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
        raise TypeError(f"sourceFields of {name} is not a list of names")
    kind, version = entry.get("indexType") or name, entry.get("version") or "V1"
    if not isinstance(kind, str) or not isinstance(version, str):
        raise TypeError(f"indexType or version of {name} is not text")
    options = entry.get("indexOptions") or {}
    return IndexDefinition(name, kind, tuple(columns), version, str(options.get(_PARTITIONED)).lower() == "true")
