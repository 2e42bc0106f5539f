"""The nouns of the service as values, and the one state machine of an operation.

A `ManagedTable` is registered; an `Operation` is one piece of work on it (a plan of the timeline, or a service that is
due and plans by itself); an `Attempt` is one try of it on an engine. `Instance` is a running service, `Event` an entry
in the history, `Alarm` a problem that people should know about until it is resolved.

All times are epoch milliseconds of the database's clock. Only `transition` decides how the status of an operation may
change; the store calls it before it writes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.model import ServiceKind

__all__ = [
    "ACTIVE",
    "ASKED_BY_WRITER",
    "DEFAULT_PRIORITY",
    "FINISHED",
    "Alarm",
    "Attempt",
    "AttemptOutcome",
    "Delivery",
    "Event",
    "ForbiddenTransitionError",
    "Instance",
    "Lease",
    "ManagedTable",
    "Operation",
    "Role",
    "RunParameters",
    "ServiceAction",
    "Signal",
    "Status",
    "TableFacts",
    "Token",
    "asked_for_instant",
    "is_asked_for",
    "is_planned_instant",
    "parse_priority",
    "transition",
    "unplanned_instant",
]


class ForbiddenTransitionError(TablekeeperError):
    """The status of the operation does not allow this: load it again, another process was faster."""

    def __init__(self, status: Status, signal: Signal) -> None:
        super().__init__(f"an operation that is {status.word} cannot {signal.value}; load it again to see what it is")
        self.status = status
        self.signal = signal


class ServiceAction(enum.Enum):
    """What an operation does to its table."""

    COMPACTION = "compaction"
    LOG_COMPACTION = "log_compaction"
    CLUSTERING = "clustering"
    CLEAN = "clean"
    ARCHIVE = "archive"
    METADATA_COMPACTION = "metadata_compaction"
    """Of Hudi's metadata table, only on request."""

    @classmethod
    def parse(cls, text: str) -> ServiceAction:
        """By any of the names that clients use: compact, compaction, cluster, logcompact, ..."""
        found = _ACTION_NAMES.get(text.strip().lower().replace("-", "").replace("_", "").replace(" ", ""))
        if found is None:
            raise InvalidRequestError(f"unknown service {text[:60]!r}: use {', '.join(a.value for a in cls)}")
        return found

    @property
    def kind(self) -> ServiceKind | None:
        """The service whose plans it executes; None for services that plan and execute in one step."""
        return _KINDS.get(self)

    @property
    def has_plan(self) -> bool:
        """Whether it executes a plan of the timeline."""
        return self in _KINDS

    @property
    def merges_logs(self) -> bool:
        """Whether it is for tables with logs, and reads become faster by it."""
        return self in (ServiceAction.COMPACTION, ServiceAction.LOG_COMPACTION)


_KINDS = {ServiceAction(kind.identifier): kind for kind in ServiceKind}
_ACTION_NAMES = {
    "compact": ServiceAction.COMPACTION,
    "compaction": ServiceAction.COMPACTION,
    "logcompact": ServiceAction.LOG_COMPACTION,
    "logcompaction": ServiceAction.LOG_COMPACTION,
    "cluster": ServiceAction.CLUSTERING,
    "clustering": ServiceAction.CLUSTERING,
    "replacecommit": ServiceAction.CLUSTERING,
    "clean": ServiceAction.CLEAN,
    "archive": ServiceAction.ARCHIVE,
    "metadatacompaction": ServiceAction.METADATA_COMPACTION,
}


class Status(enum.IntEnum):
    """Where an operation is; the number is what the database keeps."""

    PENDING = 0
    CLAIMED = 1
    RUNNING = 2
    COMPLETED = 3
    FAILED = 4
    CANCELLED = 5
    QUARANTINED = 6

    @property
    def word(self) -> str:
        return self.name.lower()


ACTIVE = frozenset({Status.PENDING, Status.CLAIMED, Status.RUNNING, Status.QUARANTINED})
"""Statuses that still need work, or somebody to look at them."""
FINISHED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
"""Statuses of operations that are pruned by age."""


ASKED_BY_WRITER = "a writer asked for it"
"""`why` of an operation that a request created, or took over if the service had found its plan before."""


class Signal(enum.Enum):
    """What happens to an operation; the value completes the sentence "it cannot ..."."""

    CLAIM = "be claimed"
    START = "start an attempt"
    COMPLETE = "complete"
    RETRY = "go back to wait for another attempt"
    FAIL = "fail"
    CANCEL = "be cancelled"
    QUARANTINE = "be quarantined"
    REVIVE = "be tried again"


