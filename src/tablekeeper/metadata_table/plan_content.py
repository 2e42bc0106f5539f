"""Plans of compactions of the metadata table on its timeline, and how to recognise ours."""

from __future__ import annotations

from tablekeeper.config.table_config import TableConfig
from tablekeeper.format.plans import CompactionOperation, CompactionPlan, decode_compaction_plan
from tablekeeper.metadata_table.compaction_plan import Merge
from tablekeeper.metadata_table.layout import MetadataSlice
from tablekeeper.model import Action, FileGroupId, Instant, RequestedTime, State
from tablekeeper.storage import Storage
from tablekeeper.timeline import instant_path, load_content

__all__ = ["is_ours", "load_plan", "make_plan"]

_OURS = "tablekeeper.metadata.compaction"
"""Key of the extra metadata that marks a plan of ours."""


def load_plan(storage: Storage, own: TableConfig, at: RequestedTime) -> CompactionPlan:
    """The plan of this compaction; `own` is the configuration with the timeline of the metadata table."""
    requested = Instant(at, Action.COMPACTION, State.REQUESTED)
    return decode_compaction_plan(load_content(storage, own, requested), file=instant_path(own, requested))


def is_ours(plan: CompactionPlan) -> bool:
    """Whether a process of ours made it, which also began to execute it."""
    return _OURS in plan.extra_metadata


def make_plan(merge: Merge) -> CompactionPlan:
    """The plan as Java writes it, so that Java can execute it."""
    return CompactionPlan(
        operations=tuple(_operation(partition, each) for partition, each in merge.slices),
        extra_metadata={_OURS: "true"},
        preserve_metadata=True,
    )


def _operation(partition: str, slice_: MetadataSlice) -> CompactionOperation:
    log_bytes = sum(log.size for log in slice_.logs)
    read_mb = float((log_bytes + (slice_.base.size if slice_.base is not None else 0)) >> 20)
    metrics = {
        "TOTAL_LOG_FILES": float(len(slice_.logs)),
        "TOTAL_LOG_FILES_SIZE": float(log_bytes),
        "TOTAL_IO_READ_MB": read_mb,
        "TOTAL_IO_WRITE_MB": read_mb,
        "TOTAL_IO_MB": 2 * read_mb,
    }
    return CompactionOperation(
        group=FileGroupId(partition, slice_.file_id),
        base_instant=_base_instant(slice_),
        base_file=slice_.base.name if slice_.base is not None else None,
        log_files=tuple(log.name for log in slice_.logs),
        metrics=metrics,
    )


def _base_instant(slice_: MetadataSlice) -> str:
    if slice_.base_instant is not None:
        return slice_.base_instant.value
    # A slice without a base file begins with its first log.
    return slice_.logs[0].name.rpartition(".log.")[0].rpartition("_")[2]
