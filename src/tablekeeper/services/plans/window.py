"""Which partitions a plan has to look into: those touched since the last plan of the service, and those it left open.

RFC-83, for compaction, log compaction and clustering alike. The window of a new plan begins with the requested time of
the last completed plan of the same service, and contains every instant that completed since. The last plan is the one
with the greatest requested time: it saw everything that completed before it, and recorded as missing what it left out.

So that this holds for every plan, a plan records as missing
- partitions with file groups in another plan, because the other one may be cancelled later,
- partitions touched while it was being made, whose commits completed before its requested time,
- partitions that its strategy filtered out or cut short, if the strategy would take them another time.

This module also handles everything else that can create work without a commit in the window: rollbacks, restores,
commits that were archived although they completed in the window, plans of schedulers that do not follow the rules
above, and strategies that now take what they left out before. If the window cannot be trusted, all partitions are
listed, and `why_full` says why. The number of storage calls depends on the instants of the window, not on the
partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tablekeeper.config.service_settings import SCOPE_PARAM
from tablekeeper.errors import CorruptTableError, NotFoundError
from tablekeeper.format.plans import (
    RollbackMetadata,
    decode_rollback_metadata,
)
from tablekeeper.model import (
    Action,
    CommitMetadata,
    CompletionTime,
    Instant,
    PlanOutline,
    RequestedTime,
    ServiceKind,
    State,
)
from tablekeeper.services.plans.service import PartitionChoice, Service
from tablekeeper.snapshot.slices import Files
from tablekeeper.snapshot.snapshot import load_partition_files, load_partitions
from tablekeeper.timeline import Timeline, instant_path, load_commit_metadata, load_content, load_instant_files
from tablekeeper.timeline.history import archived_completions, iterate_history
from tablekeeper.timeline.plans import load_pending_outline, load_plan_outline
from tablekeeper.txn.environment import TableEnvironment, next_time

__all__ = [
    "PlanningWindow",
    "choose_partitions",
    "load_completed_plans",
    "load_planning_window",
    "pending_record",
    "recorded_pending",
]

_PENDING_KEY = "tablekeeper.planning.pending"


@dataclass(frozen=True, slots=True)
class PlanningWindow:
    """Partitions that may need work, and the reasons.

    The window is [`since`, `until`): completion times of instants, from the requested time of the last completed plan.
    For a full listing only `why_full` is known. `instants` are those in the window, `commits` the metadata of the
    writes among them. `left_open` are partitions about which the window's instants do not say everything. `listed` are
    the files of all partitions if directories were listed.
    """

    since: RequestedTime | None
    until: RequestedTime
    partitions: tuple[str, ...]
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_full: bool = False
    why_full: str = ""
    instants: tuple[Instant, ...] = ()
    commits: tuple[tuple[Instant, CommitMetadata], ...] = field(default=(), repr=False)
    left_open: frozenset[str] = frozenset()
    listed: Mapping[str, Files] | None = field(default=None, repr=False)


class _UntrustedWindowError(Exception):
    """The window cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class _LastPlan:
    """The last completed plan."""

    instant: Instant
    missing: tuple[str, ...]
    outline: PlanOutline

    @property
    def is_ours(self) -> bool:
        """Whether it follows the rules of this module about missing partitions."""
        return SCOPE_PARAM in self.outline.params

    @property
    def since(self) -> CompletionTime:
        # The window compares completion times with a requested time: that is the rule itself.
        return CompletionTime(self.instant.requested_at.value)


def load_planning_window(
    environment: TableEnvironment,
    timeline: Timeline,
    kind: ServiceKind,
    *,
    incremental: bool,
    scope: str = "",
) -> PlanningWindow:
    """The partitions that a plan of this kind, made now, has to look into.

    `scope` is that of the strategy; where it is given and the last plan had another one, all partitions are listed.
    """
    until = RequestedTime(next_time(environment, timeline))
    try:
        if not incremental:
            raise _UntrustedWindowError("incremental planning is switched off")
        last = _load_last_plan(environment, timeline, kind)
        _refuse_other_scope(last, scope)
        return _load_window(environment, timeline, last, until)
    except _UntrustedWindowError as reason:
        found = load_partition_files(environment.storage, environment.config, timeline, runtime=environment.runtime)
        listed = found if isinstance(found, Mapping) else None
        return PlanningWindow(None, until, tuple(sorted(found)), is_full=True, why_full=str(reason), listed=listed)


