"""What every HTTP request passes before it reaches a route: size, rate, origin, and headers on the way out.

- A body that is larger than the limit, or comes too slowly, is refused while it comes in, and before if it says its
  length. So is an address that no caller needs.
- Each client has a bucket of requests that fills up again; the number of buckets is bounded.
- A page of another site must not make a browser call this service: browsers say where a request comes from, and what
  comes from elsewhere is refused, reads with an effect (the Java client's GET) included. Only a link to a page may be
  followed from anywhere: pages change nothing. Without tokens the `Host` has to be the own machine's name too, so that
  no name of somebody else's leads here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tablekeeper.runtime import Runtime
from tablekeeper.server.api.permissions import Gate, is_loopback
from tablekeeper.server.api.refusals import Refusal, RefusedCallError, database_is_away
from tablekeeper.server.store.database import DATABASE_AWAY

__all__ = ["INTERFACE", "RateLimit", "RequestGuard", "refusal_body"]

_LOG = logging.getLogger(__name__)
_CLIENTS = 10_000
_PASSED_OVER_BYTES = 64_000_000
# Java's client names all pending instants of a table in its address.
_ADDRESS_BYTES = 64_000
_SAFE_SITES = ("", "same-origin", "none")
INTERFACE = "/v1/"
"""What is no page below it: calls of programs, some of which have an effect."""
_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"x-content-type-options", b"nosniff"),
    # Not no-referrer: with it browsers send forms with `Origin: null`, as if another site had made them.
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


def refusal_body(refusal: Refusal, message: str) -> dict[str, object]:
    """How every error looks: a stable code for programs and a text for people."""
    return {"error": {"code": refusal.code, "message": message}}


class RateLimit:
    """A bucket of requests for each client; the one that was quiet for longest is forgotten first."""

    def __init__(self, *, per_second: float, burst: int, runtime: Runtime) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = runtime.clock
        self._mutex = runtime.threads.lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> bool:
        """Take one request out of the client's bucket; False if it is empty."""
        if self._per_second <= 0:
            return True
        now_s = self._clock.monotonic_s()
        with self._mutex:
            tokens, filled_s = self._buckets.pop(client, (float(self._burst), now_s))
            tokens = min(float(self._burst), tokens + (now_s - filled_s) * self._per_second)
            is_there = tokens >= 1
            self._buckets[client] = (tokens - 1 if is_there else tokens, now_s)
            if len(self._buckets) > _CLIENTS:
                self._buckets.popitem(last=False)
        return is_there


class RequestGuard:
    """ASGI middleware that applies the rules above."""

    def __init__(self, app: ASGIApp, *, gate: Gate, rate: RateLimit, body_bytes: int, body_s: float) -> None:
        self._app = app
        self._gate = gate
        self._rate = rate
        self._body_bytes = body_bytes
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            if self._gate.must_look:
                # Not here: a database that is slow would hold up everybody.
                await run_in_threadpool(self._look)
            self._refuse(scope, headers)
        except RefusedCallError as error:
            # A client that is told to slow down must not fill the log instead.
            level = logging.DEBUG if error.refusal is Refusal.TOO_MANY_REQUESTS else logging.INFO
            _LOG.log(level, "%s %r: %s: %s", scope["method"], scope["path"][:200], error.refusal.code, error)
            if error.refusal is not Refusal.BODY_TOO_LARGE:
                await _answer(send, error)
                return
            # At once, for who does not send before it is told to; the end waits for who sends meanwhile.
            await _answer(send, error, is_ended=False)
            await _pass_over(receive, until_s=asyncio.get_running_loop().time() + self._body_s)
            await send({"type": "http.response.body", "body": b""})
            return
        body = _BoundedBody(receive, self._body_bytes, self._body_s)
        await self._app(scope, body.receive, _Answering(send, body).send)

    def _look(self) -> None:
        try:
            self._gate.needs_token()
        except DATABASE_AWAY as error:
            raise database_is_away() from error

    def _refuse(self, scope: Scope, headers: dict[str, str]) -> None:
        client = (scope.get("client") or ("",))[0]
        if not self._rate.take(client):
            raise RefusedCallError(Refusal.TOO_MANY_REQUESTS, "too many requests from this address: slow down")
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > _ADDRESS_BYTES:
            raise RefusedCallError(
                Refusal.ADDRESS_TOO_LONG, f"the address of a request has at most {_ADDRESS_BYTES} bytes"
            )
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._body_bytes:
            raise _too_large(self._body_bytes)
        host = headers.get("host", "")
        origin = headers.get("origin", "")
        is_from_here = headers.get("sec-fetch-site", "") in _SAFE_SITES or _follows_link(scope, headers)
        if not is_from_here or (origin and urlsplit(origin).netloc != host):
            raise RefusedCallError(Refusal.CROSS_SITE, "requests that another site makes a browser send are refused")
        if not headers.get("authorization") and not self._gate.needs_token() and not is_loopback(_host_name(host)):
            raise RefusedCallError(Refusal.CROSS_SITE, "without tokens this service is called by localhost only")


