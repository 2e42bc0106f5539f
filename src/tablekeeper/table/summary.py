"""What is pending and what is due on a table, from the names on its timeline alone.

For callers with many tables: one read of the properties and one listing, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tablekeeper.config.table_config import TableConfig
from tablekeeper.model import Action, Instant, RequestedTime, ServiceKind, State
from tablekeeper.timeline import Timeline, parse_time

__all__ = ["CompletedService", "PendingAction", "TimelineSummary", "services_of", "summarize_timeline"]

_SERVICES = {**{kind.action: kind.identifier for kind in ServiceKind}, Action.CLEAN: Action.CLEAN.value}


@dataclass(frozen=True, slots=True)
class PendingAction:
    """A plan that is pending or being executed. `service` is its name as in `Table.services`."""

    instant: str
    service: str
    state: str


@dataclass(frozen=True, slots=True)
class CompletedService:
    """A table service that has completed, with the times of the timeline in epoch milliseconds."""

    instant: str
    service: str
    requested_ms: int
    completed_ms: int


@dataclass(frozen=True, slots=True)
class TimelineSummary:
    """The state of the timeline. Commits count that completed after the last plan of the service was requested.

    `behind_since_ms` is when the first delta commit completed that no compaction has seen; None if there is none.
    `completed` are requested times; what began before `first_time` has been archived, or taken off before.
    `latest_completed` is the newest completed plan of each service. `completion_times` are of all completed instants,
    `write_times` of those that are commits. `services` are the table services among the completed ones.
    """

    name: str
    is_mor: bool
    newest_time: str
    instants: int
    deltas_since_compaction: int
    deltas_since_log_compaction: int
    commits_since_clustering: int
    commits_since_clean: int
    behind_since_ms: int | None
    pending: tuple[PendingAction, ...]
    completed: frozenset[str] = frozenset()
    first_time: str = ""
    latest_completed: Mapping[str, str] = field(default_factory=dict)
    services: tuple[CompletedService, ...] = ()
    completion_times: tuple[str, ...] = ()
    write_times: tuple[str, ...] = ()

    def instants_after(self, time: str) -> int:
        """How many instants completed after this time."""
        return sum(each > time for each in self.completion_times)

    def commits_after(self, time: str) -> int:
        """How many commits completed after this time."""
        return sum(each > time for each in self.write_times)

    def find_pending(self, instant: str) -> PendingAction | None:
        """The pending action of this instant."""
        return next((each for each in self.pending if each.instant == instant), None)


def summarize_timeline(files: Sequence[Instant], config: TableConfig) -> TimelineSummary:
    """From all instant files, earlier states included: the requested file tells what a completed commit was."""
    timeline = Timeline.of(files)
    planned: dict[Action, set[RequestedTime]] = {}
    for each in files:
        if each.state is State.REQUESTED:
            planned.setdefault(each.action, set()).add(each.requested_at)
    writes = [i for i in timeline.completed_writes if not any(i.requested_at in planned.get(a, ()) for a in _SERVICES)]
    deltas = [i for i in writes if i.action is Action.DELTA_COMMIT]

    def last(*actions: Action) -> str:
        """When the newest completed plan of these services was requested."""
        return max(
            (i.requested_at.value for i in timeline.completed for a in actions if i.requested_at in planned.get(a, ())),
            default="",
        )

    behind = _completed_after(deltas, last(Action.COMPACTION))
    clusterings = [i.requested_at.value for i in timeline.pending if i.action is Action.CLUSTERING]
    return TimelineSummary(
        name=config.name,
        is_mor=config.is_mor,
        newest_time=timeline.newest_time,
        instants=len(timeline.completed),
        deltas_since_compaction=len(behind),
        deltas_since_log_compaction=len(_completed_after(deltas, last(Action.COMPACTION, Action.LOG_COMPACTION))),
        commits_since_clustering=len(_completed_after(writes, max([last(Action.CLUSTERING), *clusterings]))),
        commits_since_clean=len(_completed_after(timeline.completed_writes, last(Action.CLEAN))),
        behind_since_ms=min((_completed_ms(each, config.time_zone) for each in behind), default=None),
        pending=tuple(
            PendingAction(i.requested_at.value, _SERVICES[i.action], i.state.value)
            for i in timeline.pending
            if i.action in _SERVICES
        ),
        completed=frozenset(i.requested_at.value for i in timeline.completed),
        latest_completed={service: found for action, service in _SERVICES.items() if (found := last(action))},
        first_time=timeline.first_active_write.value if timeline.first_active_write is not None else "",
        services=tuple(
            CompletedService(
                i.requested_at.value,
                service,
                parse_time(i.requested_at.value, zone=config.time_zone),
                _completed_ms(i, config.time_zone),
            )
            for i in timeline.completed
            for action, service in _SERVICES.items()
            if i.requested_at in planned.get(action, ())
        ),
        completion_times=tuple(_completion_time(each) for each in timeline.completed),
        write_times=tuple(_completion_time(each) for each in timeline.completed_writes),
    )


def services_of(timeline: Timeline, config: TableConfig) -> dict[str, tuple[str | None, bool]]:
    """By requested time: the table service that the action is (None: another action), and whether it is completed."""
    return {
        i.requested_at.value: (_service_of(i, config), i.is_completed)
        for i in timeline
        if i.action is not Action.SAVEPOINT
    }


def _service_of(instant: Instant, config: TableConfig) -> str | None:
    """A completed compaction is a commit, which merge-on-read tables have no others of; a clustering a replace."""
    if instant.is_completed and instant.action is Action.COMMIT and config.is_mor:
        return ServiceKind.COMPACTION.identifier
    if instant.is_completed and instant.action is Action.REPLACE_COMMIT:
        return ServiceKind.CLUSTERING.identifier
    return _SERVICES.get(instant.action)


def _completed_after(instants: Sequence[Instant], requested: str) -> list[Instant]:
    return [each for each in instants if _completion_time(each) > requested]


def _completed_ms(instant: Instant, zone: str) -> int:
    return parse_time(_completion_time(instant), zone=zone)


def _completion_time(instant: Instant) -> str:
    return (instant.completed_at or instant.requested_at).value
