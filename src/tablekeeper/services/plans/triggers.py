"""Whether a table service is due, by Hudi's triggers: so many commits, so much time, both or either. Pure.

Triggers are for services that run automatically, after a write or in the background. A service that is called runs at
once.
`completed` are the completed plans of the service (`window.load_completed_plans`), by requested time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tablekeeper.config.service_settings import (
    ClusteringSettings,
    CompactionSettings,
    CompactionTrigger,
    LogCompactionSettings,
)
from tablekeeper.model import Action, CompletionTime, Instant, RequestedTime
from tablekeeper.timeline import Timeline, parse_time

__all__ = ["Due", "clustering_due", "compaction_due", "log_compaction_due"]


@dataclass(frozen=True, slots=True)
class Due:
    """The decision, and why."""

    due: bool
    why: str

    def __bool__(self) -> bool:
        return self.due


def compaction_due(
    timeline: Timeline, settings: CompactionSettings, *, completed: Sequence[Instant], now_ms: int, zone: str
) -> Due:
    """Whether a compaction is to be scheduled now. `zone` is that of the timeline's times."""
    deltas = _delta_commits(timeline)
    last = completed[-1].requested_at if completed else None
    if last is None and not deltas:
        return Due(False, "no delta commit yet")
    if settings.trigger is CompactionTrigger.NUM_COMMITS_AFTER_LAST_REQUEST:
        pending = [i.requested_at for i in timeline.pending if i.action is Action.COMPACTION]
        asked = pending[-1] if pending else last
        fresh = len([i for i in deltas if asked is None or i.requested_at > asked])
        return _enough(fresh, settings.max_delta_commits, what="delta commits", since=asked)
    count = _enough(_completed_since(deltas, last), settings.max_delta_commits, what="delta commits", since=last)
    began = last if last is not None else deltas[0].requested_at
    elapsed_s = (now_ms - parse_time(began.value, zone=zone)) // 1000
    time = _enough(elapsed_s, settings.max_delta_s, what="seconds", since=began)
    return _combined(settings.trigger, count, time)


def log_compaction_due(
    timeline: Timeline,
    settings: LogCompactionSettings,
    *,
    completed: Sequence[Instant],
    compactions: Sequence[Instant],
) -> Due:
    """Whether a log compaction is to be scheduled now; `compactions` are the completed plans of compaction.

    Only delta commits count that neither of the two services has handled. There is one log compaction at a time.
    """
    pending = [i for i in timeline.pending if i.action is Action.LOG_COMPACTION]
    if pending:
        return Due(False, f"log compaction {pending[-1].requested_at} is still pending")
    deltas = [i for i in _delta_commits(timeline) if i not in completed]
    newest = max((i.requested_at for i in (*completed, *compactions)), default=None)
    fresh = _completed_since(deltas, newest)
    return _enough(fresh, settings.blocks_threshold, what="delta commits", since=newest)


def clustering_due(
    timeline: Timeline, settings: ClusteringSettings, *, completed: Sequence[Instant], is_async: bool = False
) -> Due:
    """Whether a clustering is to be scheduled now, after a write or (`is_async`) beside writes."""
    pending = [i for i in timeline.pending if i.action is Action.CLUSTERING]
    newest = max((i.requested_at for i in (*completed, *pending)), default=None)
    fresh = len([i for i in timeline.completed_writes if newest is None or i.requested_at > newest])
    least = settings.max_async_commits if is_async else settings.max_inline_commits
    return _enough(fresh, least, what="commits", since=newest)


def _delta_commits(timeline: Timeline) -> list[Instant]:
    return [i for i in timeline.completed if i.action is Action.DELTA_COMMIT]


def _completed_since(instants: Sequence[Instant], since: RequestedTime | None) -> int:
    """How many completed after an action was requested: such an action cannot have seen them."""
    if since is None:
        return len(instants)
    begin = CompletionTime(since.value)
    return len([i for i in instants if i.completed_at is not None and i.completed_at > begin])


def _enough(count: int, least: int, *, what: str, since: RequestedTime | None) -> Due:
    place = f"since {since}" if since is not None else "so far"
    return Due(count >= least, f"{count} {what} {place}, due from {least} on")


def _combined(trigger: CompactionTrigger, count: Due, time: Due) -> Due:
    if trigger is CompactionTrigger.NUM_COMMITS:
        return count
    if trigger is CompactionTrigger.TIME_ELAPSED:
        return time
    both = trigger is CompactionTrigger.NUM_AND_TIME
    due = (count.due and time.due) if both else (count.due or time.due)
    return Due(due, f"{count.why} {'and' if both else 'or'} {time.why}")
