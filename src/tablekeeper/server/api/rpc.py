"""The gRPC server: the calls of REST under the names in `tms.proto`, with reflection and health.

The messages are built from `tms.binpb`, the compiled form of `tms.proto` that is kept beside it; a test compiles it
anew and compares. Whatever is called but health passes the rate limit and the gate first, reflection too; permissions
are checked by the calls themselves, the caller comes from the metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, struct_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tablekeeper.errors import InvalidRequestError, TablekeeperError
from tablekeeper.runtime import Pool
from tablekeeper.server.api.administration import AdminCalls, Registration
from tablekeeper.server.api.guards import RateLimit
from tablekeeper.server.api.parameters import parse_actions, parse_statuses
from tablekeeper.server.api.permissions import Caller, Gate
from tablekeeper.server.api.refusals import Refusal, RefusedCallError, database_is_away, refusal_of
from tablekeeper.server.api.writers import SubmitRequest, WriterCalls
from tablekeeper.server.model import ServiceAction
from tablekeeper.server.store.database import DATABASE_AWAY
from tablekeeper.server.store.protocol import OperationFilter, Page, TableFilter
from tablekeeper.server.store.wanted import EventFilter

__all__ = ["METHODS", "SERVICE", "RpcCalls", "grpc_server", "message_class"]

SERVICE = "tablekeeper.v1.TableManagement"
_LOG = logging.getLogger(__name__)
_PAGE = 100
_MOST_BYTES = 1 << 20
_CODE_KEY = "tablekeeper-code"
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_STATUS = {
    Refusal.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Refusal.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.FORBIDDEN_PLACE: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.TABLE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Refusal.OPERATION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Refusal.PLAN_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Refusal.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Refusal.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.WRONG_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.TABLE_UNREADABLE: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.INTERNAL: grpc.StatusCode.INTERNAL,
    Refusal.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}

Call = Callable[["RpcCalls", Caller, Any], Any]


def _load_messages() -> Mapping[str, Any]:
    content = files("tablekeeper.server.api").joinpath("tms.binpb").read_bytes()
    described = descriptor_pb2.FileDescriptorSet.FromString(content)
    pool = descriptor_pool.Default()
    for file in described.file:
        if file.package == "tablekeeper.v1":
            pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tablekeeper.v1.{name}"))
        for file in described.file
        if file.package == "tablekeeper.v1"
        for name in (message.name for message in file.message_type)
    }


_MESSAGES = _load_messages()


def message_class(name: str) -> Any:
    """The class of a message of `tms.proto`."""
    return _MESSAGES[name]


class RpcCalls:
    """What the methods call."""

    def __init__(self, gate: Gate, rate: RateLimit, writers: WriterCalls, admin: AdminCalls) -> None:
        self.gate = gate
        self.rate = rate
        self.writers = writers
        self.admin = admin


def grpc_server(
    calls: RpcCalls, *, address: str, threads: Pool, certificate: bytes | None = None, key: bytes | None = None
) -> tuple[grpc.Server, int]:
    """A server that listens at `address` once it is started, and its port. `threads` run the calls."""
    # Not beside another one at the same port, which would get every other call.
    options = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.so_reuseport", 0)]
    server = grpc.server(threads, options=options, interceptors=[_Door(calls)])
    handlers = {name: _handler(calls, name, request, call) for name, (request, call) in METHODS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    state = health.HealthServicer()
    state.set("", health_pb2.HealthCheckResponse.SERVING)
    state.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    if certificate is not None and key is not None:
        port = server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
    else:
        port = server.add_insecure_port(address)
    return server, port


class _Door(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Lets nobody call any method, streams of reflection included, who has no token where one is wanted."""

    def __init__(self, calls: RpcCalls) -> None:
        self._calls = calls

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None or details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return handler
        # One of these is there, by whether the request and the answer are streams.
        kind = next(each for each in _KINDS if getattr(handler, each) is not None)
        behave = getattr(handler, kind)

        def admitted(given: Any, context: grpc.ServicerContext) -> Any:
            with _refusals(details.method, context):
                if not self._calls.rate.take(_host(context)):
                    raise RefusedCallError(Refusal.TOO_MANY_REQUESTS, "too many calls from this address: slow down")
                _caller(self._calls.gate, context)
            return behave(given, context)

        made = getattr(grpc, f"{kind}_rpc_method_handler")
        return made(admitted, handler.request_deserializer, handler.response_serializer)


