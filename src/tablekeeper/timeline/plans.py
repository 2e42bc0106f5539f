"""Plans on the timeline: found, loaded, and encoded for their requested file. Only this module knows Java's format.

A plan can be loaded in three ways, each as cheap as possible: its outline (how it may end, what it left out), the
outline with its file groups, and the whole plan. The plan file of a compaction names files without their partition,
that of a clustering with their full path; only the last part of a path counts, because the partition is given
separately.

Rollbacks and cleans have plans as well: what is rolled back, and which files are deleted.

Plans do not contain file sizes. They are estimated from the metrics in every plan, ours and Java's, and only used to
balance the load.
"""

from __future__ import annotations

from collections.abc import Sequence

from tablekeeper.config.table_config import TableConfig
from tablekeeper.errors import CorruptTableError, InvalidRequestError, NotFoundError, UnsupportedFeatureError
from tablekeeper.format.data_files import decode_base_name, decode_log_name
from tablekeeper.format.plans import (
    CleanMetadata,
    CleanPlan,
    ClusteringGroup,
    ClusteringPlan,
    CompactionOperation,
    CompactionPlan,
    RequestedReplaceMetadata,
    RollbackPlan,
    SliceInfo,
    decode_clean_metadata,
    decode_clean_plan,
    decode_compaction_plan,
    decode_outline,
    decode_outline_note,
    decode_requested_replace_metadata,
    decode_rollback_plan,
    encode_compaction_plan,
    encode_requested_replace_metadata,
)
from tablekeeper.model import (
    Action,
    BaseFile,
    FileGroupId,
    FileSlice,
    Instant,
    LogFile,
    Operation,
    Plan,
    PlanFlags,
    PlanOutline,
    RequestedTime,
    ServiceKind,
    State,
    Work,
)
from tablekeeper.storage import Storage, hadoop_path
from tablekeeper.storage.protocol import StorageSpec
from tablekeeper.timeline.load import instant_path, load_content
from tablekeeper.timeline.timeline import Timeline

__all__ = [
    "decode_plan",
    "encode_plan",
    "find_plan",
    "find_rollback",
    "load_clean_metadata",
    "load_clean_plan",
    "load_pending_outline",
    "load_plan",
    "load_plan_outline",
    "load_rollback_plan",
    "load_rollback_target",
    "slice_metrics",
    "was_rolled_back",
]

_LOG_BYTES = "TOTAL_LOG_FILES_SIZE"
_READ_MB = "TOTAL_IO_READ_MB"
_MB = 1 << 20
_BEGINNING_BYTES = 1 << 20
_NEW_FILE_BYTES = 125_829_120


def find_plan(timeline: Timeline, instant: RequestedTime) -> tuple[Instant, ServiceKind]:
    """The plan, pending or completed. `InvalidRequestError` if there is none, or it is of another kind."""
    found = timeline.find(instant)
    if found is None:
        raise InvalidRequestError(
            f"there is no plan {instant} on the timeline: it was cancelled or rolled back, or never there. "
            "`Table.plans()` lists the plans there are."
        )
    kind = ServiceKind.completing_as(found.action) if found.is_completed else found.action.service
    if kind is None:
        raise InvalidRequestError(f"{found} is no compaction, log compaction or clustering, and cannot be executed.")
    return found, kind


def load_plan(storage: Storage, config: TableConfig, instant: Instant) -> Plan:
    """All of the plan of `instant`, which is pending. `NotFoundError` if it has left the timeline."""
    requested = _requested(instant)
    content = load_content(storage, config, requested)
    return decode_plan(content, ServiceKind.of(instant.action), file=instant_path(config, requested))


def load_plan_outline(
    storage: Storage, config: TableConfig, instant: Instant, *, with_groups: bool = False
) -> PlanOutline:
    """The plan of `instant` without its slices. Without the groups only the beginning of a large file is read.

    `NotFoundError` if it has left the timeline.
    """
    requested = _requested(instant)
    file = instant_path(config, requested)
    is_clustering = instant.action is Action.CLUSTERING
    if with_groups:
        content = load_content(storage, config, requested)
        return decode_outline(content, file=file, is_clustering=is_clustering, with_groups=True)
    try:
        beginning = storage.read_range(file, start=0, length=_BEGINNING_BYTES)
    except NotFoundError:
        beginning = load_content(storage, config, requested)
        return decode_outline(beginning, file=file, is_clustering=is_clustering)
    noted = decode_outline_note(beginning, file=file)
    if noted is not None:
        return noted
    content = beginning if len(beginning) < _BEGINNING_BYTES else storage.read(file)
    return decode_outline(content, file=file, is_clustering=is_clustering)


