"""What writers ask of the service: run this plan, forget it, this table exists, something was committed.

The calls know nothing of HTTP or gRPC. All of them are idempotent: a client that repeats itself, or that reports all
its pending plans after each commit, changes nothing. Whatever is refused stores nothing.

A plan that the service has not heard of is looked up on the table's timeline before it is stored, so that a wrong
instant is reported to its sender; one that is known already costs no look.

A request to execute plans takes four steps, which `gathered_submits` takes for many requests together: check it, find
what there is, judge its plans, store those that are new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tablekeeper.model.results import Result
from tablekeeper.server.api.parameters import (
    name_of_place,
    parse_engine,
    parse_instants,
    parse_name,
    parse_run_parameters,
)
from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.api.refusals import Refusal, RefusedCallError
from tablekeeper.server.model import ASKED_BY_WRITER, ManagedTable, Operation, Role, ServiceAction, unplanned_instant
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.store.protocol import (
    JobStore,
    KnownPlans,
    NamedPlans,
    NewTable,
    Submission,
    Submitted,
    UnknownRecordError,
)
from tablekeeper.table.summary import TimelineSummary
from tablekeeper.tracing import current_trace

__all__ = [
    "DEFAULT_DATABASE",
    "AskedPlans",
    "JudgedPlan",
    "PlanState",
    "SubmitRequest",
    "SubmittedPlan",
    "TimelineLookup",
    "WriterCalls",
    "free_name",
    "must_look",
    "tell_stored",
]

DEFAULT_DATABASE = "default"
_METADATA_TABLE = "/.hoodie/metadata"


class PlanState:
    """Words for a plan that a writer reported."""

    ACCEPTED = "accepted"
    KNOWN = "known"
    COMPLETED = "completed"


class TimelineLookup(Protocol):
    """A look at a table's timeline."""

    def plans(self, base_path: str) -> Mapping[str, tuple[ServiceAction | None, bool]]:
        """The service (None: something else) and whether it is completed, of each instant of the active timeline."""
        ...

    def summary(self, base_path: str) -> TimelineSummary:
        """What waits, what is due, and which services have completed."""
        ...

    def metadata_compactions(self, base_path: str) -> frozenset[str]:
        """Compactions that are planned on the timeline of the metadata table of the table at this path."""
        ...


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """The fields of RFC-43, as text."""

    table_name: str
    db_name: str = ""
    instant: str = ""
    owner: str = ""
    queue: str = ""
    resource: str = ""
    parallelism: str = ""
    execution_engine: str = ""
    extra_params: str = ""


@dataclass(frozen=True, slots=True)
class SubmittedPlan(Result):
    """The answer for one plan of a request. `operation_id` is None if nothing had to be stored."""

    instant: str
    state: str
    operation_id: int | None = None


@dataclass(frozen=True, slots=True)
class AskedPlans:
    """A request that is well-formed. Of the template the table and the instant are missing."""

    caller: Caller
    template: Submission
    named: NamedPlans


JudgedPlan = SubmittedPlan | Submission
"""What became of a plan; or what has to be stored for it, which tells what became of it."""


