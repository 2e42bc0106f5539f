"""What instances of the service do, and what writers and operators ask of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from tablekeeper.server.api.writers import SubmitRequest
from tablekeeper.server.model import ServiceAction
from tablekeeper.testing.jobs import job
from tablekeeper.testing.service.site import (
    CALLER,
    DATABASE_NAME,
    REFUSALS,
    TABLE_NAME,
    Instance,
    Site,
    UnansweredError,
)
from tablekeeper.testing.worker import Worker
from tablekeeper.testing.world import URI

__all__ = ["serve"]

T = TypeVar("T")

_TRIES = 3
_LIVES_S = (20.0, 60.0, 150.0, 400.0)


@job("service", calls=120)
def serve(worker: Worker) -> None:
    """An instance: all of its loops for a while, and then its orderly end."""
    service = worker.world.shared(Site).open_instance(worker).service
    try:
        service.start()
    except SQLAlchemyError:
        # It ends with this error: an instance does not come up while its database is away.
        worker.story.counts["service did not start"] += 1
        return
    worker.process.sleep(worker.chance.choice(_LIVES_S))
    service.drain()


@job("client", calls=12, weight=3)
def report_plans(worker: Worker) -> None:
    """All plans that wait, as writers of Java report them after each commit."""
    summary = worker.attempt("summary", worker.table.timeline_summary)
    by_service: dict[str, list[str]] = {}
    for plan in summary.pending if summary is not None else ():
        by_service.setdefault(plan.service, []).append(plan.instant)
    for service, instants in by_service.items():
        _ask(worker, "report", partial(_reported, ServiceAction.parse(service), _request(instants)))


@job("client", calls=12, weight=2)
def submit_plan(worker: Worker) -> None:
    """One plan, as RFC-43 has it. Whoever got an answer knows that it is remembered."""
    site = worker.world.shared(Site)
    summary = worker.attempt("summary", worker.table.timeline_summary)
    if summary is None or not summary.pending:
        return
    plan = summary.pending[-1]
    action, request = ServiceAction.parse(plan.service), _request([plan.instant])
    answer = _ask(worker, "submit", lambda to: to.calls.submit(CALLER, action, request))
    for told in answer or ():
        if told.operation_id is not None:
            site.acknowledged[told.instant] = told.operation_id


@job("client", calls=12)
def take_plan_back(worker: Worker) -> None:
    """The client does not want a plan executed any more."""
    operations = [row for row in worker.world.shared(Site).watch.operations() if "@" not in row["instant"]]
    if operations:
        row = worker.chance.choice(operations)
        action = ServiceAction(row["action"])
        _ask(worker, "remove", lambda to: to.calls.remove(CALLER, action, _request([row["instant"]])))
        worker.world.shared(Site).acknowledged.pop(row["instant"], None)


@job("client", calls=5, weight=2)
def call_back(worker: Worker) -> None:
    """News of a commit, as Hudi's writers post it."""
    _ask(worker, "callback", lambda to: to.calls.callback(CALLER, table_name=TABLE_NAME, base_path=URI))


@job("operator", calls=5)
def cancel_operation(worker: Worker) -> None:
    """Somebody stops an operation by hand."""
    rows = [row for row in worker.world.shared(Site).watch.operations() if row["status"] <= 2]
    if rows:
        number = worker.chance.choice(rows)["operation_id"]
        _ask(worker, "cancel", lambda to: to.service.store.request_cancel(number, "by hand"))


def _reported(action: ServiceAction, request: SubmitRequest, to: Instance) -> object:
    return to.calls.java_request(CALLER, action, request, verb="REQUEST", base_path=URI)


def _request(instants: list[str]) -> SubmitRequest:
    return SubmitRequest(TABLE_NAME, db_name=DATABASE_NAME, instant=",".join(instants))


def _ask(worker: Worker, what: str, call: Callable[[Instance], T]) -> T | None:
    """Ask until there is an answer, a few times; None if there is none, or if it says no."""
    story = worker.story
    for _ in range(_TRIES):
        try:
            answer = worker.world.shared(Site).ask(worker, what, call)
        except UnansweredError:
            story.counts[f"request {what} unanswered"] += 1
            worker.process.sleep(worker.chance.choice((0.1, 5.0, 60.0)))
        except REFUSALS as error:
            story.counts[f"request {what} {type(error).__name__}"] += 1
            return None
        else:
            story.counts[f"request {what} answered"] += 1
            return answer
    return None