def load_pending_outline(
    storage: Storage, config: TableConfig, instant: Instant, *, with_groups: bool = False
) -> PlanOutline:
    """The same, but empty if the plan has left the timeline since it was loaded."""
    try:
        return load_plan_outline(storage, config, instant, with_groups=with_groups)
    except NotFoundError:
        return PlanOutline()


def find_rollback(storage: Storage, config: TableConfig, timeline: Timeline, target: Instant) -> Instant | None:
    """A rollback of `target` that somebody began and did not finish."""
    rollbacks = timeline.pending_rollbacks
    return next((i for i in rollbacks if load_rollback_target(storage, config, i) == target.requested_at), None)


def was_rolled_back(storage: Storage, config: TableConfig, timeline: Timeline, plan: RequestedTime) -> bool:
    """Whether an earlier attempt was rolled back: that rollback stays on the timeline as long as the plan."""
    return any(
        load_rollback_target(storage, config, rollback) == plan
        for rollback in timeline.completed
        if rollback.action is Action.ROLLBACK and rollback.requested_at > plan
    )


def load_rollback_target(storage: Storage, config: TableConfig, rollback: Instant) -> RequestedTime | None:
    """The instant that is or was rolled back; None if the plan of the rollback does not say."""
    plan = load_rollback_plan(storage, config, rollback)
    return None if plan is None else plan.target


def load_rollback_plan(storage: Storage, config: TableConfig, rollback: Instant) -> RollbackPlan | None:
    """The plan of a rollback; None if its requested file is gone, or was truncated before the rollback began.

    On some stores Java creates that file and fills it in a second step; it also drops one that does not decode.
    """
    requested = _requested(rollback)
    try:
        content = load_content(storage, config, requested)
    except NotFoundError:
        return None
    try:
        return decode_rollback_plan(content, file=instant_path(config, requested))
    except CorruptTableError:
        if rollback.state is State.REQUESTED:
            return None
        raise


def load_clean_plan(storage: Storage, config: TableConfig, clean: Instant) -> CleanPlan | None:
    """The plan of a clean; None if its requested file is empty, as it is at first on some stores of Java."""
    requested = _requested(clean)
    content = load_content(storage, config, requested)
    return decode_clean_plan(content, file=instant_path(config, requested)) if content else None


def load_clean_metadata(storage: Storage, config: TableConfig, clean: Instant) -> CleanMetadata:
    """What a completed clean says it deleted."""
    return decode_clean_metadata(load_content(storage, config, clean), file=instant_path(config, clean))


def encode_plan(plan: Plan, kind: ServiceKind, *, spec: StorageSpec) -> bytes:
    """Contents of the requested file in the table at `spec`."""
    extra = {**plan.extra, **plan.flags.to_metadata()}
    if kind is not ServiceKind.CLUSTERING:
        return encode_compaction_plan(
            CompactionPlan(
                operations=tuple(_encode_operation(file_slice) for work in plan.work for file_slice in work.slices),
                extra_metadata=extra,
                missing_schedule_partitions=plan.missing,
                strategy=plan.strategy,
                preserve_metadata=plan.preserves_metadata,
            )
        )
    return encode_requested_replace_metadata(
        RequestedReplaceMetadata(
            operation=Operation.CLUSTER,
            clustering_plan=ClusteringPlan(
                input_groups=tuple(_encode_group(work, spec) for work in plan.work),
                strategy=plan.strategy,
                extra_metadata=extra,
                missing_schedule_partitions=plan.missing,
                preserve_metadata=plan.preserves_metadata,
            ),
        )
    )


def decode_plan(content: bytes, kind: ServiceKind, *, file: str) -> Plan:
    """The plan in a requested file, ours or Java's."""
    decoded: CompactionPlan | ClusteringPlan | None
    if kind is ServiceKind.CLUSTERING:
        decoded = decode_requested_replace_metadata(content, file=file).clustering_plan
        if decoded is None:
            raise CorruptTableError(file=file, reason="a requested clustering without a plan")
        work = tuple(_decode_group(group, file=file) for group in decoded.input_groups)
        preserves_metadata = decoded.preserve_metadata
    else:
        decoded = decode_compaction_plan(content, file=file)
        work = tuple(Work((_decode_operation(operation, file=file),)) for operation in decoded.operations)
        # Whatever an old plan says, rows keep their meta columns, as in Java.
        preserves_metadata = True
    return Plan(
        work=work,
        flags=PlanFlags.from_metadata(decoded.extra_metadata),
        missing=decoded.missing_schedule_partitions,
        strategy=decoded.strategy,
        extra=dict(decoded.extra_metadata),
        preserves_metadata=preserves_metadata,
    )


