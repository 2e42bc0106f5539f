"""One process of the service: the loops, HTTP and gRPC, until it is told to stop.

Without tokens the service listens on its own machine only. SIGTERM and Ctrl-C end it in order: no new requests, no new
operations, then a limited time for running jobs.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import ssl
import sys
from dataclasses import replace
from platform import node
from types import FrameType

import uvicorn

from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import Runtime
from tablekeeper.server.api.connections import HEAD_BYTES, http_protocol
from tablekeeper.server.api.permissions import is_loopback
from tablekeeper.server.api.rpc import grpc_server
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.engines.registry import engine_names
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.web import build_web
from tablekeeper.storage.shared_options import refuse_unknown_options
from tablekeeper.tracing import start_tracing

__all__ = ["serve"]

_LOG = logging.getLogger(__name__)
_GRPC_THREADS = 16
_CLOSING_S = 5
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 (compared, not listened at)
_BACKLOG = 2048
# A request needs the interpreter for several short moments, and waits that long for each while a loop is running.
_SWITCH_S = 0.0005
# Young collections between two that look at everything.
_FULL_COLLECTION_EVERY = 1000


def serve(settings: ServerSettings, *, runtime: Runtime) -> None:
    """Run until a signal says otherwise."""
    sys.setswitchinterval(_SWITCH_S)
    _refuse_unusable_certificate(settings)
    refuse_unknown_options(settings.storage_options)
    end_tracing = start_tracing("tablekeeper")
    # First of all: if the port is taken, nothing has been started.
    with _listening_at(settings.host, settings.port, option="--port", backlog=_BACKLOG) as door:
        if settings.grpc_port:
            # gRPC opens its port itself, later: this is to see whether it can.
            _listening_at(settings.host, settings.grpc_port, option="--grpc-port").close()
        settings = replace(settings, port=door.getsockname()[1])
        service = open_service(settings, runtime=runtime, address=_address(settings))
        try:
            _refuse_open_door(service, settings)
            _run(service, settings, runtime, door)
        finally:
            service.drain()
        end_tracing()


def _refuse_unusable_certificate(settings: ServerSettings) -> None:
    if settings.tls_certificate is None:
        return
    try:
        # For an encrypted key OpenSSL would ask for a password at the terminal, and wait forever if there is none.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            settings.tls_certificate, settings.tls_key, password=""
        )
    except OSError as error:  # of OpenSSL too
        raise InvalidRequestError(
            f"--tls-certificate {settings.tls_certificate} with --tls-key {settings.tls_key} cannot be used "
            f"({error.strerror or error}): give a certificate and its own key, as PEM files without a password."
        ) from error


def _listening_at(host: str, port: int, *, option: str, backlog: int | None = None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise InvalidRequestError(
            f"cannot listen at {host}:{port} ({error.strerror or error}). If another program listens there, maybe a "
            f"service that runs already, choose another port with {option}."
        ) from error


def _run(service: Service, settings: ServerSettings, runtime: Runtime, door: socket.socket) -> None:
    web = build_web(
        service.store,
        settings,
        service.context.metrics,
        runtime,
        engines=frozenset(engine_names()),
        timelines=service.timelines,
    )
    pool = runtime.threads.pool(_GRPC_THREADS, name="tablekeeper-grpc")
    grpc = None
    if settings.grpc_port is not None:
        certificate = settings.tls_certificate.read_bytes() if settings.tls_certificate is not None else None
        key = settings.tls_key.read_bytes() if settings.tls_key is not None else None
        address = f"{_bracketed(settings.host)}:{settings.grpc_port}"
        grpc, port = grpc_server(web.rpc, address=address, threads=pool, certificate=certificate, key=key)
        grpc.start()
        _LOG.info("gRPC at %s:%d", settings.host, port)
    service.start()
    config = uvicorn.Config(
        web.guarded,
        http=http_protocol(head_s=settings.limits.head_s),
        ws="none",
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        h11_max_incomplete_event_size=HEAD_BYTES,
        server_header=False,
        timeout_graceful_shutdown=_CLOSING_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    _LOG.info("listening at %s: pages there, the API described at /v1/openapi.json", _address(settings))
    places = AllowedPlaces(settings.allow)
    _LOG.info("looks after tables below %s", places if settings.allow else "no place at all: give --allow")
    for missing in places.missing():
        _LOG.warning("--allow: there is no folder %s", missing)
    _LOG.info("runs %d operations at once, on %s by default", settings.limits.slots, settings.engine)
    _LOG.info("keeps its database and the output of attempts in %s", settings.work_dir)
    # Uvicorn stops on these signals and then raises them again, which would end the process before it has drained.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _told_to_stop)
    _collect_rarely()
    try:
        uvicorn.Server(config).run(sockets=[door])
    finally:
        if grpc is not None:
            grpc.stop(grace=_CLOSING_S).wait()
        pool.shutdown(wait=False, cancel_futures=True)


def _collect_rarely() -> None:
    """Make full garbage collections rare: each stops all requests for a tenth of a second.

    Objects that exist after the start are left out. Young objects, where the garbage is, are collected as always.
    """
    gc.collect()
    gc.freeze()
    first, second, _ = gc.get_threshold()
    gc.set_threshold(first, second, _FULL_COLLECTION_EVERY)


def _told_to_stop(number: int, _: FrameType | None) -> None:
    _LOG.info("%s: draining", signal.Signals(number).name)


def _refuse_open_door(service: Service, settings: ServerSettings) -> None:
    if is_loopback(settings.host):
        return
    if not service.store.has_tokens():
        raise InvalidRequestError(
            f"--host {settings.host}: there are no tokens, and without them only this machine may call the service. "
            "Start with --host 127.0.0.1, run `tablekeeper service tokens --add NAME --role admin`, and start again."
        )
    if settings.tls_certificate is None:
        _LOG.warning("tokens and cookies cross the network unencrypted: give --tls-certificate and --tls-key")


def _address(settings: ServerSettings) -> str:
    scheme = "http" if settings.tls_certificate is None else "https"
    # Nobody can call an instance by the address that stands for all of its addresses.
    host = node() if settings.host in _ALL_ADDRESSES else settings.host
    return f"{scheme}://{_bracketed(host)}:{settings.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
