"""Requests to call a plan off: one small file each under `.hoodie/.cancel/`, which Java ignores.

The request is written under the table lock, so that it comes either before the commit of the plan's executor, which
looks for it under the same lock, or after it. It stays until the plan has left the timeline: whoever dies on the way
leaves a plan that the next clean finds and removes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tablekeeper.errors import FencedError, NotFoundError, PlanCancelledError
from tablekeeper.model import RequestedTime, join_path
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tablekeeper.storage.handle import StorageHandle
from tablekeeper.txn.heartbeat import load_heartbeat_owner

__all__ = [
    "CancelRequest",
    "CancelWatch",
    "delete_cancel_request",
    "load_cancel_request",
    "load_cancel_requests",
    "save_cancel_request",
]

_DIRECTORY = ".hoodie/.cancel"


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Who wants the plan gone, and why."""

    instant: RequestedTime
    reason: str
    asked_by: str = ""
    asked_at_ms: int = 0


def save_cancel_request(storage: Storage, request: CancelRequest) -> None:
    """Make the request durable. The first one stands. The caller holds the table lock."""
    fields = {"reason": request.reason, "asked_by": request.asked_by, "asked_at_ms": request.asked_at_ms}
    storage.put_if_absent(_path(request.instant), json.dumps(fields).encode())


def load_cancel_request(storage: Storage, instant: RequestedTime) -> CancelRequest | None:
    """The request to call this plan off, None if there is none."""
    try:
        content = storage.read(_path(instant))
    except NotFoundError:
        return None
    return _decode(instant, content)


def load_cancel_requests(storage: Storage) -> list[CancelRequest]:
    """All requests that have not been carried out, by instant."""
    names = sorted(info.name for info in storage.list_files(_DIRECTORY))
    instants = [RequestedTime(name) for name in names if name.isascii() and name.isdigit()]
    found = [load_cancel_request(storage, instant) for instant in instants]
    return [request for request in found if request is not None]


def delete_cancel_request(storage: Storage, instant: RequestedTime) -> None:
    """The plan has left the timeline, or completed: nothing is asked any more."""
    storage.delete(_path(instant))


class CancelWatch:
    """Lets the tasks of an attempt notice that it is over: the plan was called off, or belongs to another executor now.

    Cheap to ask: it looks at most once an interval. Travels to workers, where it starts afresh. A task publishes its
    files inside `publishing`, so that a process that slept for long adds nothing to a plan that somebody else carries
    out meanwhile.
    """

    def __init__(
        self,
        store: StorageHandle,
        instant: RequestedTime,
        *,
        runtime: Runtime,
        owner: str | None = None,
        interval_s: float = 2.0,
    ) -> None:
        self._store = store
        self._instant = instant
        self._owner = owner
        self._clock = runtime.clock
        self._interval_s = interval_s
        self._looked_s: float | None = None

    def check(self) -> None:
        """Raise `PlanCancelledError` if the plan was called off, `FencedError` if it is another's."""
        now_s = self._clock.monotonic_s()
        if self._looked_s is not None and 0 <= now_s - self._looked_s < self._interval_s:
            return
        self._looked_s = now_s
        self.check_now()

    @contextmanager
    def publishing(self, path: str) -> Iterator[None]:
        """Around the call that makes a file of the attempt visible: it must not be over, before and after.

        Whoever ends an attempt ends its heartbeat first and looks for its files then. A file that came too late to be
        found there finds the heartbeat ended, and is taken back.
        """
        self.check_now()
        yield
        try:
            self.check_now()
        except (FencedError, PlanCancelledError):
            self._store.storage.delete(path)
            raise

    def check_now(self) -> None:
        """The same as `check` without regard to the interval."""
        storage = self._store.storage
        request = load_cancel_request(storage, self._instant)
        if request is not None:
            raise PlanCancelledError(
                f"plan {self._instant} was called off ({request.reason}). Nothing was committed; schedule a new plan "
                "when the time has come.",
                instant=self._instant.value,
                reason=request.reason,
            )
        if self._owner is not None and load_heartbeat_owner(storage, self._instant) != self._owner:
            raise FencedError(
                f"plan {self._instant} is not this process's any more: its heartbeat has ended or is another's. "
                "Nothing was committed; reload the table."
            )


def _decode(instant: RequestedTime, content: bytes) -> CancelRequest:
    """A request that does not decode is a request all the same: somebody wanted the plan gone."""
    try:
        fields = json.loads(content)
        return CancelRequest(instant, str(fields["reason"]), str(fields["asked_by"]), int(fields["asked_at_ms"]))
    except (ValueError, KeyError, TypeError):
        return CancelRequest(instant, "a request whose file does not decode")


def _path(instant: RequestedTime) -> str:
    return join_path(_DIRECTORY, instant.value)