class WriterCalls:
    """The calls of writers, for all transports."""

    def __init__(
        self, store: JobStore, places: AllowedPlaces, timelines: TimelineLookup, *, engines: Collection[str]
    ) -> None:
        self._store = store
        self._places = places
        self._timelines = timelines
        self._engines = engines

    def submit(self, caller: Caller, action: ServiceAction, request: SubmitRequest) -> list[SubmittedPlan]:
        """Execute these plans. `plan_not_found`, `wrong_action`, `table_not_found` and `invalid_…` say why not."""
        asked = self.asked(caller, action, request)
        [known] = self._store.find_plans([asked.named])
        return self._stored(self.judge(asked, known))

    def asked(self, caller: Caller, action: ServiceAction, request: SubmitRequest) -> AskedPlans:
        """The request, checked by itself."""
        caller.require(Role.WRITER)
        instants = parse_instants(request.instant)
        if not instants:
            raise RefusedCallError(Refusal.INVALID_INSTANT, "instant is missing: name the plan to execute")
        return AskedPlans(caller, self._template(action, request), NamedPlans(*_names(request), instants))

    def judge(self, asked: AskedPlans, known: KnownPlans) -> list[JudgedPlan]:
        """What becomes of its plans, from what is known of them. Looks at the timeline if `must_look` says so."""
        table = known.table
        if table is None:
            raise _unknown_table(asked.named)
        asked.caller.require_table(table)
        return self._judge(table, known.operations, asked.template, asked.named.instants, ignores_unknown=False)

    def remove(self, caller: Caller, action: ServiceAction, request: SubmitRequest) -> list[str]:
        """The client took these plans back: they are cancelled here. The instants that the service knew of."""
        caller.require(Role.WRITER)
        instants = parse_instants(request.instant)
        if not instants:
            raise RefusedCallError(Refusal.INVALID_INSTANT, "instant is missing: name the plan that is gone")
        table = self._table(caller, request)
        return self._remove(table, action, instants)

    def java_request(
        self, caller: Caller, action: ServiceAction, request: SubmitRequest, *, verb: str, base_path: str
    ) -> list[SubmittedPlan]:
        """The client that Hudi ships: REQUEST, CANCEL or REGISTER, with the path of the table in each request.

        It asks after every commit, mostly about no plan at all, and a refusal would fail its write. So plans that are
        not on the timeline (any more) are passed over, and a request without any counts as news of a commit.
        """
        caller.require(Role.WRITER)
        verb = verb.strip().upper()
        if verb not in ("REQUEST", "CANCEL", "REGISTER"):
            raise RefusedCallError(Refusal.INVALID_REQUEST, f"action {verb[:40]!r}: use REQUEST, CANCEL or REGISTER")
        instants = parse_instants(request.instant)
        template = self._template(action, request)
        table, is_metadata = self._table_at(caller, request, base_path)
        if is_metadata:
            self._store.notice_commit(table.table_id)
            return self._metadata_request(table, template, instants, is_cancelled=verb == "CANCEL")
        if verb == "CANCEL":
            found = self._store.find_plans([NamedPlans(table.db_name, table.table_name, instants)])[0].operations
            # Plans of other services are passed over too: a refusal would fail the write.
            removed = self._remove(table, action, [each for each in found if found[each].action is action])
            return [SubmittedPlan(instant, "cancelled") for instant in removed]
        sought = {instant: self._store.find_operation(table.table_id, instant) for instant in instants}
        known = {instant: operation for instant, operation in sought.items() if operation is not None}
        submitted = self._stored(self._judge(table, known, template, instants, ignores_unknown=True))
        self._store.notice_commit(table.table_id)
        return submitted

    def _metadata_request(
        self, table: ManagedTable, template: Submission, instants: tuple[str, ...], *, is_cancelled: bool
    ) -> list[SubmittedPlan]:
        """Plans of the metadata table. Java leaves its compactions to a service, and nothing else of it.

        Their instants are not those of the table: the operations are known as compactions of the metadata table.
        """
        if template.action is not ServiceAction.COMPACTION or not instants:
            return []
        action = ServiceAction.METADATA_COMPACTION
        names = {unplanned_instant(action, instant): instant for instant in instants}
        if is_cancelled:
            return [
                SubmittedPlan(names[each.instant], "cancelled")
                for each in self._store.remove(table.table_id, tuple(names))
            ]
        planned = self._timelines.metadata_compactions(table.base_path)
        submissions = [
            replace(template, table_id=table.table_id, action=action, instant=name)
            for name, instant in names.items()
            if instant in planned
        ]
        answers = self._stored(submissions)
        return [replace(answer, instant=names[answer.instant]) for answer in answers]

    def callback(self, caller: Caller, *, table_name: str, base_path: str) -> ManagedTable:
        """Somebody committed to the table at this path. A table that is not registered yet is registered."""
        caller.require(Role.WRITER)
        table, _ = self._table_at(caller, SubmitRequest(table_name), base_path)
        self._store.notice_commit(table.table_id)
        return table

    def _judge(
        self,
        table: ManagedTable,
        known: Mapping[str, Operation],
        template: Submission,
        instants: tuple[str, ...],
        *,
        ignores_unknown: bool,
    ) -> list[JudgedPlan]:
        plans = self._timelines.plans(table.base_path) if _is_any_unknown(known, instants) else {}
        judged: list[JudgedPlan] = []
        for instant in instants:
            operation = known.get(instant)
            submission = replace(template, table_id=table.table_id, instant=instant)
            if operation is not None and not operation.is_deleted:
                if operation.action is not template.action and not ignores_unknown:
                    raise _wrong_action(table, instant, operation.action.value, template.action)
                # What the service found by itself waits for what the request says of memory, engine and queue.
                takes_over = operation.action is template.action and operation.why != ASKED_BY_WRITER
                is_known = SubmittedPlan(instant, PlanState.KNOWN, operation.operation_id)
                judged.append(submission if takes_over else is_known)
                continue
            if not ignores_unknown:
                _refuse_unfit(table, template.action, instant, plans)
            action, is_completed = plans.get(instant, (None, False))
            if is_completed:
                judged.append(SubmittedPlan(instant, PlanState.COMPLETED))
            elif action is template.action:
                judged.append(submission)
        return judged

    def _stored(self, judged: Sequence[JudgedPlan]) -> list[SubmittedPlan]:
        wanted = [each for each in judged if isinstance(each, Submission)]
        return tell_stored(judged, self._store.submit_all(wanted) if wanted else [])

    def _remove(self, table: ManagedTable, action: ServiceAction, instants: Sequence[str]) -> list[str]:
        for instant in instants:
            operation = self._store.find_operation(table.table_id, instant)
            if operation is not None and operation.action is not action:
                raise RefusedCallError(
                    Refusal.WRONG_ACTION, f"{instant} is a {operation.action.value}, not a {action.value}"
                )
        return [operation.instant for operation in self._store.remove(table.table_id, instants)]

    def _template(self, action: ServiceAction, request: SubmitRequest) -> Submission:
        """Everything of the request but its table and instants, checked."""
        return Submission(
            table_id=0,
            instant="",
            action=action,
            engine=parse_engine(request.execution_engine, known=self._engines),
            owner=parse_name(request.owner, field="owner") if request.owner.strip() else None,
            queue=parse_name(request.queue, field="queue") if request.queue.strip() else None,
            parameters=parse_run_parameters(
                resource=request.resource, parallelism=request.parallelism, extra_params=request.extra_params
            ),
            why=ASKED_BY_WRITER,
            trace=current_trace(),
        )

    def _table(self, caller: Caller, request: SubmitRequest) -> ManagedTable:
        db_name, table_name = _names(request)
        table = self._store.find_table(db_name, table_name)
        if table is None:
            raise _unknown_table(NamedPlans(db_name, table_name, ()))
        caller.require_table(table)
        return table

    def _table_at(self, caller: Caller, request: SubmitRequest, base_path: str) -> tuple[ManagedTable, bool]:
        """The table at this path, registered if need be; True if the path is that of its metadata table."""
        uri = self._places.canonical(base_path)
        is_metadata = uri.endswith(_METADATA_TABLE)
        uri = uri.removesuffix(_METADATA_TABLE)
        table = self._store.find_table_by_path(uri)
        if table is None:
            table = self._register(caller, request, uri, is_metadata=is_metadata)
        caller.require_table(table)
        return table, is_metadata

    def _register(self, caller: Caller, request: SubmitRequest, uri: str, *, is_metadata: bool) -> ManagedTable:
        db_name = parse_name(request.db_name, field="db_name", default=DEFAULT_DATABASE)
        given = parse_name(request.table_name, field="table_name", default=name_of_place(uri))
        # The metadata table calls itself after its table, which is not registered under that name.
        table_name = given.removesuffix("_metadata") if is_metadata else given
        if not caller.may_touch(db_name=db_name, base_path=uri):
            raise RefusedCallError(Refusal.FORBIDDEN, f"the token {caller.name!r} is not for {uri}")
        self._timelines.plans(uri)  # refuses a place without a table
        table_name = free_name(self._store, db_name, table_name, uri)
        table, _ = self._store.register_table(
            NewTable(
                db_name,
                table_name,
                uri,
                owner=parse_name(request.owner, field="owner", default="default"),
                queue=parse_name(request.queue, field="queue", default="default"),
            )
        )
        return table


