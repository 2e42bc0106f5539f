"""The results of `timeline()`, `files()` and `describe()`: values that print well and convert to dictionaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tablekeeper.config.table_config import TableConfig
from tablekeeper.model import FileSlice, Instant
from tablekeeper.model.results import Listing
from tablekeeper.snapshot.snapshot import Snapshot
from tablekeeper.timeline import Timeline

__all__ = ["FileListing", "TableDescription", "TimelineListing", "describe_table", "format_bytes"]


@dataclass(frozen=True, slots=True)
class TimelineListing(Listing[Instant]):
    """Instants of the active timeline by requested time."""

    instants: tuple[Instant, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [
            {
                "requested_at": i.requested_at.value,
                "action": i.action.value,
                "state": i.state.value,
                "completed_at": i.completed_at.value if i.completed_at is not None else None,
            }
            for i in self.instants
        ]

    def __repr__(self) -> str:
        return _columns(["requested", "action", "state", "completed"], [list(d.values()) for d in self.to_dicts()])


@dataclass(frozen=True, slots=True)
class FileListing(Listing[FileSlice]):
    """The newest slice of each file group."""

    slices: tuple[FileSlice, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [
            {
                "partition": s.group.partition,
                "file_id": s.group.file_id,
                "base_instant": s.base_instant.value,
                "base_file": s.base.name if s.base is not None else None,
                "base_bytes": s.base.size if s.base is not None else 0,
                "log_files": [log.name for log in s.logs],
                "log_bytes": sum(log.size for log in s.logs),
            }
            for s in self.slices
        ]

    def __repr__(self) -> str:
        rows = [
            [
                s.group.partition or ".",
                s.group.file_id,
                s.base_instant.value,
                format_bytes(s.base.size) if s.base is not None else "-",
                str(len(s.logs)),
                format_bytes(sum(log.size for log in s.logs)),
            ]
            for s in self.slices
        ]
        return _columns(["partition", "file group", "base instant", "base", "logs", "log size"], rows)


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table at a glance."""

    path: str
    name: str
    table_type: str
    version: int
    key: tuple[str, ...]
    partition_by: tuple[str, ...]
    ordering: tuple[str, ...]
    merge_mode: str
    metadata_table: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    partitions: int
    file_groups: int
    log_files: int
    bytes: int
    commits: int
    pending: int
    last_commit: str | None

    def to_dict(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in self.__slots__}
        return {**facts, "columns": dict(self.columns)}

    def __repr__(self) -> str:
        facts = {
            "table": f"{self.name} at {self.path}",
            "type": f"{self.table_type}, version {self.version}",
            "key": ", ".join(self.key) or "-",
            "partitioned by": ", ".join(self.partition_by) or "-",
            "ordering": f"{', '.join(self.ordering) or '-'} ({self.merge_mode})",
            "metadata table": ", ".join(self.metadata_table) or "off",
            "data": (
                f"{self.partitions:,} partitions, {self.file_groups:,} file groups, {self.log_files:,} log files, "
                f"{format_bytes(self.bytes)}"
            ),
            "timeline": f"{self.commits:,} commits, {self.pending:,} pending, last {self.last_commit or '-'}",
            "columns": ", ".join(f"{name} {kind}" for name, kind in self.columns),
        }
        width = max(map(len, facts))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())


def describe_table(
    path: str, config: TableConfig, timeline: Timeline, snapshot: Snapshot, schema: pa.Schema
) -> TableDescription:
    """Gather the description from what was loaded."""
    writes = timeline.completed_writes_by_completion
    return TableDescription(
        path=path,
        name=config.name,
        table_type="mor" if config.is_mor else "cow",
        version=config.version,
        key=config.key_fields,
        partition_by=config.partition_columns,
        ordering=config.ordering_fields,
        merge_mode=config.merge_mode.name.lower(),
        metadata_table=config.metadata_partitions,
        columns=tuple((field.name, str(field.type)) for field in schema),
        partitions=len({s.group.partition for s in snapshot.latest}),
        file_groups=len(snapshot.latest),
        log_files=sum(len(s.logs) for s in snapshot.latest),
        bytes=sum(s.size for s in snapshot.latest),
        commits=len(writes),
        pending=len(timeline.pending),
        last_commit=writes[-1].requested_at.value if writes else None,
    )


def format_bytes(size: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _columns(header: list[str], rows: list[list[Any]]) -> str:
    texts = [header, *([str("-" if v is None else v) for v in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in texts)
