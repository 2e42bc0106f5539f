"""Makes a plan and puts it on the timeline: the first half of every plan's life.

Planning happens without the lock, on the timeline as it was at the beginning. Publishing happens under the lock: new
commits are read, and the draft is updated with them. A slice that only got more log files includes them, because a
commit that completed before the plan's requested time belongs to the slices of the plan; work whose files changed in
any other way is dropped. Partitions touched by the new commits are recorded as missing: the window of the next plan
begins at this plan's requested time, and would not see them. If commits have left the timeline, by a rollback or an
archive, the new commits cannot be determined, and the plan is made again.

While a writer of another program has not yet announced what it touches, no plan is published: we wait for it for a
limited time (see `foreign_writes.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tablekeeper.errors import NotFoundError
from tablekeeper.model import (
    CommitMetadata,
    FileGroupId,
    FileSlice,
    Instant,
    Operation,
    Plan,
    PlanFlags,
    RequestedTime,
    ServiceKind,
    Work,
    WriteStat,
)
from tablekeeper.services.plans.foreign_writes import ForeignWrites, await_announcements, load_foreign_writes
from tablekeeper.services.plans.input_check import CHECKED, refuse_damaged_draft
from tablekeeper.services.plans.service import Draft, LeftOut, Service
from tablekeeper.services.plans.window import PlanningWindow, choose_partitions, load_planning_window, pending_record
from tablekeeper.snapshot.slices import decode_partition_files
from tablekeeper.snapshot.snapshot import Snapshot, load_snapshot
from tablekeeper.timeline import Timeline, create_requested, load_commit_metadata
from tablekeeper.timeline.plans import encode_plan
from tablekeeper.txn.commit import refuse_during_restore
from tablekeeper.txn.concurrent_commits import load_planned_groups
from tablekeeper.txn.environment import TableEnvironment, next_time
from tablekeeper.txn.publish import confirm_pending
from tablekeeper.txn.rollback import withdraw_idle_rollbacks

__all__ = ["Drafted", "ScheduledPlan", "load_draft", "schedule_plan"]

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft with its basis: a snapshot of the table, and the examined partitions with the reasons."""

    draft: Draft
    window: PlanningWindow
    snapshot: Snapshot

    @property
    def timeline(self) -> Timeline:
        return self.snapshot.timeline


@dataclass(frozen=True, slots=True)
class ScheduledPlan:
    """A plan on the timeline, which any process can execute. `instant` identifies it."""

    instant: RequestedTime
    service: str
    file_groups: int
    bytes: int
    partitions: tuple[str, ...]
    missing_partitions: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    flags: PlanFlags

    def to_dict(self) -> dict[str, Any]:
        return {
            "instant": self.instant.value,
            "service": self.service,
            "file_groups": self.file_groups,
            "bytes": self.bytes,
            "partitions": list(self.partitions),
            "missing_partitions": list(self.missing_partitions),
            "mutable": self.flags.mutable,
            "cancellable": self.flags.cancellable,
        }

    def __repr__(self) -> str:
        return (
            f"{self.service} {self.instant} scheduled: {self.file_groups} file groups in {len(self.partitions)} "
            f"partitions, {self.bytes:,} bytes to read"
        )


def load_draft(
    environment: TableEnvironment,
    service: Service,
    *,
    flags: PlanFlags,
    incremental: bool,
    timeline: Timeline | None = None,
) -> Drafted:
    """What the service would do now, or on this timeline. Loads the partitions that may need work; changes nothing."""
    timeline = timeline or environment.load_timeline()
    window = load_planning_window(
        environment,
        timeline,
        service.kind,
        incremental=incremental and service.strategy.is_incremental,
        scope=service.strategy.scope,
    )
    choice = choose_partitions(environment, timeline, service, window)
    snapshot = _load_snapshot(environment, timeline, choice.chosen, window)
    planned = load_planned_groups(environment, timeline, with_cancellable=flags.cancellable)
    draft = service.plan(snapshot, planned=planned)
    return Drafted(replace(draft, left_out=(*choice.left_out, *draft.left_out)), window, snapshot)


def schedule_plan(
    environment: TableEnvironment,
    service: Service,
    *,
    flags: PlanFlags,
    incremental: bool,
    timeline: Timeline | None = None,
) -> ScheduledPlan | None:
    """Put a plan on the timeline, drafted on this `timeline` if one was just loaded; None if there is nothing to do.

    `CorruptTableError` if a file that it would rewrite is missing or cut off; nothing is on the timeline then.
    """
    flags = replace(flags, scheduled_by=flags.scheduled_by or environment.runtime.process_name)
    until_s = environment.runtime.clock.monotonic_s() + environment.concurrency.announcement_wait_ms / 1000
    rounds_left = _ROUNDS
    while rounds_left:
        drafted = load_draft(environment, service, flags=flags, incremental=incremental, timeline=timeline)
        timeline = None
        if not drafted.draft.work:
            return None
        try:
            refuse_damaged_draft(environment, drafted.draft, drafted.snapshot, drafted.window)
        except NotFoundError:
            # A commit of the draft's timeline was rolled back or archived in the meantime.
            rounds_left -= 1
            continue
        withdraw_idle_rollbacks(environment, drafted.timeline)
        published = _publish(environment, service, drafted, flags)
        if isinstance(published, ScheduledPlan):
            return published
        if published is None:
            rounds_left -= 1
        else:
            await_announcements(environment, published.silent, until_s=until_s)
    return None


