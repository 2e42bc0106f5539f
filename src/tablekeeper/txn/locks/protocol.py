"""The table lock as a commit sees it, and what every kind of lock does alike.

One holder at a time, over threads, processes and machines as far as the kind of lock reaches.
Holding is a *lease*: it may lapse (a stalled process, a lost network), and then another writer may
take over. A holder therefore asks `Lease.check` directly before it publishes anything, and stops
when the answer is `FencedError`.

`check` is conservative. It refuses when either clock, monotonic or wall, says that less than a
safety margin of the lease is left, and when the store no longer shows the lock as its own.

Waiting for a lock is bounded, and its error names the holder. Polls have jitter, start fast and slow down to a cap that
is small against the time a lock is held, so that a writer that has waited long is not starved by those that came later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

from tablekeeper.errors import FencedError, LockNotAcquiredError
from tablekeeper.runtime import Clock, Runtime

__all__ = ["HeldLease", "Lease", "LockHolder", "Pace", "TableLock", "wait_for"]


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds a lock, since when (epoch ms; None if the holder did not record it) and for how long.

    `is_lapsed`: the lease is over or its process is dead; the next `acquire` takes the lock over.
    """

    lock: str
    owner: str
    age_s: float | None
    since_ms: int | None
    is_lapsed: bool
    detail: str

    def __str__(self) -> str:
        age = "for an unknown time" if self.age_s is None else f"for {self.age_s:.0f} s"
        return f"{self.owner} ({self.detail}), {age}"


class Lease(Protocol):
    """The lock while it is held. Leaving the `with` block releases it."""

    @property
    def held_s(self) -> float:
        """Seconds since the lock was acquired, up to its release."""
        ...

    def check(self) -> None:
        """Raise `FencedError` if another writer may hold the lock by now."""
        ...

    def look(self) -> None:
        """The same as far as the clocks tell, without asking the store: cheap, before every change."""
        ...

    def change_through(self, scope: str) -> None:
        """Give the lock back through this scope of the store, which whoever takes the lock over fences."""
        ...

    def release(self) -> None:
        """Give the lock back. Again, or after a take-over, it does nothing; it never touches another's lock."""
        ...

    def end(self) -> None:
        """Give the lock back and raise `FencedError` if another writer may have held it before that.

        If the store does not say, `StorageError`: whether the lock was given back is then open.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TableLock(Protocol):
    """The lock of one table. Any number of leases can be asked for from it."""

    def acquire(self, *, timeout_s: float) -> Lease:
        """Wait for the lock, at most `timeout_s`; then `LockNotAcquiredError` with the holder and what to do."""
        ...

    def look_ahead(self) -> None:
        """Look at the lock now, so that an `acquire` soon afterwards may find it without another look."""
        ...

    def describe(self) -> LockHolder | None:
        """The present holder, None if the lock is free."""
        ...


class HeldLease(ABC):
    """A lease of the lock `name`, held since `acquired_s` on the monotonic clock."""

    def __init__(self, name: str, *, acquired_s: float, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._acquired_s = acquired_s
        self._released_s: float | None = None
        self._scope: str | None = None

    @property
    def held_s(self) -> float:
        until_s = self._clock.monotonic_s() if self._released_s is None else self._released_s
        return until_s - self._acquired_s

    @abstractmethod
    def check(self) -> None: ...

    def look(self) -> None:
        self._refuse_if_over()

    def change_through(self, scope: str) -> None:
        self._scope = scope

    @abstractmethod
    def release(self) -> None: ...

    def end(self) -> None:
        self.check()
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @abstractmethod
    def _loss(self) -> str | None:
        """Why another writer may hold the lock by now; None if that cannot be."""

    def _end(self) -> bool:
        """Stop measuring, for the release. False if the lease had ended before."""
        if self._released_s is not None:
            return False
        self._released_s = self._clock.monotonic_s()
        return True

    def _over(self) -> str | None:
        if self._released_s is not None:
            return "the lock was released before the work under it ended"
        return self._loss()

    def _refuse_if_over(self) -> None:
        reason = self._over()
        if reason is not None:
            raise self._fenced(reason)

    def _fenced(self, reason: str) -> FencedError:
        return FencedError(f"{self._name}: {reason}. Nothing was published under it; reload the table and start again.")


L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to try: pauses double from the first to the longest, each scaled by a jitter of 50 to 150 %."""

    first_s: float
    longest_s: float


def wait_for(
    attempt: Callable[[], L | None],
    *,
    lock: str,
    describe: Callable[[], LockHolder | None],
    timeout_s: float,
    pace: Pace,
    runtime: Runtime,
    pause: Callable[[float], object] | None = None,
) -> L:
    """The first lease that `attempt` returns. It is tried at least once, and once more at the end of the wait.

    `pause` waits for so many seconds, or until there is news of the lock; the default is to sleep.
    """
    deadline_s = runtime.clock.monotonic_s() + timeout_s
    pause = pause or runtime.clock.sleep
    pause_s = pace.first_s
    while True:
        lease = attempt()
        if lease is not None:
            return lease
        left_s = deadline_s - runtime.clock.monotonic_s()
        if left_s <= 0:
            raise LockNotAcquiredError(_refusal(lock, holder=describe(), timeout_s=timeout_s))
        pause(min(left_s, pause_s * (0.5 + runtime.ids.jitter())))
        pause_s = min(pause_s * 2, pace.longest_s)


def _refusal(lock: str, *, holder: LockHolder | None, timeout_s: float) -> str:
    held = "other writers took it first each time" if holder is None else f"it is held by {holder}"
    return (
        f"{lock}: no lock within {timeout_s:g} s, {held}. Nothing was changed. Try again or wait longer; if no writer "
        f"is running on the table, `tablekeeper doctor` shows how to remove a lock that was left behind."
    )