def slice_metrics(
    slices: Sequence[FileSlice], *, new_file_bytes: int | None = None, in_whole_mb: bool
) -> dict[str, float]:
    """Sizes of slices, under the names in Java's plans.

    The new file is assumed to be as large as the base file; without a base file `new_file_bytes`, or, if that is None,
    as large as the slice.
    """

    def written(each: FileSlice) -> int:
        if each.base is not None and (each.base.size or new_file_bytes is None):
            return each.base.size
        return each.size if new_file_bytes is None else new_file_bytes

    def mb(size: int) -> float:
        return float(size // _MB) if in_whole_mb else size / _MB

    read_bytes, written_bytes = sum(each.size for each in slices), sum(map(written, slices))
    logs = [log for each in slices for log in each.logs]
    both = mb(read_bytes) + mb(written_bytes) if in_whole_mb else mb(read_bytes + written_bytes)
    return {
        _READ_MB: mb(read_bytes),
        "TOTAL_IO_WRITE_MB": mb(written_bytes),
        "TOTAL_IO_MB": both,
        _LOG_BYTES: float(sum(log.size for log in logs)),
        "TOTAL_LOG_FILES": float(len(logs)),
    }


def _requested(instant: Instant) -> Instant:
    return Instant(instant.requested_at, instant.action, State.REQUESTED)


def _encode_operation(file_slice: FileSlice) -> CompactionOperation:
    return CompactionOperation(
        group=file_slice.group,
        base_instant=file_slice.base_instant.value,
        base_file=file_slice.base.name if file_slice.base is not None else None,
        log_files=tuple(log.name for log in file_slice.logs),
        metrics=slice_metrics([file_slice], new_file_bytes=_NEW_FILE_BYTES, in_whole_mb=True),
    )


def _decode_operation(operation: CompactionOperation, *, file: str) -> FileSlice:
    log_bytes = int(operation.metrics.get(_LOG_BYTES, 0.0))
    base_bytes = max(0, int(operation.metrics.get(_READ_MB, 0.0) * _MB) - log_bytes)
    return _slice(operation, base_bytes=base_bytes, log_bytes=log_bytes, file=file)


def _encode_group(work: Work, spec: StorageSpec) -> ClusteringGroup:
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
        metrics=slice_metrics(work.slices, in_whole_mb=False),
    )


def _decode_group(group: ClusteringGroup, *, file: str) -> Work:
    if not group.slices:
        raise CorruptTableError(file=file, reason="a clustering group without slices")
    share = int(group.metrics.get(_READ_MB, 0.0) * _MB) // len(group.slices)
    slices = tuple(
        _slice(info, base_bytes=share, log_bytes=0 if info.base_file is not None else share, file=file)
        for info in group.slices
    )
    return Work(slices, outputs=group.output_file_groups)


def _slice(planned: CompactionOperation | SliceInfo, *, base_bytes: int, log_bytes: int, file: str) -> FileSlice:
    """The slice that a plan names. The bytes of the logs are spread over them evenly."""
    group = planned.group
    if planned.bootstrap_file is not None:
        raise UnsupportedFeatureError(
            f"{file}: file group {group} was bootstrapped from files outside the table, which tablekeeper cannot read. "
            "Run this plan with Java Hudi."
        )
    logs = [_log(group, path, log_bytes // len(planned.log_files), file=file) for path in planned.log_files]
    logs.sort(key=lambda log: log.order)
    if planned.base_file is not None:
        base = _base(group, planned.base_file, base_bytes, file=file)
        return FileSlice(group, base.instant, base, tuple(logs))
    if not logs:
        raise CorruptTableError(file=file, reason=f"the plan names no files of file group {group}")
    return FileSlice(group, logs[0].instant, None, tuple(logs))


def _base(group: FileGroupId, path: str, size: int, *, file: str) -> BaseFile:
    name = _last(path)
    parts = decode_base_name(name)
    if parts is None or parts.file_id != group.file_id:
        raise _stranger(group, name, file=file)
    return BaseFile(group, RequestedTime(parts.instant), parts.write_token, name, size)


def _log(group: FileGroupId, path: str, size: int, *, file: str) -> LogFile:
    name = _last(path)
    parts = decode_log_name(name)
    if parts is None or parts.file_id != group.file_id:
        raise _stranger(group, name, file=file)
    return LogFile(group, RequestedTime(parts.instant), parts.version, parts.write_token, name, size)


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _stranger(group: FileGroupId, name: str, *, file: str) -> CorruptTableError:
    return CorruptTableError(file=file, reason=f"{name!r} is no data file of file group {group}")