_TRANSITIONS: Mapping[tuple[Status, Signal], Status] = {
    (Status.PENDING, Signal.CLAIM): Status.CLAIMED,
    (Status.CLAIMED, Signal.START): Status.RUNNING,
    (Status.RUNNING, Signal.COMPLETE): Status.COMPLETED,
    # The timeline can show that it is completed or gone before anybody has started it.
    (Status.PENDING, Signal.COMPLETE): Status.COMPLETED,
    (Status.CLAIMED, Signal.COMPLETE): Status.COMPLETED,
    (Status.CLAIMED, Signal.RETRY): Status.PENDING,
    (Status.RUNNING, Signal.RETRY): Status.PENDING,
    (Status.CLAIMED, Signal.FAIL): Status.FAILED,
    (Status.RUNNING, Signal.FAIL): Status.FAILED,
    (Status.PENDING, Signal.CANCEL): Status.CANCELLED,
    (Status.CLAIMED, Signal.CANCEL): Status.CANCELLED,
    (Status.RUNNING, Signal.CANCEL): Status.CANCELLED,
    (Status.QUARANTINED, Signal.CANCEL): Status.CANCELLED,
    # Somebody has seen the failure and gives the operation up, which ends its alarm.
    (Status.FAILED, Signal.CANCEL): Status.CANCELLED,
    (Status.PENDING, Signal.QUARANTINE): Status.QUARANTINED,
    (Status.CLAIMED, Signal.QUARANTINE): Status.QUARANTINED,
    (Status.RUNNING, Signal.QUARANTINE): Status.QUARANTINED,
    # What waits for its back-off waits no longer.
    (Status.PENDING, Signal.REVIVE): Status.PENDING,
    (Status.QUARANTINED, Signal.REVIVE): Status.PENDING,
    (Status.FAILED, Signal.REVIVE): Status.PENDING,
    (Status.CANCELLED, Signal.REVIVE): Status.PENDING,
}


def transition(status: Status, signal: Signal) -> Status:
    """The status after `signal`; `ForbiddenTransitionError` if there is no such edge."""
    after = _TRANSITIONS.get((status, signal))
    if after is None:
        raise ForbiddenTransitionError(status, signal)
    return after


_ASKED_FOR = "asked-"
DEFAULT_PRIORITY = 5
_PRIORITY_NAMES = {"low": 2, "normal": DEFAULT_PRIORITY, "high": 8}


def parse_priority(text: str) -> int:
    """0 to 9, larger first; or low, normal, high."""
    word = text.strip().lower()
    if word in _PRIORITY_NAMES:
        return _PRIORITY_NAMES[word]
    if len(word) == 1 and word.isascii() and word.isdigit():
        return int(word)
    raise InvalidRequestError(f"priority {text[:60]!r}: use 0 to 9, or low, normal or high")


def unplanned_instant(action: ServiceAction, newest: str) -> str:
    """The `instant` of an operation without a plan: one for each action and state of the timeline.

    So deciding twice on the same timeline creates one operation. `newest` is the newest time of the timeline.
    """
    return f"{action.value}@{newest}"


def is_planned_instant(instant: str) -> bool:
    """Whether it is an instant of the timeline."""
    return "@" not in instant


def asked_for_instant(action: ServiceAction, at_ms: int) -> str:
    """The `instant` of an operation that somebody requests: each request is a new piece of work."""
    return f"{action.value}@{_ASKED_FOR}{at_ms}"


def is_asked_for(instant: str) -> bool:
    """Whether somebody requested this run, which then does not wait for a window. False once it has a plan."""
    return instant.partition("@")[2].startswith(_ASKED_FOR)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The result of the last look at the timeline, stored for pages, metrics and the order of work.

    `pending` counts plans by service, `earliest_pending` and `latest_completed` are instants by service.
    `first_look_ms` is when the service looked at the table for the first time, 0 if that is not known.
    """

    newest_time: str = ""
    commits_behind: int = 0
    behind_since_ms: int | None = None
    pending_plans: int = 0
    read_amplification: float | None = None
    pending: Mapping[str, int] = field(default_factory=dict)
    earliest_pending: Mapping[str, str] = field(default_factory=dict)
    latest_completed: Mapping[str, str] = field(default_factory=dict)
    first_look_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The lake in one minute: waiting and running operations, tables that are behind, and behind their target."""

    minute: int
    waiting: int
    running: int
    behind: int
    late: int
    longest_behind_s: int


