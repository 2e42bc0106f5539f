"""Tables: the list, and the page of one with its timeline, what comes next, its files, and what can be done with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from tablekeeper.errors import TablekeeperError
from tablekeeper.server.api.permissions import Caller
from tablekeeper.server.dashboard.drawings import draw_amplification, draw_timeline, size_classes
from tablekeeper.server.dashboard.rendering import (
    Form,
    calls_of,
    happened,
    no_page,
    now_ms_of,
    render,
    show_confirmation,
    show_page,
    submit_form,
    timelines_of,
    with_query,
)
from tablekeeper.server.model import FINISHED, Role, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.store.overview import TableOrder
from tablekeeper.server.store.protocol import OperationFilter, Page
from tablekeeper.server.store.wanted import EventFilter, TableFilter
from tablekeeper.table import Table

__all__ = ["table_pages"]

_PAGE_SIZE = 50
_LARGEST = 10
_VERBS: Mapping[str, str] = {
    "pause": "Nothing will start on this table until it is resumed. What runs goes on.",
    "resume": "The service looks at the table again and starts what is due.",
    "release": "The table leaves quarantine, and the service looks at it at once.",
    "remove": "The service forgets the table and its history. The files of the table are not touched.",
    "compaction": "A compaction is planned and executed as soon as a slot is free, whether it is due or not. "
    "It merges log files into base files.",
    "clustering": "A clustering is planned and executed as soon as a slot is free, whether it is due or not. "
    "It rewrites files in the order and size that the policy asks for.",
    "clean": "Files that no kept commit needs are deleted as soon as a slot is free. "
    "Reads as of a commit older than those kept stop working.",
    "archive": "Old instants move into the archived timeline as soon as a slot is free. No data is touched.",
}
_SERVICES = ("compaction", "clustering", "clean", "archive")
_EXPLAINED: Mapping[str, Callable[[Table], Any]] = {
    "compaction": lambda table: table.explain_compaction(),
    "clustering": lambda table: table.explain_clustering(),
    "log_compaction": lambda table: table.explain_log_compaction(),
}
_COLUMNS: tuple[tuple[TableOrder, str, bool], ...] = (
    (TableOrder.NAME, "table", False),
    (TableOrder.BEHIND_FOR, "behind for", True),
    (TableOrder.BEHIND, "commits behind", True),
    (TableOrder.AMPLIFICATION, "read amplification", True),
    (TableOrder.PLANS, "pending plans", True),
    (TableOrder.QUEUE, "queue", False),
    (TableOrder.PRIORITY, "priority", True),
    (TableOrder.OWNER, "owner", False),
)
_STATES: Mapping[str, TableFilter] = {
    "behind": TableFilter(is_behind=True),
    "paused": TableFilter(is_paused=True),
    "quarantined": TableFilter(is_quarantined=True),
}
table_pages = APIRouter(prefix="/tables", include_in_schema=False)
Short = Annotated[str, Query(max_length=200)]
Number = Annotated[int, Query(ge=1, le=1_000_000)]


@table_pages.get("")
def tables(
    request: Request,
    *,
    search: Short = "",
    state: Short = "",
    sort: Short = "name",
    down: bool = False,
    page: Number = 1,
) -> Response:
    def show(caller: Caller) -> Response:
        order = next((each for each in TableOrder if each.value == sort), TableOrder.NAME)
        answer = calls_of(request).overview.rank_tables(
            caller,
            replace(_STATES.get(state, TableFilter()), search=search),
            order,
            is_descending=down,
            offset=(page - 1) * _PAGE_SIZE,
            limit=_PAGE_SIZE,
        )
        return render(
            request,
            "tables.html",
            caller,
            search=search,
            state_wanted=state,
            columns=[_column(request, each, order, is_descending=down) for each in _COLUMNS],
            first=(page - 1) * _PAGE_SIZE + 1,
            before=with_query(request, page=page - 1) if page > 1 else "",
            more=with_query(request, page=page + 1) if answer["has_more"] else "",
            sort=sort,
            down=down,
            **answer,
        )

    return show_page(request, show)


@table_pages.get("/{db_name}/{table_name}")
def table(request: Request, db_name: str, table_name: str) -> Response:
    def show(caller: Caller) -> Response:
        calls = calls_of(request)
        shown = calls.admin.show_table(caller, db_name, table_name)
        managed = calls.admin.find_table(caller, db_name, table_name)
        # The others are told apart, among what waits and runs.
        ended = OperationFilter(table_id=shown["id"], statuses=tuple(FINISHED))
        history = calls.admin.list_operations(caller, ended, Page(0, 15))
        fault, pictures, outlook = "", {}, []
        try:
            outlook = calls.overview.outlook(caller, managed)
            pictures = _pictures(timelines_of(request).open(shown["base_path"]), now_ms=now_ms_of(request))
        except TablekeeperError as error:
            fault = str(error)
        return render(
            request,
            "table.html",
            caller,
            table=shown,
            base=_page_of(db_name, table_name),
            history=history["operations"],
            failing=_failing(history["operations"]),
            events=happened(calls.admin, caller, EventFilter(db_name, table_name)),
            outlook=outlook,
            fault=fault,
            policy_fields=sorted(Policy.__dataclass_fields__),
            runnable=_SERVICES,
            explained=tuple(_EXPLAINED),
            **{"timeline": None, "amplification": None, "plans": [], **pictures},
        )

    return show_page(request, show)


@table_pages.get("/{db_name}/{table_name}/files")
def files(request: Request, db_name: str, table_name: str) -> Response:
    """The files of a table: apart from its page, because listing a large table takes longer."""

    def show(caller: Caller) -> Response:
        caller.require(Role.VIEWER)
        found = calls_of(request).admin.find_table(caller, db_name, table_name)
        slices = timelines_of(request).open(found.base_path).files().slices
        logs = sorted(slices, key=lambda each: (len(each.logs), sum(log.size for log in each.logs)), reverse=True)
        classes = size_classes(slices)
        return render(
            request,
            "files.html",
            caller,
            table=found,
            base=_page_of(db_name, table_name),
            classes=classes,
            most=max(1, *(each.files for each in classes)),
            groups=len(slices),
            partitions=len({each.group.partition for each in slices}),
            base_bytes=sum(each.base.size for each in slices if each.base is not None),
            log_files=sum(len(each.logs) for each in slices),
            log_bytes=sum(log.size for each in slices for log in each.logs),
            heaviest=[
                {
                    "partition": each.group.partition,
                    "file_id": each.group.file_id,
                    "base_bytes": each.base.size if each.base is not None else 0,
                    "logs": len(each.logs),
                    "log_bytes": sum(log.size for log in each.logs),
                }
                for each in logs[:_LARGEST]
                if each.logs
            ],
        )

    return show_page(request, show)


@table_pages.get("/{db_name}/{table_name}/preview/{service}")
def preview(request: Request, db_name: str, table_name: str, service: str) -> Response:
    """What the next plan of a service would do, and why: a dry run."""

    def show(caller: Caller) -> Response:
        caller.require(Role.VIEWER)
        found = calls_of(request).admin.find_table(caller, db_name, table_name)
        explanation = _EXPLAINED[service](timelines_of(request).open(found.base_path))
        return render(
            request,
            "preview.html",
            caller,
            table=found,
            service=service,
            base=_page_of(db_name, table_name),
            can_run=service in _SERVICES,
            plan=explanation.to_dict(),
        )

    return show_page(request, show) if service in _EXPLAINED else no_page(request)


@table_pages.get("/{db_name}/{table_name}/confirm/{verb}")
def confirm_table(request: Request, db_name: str, table_name: str, verb: str) -> Response:
    def show(caller: Caller) -> Response:
        caller.require(Role.OPERATOR)
        shown = calls_of(request).admin.show_table(caller, db_name, table_name)
        what = f"run {verb} on" if verb in _SERVICES else verb
        told = [_VERBS[verb], *_now(shown)]
        return show_confirmation(request, caller, f"{what} {db_name}.{table_name}", told)

    return show_page(request, show) if verb in _VERBS else no_page(request)


@table_pages.post("/{db_name}/{table_name}/confirm/{verb}")
def act_on_table(request: Request, db_name: str, table_name: str, verb: str, form: Form) -> Response:
    def act(caller: Caller) -> Response:
        admin = calls_of(request).admin
        acts: Mapping[str, Callable[[], object]] = {
            "pause": lambda: admin.set_paused(caller, db_name, table_name, is_paused=True),
            "resume": lambda: admin.set_paused(caller, db_name, table_name, is_paused=False),
            "release": lambda: admin.release(caller, db_name, table_name),
            "remove": lambda: admin.remove_table(caller, db_name, table_name),
        }
        acts.get(verb, lambda: admin.run_service(caller, db_name, table_name, verb))()
        return RedirectResponse("/tables" if verb == "remove" else _page_of(db_name, table_name), status_code=303)

    return submit_form(request, form, act) if verb in _VERBS else no_page(request)


@table_pages.post("/{db_name}/{table_name}/policy")
def confirm_policy(request: Request, db_name: str, table_name: str, form: Form) -> Response:
    """What a changed policy would change, before it does."""

    def show(caller: Caller) -> Response:
        caller.require(Role.OPERATOR)
        admin = calls_of(request).admin
        text = form.get("policy", "")
        before, after = admin.foresee_policy(caller, db_name, table_name, text)
        changes = [
            (name, _told(before.get(name)), _told(after.get(name)))
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
        page = _page_of(db_name, table_name)
        told = "The service looks at the table again by the new policy. What waits or runs already is not changed."
        return show_confirmation(
            request,
            caller,
            f"change the policy of {db_name}.{table_name}",
            [told if changes else "Nothing would change: the same holds now."],
            back=page,
            action=f"{page}/policy/confirm",
            changes=changes,
            hidden={"policy": text},
        )

    return submit_form(request, form, show)


@table_pages.post("/{db_name}/{table_name}/policy/confirm")
def change_policy(request: Request, db_name: str, table_name: str, form: Form) -> Response:
    def act(caller: Caller) -> Response:
        calls_of(request).admin.change_policy_text(caller, db_name, table_name, form.get("policy", ""))
        return RedirectResponse(_page_of(db_name, table_name), status_code=303)

    return submit_form(request, form, act)


def _pictures(table: Table, *, now_ms: int) -> dict[str, Any]:
    instants = table.timeline().instants
    zone = table.config.time_zone
    # A plan is read from the timeline for each of them: not without need.
    has_plans = any(instant.is_pending and instant.action.is_plan for instant in instants)
    return {
        "timeline": draw_timeline(instants, now_ms=now_ms, zone=zone),
        "amplification": draw_amplification(instants, now_ms=now_ms, zone=zone) if table.config.is_mor else None,
        "plans": [plan.to_dict() for plan in table.plans()] if has_plans else [],
    }


def _column(
    request: Request, column: tuple[TableOrder, str, bool], sorted_by: TableOrder, *, is_descending: bool
) -> dict[str, object]:
    """The header of a column. The first click on a number shows the largest, the next the smallest."""
    order, name, is_number = column
    is_sorted = order is sorted_by
    down = not is_descending if is_sorted else is_number
    return {
        "name": name,
        "is_number": is_number,
        "sorted": ("descending" if is_descending else "ascending") if is_sorted else "",
        "link": with_query(request, sort=order.value, down="true" if down else None, page=None),
    }


def _now(shown: Mapping[str, Any]) -> list[str]:
    """How things stand on the table, beside what is about to be done."""
    count = len(shown["operations"])
    waiting = f"{count} of its operations wait or run." if count != 1 else "One of its operations waits or runs."
    facts = shown["facts"]
    behind = f"{facts['commits_behind']} delta commits wait for a compaction." if facts["commits_behind"] else ""
    return [each for each in (waiting if count else "Nothing waits or runs on it now.", behind) if each]


def _page_of(db_name: str, table_name: str) -> str:
    return f"/tables/{quote(db_name, safe='')}/{quote(table_name, safe='')}"


def _told(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _failing(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each service its last operation, where that failed. `history` has the newest first."""
    last: dict[str, dict[str, Any]] = {}
    for each in history:
        last.setdefault(each["action"], each)
    return [each for each in last.values() if each["status"] == Status.FAILED.word]
