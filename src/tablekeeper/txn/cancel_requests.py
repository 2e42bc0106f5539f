"""Requests to cancel a plan: one small file each under `.hoodie/.cancel/`, which Java ignores.

The request is written under the table lock, so that it comes either before the commit of the plan's executor, which
checks for it under the same lock, or after it. It stays until the plan has left the timeline: if the process dies in
between, the next clean finds and removes the plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tablekeeper.errors import NotFoundError
from tablekeeper.model import RequestedTime, join_path
from tablekeeper.storage import Storage

__all__ = [
    "CancelRequest",
    "delete_cancel_request",
    "load_cancel_request",
    "load_cancel_requests",
    "load_cancelled_instants",
    "save_cancel_request",
]

_DIRECTORY = ".hoodie/.cancel"


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Who asked to remove the plan, and why."""

    instant: RequestedTime
    reason: str
    asked_by: str = ""
    asked_at_ms: int = 0


def save_cancel_request(storage: Storage, request: CancelRequest) -> None:
    """Make the request durable; an earlier one is kept. The caller holds the table lock."""
    fields = {"reason": request.reason, "asked_by": request.asked_by, "asked_at_ms": request.asked_at_ms}
    storage.put_if_absent(_path(request.instant), json.dumps(fields).encode())


def load_cancel_request(storage: Storage, instant: RequestedTime) -> CancelRequest | None:
    """The request to cancel this plan, None if there is none."""
    try:
        content = storage.read(_path(instant))
    except NotFoundError:
        return None
    return _decode(instant, content)


def load_cancel_requests(storage: Storage) -> list[CancelRequest]:
    """All requests that have not been executed, by instant."""
    found = [load_cancel_request(storage, instant) for instant in sorted(load_cancelled_instants(storage))]
    return [request for request in found if request is not None]


def load_cancelled_instants(storage: Storage) -> frozenset[RequestedTime]:
    """The plans for which there is a request: one listing."""
    names = [info.name for info in storage.list_files(_DIRECTORY)]
    return frozenset(RequestedTime(name) for name in names if name.isascii() and name.isdigit())


def delete_cancel_request(storage: Storage, instant: RequestedTime) -> None:
    """Remove the request: the plan has left the timeline, or completed."""
    storage.delete(_path(instant))


def _decode(instant: RequestedTime, content: bytes) -> CancelRequest:
    """A request that does not decode still counts: somebody wanted to remove the plan."""
    try:
        fields = json.loads(content)
        return CancelRequest(instant, str(fields["reason"]), str(fields["asked_by"]), int(fields["asked_at_ms"]))
    except (ValueError, KeyError, TypeError):
        return CancelRequest(instant, "a request whose file does not decode")


def _path(instant: RequestedTime) -> str:
    return join_path(_DIRECTORY, instant.value)