def choose_partitions(
    environment: TableEnvironment, timeline: Timeline, service: Service, window: PlanningWindow
) -> PartitionChoice:
    """The partitions of the window that the service chooses. If it ranks partitions, it ranks all of the table.

    So it chooses from the window what it would choose from it in a full listing. This needs only names: one read of the
    metadata table, or, without one, the directories.
    """
    if window.is_full or not window.partitions or not service.strategy.ranks_partitions:
        return service.strategy.choose_partitions(window.partitions)
    listed = load_partitions(environment.storage, environment.config, timeline, runtime=environment.runtime)
    # Partitions of the window that are gone have no rank: a full listing would not have them either.
    choice = service.strategy.choose_partitions(tuple(sorted(listed)))
    inside = frozenset(window.partitions)
    return PartitionChoice(
        tuple(each for each in choice.chosen if each in inside),
        tuple(each for each in choice.left_out if each.partition in inside),
    )


def load_completed_plans(environment: TableEnvironment, timeline: Timeline, kind: ServiceKind) -> tuple[Instant, ...]:
    """Completed instants of this service, by requested time.

    A completed compaction is a commit like any other; only its requested file, which stays, shows what it was.
    """
    candidates = [instant for instant in timeline.completed if instant.action is kind.action.completed_as]
    if not candidates:
        return ()
    planned = {
        instant.requested_at
        for instant in load_instant_files(environment.storage, environment.config)
        if instant.action is kind.action and instant.state is State.REQUESTED
    }
    return tuple(instant for instant in candidates if instant.requested_at in planned)


def pending_record(timeline: Timeline) -> dict[str, str]:
    """The instants that are pending when a plan is published, for its extra metadata.

    Only these can complete in the next window and yet be archived before the plan, because they began before it.
    Without this record the archive has to be searched.
    """
    pending = [i for i in timeline.pending if i.action.writes_data or i.action is Action.ROLLBACK]
    return {_PENDING_KEY: ",".join(instant.requested_at.value for instant in pending)}


def recorded_pending(extra: Mapping[str, str]) -> frozenset[RequestedTime]:
    """The instants of the record in a plan's extra metadata; none if it has none."""
    return frozenset(RequestedTime(value) for value in extra.get(_PENDING_KEY, "").split(",") if value)


def _load_last_plan(environment: TableEnvironment, timeline: Timeline, kind: ServiceKind) -> _LastPlan:
    completed = load_completed_plans(environment, timeline, kind)
    if not completed:
        raise _UntrustedWindowError(f"no completed {kind.value} on the active timeline")
    last = completed[-1]
    if timeline.is_archived(last.requested_at):
        # A savepoint can keep an instant on the timeline from which later ones have been archived.
        raise _UntrustedWindowError(f"{kind.value} {last.requested_at} is older than the rest of the active timeline")
    requested = Instant(last.requested_at, kind.action, State.REQUESTED)
    try:
        outline = load_plan_outline(environment.storage, environment.config, requested)
    except NotFoundError as error:
        raise _UntrustedWindowError(f"the plan of {kind.value} {last.requested_at} is gone") from error
    except CorruptTableError as error:
        raise _UntrustedWindowError(f"the plan of {kind.value} {last.requested_at} cannot be read ({error})") from error
    if outline.missing is None:
        raise _UntrustedWindowError(f"the plan of {kind.value} {last.requested_at} does not say what it left out")
    return _LastPlan(last, outline.missing, outline)


def _refuse_other_scope(last: _LastPlan, scope: str) -> None:
    recorded = last.outline.params.get(SCOPE_PARAM, "")
    if scope and recorded and scope != recorded:
        raise _UntrustedWindowError(f"plan {last.instant.requested_at} was made with other settings")


def _load_window(
    environment: TableEnvironment, timeline: Timeline, last: _LastPlan, until: RequestedTime
) -> PlanningWindow:
    selected = _select(timeline, last, until)
    _refuse_restore(timeline, last)
    _refuse_archived(environment, timeline, last)
    since = last.instant.requested_at
    reasons: dict[str, list[str]] = defaultdict(list)
    try:
        commits = _load_commits(environment, selected.writes)
        for partition, rollback in _load_rolled_back(environment, last, selected.rollbacks):
            reasons[partition].append(f"rolled back by {rollback.requested_at}")
    except NotFoundError as error:
        raise _UntrustedWindowError(f"{error.path} was archived meanwhile") from error
    for partition in last.missing:
        reasons[partition].append(f"missing since {since}")
    for partition, plan in _load_planned_before(environment, timeline, last):
        reasons[partition].append(f"planned by {plan.requested_at} before {since}")
    left_open = frozenset(reasons)
    for partition, touching in _touched(commits).items():
        reasons[partition][:0] = [f"touched by {instant.requested_at}" for instant in touching]
    found = {partition: tuple(dict.fromkeys(reasons[partition])) for partition in sorted(reasons)}
    return PlanningWindow(
        since,
        until,
        tuple(found),
        found,
        instants=(*selected.writes, *selected.rollbacks),
        commits=commits,
        left_open=left_open,
    )


