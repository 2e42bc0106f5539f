"""The record index of the metadata table: for each record key the file group that holds it.

It is cut into shards by a hash of the key (`key_shards.py`); a shard is a file group, an HFile with logs on top. What a
log says of a key replaces what was known, or takes it away. All keys of a file have the same entry, because the key has
its own place.

File ids of the form `<UUID>-<number>` are stored as numbers (encoding 0), others as text (encoding 1).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.index_shard import IndexShard
from tablekeeper.format.metadata_avro import encode_record_index
from tablekeeper.format.metadata_records import has_metadata_layout

__all__ = [
    "RECORD_INDEX",
    "RecordIndexShard",
    "RecordLocation",
    "decode_record_location",
    "encode_record_location",
]

RECORD_INDEX = "record_index"
"""The partition of the metadata table, and the place of a deleted key in a delete block."""

_KIND = 5
_AS_UUID, _AS_TEXT = 0, 1
_NO_NUMBER = -1
_MOST_DIGITS = 9
_UUID_AND_NUMBER = re.compile("([0-9a-f]{8})-" + "([0-9a-f]{4})-" * 3 + "([0-9a-f]{12})(?:-([0-9]+))?")
_HALF = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """The file group of a key, and when (in epoch milliseconds) the instant began that put it there."""

    partition: str
    file_id: str
    instant_ms: int


class RecordIndexShard(IndexShard):
    """One shard of the record index."""

    def first_keys(self) -> Iterator[tuple[str, bytes]]:
        """The first key of each file, with its name."""
        for file, hfile in ((self._base_file, self._base), *((block.file, block.hfile) for block in self._blocks)):
            key = None if hfile is None else hfile.first_key
            if key is not None:
                yield file, key

    def find(self, keys: Iterable[str]) -> dict[str, RecordLocation]:
        """Where those of `keys` are that the shard knows."""
        missing = {key.encode(): key for key in keys}
        found: dict[str, RecordLocation] = {}
        for block in reversed(self._blocks):
            self._take(block.hfile, missing, found, schema_json=block.schema_json, file=block.file)
            for key in [stored for stored, key in missing.items() if key in block.deleted]:
                del missing[key]
        self._take(self._base, missing, found, schema_json=self._base_schema, file=self._base_file)
        return found

    def _stored(self, hfile: HFileReader, *, schema_json: str, file: str) -> Iterator[tuple[bytes, bytes | None]]:
        if has_metadata_layout(schema_json):
            yield from hfile.items()
            return
        for key, value in hfile.items():
            yield key, encode_record_location(decode_record_location(value, schema_json=schema_json, file=file))

    @staticmethod
    def _take(
        hfile: HFileReader | None,
        missing: dict[bytes, str],
        found: dict[str, RecordLocation],
        *,
        schema_json: str,
        file: str,
    ) -> None:
        if hfile is None or not missing:
            return
        for key, value in hfile.find_many(sorted(missing)).items():
            found[missing.pop(key)] = decode_record_location(value, schema_json=schema_json, file=file)


def encode_record_location(location: RecordLocation) -> bytes:
    """The value that is stored for a key."""
    numbers = _uuid_and_number(location.file_id)
    if numbers is None:
        return encode_record_index(
            _KIND, (location.partition, -1, -1, -1, location.file_id, location.instant_ms, _AS_TEXT)
        )
    return encode_record_index(_KIND, (location.partition, *numbers, "", location.instant_ms, _AS_UUID))


@lru_cache(maxsize=4096)
def decode_record_location(value: bytes, *, schema_json: str, file: str) -> RecordLocation:
    """The location stored as `value`, written with the schema `schema_json`."""
    try:
        record: Any = fastavro.schemaless_reader(io.BytesIO(value), _parsed(schema_json), None)
        stored = record["recordIndexMetadata"]
        if record["type"] != _KIND or stored is None:
            raise ValueError(f"a record of type {record['type']}")
        return RecordLocation(stored["partitionName"], _file_id(stored), stored["instantTime"])
    except Exception as error:  # fastavro raises many kinds on bytes that are not Avro
        reason = f"an entry of the record index does not decode ({type(error).__name__}: {error})"
        raise CorruptTableError(file=file, reason=reason) from error


def _uuid_and_number(file_id: str) -> tuple[int, int, int] | None:
    """Both halves of the UUID as Java has them, and the number after it; None for an id of another form."""
    found = _UUID_AND_NUMBER.fullmatch(file_id)
    if found is None:
        return None
    number = found[6]
    if number is not None and (len(number) > _MOST_DIGITS or str(int(number)) != number):
        return None
    digits = "".join(found.groups()[:5])
    high, low = (_signed(int(half, 16)) for half in (digits[:16], digits[16:]))
    return high, low, _NO_NUMBER if number is None else int(number)


def _file_id(stored: dict[str, Any]) -> str:
    if stored["fileIdEncoding"] != _AS_UUID:
        return str(stored["fileId"])
    digits = "".join(f"{stored[name] & _HALF:016x}" for name in ("fileIdHighBits", "fileIdLowBits"))
    text = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return text if stored["fileIndex"] == _NO_NUMBER else f"{text}-{stored['fileIndex']}"


def _signed(half: int) -> int:
    return half - (1 << 64) if half >> 63 else half


@lru_cache(maxsize=16)
def _parsed(schema_json: str) -> Any:
    return fastavro.parse_schema(json.loads(schema_json))
