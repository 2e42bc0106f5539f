"""Plans of compaction and of log compaction: which log files are merged with which base file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tablekeeper.format.avro_container import decode_record, encode_record
from tablekeeper.format.plans.outline import encode_outline_note
from tablekeeper.model import FileGroupId, PlanOutline, Strategy

__all__ = ["CompactionOperation", "CompactionPlan", "decode_compaction_plan", "encode_compaction_plan"]

_SCHEMA = "HoodieCompactionPlan"


@dataclass(frozen=True, slots=True)
class CompactionOperation:
    """One file group of the plan. Files are named without their partition.

    Java's executor fails on `metrics` without TOTAL_LOG_FILES_SIZE.
    """

    group: FileGroupId
    base_instant: str
    base_file: str | None
    log_files: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    bootstrap_file: str | None = None


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Contents of a requested compaction or log compaction.

    `missing_schedule_partitions` are partitions that the scheduler saw but left out of this plan. Schedulers that do
    not plan incrementally leave the field null (`records_missing` is False): then nobody knows what they left out.
    """

    operations: tuple[CompactionOperation, ...] = ()
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    missing_schedule_partitions: tuple[str, ...] = ()
    strategy: Strategy | None = None
    preserve_metadata: bool = False
    version: int | None = 2
    records_missing: bool = True


def encode_compaction_plan(plan: CompactionPlan) -> bytes:
    """The contents of the requested file."""
    strategy = plan.strategy
    return encode_record(
        _SCHEMA,
        {
            "operations": [_encode_operation(operation) for operation in plan.operations],
            "extraMetadata": dict(plan.extra_metadata),
            "version": plan.version,
            "strategy": strategy
            and {
                "compactorClassName": strategy.class_name,
                "strategyParams": dict(strategy.params),
                "version": strategy.version,
            },
            "preserveHoodieMetadata": plan.preserve_metadata,
            "missingSchedulePartitions": list(plan.missing_schedule_partitions) if plan.records_missing else None,
        },
        notes=encode_outline_note(_outline(plan), groups=len(plan.operations)),
    )


def decode_compaction_plan(data: bytes, *, file: str) -> CompactionPlan:
    """The plan in a requested file."""
    record = decode_record(data, file=file, schema_name=_SCHEMA)
    strategy = record["strategy"]
    return CompactionPlan(
        operations=tuple(_decode_operation(operation) for operation in record["operations"] or ()),
        extra_metadata=record["extraMetadata"] or {},
        missing_schedule_partitions=tuple(record["missingSchedulePartitions"] or ()),
        strategy=strategy
        and Strategy(strategy["compactorClassName"], strategy["strategyParams"] or {}, strategy["version"]),
        preserve_metadata=bool(record["preserveHoodieMetadata"]),
        version=record["version"],
        records_missing=record["missingSchedulePartitions"] is not None,
    )


def _outline(plan: CompactionPlan) -> PlanOutline:
    return PlanOutline(
        missing=plan.missing_schedule_partitions if plan.records_missing else None,
        params=plan.strategy.params if plan.strategy is not None else {},
        extra=plan.extra_metadata,
    )


def _encode_operation(operation: CompactionOperation) -> dict[str, Any]:
    return {
        "baseInstantTime": operation.base_instant,
        "deltaFilePaths": list(operation.log_files),
        "dataFilePath": operation.base_file,
        "fileId": operation.group.file_id,
        "partitionPath": operation.group.partition,
        "metrics": dict(operation.metrics),
        "bootstrapFilePath": operation.bootstrap_file,
    }


def _decode_operation(record: Mapping[str, Any]) -> CompactionOperation:
    return CompactionOperation(
        group=FileGroupId(record["partitionPath"] or "", record["fileId"] or ""),
        base_instant=record["baseInstantTime"] or "",
        base_file=record["dataFilePath"] or None,
        log_files=tuple(record["deltaFilePaths"] or ()),
        metrics=record["metrics"] or {},
        bootstrap_file=record["bootstrapFilePath"] or None,
    )
