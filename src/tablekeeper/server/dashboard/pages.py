"""The pages and the forms on them. Each page is a call, and a template that shows its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import Runtime
from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.api.refusals import Refusal, refusal_of
from tablekeeper.server.api.rest import RestCalls, parse_status
from tablekeeper.server.dashboard.drawings import draw_timeline
from tablekeeper.server.dashboard.session import (
    FORM_COOKIE,
    check_form,
    forget_session,
    form_token,
    page_caller,
    remember_session,
)
from tablekeeper.server.model import ServiceAction, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.store.protocol import OperationFilter, Page, TableFilter
from tablekeeper.server.timelines import TableTimelines

__all__ = ["add_dashboard"]

_PAGE_SIZE = 50
_HERE = Path(__file__).parent
_pages = APIRouter(include_in_schema=False)
_VERBS: Mapping[str, str] = {
    "pause": "Nothing will start on this table until it is resumed. What runs goes on.",
    "resume": "The service looks at the table again and starts what is due.",
    "release": "The table leaves quarantine, and the service looks at it at once.",
    "remove": "The service forgets the table and its history. The files of the table are not touched.",
    "compaction": "A compaction is planned and executed as soon as a slot is free, whether it is due or not.",
    "clustering": "A clustering is planned and executed as soon as a slot is free, whether it is due or not.",
    "clean": "Files that no kept commit needs are deleted as soon as a slot is free.",
    "archive": "Old instants move into the archived timeline as soon as a slot is free.",
}
_SERVICES = ("compaction", "clustering", "clean", "archive")
_OPERATION_VERBS: Mapping[str, str] = {
    "cancel": "If it waits it will not run; if it runs it is asked to stop, and what it wrote is rolled back.",
    "retry": "It is put back into the queue, and its earlier failures are forgotten.",
}
Short = Annotated[str, Query(max_length=200)]


def add_dashboard(app: FastAPI, *, timelines: TableTimelines, runtime: Runtime) -> None:
    """Put the pages beside the REST routes of `app`."""
    app.state.timelines = timelines
    app.state.runtime = runtime
    app.state.templates = _environment()
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    app.include_router(_pages)


@_pages.get("/login")
def login_page(request: Request) -> Response:
    return _render(request, "login.html", None, failed=False)


@_pages.post("/login")
async def login(request: Request) -> Response:
    form = await _form(request)
    calls = _calls(request)
    secret = form.get("token", "")
    client = request.client.host if request.client is not None else None
    try:
        calls.gate.admit(authorization=f"Bearer {secret}", client_host=client)
    except TablekeeperError:
        return _render(request, "login.html", None, failed=True, status=401)
    response = RedirectResponse("/", status_code=303)
    remember_session(response, secret, is_secure=request.url.scheme == "https")
    return response


@_pages.post("/logout")
async def logout(request: Request) -> Response:
    check_form(request, (await _form(request)).get("form_token", ""))
    response = RedirectResponse("/login", status_code=303)
    forget_session(response)
    return response


@_pages.get("/")
def overview(request: Request) -> Response:
    def show(caller: Caller) -> Response:
        admin = _calls(request).admin
        running = admin.list_operations(caller, OperationFilter(statuses=(Status.RUNNING,)), Page(0, 20))
        failed = admin.list_operations(
            caller, OperationFilter(statuses=(Status.FAILED, Status.QUARANTINED)), Page(0, 10)
        )
        return _render(
            request,
            "overview.html",
            caller,
            totals=admin.totals(caller),
            queues=admin.list_queues(caller),
            instances=admin.list_instances(caller),
            alarms=admin.list_alarms(caller, Page(0, 20), only_open=True),
            running=running["operations"],
            failed=failed["operations"],
        )

    return _page(request, show)


@_pages.get("/tables")
def tables(request: Request, search: Short = "", state: Short = "", after: int = 0) -> Response:
    def show(caller: Caller) -> Response:
        wanted = TableFilter(
            search=search,
            is_paused=True if state == "paused" else None,
            is_quarantined=True if state == "quarantined" else None,
        )
        answer = _calls(request).admin.list_tables(caller, wanted, Page(max(0, after), _PAGE_SIZE))
        return _render(
            request, "tables.html", caller, search=search, state=state, more=_more(request, answer["next"]), **answer
        )

    return _page(request, show)


@_pages.get("/tables/{db_name}/{table_name}")
def table(request: Request, db_name: str, table_name: str) -> Response:
    def show(caller: Caller) -> Response:
        admin = _calls(request).admin
        shown = admin.show_table(caller, db_name, table_name)
        history = admin.list_operations(caller, OperationFilter(table_id=shown["id"]), Page(0, 20))
        fault, picture = "", None
        try:
            instants = request.app.state.timelines.instants(shown["base_path"])
            picture = draw_timeline(instants, now_ms=request.app.state.runtime.clock.now_ms())
        except TablekeeperError as error:
            fault = str(error)
        return _render(
            request,
            "table.html",
            caller,
            table=shown,
            history=history["operations"],
            picture=picture,
            fault=fault,
            policy_fields=sorted(Policy.__dataclass_fields__),
        )

    return _page(request, show)


@_pages.get("/tables/{db_name}/{table_name}/confirm/{verb}")
def confirm_table(request: Request, db_name: str, table_name: str, verb: str) -> Response:
    def show(caller: Caller) -> Response:
        _calls(request).admin.find_table(caller, db_name, table_name)
        what = f"run {verb} on" if verb in _SERVICES else verb
        return _confirm(request, caller, f"{what} {db_name}.{table_name}", _VERBS[verb])

    return _page(request, show) if verb in _VERBS else _not_found(request)


@_pages.post("/tables/{db_name}/{table_name}/confirm/{verb}")
async def act_on_table(request: Request, db_name: str, table_name: str, verb: str) -> Response:
    form = await _form(request)

    def act(caller: Caller) -> Response:
        check_form(request, form.get("form_token", ""))
        admin = _calls(request).admin
        acts: Mapping[str, Callable[[], object]] = {
            "pause": lambda: admin.set_paused(caller, db_name, table_name, is_paused=True),
            "resume": lambda: admin.set_paused(caller, db_name, table_name, is_paused=False),
            "release": lambda: admin.release(caller, db_name, table_name),
            "remove": lambda: admin.remove_table(caller, db_name, table_name),
        }
        acts.get(verb, lambda: admin.run_service(caller, db_name, table_name, verb))()
        to = "/tables" if verb == "remove" else str(request.url.path).rpartition("/confirm/")[0]
        return RedirectResponse(to, status_code=303)

    return _page(request, act) if verb in _VERBS else _not_found(request)


@_pages.post("/tables/{db_name}/{table_name}/policy")
async def change_policy(request: Request, db_name: str, table_name: str) -> Response:
    form = await _form(request)

    def act(caller: Caller) -> Response:
        check_form(request, form.get("form_token", ""))
        _calls(request).admin.change_policy_text(caller, db_name, table_name, form.get("policy", ""))
        return RedirectResponse(str(request.url.path).rpartition("/policy")[0], status_code=303)

    return _page(request, act)


@_pages.get("/operations")
def operations(request: Request, status: Short = "", action: Short = "", after: int = 0) -> Response:
    def show(caller: Caller) -> Response:
        wanted = OperationFilter(
            statuses=(parse_status(status),) if status else None,
            actions=(ServiceAction.parse(action),) if action else None,
        )
        answer = _calls(request).admin.list_operations(caller, wanted, Page(max(0, after), _PAGE_SIZE))
        return _render(
            request,
            "operations.html",
            caller,
            status_wanted=status,
            action_wanted=action,
            statuses=[each.word for each in Status],
            actions=[each.value for each in ServiceAction],
            more=_more(request, answer["next"]),
            **answer,
        )

    return _page(request, show)


@_pages.get("/operations/{operation_id}")
def operation(request: Request, operation_id: int) -> Response:
    def show(caller: Caller) -> Response:
        admin = _calls(request).admin
        shown = admin.show_operation(caller, operation_id)
        log = admin.operation_log(caller, operation_id)
        return _render(request, "operation.html", caller, operation=shown, log=log)

    return _page(request, show)


@_pages.get("/operations/{operation_id}/confirm/{verb}")
def confirm_operation(request: Request, operation_id: int, verb: str) -> Response:
    def show(caller: Caller) -> Response:
        _calls(request).admin.show_operation(caller, operation_id)
        return _confirm(request, caller, f"{verb} operation {operation_id}", _OPERATION_VERBS[verb])

    return _page(request, show) if verb in _OPERATION_VERBS else _not_found(request)


@_pages.post("/operations/{operation_id}/confirm/{verb}")
async def act_on_operation(request: Request, operation_id: int, verb: str) -> Response:
    form = await _form(request)

    def act(caller: Caller) -> Response:
        check_form(request, form.get("form_token", ""))
        admin = _calls(request).admin
        if verb == "cancel":
            admin.cancel_operation(caller, operation_id, "")
        else:
            admin.retry_operation(caller, operation_id)
        return RedirectResponse(f"/operations/{operation_id}", status_code=303)

    return _page(request, act) if verb in _OPERATION_VERBS else _not_found(request)


@_pages.get("/instances")
def instances(request: Request) -> Response:
    def show(caller: Caller) -> Response:
        admin = _calls(request).admin
        return _render(
            request,
            "instances.html",
            caller,
            instances=admin.list_instances(caller),
            queues=admin.list_queues(caller),
        )

    return _page(request, show)


@_pages.get("/alarms")
def alarms(request: Request, after: int = 0) -> Response:
    def show(caller: Caller) -> Response:
        found = _calls(request).admin.list_alarms(caller, Page(max(0, after), _PAGE_SIZE), only_open=False)
        return _render(request, "alarms.html", caller, alarms=found)

    return _page(request, show)


def _page(request: Request, show: Callable[[Caller], Response]) -> Response:
    """A page for whoever asks; the way to log in, or what is wrong, where there is none."""
    try:
        return show(page_caller(request))
    except TablekeeperError as error:
        refusal = refusal_of(error)
        if refusal is Refusal.UNAUTHENTICATED:
            return RedirectResponse("/login", status_code=303)
        return _render(request, "refused.html", None, reason=str(error), status=refusal.status)


def _confirm(request: Request, caller: Caller, what: str, consequence: str) -> Response:
    back = str(request.url.path).rpartition("/confirm/")[0]
    return _render(request, "confirm.html", caller, what=what, consequence=consequence, back=back)


def _not_found(request: Request) -> Response:
    return _render(request, "refused.html", None, reason="there is no such page", status=404)


def _render(request: Request, template: str, caller: Caller | None, *, status: int = 200, **values: Any) -> Response:
    token = form_token(request, request.app.state.runtime.ids)
    environment: Environment = request.app.state.templates
    text = environment.get_template(template).render(
        caller=caller, form_token=token, here=request.url.path, has_login=_calls(request).gate.needs_token(), **values
    )
    response = HTMLResponse(text, status_code=status, headers={"Cache-Control": "no-store"})
    response.set_cookie(
        FORM_COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )
    return response


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, without the files that no form here has."""
    body = (await request.body()).decode("utf-8", "replace")
    return {name: values[0] for name, values in parse_qs(body, keep_blank_values=True, max_num_fields=50).items()}


def _more(request: Request, following: int | None) -> str:
    """The address of the next page, empty if there is none."""
    if following is None:
        return ""
    query = {name: value for name, value in request.query_params.items() if name != "after"}
    return f"{request.url.path}?{urlencode({**query, 'after': following})}"


def _calls(request: Request) -> RestCalls:
    calls: RestCalls = request.app.state.calls
    return calls


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tablekeeper.server.dashboard"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["moment"] = _moment
    return environment


def _moment(moment_ms: int | None) -> str:
    if not moment_ms:
        return "-"
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