@contextmanager
def _refusals(what: str, context: grpc.ServicerContext) -> Iterator[None]:
    """End the call with the status of our error, and its code beside it."""
    try:
        try:
            yield
        except DATABASE_AWAY as away:
            _LOG.warning("gRPC %s: %s", what, str(away).partition("\n")[0][:500])
            raise database_is_away() from away
    except TablekeeperError as error:
        refusal = refusal_of(error)
        level = logging.DEBUG if refusal is Refusal.TOO_MANY_REQUESTS else logging.INFO
        _LOG.log(level, "gRPC %s: %s: %r", what, refusal.code, str(error)[:500])
        context.set_trailing_metadata(((_CODE_KEY, refusal.code),))
        context.abort(_STATUS.get(refusal, grpc.StatusCode.INVALID_ARGUMENT), str(error)[:2000])


def _handler(calls: RpcCalls, name: str, request: str, call: Call) -> Any:
    def behave(message: Any, context: grpc.ServicerContext) -> Any:
        with _refusals(name, context):
            return call(calls, _caller(calls.gate, context), message)

    return grpc.unary_unary_rpc_method_handler(
        behave,
        request_deserializer=_MESSAGES[request].FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


def _caller(gate: Gate, context: grpc.ServicerContext) -> Caller:
    metadata = dict(context.invocation_metadata())
    return gate.admit(authorization=metadata.get("authorization"), client_host=_host(context))


def _host(context: grpc.ServicerContext) -> str:
    # `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`, or `unix:`, which only the own machine can reach.
    kind, _, rest = context.peer().partition(":")
    return "127.0.0.1" if kind == "unix" else rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "")


