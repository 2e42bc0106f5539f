"""Contents of a requested clustering or replace commit.

A clustering carries its plan; an insert overwrite or a deletion of partitions carries none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tablekeeper.format.avro_container import decode_record, encode_record
from tablekeeper.format.plans.outline import encode_outline_note
from tablekeeper.model import FileGroupId, Operation, PlanOutline, Strategy

__all__ = [
    "ClusteringGroup",
    "ClusteringPlan",
    "RequestedReplaceMetadata",
    "SliceInfo",
    "decode_requested_replace_metadata",
    "encode_requested_replace_metadata",
]

_SCHEMA = "HoodieRequestedReplaceMetadata"
_OPERATIONS = {operation.value: operation for operation in Operation}


@dataclass(frozen=True, slots=True)
class SliceInfo:
    """A file slice to be rewritten. Files are full paths."""

    group: FileGroupId
    base_file: str | None
    log_files: tuple[str, ...] = ()
    bootstrap_file: str | None = None
    version: int | None = 1


@dataclass(frozen=True, slots=True)
class ClusteringGroup:
    """Slices that are rewritten together into `output_file_groups` new file groups."""

    slices: tuple[SliceInfo, ...]
    output_file_groups: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    version: int | None = 1


@dataclass(frozen=True, slots=True)
class ClusteringPlan:
    """Which slices are rewritten, and how. See `CompactionPlan` for `missing_schedule_partitions`."""

    input_groups: tuple[ClusteringGroup, ...] = ()
    strategy: Strategy | None = None
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    missing_schedule_partitions: tuple[str, ...] = ()
    preserve_metadata: bool = True
    version: int | None = 1
    records_missing: bool = True


@dataclass(frozen=True, slots=True)
class RequestedReplaceMetadata:
    """Contents of a requested clustering (with a plan) or replace commit (without)."""

    operation: Operation | None = None
    clustering_plan: ClusteringPlan | None = None
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    version: int | None = 1


def encode_requested_replace_metadata(metadata: RequestedReplaceMetadata) -> bytes:
    """The contents of the requested file."""
    plan = metadata.clustering_plan
    return encode_record(
        _SCHEMA,
        {
            "operationType": metadata.operation and metadata.operation.value,
            "clusteringPlan": plan and _encode_plan(plan),
            "extraMetadata": dict(metadata.extra_metadata),
            "version": metadata.version,
        },
        notes=_outline_note(plan) if plan is not None else None,
    )


def decode_requested_replace_metadata(data: bytes, *, file: str) -> RequestedReplaceMetadata:
    """What a requested file says. An empty file, as old writers leave it, says nothing."""
    if not data:
        return RequestedReplaceMetadata()
    record = decode_record(data, file=file, schema_name=_SCHEMA)
    operation = record["operationType"]
    plan = record["clusteringPlan"]
    return RequestedReplaceMetadata(
        operation=_OPERATIONS.get(operation, Operation.UNKNOWN) if operation else None,
        clustering_plan=plan and _decode_plan(plan),
        extra_metadata=record["extraMetadata"] or {},
        version=record["version"],
    )


def _outline_note(plan: ClusteringPlan) -> dict[str, bytes]:
    outline = PlanOutline(
        missing=plan.missing_schedule_partitions if plan.records_missing else None,
        params=plan.strategy.params if plan.strategy is not None else {},
        extra=plan.extra_metadata,
    )
    return encode_outline_note(outline, groups=sum(len(group.slices) for group in plan.input_groups))


def _encode_plan(plan: ClusteringPlan) -> dict[str, Any]:
    strategy = plan.strategy
    return {
        "inputGroups": [_encode_group(group) for group in plan.input_groups],
        "strategy": strategy
        and {
            "strategyClassName": strategy.class_name,
            "strategyParams": dict(strategy.params),
            "version": strategy.version,
        },
        "extraMetadata": dict(plan.extra_metadata),
        "version": plan.version,
        "preserveHoodieMetadata": plan.preserve_metadata,
        "missingSchedulePartitions": list(plan.missing_schedule_partitions) if plan.records_missing else None,
    }


def _decode_plan(record: Mapping[str, Any]) -> ClusteringPlan:
    strategy = record["strategy"]
    return ClusteringPlan(
        input_groups=tuple(_decode_group(group) for group in record["inputGroups"] or ()),
        strategy=strategy
        and Strategy(strategy["strategyClassName"], strategy["strategyParams"] or {}, strategy["version"]),
        extra_metadata=record["extraMetadata"] or {},
        missing_schedule_partitions=tuple(record["missingSchedulePartitions"] or ()),
        preserve_metadata=bool(record["preserveHoodieMetadata"]),
        version=record["version"],
        records_missing=record["missingSchedulePartitions"] is not None,
    )


def _encode_group(group: ClusteringGroup) -> dict[str, Any]:
    return {
        "slices": [
            {
                # Java tells a missing file by the empty text, and does not expect null here.
                "dataFilePath": info.base_file or "",
                "deltaFilePaths": list(info.log_files),
                "fileId": info.group.file_id,
                "partitionPath": info.group.partition,
                "bootstrapFilePath": info.bootstrap_file or "",
                "version": info.version,
            }
            for info in group.slices
        ],
        "metrics": dict(group.metrics),
        "numOutputFileGroups": group.output_file_groups,
        "extraMetadata": dict(group.extra_metadata),
        "version": group.version,
    }


def _decode_group(record: Mapping[str, Any]) -> ClusteringGroup:
    outputs = record["numOutputFileGroups"]
    return ClusteringGroup(
        slices=tuple(
            SliceInfo(
                group=FileGroupId(info["partitionPath"] or "", info["fileId"] or ""),
                base_file=info["dataFilePath"] or None,
                log_files=tuple(info["deltaFilePaths"] or ()),
                bootstrap_file=info["bootstrapFilePath"] or None,
                version=info["version"],
            )
            for info in record["slices"] or ()
        ),
        output_file_groups=1 if outputs is None else outputs,
        metrics=record["metrics"] or {},
        extra_metadata=record["extraMetadata"] or {},
        version=record["version"],
    )
