"""Records of the metadata table: what they say, how they are stored, how two of one key merge.

Decoded are the kinds that a writer has to keep in step: the list of partitions (type 1), the files of a
partition (2), statistics of a column of a file (3) and of a column of a partition (6), and the bloom filter of
a base file (4). The record key is the HFile key; inside the value its place is empty.

Merging follows the order of the metadata table's log, later over earlier:
- partition and file lists are united; a deletion removes the entry, and stays as a tombstone
  where there is nothing to remove, so that logs may be merged before the base file is read;
- column statistics replace each other when one of the two is a deletion or when the later one is
  tight, and otherwise become the union of both ranges;
- of bloom filters the later one counts.
"""

from __future__ import annotations

import enum
import functools
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import fastavro

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.avro_container import schema_json
from tablekeeper.format.metadata_avro import (
    BOOLEAN,
    BYTES,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    RawRecord,
    RawStats,
    decode_raw_record,
    encode_raw_record,
)
from tablekeeper.format.metadata_keys import (
    bloom_filter_key,
    column_stats_key,
    metadata_partition_name,
    partition_stats_key,
    table_partition_path,
)

__all__ = [
    "PARTITION_LIST_KEY",
    "BloomFilterRecord",
    "ColumnRange",
    "ColumnStatsRecord",
    "FileEntry",
    "FileListRecord",
    "MetadataRecord",
    "PartitionListRecord",
    "StatValue",
    "ValueType",
    "bloom_filter_record",
    "column_stats_record",
    "decode_metadata_record",
    "encode_metadata_record",
    "has_metadata_layout",
    "merge_metadata_records",
    "metadata_schema_json",
    "partition_stats_record",
]

PARTITION_LIST_KEY = "__all_partitions__"
"""Key of the one record that lists the partitions."""

StatValue: TypeAlias = bool | int | float | str | bytes
"""A statistics bound as stored: dates in days, times in their unit, decimals as big-endian unscaled bytes."""

_META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)


class ValueType(enum.IntEnum):
    """Type of the bounds of a column range; the value is the ordinal stored with them."""

    V1 = 0
    NULL = 1
    BOOLEAN = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BYTES = 8
    FIXED = 9
    DECIMAL = 10
    UUID = 11
    DATE = 12
    TIME_MILLIS = 13
    TIME_MICROS = 14
    TIMESTAMP_MILLIS = 15
    TIMESTAMP_MICROS = 16
    TIMESTAMP_NANOS = 17
    LOCAL_TIMESTAMP_MILLIS = 18
    LOCAL_TIMESTAMP_MICROS = 19
    LOCAL_TIMESTAMP_NANOS = 20


# Position of the wrapper of a bound in the union of wrappers; LONG for all others.
_BRANCH_OF = {
    ValueType.BOOLEAN: BOOLEAN,
    ValueType.INT: INT,
    ValueType.DATE: INT,
    ValueType.TIME_MILLIS: INT,
    ValueType.FLOAT: FLOAT,
    ValueType.DOUBLE: DOUBLE,
    ValueType.STRING: STRING,
    ValueType.UUID: STRING,
    ValueType.BYTES: BYTES,
    ValueType.FIXED: BYTES,
    ValueType.DECIMAL: BYTES,
}


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Smallest and largest value of one column over some rows, and how many values there are.

    `value_count` counts nulls too. Without a non-null value both bounds are None.
    `type_info` is `precision,scale` for decimals.
    """

    column: str
    value_type: ValueType
    minimum: StatValue | None
    maximum: StatValue | None
    null_count: int
    value_count: int
    total_size: int = 0
    total_uncompressed_size: int = 0
    type_info: str | None = None

    def merged_with(self, other: ColumnRange) -> ColumnRange:
        """The range over the rows of both. The two must have one type, unless one of them has none."""
        typed = self if other.value_type is ValueType.NULL else other
        types = {self.value_type, other.value_type} - {ValueType.NULL}
        if self.column != other.column or len(types) > 1:
            raise ValueError(f"ranges of {self.column} and {other.column} with types {sorted(types)} do not merge")
        return ColumnRange(
            column=self.column,
            value_type=typed.value_type,
            minimum=_pick((self.minimum, other.minimum), typed.value_type, largest=False),
            maximum=_pick((self.maximum, other.maximum), typed.value_type, largest=True),
            null_count=self.null_count + other.null_count,
            value_count=self.value_count + other.value_count,
            total_size=self.total_size + other.total_size,
            total_uncompressed_size=self.total_uncompressed_size + other.total_uncompressed_size,
            type_info=typed.type_info,
        )


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file in a listing: its size, or that it was deleted."""

    size: int
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class PartitionListRecord:
    """Partition paths (`""` without partitions) that came (True) or went (False)."""

    partitions: Mapping[str, bool]

    @property
    def key(self) -> str:
        return PARTITION_LIST_KEY

    @property
    def live(self) -> tuple[str, ...]:
        """The partitions that are there, sorted."""
        return tuple(sorted(path for path, present in self.partitions.items() if present))


