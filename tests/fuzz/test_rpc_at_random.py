"""Every gRPC method called with messages made from its description, and with bytes that are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tablekeeper.server.api.rpc import METHODS, SERVICE, message_class
from tests.fuzz.conftest import Target

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
}
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.sampled_from(
        ["db", "trips", "compaction", "clean", "20260101000000000", "/etc", "s3://x/y", "../..", "x" * 9000]
    ),
)
NUMBERS = st.integers(-(2**31), 2**31 - 1)
PLAIN = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)


def fields_of(described: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a message with random values, each there or not."""
    return st.fixed_dictionaries({}, optional={field.name: value_of(field) for field in described.fields})


def value_of(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        assert field.message_type.full_name == "google.protobuf.Struct", "a new kind of field: teach it to this test"
        return st.dictionaries(TEXTS, JSON, max_size=4)
    kinds = {
        FieldDescriptor.CPPTYPE_STRING: TEXTS,
        FieldDescriptor.CPPTYPE_INT32: NUMBERS,
        FieldDescriptor.CPPTYPE_INT64: NUMBERS,
        FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    }
    value = kinds[field.cpp_type]
    return st.lists(value, max_size=4) if field.is_repeated else value


@pytest.fixture(scope="session")
def channel(target: Target) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{target.grpc_port}") as opened:
        yield opened


def code_of(channel: grpc.Channel, target: Target, method: str, content: bytes) -> grpc.StatusCode:
    call = channel.unary_unary(f"/{SERVICE}/{method}")
    try:
        call(content, metadata=(("authorization", f"Bearer {target.secret}"),), timeout=30)
    except grpc.RpcError as error:
        refused: Any = error
        code: grpc.StatusCode = refused.code()
        return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", METHODS)
def test_a_method_answers_or_refuses_whatever_its_message_holds(
    channel: grpc.Channel, target: Target, method: str
) -> None:
    kind = message_class(METHODS[method][0])

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(fields_of(kind.DESCRIPTOR))
    def ask(fields: dict[str, Any]) -> None:
        code = code_of(channel, target, method, kind(**fields).SerializeToString())
        assert code in CODES, (code, fields)

    ask()


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_do_no_harm(channel: grpc.Channel, target: Target, method: str) -> None:
    @settings(max_examples=max(5, EXAMPLES // 4), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=1, max_size=200))
    def ask(content: bytes) -> None:
        # The library itself cannot read most of them, and says so with its own code.
        assert code_of(channel, target, method, content) in {*CODES, grpc.StatusCode.INTERNAL}

    ask()
    assert target.served.client().get("/healthz") == {"status": "ok"}