def _publish(
    environment: TableEnvironment, service: Service, drafted: Drafted, flags: PlanFlags
) -> ScheduledPlan | ForeignWrites | None:
    """The published plan; None if new commits left no work; or the writers to wait for."""
    with environment.locked() as held:
        timeline = held.load_timeline()
        requested_at = RequestedTime(next_time(held, timeline))
        refuse_during_restore(held, timeline, requested_at)
        if timeline.has_lost(drafted.timeline):
            return None
        foreign = load_foreign_writes(held, timeline)
        if foreign.silent:
            return foreign
        draft = _with_news(held, service, drafted, timeline, with_cancellable=flags.cancellable)
        theirs = frozenset(s.group for work in draft.work for s in work.slices if foreign.may_rewrite(s))
        draft = _without(draft, theirs, reason="announced by a running writer of another program")
        if not draft.work:
            return None
        plan = Plan(
            work=draft.work,
            flags=flags,
            missing=draft.missing,
            strategy=service.plan_strategy,
            extra={**pending_record(timeline), **CHECKED},
        )
        held.lease.check()
        requested = create_requested(
            held.storage,
            held.config,
            requested_at=requested_at,
            action=service.kind.action,
            content=encode_plan(plan, service.kind, spec=held.storage.spec),
        )
        confirm_pending(held, requested)
    return ScheduledPlan(
        instant=requested_at,
        service=service.kind.value,
        file_groups=len(plan.file_groups),
        bytes=plan.size,
        partitions=tuple(sorted({group.partition for group in plan.file_groups})),
        missing_partitions=draft.missing,
        left_out=draft.left_out,
        flags=flags,
    )


def _load_snapshot(
    environment: TableEnvironment, timeline: Timeline, partitions: Sequence[str], window: PlanningWindow
) -> Snapshot:
    return load_snapshot(
        environment.storage,
        environment.config,
        timeline,
        runtime=environment.runtime,
        partitions=partitions,
        listed=window.listed,
    )


def _with_news(
    environment: TableEnvironment, service: Service, drafted: Drafted, now: Timeline, *, with_cancellable: bool
) -> Draft:
    known = {i.requested_at for i in drafted.timeline.completed_writes}
    news = [i for i in now.completed_writes_by_completion if i.requested_at not in known]
    load = partial(load_commit_metadata, environment.storage, environment.config)
    metadata = environment.runtime.threads.map(load, news)
    draft = drafted.draft
    # A log compaction merges only the logs that it planned: between those no log of an older write, running or
    # completed, can appear.
    takes_logs = service.kind is not ServiceKind.LOG_COMPACTION
    for instant, commit in zip(news, metadata, strict=True):
        draft = _advance(draft, instant, commit, takes_logs=takes_logs)
    if now.pending == drafted.timeline.pending:
        return draft
    planned = load_planned_groups(environment, now, with_cancellable=with_cancellable)
    return _without(draft, planned, reason="in a plan that was scheduled meanwhile")


def _advance(draft: Draft, instant: Instant, commit: CommitMetadata, *, takes_logs: bool) -> Draft:
    """The draft after a commit that completed while it was being made."""
    news = tuple(
        LeftOut(partition, f"touched by {instant.requested_at} while the plan was made", comes_back=True)
        for partition in sorted(commit.partitions)
    )
    draft = replace(draft, left_out=(*draft.left_out, *news))
    changed = {FileGroupId(p, file_id) for p, ids in (commit.replaced or {}).items() for file_id in ids}
    added: dict[FileGroupId, list[WriteStat]] = {}
    for stat in commit.stats:
        if stat.is_log and commit.operation is not Operation.LOG_COMPACT:
            added.setdefault(stat.group, []).append(stat)
        else:
            changed.add(stat.group)
    draft = _without(draft, frozenset(changed), reason=f"changed by {instant.requested_at} while the plan was made")
    if not takes_logs:
        return draft
    work = tuple(
        replace(each, slices=tuple(_with_logs(file_slice, added) for file_slice in each.slices)) for each in draft.work
    )
    return replace(draft, work=work)


def _with_logs(file_slice: FileSlice, added: dict[FileGroupId, list[WriteStat]]) -> FileSlice:
    stats = added.get(file_slice.group)
    if not stats:
        return file_slice
    names = [(stat.file_name, stat.size) for stat in stats]
    logs = decode_partition_files(file_slice.group.partition, names).logs
    new = sorted((*file_slice.logs, *(log for log in logs if not log.is_cdc)), key=lambda log: log.order)
    # A slice without a base file is named after its first log.
    instant = file_slice.base_instant if file_slice.base is not None else new[0].instant
    return replace(file_slice, base_instant=instant, logs=tuple(new))


def _without(draft: Draft, groups: frozenset[FileGroupId], *, reason: str) -> Draft:
    """The draft without the work on these groups, whose partitions are left to the next plan."""
    kept: list[Work] = []
    left_out = list(draft.left_out)
    for work in draft.work:
        stale = work.file_groups & groups
        if not stale:
            kept.append(work)
        else:
            left_out.append(LeftOut(work.partition, reason, len(work.slices), work.size, comes_back=True))
    return replace(draft, work=tuple(kept), left_out=tuple(left_out))