def _submit(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    plans = calls.writers.submit(caller, ServiceAction.parse(message.service), _submit_request(message))
    shown = [{"instant": p.instant, "state": p.state, "operation_id": p.operation_id or 0} for p in plans]
    return _MESSAGES["SubmitAnswer"](plans=[_MESSAGES["SubmittedPlan"](**each) for each in shown])


def _remove(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    removed = calls.writers.remove(caller, ServiceAction.parse(message.service), _submit_request(message))
    return _MESSAGES["RemoveAnswer"](removed=removed)


def _notice_commit(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    table = calls.writers.callback(caller, table_name=message.table_name, base_path=message.base_path)
    return _MESSAGES["TableAnswer"](table=table.name)


def _register(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    policy = _policy(message.policy) if message.HasField("policy") else None
    given = Registration(
        message.base_path,
        message.table_name,
        message.db_name,
        message.owner,
        message.queue,
        message.priority,
        list(message.action_types),
        policy,
    )
    table, is_new = calls.admin.register_table(caller, given)
    return _struct({**table, "is_new": is_new})


def _list_tables(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    wanted = TableFilter(message.db_name or None, message.queue or None, message.owner or None, search=message.search)
    return _struct(calls.admin.list_tables(caller, wanted, _page(message)))


def _list_operations(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    table_id = None
    if message.table_name:
        table_id = calls.admin.find_table(caller, message.db_name or "default", message.table_name).table_id
    wanted = OperationFilter(
        table_id=table_id,
        statuses=parse_statuses(message.status),
        actions=parse_actions(message.action),
        queue=message.queue or None,
        owner=message.owner or None,
        tables=TableFilter(message.db_name or None),
    )
    return _struct(calls.admin.list_operations(caller, wanted, _page(message)))


def _explain(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    reasons = calls.admin.explain_operation(caller, message.operation_id)
    return _MESSAGES["Explanation"](operation_id=message.operation_id, reasons=reasons)


def _read_log(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    text = calls.admin.operation_log(caller, message.operation_id, attempt=message.attempt or None)
    return _MESSAGES["LogAnswer"](text=text)


def _remove_table(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    calls.admin.remove_table(caller, message.db_name, message.table_name)
    return _struct({"removed": f"{message.db_name}.{message.table_name}"})


def _list_alarms(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    return _struct({"alarms": calls.admin.list_alarms(caller, _page(message), only_open=not message.resolved)})


def _list_events(calls: RpcCalls, caller: Caller, message: Any) -> Any:
    wanted = EventFilter(message.db_name, message.table_name, message.operation_id or None)
    return _struct(calls.admin.list_events(caller, wanted, _page(message)))


METHODS: Mapping[str, tuple[str, Call]] = {
    "Submit": ("SubmitRequest", _submit),
    "Remove": ("SubmitRequest", _remove),
    "NoticeCommit": ("CommitNotice", _notice_commit),
    "RegisterTable": ("TableRegistration", _register),
    "ListTables": ("TableQuery", _list_tables),
    "ShowTable": ("TableName", lambda c, who, m: _struct(c.admin.show_table(who, m.db_name, m.table_name))),
    "ChangePolicy": (
        "PolicyChange",
        lambda c, who, m: _struct(c.admin.change_policy(who, m.db_name, m.table_name, _policy(m.policy))),
    ),
    "ShowDefaultPolicy": ("DatabaseName", lambda c, who, m: _struct(c.admin.show_default_policy(who, m.db_name))),
    "ChangeDefaultPolicy": (
        "DatabasePolicy",
        lambda c, who, m: _struct(c.admin.change_default_policy(who, m.db_name, _policy(m.policy))),
    ),
    "PauseTable": (
        "TableName",
        lambda c, who, m: _struct(c.admin.set_paused(who, m.db_name, m.table_name, is_paused=True)),
    ),
    "ResumeTable": (
        "TableName",
        lambda c, who, m: _struct(c.admin.set_paused(who, m.db_name, m.table_name, is_paused=False)),
    ),
    "ReleaseTable": ("TableName", lambda c, who, m: _struct(c.admin.release(who, m.db_name, m.table_name))),
    "RebuildTable": ("TableName", lambda c, who, m: _struct(c.admin.rebuild_table(who, m.db_name, m.table_name))),
    "RemoveTable": ("TableName", _remove_table),
    "RunService": (
        "ServiceRequest",
        lambda c, who, m: _struct(c.admin.run_service(who, m.db_name, m.table_name, m.service)),
    ),
    "ListOperations": ("OperationQuery", _list_operations),
    "ShowOperation": ("OperationId", lambda c, who, m: _struct(c.admin.show_operation(who, m.operation_id))),
    "ExplainOperation": ("OperationId", _explain),
    "ReadLog": ("LogRequest", _read_log),
    "CancelOperation": (
        "CancelRequest",
        lambda c, who, m: _struct(c.admin.cancel_operation(who, m.operation_id, m.reason)),
    ),
    "RetryOperation": ("OperationId", lambda c, who, m: _struct(c.admin.retry_operation(who, m.operation_id))),
    "ClearOperations": (
        "TableName",
        lambda c, who, m: _struct({"cleared": c.admin.clear_operations(who, m.db_name, m.table_name)}),
    ),
    "ListInstances": ("Nothing", lambda c, who, _: _struct({"instances": c.admin.list_instances(who)})),
    "ListQueues": ("Nothing", lambda c, who, _: _struct({"queues": c.admin.list_queues(who)})),
    "ListAlarms": ("AlarmQuery", _list_alarms),
    "ListEvents": ("EventQuery", _list_events),
}
"""Every method: the message it takes and what it does."""


def _submit_request(message: Any) -> SubmitRequest:
    return SubmitRequest(
        message.table_name,
        db_name=message.db_name,
        instant=message.instant,
        owner=message.owner,
        queue=message.queue,
        resource=message.resource,
        parallelism=message.parallelism,
        execution_engine=message.execution_engine,
        extra_params=message.extra_params,
    )


def _page(message: Any) -> Page:
    if message.after < 0:
        raise InvalidRequestError("after is 0, or the `next` of the page before")
    return Page(message.after, message.limit or _PAGE)


def _policy(policy: struct_pb2.Struct) -> dict[str, Any]:
    """A struct has floating-point numbers only; those of a policy that are whole were meant as such."""
    given = json_format.MessageToDict(policy)
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in given.items()
    }


def _struct(answer: Mapping[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(answer)
    return struct
