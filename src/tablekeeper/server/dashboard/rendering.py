"""What all pages share: who looks, the templates, forms and their confirmation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.server.api.administration import AdminCalls
from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.api.refusals import Refusal, refusal_of
from tablekeeper.server.api.rest import RestCalls
from tablekeeper.server.dashboard.session import FORM_COOKIE, check_form, form_token, page_caller
from tablekeeper.server.dashboard.words import about_ago, filters
from tablekeeper.server.model import Role
from tablekeeper.server.store.protocol import Page
from tablekeeper.server.store.wanted import EventFilter
from tablekeeper.server.timelines import TableTimelines

__all__ = [
    "Form",
    "calls_of",
    "environment",
    "happened",
    "login_address",
    "no_page",
    "now_ms_of",
    "page_after_login",
    "render",
    "show_confirmation",
    "show_page",
    "submit_form",
    "timelines_of",
    "with_query",
]


_MOST_FIELDS = 50
_EVENTS = 10


def environment() -> Environment:
    """The templates. Whatever a value holds is escaped, and a name that is missing is an error."""
    made = Environment(
        loader=PackageLoader("tablekeeper.server.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(filters())
    return made


def happened(admin: AdminCalls, caller: Caller, wanted: EventFilter) -> list[dict[str, Any]]:
    """The last events of a table or an operation, for its page."""
    events: list[dict[str, Any]] = admin.list_events(caller, wanted, Page(limit=_EVENTS))["events"]
    return events


def show_page(request: Request, show: Callable[[Caller], Response]) -> Response:
    """A page for the caller; the way to log in, or what is wrong, where there is none."""
    try:
        caller = page_caller(request)
    except TablekeeperError as error:
        if refusal_of(error) is Refusal.UNAUTHENTICATED:
            return RedirectResponse(login_address(request), status_code=303)
        return render(request, "refused.html", None, reason=str(error), status=refusal_of(error).status)
    try:
        return show(caller)
    except TablekeeperError as error:
        return render(request, "refused.html", caller, reason=str(error), status=refusal_of(error).status)


def submit_form(request: Request, form: Mapping[str, str], act: Callable[[Caller], Response]) -> Response:
    """What a form does, if this service rendered it for this browser."""

    def checked(caller: Caller) -> Response:
        check_form(request, form.get("form_token", ""))
        return act(caller)

    return show_page(request, checked)


def show_confirmation(
    request: Request,
    caller: Caller,
    what: str,
    consequences: list[str],
    *,
    back: str = "",
    action: str = "",
    changes: list[tuple[str, str, str]] | None = None,
    hidden: Mapping[str, str] | None = None,
) -> Response:
    """Ask before acting. `consequences` are sentences; `changes` are names with what they were and will be."""
    path = str(request.url.path)
    return render(
        request,
        "confirm.html",
        caller,
        what=what,
        consequences=consequences,
        back=back or path.rpartition("/confirm/")[0],
        action=action or path,
        changes=changes or [],
        hidden=dict(hidden or {}),
    )


def no_page(request: Request) -> Response:
    """There is nothing at this address, which is told to whoever may look around."""
    reason = "there is no such page"
    return show_page(request, lambda caller: render(request, "refused.html", caller, reason=reason, status=404))


def render(request: Request, template: str, caller: Caller | None, *, status: int = 200, **values: Any) -> Response:
    """A page as it goes out, with the cookie that its forms are checked against."""
    token = form_token(request, request.app.state.runtime.ids)
    templates: Environment = request.app.state.templates
    now_ms = now_ms_of(request)
    text = templates.get_template(template).render(
        caller=caller,
        may_act=caller is not None and caller.role >= Role.OPERATOR,
        form_token=token,
        here=request.url.path,
        has_login=calls_of(request).gate.needs_token(),
        now_ms=now_ms,
        ago=partial(about_ago, now_ms=now_ms),
        **values,
    )
    response = HTMLResponse(text, status_code=status, headers={"Cache-Control": "no-store"})
    response.set_cookie(
        FORM_COOKIE, token, httponly=True, samesite="lax", secure=request.url.scheme == "https", path="/"
    )
    return response


async def _form_of(request: Request) -> dict[str, str]:
    body = (await request.body()).decode("utf-8", "replace")
    try:
        fields = parse_qs(body, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise InvalidRequestError(f"no form here has more than {_MOST_FIELDS} fields") from error
    return {name: values[0] for name, values in fields.items()}


Form = Annotated[Mapping[str, str], Depends(_form_of)]
"""The fields of a form, without the files that no form here has. Read before the route, which then has a thread."""


def login_address(request: Request) -> str:
    """Where to log in, and come back from to the page that was asked for."""
    path = request.url.path
    if request.method != "GET" or path == "/":
        return "/login"
    wanted = f"{path}?{request.url.query}" if request.url.query else path
    return f"/login?{urlencode({'then': wanted})}"


def page_after_login(wanted: str) -> str:
    """The page to show then: one of ours, whatever the address says."""
    parts = urlsplit(wanted)
    is_ours = wanted.startswith("/") and not parts.netloc and not wanted.startswith(("//", "/\\"))
    return wanted if is_ours and wanted.isprintable() else "/"


def with_query(request: Request, **changes: object) -> str:
    """This address with some of its parameters changed; None takes one away."""
    query = {**request.query_params, **changes}
    kept = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{request.url.path}?{urlencode(kept)}" if kept else str(request.url.path)


def calls_of(request: Request) -> RestCalls:
    """What the pages call."""
    calls: RestCalls = request.app.state.calls
    return calls


def timelines_of(request: Request) -> TableTimelines:
    """Where the pages look at tables."""
    timelines: TableTimelines = request.app.state.timelines
    return timelines


def now_ms_of(request: Request) -> int:
    """The moment at which the page is made."""
    return int(request.app.state.runtime.clock.now_ms())
