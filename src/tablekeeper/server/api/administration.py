"""What people ask of the service: which tables, what runs, why, and change it.

The calls know nothing of HTTP or gRPC. Each checks the caller's role and limits, so that no transport can forget.
Answers are plain JSON values; times are epoch milliseconds of the database's clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tablekeeper.config.guarded_options import guarded_options
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import Ids
from tablekeeper.server.api.overview import within
from tablekeeper.server.api.parameters import name_of_place, parse_name
from tablekeeper.server.api.permissions import Caller, digest_of, new_secret, parse_role
from tablekeeper.server.api.refusals import Refusal, RefusedCallError
from tablekeeper.server.api.shown import (
    shown_alarm,
    shown_attempt,
    shown_event,
    shown_instance,
    shown_operation,
    shown_table,
)
from tablekeeper.server.api.writers import DEFAULT_DATABASE, TimelineLookup, free_name
from tablekeeper.server.decisions.estimate import RUNS_COMPARED, Estimate, estimate_run
from tablekeeper.server.decisions.explain import explain_operation
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.model import (
    FINISHED,
    AttemptOutcome,
    ManagedTable,
    Operation,
    Role,
    ServiceAction,
    Status,
    asked_for_instant,
    is_asked_for,
    parse_priority,
)
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.policy import Policy, parse_policy
from tablekeeper.server.settings import Limits
from tablekeeper.server.store.protocol import (
    JobStore,
    NewTable,
    NewToken,
    OperationFilter,
    Page,
    PastOperation,
    Submission,
    TableFilter,
    UnknownRecordError,
)
from tablekeeper.server.store.wanted import EventFilter
from tablekeeper.tracing import current_trace

__all__ = ["AdminCalls", "Registration"]

_MOST_PER_PAGE = 1000
_LOG_TAIL_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Registration:
    """A table to be registered, as a request says it."""

    base_path: str
    table_name: str
    db_name: str = ""
    owner: str = ""
    queue: str = ""
    priority: str = ""
    action_types: Sequence[str] = ()
    policy: Mapping[str, Any] | None = field(default=None)


class AdminCalls:
    """The calls of people and their tools, for all transports."""

    def __init__(
        self, store: JobStore, places: AllowedPlaces, timelines: TimelineLookup, ids: Ids, limits: Limits
    ) -> None:
        self._ids = ids
        self._limits = limits
        self._store = store
        self._places = places
        self._timelines = timelines

    def register_table(self, caller: Caller, given: Registration) -> tuple[dict[str, Any], bool]:
        """Register a table, or change what is given of one that is registered; True if it is new."""
        caller.require(Role.WRITER)
        uri = self._places.canonical(given.base_path)
        known = self._store.find_table_by_path(uri)
        if known is not None and not caller.may_touch(db_name=known.db_name, base_path=uri):
            raise RefusedCallError(Refusal.FORBIDDEN, f"the token {caller.name!r} is not for {uri}")
        db_name, table_name = self._named(given, uri, known)
        kept = known or NewTable(db_name, table_name, uri)
        actions = dict.fromkeys(map(ServiceAction.parse, given.action_types))
        new = NewTable(
            db_name=db_name,
            table_name=table_name,
            base_path=uri,
            owner=parse_name(given.owner, field="owner", default=kept.owner),
            queue=parse_name(given.queue, field="queue", default=kept.queue),
            action_types=tuple(actions) or kept.action_types,
            priority=parse_priority(given.priority) if given.priority.strip() else kept.priority,
            policy=None if given.policy is None else parse_policy(given.policy),
        )
        _require_for_options(caller, new.policy)
        if not caller.may_touch(db_name=new.db_name, base_path=uri):
            raise RefusedCallError(Refusal.FORBIDDEN, f"the token {caller.name!r} is not for {new.db_name} at {uri}")
        if known is not None and (known.db_name, known.table_name) != (new.db_name, new.table_name):
            raise RefusedCallError(
                Refusal.WRONG_STATE, f"{uri} is registered as {known.name} already: remove it first, or use that name"
            )
        self._refuse_taken_name(new)
        if known is not None and new.policy is not None and new.policy != parse_policy(known.policy):
            # As where a policy is changed by itself: that is no business of writers.
            caller.require(Role.OPERATOR)
        self._timelines.plans(uri)  # refuses a place without a table that can be read
        table, is_new = self._store.register_table(new)
        self._store.notice_commit(table.table_id)
        return self._shown(table), is_new

    def _named(self, given: Registration, uri: str, known: ManagedTable | None) -> tuple[str, str]:
        """The name of the table at this path: the one it has, the one it was given, or the last part of its path."""
        if known is not None and not given.table_name.strip() and given.db_name.strip() in ("", known.db_name):
            return known.db_name, known.table_name
        db_name = parse_name(given.db_name, field="db_name", default=DEFAULT_DATABASE)
        table_name = parse_name(given.table_name, field="table_name", default=name_of_place(uri))
        if not given.table_name.strip():
            return db_name, free_name(self._store, db_name, table_name, uri)
        return db_name, table_name

    def _refuse_taken_name(self, new: NewTable) -> None:
        other = self._store.find_table(new.db_name, new.table_name)
        if other is not None and other.base_path != new.base_path:
            raise RefusedCallError(
                Refusal.WRONG_STATE,
                f"{other.name} is registered at another path: remove it first, or choose another name",
            )

    def list_tables(self, caller: Caller, wanted: TableFilter, page: Page) -> dict[str, Any]:
        """A page of tables by id, with the key of the next page."""
        caller.require(Role.VIEWER)
        found = self._store.list_tables(within(caller, wanted), _checked(page))
        following = found[-1].table_id if len(found) == page.limit else None
        return {"tables": [shown_table(table) for table in found], "next": following}

    def show_table(self, caller: Caller, db_name: str, table_name: str) -> dict[str, Any]:
        """One table with its policy and what waits or runs on it."""
        caller.require(Role.VIEWER)
        table = self.find_table(caller, db_name, table_name)
        active = self._store.list_active(table.table_id)
        return {**self._shown(table), "operations": [shown_operation(operation, table) for operation in active]}

    def find_table(self, caller: Caller, db_name: str, table_name: str) -> ManagedTable:
        """By its name; `table_not_found` if there is none that the caller may see."""
        table = self._store.find_table(db_name, table_name)
        if table is None:
            raise RefusedCallError(Refusal.TABLE_NOT_FOUND, f"there is no table {db_name[:80]}.{table_name[:80]}")
        caller.require_table(table)
        return table

    def change_policy(self, caller: Caller, db_name: str, table_name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the table's own part of its policy."""
        caller.require(Role.OPERATOR)
        table = self.find_table(caller, db_name, table_name)
        parsed = parse_policy(policy)
        _require_for_options(caller, parsed)
        return self._shown(self._store.change_policy(table.table_id, parsed))

    def change_policy_text(self, caller: Caller, db_name: str, table_name: str, text: str) -> dict[str, Any]:
        """The same from a text of JSON, as a form sends it."""
        return self.change_policy(caller, db_name, table_name, _policy_of(text))

    def foresee_policy(
        self, caller: Caller, db_name: str, table_name: str, text: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What holds for the table now, and what would hold with this policy of its own. Changes nothing."""
        caller.require(Role.OPERATOR)
        table = self.find_table(caller, db_name, table_name)
        changed = replace(table, policy=parse_policy(_policy_of(text)).to_json())
        return self._store.effective_policy(table).to_json(), self._store.effective_policy(changed).to_json()

    def show_default_policy(self, caller: Caller, db_name: str) -> dict[str, Any]:
        """What holds for the tables of a database where they say nothing themselves."""
        caller.require(Role.VIEWER)
        self._require_database(caller, db_name)
        return self._shown_default(db_name)

    def change_default_policy(self, caller: Caller, db_name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
        """Replace it, also for tables that are registered later."""
        caller.require(Role.OPERATOR)
        self._require_database(caller, db_name)
        parsed = parse_policy(policy)
        _require_for_options(caller, parsed)
        self._store.set_default_policy(parse_name(db_name, field="db_name"), parsed)
        return self._shown_default(db_name)

    def set_paused(self, caller: Caller, db_name: str, table_name: str, *, is_paused: bool) -> dict[str, Any]:
        """A paused table starts nothing; what runs goes on."""
        caller.require(Role.OPERATOR)
        table = self.find_table(caller, db_name, table_name)
        return self._shown(self._store.set_paused(table.table_id, is_paused=is_paused))

    def release(self, caller: Caller, db_name: str, table_name: str) -> dict[str, Any]:
        """Let a table out of quarantine, and look at it at once."""
        caller.require(Role.OPERATOR)
        table = self.find_table(caller, db_name, table_name)
        released = self._store.quarantine_table(table.table_id, "")
        self._store.notice_commit(table.table_id)
        return self._shown(released)

    def remove_table(self, caller: Caller, db_name: str, table_name: str) -> None:
        """Forget the table. Its files are not touched."""
        caller.require(Role.OPERATOR)
        self._store.remove_table(self.find_table(caller, db_name, table_name).table_id)

    def rebuild_table(self, caller: Caller, db_name: str, table_name: str) -> dict[str, Any]:
        """Take the history of a table's services from its timeline, as far as that goes, and look at it at once.

        For a database that was lost. What is known already stays as it is, so that doing it twice changes nothing.
        """
        caller.require(Role.OPERATOR)
        table = self.find_table(caller, db_name, table_name)
        summary = self._timelines.summary(table.base_path)
        past = [
            PastOperation(each.instant, ServiceAction.parse(each.service), each.requested_ms, each.completed_ms)
            for each in summary.services
        ]
        recorded = self._store.record_past(table.table_id, past)
        self._store.notice_commit(table.table_id)
        return {"table": table.name, "recorded": recorded, "waiting": len(summary.pending)}

    def run_service(self, caller: Caller, db_name: str, table_name: str, action: str) -> dict[str, Any]:
        """Ask for a service now, whether it is due or not. Asking again before it has run changes nothing."""
        caller.require(Role.OPERATOR)
        table = self.find_table(caller, db_name, table_name)
        kind = ServiceAction.parse(action)
        # Looked at, and without reads that merge logs: what never was looked at is left to its run.
        if kind.merges_logs and table.facts.newest_time and table.facts.read_amplification is None:
            raise RefusedCallError(
                Refusal.UNFIT_SERVICE, f"{table.name} is a copy-on-write table: it has no logs to merge"
            )
        for active in self._store.list_active(table.table_id):
            if active.action is kind and active.status is not Status.QUARANTINED and not active.is_planned:
                self._ask_for(caller, active)
                return shown_operation(self._store.load_operation(active.operation_id), table)
        submission = Submission(
            table.table_id,
            asked_for_instant(kind, self._store.now_ms()),
            kind,
            why=_asked_by(caller),
            priority=table.priority,
            trace=current_trace(),
        )
        return shown_operation(self._store.submit(submission).operation, table)

    def _ask_for(self, caller: Caller, waiting: Operation) -> None:
        """Let what waits for its back-off, or for a window of the day, start now. What a person asked for stays so."""
        instant = asked_for_instant(waiting.action, self._store.now_ms())
        if is_asked_for(waiting.instant):
            instant = waiting.instant
        self._store.ask_for(waiting.operation_id, instant=instant, why=_asked_by(caller))

    def list_operations(self, caller: Caller, wanted: OperationFilter, page: Page) -> dict[str, Any]:
        """A page of operations, the newest first, with the key of the next page."""
        caller.require(Role.VIEWER)
        found = self._store.list_operations(replace(wanted, tables=within(caller, wanted.tables)), _checked(page))
        tables = self._store.load_tables([each.table_id for each in found])
        shown = [
            shown_operation(operation, table)
            for operation in found
            # One that was removed meanwhile is none any more.
            if (table := tables.get(operation.table_id)) is not None
        ]
        return {"operations": shown, "next": found[-1].operation_id if len(found) == page.limit else None}

    def show_operation(self, caller: Caller, operation_id: int) -> dict[str, Any]:
        """One operation with its attempts."""
        caller.require(Role.VIEWER)
        operation, table = self._operation(caller, operation_id)
        attempts = self._store.load_attempts(operation_id)
        return {
            **shown_operation(operation, table),
            "estimate": self._estimate(operation, table).to_json(),
            "attempts": [shown_attempt(each) for each in attempts],
        }

    def explain_operation(self, caller: Caller, operation_id: int) -> list[str]:
        """Why it waits, runs or ended as it did, in sentences."""
        caller.require(Role.VIEWER)
        operation, table = self._operation(caller, operation_id)
        reasons = explain_operation(
            operation,
            table,
            self._store.load_attempts(operation_id),
            self._store.load_work(self._limits.scheduler_window),
            self._limits,
            now_ms=self._store.now_ms(),
        )
        is_over = operation.status in FINISHED
        return reasons if is_over else [*reasons, *self._estimate(operation, table).sentences()]

    def _estimate(self, operation: Operation, table: ManagedTable) -> Estimate:
        """What a run of it saves and costs, judging by the last look and the last runs."""
        done = OperationFilter(table.table_id, statuses=(Status.COMPLETED,), actions=(operation.action,))
        past = self._store.list_operations(done, Page(limit=RUNS_COMPARED))
        attempts = [newest for each in past for newest in self._store.load_attempts(each.operation_id)[:1]]
        return estimate_run(operation.action, table.facts, attempts)

    def operation_log(self, caller: Caller, operation_id: int, *, attempt: int | None = None) -> str:
        """The end of the output of an attempt (the newest one by default), also while it runs."""
        caller.require(Role.VIEWER)
        self._operation(caller, operation_id)
        attempts = self._store.load_attempts(operation_id)
        chosen = next((each for each in attempts if attempt is None or each.number == attempt), None)
        if chosen is None:
            return ""
        text = load_log_tail(chosen.log_path, size_bytes=_LOG_TAIL_BYTES)
        if not text and chosen.instance_id and not Path(chosen.log_path).exists():
            if chosen.outcome is AttemptOutcome.RUNNING:
                return "no output so far, or it is on another machine\n"
            return "the output of this attempt is on another machine, or was removed\n"
        return text

    def cancel_operation(self, caller: Caller, operation_id: int, reason: str) -> dict[str, Any]:
        """Cancel what waits; ask what runs to stop."""
        caller.require(Role.OPERATOR)
        _, table = self._operation(caller, operation_id)
        text = reason.strip() or f"cancelled by {caller.name}"
        return shown_operation(self._store.request_cancel(operation_id, text), table)

    def retry_operation(self, caller: Caller, operation_id: int) -> dict[str, Any]:
        """Try a failed, cancelled or quarantined operation again, or one that waits without its back-off."""
        caller.require(Role.OPERATOR)
        _, table = self._operation(caller, operation_id)
        revived = self._store.revive(operation_id, note=f"tried again by {caller.name}")
        if not revived.is_planned:
            self._ask_for(caller, revived)
            revived = self._store.load_operation(operation_id)
        return shown_operation(revived, table)

    def clear_operations(self, caller: Caller, db_name: str, table_name: str) -> int:
        """Remove a table's waiting and finished operations from the service; how many."""
        caller.require(Role.OPERATOR)
        return self._store.clear(self.find_table(caller, db_name, table_name).table_id)

    def list_instances(self, caller: Caller) -> list[dict[str, Any]]:
        """The instances of the service that were seen lately."""
        caller.require(Role.VIEWER)
        return [shown_instance(instance, now_ms=self._store.now_ms()) for instance in self._store.list_instances()]

    def list_queues(self, caller: Caller) -> list[dict[str, Any]]:
        """How many operations on the caller's tables each queue has in each status."""
        caller.require(Role.VIEWER)
        queues: dict[str, dict[str, int]] = {}
        for depth in self._store.queue_depths(within(caller, TableFilter())):
            queues.setdefault(depth.queue, {})[depth.status.word] = depth.operations
        return [{"queue": queue, **counts} for queue, counts in sorted(queues.items())]

    def list_alarms(self, caller: Caller, page: Page, *, only_open: bool) -> list[dict[str, Any]]:
        """Alarms that the caller may see, the newest first: those of queues and instances are of the whole lake."""
        caller.require(Role.VIEWER)
        seen = within(caller, TableFilter())
        alarms = self._store.list_alarms(_checked(page), only_open=only_open, tables=seen)
        tables = self._store.load_tables([alarm.table_id for alarm in alarms if alarm.table_id is not None])
        return [
            {**shown_alarm(alarm), "table": tables[alarm.table_id].name if alarm.table_id in tables else ""}
            for alarm in alarms
        ]

    def list_events(self, caller: Caller, wanted: EventFilter, page: Page) -> dict[str, Any]:
        """What happened to the tables that the caller may see, the newest first, with the key of the next page."""
        caller.require(Role.VIEWER)
        table_id = None
        if wanted.table_name:
            table_id = self.find_table(caller, wanted.db_name or DEFAULT_DATABASE, wanted.table_name).table_id
        if wanted.operation_id is not None:
            self._operation(caller, wanted.operation_id)
        seen = within(caller, TableFilter(wanted.db_name or None))
        found = self._store.list_events(
            _checked(page), table_id=table_id, operation_id=wanted.operation_id, tables=seen
        )
        tables = self._store.load_tables([each.table_id for each in found if each.table_id is not None])
        shown = [shown_event(each, tables.get(each.table_id or 0)) for each in found]
        return {"events": shown, "next": found[-1].event_id if len(found) == page.limit else None}

    def add_token(
        self, caller: Caller, *, name: str, role: str, databases: Sequence[str], path_prefixes: Sequence[str]
    ) -> dict[str, Any]:
        """Make a token. The answer is the only place where the token itself is ever shown."""
        _require_for_tokens(caller)
        wanted = parse_role(role)
        if not self._store.has_tokens() and (wanted is not Role.ADMIN or databases or path_prefixes):
            raise RefusedCallError(
                Refusal.WRONG_STATE,
                "the first token has to be an admin's without limits: from then on nobody else could make another one",
            )
        secret = new_secret(self._ids)
        prefixes = tuple(self._places.canonical(prefix) for prefix in path_prefixes)
        token = self._store.add_token(
            NewToken(parse_name(name, field="name"), digest_of(secret), wanted, tuple(databases), prefixes)
        )
        return {"token_id": token.token_id, "name": token.name, "role": token.role.name.lower(), "token": secret}

    def list_tokens(self, caller: Caller) -> list[dict[str, Any]]:
        """All tokens without what they are."""
        _require_for_tokens(caller)
        return [
            {
                "token_id": token.token_id,
                "name": token.name,
                "role": token.role.name.lower(),
                "databases": list(token.databases),
                "path_prefixes": list(token.path_prefixes),
                "created_ms": token.created_ms,
                "revoked_ms": token.revoked_ms,
            }
            for token in self._store.list_tokens()
        ]

    def revoke_token(self, caller: Caller, token_id: int) -> None:
        """From now on the token opens nothing. The last admin's cannot be revoked: nobody could make another."""
        _require_for_tokens(caller)
        valid = [token for token in self._store.list_tokens() if token.revoked_ms is None]
        if all(token.token_id != token_id for token in valid):
            raise RefusedCallError(Refusal.NOT_FOUND, f"there is no token {token_id}, or it was revoked before")
        others = (token for token in valid if token.token_id != token_id)
        if not any(each.role is Role.ADMIN and not each.databases and not each.path_prefixes for each in others):
            raise RefusedCallError(
                Refusal.WRONG_STATE, "this is the last token of an admin without limits: make another one first"
            )
        self._store.revoke_token(token_id)

    def _shown_default(self, db_name: str) -> dict[str, Any]:
        return {"db_name": db_name, "effective_policy": self._store.default_policy(db_name).to_json()}

    @staticmethod
    def _require_database(caller: Caller, db_name: str) -> None:
        # A token for some places of a database is none for all of it.
        if caller.path_prefixes or (caller.databases and db_name not in caller.databases):
            raise RefusedCallError(Refusal.FORBIDDEN, f"the token {caller.name!r} is not for all of {db_name[:80]}")

    def _operation(self, caller: Caller, operation_id: int) -> tuple[Operation, ManagedTable]:
        try:
            operation = self._store.load_operation(operation_id)
        except UnknownRecordError:
            raise RefusedCallError(Refusal.OPERATION_NOT_FOUND, f"there is no operation {operation_id}") from None
        table = self._store.load_table(operation.table_id)
        if not caller.may_touch(db_name=table.db_name, base_path=table.base_path):
            raise RefusedCallError(Refusal.OPERATION_NOT_FOUND, f"there is no operation {operation_id}")
        return operation, table

    def _shown(self, table: ManagedTable) -> dict[str, Any]:
        return {**shown_table(table), "effective_policy": self._store.effective_policy(table).to_json()}


def _asked_by(caller: Caller) -> str:
    return f"{caller.name} asked for it"


def _require_for_tokens(caller: Caller) -> None:
    """Whoever makes tokens can make any: an admin with limits would make one without."""
    caller.require(Role.ADMIN)
    caller.require_everywhere("tokens")


def _require_for_options(caller: Caller, policy: Policy | None) -> None:
    """Settings that make the service call another server, or weaken locks, are for admins without limits."""
    guarded = guarded_options(policy.options) if policy is not None else []
    if guarded and not (caller.role >= Role.ADMIN and caller.sees_everything):
        raise RefusedCallError(Refusal.FORBIDDEN, f"{guarded[0]} in a policy needs an admin")


def _policy_of(text: str) -> dict[str, Any]:
    try:
        policy = json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"the policy is not JSON: {error}") from None
    if not isinstance(policy, dict):
        raise InvalidRequestError("a policy is a JSON object")
    return policy


def _checked(page: Page) -> Page:
    if not 1 <= page.limit <= _MOST_PER_PAGE:
        raise InvalidRequestError(f"limit {page.limit}: from 1 to {_MOST_PER_PAGE}")
    return page
