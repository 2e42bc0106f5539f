"""`JobStore`: everything the service keeps, as operations that are atomic one by one.

What always holds, whatever the database:

- Times are the database's. No method takes a moment from the caller; durations are given in seconds.
- `submit` is an upsert by (table, instant): repeating it changes nothing, but revives what was removed. The first
  request of a writer for a plan that waits because the service had found it says how it is run.
- An operation is claimed by one instance at a time. Every later update names the `Lease` and applies only while that
  lease is the newest and has not lapsed; otherwise it raises `LeaseLostError`, and the caller stops.
- No query grows with the history: lists are pages by key, counts are of active operations, finished ones are pruned.
- A method that changes an operation's status asks `model.transition` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tablekeeper.errors import TablekeeperError
from tablekeeper.server.model import (
    DEFAULT_PRIORITY,
    Alarm,
    Attempt,
    AttemptOutcome,
    Delivery,
    Event,
    Instance,
    Lease,
    ManagedTable,
    Operation,
    Role,
    ServiceAction,
    Signal,
    Status,
    TableFacts,
    Token,
)
from tablekeeper.server.policy import Policy
from tablekeeper.server.store.overview import OverviewStore
from tablekeeper.server.store.submissions import KnownPlans, NamedPlans, PastOperation, Submission, Submitted
from tablekeeper.server.store.wanted import EVERY_TABLE, TableFilter

__all__ = [
    "DUE_WITHIN_S",
    "MOST_LATE_S",
    "AlarmStore",
    "EndedAttempt",
    "JobStore",
    "KnownPlans",
    "LeaseLostError",
    "Load",
    "NamedPlans",
    "NewAlarm",
    "NewInstance",
    "NewTable",
    "NewToken",
    "OperationFilter",
    "OperationStore",
    "Page",
    "PastOperation",
    "QueueDepth",
    "Queued",
    "RunningLoad",
    "Submission",
    "Submitted",
    "TableFilter",
    "TableStore",
    "TokenStore",
    "UnknownRecordError",
]


class LeaseLostError(TablekeeperError):
    """The lease lapsed, or somebody claimed the operation since: stop, and leave the operation to them."""


class UnknownRecordError(TablekeeperError):
    """There is no table, operation or other record of this name or number."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list: at most `limit` after the key of the last one seen (0 or "" for the beginning)."""

    after: int | str = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class NewTable:
    """A registration. `policy` is the table's own part, None leaves what is there."""

    db_name: str
    table_name: str
    base_path: str
    owner: str = "default"
    queue: str = "default"
    action_types: tuple[ServiceAction, ...] = ()
    priority: int = DEFAULT_PRIORITY
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """Which operations; None means all. Deleted ones are left out unless asked for."""

    table_id: int | None = None
    statuses: tuple[Status, ...] | None = None
    actions: tuple[ServiceAction, ...] | None = None
    queue: str | None = None
    owner: str | None = None
    with_deleted: bool = False
    tables: TableFilter = EVERY_TABLE


DUE_WITHIN_S = 3600.0
"""After how long something without a deadline is due."""
MOST_LATE_S = 3600.0
"""How late something counts at most, so that what is very late does not keep the merely late for ever."""


@dataclass(frozen=True, slots=True)
class Queued:
    """An operation that may start now, as the choice of what runs next needs it. `waited_s` is since its back-off."""

    operation_id: int
    table_id: int
    action: ServiceAction
    queue: str
    owner: str
    priority: int
    deadline_in_s: float | None
    waited_s: float


@dataclass(frozen=True, slots=True)
class RunningLoad:
    """What is claimed or running now, over all instances. `by_share` counts by queue and owner together."""

    by_queue: Mapping[str, int] = field(default_factory=dict)
    by_owner: Mapping[str, int] = field(default_factory=dict)
    by_share: Mapping[tuple[str, str], int] = field(default_factory=dict)
    busy: frozenset[tuple[int, ServiceAction]] = frozenset()


@dataclass(frozen=True, slots=True)
class Load:
    """What a scheduler pass looks at: bounded, and independent of the history."""

    queued: tuple[Queued, ...]
    running: RunningLoad


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many operations of a queue are in a status."""

    queue: str
    status: Status
    operations: int


@dataclass(frozen=True, slots=True)
class NewInstance:
    """What an instance says of itself."""

    instance_id: str
    host: str
    pid: int
    address: str
    slots: int


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token to be stored; `digest` is the SHA-256 of the secret in hexadecimal."""

    name: str
    digest: str
    role: Role
    databases: tuple[str, ...] = ()
    path_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """How an attempt ended."""

    number: int
    outcome: AttemptOutcome
    message: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewAlarm:
    """An alarm to be opened, unless one of its key is open; one message a channel goes with it."""

    key: str
    rule: str
    text: str
    channels: Sequence[str] = ()
    table_id: int | None = None
    operation_id: int | None = None


