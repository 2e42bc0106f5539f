"""Clustering plans between the timeline and the service: groups of slices that are rewritten together.

Java names the files of a clustering plan by their full path, and so do we; only the last part counts when a plan is
read, as the partition is given beside it. Plans do not hold the sizes of files. What is read is estimated from the
metrics that every plan carries: it is used to balance the load, never to find anything.
"""

from __future__ import annotations

from dataclasses import replace

from tablekeeper.errors import CorruptTableError, UnsupportedFeatureError
from tablekeeper.format.base_file import decode_base_name
from tablekeeper.format.log_names import decode_log_name
from tablekeeper.format.plans import (
    ClusteringGroup,
    ClusteringPlan,
    RequestedReplaceMetadata,
    SliceInfo,
    decode_requested_replace_metadata,
    encode_requested_replace_metadata,
)
from tablekeeper.format.plans.strategy import Strategy
from tablekeeper.model import BaseFile, FileGroupId, FileSlice, LogFile, Operation, RequestedTime
from tablekeeper.services.plans.service import Plan, PlanFlags, Work
from tablekeeper.storage import hadoop_path
from tablekeeper.storage.protocol import StorageSpec

__all__ = ["decode_group_plan", "encode_group_plan"]

_READ_MB = "TOTAL_IO_READ_MB"
_MB = 1 << 20


def encode_group_plan(plan: Plan, *, strategy: Strategy, spec: StorageSpec) -> bytes:
    """Contents of the requested file in the table at `spec`. `strategy` is named where the plan itself names none."""
    return encode_requested_replace_metadata(
        RequestedReplaceMetadata(
            operation=Operation.CLUSTER,
            clustering_plan=ClusteringPlan(
                input_groups=tuple(_group(work, spec) for work in plan.work),
                strategy=plan.strategy or strategy,
                extra_metadata={**plan.extra, **plan.flags.to_metadata()},
                missing_schedule_partitions=plan.missing,
                preserve_metadata=plan.preserves_metadata,
            ),
        )
    )


def decode_group_plan(content: bytes, *, file: str) -> Plan:
    """The plan in a requested file, ours or Java's."""
    decoded = decode_requested_replace_metadata(content, file=file).clustering_plan
    if decoded is None:
        raise CorruptTableError(file=file, reason="a requested clustering without a plan")
    return Plan(
        work=tuple(_work(group, file=file) for group in decoded.input_groups),
        flags=PlanFlags.from_metadata(decoded.extra_metadata),
        missing=decoded.missing_schedule_partitions,
        strategy=decoded.strategy,
        extra=dict(decoded.extra_metadata),
        preserves_metadata=decoded.preserve_metadata,
    )


def _group(work: Work, spec: StorageSpec) -> ClusteringGroup:
    return ClusteringGroup(
        slices=tuple(
            SliceInfo(
                group=each.group,
                base_file=hadoop_path(spec, each.base.path) if each.base is not None else None,
                log_files=tuple(hadoop_path(spec, log.path) for log in each.logs),
            )
            for each in work.slices
        ),
        output_file_groups=work.outputs,
        metrics=_metrics(work),
    )


def _metrics(work: Work) -> dict[str, float]:
    logs = [log for each in work.slices for log in each.logs]
    log_bytes = sum(log.size for log in logs)
    written = sum(each.base.size if each.base is not None else each.size for each in work.slices)
    return {
        _READ_MB: work.size / _MB,
        "TOTAL_IO_WRITE_MB": written / _MB,
        "TOTAL_IO_MB": (work.size + written) / _MB,
        "TOTAL_LOG_FILES_SIZE": float(log_bytes),
        "TOTAL_LOG_FILES": float(len(logs)),
    }


def _work(group: ClusteringGroup, *, file: str) -> Work:
    if not group.slices:
        raise CorruptTableError(file=file, reason="a clustering group without slices")
    if len({info.group.partition for info in group.slices}) > 1:
        raise UnsupportedFeatureError(
            f"{file}: a clustering group spans several partitions, which is not done here. Run the plan with Java."
        )
    share = int(group.metrics.get(_READ_MB, 0.0) * _MB) // len(group.slices)
    return Work(tuple(_slice(info, share, file=file) for info in group.slices), outputs=group.output_file_groups)


def _slice(info: SliceInfo, size: int, *, file: str) -> FileSlice:
    if info.bootstrap_file is not None:
        raise UnsupportedFeatureError(
            f"{file}: file group {info.group} was bootstrapped from files outside the table, which are not read here. "
            "Run this plan with Java Hudi."
        )
    logs = sorted((_log(info.group, path, file=file) for path in info.log_files), key=lambda log: log.order)
    if info.base_file is not None:
        base = _base(info.group, info.base_file, size, file=file)
        return FileSlice(info.group, base.instant, base, tuple(logs))
    if not logs:
        raise CorruptTableError(file=file, reason=f"the plan names no files of file group {info.group}")
    sized = tuple(replace(log, size=size // len(logs)) for log in logs)
    return FileSlice(info.group, logs[0].instant, None, sized)


def _base(group: FileGroupId, path: str, size: int, *, file: str) -> BaseFile:
    name = path.rsplit("/", 1)[-1]
    parts = decode_base_name(name)
    if parts is None or parts.file_id != group.file_id:
        raise _stranger(group, name, file=file)
    return BaseFile(group, RequestedTime(parts.instant), parts.write_token, name, size)


def _log(group: FileGroupId, path: str, *, file: str) -> LogFile:
    name = path.rsplit("/", 1)[-1]
    parts = decode_log_name(name)
    if parts is None or parts.file_id != group.file_id:
        raise _stranger(group, name, file=file)
    return LogFile(group, RequestedTime(parts.instant), parts.version, parts.write_token, name, 0)


def _stranger(group: FileGroupId, name: str, *, file: str) -> CorruptTableError:
    return CorruptTableError(file=file, reason=f"{name!r} is no data file of file group {group}")
