"""The REST application: RFC-43's paths, the Java client's, Hudi's callback, and those for people and their tools.

Routes decide nothing: they turn a request into a call and its answer into JSON. Every route names the role it needs in
its dependencies; a test walks all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.server.api.administration import AdminCalls
from tablekeeper.server.api.bodies import (
    EVENTS_EXAMPLE,
    POLICY_EXAMPLES,
    CancelBody,
    CommitCallbackBody,
    RefusalBody,
    RemoveBody,
    SubmitBody,
    TableBody,
    TokenBody,
)
from tablekeeper.server.api.gathered_submits import GatheredSubmits
from tablekeeper.server.api.guards import refusal_body
from tablekeeper.server.api.overview import OverviewCalls
from tablekeeper.server.api.parameters import parse_actions, parse_statuses
from tablekeeper.server.api.permissions import Caller, Gate, callback_authorization
from tablekeeper.server.api.refusals import Refusal, database_is_away, refusal_of
from tablekeeper.server.api.writers import SubmitRequest, WriterCalls
from tablekeeper.server.model import Role, ServiceAction
from tablekeeper.server.store.database import DATABASE_AWAY
from tablekeeper.server.store.protocol import OperationFilter, Page, TableFilter
from tablekeeper.server.store.wanted import EventFilter

__all__ = ["RestCalls", "needs", "rest_application"]

_LOG = logging.getLogger(__name__)
_HTTP_ERRORS = {
    400: Refusal.INVALID_REQUEST,
    401: Refusal.UNAUTHENTICATED,
    403: Refusal.FORBIDDEN,
    404: Refusal.NOT_FOUND,
    405: Refusal.WRONG_METHOD,
}


@dataclass(frozen=True, slots=True)
class RestCalls:
    """What the routes call."""

    gate: Gate
    writers: WriterCalls
    submits: GatheredSubmits
    admin: AdminCalls
    overview: OverviewCalls
    is_ready: Callable[[], bool]


def needs(role: Role, *, of_the_lake: str = "") -> Callable[[Request], Awaitable[Caller]]:
    """A dependency that admits callers of this role and above, and no token with limits to what is `of_the_lake`."""

    async def admit(request: Request) -> Caller:
        calls: RestCalls = request.app.state.calls
        client = request.client.host if request.client is not None else None
        sent = request.headers
        authorization = sent.get("authorization") or callback_authorization(sent.get("hudi-callback-key"))
        # A thread only where the database has to be asked.
        caller = calls.gate.admit_at_once(authorization=authorization, client_host=client)
        if caller is None:
            caller = await run_in_threadpool(calls.gate.admit, authorization=authorization, client_host=client)
        caller.require(role)
        if of_the_lake:
            caller.require_everywhere(of_the_lake)
        return caller

    return admit


def only_known_parameters(request: Request) -> None:
    """A filter that is misspelt would otherwise select everything."""
    known = {each.alias for each in request.scope["route"].dependant.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise InvalidRequestError(f"there is no parameter {unknown[0][:60]!r} here: use {', '.join(sorted(known))}")


Viewer = Annotated[Caller, Depends(needs(Role.VIEWER))]
Writer = Annotated[Caller, Depends(needs(Role.WRITER))]
Operator = Annotated[Caller, Depends(needs(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(needs(Role.ADMIN))]
Number = Annotated[int, Path(ge=0, le=2**62)]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
After = Annotated[int, Query(ge=0, le=2**62, description="`next` of the page before.")]
Short = Annotated[str, Query(max_length=2000)]
Long = Annotated[str, Query(max_length=20_000)]


def rest_application(calls: RestCalls) -> FastAPI:
    """The application. The guard (`guards.RequestGuard`) is put around it where it is served."""
    app = FastAPI(
        title="tablekeeper: Table Management Service",
        summary="Keeps Apache Hudi tables healthy: compaction, clustering, cleaning and archiving for a whole lake.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        responses={
            "4XX": {"model": RefusalBody, "description": "The call is refused, and nothing was stored."},
            "5XX": {"model": RefusalBody, "description": "The service cannot answer at the moment."},
        },
    )
    app.state.calls = calls
    app.add_exception_handler(TablekeeperError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _failed)
    for error in DATABASE_AWAY:
        app.add_exception_handler(error, _database_away)
    for router in (_rfc, _tables, _databases, _operations, _others):
        app.include_router(router)
    app.add_api_route(
        "/v1/openapi.json", app.openapi, dependencies=[Depends(needs(Role.VIEWER))], include_in_schema=False
    )
    return app


_rfc = APIRouter(prefix="/v1/hoodie", tags=["writers"])
_tables = APIRouter(prefix="/v1/tables", tags=["tables"])
_databases = APIRouter(prefix="/v1/databases", tags=["tables"])
_operations = APIRouter(prefix="/v1/operations", tags=["operations"])
_others = APIRouter(tags=["service"])


def _calls(request: Request) -> RestCalls:
    calls: RestCalls = request.app.state.calls
    return calls


@_rfc.post("/service/{service}/submit")
async def submit(request: Request, service: str, body: SubmitBody, caller: Writer) -> dict[str, Any]:
    """Execute pending plans of a registered table. Repeating it changes nothing."""
    plans = await _calls(request).submits.submit(caller, ServiceAction.parse(service), body.request())
    return {"plans": [plan.to_dict() for plan in plans]}


@_rfc.post("/service/{service}/remove")
def remove(request: Request, service: str, body: RemoveBody, caller: Writer) -> dict[str, Any]:
    """Forget plans that the client has rolled back."""
    return {"removed": _calls(request).writers.remove(caller, ServiceAction.parse(service), body.request())}


@_rfc.get("/service/{service}")
def java_client(
    request: Request,
    *,
    service: str,
    caller: Writer,
    basepath: Short,
    action: Short = "REQUEST",
    db_name: Short = "",
    table_name: Short = "",
    instant: Long = "",
    username: Short = "",
    queue: Short = "",
    resource: Short = "",
    parallelism: Short = "",
    execution_engine: Short = "",
    extra_params: Long = "",
) -> dict[str, Any]:
    """The requests of the client that Hudi ships."""
    fields = SubmitRequest(
        table_name,
        db_name=db_name,
        instant=instant,
        owner=username,
        queue=queue,
        resource=resource,
        parallelism=parallelism,
        execution_engine=execution_engine,
        extra_params=extra_params,
    )
    plans = _calls(request).writers.java_request(
        caller, ServiceAction.parse(service), fields, verb=action, base_path=basepath
    )
    return {"plans": [plan.to_dict() for plan in plans]}


@_rfc.post("/callback")
def commit_callback(request: Request, body: CommitCallbackBody, caller: Writer) -> dict[str, Any]:
    """Hudi's commit callback: any Java writer can send it after each commit."""
    table = _calls(request).writers.callback(caller, table_name=body.tableName or "", base_path=body.basePath)
    return {"table": table.name}


