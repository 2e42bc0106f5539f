"""What a clean would do and why, without doing it; and whether one is due."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tablekeeper.config.clean_settings import CleanPolicy, CleanSettings
from tablekeeper.model import Action, Instant, RequestedTime
from tablekeeper.services.clean.plan import CleanDraft, Fate
from tablekeeper.services.clean.publish import Drafted, load_draft
from tablekeeper.services.clean.view import load_last_clean
from tablekeeper.timeline import Timeline
from tablekeeper.txn.environment import TableEnvironment
from tablekeeper.txn.rollback import failed_writes

__all__ = ["CleanExplanation", "Tally", "explain_clean", "is_clean_due"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Tally:
    """Slices of one partition that share a fate."""

    partition: str
    fate: Fate
    slices: int
    files: tuple[str, ...]
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "goes": self.fate.goes,
            "reason": self.fate.value,
            "slices": self.slices,
            "files": list(self.files),
            "bytes": self.bytes,
        }

    def __str__(self) -> str:
        where = self.partition or "the table"
        return f"{where}: {self.slices} slices, {len(self.files)} files, {self.bytes:,} bytes: {self.fate.value}"


@dataclass(frozen=True, slots=True)
class CleanExplanation:
    """A dry run. `unfinished` cleans and `dead` writes would be dealt with first, which may change the rest.

    `window` says why these partitions were looked into; `held_back_by` is the pending instant that keeps the oldest
    retained commit from moving on.
    """

    kept: str
    earliest_retained: RequestedTime | None
    window: str
    partitions: tuple[str, ...]
    goes: tuple[Tally, ...]
    stays: tuple[Tally, ...]
    deleted_partitions: tuple[str, ...] = ()
    held_back_by: str | None = None
    unfinished: tuple[RequestedTime, ...] = ()
    dead: tuple[RequestedTime, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that would be deleted, relative to the table."""
        return tuple(file for each in self.goes for file in each.files)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.goes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "earliest_retained": self.earliest_retained.value if self.earliest_retained is not None else None,
            "held_back_by": self.held_back_by,
            "window": self.window,
            "partitions": list(self.partitions),
            "files": len(self.files),
            "bytes": self.bytes,
            "goes": [each.to_dict() for each in self.goes],
            "stays": [each.to_dict() for each in self.stays],
            "deleted_partitions": list(self.deleted_partitions),
            "unfinished": [each.value for each in self.unfinished],
            "dead": [each.value for each in self.dead],
        }

    def __repr__(self) -> str:
        lines = [f"clean, keeping {self.kept}: {len(self.files)} files ({self.bytes:,} bytes) would go"]
        if self.earliest_retained is not None:
            lines.append(f"  readable from {self.earliest_retained} on")
        if self.held_back_by is not None:
            lines.append(f"  held back by {self.held_back_by}")
        lines.append(f"  {len(self.partitions)} partitions looked into: {self.window}")
        for name, instants in (("finished first", self.unfinished), ("rolled back first", self.dead)):
            if instants:
                lines.append(f"  {name}: {', '.join(each.value for each in instants)}")
        for name, tallies in (("goes", self.goes), ("stays", self.stays)):
            lines += [f"  {name}  {each}" for each in tallies[:_SHOWN]]
            if len(tallies) > _SHOWN:
                lines.append(f"  … and {len(tallies) - _SHOWN} more")
        lines += [f"  partition {each} would go" for each in self.deleted_partitions]
        return "\n".join(lines)


def explain_clean(environment: TableEnvironment, settings: CleanSettings) -> CleanExplanation:
    """What `execute_clean` would do with the table as it is now. Changes nothing."""
    drafted = load_draft(environment, settings)
    timeline = drafted.view.timeline
    tallies = _tally(drafted.draft)
    held_back = _holding_back(drafted)
    return CleanExplanation(
        kept=settings.kept,
        earliest_retained=drafted.draft.retained,
        window=drafted.scope.reason,
        partitions=tuple(drafted.view.files),
        goes=tuple(each for each in tallies if each.fate.goes),
        stays=tuple(each for each in tallies if not each.fate.goes),
        deleted_partitions=drafted.draft.emptied,
        held_back_by=str(held_back) if held_back is not None else None,
        unfinished=tuple(i.requested_at for i in timeline.pending if i.action is Action.CLEAN),
        dead=tuple(i.requested_at for i in failed_writes(environment, timeline)),
    )


def is_clean_due(environment: TableEnvironment, settings: CleanSettings) -> bool:
    """Whether enough commits completed since the last clean; for callers that clean after each commit."""
    timeline = environment.load_timeline()
    last = load_last_clean(environment, timeline)
    known = last.metadata.last_completed_commit if last is not None else ""
    commits = [i for i in timeline.completed_writes if not known or i.requested_at.value > known]
    return len(commits) >= settings.trigger_commits


def _tally(draft: CleanDraft) -> list[Tally]:
    slices: dict[tuple[str, Fate], int] = defaultdict(int)
    files: dict[tuple[str, Fate], list[str]] = defaultdict(list)
    sizes: dict[tuple[str, Fate], int] = defaultdict(int)
    for verdict in draft.verdicts:
        key = (verdict.partition, verdict.fate)
        slices[key] += 1
        files[key] += [file.path for file in verdict.files]
        sizes[key] += verdict.size
    ordered = sorted(slices, key=lambda key: (key[0], key[1].value))
    return [Tally(*key, slices[key], tuple(files[key]), sizes[key]) for key in ordered]


def _holding_back(drafted: Drafted) -> Instant | None:
    """The pending instant that keeps more commits readable than were asked for."""
    settings, timeline = drafted.draft.settings, drafted.view.timeline
    if settings.policy is not CleanPolicy.COMMITS or not timeline.pending:
        return None
    kept = _count_from(timeline, drafted.view.earliest)
    first = next((i for i in timeline.pending if i.action.writes_data), None)
    return first if kept > settings.commits else None


def _count_from(timeline: Timeline, earliest: Instant | None) -> int:
    return sum(1 for i in timeline.completed_writes if earliest is None or i.requested_at >= earliest.requested_at)
