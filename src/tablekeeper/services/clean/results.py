"""What a clean did, as a value that prints well."""

from __future__ import annotations

from dataclasses import dataclass

from tablekeeper.model import RequestedTime
from tablekeeper.model.results import Result

__all__ = ["CleanResult"]


@dataclass(frozen=True, slots=True)
class CleanResult(Result):
    """A clean that completed.

    `bytes` is None for a Java plan, which does not say. `finished_before` are cleans that others had left
    unfinished and that were executed first; `rolled_back` are writes that had died. `notes` tell what became of the
    metadata table's own compaction.
    """

    instant: RequestedTime
    policy: str
    files_deleted: int
    bytes: int | None
    partitions: tuple[str, ...]
    deleted_partitions: tuple[str, ...] = ()
    earliest_retained: str = ""
    was_resumed: bool = False
    finished_before: tuple[RequestedTime, ...] = ()
    rolled_back: tuple[RequestedTime, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    lock_held_s: float = 0.0

    def __repr__(self) -> str:
        size = "" if self.bytes is None else f" ({self.bytes:,} bytes)"
        lines = [f"clean {self.instant}: {self.files_deleted} files{size} deleted in {len(self.partitions)} partitions"]
        if self.deleted_partitions:
            lines.append(f"  partitions that are gone: {', '.join(self.deleted_partitions)}")
        if self.earliest_retained:
            lines.append(f"  readable from {self.earliest_retained} on")
        for name, instants in (("finished before", self.finished_before), ("rolled back", self.rolled_back)):
            if instants:
                lines.append(f"  {name}: {', '.join(each.value for each in instants)}")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)
