"""What limits of memory mean to Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tablekeeper.engine.spark import SparkEngine
from tablekeeper.runtime import FRUGAL_ENVIRONMENT, memory_left_bytes

MIB = 1 << 20
LIMITED = """
import resource
from tablekeeper.runtime import memory_left_bytes
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
before = memory_left_bytes()
held = bytearray(1 << 30)
print(before >> 20, (before - memory_left_bytes()) >> 20)
"""


class Context:
    master = "spark://elsewhere"

    def __init__(self, **environment: str) -> None:
        self.environment = environment


class Source:
    """A DataFrame that notes in which environment its rows would be mapped."""

    def __init__(self, context: Context, error: Exception | None = None) -> None:
        self._context = context
        self._error = error
        self.seen: dict[str, str] = {}

    def mapInArrow(self, job: Callable[..., Any], schema: Any) -> Source:  # noqa: N802 (Spark's name)
        self.seen = dict(self._context.environment)
        if self._error is not None:
            raise self._error
        return self

    def collect(self) -> list[Any]:
        return []


def consume(context: Context, source: Source, memory: str | None) -> None:
    session: Any = SimpleNamespace(_sc=context, conf=SimpleNamespace(get=lambda name, default: memory or default))
    # `_described` asks for the description of the job that is set already.
    context.getLocalProperty = context.setLocalProperty = lambda *names: None  # type: ignore[attr-defined]
    SparkEngine(session).consume(lambda *_: [], None, source, label="test")


def test_workers_with_a_limit_reserve_little_and_the_session_stays_as_it_is() -> None:
    context = Context(OTHER="kept")
    source = Source(context)
    consume(context, source, "512m")
    assert source.seen == {"OTHER": "kept", **FRUGAL_ENVIRONMENT}
    assert context.environment == {"OTHER": "kept"}


def test_workers_without_a_limit_allocate_as_ever() -> None:
    context = Context()
    source = Source(context)
    consume(context, source, None)
    assert source.seen == {}


def test_an_allocator_that_the_user_chose_stays() -> None:
    context = Context(ARROW_DEFAULT_MEMORY_POOL="jemalloc")
    source = Source(context)
    consume(context, source, "512m")
    assert source.seen == {**FRUGAL_ENVIRONMENT, "ARROW_DEFAULT_MEMORY_POOL": "jemalloc"}
    assert context.environment == {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"}


def test_the_environment_is_put_back_after_an_error_too() -> None:
    context = Context()
    with pytest.raises(pa.ArrowInvalid):
        consume(context, Source(context, pa.ArrowInvalid("wrong")), "512m")
    assert context.environment == {}


def test_what_a_process_holds_counts_against_its_limit() -> None:
    assert memory_left_bytes() is None
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    left, taken = map(int, done.stdout.split())
    assert 0 < left < 8 << 10
    assert 1 << 10 <= taken <= (1 << 10) + 64
