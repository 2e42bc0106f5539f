"""The metadata of completed actions: write statistics and commit metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.model.files import FileGroupId
from tablekeeper.model.instants import Operation

__all__ = ["SCHEMA_KEY", "CommitMetadata", "WriteStat"]

SCHEMA_KEY = "schema"
"""Key of `CommitMetadata.extra` that holds the table's Avro schema as JSON."""


@dataclass(frozen=True, slots=True)
class WriteStat:
    """One file written by one action. `path` is relative to the table."""

    group: FileGroupId
    path: str
    size: int
    writes: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    errors: int = 0
    previous_commit: str = "null"
    previous_base_file: str | None = None
    log_version: int | None = None
    base_file: str | None = None
    min_event_time: int | None = None
    max_event_time: int | None = None

    @property
    def is_log(self) -> bool:
        return self.log_version is not None

    @property
    def file_name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Contents of a completed commit, delta commit or replace commit.

    `replaced` (partition -> file ids hidden from the completion on) is None for actions that are
    not replace commits.
    """

    operation: Operation
    stats: tuple[WriteStat, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    compacted: bool = False
    replaced: Mapping[str, tuple[str, ...]] | None = None

    @property
    def partitions(self) -> frozenset[str]:
        """Partition paths that this action wrote to or replaced files in."""
        return frozenset({stat.group.partition for stat in self.stats} | set(self.replaced or ()))

    @property
    def only_adds_logs(self) -> bool:
        """True if all it wrote are log files, and it replaced nothing."""
        return self.replaced is None and all(stat.is_log for stat in self.stats)

    @property
    def file_groups(self) -> frozenset[FileGroupId]:
        """File groups written or replaced."""
        return frozenset({stat.group for stat in self.stats}) | self.replaced_groups

    @property
    def replaced_groups(self) -> frozenset[FileGroupId]:
        """File groups that are hidden from the completion on."""
        return frozenset(FileGroupId(p, f) for p, ids in (self.replaced or {}).items() for f in ids)