class TableStore(Protocol):
    """Registered tables, their policies, and when their timelines are looked at."""

    def register_table(self, table: NewTable) -> tuple[ManagedTable, bool]:
        """Upsert by (db_name, table_name); True if it is new. Registering again updates what is given.

        `InvalidRequestError` if another table has the same path.
        """
        ...

    def load_table(self, table_id: int) -> ManagedTable:
        """`UnknownRecordError` if there is none."""
        ...

    def find_table(self, db_name: str, table_name: str) -> ManagedTable | None: ...

    def find_table_by_path(self, base_path: str) -> ManagedTable | None:
        """By the canonical path that it was registered with."""
        ...

    def list_tables(self, wanted: TableFilter, page: Page) -> list[ManagedTable]:
        """By table id."""
        ...

    def change_policy(self, table_id: int, policy: Policy) -> ManagedTable:
        """Replace the table's own part of its policy. What waits for a window of the day tries again."""
        ...

    def set_paused(self, table_id: int, *, is_paused: bool) -> ManagedTable:
        """A paused table starts nothing; what runs goes on."""
        ...

    def quarantine_table(self, table_id: int, reason: str) -> ManagedTable:
        """Nothing starts and nobody looks at it until it is released with an empty reason."""
        ...

    def remove_table(self, table_id: int) -> None:
        """Forget the table and its finished operations. `InvalidRequestError` while one of it is claimed or running."""
        ...

    def default_policy(self, db_name: str) -> Policy:
        """The policy of a database, over `DEFAULT_POLICY`."""
        ...

    def set_default_policy(self, db_name: str, policy: Policy) -> None:
        """Replace it. Its tables are looked at within minutes, and what waits for a window of the day tries again."""
        ...

    def effective_policy(self, table: ManagedTable) -> Policy:
        """The table's own, over the services it was registered for, over its database's, over `DEFAULT_POLICY`."""
        ...

    def notice_commit(self, table_id: int, *, delay_s: float = 0.0) -> None:
        """Somebody committed: look at the timeline soon. Any number of events before the look are one."""
        ...

    def claim_looks(self, limit: int, *, hold_s: float) -> list[ManagedTable]:
        """Tables that are due for a look, most overdue first; nobody else gets them for `hold_s`. Paused ones wait."""
        ...

    def finish_look(self, table_id: int, facts: TableFacts | None, *, next_in_s: float, is_idle: bool) -> None:
        """Keep what was seen (None: the look failed) and look again then. An event meanwhile is not lost."""
        ...


