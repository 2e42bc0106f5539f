"""`.hoodie/.index_defs/index.json`: the indexes of the metadata table and the columns that they cover.

Entries and fields that are not known here are kept when the file is rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tablekeeper.errors import CorruptTableError

__all__ = ["IndexDefinition", "decode_index_definitions", "remove_index_definitions"]

_DEFINITIONS = "indexDefinitions"


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """One index: its name (that of its metadata partition), kind, columns and format version (`V1`, `V2`)."""

    name: str
    kind: str
    columns: tuple[str, ...]
    version: str


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
    return IndexDefinition(name, kind, tuple(columns), version)