@dataclass(frozen=True, slots=True)
class _Selected:
    writes: tuple[Instant, ...]
    rollbacks: tuple[Instant, ...]


def _select(timeline: Timeline, last: _LastPlan, until: RequestedTime) -> _Selected:
    """Instants whose completion time is in the window, except the last plan itself, which left nothing to do."""
    inside = partial(_lies_in, completed_from=last.since, completed_until=CompletionTime(until.value))
    writes = tuple(i for i in timeline.completed_writes_by_completion if inside(i) and i != last.instant)
    rollbacks = tuple(i for i in timeline.completed if i.action is Action.ROLLBACK and inside(i))
    return _Selected(writes, rollbacks)


def _lies_in(
    instant: Instant, *, completed_from: CompletionTime | None, completed_until: CompletionTime | None
) -> bool:
    at = instant.completed_at
    return (
        at is not None
        and (completed_from is None or at >= completed_from)
        and (completed_until is None or at < completed_until)
    )


def _load_commits(
    environment: TableEnvironment, instants: Sequence[Instant]
) -> tuple[tuple[Instant, CommitMetadata], ...]:
    load = partial(load_commit_metadata, environment.storage, environment.config)
    return tuple(zip(instants, environment.runtime.threads.map(load, instants), strict=True))


def _touched(commits: Iterable[tuple[Instant, CommitMetadata]]) -> dict[str, tuple[Instant, ...]]:
    touched: dict[str, list[Instant]] = defaultdict(list)
    for instant, metadata in commits:
        for partition in metadata.partitions:
            touched[partition].append(instant)
    return {partition: tuple(touched[partition]) for partition in sorted(touched)}


def _refuse_restore(timeline: Timeline, last: _LastPlan) -> None:
    """A restore undoes plans and commits on either side of the window: work may be anywhere."""
    for instant in timeline:
        if instant.action is not Action.RESTORE:
            continue
        if instant.completed_at is None or instant.completed_at >= last.since:
            raise _UntrustedWindowError(f"restore {instant.requested_at} came after plan {last.instant.requested_at}")


def _refuse_archived(environment: TableEnvironment, timeline: Timeline, last: _LastPlan) -> None:
    """A commit that began before the last plan and completed after it can be archived before the plan is."""
    storage, config = environment.storage, environment.config
    since = last.instant.requested_at
    if _PENDING_KEY not in last.outline.extra:
        for archived in iterate_history(storage, config, with_contents=False):
            completed_at = archived.instant.completed_at
            if completed_at is not None and completed_at >= last.since:
                raise _UntrustedWindowError(
                    f"{archived.instant.requested_at} completed after plan {since} and was archived"
                )
        return
    completion = archived_completions(storage, config)
    for instant in recorded_pending(last.outline.extra):
        if timeline.find(instant) is None and completion(instant) is not None:
            raise _UntrustedWindowError(f"{instant} completed after plan {since} and was archived")


def _load_rolled_back(
    environment: TableEnvironment, last: _LastPlan, rollbacks: Sequence[Instant]
) -> Iterable[tuple[str, Instant]]:
    """Partitions in which rollbacks deleted files: the older files there may be work again."""
    found = environment.runtime.threads.map(partial(_load_rollback, environment), rollbacks)
    for rollback, metadata in zip(rollbacks, found, strict=True):
        for target in metadata.instants:
            if target.action == Action.REPLACE_COMMIT.value:
                # File groups that it had replaced are back, in partitions that need not hold a file of it.
                raise _UntrustedWindowError(
                    f"rollback {rollback.requested_at} undid the replace commit {target.commit_time}"
                )
            is_older = RequestedTime(target.commit_time) < last.instant.requested_at
            if not last.is_ours and target.is_plan and is_older:
                raise _UntrustedWindowError(f"rollback {rollback.requested_at} gave up the plan {target.commit_time}")
        yield from ((partition, rollback) for partition in metadata.partitions)


def _load_rollback(environment: TableEnvironment, rollback: Instant) -> RollbackMetadata:
    content = load_content(environment.storage, environment.config, rollback)
    return decode_rollback_metadata(content, file=instant_path(environment.config, rollback))


def _load_planned_before(
    environment: TableEnvironment, timeline: Timeline, last: _LastPlan
) -> Iterable[tuple[str, Instant]]:
    """Partitions of plans that were pending when another program made the last plan and perhaps did not record them."""
    if last.is_ours:
        return
    for instant in timeline.pending_plans:
        if instant.requested_at < last.instant.requested_at:
            groups = load_pending_outline(
                environment.storage, environment.config, instant, with_groups=True
            ).file_groups
            yield from ((partition, instant) for partition in sorted({group.partition for group in groups}))
