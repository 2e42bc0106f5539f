"""One trace from a request to the commit, through the operation and its job, in OpenTelemetry's in-memory exporter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.engines.files import load_job, save_job
from tablekeeper.server.engines.protocol import Job
from tablekeeper.server.engines.worker import execute_job, open_table
from tablekeeper.server.model import AttemptOutcome, ServiceAction
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.tracing import current_trace, span, start_tracing

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """OpenTelemetry takes one provider a process."""
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def parent_of(one: ReadableSpan) -> int | None:
    return one.parent.span_id if one.parent is not None else None


def id_of(one: ReadableSpan) -> int:
    assert one.context is not None
    return int(one.context.span_id)


def test_a_request_an_operation_its_job_and_the_commit_are_one_trace(
    spans: InMemorySpanExporter, client: TestClient, jobs: SqlJobStore, table: Table, tmp_path: Path
) -> None:
    client.post("/v1/tables", json={"db_name": "db", "table_name": "trips", "base_path": table.path})
    spans.clear()
    asked = client.post("/v1/tables/db/trips/run/compaction", headers={"traceparent": CALLER}).json()
    operation = jobs.load_operation(asked["operation_id"])
    assert operation.trace.split("-")[1] == CALLER.split("-")[1]
    with span("start compaction", parent=operation.trace):
        job = Job(operation.operation_id, 1, table.path, ServiceAction.COMPACTION, None,
                  str(tmp_path / "log"), str(tmp_path / "result"), 60.0, trace=current_trace())  # fmt: skip
    # As the other process reads it.
    save_job(tmp_path / "job", job)
    job = load_job(tmp_path / "job")
    assert execute_job(open_table(job), job, lambda _: None).outcome is AttemptOutcome.COMPLETED
    by_name = {each.name: each for each in spans.get_finished_spans()}
    request, start = by_name["POST request"], by_name["start compaction"]
    work, commit = by_name["compaction"], by_name["commit"]
    assert {f"{each.context.trace_id:032x}" for each in by_name.values() if each.context} == {CALLER.split("-")[1]}
    # The web framework may have a span of its own between the two.
    by_id = {id_of(each): each for each in by_name.values()}
    above = parent_of(start)
    while above in by_id and above != id_of(request):
        above = parent_of(by_id[above])
    assert above == id_of(request)
    assert parent_of(work) == id_of(start)
    assert parent_of(commit) == id_of(work)
    assert dict(work.attributes or {})["tablekeeper.operation"] == str(operation.operation_id)


def test_nothing_of_opentelemetry_is_loaded_without_need() -> None:
    code = (
        "import sys, tablekeeper, tablekeeper.server.serve, tablekeeper.tracing as t\n"
        "assert t.current_trace() == ''\n"
        "with t.span('x'): pass\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]", "no cost where it is not used"


def test_traces_that_are_asked_for_without_the_extra_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidRequestError, match=r"tablekeeper\[otel\]"):
        start_tracing("tablekeeper")