@_tables.post("", responses={201: {"description": "It is registered now."}, 200: {"description": "It was before."}})
def register_table(request: Request, body: TableBody, caller: Writer) -> JSONResponse:
    """Register a table, or change what is given of a registered one."""
    table, is_new = _calls(request).admin.register_table(caller, body.registration())
    return JSONResponse(table, status_code=201 if is_new else 200)


@_tables.get("", dependencies=[Depends(only_known_parameters)])
def list_tables(
    request: Request,
    *,
    caller: Viewer,
    db_name: Short | None = None,
    queue: Short | None = None,
    owner: Short | None = None,
    search: Short = "",
    paused: bool | None = None,
    quarantined: bool | None = None,
    after: After = 0,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Registered tables."""
    wanted = TableFilter(db_name, queue, owner, search, paused, quarantined)
    return _calls(request).admin.list_tables(caller, wanted, Page(after, limit))


@_tables.get("/{db_name}/{table_name}")
def show_table(request: Request, db_name: str, table_name: str, caller: Viewer) -> dict[str, Any]:
    """One table with its policy and what waits or runs on it."""
    return _calls(request).admin.show_table(caller, db_name, table_name)


@_tables.put("/{db_name}/{table_name}/policy")
def change_policy(
    request: Request,
    db_name: str,
    table_name: str,
    policy: Annotated[dict[str, Any], POLICY_EXAMPLES],
    caller: Operator,
) -> dict[str, Any]:
    """Replace the table's own part of its policy."""
    return _calls(request).admin.change_policy(caller, db_name, table_name, policy)


@_databases.get("/{db_name}/policy")
def show_default_policy(request: Request, db_name: str, caller: Viewer) -> dict[str, Any]:
    """What holds for the tables of a database where they say nothing themselves."""
    return _calls(request).admin.show_default_policy(caller, db_name)


@_databases.put("/{db_name}/policy")
def change_default_policy(
    request: Request, db_name: str, policy: Annotated[dict[str, Any], POLICY_EXAMPLES], caller: Operator
) -> dict[str, Any]:
    """Replace it, also for tables that are registered later."""
    return _calls(request).admin.change_default_policy(caller, db_name, policy)


@_tables.post("/{db_name}/{table_name}/pause")
def pause_table(request: Request, db_name: str, table_name: str, caller: Operator) -> dict[str, Any]:
    """Start nothing on the table until it is resumed."""
    return _calls(request).admin.set_paused(caller, db_name, table_name, is_paused=True)


@_tables.post("/{db_name}/{table_name}/resume")
def resume_table(request: Request, db_name: str, table_name: str, caller: Operator) -> dict[str, Any]:
    """The end of a pause."""
    return _calls(request).admin.set_paused(caller, db_name, table_name, is_paused=False)


@_tables.post("/{db_name}/{table_name}/release")
def release_table(request: Request, db_name: str, table_name: str, caller: Operator) -> dict[str, Any]:
    """Let a table out of quarantine."""
    return _calls(request).admin.release(caller, db_name, table_name)


@_tables.post("/{db_name}/{table_name}/rebuild")
def rebuild_table(request: Request, db_name: str, table_name: str, caller: Operator) -> dict[str, Any]:
    """Take the history of its services from its timeline, after the database was lost."""
    return _calls(request).admin.rebuild_table(caller, db_name, table_name)


@_tables.post("/{db_name}/{table_name}/run/{service}")
def run_service(request: Request, db_name: str, table_name: str, service: str, caller: Operator) -> dict[str, Any]:
    """Ask for a service now, whether it is due or not, in any window of the day."""
    return _calls(request).admin.run_service(caller, db_name, table_name, service)


@_tables.delete("/{db_name}/{table_name}")
def remove_table(request: Request, db_name: str, table_name: str, caller: Operator) -> dict[str, Any]:
    """Forget the table. Its files are not touched."""
    _calls(request).admin.remove_table(caller, db_name, table_name)
    return {"removed": f"{db_name}.{table_name}"}


@_operations.get("", dependencies=[Depends(only_known_parameters)])
def list_operations(
    request: Request,
    *,
    caller: Viewer,
    db_name: Short = "",
    table_name: Short = "",
    status: Short | None = None,
    action: Short | None = None,
    queue: Short | None = None,
    owner: Short | None = None,
    after: After = 0,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Operations, the newest first."""
    admin = _calls(request).admin
    table_id = admin.find_table(caller, db_name or "default", table_name).table_id if table_name else None
    wanted = OperationFilter(
        table_id=table_id,
        statuses=parse_statuses(status or ""),
        actions=parse_actions(action or ""),
        queue=queue,
        owner=owner,
        tables=TableFilter(db_name=db_name or None),
    )
    return admin.list_operations(caller, wanted, Page(after, limit))


@_operations.get("/{operation_id}")
def show_operation(request: Request, operation_id: Number, caller: Viewer) -> dict[str, Any]:
    """One operation with its attempts."""
    return _calls(request).admin.show_operation(caller, operation_id)


@_operations.get("/{operation_id}/explain")
def explain_operation(request: Request, operation_id: Number, caller: Viewer) -> dict[str, Any]:
    """Why it waits, or why it ran when it did, in sentences."""
    return {"operation_id": operation_id, "reasons": _calls(request).admin.explain_operation(caller, operation_id)}


@_operations.get("/{operation_id}/log", response_class=PlainTextResponse)
def operation_log(
    request: Request,
    operation_id: Number,
    caller: Viewer,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> str:
    """The end of an attempt's output, also while it runs."""
    return _calls(request).admin.operation_log(caller, operation_id, attempt=attempt)


@_operations.post("/{operation_id}/cancel")
def cancel_operation(
    request: Request, operation_id: Number, caller: Operator, body: CancelBody | None = None
) -> dict[str, Any]:
    """Cancel what waits; ask what runs to stop."""
    return _calls(request).admin.cancel_operation(caller, operation_id, "" if body is None else body.reason)


@_operations.post("/{operation_id}/retry")
def retry_operation(request: Request, operation_id: Number, caller: Operator) -> dict[str, Any]:
    """Try a failed, cancelled or quarantined operation again, or one that waits without its back-off."""
    return _calls(request).admin.retry_operation(caller, operation_id)


@_operations.post("/clear/{db_name}/{table_name}")
def clear_operations(request: Request, db_name: str, table_name: str, caller: Operator) -> dict[str, Any]:
    """Remove a table's waiting and finished operations from the service."""
    return {"cleared": _calls(request).admin.clear_operations(caller, db_name, table_name)}


@_others.get("/v1/overview", dependencies=[Depends(only_known_parameters)])
def show_overview(
    request: Request, caller: Viewer, hours: Annotated[int, Query(ge=1, le=336, description="Of history.")] = 1
) -> dict[str, Any]:
    """The lake at a glance: tables by state, work, and samples of the last hours."""
    overview = _calls(request).overview
    return {**overview.health(caller), "history": overview.history(caller, hours=hours)}


@_others.get("/v1/instances")
def list_instances(request: Request, caller: Viewer) -> dict[str, Any]:
    """The instances of the service."""
    return {"instances": _calls(request).admin.list_instances(caller)}


@_others.get("/v1/queues")
def list_queues(request: Request, caller: Viewer) -> dict[str, Any]:
    """What waits and runs in each queue."""
    return {"queues": _calls(request).admin.list_queues(caller)}


@_others.get("/v1/alarms", dependencies=[Depends(only_known_parameters)])
def list_alarms(
    request: Request,
    *,
    caller: Viewer,
    resolved: bool = False,
    after: After = 0,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Open alarms; with `resolved` those that are over too."""
    return {"alarms": _calls(request).admin.list_alarms(caller, Page(after, limit), only_open=not resolved)}


@_others.get("/v1/events", dependencies=[Depends(only_known_parameters)], responses=EVENTS_EXAMPLE)
def list_events(
    request: Request,
    *,
    caller: Viewer,
    db_name: Short = "",
    table_name: Short = "",
    operation: Annotated[int | None, Query(ge=1, le=2**62)] = None,
    after: After = 0,
    limit: Limit = 100,
) -> dict[str, Any]:
    """What happened to operations and tables, the newest first."""
    wanted = EventFilter(db_name, table_name, operation)
    return _calls(request).admin.list_events(caller, wanted, Page(after, limit))


@_others.get("/v1/tokens")
def list_tokens(request: Request, caller: Admin) -> dict[str, Any]:
    """All tokens, without their secrets."""
    return {"tokens": _calls(request).admin.list_tokens(caller)}


@_others.post("/v1/tokens", status_code=201)
def add_token(request: Request, body: TokenBody, caller: Admin) -> dict[str, Any]:
    """Make a token. It is shown once."""
    made = _calls(request).admin.add_token(
        caller, name=body.name, role=body.role, databases=body.databases, path_prefixes=body.path_prefixes
    )
    _calls(request).gate.look_again()
    return made


@_others.delete("/v1/tokens/{token_id}")
def revoke_token(request: Request, token_id: Number, caller: Admin) -> dict[str, Any]:
    """Revoke a token."""
    _calls(request).admin.revoke_token(caller, token_id)
    return {"revoked": token_id}


@_others.get("/healthz")
def health(request: Request) -> JSONResponse:
    """Whether this instance works: it reaches its database. Needs no token and says nothing else."""
    is_ready = _calls(request).is_ready()
    return JSONResponse({"status": "ok" if is_ready else "unavailable"}, status_code=200 if is_ready else 503)


def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TablekeeperError)
    refusal = refusal_of(error)
    level = logging.ERROR if refusal is Refusal.INTERNAL else logging.INFO
    # Who tries tokens out is known by the address.
    asked_by = f" from {request.client.host}" if refusal is Refusal.UNAUTHENTICATED and request.client else ""
    _LOG.log(level, "%s %s%s: %s: %r", request.method, request.url.path, asked_by, refusal.code, str(error)[:500])
    headers = {"WWW-Authenticate": "Bearer"} if refusal is Refusal.UNAUTHENTICATED else None
    return JSONResponse(refusal_body(refusal, str(error)), status_code=refusal.status, headers=headers)


def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(
        f"{'.'.join(str(part) for part in each['loc'])[:100]}: {each['msg'][:200]}" for each in error.errors()[:5]
    )
    if any(each["loc"] == ("body",) for each in error.errors()) and not _says_json(request):
        wrong += ". Send JSON, with the header content-type: application/json"
    _LOG.info("%s %s: %s: %r", request.method, request.url.path, Refusal.INVALID_REQUEST.code, wrong)
    return JSONResponse(refusal_body(Refusal.INVALID_REQUEST, wrong), status_code=Refusal.INVALID_REQUEST.status)


def _database_away(request: Request, error: Exception) -> JSONResponse:
    refused = database_is_away()
    reason = str(error).partition("\n")[0]
    _LOG.warning("%s %s: %s: %s", request.method, request.url.path, refused.refusal.code, reason[:500])
    return JSONResponse(refusal_body(refused.refusal, str(refused)), status_code=refused.refusal.status)


def _failed(request: Request, error: Exception) -> JSONResponse:
    """The server logs the error with its trace."""
    text = f"{request.method} {request.url.path} failed: the log of the service says why"
    return JSONResponse(refusal_body(Refusal.INTERNAL, text), status_code=Refusal.INTERNAL.status)


def _says_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower().endswith("json")


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    refusal = _HTTP_ERRORS.get(error.status_code, Refusal.INTERNAL)
    _LOG.info("%s %s: %s", request.method, request.url.path, refusal.code)
    return JSONResponse(
        refusal_body(refusal, str(error.detail)), status_code=error.status_code, headers=dict(error.headers or {})
    )