@dataclass(frozen=True, slots=True)
class FileListRecord:
    """Files of one partition that came or went, by name."""

    partition: str
    files: Mapping[str, FileEntry]

    @property
    def key(self) -> str:
        return metadata_partition_name(self.partition)

    @property
    def live(self) -> dict[str, int]:
        """Name and size of the files that are there."""
        return {name: entry.size for name, entry in self.files.items() if not entry.is_deleted}


@dataclass(frozen=True, slots=True)
class ColumnStatsRecord:
    """Statistics of one column, of a file or (`of_partition`) of a whole partition.

    `subject` is the file name or the partition path. A tight range replaces what was known before,
    another one widens it.
    """

    key: str
    subject: str
    range: ColumnRange
    is_deleted: bool = False
    is_tight: bool = False
    of_partition: bool = False


@dataclass(frozen=True, slots=True)
class BloomFilterRecord:
    """The bloom filter of a base file as its footer has it (Base64), and what kind it is (SIMPLE or DYNAMIC_V0).

    `instant` is the requested time of the action that wrote the record. A deleted one has neither kind nor content.
    """

    key: str
    kind: str
    instant: str
    content: bytes
    is_deleted: bool = False


MetadataRecord: TypeAlias = PartitionListRecord | FileListRecord | ColumnStatsRecord | BloomFilterRecord


@functools.cache
def metadata_schema_json() -> str:
    """The Avro schema of every metadata record as it is stored: with the five meta columns in front, always null."""
    schema = json.loads(schema_json("HoodieMetadataRecord"))
    meta = [{"name": name, "type": ["null", "string"], "default": None} for name in _META_COLUMNS]
    return json.dumps(schema | {"fields": meta + schema["fields"]}, separators=(",", ":"))


@functools.lru_cache(maxsize=16)
def has_metadata_layout(schema_json: str) -> bool:
    """True if records in this schema are laid out as those in `metadata_schema_json`."""
    return bool(_layout(json.loads(schema_json)) == _layout(json.loads(metadata_schema_json())))


def column_stats_record(*, partition: str, file_name: str, column_range: ColumnRange) -> ColumnStatsRecord:
    """The record of one column of one file."""
    key = column_stats_key(partition=partition, file_name=file_name, column=column_range.column)
    return ColumnStatsRecord(key, file_name, column_range)


def partition_stats_record(*, partition: str, column_range: ColumnRange, is_tight: bool) -> ColumnStatsRecord:
    """The record of one column of one partition."""
    key = partition_stats_key(partition=partition, column=column_range.column)
    return ColumnStatsRecord(key, partition, column_range, is_tight=is_tight, of_partition=True)


def bloom_filter_record(
    *, partition: str, file_name: str, instant: str, kind: str = "", content: bytes = b"", is_deleted: bool = False
) -> BloomFilterRecord:
    """The record of one base file."""
    key = bloom_filter_key(partition=partition, file_name=file_name)
    return BloomFilterRecord(key, kind, instant, content, is_deleted)


