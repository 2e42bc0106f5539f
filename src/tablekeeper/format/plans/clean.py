"""Clean: the plan (which files go) and the result (which went)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tablekeeper.format.avro_container import decode_record, encode_record

__all__ = [
    "CleanFile",
    "CleanMetadata",
    "CleanPlan",
    "CleanedPartition",
    "RetainedInstant",
    "decode_clean_metadata",
    "decode_clean_plan",
    "encode_clean_metadata",
    "encode_clean_plan",
]

_PLAN_SCHEMA = "HoodieCleanerPlan"
_METADATA_SCHEMA = "HoodieCleanMetadata"


@dataclass(frozen=True, slots=True)
class RetainedInstant:
    """The oldest instant that queries may still ask for; `state` is upper case, as in COMPLETED."""

    timestamp: str
    action: str
    state: str


@dataclass(frozen=True, slots=True)
class CleanFile:
    """A file to be deleted: its full path, or only its name in a plan of version 1."""

    path: str
    is_bootstrap_base_file: bool = False


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """Contents of a requested clean; `files` are by partition."""

    policy: str
    files: Mapping[str, tuple[CleanFile, ...]] = field(default_factory=dict)
    partitions_to_delete: tuple[str, ...] = ()
    earliest_instant_to_retain: RetainedInstant | None = None
    last_completed_commit: str = ""
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    version: int | None = 2


@dataclass(frozen=True, slots=True)
class CleanedPartition:
    """What was deleted in one partition, by file name."""

    partition: str
    policy: str
    delete_patterns: tuple[str, ...] = ()
    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    is_partition_deleted: bool = False


@dataclass(frozen=True, slots=True)
class CleanMetadata:
    """Contents of a completed clean."""

    started_at: str
    duration_ms: int
    files_deleted: int
    earliest_commit_to_retain: str
    last_completed_commit: str = ""
    partitions: Mapping[str, CleanedPartition] = field(default_factory=dict)
    bootstrap_partitions: Mapping[str, CleanedPartition] = field(default_factory=dict)
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    version: int | None = 2


def encode_clean_plan(plan: CleanPlan) -> bytes:
    """The contents of the requested file."""
    retained = plan.earliest_instant_to_retain
    return encode_record(
        _PLAN_SCHEMA,
        {
            "earliestInstantToRetain": retained
            and {"timestamp": retained.timestamp, "action": retained.action, "state": retained.state},
            "lastCompletedCommitTimestamp": plan.last_completed_commit,
            "policy": plan.policy,
            "filesToBeDeletedPerPartition": {},
            "version": plan.version,
            "filePathsToBeDeletedPerPartition": {
                partition: [{"filePath": f.path, "isBootstrapBaseFile": f.is_bootstrap_base_file} for f in files]
                for partition, files in plan.files.items()
            },
            "partitionsToBeDeleted": list(plan.partitions_to_delete),
            "extraMetadata": dict(plan.extra_metadata),
        },
    )


def decode_clean_plan(data: bytes, *, file: str) -> CleanPlan:
    """The plan in a requested file."""
    record = decode_record(data, file=file, schema_name=_PLAN_SCHEMA)
    retained = record["earliestInstantToRetain"]
    files = {
        partition: tuple(CleanFile(info["filePath"] or "", bool(info["isBootstrapBaseFile"])) for info in infos)
        for partition, infos in (record["filePathsToBeDeletedPerPartition"] or {}).items()
    }
    for partition, names in (record["filesToBeDeletedPerPartition"] or {}).items():
        files.setdefault(partition, tuple(CleanFile(name) for name in names))
    return CleanPlan(
        policy=record["policy"],
        files=files,
        partitions_to_delete=tuple(record["partitionsToBeDeleted"] or ()),
        earliest_instant_to_retain=retained
        and RetainedInstant(retained["timestamp"], retained["action"], retained["state"]),
        last_completed_commit=record["lastCompletedCommitTimestamp"],
        extra_metadata=record["extraMetadata"] or {},
        version=record["version"],
    )


def encode_clean_metadata(metadata: CleanMetadata) -> bytes:
    """The contents of the completed file."""
    return encode_record(
        _METADATA_SCHEMA,
        {
            "startCleanTime": metadata.started_at,
            "timeTakenInMillis": metadata.duration_ms,
            "totalFilesDeleted": metadata.files_deleted,
            "earliestCommitToRetain": metadata.earliest_commit_to_retain,
            "lastCompletedCommitTimestamp": metadata.last_completed_commit,
            "partitionMetadata": _encode_partitions(metadata.partitions),
            "version": metadata.version,
            "bootstrapPartitionMetadata": _encode_partitions(metadata.bootstrap_partitions),
            "extraMetadata": dict(metadata.extra_metadata),
        },
    )


def decode_clean_metadata(data: bytes, *, file: str) -> CleanMetadata:
    """The result in a completed file."""
    record = decode_record(data, file=file, schema_name=_METADATA_SCHEMA)
    return CleanMetadata(
        started_at=record["startCleanTime"],
        duration_ms=record["timeTakenInMillis"],
        files_deleted=record["totalFilesDeleted"],
        earliest_commit_to_retain=record["earliestCommitToRetain"],
        last_completed_commit=record["lastCompletedCommitTimestamp"],
        partitions=_decode_partitions(record["partitionMetadata"]),
        bootstrap_partitions=_decode_partitions(record["bootstrapPartitionMetadata"] or {}),
        extra_metadata=record["extraMetadata"] or {},
        version=record["version"],
    )


def _encode_partitions(partitions: Mapping[str, CleanedPartition]) -> dict[str, Any]:
    return {
        key: {
            "partitionPath": cleaned.partition,
            "policy": cleaned.policy,
            "deletePathPatterns": list(cleaned.delete_patterns),
            "successDeleteFiles": list(cleaned.succeeded),
            "failedDeleteFiles": list(cleaned.failed),
            "isPartitionDeleted": cleaned.is_partition_deleted,
        }
        for key, cleaned in partitions.items()
    }


def _decode_partitions(partitions: Mapping[str, Any]) -> dict[str, CleanedPartition]:
    return {
        key: CleanedPartition(
            partition=record["partitionPath"],
            policy=record["policy"],
            delete_patterns=tuple(record["deletePathPatterns"]),
            succeeded=tuple(record["successDeleteFiles"]),
            failed=tuple(record["failedDeleteFiles"]),
            is_partition_deleted=bool(record["isPartitionDeleted"]),
        )
        for key, record in partitions.items()
    }
