"""What somebody sees who starts the service for the first time, and does it wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.api import connections
from tablekeeper.server.api.connections import HEAD_BYTES, http_protocol
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.serve import serve
from tablekeeper.server.settings import ServerSettings
from tests.support.served import Served, free_port, running_service


@pytest.fixture
def local(tmp_path: Path) -> ServerSettings:
    return ServerSettings(work_dir=tmp_path / "work", port=free_port(), allow=(str(tmp_path),))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def served(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running service with short timeouts."""
    work_dir = tmp_path_factory.mktemp("service")
    settings = work_dir / "settings.toml"
    settings.write_text("[limits]\nhead_s = 2\nbody_s = 2\n")
    with running_service(work_dir, allow=lake, arguments=("--settings", str(settings))) as running:
        yield running


def refusal(settings: ServerSettings) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        serve(settings, runtime=SYSTEM_RUNTIME)
    return str(refused.value)


def test_a_port_that_is_taken_is_told_before_anything_is_made(local: ServerSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1:{port}" in refusal(replace(local, port=port))
    assert not local.work_dir.exists()


def test_a_port_for_grpc_that_is_taken_is_told_before_anything_is_made(local: ServerSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refusal(replace(local, grpc_port=port))
    assert f"cannot listen at 127.0.0.1:{port}" in message
    assert "--grpc-port" in message
    assert not local.work_dir.exists()


def test_a_work_directory_that_cannot_be_made_is_told(local: ServerSettings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot write to the work directory" in refusal(replace(local, work_dir=tmp_path / "file" / "x"))


def test_a_database_that_is_away_is_told_without_its_password(local: ServerSettings) -> None:
    message = refusal(replace(local, database_url=f"postgresql://keeper:hidden@127.0.0.1:{free_port()}/x"))
    assert "the database cannot be used" in message
    assert "hidden" not in message


def test_an_unknown_engine_is_told_with_those_there_are(local: ServerSettings) -> None:
    assert "there is no engine 'cobol': use one of arrow" in refusal(replace(local, engine="cobol"))


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_used_is_told_before_anything_is_made(
    local: ServerSettings, tmp_path: Path, content: str | None
) -> None:
    pem = tmp_path / "service.pem"
    if content is not None:
        pem.write_text(content)
    message = refusal(replace(local, tls_certificate=pem, tls_key=pem))
    assert f"--tls-certificate {pem} with --tls-key {pem} cannot be used" in message
    assert not local.work_dir.exists()


def test_an_unknown_option_of_an_engine_is_told_with_those_there_are(local: ServerSettings) -> None:
    message = refusal(replace(local, engine_options={"flnk_python": "x"}))
    assert "no engine has the option flnk_python: there is flink_address" in message


def test_a_storage_option_that_no_store_knows_is_told_before_anything_is_made(local: ServerSettings) -> None:
    message = refusal(replace(local, storage_options={"region": "eu-west-1", "regoin": "eu-west-1"}))
    assert "no store knows the storage options regoin" in message
    assert not local.work_dir.exists()


def test_an_allowed_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    places = AllowedPlaces((str(tmp_path), str(tmp_path / "laek"), "s3://lake"))
    assert places.missing() == (f"file://{tmp_path}/laek",)


def test_a_service_that_starts_says_what_it_does_and_where_to_look(served: Served, lake: Path) -> None:
    said = served.log.read_text()
    for part in (
        f"listening at {served.url}",
        "/v1/openapi.json",
        f"tables below file://{lake}",
        "2 operations at once",
    ):
        assert part in said


SLOW_SENDERS = (
    (b"", b""),
    (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b""),
    (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET ", b"HTTP/1.1 200"),
    (b"POST /v1/tables HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 408"),
)


def test_a_sender_of_a_byte_a_minute_is_not_waited_for(served: Served) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    with ExitStack() as opened:
        senders = [opened.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in SLOW_SENDERS]
        for sender, (sent, _) in zip(senders, SLOW_SENDERS, strict=True):
            sender.sendall(sent)
        for sender, (sent, answered) in zip(senders, SLOW_SENDERS, strict=True):
            with sender.makefile("rb") as answers:
                got = answers.read()
            assert got.startswith(answered), sent
            assert bool(got) == bool(answered), sent
    assert "Traceback" not in served.log.read_text()


def test_a_head_without_end_is_read_no_further_than_its_limit(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[limits]\nhead_s = 3600\n")
    with running_service(tmp_path / "service", allow=tmp_path, arguments=("--settings", str(settings))) as served:
        host, _, port = served.url.removeprefix("http://").partition(":")
        begun = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        for before in (b"", begun + b"\r\n"):
            with socket.create_connection((host, int(port)), timeout=60) as opened:
                opened.sendall(before + begun)
                sent, is_open = 0, True
                while is_open and sent < 50 * HEAD_BYTES:
                    try:
                        opened.sendall(b"X: " + b"y" * 60_000 + b"\r\n")
                        sent += 60_000
                    except ConnectionError:
                        is_open = False
                assert not is_open


def test_without_httptools_requests_are_read_by_h11(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "find_spec", lambda _: None)
    assert issubclass(http_protocol(head_s=1.0), H11Protocol)


@pytest.mark.parametrize("length", [70_000, 400_000])
def test_an_address_that_no_caller_needs_is_refused_with_a_code(served: Served, length: int) -> None:
    connection = HTTPConnection(served.url.removeprefix("http://"), timeout=60)
    connection.request("GET", f"/v1/tables?search={'x' * length}")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (414, "address_too_long")
    connection.close()
