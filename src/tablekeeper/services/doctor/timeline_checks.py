"""What the timeline, the heartbeats, the markers and the lock show: who is writing, who died, and what is odd."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from tablekeeper.config.concurrency_settings import LockProvider
from tablekeeper.errors import CorruptTableError, TablekeeperError
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.services.doctor.report import Finding, Repair, RepairKind, Severity
from tablekeeper.services.doctor.view import TableView
from tablekeeper.timeline.plans import load_rollback_plan
from tablekeeper.txn.late_files import load_late_files

__all__ = ["check_heartbeats", "check_lock", "check_markers", "check_oddities", "check_pending"]

_LONG_HELD_S = 600.0
_FUTURE_S = 60.0


def check_pending(view: TableView) -> Iterator[Finding]:
    """Instants that have not completed; plans of services and cleans have checks of their own."""
    for instant in view.timeline.pending:
        if instant.requested_at in view.lost_completions:
            yield _lost_completion(view, instant)
        elif instant.action.is_ingestion:
            yield _pending_write(view, instant)
        elif instant.action.is_plan or instant.action is Action.CLEAN:
            continue
        elif instant.action is Action.ROLLBACK:
            yield _pending_rollback(view, instant)
        elif instant.action is Action.RESTORE:
            yield _unfinished(view, instant, "half-done-restore", RepairKind.FINISH_RESTORE, Severity.ERROR)
        elif instant.action is Action.SAVEPOINT:
            yield Finding(
                "half-done-savepoint",
                Severity.WARNING,
                str(instant),
                "A savepoint that was begun and not completed protects nothing.",
                "Make the savepoint again, or let it be removed.",
                repair=Repair(RepairKind.DELETE_SAVEPOINT, instant.requested_at.value),
            )
        else:
            yield Finding(
                "pending-service",
                Severity.INFO,
                str(instant),
                f"A {instant.action.value} that has not completed, {view.age_text(instant.requested_at)} old.",
                f"The next {instant.action.value} carries it on.",
            )


def check_heartbeats(view: TableView) -> Iterator[Finding]:
    """Heartbeats of nobody, and from the future."""
    waiting = {plan.requested_at for plan in view.timeline.pending_plans if plan.state is State.REQUESTED}
    pending = {i.requested_at for i in view.timeline.pending} - waiting
    for instant, age_s in sorted(view.heartbeats.ages.items(), key=lambda item: item[0].value):
        if age_s < -_FUTURE_S:
            is_active = view.heartbeats.is_active(instant)
            taken = "the write may seem to live longer than it does" if is_active else "it counts as ended"
            yield Finding(
                "heartbeat-from-the-future",
                Severity.WARNING,
                instant.value,
                f"Its time is {-age_s:.0f} s ahead of this machine's clock, so that {taken}.",
                "Set the clocks of the writers and of the store right.",
            )
        elif instant not in pending and not view.heartbeats.is_active(instant):
            over = "its plan waits" if instant in waiting else "no such write is pending"
            yield Finding(
                "heartbeat-without-instant",
                Severity.WARNING,
                instant.value,
                f"The last beat was {age_s:.0f} s ago, and {over}: the process that wrote it did not tidy up.",
                "It does no harm and can be removed.",
                repair=Repair(RepairKind.DELETE_HEARTBEAT, instant.value),
            )


def check_markers(view: TableView) -> Iterator[Finding]:
    """Marker directories of writes that are over."""
    pending = {i.requested_at.value for i in view.timeline.pending}
    for instant in view.marked:
        if instant in pending or not (instant.isascii() and instant.isdigit()):
            continue
        late = load_late_files(view.environment, view.timeline, view.heartbeats, RequestedTime(instant))
        if late is None:
            yield Finding(
                "markers-without-write",
                Severity.WARNING,
                instant,
                "Markers of a write that is not pending, and what became of it is not known.",
                "They do no harm, and tell which files it may have left: nothing is deleted here by itself.",
            )
        elif late.there:
            yield Finding(
                "late-files",
                Severity.ERROR,
                instant,
                f"{len(late.there)} files that a task announced and published when its write was over: no commit names "
                "them. Readers that list directories may take them for committed.",
                "The next clean deletes them.",
                paths=late.there,
                repair=Repair(RepairKind.DELETE_MARKERS, instant, late.there),
            )
        elif late.are_markers_over:
            yield Finding(
                "markers-without-write",
                Severity.WARNING,
                instant,
                "Markers of a write that is not pending: it committed, or was rolled back, and died before it tidied "
                "up.",
                "They do no harm, and the next clean deletes them.",
                repair=Repair(RepairKind.DELETE_MARKERS, instant),
            )


def check_lock(view: TableView) -> Iterator[Finding]:
    """Who holds the lock, and whether the lock keeps anybody out."""
    environment = view.environment
    try:
        holder = environment.lock.describe()
    except TablekeeperError as error:
        yield Finding(
            "unreadable-lock", Severity.ERROR, "the table lock", str(error), "No writer can commit until then."
        )
        return
    if holder is not None:
        is_stuck = holder.is_lapsed or (holder.age_s or 0) > _LONG_HELD_S
        yield Finding(
            "lapsed-lock" if holder.is_lapsed else "held-lock",
            Severity.WARNING if is_stuck else Severity.INFO,
            holder.lock,
            f"Held by {holder}." + (" Its lease is over, or its process is dead." if holder.is_lapsed else ""),
            "The next writer takes it over by itself."
            if holder.is_lapsed
            else "Commits hold it for moments only. If its process is gone for certain, delete this one lock.",
        )
    scheme = environment.storage.spec.uri.partition("://")[0]
    provider = environment.lock_settings.known_provider()
    if provider is LockProvider.IN_PROCESS and scheme != "memory":
        yield Finding(
            "lock-protects-one-process",
            Severity.WARNING,
            provider.value,
            "This lock is known to one process only: two processes, or Java beside Python, overwrite each other.",
            "Remove the lock provider from the options: the one that fits the store is then used.",
        )


def check_oddities(view: TableView) -> Iterator[Finding]:
    """Things on the timeline that no writer leaves there."""
    by_time: dict[RequestedTime, list[Instant]] = defaultdict(list)
    for instant in view.instant_files:
        by_time[instant.requested_at].append(instant)
    for requested_at, instants in sorted(by_time.items(), key=lambda item: item[0].value):
        others = [i for i in instants if i.action is not Action.SAVEPOINT]
        completed = [i for i in others if i.is_completed]
        if len({i.action.completed_as for i in others}) > 1:
            yield _odd(requested_at, "two-actions-at-one-time", "Two actions have the same requested time.", others)
        if len(completed) > 1:
            yield _odd(requested_at, "completed-twice", "The action has completed more than once.", completed)
        if any(i.state is State.INFLIGHT for i in others) and not any(i.state is State.REQUESTED for i in others):
            yield _odd(
                requested_at,
                "no-requested-file",
                "The file that began the action is missing: Java refuses to roll it back or to archive it.",
                others,
                severity=Severity.WARNING,
            )
        late = [i for i in completed if i.completed_at is not None and i.completed_at.value <= requested_at.value]
        if late and view.environment.config.layout != 1:
            yield _odd(requested_at, "completed-before-requested", "It completed before it was requested.", late)
        if view.age_s(requested_at) < -_FUTURE_S:
            yield _odd(
                requested_at,
                "instant-from-the-future",
                "Later writes get times after it, whatever their clocks say. A writer's clock or zone was wrong.",
                instants,
                severity=Severity.WARNING,
            )
    times = Counter(i.completed_at for i in view.timeline.completed_writes)
    for completed_at, count in times.items():
        if count > 1 and completed_at is not None:
            text = f"{count} writes completed at the same time {completed_at}: their order is not known."
            yield _odd(RequestedTime(completed_at.value), "completed-together", text, [], severity=Severity.WARNING)


def _lost_completion(view: TableView, instant: Instant) -> Finding:
    files = tuple(sorted(view.lost_completions[instant.requested_at]))
    return Finding(
        "lost-completion",
        Severity.ERROR,
        str(instant),
        f"It counts as not completed, but {len(files)} data files of it are there, and neither markers nor a "
        "heartbeat, as only completed writes have it. Its completed file was lost: readers miss its rows.",
        "Bring the completed file back from a backup. Writers and services refuse until then. If the write never "
        f"completed, `tablekeeper rollback PATH {instant.requested_at}` takes it back.",
        paths=files,
    )


def _pending_write(view: TableView, instant: Instant) -> Finding:
    requested_at = instant.requested_at
    beat_s = view.heartbeats.ages.get(requested_at)
    if view.heartbeats.is_active(requested_at):
        return Finding(
            "running-write",
            Severity.INFO,
            str(instant),
            f"A writer is executing it: last heartbeat {beat_s:.0f} s ago.",
            "Nothing to do.",
        )
    if not view.is_dead(instant):
        return Finding(
            "write-without-heartbeat",
            Severity.WARNING,
            str(instant),
            f"{view.age_text(instant.requested_at)} old and without a heartbeat: it died young, or Java writes with "
            "the single-writer mode and the EAGER policy, which neither locks nor beats.",
            "If Java writes, give it optimistic concurrency control, the LAZY policy and the lock of this table.",
        )
    beat = "it has no heartbeat" if beat_s is None else f"its last heartbeat was {beat_s:.0f} s ago"
    return Finding(
        "dead-write",
        Severity.WARNING,
        str(instant),
        f"{view.age_text(instant.requested_at)} old, and {beat}: its writer died. Readers do not see it.",
        "The next writer rolls it back, and so does a rollback by hand.",
        repair=Repair(RepairKind.ROLL_BACK, requested_at.value),
    )


def _pending_rollback(view: TableView, rollback: Instant) -> Finding:
    """A rollback is told by its target: plans of services leave the timeline before their rollback completes."""
    try:
        plan = load_rollback_plan(view.environment.storage, view.environment.config, rollback)
    except CorruptTableError as error:
        return _unreadable(rollback, error)
    finding = _unfinished(view, rollback, "half-done-rollback", RepairKind.FINISH_ROLLBACK, Severity.WARNING)
    if plan is None or plan.instant is None or not plan.instant.is_plan or finding.repair is None:
        return finding
    target = RequestedTime(plan.instant.commit_time)
    if view.heartbeats.is_active(target):
        return replace(
            finding,
            kind="running-rollback",
            severity=Severity.INFO,
            meaning=f"A rollback of {target}, which somebody is executing anew.",
            advice="Nothing to do: the executor finishes the rollback before it begins.",
            repair=None,
        )
    if view.timeline.find(target) is None:
        age = view.age_text(rollback.requested_at)
        return replace(
            finding,
            kind="half-done-removal",
            meaning=f"The plan {target} ({plan.instant.action}) was taken off the timeline {age} ago; whoever did it "
            "died before that was recorded.",
            advice="`tablekeeper clean PATH` records it.",
        )
    return finding


def _unreadable(instant: Instant, error: CorruptTableError) -> Finding:
    return Finding(
        "unreadable-plan",
        Severity.ERROR,
        str(instant),
        f"What it is to do cannot be read, and it was begun: {error.reason}.",
        "Bring the requested file back from a backup.",
    )


def _unfinished(view: TableView, instant: Instant, kind: str, repair: RepairKind, severity: Severity) -> Finding:
    if not view.is_dead(instant):
        return Finding(
            f"running-{instant.action.value}",
            Severity.INFO,
            str(instant),
            f"A {instant.action.value} that was begun {view.age_text(instant.requested_at)} ago.",
            "Wait for it.",
        )
    return Finding(
        kind,
        severity,
        str(instant),
        f"A {instant.action.value} that died {view.age_text(instant.requested_at)} ago, half done.",
        "It can be carried on from where it stopped.",
        repair=Repair(repair, instant.requested_at.value),
    )


def _odd(
    requested_at: RequestedTime,
    kind: str,
    meaning: str,
    instants: list[Instant],
    *,
    severity: Severity = Severity.ERROR,
) -> Finding:
    return Finding(
        kind,
        severity,
        requested_at.value,
        meaning,
        "No writer leaves this. Look for copied or restored files, and for writers that do not use the table's lock.",
        paths=tuple(str(i) for i in instants),
    )
