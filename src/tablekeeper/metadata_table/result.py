"""What a compaction of the metadata table did, as a value that prints well."""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.model import RequestedTime
from tablekeeper.model.results import Result

__all__ = ["MetadataCompaction"]


@dataclass(frozen=True, slots=True)
class MetadataCompaction(Result):
    """`instant` is the compaction that was completed, None if there was none; `reason` says why not.

    `is_held_up`: a compaction was due and could not be, for the reason. `removed_attempts` are compactions that a
    process of ours had left half done.
    """

    instant: RequestedTime | None = None
    delta_commits: int = 0
    files_written: int = 0
    bytes_written: int = 0
    files_deleted: int = 0
    removed_attempts: tuple[RequestedTime, ...] = ()
    reason: str = ""
    is_held_up: bool = False
    lock_held_s: float = 0.0

    def __str__(self) -> str:
        if self.instant is None:
            return f"the metadata table was not compacted: {self.reason}"
        return (
            f"the metadata table was compacted ({self.instant}): {self.delta_commits} delta commits merged into "
            f"{self.files_written} base files, {self.files_deleted} old files deleted"
        )
