"""What the plans of table services show: which wait, who executes which, and which nobody will execute.

Only proof that nobody can be executing a plan leads to a repair. An immutable plan is never taken away: its dead
attempt is rolled back, so that the next process can execute it. Which other plans go, and when, is lazy clean's
decision (`services/plans/cancel.py`), with the same settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from tablekeeper.errors import CorruptTableError, NotFoundError, UnsupportedFeatureError
from tablekeeper.format.plans import decode_clean_plan
from tablekeeper.model import Action, Instant, Plan, RequestedTime, ServiceKind, State
from tablekeeper.services.doctor.report import Finding, Repair, RepairKind, Severity
from tablekeeper.services.doctor.view import TableView
from tablekeeper.services.plans.cancel import why_removed
from tablekeeper.services.plans.foreign_plans import load_executable_plan
from tablekeeper.timeline import instant_path, load_content
from tablekeeper.txn.heartbeat import load_heartbeat_owner

__all__ = ["check_cancel_requests", "check_cleans", "check_plans"]


def check_plans(view: TableView) -> Iterator[Finding]:
    """Pending compactions, log compactions and clusterings."""
    for instant in view.timeline.pending_plans:
        try:
            plan = load_executable_plan(view.environment, instant)
        except NotFoundError:
            continue
        except UnsupportedFeatureError as error:
            yield Finding("planned-service", Severity.INFO, str(instant), str(error), "Leave it to Java.")
        except CorruptTableError as error:
            yield Finding(
                "unreadable-plan",
                Severity.ERROR,
                str(instant),
                f"{error} Nobody can execute the plan, and writers cannot tell what it is about.",
                "Bring the file back from a backup.",
            )
        else:
            if instant.requested_at not in view.lost_completions:
                yield _describe(view, instant, plan)
            yield from _check_inputs(view, instant, plan)


def check_cancel_requests(view: TableView) -> Iterator[Finding]:
    """Requests to cancel a plan that nobody waits for any more."""
    pending = {plan.requested_at for plan in view.timeline.pending_plans}
    for request in view.cancel_requests:
        if request.instant in pending:
            continue
        became = "is gone" if view.timeline.find(request.instant) is None else "has completed"
        asked_by = f" by {request.asked_by}" if request.asked_by else ""
        yield Finding(
            "cancel-request-without-plan",
            Severity.WARNING,
            request.instant.value,
            f"A plan was cancelled{asked_by} ({request.reason}) and {became}; the request was left behind.",
            "It does no harm and can be removed.",
            repair=Repair(RepairKind.DELETE_CANCEL_REQUEST, request.instant.value),
        )


def check_cleans(view: TableView) -> Iterator[Finding]:
    """Cleans that have not completed. Nothing takes a clean back: it can only be finished."""
    for clean in view.timeline.pending:
        if clean.action is not Action.CLEAN:
            continue
        age = view.age_text(clean.requested_at)
        if view.heartbeats.is_active(clean.requested_at):
            yield Finding(
                "running-clean",
                Severity.INFO,
                str(clean),
                f"A clean that was planned {age} ago; {_executor(view, clean.requested_at)}.",
                "Nothing to do.",
            )
        elif unreadable := _why_unreadable(view, clean):
            yield Finding(
                "unreadable-plan",
                Severity.ERROR,
                str(clean),
                f"{unreadable} No clean can be executed before this one.",
                "Bring the file back from a backup.",
            )
        elif not view.is_abandoned(clean):
            yield Finding(
                "pending-clean",
                Severity.INFO,
                str(clean),
                f"A clean that was planned {age} ago and has no heartbeat: it waits, or Java is executing it.",
                "The next `tablekeeper clean PATH` executes it.",
            )
        else:
            begun = "was begun and not finished" if clean.state is State.INFLIGHT else "nobody has begun"
            yield Finding(
                "unfinished-clean",
                Severity.WARNING,
                str(clean),
                f"A clean, planned {age} ago, that {begun}. Files that it is to delete count as gone already.",
                "It can be carried on: `tablekeeper clean PATH` does so before anything else.",
                repair=Repair(RepairKind.FINISH_CLEAN, clean.requested_at.value),
            )


def _why_unreadable(view: TableView, clean: Instant) -> str:
    """What is wrong with the plan of a clean. One that is empty was never made, and the next clean drops it."""
    config = view.environment.config
    requested = Instant(clean.requested_at, Action.CLEAN, State.REQUESTED)
    try:
        content = load_content(view.environment.storage, config, requested)
        if content:
            decode_clean_plan(content, file=instant_path(config, requested))
    except (CorruptTableError, NotFoundError) as error:
        # Gone where the clean has completed meanwhile, which needs no plan any more.
        return "" if isinstance(error, NotFoundError) and clean.state is State.REQUESTED else str(error)
    return ""


def _describe(view: TableView, instant: Instant, plan: Plan) -> Finding:
    """The one finding about the state that a plan is in."""
    requested_at = instant.requested_at
    what = _what(view, instant, plan)
    request = next((each for each in view.cancel_requests if each.instant == requested_at), None)
    if view.heartbeats.is_active(requested_at):
        stops = f" It was cancelled ({request.reason}), which the executor notices within seconds." if request else ""
        return Finding(
            "running-service",
            Severity.INFO,
            str(instant),
            f"{what}; {_executor(view, requested_at)}.{stops}",
            "Nothing to do." if request or not plan.flags.can_be_removed else _cancel(requested_at, "To stop it"),
        )
    age_s = view.age_s(requested_at)
    reason = why_removed(instant, plan.flags, view.settings.lifecycle, age_s=age_s, is_cancelled=request is not None)
    if reason and (instant.state is State.REQUESTED or view.is_abandoned(instant)):
        because = f"{reason}: {request.reason}" if request else reason
        return Finding(
            "cancelled-plan" if request else "abandoned-plan",
            Severity.WARNING,
            str(instant),
            f"{what}. It is to leave the timeline ({because}), and nobody has seen to that yet.",
            "`tablekeeper clean PATH` takes it off, with what an attempt left.",
            repair=Repair(RepairKind.REMOVE_PLAN, requested_at.value),
        )
    return _waiting(view, instant, plan, what) if instant.state is State.REQUESTED else _stopped(view, instant, what)


def _waiting(view: TableView, instant: Instant, plan: Plan, what: str) -> Finding:
    closed = "writers" if instant.action is Action.CLUSTERING and not plan.flags.cancellable else "other plans"
    last_s = view.heartbeats.ages.get(instant.requested_at)
    died = "" if last_s is None else f" An executor died on it before it began, {last_s:.0f} s ago."
    call_off = f" {_cancel(instant.requested_at, 'To give it up')}" if plan.flags.can_be_removed else ""
    return Finding(
        "planned-service",
        Severity.INFO,
        str(instant),
        f"{what}; it waits to be executed, and keeps {closed} out of its file groups.{died}",
        f"Run `tablekeeper {_command(instant)} PATH`, or `Table.execute`.{call_off}",
    )


def _stopped(view: TableView, instant: Instant, what: str) -> Finding:
    beat_s = view.heartbeats.ages.get(instant.requested_at)
    beat = "there is no heartbeat" if beat_s is None else f"the last heartbeat was {beat_s:.0f} s ago"
    is_abandoned = view.is_abandoned(instant)
    again = f"`tablekeeper {_command(instant)} PATH` rolls the attempt back and executes the plan anew."
    return Finding(
        "stopped-service",
        Severity.WARNING,
        str(instant),
        f"{what}; an attempt was begun, and {beat}. Readers see nothing of it, and the plan can be executed again.",
        again
        if is_abandoned
        else f"Java beats for services only where several may write: if it still runs, wait. If it is gone, {again}",
        repair=Repair(RepairKind.ROLL_BACK_ATTEMPT, instant.requested_at.value) if is_abandoned else None,
    )


def _check_inputs(view: TableView, instant: Instant, plan: Plan) -> Iterator[Finding]:
    """A plan is only as good as the files that it is about to read."""
    slices = [each for work in plan.work for each in work.slices]
    bases = [each.base.path for each in slices if each.base is not None]
    inputs = [*bases, *(log.path for each in slices for log in each.logs)]
    environment = view.environment
    # The listing is older than the plan may be: only the store's own word counts.
    missing = [path for path in inputs if path not in view.paths and environment.storage.stat(path) is None]
    if not missing:
        return
    now = environment.load_timeline().find(instant.requested_at)
    if now is None or now.is_completed:
        return
    firm = (
        "Bring the files back from a backup, or restore to a savepoint from before the plan; Java's command line can "
        "unschedule it."
    )
    yield Finding(
        "plan-without-inputs",
        Severity.ERROR,
        str(instant),
        f"{len(missing)} of {len(inputs)} files that the plan is to read do not exist: it cannot be executed.",
        _cancel(instant.requested_at, "Cancel it") if plan.flags.can_be_removed else firm,
        paths=tuple(missing),
    )


def _what(view: TableView, instant: Instant, plan: Plan) -> str:
    flags = [
        name for name, is_so in (("mutable", plan.flags.mutable), ("cancellable", plan.flags.cancellable)) if is_so
    ]
    kind = " ".join([*flags, ServiceKind.of(instant.action).value])
    by = f" by {plan.flags.scheduled_by}" if plan.flags.scheduled_by else ""
    groups = len(plan.file_groups)
    size = f"{groups} file group{'' if groups == 1 else 's'}, about {plan.size:,} bytes"
    return f"A {kind} ({size}), scheduled {view.age_text(instant.requested_at)} ago{by}"


def _command(instant: Instant) -> str:
    return ServiceKind.of(instant.action).command


def _executor(view: TableView, instant: RequestedTime) -> str:
    owner = (load_heartbeat_owner(view.environment.storage, instant) or "").partition(" ")[0]
    return f"{owner or 'a process'} is executing it, last heartbeat {view.heartbeats.ages[instant]:.0f} s ago"


def _cancel(instant: RequestedTime, purpose: str) -> str:
    return f"{purpose}: `tablekeeper cancel PATH {instant}`."