class OperationStore(Protocol):
    """The queue."""

    def submit(self, submission: Submission) -> Submitted: ...

    def submit_all(self, submissions: Sequence[Submission]) -> list[Submitted | UnknownRecordError]:
        """Submit them in one transaction; for each what became of it, or that its table is gone."""
        ...

    def find_plans(self, named: Sequence[NamedPlans]) -> list[KnownPlans]:
        """What there is of the plans of each."""
        ...

    def record_past(self, table_id: int, past: Sequence[PastOperation]) -> int:
        """Note services that completed without this database; how many of them it did not know."""
        ...

    def remove(self, table_id: int, instants: Sequence[str]) -> list[Operation]:
        """The client took these plans back: pending ones are cancelled, running ones are asked to stop."""
        ...

    def load_operation(self, operation_id: int) -> Operation:
        """`UnknownRecordError` if there is none."""
        ...

    def find_operation(self, table_id: int, instant: str) -> Operation | None: ...

    def list_operations(self, wanted: OperationFilter, page: Page) -> list[Operation]:
        """The newest first; `page.after` is the smallest operation id seen, 0 for the beginning."""
        ...

    def list_active(self, table_id: int) -> list[Operation]:
        """All operations of a table that have not ended. Few."""
        ...

    def load_attempts(self, operation_id: int) -> list[Attempt]:
        """The newest first, at most the newest 50."""
        ...

    def load_work(self, limit: int) -> Load:
        """Up to `limit` operations that may start now, of every queue some, and what runs."""
        ...

    def claim(
        self, operation_id: int, *, instance_id: str, lease_s: float, queue_limit: int = 0, owner_limit: int = 0
    ) -> Operation | None:
        """Claim it; None if somebody else was faster, the table has a running operation of that action, or its queue
        or owner has as many running as that (0: no limit), even if others claim at this moment.
        """
        ...

    def start_attempt(self, lease: Lease, *, engine: str, log_path: str, why: str = "") -> Attempt:
        """Begin the next attempt; `why` it was its turn. One still open is closed as lost: that is a failure."""
        ...

    def resume_attempt(self, lease: Lease, number: int) -> Attempt:
        """Go on with an attempt that an earlier holder started and that still runs."""
        ...

    def record_job(self, lease: Lease, number: int, job_id: str) -> None:
        """Keep the engine's own name of the attempt."""
        ...

    def record_plan(self, lease: Lease, instant: str) -> None:
        """The operation has a plan now. One that was made for the same plan meanwhile goes away if it still waits."""
        ...

    def renew(self, lease: Lease, *, lease_s: float) -> Operation:
        """Extend the lease; the operation says whether somebody wants it cancelled."""
        ...

    def settle(
        self,
        lease: Lease,
        signal: Signal,
        *,
        note: str,
        delay_s: float = 0.0,
        counts_as_failure: bool = False,
        ended: EndedAttempt | None = None,
        alarm: NewAlarm | None = None,
    ) -> Operation:
        """End the claim: complete, fail, cancel, quarantine, or wait `delay_s` for another attempt.

        The attempt is closed and the alarm opened with it or not at all: a death in between leaves an operation
        that is still running, not one whose attempt has completed and that is tried again.
        """
        ...

    def settle_waiting(self, operation_id: int, signal: Signal, *, note: str) -> bool:
        """The same for one that nobody holds (the timeline says it is done or gone); False if it is held by now."""
        ...

    def hasten(self, operation_id: int, *, deadline_in_s: float) -> None:
        """Give what waits an earlier deadline; one that is earlier already stays."""
        ...

    def ask_for(self, operation_id: int, *, instant: str, why: str) -> bool:
        """Somebody asks for what waits and has no plan yet, which takes this `instant`: it may start at once.

        False if it does not wait any more.
        """
        ...

    def request_cancel(self, operation_id: int, reason: str) -> Operation:
        """Cancel what waits; ask what runs to stop, which it learns when it renews its lease."""
        ...

    def revive(self, operation_id: int, *, note: str) -> Operation:
        """Try a failed, cancelled or quarantined operation again, or one that waits, with its failures forgotten."""
        ...

    def clear(self, table_id: int) -> int:
        """Remove a table's waiting and finished operations from the service; how many."""
        ...

    def expire_leases(self, limit: int) -> list[Operation]:
        """Give operations whose lease has lapsed back to the queue. Their attempts stay open: see `start_attempt`."""
        ...

    def prune(self, *, keep_s: float, limit: int) -> int:
        """Delete what is older than that, `limit` of each kind: finished operations with their attempts, events,
        resolved alarms, and instances that are gone; of operations that go on, all attempts but the newest. How many.
        """
        ...

    def queue_depths(self, wanted: TableFilter = EVERY_TABLE) -> list[QueueDepth]:
        """Active operations on these tables by queue and status."""
        ...

    def longest_waiting_tables(self, limit: int) -> list[int]:
        """Ids of tables with active operations, by the age of the oldest of them."""
        ...

    def shortest_lease_s(self) -> float | None:
        """Seconds until the next lease lapses, negative if one has; None if nothing is held."""
        ...

    def add_event(
        self,
        kind: str,
        text: str,
        *,
        table_id: int | None = None,
        operation_id: int | None = None,
        instance_id: str = "",
    ) -> None: ...

    def list_events(
        self,
        page: Page,
        *,
        table_id: int | None = None,
        operation_id: int | None = None,
        tables: TableFilter = EVERY_TABLE,
    ) -> list[Event]:
        """About these tables, the newest first; `page.after` is the smallest event id seen, 0 for the beginning."""
        ...

    def now_ms(self) -> int:
        """The database's time."""
        ...

    def beat(self, instance: NewInstance, *, is_draining: bool = False) -> None:
        """This instance is there."""
        ...

    def replace_instances(self, instance: NewInstance) -> None:
        """Forget others of the same host and address: two cannot listen there, so they have ended."""
        ...

    def list_instances(self) -> list[Instance]:
        """All that were seen within a day, with how many operations each holds."""
        ...

    def remove_instance(self, instance_id: str) -> None: ...


class AlarmStore(Protocol):
    """Alarms and the messages about them that have to arrive."""

    def open_alarm(self, alarm: NewAlarm) -> bool:
        """Fire; False if an alarm of this key is open already. One delivery a channel is queued with it."""
        ...

    def resolve_alarm(self, key: str, *, channels: Sequence[str]) -> bool:
        """Resolve the open alarm of this key, if there is one, and queue the message."""
        ...

    def list_alarms(self, page: Page, *, only_open: bool, tables: TableFilter = EVERY_TABLE) -> list[Alarm]:
        """About these tables, the newest first; `page.after` is the smallest alarm id seen, 0 for the beginning."""
        ...

    def claim_deliveries(self, limit: int, *, hold_s: float) -> list[Delivery]: ...

    def finish_delivery(self, delivery: Delivery, *, retry_in_s: float | None, note: str = "") -> None:
        """Delivered (None), or to be tried again then."""
        ...


class TokenStore(Protocol):
    """Bearer tokens, hashed."""

    def add_token(self, token: NewToken) -> Token: ...

    def find_token(self, digest: str) -> Token | None:
        """The token of this digest unless it is revoked."""
        ...

    def list_tokens(self) -> list[Token]: ...

    def revoke_token(self, token_id: int) -> None: ...

    def has_tokens(self) -> bool:
        """Whether there is any that is not revoked."""
        ...


class JobStore(TableStore, OperationStore, AlarmStore, TokenStore, OverviewStore, Protocol):
    """All of it: one object, one database."""

    def migrate(self) -> None:
        """Bring the schema up to date. Several instances may do it at once."""
        ...

    def close(self) -> None: ...