class _BoundedBody:
    """The body as it comes in. Once it is too large or too late the application gets an end without the rest."""

    def __init__(self, receive: Receive, limit: int, seconds: float) -> None:
        self._receive = receive
        self._limit = limit
        self._left = limit
        self._seconds = seconds
        self._until_s: float | None = None
        self._is_whole = False
        self.refusal: RefusedCallError | None = None

    async def receive(self) -> Message:
        if self._is_whole:
            # What follows is news of the connection, which may take as long as it likes.
            return await self._receive()
        if self._until_s is None:
            self._until_s = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError:
            self.refusal = RefusedCallError(Refusal.TOO_SLOW, f"the body did not come within {self._seconds:g} s")
            return self._end()
        self._left -= len(message.get("body", b""))
        if self._left < 0 and message["type"] == "http.request":
            self.refusal = _too_large(self._limit)
            if message.get("more_body"):
                await _pass_over(self._receive, until_s=self._until_s)
            return self._end()
        self._is_whole = not message.get("more_body", False)
        return message

    def _end(self) -> Message:
        self._is_whole = True
        return {"type": "http.request", "body": b"", "more_body": False}


class _Answering:
    """The answer as it goes out, with the headers that all have; in its place the refusal of the body."""

    def __init__(self, send: Send, body: _BoundedBody) -> None:
        self._send = send
        self._body = body
        self._has_begun = False
        self._is_refused = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self._has_begun:
            self._has_begun = True
            if self._body.refusal is not None:
                self._is_refused = True
                await _answer(self._send, self._body.refusal)
            present = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(each for each in _HEADERS if each[0] not in present)]
        if not self._is_refused:
            await self._send(message)


async def _pass_over(receive: Receive, *, until_s: float) -> None:
    """Read the rest of a body, within bounds: who still sends when the connection is closed never sees the answer."""
    left = _PASSED_OVER_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until_s):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return


async def _answer(send: Send, error: RefusedCallError, *, is_ended: bool = True) -> None:
    body = json.dumps(refusal_body(error.refusal, str(error))).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *_HEADERS]
    if error.refusal is Refusal.TOO_MANY_REQUESTS:
        headers.append((b"retry-after", b"1"))
    if not is_ended:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(error.refusal.status), "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": not is_ended})


def _too_large(limit: int) -> RefusedCallError:
    return RefusedCallError(Refusal.BODY_TOO_LARGE, f"the body of a request has at most {limit} bytes")


def _follows_link(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Whether a person opens a page: in a window of its own, not in a frame, and not by a script or a form."""
    is_document = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_document and scope["method"] == "GET" and not scope["path"].startswith(INTERFACE)


def _host_name(host: str) -> str:
    """The name without its port; empty for what is no name."""
    if not host.startswith("["):
        return host.partition(":")[0]
    name, bracket, port = host[1:].partition("]")
    return name if bracket and (not port or port.startswith(":")) else ""