def merge_metadata_records(older: MetadataRecord, newer: MetadataRecord) -> MetadataRecord:
    """What a reader sees after `newer` was written over `older`, both of one key."""
    if isinstance(older, PartitionListRecord) and isinstance(newer, PartitionListRecord):
        return PartitionListRecord(_merge_partitions(older.partitions, newer.partitions))
    if isinstance(older, FileListRecord) and isinstance(newer, FileListRecord) and older.key == newer.key:
        return FileListRecord(newer.partition, _merge_files(older.files, newer.files))
    if isinstance(older, ColumnStatsRecord) and isinstance(newer, ColumnStatsRecord) and older.key == newer.key:
        if older.is_deleted or newer.is_deleted or newer.is_tight:
            return newer
        return replace(newer, range=older.range.merged_with(newer.range))
    if isinstance(older, BloomFilterRecord) and isinstance(newer, BloomFilterRecord) and older.key == newer.key:
        return newer
    raise ValueError(f"metadata records of keys {older.key} and {newer.key} do not merge")


def encode_metadata_record(record: MetadataRecord) -> bytes:
    """The value stored under `record.key`: Avro binary in the schema of `metadata_schema_json`."""
    match record:
        case PartitionListRecord():
            partitions = {metadata_partition_name(path): (0, not there) for path, there in record.partitions.items()}
            return encode_raw_record(RawRecord(1, files=partitions))
        case FileListRecord():
            files = {name: (entry.size, entry.is_deleted) for name, entry in record.files.items()}
            return encode_raw_record(RawRecord(2, files=files))
        case ColumnStatsRecord():
            return encode_raw_record(RawRecord(6 if record.of_partition else 3, stats=_raw_stats(record)))
        case BloomFilterRecord():
            bloom = (record.kind, record.instant, record.content, record.is_deleted)
            return encode_raw_record(RawRecord(4, bloom=bloom))


def decode_metadata_record(key: str, value: bytes, *, schema_json: str, file: str) -> MetadataRecord:
    """The record stored as `value` under `key`, written with the schema `schema_json`."""
    try:
        raw = decode_raw_record(value) if has_metadata_layout(schema_json) else None
        raw = raw or _decode_any(value, schema_json)
        return _record_of(key, raw, file=file)
    except UnsupportedFeatureError:
        raise
    except Exception as error:  # fastavro raises many kinds on bytes that are not Avro
        reason = f"metadata record {key!r} does not decode ({type(error).__name__}: {error})"
        raise CorruptTableError(file=file, reason=reason) from error


def _record_of(key: str, raw: RawRecord, *, file: str) -> MetadataRecord:
    if raw.kind == 1:
        partitions = {table_partition_path(path): not gone for path, (_, gone) in (raw.files or {}).items()}
        return PartitionListRecord(partitions)
    if raw.kind == 2:
        files = {name: FileEntry(size, is_deleted) for name, (size, is_deleted) in (raw.files or {}).items()}
        return FileListRecord(table_partition_path(key), files)
    if raw.kind == 4 and raw.bloom is not None:
        return BloomFilterRecord(key, *raw.bloom)
    if raw.kind not in (3, 6):
        raise UnsupportedFeatureError(f"{file}: metadata records of type {raw.kind} are not read")
    stats = raw.stats
    if stats is None or stats.subject is None or stats.column is None:
        raise ValueError("statistics of no column")
    if stats.value_type is None:
        raise UnsupportedFeatureError(f"{file}: column statistics of index version 1 are not read")
    column_range = ColumnRange(
        column=stats.column,
        value_type=ValueType(stats.value_type[0]),
        minimum=stats.minimum[1] if stats.minimum else None,
        maximum=stats.maximum[1] if stats.maximum else None,
        null_count=stats.null_count or 0,
        value_count=stats.value_count or 0,
        total_size=stats.total_size or 0,
        total_uncompressed_size=stats.total_uncompressed_size or 0,
        type_info=stats.value_type[1],
    )
    return ColumnStatsRecord(
        key, stats.subject, column_range, stats.is_deleted, stats.is_tight, of_partition=raw.kind == 6
    )


def _raw_stats(record: ColumnStatsRecord) -> RawStats:
    column = record.range
    branch = _BRANCH_OF.get(column.value_type, LONG)
    return RawStats(
        subject=record.subject,
        column=column.column,
        minimum=None if column.minimum is None else (branch, column.minimum),
        maximum=None if column.maximum is None else (branch, column.maximum),
        value_count=column.value_count,
        null_count=column.null_count,
        total_size=column.total_size,
        total_uncompressed_size=column.total_uncompressed_size,
        is_deleted=record.is_deleted,
        is_tight=record.is_tight,
        value_type=(int(column.value_type), column.type_info),
    )


