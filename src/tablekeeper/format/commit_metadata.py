"""Commit metadata: the contents of completed commits, delta commits and replace commits.

Written as Avro. Read as Avro or, from table version 6, as JSON. Inflight files hold the same record with
the writer's plan in it (insert counts by partition, no paths), so every field but the partition may be empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from tablekeeper.errors import CorruptTableError
from tablekeeper.format.avro_container import decode_any_record, encode_record
from tablekeeper.model import CommitMetadata, FileGroupId, Operation, WriteStat, join_path

__all__ = ["decode_commit_metadata", "decode_written_paths", "encode_commit_metadata"]

T = TypeVar("T")

_COMMIT = "HoodieCommitMetadata"
_REPLACE = "HoodieReplaceCommitMetadata"
_OPERATIONS = {operation.value: operation for operation in Operation}
_PREPPED = "_PREPPED"
_NO_COMMIT = "null"
_INT64_MAX = 2**63 - 1
# Statistics that this package does not compute. Java unboxes them, so they are 0 rather than null.
_UNCOUNTED = (
    "totalLogRecords",
    "totalLogFiles",
    "totalUpdatedRecordsCompacted",
    "totalLogBlocks",
    "totalCorruptLogBlock",
    "totalRollbackBlocks",
    "totalLogFilesCompacted",
    "totalLogReadTimeMs",
    "totalLogSizeCompacted",
    "numUpdates",
)


def encode_commit_metadata(metadata: CommitMetadata) -> bytes:
    """The contents of the completed file; a replace commit's if `metadata.replaced` is set."""
    stats: dict[str, list[dict[str, Any]]] = {}
    for stat in metadata.stats:
        stats.setdefault(stat.group.partition, []).append(_encode_stat(stat))
    record: dict[str, Any] = {
        "partitionToWriteStats": stats,
        "compacted": metadata.compacted,
        "extraMetadata": dict(metadata.extra),
        "version": 1,
        "operationType": metadata.operation.value,
    }
    if metadata.replaced is None:
        return encode_record(_COMMIT, record)
    record["partitionToReplaceFileIds"] = {partition: list(ids) for partition, ids in metadata.replaced.items()}
    return encode_record(_REPLACE, record)


def decode_commit_metadata(data: bytes, *, file: str) -> CommitMetadata:
    """What a commit did. No bytes at all, as in most requested and inflight files, say nothing."""
    if not data:
        return CommitMetadata(Operation.UNKNOWN)
    fields, replaces = _load_fields(data, file=file)
    return _decode_record(fields, replaces=replaces)


def decode_written_paths(data: bytes, *, file: str) -> frozenset[str]:
    """Every file that a commit wrote, by path relative to the table: also those beside the one of each statistic.

    A writer that rolls a log over names all its log files in one statistic, and change data has files of its own.
    """
    if not data:
        return frozenset()
    fields, _ = _load_fields(data, file=file)
    paths: set[str] = set()
    for partition, stats in fields.mapping("partitionToWriteStats", list).items():
        for stat in stats:
            one = _Fields(stat, file)
            paths.add(one.optional("path", str) or "")
            paths.update(join_path(partition, str(name)) for name in one.optional("logFiles", list) or ())
            paths.update(one.mapping("cdcStats", int))
    return frozenset(paths - {""})


def _load_fields(data: bytes, *, file: str) -> tuple[_Fields, bool]:
    """The record, and whether it is a replace commit's."""
    if data[:1] in (b"{", b" ", b"\n", b"\r", b"\t"):
        record = _load_json(data, file=file)
        return _Fields(record, file), "partitionToReplaceFileIds" in record
    name, record = decode_any_record(data, file=file)
    if name not in (_COMMIT, _REPLACE):
        raise CorruptTableError(file=file, reason=f"holds a {name} where commit metadata belongs")
    return _Fields(record, file), name == _REPLACE


