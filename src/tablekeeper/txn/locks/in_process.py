"""A lock between the threads of one process: for tables in memory, and for tests.

One registry for the process, by table URI, so that two `Table` objects of one table exclude each
other. It does not protect against other processes. Its lease never expires.
"""

from __future__ import annotations

from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime
from tablekeeper.txn.locks.protocol import HeldLease, LockHolder, Pace, wait_for

__all__ = ["InProcessLock"]

_PACE = Pace(first_s=0.001, longest_s=0.02)


class _Registry:
    """Which lease holds which table."""

    def __init__(self) -> None:
        self._mutex = SYSTEM_RUNTIME.threads.lock()
        self._holders: dict[str, _InProcessLease] = {}

    def claim(self, uri: str, lease: _InProcessLease) -> bool:
        with self._mutex:
            return self._holders.setdefault(uri, lease) is lease

    def holder(self, uri: str) -> _InProcessLease | None:
        with self._mutex:
            return self._holders.get(uri)

    def drop(self, uri: str, lease: _InProcessLease) -> None:
        with self._mutex:
            if self._holders.get(uri) is lease:
                del self._holders[uri]


_REGISTRY = _Registry()


class InProcessLock:
    """The lock of the table at `uri` for this process."""

    def __init__(self, uri: str, *, runtime: Runtime) -> None:
        self._uri = uri
        self._runtime = runtime

    def acquire(self, *, timeout_s: float) -> _InProcessLease:
        return wait_for(
            self._attempt,
            lock=self._uri,
            describe=self.describe,
            timeout_s=timeout_s,
            pace=_PACE,
            runtime=self._runtime,
        )

    def look_ahead(self) -> None:
        """Nothing: this lock need not be read in advance."""

    def describe(self) -> LockHolder | None:
        lease = _REGISTRY.holder(self._uri)
        if lease is None:
            return None
        return LockHolder(
            lock=self._uri,
            owner=lease.owner,
            age_s=lease.held_s,
            since_ms=lease.since_ms,
            is_lapsed=False,
            detail="a thread of this process",
        )

    def _attempt(self) -> _InProcessLease | None:
        lease = _InProcessLease(self._uri, runtime=self._runtime)
        return lease if _REGISTRY.claim(self._uri, lease) else None


class _InProcessLease(HeldLease):
    def __init__(self, uri: str, *, runtime: Runtime) -> None:
        super().__init__(uri, acquired_s=runtime.clock.monotonic_s(), clock=runtime.clock)
        self.owner = runtime.ids.uuid()
        self.since_ms = runtime.clock.now_ms()

    def check(self) -> None:
        self._refuse_if_over()

    def release(self) -> None:
        if self._end():
            _REGISTRY.drop(self._name, self)

    def _loss(self) -> str | None:
        return None if _REGISTRY.holder(self._name) is self else "another thread has taken the lock over"
