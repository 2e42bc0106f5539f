"""An S3 server on a free loopback port: moto's application, watched, and able to fail on demand.

`requests` records what clients sent. `fail` makes the next matching request fail before it is executed, or after it,
when the answer is lost: with a status, or by cutting the connection.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote
from wsgiref.types import StartResponse, WSGIEnvironment

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

_ACCESS = {"aws_access_key_id": "tester", "aws_secret_access_key": "secret", "region": "us-east-1"}


@dataclass
class Fault:
    """What is to happen to the next `times` requests with this method whose path ends in `path`."""

    method: str
    path: str
    after: bool
    status: int
    times: int


@dataclass
class MotoServer:
    """A running server. `options` are storage options for it."""

    endpoint: str
    requests: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)
    one_at_a_time: Any = field(default_factory=Lock)

    @property
    def options(self) -> dict[str, str]:
        return {**_ACCESS, "endpoint": self.endpoint, "allow_http": "true"}

    @property
    def client(self) -> Any:
        """Another client of the same server, to see what is really there."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=_ACCESS["aws_access_key_id"],
            aws_secret_access_key=_ACCESS["aws_secret_access_key"],
            region_name=_ACCESS["region"],
        )

    def create_bucket(self, name: str) -> None:
        self.client.create_bucket(Bucket=name)

    def fail(self, method: str, path: str, *, after: bool = False, status: int = 503, times: int = 1) -> None:
        """Fail requests; `status=0` cuts the connection without an answer."""
        with self.lock:
            self.faults.append(Fault(method, path, after, status, times))

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and path.endswith(fault.path):
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def moto_server() -> Iterator[MotoServer]:
    """Start a server with no buckets, and stop it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    running = MotoServer(endpoint="")
    server = make_server("127.0.0.1", 0, _watched(application, running), threaded=True)
    running.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _watched(
    application: Callable[..., Iterable[bytes]], running: MotoServer
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = unquote(str(environ.get("RAW_URI", environ["PATH_INFO"])).partition("?")[0])
        fault = running.take_fault(environ["REQUEST_METHOD"], path)
        if fault is None:
            # S3 decides a conditional write in one step; moto looks and writes in two, which lets two writers win.
            with running.one_at_a_time:
                return list(application(environ, start_response))
        if fault.after:
            with running.one_at_a_time:
                b"".join(application(environ, lambda *_: lambda _: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if fault.status == 0:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        start_response(f"{fault.status or 500} Fault", [("Content-Length", "0")])
        return [b""]

    return serve