def _encode_stat(stat: WriteStat) -> dict[str, Any]:
    record: dict[str, Any] = dict.fromkeys(_UNCOUNTED, 0)
    record |= {
        "fileId": stat.group.file_id,
        "path": stat.path,
        "prevCommit": stat.previous_commit,
        "numWrites": stat.writes,
        "numDeletes": stat.deletes,
        "numUpdateWrites": stat.updates,
        "numInserts": stat.inserts,
        "totalWriteBytes": stat.size,
        "totalWriteErrors": stat.errors,
        "partitionPath": stat.group.partition,
        "fileSizeInBytes": stat.size,
        "prevBaseFile": stat.previous_base_file,
        "minEventTime": stat.min_event_time,
        "maxEventTime": stat.max_event_time,
    }
    if stat.is_log:
        record |= {
            "logVersion": stat.log_version,
            "logOffset": 0,
            "logFiles": [stat.file_name],
            "baseFile": stat.base_file or "",
        }
    return record


def _decode_record(fields: _Fields, *, replaces: bool) -> CommitMetadata:
    stats = [
        _decode_stat(_Fields(stat, fields.file), partition=partition)
        for partition, partition_stats in fields.mapping("partitionToWriteStats", list).items()
        for stat in partition_stats
    ]
    extra = fields.optional("extraMetadata", dict) or {}
    return CommitMetadata(
        operation=_operation(fields.optional("operationType", str)),
        stats=tuple(stats),
        # Version 6 allows null values, which say as much as an absent key.
        extra={key: value for key, value in extra.items() if isinstance(value, str)},
        compacted=fields.optional("compacted", bool) or False,
        replaced=_decode_replaced(fields) if replaces else None,
    )


def _decode_replaced(fields: _Fields) -> dict[str, tuple[str, ...]]:
    replaced = fields.mapping("partitionToReplaceFileIds", list)
    if not all(isinstance(file_id, str) for ids in replaced.values() for file_id in ids):
        raise fields.error("partitionToReplaceFileIds")
    return {partition: tuple(ids) for partition, ids in replaced.items()}


def _decode_stat(fields: _Fields, *, partition: str) -> WriteStat:
    return WriteStat(
        group=FileGroupId(partition, fields.optional("fileId", str) or ""),
        path=fields.optional("path", str) or "",
        size=fields.count("fileSizeInBytes"),
        writes=fields.count("numWrites"),
        inserts=fields.count("numInserts"),
        updates=fields.count("numUpdateWrites"),
        deletes=fields.count("numDeletes"),
        errors=fields.count("totalWriteErrors"),
        previous_commit=fields.optional("prevCommit", str) or _NO_COMMIT,
        previous_base_file=fields.optional("prevBaseFile", str) or None,
        log_version=fields.number("logVersion"),
        base_file=fields.optional("baseFile", str) or None,
        min_event_time=fields.number("minEventTime"),
        max_event_time=fields.number("maxEventTime"),
    )


def _operation(name: str | None) -> Operation:
    return _OPERATIONS.get((name or "").removesuffix(_PREPPED), Operation.UNKNOWN)


def _load_json(data: bytes, *, file: str) -> Mapping[str, Any]:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptTableError(file=file, reason=f"the JSON does not decode ({error})") from error
    if not isinstance(record, dict):
        raise CorruptTableError(file=file, reason="the JSON is not an object")
    return record


class _Fields:
    """A record of unknown origin, read field by field with its types checked."""

    def __init__(self, record: object, file: str) -> None:
        self.file = file
        if not isinstance(record, Mapping):
            raise CorruptTableError(file=file, reason="a write statistic is not a record")
        self._record = record

    def error(self, name: str) -> CorruptTableError:
        return CorruptTableError(file=self.file, reason=f"{name} has a value of the wrong kind")

    def optional(self, name: str, kind: type[T]) -> T | None:
        value = self._record.get(name)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise self.error(name)
        return value

    def number(self, name: str) -> int | None:
        value = self.optional(name, int)
        if isinstance(value, bool) or (value is not None and not -_INT64_MAX <= value <= _INT64_MAX):
            raise self.error(name)
        return value

    def count(self, name: str) -> int:
        return self.number(name) or 0

    def mapping(self, name: str, kind: type[T]) -> Mapping[str, T]:
        value = self.optional(name, dict) or {}
        if not all(isinstance(item, kind) for item in value.values()):
            raise self.error(name)
        return value
