"""Operations: the list, and the page of one with its live state, its output and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import RedirectResponse, Response

from tablekeeper.server.api.parameters import parse_status
from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.dashboard.rendering import (
    Form,
    calls_of,
    happened,
    no_page,
    render,
    show_confirmation,
    show_page,
    submit_form,
    with_query,
)
from tablekeeper.server.model import Role, ServiceAction, Status
from tablekeeper.server.store.protocol import OperationFilter, Page
from tablekeeper.server.store.wanted import EventFilter

__all__ = ["operation_pages"]

_PAGE_SIZE = 50
operation_pages = APIRouter(prefix="/operations", include_in_schema=False)
_VERBS: Mapping[str, Mapping[str, str]] = {
    "cancel": {
        "pending": "It waits, and will not run. Its plan stays on the timeline, if it has one.",
        "failed": "It will not be tried again, and its alarm ends. Its plan stays on the timeline, if it has one.",
        "quarantined": "It will not be tried again. Its plan stays on the timeline, if it has one.",
        "": "It is asked to stop. What its attempt wrote is rolled back, and its plan stays on the timeline.",
    },
    "retry": {"": "It goes back into the queue, and its earlier failures are forgotten."},
}
Short = Annotated[str, Query(max_length=200)]
Number = Annotated[int, Path(ge=0, le=2**62)]
After = Annotated[int, Query(ge=0, le=2**62)]


@operation_pages.get("")
def operations(request: Request, status: Short = "", action: Short = "", after: After = 0) -> Response:
    def show(caller: Caller) -> Response:
        wanted = OperationFilter(
            statuses=(parse_status(status),) if status else None,
            actions=(ServiceAction.parse(action),) if action else None,
        )
        answer = calls_of(request).admin.list_operations(caller, wanted, Page(after, _PAGE_SIZE))
        return render(
            request,
            "operations.html",
            caller,
            operations=answer["operations"],
            status_wanted=status,
            action_wanted=action,
            statuses=[each.word for each in Status],
            actions=[each.value for each in ServiceAction],
            more=with_query(request, after=answer["next"]) if answer["next"] is not None else "",
        )

    return show_page(request, show)


@operation_pages.get("/{operation_id}")
def operation(request: Request, operation_id: Number) -> Response:
    def show(caller: Caller) -> Response:
        admin = calls_of(request).admin
        return render(
            request,
            "operation.html",
            caller,
            operation=admin.show_operation(caller, operation_id),
            reasons=admin.explain_operation(caller, operation_id),
            log=admin.operation_log(caller, operation_id),
            events=happened(admin, caller, EventFilter(operation_id=operation_id)),
        )

    return show_page(request, show)


@operation_pages.get("/{operation_id}/confirm/{verb}")
def confirm_operation(request: Request, operation_id: Number, verb: str) -> Response:
    def show(caller: Caller) -> Response:
        caller.require(Role.OPERATOR)
        shown = calls_of(request).admin.show_operation(caller, operation_id)
        told = _VERBS[verb].get(shown["status"], _VERBS[verb][""])
        what = f"{verb} operation {operation_id}"
        about = f"It is the {shown['action'].replace('_', ' ')} of {shown['table']}, {shown['status']} now."
        return show_confirmation(request, caller, what, [about, told])

    return show_page(request, show) if verb in _VERBS else no_page(request)


@operation_pages.post("/{operation_id}/confirm/{verb}")
def act_on_operation(request: Request, operation_id: Number, verb: str, form: Form) -> Response:
    def act(caller: Caller) -> Response:
        admin = calls_of(request).admin
        if verb == "cancel":
            admin.cancel_operation(caller, operation_id, "")
        else:
            admin.retry_operation(caller, operation_id)
        return RedirectResponse(f"/operations/{operation_id}", status_code=303)

    return submit_form(request, form, act) if verb in _VERBS else no_page(request)
