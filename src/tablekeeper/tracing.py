"""Traces with OpenTelemetry, from a request over the operation and its worker to the commit.

Nothing of this costs anything, and nothing is imported, unless a program has loaded OpenTelemetry itself: the service
and its workers by `start_tracing`, or a program that uses tablekeeper and is traced already. A trace travels between
processes as the `traceparent` of the W3C: text that the service keeps with an operation and hands to the job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tablekeeper.errors import InvalidRequestError

__all__ = ["current_trace", "span", "start_tracing"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@contextmanager
def span(name: str, *, parent: str = "", **attributes: object) -> Iterator[None]:
    """A part of a trace. `parent` is a `traceparent` to go on from; without it, whatever is current here."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield
        return
    context = _propagator().extract({"traceparent": parent}) if parent else None
    tracer = trace.get_tracer("tablekeeper")
    with tracer.start_as_current_span(
        name, context=context, attributes={f"tablekeeper.{key}": str(value) for key, value in attributes.items()}
    ):
        yield


def current_trace() -> str:
    """The `traceparent` of the current span, empty if there is none."""
    if "opentelemetry.trace" not in sys.modules:
        return ""
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent", "")


def start_tracing(service: str) -> Callable[[], None]:
    """Send spans to where OpenTelemetry's variables say, if they do. What is returned sends the rest, and ends it."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return lambda: None
    try:
        from opentelemetry import trace  # noqa: PLC0415 (an extra)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"traces are asked for by {_ENDPOINTS[0]}, and {error.name} is missing: pip install 'tablekeeper[otel]'"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 (an extra)
        TraceContextTextMapPropagator,
    )

    return TraceContextTextMapPropagator()