def free_name(store: JobStore, db_name: str, table_name: str, uri: str) -> str:
    """The name for a table at a path that is not registered: of two tables of one name, their paths tell them apart."""
    if store.find_table(db_name, table_name) is None:
        return table_name
    return f"{table_name[:200]}@{hashlib.sha256(uri.encode()).hexdigest()[:12]}"


def must_look(asked: AskedPlans, known: KnownPlans) -> bool:
    """Whether the timeline has to be asked about one of the plans, which may take long."""
    return known.table is not None and _is_any_unknown(known.operations, asked.named.instants)


def tell_stored(
    judged: Sequence[JudgedPlan], submitted: Sequence[Submitted | UnknownRecordError]
) -> list[SubmittedPlan]:
    """The answer for each plan. `submitted` are, in their order, those among them that were to be stored."""
    stored = iter(submitted)
    return [each if isinstance(each, SubmittedPlan) else _tell(each.instant, next(stored)) for each in judged]


def _tell(instant: str, submitted: Submitted | UnknownRecordError) -> SubmittedPlan:
    if isinstance(submitted, UnknownRecordError):
        raise submitted
    state = PlanState.ACCEPTED if submitted.is_new else PlanState.KNOWN
    return SubmittedPlan(instant, state, submitted.operation.operation_id)


def _is_any_unknown(known: Mapping[str, Operation], instants: Sequence[str]) -> bool:
    return any(instant not in known or known[instant].is_deleted for instant in instants)


def _names(request: SubmitRequest) -> tuple[str, str]:
    db_name = parse_name(request.db_name, field="db_name", default=DEFAULT_DATABASE)
    return db_name, parse_name(request.table_name, field="table_name")


def _unknown_table(named: NamedPlans) -> RefusedCallError:
    return RefusedCallError(
        Refusal.TABLE_NOT_FOUND,
        f"table {named.db_name}.{named.table_name} is not registered: POST /v1/tables with its base_path first, or run "
        "`tablekeeper service add PATH`",
    )


def _refuse_unfit(
    table: ManagedTable,
    action: ServiceAction,
    instant: str,
    plans: Mapping[str, tuple[ServiceAction | None, bool]],
) -> None:
    if instant not in plans:
        raise RefusedCallError(
            Refusal.PLAN_NOT_FOUND,
            f"{instant} is not on the timeline of {table.name}: it was rolled back or archived, or never there",
        )
    found, _ = plans[instant]
    if found is not action:
        raise _wrong_action(table, instant, None if found is None else found.value, action)


def _wrong_action(table: ManagedTable, instant: str, found: str | None, asked: ServiceAction) -> RefusedCallError:
    what = "no plan of a table service" if found is None else f"a {found}"
    message = f"{instant} of {table.name} is {what}; the request is for a {asked.value}"
    return RefusedCallError(Refusal.WRONG_ACTION, message)