def _decode_any(value: bytes, schema_json: str) -> RawRecord:
    """A record in whatever schema it was written."""
    source = io.BytesIO(value)
    schema = _parse_schema(schema_json)
    record: Any = fastavro.schemaless_reader(
        source, schema, None, return_record_name=True, return_record_name_override=True
    )
    if source.tell() != len(value):
        raise ValueError(f"{len(value) - source.tell()} bytes are left over")
    listing = record.get("filesystemMetadata")
    files = None if listing is None else {name: (e["size"], e["isDeleted"]) for name, e in listing.items()}
    found = record.get("ColumnStatsMetadata")
    stats = None if found is None else _raw_stats_of(found)
    bloom = record.get("BloomFilterMetadata")
    if bloom is not None:
        bloom = (bloom["type"], bloom["timestamp"], bloom["bloomFilter"], bloom["isDeleted"])
    return RawRecord(record["type"], files, stats, bloom)


def _raw_stats_of(found: Mapping[str, Any]) -> RawStats:
    minimum, maximum, value_type = found["minValue"], found["maxValue"], found.get("valueType")
    return RawStats(
        subject=found["fileName"],
        column=found["columnName"],
        # The position in the union is for writing; reading goes by the value type.
        minimum=None if minimum is None else (0, minimum[1]["value"]),
        maximum=None if maximum is None else (0, maximum[1]["value"]),
        value_count=found["valueCount"],
        null_count=found["nullCount"],
        total_size=found["totalSize"],
        total_uncompressed_size=found["totalUncompressedSize"],
        is_deleted=found["isDeleted"],
        is_tight=found.get("isTightBound", False),
        value_type=None if value_type is None else (value_type["typeOrdinal"], value_type["additionalInfo"]),
    )


def _merge_partitions(older: Mapping[str, bool], newer: Mapping[str, bool]) -> dict[str, bool]:
    merged = dict(older)
    for path, present in newer.items():
        if not present and merged.get(path):
            del merged[path]
        else:
            merged[path] = present
    return merged


def _merge_files(older: Mapping[str, FileEntry], newer: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    merged = dict(older)
    for name, entry in newer.items():
        before = merged.get(name)
        if before is None:
            merged[name] = entry
        elif entry.is_deleted and not before.is_deleted:
            del merged[name]
        elif entry.is_deleted:
            merged[name] = entry
        else:
            merged[name] = FileEntry(max(before.size, entry.size))
    return merged


def _pick(values: tuple[Any, Any], value_type: ValueType, *, largest: bool) -> StatValue | None:
    present: list[StatValue] = [value for value in values if value is not None]
    if not present:
        return None
    pick = max if largest else min
    return pick(present, key=functools.partial(_order, value_type=value_type))


def _order(value: Any, *, value_type: ValueType) -> Any:
    """Sort key: decimals by number rather than by byte, NaN above every other float."""
    if value_type is ValueType.DECIMAL:
        return int.from_bytes(value, "big", signed=True)
    if value_type in (ValueType.FLOAT, ValueType.DOUBLE):
        return (math.isnan(value), value)
    return value


def _layout(schema: Any) -> Any:
    """What of a schema decides about the bytes: not comments, name spaces, defaults or logical types."""
    if isinstance(schema, dict):
        return {
            name: _layout(part)
            for name, part in schema.items()
            if name in ("type", "name", "fields", "items", "values")
        }
    if isinstance(schema, list):
        return [_layout(part) for part in schema]
    return schema.rsplit(".", 1)[-1] if isinstance(schema, str) else schema


@functools.lru_cache(maxsize=16)
def _parse_schema(schema_json: str) -> Any:
    return fastavro.parse_schema(_without_logical_types(json.loads(schema_json)))


def _without_logical_types(schema: Any) -> Any:
    """The schema of the stored numbers and bytes: conversions would lose what the value type says."""
    if isinstance(schema, dict):
        return {name: _without_logical_types(part) for name, part in schema.items() if name != "logicalType"}
    if isinstance(schema, list):
        return [_without_logical_types(part) for part in schema]
    return schema
