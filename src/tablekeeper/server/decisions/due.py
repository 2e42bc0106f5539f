"""What is due on a table: from a summary of its timeline and its policy. Pure.

Pending plans on the timeline are due, no matter who made them. Services that the policy hosts are due by its triggers:
one operation for each action and state of the timeline, so that deciding twice creates one operation. A service that
found nothing to do is due again after as many further commits as its trigger says, not after the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tablekeeper.server.decisions.spans import span_text
from tablekeeper.server.model import ServiceAction, TableFacts, unplanned_instant
from tablekeeper.server.policy import DEFAULT_POLICY, MINUTES_PER_DAY, Policy
from tablekeeper.table.summary import TimelineSummary

__all__ = [
    "REMEMBERED",
    "DueWork",
    "Outlook",
    "first_deadline_s",
    "foresee",
    "misses_target",
    "plan_due",
    "seconds_until_due",
    "table_facts",
]

NOTHING_FOUND: Mapping[ServiceAction, str] = {}
REMEMBERED = frozenset({ServiceAction.CLUSTERING, ServiceAction.CLEAN, ServiceAction.ARCHIVE})
"""Services that leave no trace on the timeline if they find nothing to do, so that the service has to remember it."""


@dataclass(frozen=True, slots=True)
class DueWork:
    """An operation to submit. `delay_s` lasts until the next window of the day opens."""

    action: ServiceAction
    instant: str
    why: str
    deadline_in_s: float | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """When a service of a table will be due, for people: `count` of the `least` that make it due, and why."""

    action: ServiceAction
    is_hosted: bool
    is_due: bool
    why: str
    count: int = 0
    least: int | None = None


@dataclass(frozen=True, slots=True)
class _Count:
    """A count, and the least that makes a service due, None if there is no trigger."""

    count: int
    least: int | None
    what: str

    @property
    def why_due(self) -> str:
        return _enough(self.count, self.least, self.what)


def plan_due(
    summary: TimelineSummary,
    policy: Policy,
    *,
    now_ms: int,
    active: Collection[ServiceAction] = (),
    found_nothing: Mapping[ServiceAction, str] = NOTHING_FOUND,
    first_look_ms: int = 0,
) -> list[DueWork]:
    """Everything that is due.

    `active` are actions that already have an operation without a plan. `found_nothing` has, for an action, the newest
    time of the timeline on which it found nothing to do. `first_look_ms` as for `first_deadline_s`.
    """
    delay_s = _delay_s(policy, now_ms)
    deadline_in_s = _deadline_in_s(summary, policy, now_ms, first_look_ms)
    waiting = [
        DueWork(
            ServiceAction.parse(each.service), each.instant, "its plan waits on the timeline", deadline_in_s, delay_s
        )
        for each in summary.pending
        # An operation without a plan finds this one by itself.
        if ServiceAction.parse(each.service).has_plan and ServiceAction.parse(each.service) not in active
    ]
    planned = {ServiceAction.parse(each.service) for each in summary.pending}
    due = [
        DueWork(action, unplanned_instant(action, summary.newest_time), why, deadline_in_s, delay_s)
        for action, why in _triggered(summary, policy, now_ms, found_nothing)
        if action not in active and not (action.has_plan and action in planned)
    ]
    return [*waiting, *due]


def foresee(
    summary: TimelineSummary,
    policy: Policy,
    *,
    now_ms: int,
    found_nothing: Mapping[ServiceAction, str] = NOTHING_FOUND,
) -> list[Outlook]:
    """The services that a table can have, with what is due and what is not yet. `found_nothing` as for `plan_due`."""
    due = _reasons(summary, policy, now_ms, found_nothing)
    seen = []
    for action, counted in _counts(summary, policy, found_nothing).items():
        if not summary.is_mor and action.merges_logs:
            continue
        count, least, what = counted.count, counted.least, counted.what
        not_yet = f"{count} of {least} {what}" if least is not None else f"{count} {what}, and no limit is set"
        seen.append(
            Outlook(action, policy.hosts(action), bool(due[action]), due[action] or not_yet, count=count, least=least)
        )
    return seen


def table_facts(summary: TimelineSummary) -> TableFacts:
    """What is stored of a look. A reader merges at most one log for each delta commit that is not compacted."""
    behind = summary.deltas_since_compaction if summary.is_mor else 0
    return TableFacts(
        newest_time=summary.newest_time,
        commits_behind=behind,
        behind_since_ms=summary.behind_since_ms if summary.is_mor else None,
        pending_plans=len(summary.pending),
        read_amplification=1.0 + behind if summary.is_mor else None,
        pending=dict(Counter(each.service for each in summary.pending)),
        # Pending plans are in the order of the timeline: the first one of each service counts.
        earliest_pending={each.service: each.instant for each in reversed(summary.pending)},
        latest_completed=summary.latest_completed,
    )


def _triggered(
    summary: TimelineSummary, policy: Policy, now_ms: int, found_nothing: Mapping[ServiceAction, str]
) -> list[tuple[ServiceAction, str]]:
    reasons = _reasons(summary, policy, now_ms, found_nothing)
    return [(action, why) for action, why in reasons.items() if why and policy.hosts(action)]


def _reasons(
    summary: TimelineSummary, policy: Policy, now_ms: int, found_nothing: Mapping[ServiceAction, str]
) -> dict[ServiceAction, str]:
    """Why each service is due by its triggers, empty if it is not, even if the policy does not host it."""
    by_count = {action: each.why_due for action, each in _counts(summary, policy, found_nothing).items()}
    if not summary.is_mor:
        by_count[ServiceAction.LOG_COMPACTION] = ""
    waiting = [each.instant for each in summary.pending if each.service == ServiceAction.CLEAN.value]
    if waiting:
        by_count[ServiceAction.CLEAN] = f"clean {waiting[0]} has not completed"
    return {**by_count, ServiceAction.COMPACTION: _compaction(summary, policy, now_ms)}


def _counts(
    summary: TimelineSummary, policy: Policy, found_nothing: Mapping[ServiceAction, str]
) -> dict[ServiceAction, _Count]:
    counts = {
        ServiceAction.COMPACTION: _Count(
            summary.deltas_since_compaction, policy.compact_after_commits, "delta commits since the last compaction"
        ),
        ServiceAction.LOG_COMPACTION: _Count(
            summary.deltas_since_log_compaction,
            policy.log_compact_after_commits,
            "delta commits since the last log compaction",
        ),
        ServiceAction.CLUSTERING: _Count(
            summary.commits_since_clustering, policy.cluster_after_commits, "commits since the last clustering"
        ),
        ServiceAction.CLEAN: _Count(
            summary.commits_since_clean, policy.clean_after_commits, "commits since the last clean"
        ),
        ServiceAction.ARCHIVE: _Count(summary.instants, policy.archive_after_instants, "instants on the timeline"),
    }
    for action in REMEMBERED & found_nothing.keys():
        is_archive = action is ServiceAction.ARCHIVE
        after = (summary.instants_after if is_archive else summary.commits_after)(found_nothing[action])
        if after < counts[action].count:
            noun = "instants" if is_archive else "commits"
            what = f"{noun} since the last {action.value}, which found nothing to do"
            counts[action] = _Count(after, counts[action].least, what)
    return counts


def _compaction(summary: TimelineSummary, policy: Policy, now_ms: int) -> str:
    behind = summary.deltas_since_compaction
    if not summary.is_mor or not behind:
        return ""
    by_count = _enough(behind, policy.compact_after_commits, "delta commits since the last compaction")
    if by_count:
        return by_count
    by_logs = _enough(behind, policy.max_log_files, "delta commits not compacted, the freshness target")
    if by_logs:
        return by_logs
    if policy.max_read_amplification is not None and 1 + behind > policy.max_read_amplification:
        return f"reads merge up to {behind} logs, more than {policy.max_read_amplification:g}x read amplification"
    age_s = (now_ms - (summary.behind_since_ms or now_ms)) // 1000
    since = "since the first delta commit that is not compacted"
    by_age = _long_enough(age_s, policy.compact_after_s, since)
    return by_age or _long_enough(age_s, _refresh_after_s(policy), f"{since}, for the freshness target")


def seconds_until_due(summary: TimelineSummary, policy: Policy, *, now_ms: int) -> float | None:
    """When a compaction becomes due by time alone; None if it does not, or is already due."""
    limits = [each for each in (policy.compact_after_s, _refresh_after_s(policy)) if each is not None]
    is_behind = summary.is_mor and summary.deltas_since_compaction and summary.behind_since_ms is not None
    if not limits or not is_behind or not policy.hosts(ServiceAction.COMPACTION):
        return None
    left_s = min(limits) - (now_ms - (summary.behind_since_ms or now_ms)) / 1000
    return left_s if left_s > 0 else None


def _refresh_after_s(policy: Policy) -> int | None:
    """The rest of the freshness target is left for waiting and for the compaction itself."""
    return None if policy.fresh_within_s is None else policy.fresh_within_s * 3 // 4


def _enough(count: int, least: int | None, what: str) -> str:
    return f"{count} {what}, due from {least} on" if least is not None and count >= least else ""


def _long_enough(age_s: int, least_s: int | None, what: str) -> str:
    is_due = least_s is not None and age_s >= least_s
    return f"{span_text(age_s)} {what}, due from {span_text(least_s or 0)} on" if is_due else ""


def misses_target(summary: TimelineSummary, policy: Policy) -> bool:
    """Whether reads now merge more logs than the policy's targets allow."""
    behind = summary.deltas_since_compaction if summary.is_mor else 0
    if policy.max_log_files is not None and behind > policy.max_log_files:
        return True
    return policy.max_read_amplification is not None and bool(behind) and 1 + behind > policy.max_read_amplification


