"""What an archive did, or would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tablekeeper.model import Instant
from tablekeeper.services.archive.plan import Bound

__all__ = ["ArchiveResult"]

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The instants that left the active timeline, or with `dry_run` would leave it, oldest first.

    `files` were written to the archived timeline, merged ones included; `bytes_written` is their size. `active` is how
    many completed commits stay on the active timeline, and `reason` says why not more was archived; `bounds` are all
    instants at which archiving has to stop, the first one first. `metadata_instants` left the timeline of the metadata
    table. `notes` tell what became of the metadata table's own compaction.
    """

    instants: tuple[Instant, ...] = ()
    files: tuple[str, ...] = ()
    bytes_written: int = 0
    active: int = 0
    reason: str = ""
    bounds: tuple[Bound, ...] = ()
    metadata_instants: tuple[Instant, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    lock_held_s: float = 0.0
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "instants": [_row(instant) for instant in self.instants],
            "files": list(self.files),
            "bytes_written": self.bytes_written,
            "active": self.active,
            "reason": self.reason,
            "bounds": [{"instant": bound.at.value, "reason": bound.reason} for bound in self.bounds],
            "metadata_instants": [_row(instant) for instant in self.metadata_instants],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "lock_held_s": round(self.lock_held_s, 3),
            "dry_run": self.dry_run,
        }

    def __repr__(self) -> str:
        done = "would be archived" if self.dry_run else "archived"
        lines = [f"{len(self.instants)} instants {done}, {self.active} completed commits stay: {self.reason}"]
        lines += [f"  {instant.requested_at} {instant.action.value}" for instant in self.instants[:_SHOWN]]
        if len(self.instants) > _SHOWN:
            lines.append(f"  … and {len(self.instants) - _SHOWN} more, up to {self.instants[-1].requested_at}")
        if self.metadata_instants:
            lines.append(f"  {len(self.metadata_instants)} instants of the metadata table {done}")
        if self.files:
            lines.append(f"  {len(self.files)} files written, {self.bytes_written:,} bytes, {self.seconds:.2f} s")
        lines += [f"  {note}" for note in self.notes]
        if self.dry_run:
            lines += [f"  stops at {bound.at}: {bound.reason}" for bound in self.bounds]
        return "\n".join(lines)


def _row(instant: Instant) -> dict[str, str | None]:
    return {
        "instant": instant.requested_at.value,
        "action": instant.action.value,
        "completed_at": instant.completed_at.value if instant.completed_at is not None else None,
    }
