"""Writers that leave their services to the service: what they send, and what they do where it is down, hangs or raves.

The service is a small HTTP server that answers as the test says; the last test has the real one.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.client import Handover, HandoverTable, hand_over
from tablekeeper.config.hosting_settings import HostingSettings
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.services.plans.service import ServiceResult
from tests.server.conftest import SCHEMA
from tests.support.fake_runtime import FakeClock
from tests.support.pretended_service import pretended, says
from tests.support.served import free_port, running_service
from tests.support.table_builder import TableBuilder, trips

TIMEOUT_S = 1.0
INLINE = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
GOOD = b'{"plans": []}'


def drips(request: BaseHTTPRequestHandler) -> None:
    """A byte at a time, each long before a socket would time out."""
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(b" ")
            SYSTEM_RUNTIME.clock.sleep(TIMEOUT_S / 10)
    except OSError:
        return


def hangs_up(request: BaseHTTPRequestHandler) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)


def dies_in_the_body(request: BaseHTTPRequestHandler) -> None:
    says(b'{"error": {"code"', status=500, Content_Length="1000")(request)
    request.connection.shutdown(socket.SHUT_RDWR)


BAD_ANSWERS = {
    "garbage": says(b"<html>welcome to the hotel</html>", Content_Type="text/html"),
    "no_json": says(b"{"),
    "deep_json": says(b"[" * 100_000),
    "wrong_json": says(b"[1]"),
    "nothing": says(b""),
    "error": says(b"", status=500),
    "refused": says(b'{"error": {"code": "table_unreadable", "message": "no"}}', status=422),
    "unauthenticated": says(b'{"error": 7}', status=401),
    "strange_status": says(b"", status=799),
    "redirect": says(b"", status=302, Location="http://127.0.0.1:1/"),
    "drips": drips,
    "hangs_up": hangs_up,
    "dies_in_the_body": dies_in_the_body,
}


def hosted(address: str, **more: object) -> dict[str, object]:
    """Options of a writer whose compaction is hosted, and which would run it inline."""
    return {
        "hoodie.table.services.enable": True,
        "hoodie.table.service.compaction.enable": True,
        "hoodie.table.service.manager.uris": address,
        "hoodie.table.service.manager.connection.timeout.sec": TIMEOUT_S,
        "hoodie.table.service.manager.connection.retry.delay.sec": 0.01,
        **INLINE,
        **more,
    }


@pytest.fixture
def mor(tmp_path: Path) -> tk.Table:
    table = TableBuilder().create(str(tmp_path / "trips"), table_type="mor")
    table.upsert(trips(("a", "sf", 1, 1.0)))
    return table


def write_hosted(table: tk.Table, options: dict[str, object], **arguments: Any) -> tk.WriteResult:
    result = tk.Table.open(table.path, engine="local", options=options).upsert(trips(("a", "sf", 2, 2.0)), **arguments)
    assert table.read().column("fare").to_pylist() == [2.0]
    return result


def test_a_write_plans_what_is_hosted_and_hands_it_over(mor: tk.Table) -> None:
    deploy = {"hoodie.table.service.manager.deploy.queue": "nightly"}
    with pretended(says(GOOD)) as (address, service):
        result = write_hosted(mor, hosted(address, **deploy))
    (plan,) = mor.plans()
    ((path, query),) = service.asked
    assert path == "/v1/hoodie/service/compact"
    assert query == {
        "action": "REQUEST",
        "basepath": mor.path,
        "table_name": "trips",
        "instant": str(plan.instant),
        "queue": "nightly",
    }
    handover = result.services[-1]
    assert isinstance(handover, Handover)
    assert (handover.services, handover.plans, handover.refusal) == (("compaction",), (str(plan.instant),), "")
    assert result.notes == ()


@pytest.mark.parametrize("kind", list(BAD_ANSWERS))
def test_a_service_that_raves_harms_no_write_and_the_compaction_runs_inline(mor: tk.Table, kind: str) -> None:
    with pretended(BAD_ANSWERS[kind]) as (address, service):
        result = write_hosted(mor, hosted(address))
    assert service.asked
    assert list(mor.plans()) == []
    assert any(isinstance(each, ServiceResult) for each in result.services)
    assert "did not take compaction over" in result.notes[0]
    assert "ran here instead" in result.notes[1]


@pytest.mark.parametrize("listens", [True, False], ids=["stopped", "down"])
def test_a_service_that_is_stopped_or_down_delays_a_write_no_longer_than_the_time_out(
    mor: tk.Table, listens: bool
) -> None:
    with socket.socket() as door:
        # What a process that was stopped looks like: its kernel takes connections, and nobody answers.
        door.bind(("127.0.0.1", 0))
        if listens:
            door.listen()
        result = write_hosted(mor, hosted(f"http://127.0.0.1:{door.getsockname()[1]}"))
    assert list(mor.plans()) == []
    assert "did not take compaction over" in result.notes[0]


def test_a_service_that_let_a_write_wait_is_not_asked_by_the_next_ones() -> None:
    clock = FakeClock()
    runtime = replace(SYSTEM_RUNTIME, clock=clock)
    with pretended(says(GOOD)) as (address, service):
        settings = HostingSettings(addresses=(address,))

        def stays_silent(request: BaseHTTPRequestHandler) -> None:
            clock.advance(settings.timeout_s)
            hangs_up(request)

        def taken() -> tuple[str, ...]:
            table = HandoverTable("/lake/trips", "trips")
            return hand_over(settings, table, {"compaction": []}, token="", runtime=runtime).services

        service.answer = stays_silent
        assert taken() == ()
        service.answer = says(GOOD)
        asked = len(service.asked)
        clock.advance(29.0)
        assert (taken(), len(service.asked)) == ((), asked)
        clock.advance(2.0)
        assert (taken(), len(service.asked)) == (("compaction",), asked + 1)


def test_without_inline_services_what_was_not_taken_over_waits_and_the_result_says_so(mor: tk.Table) -> None:
    options = {"hoodie.table.service.manager.uris": f"http://127.0.0.1:{free_port()}"}
    retries = {"hoodie.table.service.manager.connection.retries": 0}
    result = write_hosted(mor, {**options, **retries})
    assert "clean, clustering, compaction over" in result.notes[0]
    assert "clean, clustering, compaction waits" in result.notes[1]
    assert result.services == ()


def test_the_next_instance_is_asked_where_one_is_down(mor: tk.Table) -> None:
    with pretended(says(GOOD)) as (address, service):
        result = write_hosted(mor, hosted(f"http://127.0.0.1:{free_port()},{address}"))
    assert len(service.asked) == 1
    assert result.notes == ()


def test_a_service_named_in_the_call_runs_here(mor: tk.Table) -> None:
    with pretended(says(GOOD)) as (address, service):
        result = write_hosted(mor, hosted(address), inline=["compaction"])
    assert service.asked == []
    assert list(mor.plans()) == []
    assert isinstance(result.services[0], ServiceResult)


def test_one_switch_turns_services_off_also_those_that_are_hosted(mor: tk.Table) -> None:
    with pretended(says(GOOD)) as (address, service):
        result = write_hosted(mor, hosted(address, **{"hoodie.table.services.enable": False}))
    assert (service.asked, result.services, result.notes) == ([], (), ())


def test_a_loop_in_the_background_leaves_to_the_service_what_it_takes(mor: tk.Table) -> None:
    mor.upsert(trips(("a", "sf", 2, 2.0)))
    with pretended(says(GOOD)) as (address, service):
        loop = tk.Table.open(mor.path, engine="local", options=hosted(address)).services(["compaction"])
        loop.run_once()
        assert (loop.results, len(service.asked)) == ([], 1)
        service.answer = says(b"", status=500)
        loop.run_once()
    assert len(loop.results) == 1
    assert loop.failures == []


def test_a_table_does_not_say_where_its_writers_send_requests(tmp_path: Path) -> None:
    with pretended(says(GOOD)) as (address, service):
        made = TableBuilder().create(str(tmp_path / "t"), options=hosted(address))
        tk.Table.open(made.path, engine="local").upsert(trips(("a", "sf", 1, 1.0)))
    assert service.asked == []
    assert address not in "".join(file.read_text() for file in (tmp_path / "t/.hoodie/.tablekeeper").glob("*.prop*"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"hoodie.table.service.manager.uris": "localhost:9091"},
        {"hoodie.table.service.manager.actions": "vacuum"},
        {"hoodie.table.service.manager.connection.timeout.sec": "0"},
        {"hoodie.table.service.manager.connection.retries": "-1"},
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(mor: tk.Table, wrong: dict[str, object]) -> None:
    commits = len(mor.timeline())
    with pytest.raises(tk.InvalidRequestError):
        write_hosted(mor, {"hoodie.table.service.manager.enabled": True, **wrong})
    assert len(mor.timeline()) == commits


@pytest.mark.parametrize(
    ("options", "services"),
    [
        ({}, set()),
        ({"manager.uris": "http://x"}, {"compaction", "clustering", "clean"}),
        ({"manager.enabled": "true"}, {"compaction", "clustering", "clean"}),
        ({"manager.enabled": "false", "manager.uris": "http://x", "clean.enable": "true"}, set()),
        ({"manager.enabled": "true", "manager.actions": "compaction,logcompaction"}, {"compaction", "log_compaction"}),
        ({"manager.uris": "http://x", "clustering.enable": "true"}, {"clustering"}),
        ({"manager.uris": "http://x", "clean.enable": "false"}, {"compaction", "clustering"}),
        ({"manager.enabled": "true", "manager.actions": "clean", "compaction.enable": "true"}, {"clean", "compaction"}),
    ],
)
def test_what_is_left_to_the_service_follows_switches_and_actions(options: dict[str, str], services: set[str]) -> None:
    named = {f"hoodie.table.service.{name}": value for name, value in options.items()}
    assert HostingSettings.from_options(named).services == services


def test_the_real_service_takes_plans_of_a_writer_over_and_executes_them(tmp_path: Path) -> None:
    table = tk.Table.create(tmp_path / "lake/t", name="t", schema=SCHEMA, key="id", ordering="ts", engine="local")
    with running_service(tmp_path / "service", allow=tmp_path / "lake") as served:
        options = hosted(served.url, **{"hoodie.table.service.manager.connection.timeout.sec": 30})
        writer = tk.Table.open(table.path, engine="local", options=options)
        writer.upsert(pa.table({"id": ["a"], "ts": [1]}, schema=SCHEMA))
        result = writer.upsert(pa.table({"id": ["a"], "ts": [2]}, schema=SCHEMA))
        assert result.notes == ()
        (instant,) = result.services[-1].plans
        clock, url = SYSTEM_RUNTIME.clock, "/v1/operations?status=completed"
        until_s = clock.monotonic_s() + 60
        while not (done := served.client().get(url)["operations"]):
            assert clock.monotonic_s() < until_s, served.log.read_text()
            clock.sleep(0.2)
    assert done[0]["instant"] == instant
    assert list(table.plans()) == []
