"""The gRPC interface over a real socket: the same calls, permissions and codes as REST."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, json_format, struct_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_tools import protoc

from tablekeeper import Table
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.api.permissions import digest_of
from tablekeeper.server.api.rpc import METHODS, SERVICE, grpc_server, message_class
from tablekeeper.server.model import Role
from tablekeeper.server.observe.metrics import ServiceMetrics
from tablekeeper.server.settings import Limits, ServerSettings
from tablekeeper.server.store.protocol import NewToken, OperationFilter, Page, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.server.web import Web, build_web


@pytest.fixture
def channel(web: Web) -> Iterator[grpc.Channel]:
    with served_over_grpc(web) as opened:
        yield opened


@contextmanager
def served_over_grpc(web: Web) -> Iterator[grpc.Channel]:
    pool = SYSTEM_RUNTIME.threads.pool(4, name="grpc-test")
    server, port = grpc_server(web.rpc, address="127.0.0.1:0", threads=pool)
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    server.stop(grace=None).wait()
    pool.shutdown()


def ask(channel: grpc.Channel, method: str, *, token: str = "", **fields: Any) -> Any:
    request, _ = METHODS[method]
    call = channel.unary_unary(
        f"/{SERVICE}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=lambda data: data,
    )
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    return call(message_class(request)(**fields), metadata=metadata, timeout=20)


def refused(channel: grpc.Channel, method: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(channel, method, **fields)
    error: Any = caught.value
    return error.code(), dict(error.trailing_metadata() or ()).get("tablekeeper-code", "")


def test_a_plan_goes_from_registration_to_the_queue(
    channel: grpc.Channel, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    policy = json_format.ParseDict({"compact_after_commits": 3}, message_class("TableRegistration")().policy)
    ask(channel, "RegisterTable", base_path=str(lake / "trips"), db_name="db", table_name="trips", policy=policy)
    plan = table.schedule_compaction()
    assert plan is not None
    fields = {"service": "compact", "db_name": "db", "table_name": "trips", "instant": plan.instant.value}
    for state in ("accepted", "known"):
        answer = message_class("SubmitAnswer").FromString(ask(channel, "Submit", **fields))
        assert [each.state for each in answer.plans] == [state]
    (operation,) = jobs.list_operations(OperationFilter(), Page())
    assert operation.instant == plan.instant.value
    assert jobs.load_table(operation.table_id).policy == {"compact_after_commits": 3}
    removed = message_class("RemoveAnswer").FromString(ask(channel, "Remove", **fields))
    assert list(removed.removed) == [plan.instant.value]


def struct_of(answer: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json_format.MessageToDict(struct_pb2.Struct.FromString(answer))
    return fields


def test_operations_are_filtered_and_explained_as_over_rest(
    channel: grpc.Channel, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    ask(channel, "RegisterTable", base_path=str(lake / "trips"), db_name="db", table_name="trips")
    for service in ("clean", "clustering"):
        ask(channel, "RunService", db_name="db", table_name="trips", service=service)
    clustering, clean = jobs.list_operations(OperationFilter(), Page())
    ask(channel, "CancelOperation", operation_id=clean.operation_id)

    def listed(**wanted: str) -> list[int]:
        answer = struct_of(ask(channel, "ListOperations", **wanted))
        return [int(each["operation_id"]) for each in answer["operations"]]

    assert listed() == [clustering.operation_id, clean.operation_id]
    assert listed(status="cancelled") == [clean.operation_id]
    assert listed(status="pending,cancelled", action="cluster") == [clustering.operation_id]
    assert listed(action="compaction") == []
    for wrong in ({"status": "asleep"}, {"action": "dance"}):
        assert refused(channel, "ListOperations", **wrong) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
    told = message_class("Explanation").FromString(
        ask(channel, "ExplainOperation", operation_id=clustering.operation_id)
    )
    assert told.reasons[0].startswith("It waits for a free slot")
    ended = message_class("Explanation").FromString(ask(channel, "ExplainOperation", operation_id=clean.operation_id))
    assert ended.reasons[0].startswith("It is cancelled")


def test_the_policy_of_a_database_is_changed_and_shown(channel: grpc.Channel, jobs: SqlJobStore) -> None:
    policy = json_format.ParseDict({"compact_after_commits": 3}, message_class("DatabasePolicy")().policy)
    ask(channel, "ChangeDefaultPolicy", db_name="db", policy=policy)
    assert jobs.default_policy("db").compact_after_commits == 3
    shown = struct_of(ask(channel, "ShowDefaultPolicy", db_name="db"))
    assert (shown["db_name"], shown["effective_policy"]["compact_after_commits"]) == ("db", 3)


def test_refusals_have_the_codes_of_rest(channel: grpc.Channel, table: Table) -> None:
    missing = refused(channel, "Submit", service="compact", table_name="nobody", instant="20200101000000000")
    assert missing == (grpc.StatusCode.NOT_FOUND, "table_not_found")
    assert refused(channel, "ShowOperation", operation_id=7) == (grpc.StatusCode.NOT_FOUND, "operation_not_found")
    outside = refused(channel, "RegisterTable", base_path="/etc", table_name="x")
    assert outside == (grpc.StatusCode.PERMISSION_DENIED, "forbidden_place")
    wrong = refused(channel, "ListOperations", limit=5000)
    assert wrong == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_wants_a_token_once_there_is_one(channel: grpc.Channel, jobs: SqlJobStore, method: str) -> None:
    jobs.add_token(NewToken("root", "0" * 64, Role.ADMIN))
    for token in ("", "nonsense"):
        assert refused(channel, method, token=token) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_viewer_changes_nothing_by_any_method(channel: grpc.Channel, jobs: SqlJobStore, method: str) -> None:
    jobs.add_token(NewToken("looks", digest_of("secret"), Role.VIEWER))
    asks_only = method.startswith(("List", "Show", "Explain", "Read"))
    fields = {"service": "compact"} if "service" in message_class(METHODS[method][0]).DESCRIPTOR.fields_by_name else {}
    if asks_only:
        with suppress(grpc.RpcError):
            ask(channel, method, token="secret", **fields)
    else:
        told = refused(channel, method, token="secret", **fields)
        assert told == (grpc.StatusCode.PERMISSION_DENIED, "forbidden")
    assert jobs.list_tables(TableFilter(), Page()) == []


def test_reflection_wants_a_token_too_and_health_does_not(channel: grpc.Channel, jobs: SqlJobStore) -> None:
    jobs.add_token(NewToken("looks", digest_of("secret"), Role.VIEWER))
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.ServerReflectionInfo(iter([question])))
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED
    assert list(stub.ServerReflectionInfo(iter([question]), metadata=(("authorization", "Bearer secret"),)))
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert health.status == health_pb2.HealthCheckResponse.SERVING


def test_too_many_calls_are_slowed_down(jobs: SqlJobStore, settings: ServerSettings) -> None:
    slow = replace(settings, limits=Limits(requests_per_s=0.001, request_burst=2))
    web = build_web(jobs, slow, ServiceMetrics(jobs), SYSTEM_RUNTIME, engines=frozenset())
    with served_over_grpc(web) as channel:
        for _ in range(2):
            ask(channel, "ListQueues")
        assert refused(channel, "ListQueues") == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_requests")


def test_every_method_of_the_description_is_served_and_no_other() -> None:
    described = descriptor_pb2.FileDescriptorSet.FromString(
        files("tablekeeper.server.api").joinpath("tms.binpb").read_bytes()
    )
    names = {method.name for file in described.file for service in file.service for method in service.method}
    assert names == set(METHODS)


def test_the_compiled_description_is_that_of_the_proto_file(tmp_path: Path) -> None:
    source = Path(str(files("tablekeeper.server.api").joinpath("tms.proto")))
    compiled = tmp_path / "tms.binpb"
    include = Path(protoc.__file__).parent / "_proto"
    arguments = [f"-I{source.parent}", f"-I{include}", "--include_imports", f"--descriptor_set_out={compiled}"]
    assert protoc.main(["protoc", *arguments, str(source)]) == 0
    assert compiled.read_bytes() == source.with_suffix(".binpb").read_bytes()


def test_health_and_reflection_answer(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = list(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([question])))
    assert SERVICE in {service.name for service in answers[0].list_services_response.service}
