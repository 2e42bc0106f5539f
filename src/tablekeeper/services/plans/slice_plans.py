"""Plans of compaction and log compaction between the timeline and the services: one slice a piece of work.

The plan file names files without their partition and does not hold their sizes. What is read is estimated from the
metrics that every plan carries, ours and Java's: it is used to balance the load, never to find anything.
"""

from __future__ import annotations

from dataclasses import replace

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.base_file import decode_base_name
from tablekeeper.format.log_names import decode_log_name
from tablekeeper.format.plans import (
    CompactionOperation,
    CompactionPlan,
    decode_compaction_plan,
    encode_compaction_plan,
)
from tablekeeper.format.plans.strategy import Strategy
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, LogFile, RequestedTime
from tablekeeper.services.plans.service import Plan, PlanFlags, Work
from tablekeeper.services.plans.strategies import metrics_of

__all__ = ["decode_slice_plan", "encode_slice_plan"]

_LOG_BYTES = "TOTAL_LOG_FILES_SIZE"
_READ_MB = "TOTAL_IO_READ_MB"
_MB = 1 << 20


def encode_slice_plan(plan: Plan, *, strategy: Strategy) -> bytes:
    """Contents of the requested file. `strategy` is named where the plan itself names none."""
    return encode_compaction_plan(
        CompactionPlan(
            operations=tuple(_operation(file_slice) for work in plan.work for file_slice in work.slices),
            extra_metadata={**plan.extra, **plan.flags.to_metadata()},
            missing_schedule_partitions=plan.missing,
            strategy=plan.strategy or strategy,
            preserve_metadata=plan.preserves_metadata,
        )
    )


def decode_slice_plan(content: bytes, *, file: str) -> Plan:
    """The plan in a requested file, ours or Java's.

    Whatever an old plan says, rows keep their meta columns: so they do in Java.
    """
    decoded = decode_compaction_plan(content, file=file)
    return Plan(
        work=tuple(Work((_slice(operation, file=file),)) for operation in decoded.operations),
        flags=PlanFlags.from_metadata(decoded.extra_metadata),
        missing=decoded.missing_schedule_partitions,
        strategy=decoded.strategy,
        extra=dict(decoded.extra_metadata),
    )


def _operation(file_slice: FileSlice) -> CompactionOperation:
    return CompactionOperation(
        group=file_slice.group,
        base_instant=file_slice.base_instant.value,
        base_file=file_slice.base.name if file_slice.base is not None else None,
        log_files=tuple(log.name for log in file_slice.logs),
        metrics=metrics_of(file_slice),
    )


def _slice(operation: CompactionOperation, *, file: str) -> FileSlice:
    if operation.bootstrap_file is not None:
        raise UnsupportedFeatureError(
            f"{file}: file group {operation.group} was bootstrapped from files outside the table, which are not read "
            "here. Run this plan with Java Hudi."
        )
    log_bytes = int(operation.metrics.get(_LOG_BYTES, 0.0))
    base_bytes = max(0, int(operation.metrics.get(_READ_MB, 0.0) * _MB) - log_bytes)
    logs = [_log(operation, name, file=file) for name in operation.log_files]
    logs = sorted((replace(log, size=log_bytes // len(logs)) for log in logs), key=lambda log: log.order)
    base = None if operation.base_file is None else _base(operation, operation.base_file, base_bytes, file=file)
    instant = _base_instant(operation, base, logs, file=file)
    return FileSlice(operation.group, instant, base, tuple(logs))


def _base_instant(
    operation: CompactionOperation, base: BaseFile | None, logs: list[LogFile], *, file: str
) -> RequestedTime:
    if base is not None:
        return base.instant
    if logs:
        return logs[0].instant
    raise CorruptTableError(file=file, reason=f"the plan names no files of file group {operation.group}")


def _base(operation: CompactionOperation, name: str, size: int, *, file: str) -> BaseFile:
    name = _last(name)
    parts = decode_base_name(name)
    if parts is None or parts.file_id != operation.group.file_id:
        raise _stranger(operation.group, name, file=file)
    return BaseFile(operation.group, RequestedTime(parts.instant), parts.write_token, name, size)


def _log(operation: CompactionOperation, name: str, *, file: str) -> LogFile:
    name = _last(name)
    parts = decode_log_name(name)
    if parts is None or parts.file_id != operation.group.file_id:
        raise _stranger(operation.group, name, file=file)
    return LogFile(operation.group, RequestedTime(parts.instant), parts.version, parts.write_token, name, 0)


def _last(path: str) -> str:
    """Plans of old releases name files by their whole path."""
    return path.rsplit("/", 1)[-1]


def _stranger(group: FileGroupId, name: str, *, file: str) -> CorruptTableError:
    return CorruptTableError(file=file, reason=f"{name!r} is no data file of file group {group}")
