"""Rollback: the plan (what a failed action left and must go) and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tablekeeper.format.avro_container import decode_record, encode_record
from tablekeeper.model import Action, RequestedTime

__all__ = [
    "InstantInfo",
    "RollbackMetadata",
    "RollbackPlan",
    "RollbackRequest",
    "RolledBackPartition",
    "decode_instant_info",
    "decode_rollback_metadata",
    "decode_rollback_metadata_record",
    "decode_rollback_plan",
    "encode_instant_info",
    "encode_rollback_metadata",
    "encode_rollback_metadata_record",
    "encode_rollback_plan",
]

_PLAN_SCHEMA = "HoodieRollbackPlan"
_METADATA_SCHEMA = "HoodieRollbackMetadata"
_PLAN_ACTIONS = frozenset(action.value for action in Action if action.is_plan)


@dataclass(frozen=True, slots=True)
class InstantInfo:
    """An instant by requested time and action name."""

    commit_time: str
    action: str

    @property
    def is_plan(self) -> bool:
        """Whether it is a plan of a service that rewrites file slices."""
        return self.action in _PLAN_ACTIONS


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """Deletions in one partition: whole files by full path; log blocks (version 6) by log file and size."""

    partition: str
    files_to_delete: tuple[str, ...] = ()
    file_id: str = ""
    latest_base_instant: str = ""
    log_blocks_to_delete: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """Contents of a requested rollback."""

    instant: InstantInfo | None
    requests: tuple[RollbackRequest, ...] = ()
    version: int | None = 1

    @property
    def target(self) -> RequestedTime | None:
        """The requested time of what is rolled back; None in a plan that does not say it."""
        text = "" if self.instant is None else self.instant.commit_time
        return RequestedTime(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True, slots=True)
class RolledBackPartition:
    """What was deleted in one partition. Log files are given with their sizes."""

    partition: str
    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    rollback_log_files: Mapping[str, int] = field(default_factory=dict)
    log_files_from_failed_commit: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RollbackMetadata:
    """Contents of a completed rollback."""

    started_at: str
    duration_ms: int
    files_deleted: int
    commits: tuple[str, ...]
    partitions: Mapping[str, RolledBackPartition] = field(default_factory=dict)
    instants: tuple[InstantInfo, ...] = ()
    version: int | None = 1


def encode_rollback_plan(plan: RollbackPlan) -> bytes:
    """The contents of the requested file."""
    return encode_record(
        _PLAN_SCHEMA,
        {
            "instantToRollback": plan.instant and encode_instant_info(plan.instant),
            "RollbackRequests": [
                {
                    "partitionPath": request.partition,
                    "fileId": request.file_id,
                    "latestBaseInstant": request.latest_base_instant,
                    "filesToBeDeleted": list(request.files_to_delete),
                    "logBlocksToBeDeleted": dict(request.log_blocks_to_delete),
                }
                for request in plan.requests
            ],
            "version": plan.version,
        },
    )


def decode_rollback_plan(data: bytes, *, file: str) -> RollbackPlan:
    """The plan in a requested file."""
    record = decode_record(data, file=file, schema_name=_PLAN_SCHEMA)
    return RollbackPlan(
        instant=record["instantToRollback"] and decode_instant_info(record["instantToRollback"]),
        requests=tuple(
            RollbackRequest(
                partition=request["partitionPath"],
                files_to_delete=tuple(request["filesToBeDeleted"]),
                file_id=request["fileId"] or "",
                latest_base_instant=request["latestBaseInstant"] or "",
                log_blocks_to_delete=request["logBlocksToBeDeleted"] or {},
            )
            for request in record["RollbackRequests"] or ()
        ),
        version=record["version"],
    )


def encode_rollback_metadata(metadata: RollbackMetadata) -> bytes:
    """The contents of the completed file."""
    return encode_record(_METADATA_SCHEMA, encode_rollback_metadata_record(metadata))


def decode_rollback_metadata(data: bytes, *, file: str) -> RollbackMetadata:
    """The result in a completed file."""
    return decode_rollback_metadata_record(decode_record(data, file=file, schema_name=_METADATA_SCHEMA))


def encode_rollback_metadata_record(metadata: RollbackMetadata) -> dict[str, Any]:
    """The result as an Avro record, to be written by itself or inside a restore."""
    return {
        "startRollbackTime": metadata.started_at,
        "timeTakenInMillis": metadata.duration_ms,
        "totalFilesDeleted": metadata.files_deleted,
        "commitsRollback": list(metadata.commits),
        "partitionMetadata": {
            key: {
                "partitionPath": rolled_back.partition,
                "successDeleteFiles": list(rolled_back.succeeded),
                "failedDeleteFiles": list(rolled_back.failed),
                "rollbackLogFiles": dict(rolled_back.rollback_log_files),
                "logFilesFromFailedCommit": dict(rolled_back.log_files_from_failed_commit),
            }
            for key, rolled_back in metadata.partitions.items()
        },
        "version": metadata.version,
        "instantsRollback": [encode_instant_info(info) for info in metadata.instants],
    }


def decode_rollback_metadata_record(record: Mapping[str, Any]) -> RollbackMetadata:
    """The result from an Avro record of its schema."""
    return RollbackMetadata(
        started_at=record["startRollbackTime"],
        duration_ms=record["timeTakenInMillis"],
        files_deleted=record["totalFilesDeleted"],
        commits=tuple(record["commitsRollback"]),
        partitions={
            key: RolledBackPartition(
                partition=partition["partitionPath"],
                succeeded=tuple(partition["successDeleteFiles"]),
                failed=tuple(partition["failedDeleteFiles"]),
                rollback_log_files=partition["rollbackLogFiles"] or {},
                log_files_from_failed_commit=partition["logFilesFromFailedCommit"] or {},
            )
            for key, partition in record["partitionMetadata"].items()
        },
        instants=tuple(decode_instant_info(info) for info in record["instantsRollback"]),
        version=record["version"],
    )


def encode_instant_info(info: InstantInfo) -> dict[str, Any]:
    """An instant as an Avro record."""
    return {"commitTime": info.commit_time, "action": info.action}


def decode_instant_info(record: Mapping[str, Any]) -> InstantInfo:
    """An instant from an Avro record of its schema."""
    return InstantInfo(record["commitTime"], record["action"])
