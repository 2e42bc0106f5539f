"""How the bytes of a connection become HTTP requests: one of uvicorn's protocols, made less patient.

Uvicorn waits for ever for the first line and the headers of a request, and with httptools it takes as many of them as
come. Here both end: after `head_s`, and after `HEAD_BYTES`. Where httptools is not installed h11 does the same work,
more slowly.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEAD_BYTES", "http_protocol"]

HEAD_BYTES = 1_000_000
"""What is read of a request before its body. More than it may have, so that callers get to see the refusal."""
_ADDRESS_BYTES = 65_000


def http_protocol(*, head_s: float) -> type[asyncio.Protocol]:
    """The fastest of the protocols that are installed."""
    return type("HeadTimeoutProtocol", (_HeadTimeout, _fastest()), {"head_s": head_s})


def _fastest() -> type[asyncio.Protocol]:
    if find_spec("httptools") is None:
        return H11Protocol
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: PLC0415 (needs httptools)

    class BoundedAddress(HttpToolsProtocol):
        """Its parser fails on longer addresses. What is left of them is too long for the guard, which says so."""

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            self.url = self.url[:_ADDRESS_BYTES]

    return BoundedAddress


class _HeadTimeout(asyncio.Protocol):
    """Closes connections on which no request is under way and none comes, or one with a head without end."""

    head_s = 15.0
    # Of the protocol that this is mixed into; a cycle is a request with its answer.
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any
    _timeout: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        is_body = self._is_asked and before.more_body
        super().data_received(data)
        is_whole = is_body or self.cycle is not before
        self._head_bytes = 0 if is_whole else self._head_bytes + len(data)
        if self._head_bytes > HEAD_BYTES:
            self.transport.close()
        elif self._is_asked:
            self._end_waiting()
        elif self._timeout is None:
            self._wait_for_head()

    @property
    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self._timeout = self.loop.call_later(self.head_s, self.transport.close)

    def _end_waiting(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