@dataclass(frozen=True, slots=True)
class ManagedTable:
    """A registered table. `policy` is its own part as JSON values; `store.effective_policy` adds the defaults.

    `quarantine` is the reason for which nothing runs on it, empty if none. `look_at_ms` is when its timeline is looked
    at next.
    """

    table_id: int
    db_name: str
    table_name: str
    base_path: str
    owner: str = "default"
    queue: str = "default"
    action_types: tuple[ServiceAction, ...] = ()
    priority: int = DEFAULT_PRIORITY
    policy: Mapping[str, object] = field(default_factory=dict)
    is_paused: bool = False
    quarantine: str = ""
    look_at_ms: int = 0
    idle_looks: int = 0
    failed_looks: int = 0
    facts: TableFacts = TableFacts()

    @property
    def name(self) -> str:
        return f"{self.db_name}.{self.table_name}"


@dataclass(frozen=True, slots=True)
class RunParameters:
    """What a request asks of the engine; empty and None stand for the service's settings. The engine validates it."""

    resource: str = ""
    parallelism: int | None = None
    extra_params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to try an operation. Each claim has a larger `token`; updates by an older holder have no effect."""

    operation_id: int
    token: int
    instance_id: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One piece of work on one table. `instant` is a plan's, or `action@time` before there is a plan.

    `run_times` counts attempts, `failures` those that count against the limit. `not_before_ms` is the back-off,
    `deadline_ms` the moment at which the table misses its freshness target. `why` says why it was created, `note` what
    happened last. `trace` is its W3C trace context, empty if it has none.
    """

    operation_id: int
    table_id: int
    instant: str
    action: ServiceAction
    status: Status
    engine: str = ""
    retry_on_error: bool = True
    run_times: int = 0
    is_deleted: bool = False
    schedule_ms: int = 0
    create_ms: int = 0
    update_ms: int = 0
    failures: int = 0
    priority: int = DEFAULT_PRIORITY
    queue: str = "default"
    owner: str = "default"
    parameters: RunParameters = RunParameters()
    not_before_ms: int = 0
    deadline_ms: int | None = None
    lease_token: int = 0
    lease_until_ms: int | None = None
    instance_id: str = ""
    cancel_reason: str = ""
    why: str = ""
    note: str = ""
    trace: str = ""

    @property
    def is_planned(self) -> bool:
        return is_planned_instant(self.instant)

    @property
    def lease(self) -> Lease:
        return Lease(self.operation_id, self.lease_token, self.instance_id)


class AttemptOutcome(enum.Enum):
    """How an attempt ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    NOTHING_TO_DO = "nothing_to_do"
    ELSEWHERE = "elsewhere"
    """Another process holds the plan, or executed it. Does not count as a failure."""
    GONE = "gone"
    """The plan has left the timeline: rolled back or cancelled."""
    FAILED = "failed"
    REFUSED = "refused"
    """Retrying cannot help: the table or request needs something that this engine does not support."""
    LOST = "lost"
    """The worker died without a result."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try. `job_id` is the engine's own name for it, by which the instance that takes over can adopt it.

    `why` says why it was the operation's turn.
    """

    operation_id: int
    number: int
    engine: str
    instance_id: str
    outcome: AttemptOutcome = AttemptOutcome.RUNNING
    job_id: str = ""
    started_ms: int = 0
    ended_ms: int | None = None
    message: str = ""
    result: Mapping[str, object] = field(default_factory=dict)
    log_path: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """A running instance of the service. It counts as dead once `seen_ms` is too old."""

    instance_id: str
    host: str
    pid: int
    address: str
    slots: int
    started_ms: int
    seen_ms: int
    is_draining: bool = False
    running: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for the history of a table or operation. Pruned by age."""

    event_id: int
    at_ms: int
    kind: str
    text: str
    table_id: int | None = None
    operation_id: int | None = None
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that fired for a subject. `key` is unique among open alarms: firing again changes nothing."""

    alarm_id: int
    key: str
    rule: str
    text: str
    opened_ms: int
    resolved_ms: int | None = None
    table_id: int | None = None
    operation_id: int | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message about an alarm that a channel has not received yet: opened or, if `is_resolved`, resolved."""

    delivery_id: int
    alarm: Alarm
    channel: str
    is_resolved: bool
    tries: int
    token: int


class Role(enum.IntEnum):
    """What the bearer of a token may do; each role includes those before it."""

    VIEWER = 0
    WRITER = 1
    OPERATOR = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token as it is stored: `digest` is its SHA-256; the token itself is shown once and kept nowhere."""

    token_id: int
    name: str
    digest: str
    role: Role
    databases: tuple[str, ...] = ()
    path_prefixes: tuple[str, ...] = ()
    created_ms: int = 0
    revoked_ms: int | None = None
