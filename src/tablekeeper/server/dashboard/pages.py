"""The dashboard: its routes beside those of REST, the login, the overview, instances and alarms."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import Runtime
from tablekeeper.server.api.overview import OverviewCalls
from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.dashboard.operation_pages import operation_pages
from tablekeeper.server.dashboard.plots import Plot, draw_bars, draw_lines, draw_parts
from tablekeeper.server.dashboard.rendering import (
    Form,
    calls_of,
    environment,
    page_after_login,
    render,
    show_page,
    with_query,
)
from tablekeeper.server.dashboard.session import check_form, forget_session, remember_session
from tablekeeper.server.dashboard.table_pages import table_pages
from tablekeeper.server.dashboard.words import REMEDIES
from tablekeeper.server.model import Status
from tablekeeper.server.store.overview import TableOrder
from tablekeeper.server.store.protocol import OperationFilter, Page
from tablekeeper.server.store.wanted import TableFilter
from tablekeeper.server.timelines import TableTimelines

__all__ = ["add_dashboard"]

_LOG = logging.getLogger(__name__)
_HERE = Path(__file__).parent
_PAGE_SIZE = 50
_MOST_OPEN = 1000
_SHOWN_OPEN = 8
_RANGES = (1, 6, 24, 168)
_USUAL_HOURS = 6
_pages = APIRouter(include_in_schema=False)
After = Annotated[int, Query(ge=0, le=2**62)]
Then = Annotated[str, Query(max_length=2000)]


def add_dashboard(app: FastAPI, *, timelines: TableTimelines, runtime: Runtime) -> None:
    """Put the pages beside the REST routes of `app`."""
    app.state.timelines = timelines
    app.state.runtime = runtime
    app.state.templates = environment()
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    for router in (_pages, table_pages, operation_pages):
        app.include_router(router)


@_pages.get("/login")
def login_page(request: Request, then: Then = "") -> Response:
    return render(request, "login.html", None, failed=False, then=page_after_login(then))


@_pages.post("/login")
def login(request: Request, form: Form) -> Response:
    secret = form.get("token", "")
    then = page_after_login(form.get("then", ""))
    client = request.client.host if request.client is not None else None
    try:
        calls_of(request).gate.admit(authorization=f"Bearer {secret}", client_host=client)
    except TablekeeperError as error:
        _LOG.info("login from %s: %s", client, error)
        return render(request, "login.html", None, failed=True, then=then, status=401)
    response = RedirectResponse(then, status_code=303)
    remember_session(response, secret, is_secure=request.url.scheme == "https")
    return response


@_pages.post("/logout")
def logout(request: Request, form: Form) -> Response:
    check_form(request, form.get("form_token", ""))
    response = RedirectResponse("/login", status_code=303)
    forget_session(response)
    return response


@_pages.get("/")
def overview(request: Request, hours: Annotated[int | None, Query(ge=1, le=14 * 24)] = None) -> Response:
    def show(caller: Caller) -> Response:
        calls = calls_of(request)
        history = _history(calls.overview, caller, hours)
        health = calls.overview.health(caller)
        worst = calls.overview.rank_tables(
            caller, TableFilter(is_behind=True), TableOrder.BEHIND_FOR, is_descending=True, offset=0, limit=8
        )
        failed = calls.admin.list_operations(
            caller, OperationFilter(statuses=(Status.FAILED, Status.QUARANTINED)), Page(0, 5)
        )
        running = calls.admin.list_operations(caller, OperationFilter(statuses=(Status.RUNNING,)), Page(0, 10))
        alarms = calls.admin.list_alarms(caller, Page(0, _MOST_OPEN), only_open=True)
        return render(
            request,
            "overview.html",
            caller,
            health=health,
            parts=_health_parts(health),
            plots=_plots(history),
            hours=history["hours"],
            ranges=[(each, with_query(request, hours=each)) for each in _RANGES],
            alarms=alarms[:_SHOWN_OPEN],
            open_alarms=len(alarms),
            instances=calls.admin.list_instances(caller),
            worst=worst["tables"],
            running=running["operations"],
            failed=failed["operations"],
        )

    return show_page(request, show)


@_pages.get("/instances")
def instances(request: Request) -> Response:
    def show(caller: Caller) -> Response:
        admin = calls_of(request).admin
        return render(
            request,
            "instances.html",
            caller,
            instances=admin.list_instances(caller),
            queues=admin.list_queues(caller),
        )

    return show_page(request, show)


@_pages.get("/alarms")
def alarms(request: Request, after: After = 0) -> Response:
    def show(caller: Caller) -> Response:
        admin = calls_of(request).admin
        open_ones = admin.list_alarms(caller, Page(0, 500), only_open=True)
        found = admin.list_alarms(caller, Page(after, _PAGE_SIZE), only_open=False)
        return render(
            request,
            "alarms.html",
            caller,
            open_alarms=open_ones,
            remedies=REMEDIES,
            resolved=[each for each in found if each["resolved_ms"] is not None],
            more=with_query(request, after=found[-1]["alarm_id"]) if len(found) == _PAGE_SIZE else "",
        )

    return show_page(request, show)


def _history(overview: OverviewCalls, caller: Caller, hours: int | None) -> dict[str, Any]:
    """What is drawn; where nobody asked for a time the usual one, or the shortest if there is nothing older."""
    history = overview.history(caller, hours=hours or _USUAL_HOURS)
    shortest_ms = min(_RANGES) * 3_600_000
    samples = history["samples"]
    is_young = not samples or samples[0]["minute"] * 60_000 > history["now_ms"] - shortest_ms
    return overview.history(caller, hours=min(_RANGES)) if hours is None and is_young else history


def _health_parts(health: dict[str, Any]) -> Any:
    """Every table once: where it stands."""
    up_to_date = health["tables"] - health["quarantined"] - health["paused"] - health["behind"]
    return draw_parts(
        (
            ("up to date", "good", max(0, up_to_date)),
            ("behind, within target", "busy", health["behind"] - health["late"]),
            ("behind target", "bad", health["late"]),
            ("in quarantine", "worse", health["quarantined"]),
            ("paused", "wait", health["paused"]),
        )
    )


def _plots(history: dict[str, Any]) -> dict[str, Plot]:
    end_ms = history["now_ms"]
    begin_ms = end_ms - history["hours"] * 3_600_000
    samples = [(each["minute"] * 60_000, each) for each in history["samples"]]
    bucket_ms = history["bucket_s"] * 1000
    buckets: dict[int, dict[str, int]] = {}
    for each in history["finished"]:
        buckets.setdefault(each["bucket"] * bucket_ms, {})[each["status"]] = each["operations"]
    lines = {"begin_ms": begin_ms, "end_ms": end_ms}
    return {
        "backlog": draw_lines(samples, **lines, names={"waiting": "waiting", "running": "running"}),
        "behind": draw_lines(samples, **lines, names={"behind": "behind", "late": "behind their target"}),
        "longest": draw_lines(samples, **lines, names={"longest_behind_s": "longest wait"}, is_span=True),
        "throughput": draw_bars(
            sorted(buckets.items()),
            **lines,
            bucket_ms=bucket_ms,
            names={"completed": "completed", "failed": "failed", "cancelled": "cancelled"},
        ),
    }
