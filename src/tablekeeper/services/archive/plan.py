"""Which instants may leave the active timeline. Pure: the same view gives the same plan.

The rules are those of Java's archiver. If more commits are completed than `keep_max`, the oldest go until `keep_min`
are left, together with the cleans and rollbacks before the last of them. Savepoints, restores and indexing stay.
A *bound* is an instant at which archiving has to stop, with the reason:

- the newest completed commit before the oldest pending instant: an instant that lies before the active timeline counts
  as completed, and a pending one must never do so. Unlike Java, pending instants of every action count;
- the first commit that completed after the oldest pending write began, which will be compared with it; and the commit
  that completed last, because the times of all that follow must be later. Java keeps neither;
- on a merge-on-read table, the delta commits by whose number the next compaction is triggered;
- the first replace commit whose replaced files the last clean may have left: without it on the active timeline
  they would show again. Whether they are really gone is looked up as well before the commit goes (see `evidence.py`);
- the first commit that the metadata table has not compacted; with a metadata table that was never compacted, nothing
  goes at all. Nor does anything of the metadata table's own timeline that it has not compacted, or that the table's
  active timeline has;
- the first savepoint;
- on request, what the last clean retained.

Two rules are ours. While a restore is pending nothing is archived. And the last plan of each table service stays,
with every commit that completed after it, because incremental planning starts from there, as long as that keeps the
active timeline below twice `keep_max` commits; Java lets it go and lists all partitions once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tablekeeper.config.archive_settings import ArchiveSettings
from tablekeeper.config.clean_settings import CleanPolicy
from tablekeeper.model import Action, Instant, RequestedTime, ServiceKind
from tablekeeper.timeline import Timeline, format_time, parse_time

__all__ = ["ActiveAction", "ArchivePlan", "ArchiveView", "Bound", "MetadataState", "RetainedByClean", "plan_archive"]

_KEPT_WITH_CLEANING = 2
_MAX_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ActiveAction:
    """A completed instant with all its files: `completed_files` has several if two processes completed one clean.

    The files are named as instants in the state and with the completion time that their names have.
    """

    instant: Instant
    completed_files: tuple[Instant, ...]
    pending_files: tuple[Instant, ...] = ()
    size: int = 0

    @property
    def begun_as(self) -> Action:
        """The action that was requested: a finished compaction is a commit that began as a compaction."""
        return self.pending_files[0].action if self.pending_files else self.instant.action


@dataclass(frozen=True, slots=True)
class RetainedByClean:
    """What the last completed clean left: files that commits from `earliest` on need, and those of `savepoints`.

    A clean by file versions has no `earliest`.
    """

    clean: RequestedTime
    earliest: RequestedTime | None
    savepoints: tuple[RequestedTime, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataState:
    """How far the metadata table is compacted; None if it never was."""

    compacted_at: RequestedTime | None


@dataclass(frozen=True)
class ArchiveView:
    """Everything that a plan depends on.

    `metadata` is None if the table has no metadata table. `data_timeline` is set for the timeline of a metadata table:
    it is the timeline of the table that it describes.
    """

    timeline: Timeline
    actions: tuple[ActiveAction, ...]
    is_mor: bool
    zone: str
    last_clean: RetainedByClean | None = None
    metadata: MetadataState | None = None
    data_timeline: Timeline | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Instants from `at` on stay, because of `reason`."""

    at: RequestedTime
    reason: str


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What to archive, oldest first, and what decided it.

    `bounds` hold archiving back, the lowest first. `left` counts instants that may go too, but not in this run.
    """

    actions: tuple[ActiveAction, ...]
    commits: int
    keep_min: int
    keep_max: int
    bounds: tuple[Bound, ...] = ()
    left: int = 0

    @property
    def is_due(self) -> bool:
        """Whether there are more commits than may stay."""
        return self.commits > self.keep_max

    @property
    def reason(self) -> str:
        """Why no more is archived."""
        if not self.is_due:
            return f"{self.commits} completed commits are on the active timeline, {self.keep_max} may be"
        commits = sum(action.instant.action.writes_data for action in self.actions)
        if self.left:
            return f"{self.left} more instants can go in the next run"
        if self.bounds and self.commits - commits > self.keep_min:
            return f"{self.bounds[0].reason} ({self.bounds[0].at})"
        return f"{self.keep_min} completed commits stay on the active timeline"


def plan_archive(view: ArchiveView, settings: ArchiveSettings) -> ArchivePlan:
    """What may leave the active timeline now, at most as much as one run may move."""
    commits = view.timeline.completed_writes
    keep_min, keep_max = _limits(view, settings)
    if len(commits) <= keep_max:
        return ArchivePlan((), len(commits), keep_min, keep_max)
    bounds = tuple(sorted(_bounds(view, settings, keep_max), key=lambda bound: bound.at.order))
    free = [i for i in commits if not bounds or i.requested_at < bounds[0].at]
    chosen = {i.requested_at for i in free[: len(commits) - keep_min]}
    if not chosen:
        return ArchivePlan((), len(commits), keep_min, keep_max, bounds)
    last = max(chosen, key=lambda time: time.order)
    going = [action for action in view.actions if _goes(action.instant, chosen, last)]
    run = _one_run(going, settings.max_instants)
    return ArchivePlan(tuple(run), len(commits), keep_min, keep_max, bounds, left=len(going) - len(run))


def _goes(instant: Instant, chosen: set[RequestedTime], last: RequestedTime) -> bool:
    if instant.action.writes_data:
        return instant.requested_at in chosen
    return instant.action in (Action.CLEAN, Action.ROLLBACK) and instant.requested_at < last


def _one_run(actions: list[ActiveAction], max_instants: int) -> list[ActiveAction]:
    """As many of the oldest as fit into memory at once, and at least one."""
    run: list[ActiveAction] = []
    size = 0
    for action in actions[:max_instants]:
        size += action.size
        if run and size > _MAX_BYTES:
            break
        run.append(action)
    return run


def _limits(view: ArchiveView, settings: ArchiveSettings) -> tuple[int, int]:
    """How many commits stay, and from how many on some go: never fewer than the clean that comes next will look at."""
    retained = _retained_by_next_clean(view, settings)
    if retained is None:
        return settings.keep_min, settings.keep_max
    needed = sum(i.requested_at > retained for i in view.timeline.completed_writes) + _KEPT_WITH_CLEANING
    more = max(0, needed - settings.keep_min)
    return settings.keep_min + more, settings.keep_max + more


def _retained_by_next_clean(view: ArchiveView, settings: ArchiveSettings) -> RequestedTime | None:
    commits = view.timeline.completed_writes
    if settings.clean.policy is CleanPolicy.COMMITS and len(commits) > settings.clean.commits > 0:
        nth = commits[len(commits) - settings.clean.commits]
        pending = _first(i.requested_at for i in view.timeline.pending if i.action.writes_data)
        if pending is None or nth.requested_at <= pending:
            return nth.requested_at
        return _last(i.requested_at for i in commits if i.requested_at < pending)
    if settings.clean.policy is CleanPolicy.HOURS and commits:
        newest_ms = parse_time(commits[-1].requested_at.value, zone=view.zone)
        limit = RequestedTime(format_time(newest_ms - settings.clean.hours * 3_600_000, zone=view.zone))
        return _first(i.requested_at for i in commits if i.requested_at >= limit)
    return None


def _bounds(view: ArchiveView, settings: ArchiveSettings, keep_max: int) -> Iterator[Bound]:
    yield from _pending_bounds(view)
    if view.is_mor and settings.compact_after is not None:
        yield from _compaction_bound(view, settings.compact_after)
    yield from _replace_bound(view, settings)
    yield from _metadata_bounds(view)
    savepoint = _first(i.requested_at for i in view.timeline.completed if i.action is Action.SAVEPOINT)
    if savepoint is not None:
        yield Bound(savepoint, "a savepoint protects this commit and those after it")
    if settings.stop_at_clean and view.last_clean is not None and view.last_clean.earliest is not None:
        yield Bound(view.last_clean.earliest, "the last clean retained the files of this commit and those after it")
    if settings.keep_last_plans:
        yield from _plan_bounds(view, keep_max)


def _pending_bounds(view: ArchiveView) -> Iterator[Bound]:
    if any(i.action is Action.RESTORE for i in view.timeline.pending):
        yield Bound(view.timeline.instants[0].requested_at, "a restore is pending")
    pending = _first_instant(view.timeline.pending)
    if pending is not None:
        before = _last(i.requested_at for i in view.timeline.completed_writes if i.requested_at < pending.requested_at)
        yield Bound(
            before or pending.requested_at, f"the newest commit before {pending}, which is pending, has to stay"
        )
    yield from _completion_bounds(view)


def _completion_bounds(view: ArchiveView) -> Iterator[Bound]:
    """By completion, which need not be the order of the timeline."""
    if view.timeline.completed_writes:
        last = view.timeline.completed_writes_by_completion[-1]
        yield Bound(last.requested_at, "later times are told from the commit that completed last")
    writer = _first_instant(i for i in view.timeline.pending if i.action.writes_data)
    if writer is not None:
        at = _first(
            i.requested_at
            for i in view.timeline.completed_writes
            if i.completed_at is not None and i.completed_at.order > writer.requested_at.order
        )
        if at is not None:
            yield Bound(at, f"this commit completed while {writer} was under way, which is compared with it")


def _compaction_bound(view: ArchiveView, compact_after: int) -> Iterator[Bound]:
    """As Java counts: the commits of a merge-on-read table are its compactions."""
    deltas = [i for i in view.timeline if i.action is Action.DELTA_COMMIT]
    compactions = [i for i in view.timeline.completed if i.action is Action.COMMIT]
    if compactions:
        last = compactions[-1]
        deltas = [i for i in deltas if (i.completed_at or i.requested_at).order > last.requested_at.order]
    if not deltas and not compactions:
        return
    enough = len(deltas) >= compact_after > 0
    at = deltas[len(deltas) - compact_after] if enough else (compactions or deltas)[-1 if compactions else 0]
    yield Bound(at.requested_at, "the delta commits that trigger the next compaction are counted from here")


def _replace_bound(view: ArchiveView, settings: ArchiveSettings) -> Iterator[Bound]:
    replaces = [i.requested_at for i in view.timeline if i.action in (Action.REPLACE_COMMIT, Action.CLUSTERING)]
    clean = view.last_clean
    if clean is None:
        first = _first(replaces)
        reason = "no clean has removed the files that this commit replaced"
    else:
        lower = clean.earliest or clean.clean
        # Java's rule for a savepoint that is deleted later: files that the clean spared for its sake are still there.
        saved = _first(sorted(clean.savepoints, key=lambda time: time.order))
        by_versions = settings.clean.policy is CleanPolicy.VERSIONS
        if saved is not None and clean.earliest is not None and not by_versions and saved < clean.earliest:
            lower = saved
        first = _first(time for time in replaces if time >= lower)
        reason = f"the last clean ({clean.clean}) did not look at the files that this commit replaced"
    if first is not None:
        yield Bound(first, reason)


def _metadata_bounds(view: ArchiveView) -> Iterator[Bound]:
    if view.metadata is not None:
        at = view.metadata.compacted_at
        if at is None:
            first = view.timeline.instants[0].requested_at
            yield Bound(first, "the metadata table was never compacted, and its logs count by this timeline")
        else:
            after = [i for i in view.timeline.completed_writes if i.completed_at and i.completed_at.order > at.order]
            if after:
                yield Bound(after[0].requested_at, "the metadata table has not compacted this commit yet")
    if view.data_timeline is not None:
        yield from _compacted_bound(view)
        commits = [i for i in view.data_timeline if i.action.writes_data]
        for instant in (_first_instant(commits), _first_instant(view.data_timeline.pending)):
            if instant is not None:
                yield Bound(instant.requested_at, "the table's own timeline begins here")


def _compacted_bound(view: ArchiveView) -> Iterator[Bound]:
    """On the timeline of a metadata table: Java reads logs of delta commits that it finds there, and no others."""
    compaction = _last(i.requested_at for i in view.timeline.completed if i.action is Action.COMMIT)
    if compaction is None:
        yield Bound(view.timeline.instants[0].requested_at, "the metadata table was never compacted")
        return
    later = (i for i in view.timeline.completed_writes if i.completed_at and i.completed_at.order > compaction.order)
    first = _first_instant(later)
    if first is not None:
        yield Bound(first.requested_at, f"the last compaction ({compaction}) did not hold this delta commit")


def _plan_bounds(view: ArchiveView, keep_max: int) -> Iterator[Bound]:
    commits = view.timeline.completed_writes
    for service in (kind.action for kind in ServiceKind):
        last = _last(action.instant.requested_at for action in view.actions if action.begun_as is service)
        if last is None:
            continue
        # By completion: a commit that began before the plan and completed after it is what the next one looks at.
        at = _first(i.requested_at for i in commits if i.completed_at and i.completed_at.order > last.order)
        if at is not None and sum(i.requested_at >= at for i in commits) <= 2 * keep_max:
            yield Bound(at, f"the next {service.value} is planned from the last one ({last})")


def _first(times: Iterable[RequestedTime]) -> RequestedTime | None:
    return next(iter(times), None)


def _last(times: Iterable[RequestedTime]) -> RequestedTime | None:
    found = list(times)
    return found[-1] if found else None


def _first_instant(instants: Iterable[Instant]) -> Instant | None:
    return next(iter(instants), None)
