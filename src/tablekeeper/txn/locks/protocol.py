"""The table lock as the commit door sees it.

One holder at a time, over threads, processes and machines as far as the kind of lock reaches.
Holding is a *lease*: it may lapse (a stalled process, a lost network), and then another writer may
take over. A holder therefore asks `Lease.check` directly before it publishes anything, and stops
when the answer is `FencedError`.

`check` is conservative. It refuses when either clock, monotonic or wall, says that less than a
safety margin of the lease is left, and when the store no longer shows the lock as its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Lease", "LockHolder", "TableLock"]


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
        """The same as far as the clocks tell, without asking whoever keeps the lock: cheap, before every change."""
        ...

    def release(self) -> None:
        """Give the lock back. Again, or after a take-over, it does nothing; it never touches another's lock."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TableLock(Protocol):
    """The lock of one table. Holds no state of its own: any number of leases can be asked for from it."""

    def acquire(self, *, timeout_s: float) -> Lease:
        """Wait for the lock, at most `timeout_s`; then `LockNotAcquiredError` with the holder and what to do."""
        ...

    def describe(self) -> LockHolder | None:
        """The present holder, None if the lock is free."""
        ...