def first_deadline_s(policy: Policy, *, now_ms: int, first_look_ms: int = 0) -> float:
    """Seconds until what has missed its target should be done: none, or some time after the next window opens.

    A table that was behind when it was first looked at, at `first_look_ms`, has its whole target from then on.
    """
    delay_s = _delay_s(policy, now_ms)
    within_s = policy.fresh_within_s or 0
    after_window_s = delay_s and delay_s + within_s - (_refresh_after_s(policy) or 0)
    begun_s = within_s or (DEFAULT_POLICY.fresh_within_s or 0)
    return max(after_window_s, begun_s - (now_ms - first_look_ms) / 1000, 0.0)


def _delay_s(policy: Policy, now_ms: int) -> float:
    return 60.0 * policy.minutes_until_window(now_ms // 60_000 % MINUTES_PER_DAY)


def _deadline_in_s(summary: TimelineSummary, policy: Policy, now_ms: int, first_look_ms: int) -> float | None:
    """Seconds until the table misses its target; 0 or less if it has.

    While the table waits for a window of the day it is not late: the deadline of a target that has passed by then
    leaves the compaction as much time as elsewhere. So does that of a table that was registered too late to meet it.
    """
    deadline_s = None
    if policy.fresh_within_s is not None and summary.behind_since_ms is not None and summary.is_mor:
        deadline_s = policy.fresh_within_s - (now_ms - summary.behind_since_ms) / 1000
    if misses_target(summary, policy):
        deadline_s = 0.0 if deadline_s is None else min(0.0, deadline_s)
    first_s = first_deadline_s(policy, now_ms=now_ms, first_look_ms=first_look_ms)
    return max(deadline_s, first_s) if deadline_s is not None and first_s else deadline_s
