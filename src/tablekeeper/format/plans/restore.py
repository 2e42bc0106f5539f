"""Savepoints (files that no clean may touch) and restores (roll back everything after one)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.format.avro_container import decode_record, encode_record
from tablekeeper.format.plans.rollback import (
    InstantInfo,
    RollbackMetadata,
    decode_instant_info,
    decode_rollback_metadata_record,
    encode_instant_info,
    encode_rollback_metadata_record,
)

__all__ = [
    "RestoreMetadata",
    "RestorePlan",
    "SavepointMetadata",
    "decode_restore_metadata",
    "decode_restore_plan",
    "decode_savepoint_metadata",
    "encode_restore_metadata",
    "encode_restore_plan",
    "encode_savepoint_metadata",
]

_SAVEPOINT_SCHEMA = "HoodieSavepointMetadata"
_PLAN_SCHEMA = "HoodieRestorePlan"
_METADATA_SCHEMA = "HoodieRestoreMetadata"


@dataclass(frozen=True, slots=True)
class SavepointMetadata:
    """Contents of a completed savepoint; `files` are names by partition."""

    user: str
    saved_at_ms: int
    comments: str
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    version: int | None = 1


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Contents of a requested restore; `instants` to be rolled back, newest first."""

    instants: tuple[InstantInfo, ...]
    savepoint: str | None = None
    version: int | None = 2


@dataclass(frozen=True, slots=True)
class RestoreMetadata:
    """Contents of a completed restore; `rollbacks` are by requested time of the instant rolled back."""

    started_at: str
    duration_ms: int
    commits: tuple[str, ...]
    rollbacks: Mapping[str, tuple[RollbackMetadata, ...]] = field(default_factory=dict)
    instants: tuple[InstantInfo, ...] = ()
    version: int | None = 1


def encode_savepoint_metadata(metadata: SavepointMetadata) -> bytes:
    """The contents of the completed file."""
    return encode_record(
        _SAVEPOINT_SCHEMA,
        {
            "savepointedBy": metadata.user,
            "savepointedAt": metadata.saved_at_ms,
            "comments": metadata.comments,
            "partitionMetadata": {
                partition: {"partitionPath": partition, "savepointDataFile": list(names)}
                for partition, names in metadata.files.items()
            },
            "version": metadata.version,
        },
    )


def decode_savepoint_metadata(data: bytes, *, file: str) -> SavepointMetadata:
    """What a completed savepoint protects."""
    record = decode_record(data, file=file, schema_name=_SAVEPOINT_SCHEMA)
    return SavepointMetadata(
        user=record["savepointedBy"],
        saved_at_ms=record["savepointedAt"],
        comments=record["comments"],
        files={key: tuple(value["savepointDataFile"]) for key, value in record["partitionMetadata"].items()},
        version=record["version"],
    )


def encode_restore_plan(plan: RestorePlan) -> bytes:
    """The contents of the requested file."""
    return encode_record(
        _PLAN_SCHEMA,
        {
            "instantsToRollback": [encode_instant_info(info) for info in plan.instants],
            "version": plan.version,
            "savepointToRestoreTimestamp": plan.savepoint,
        },
    )


def decode_restore_plan(data: bytes, *, file: str) -> RestorePlan:
    """The plan in a requested file."""
    record = decode_record(data, file=file, schema_name=_PLAN_SCHEMA)
    return RestorePlan(
        instants=tuple(decode_instant_info(info) for info in record["instantsToRollback"]),
        savepoint=record["savepointToRestoreTimestamp"],
        version=record["version"],
    )


def encode_restore_metadata(metadata: RestoreMetadata) -> bytes:
    """The contents of the completed file."""
    return encode_record(
        _METADATA_SCHEMA,
        {
            "startRestoreTime": metadata.started_at,
            "timeTakenInMillis": metadata.duration_ms,
            "instantsToRollback": list(metadata.commits),
            "hoodieRestoreMetadata": {
                key: [encode_rollback_metadata_record(rollback) for rollback in rollbacks]
                for key, rollbacks in metadata.rollbacks.items()
            },
            "version": metadata.version,
            "restoreInstantInfo": [encode_instant_info(info) for info in metadata.instants],
        },
    )


def decode_restore_metadata(data: bytes, *, file: str) -> RestoreMetadata:
    """The result in a completed file."""
    record = decode_record(data, file=file, schema_name=_METADATA_SCHEMA)
    return RestoreMetadata(
        started_at=record["startRestoreTime"],
        duration_ms=record["timeTakenInMillis"],
        commits=tuple(record["instantsToRollback"]),
        rollbacks={
            key: tuple(decode_rollback_metadata_record(rollback) for rollback in rollbacks if rollback)
            for key, rollbacks in record["hoodieRestoreMetadata"].items()
        },
        instants=tuple(decode_instant_info(info) for info in record["restoreInstantInfo"]),
        version=record["version"],
    )
