"""Waiting for a lock: bounded, with jitter, and with an error that names the holder.

Polls start fast and slow down to a cap that is small against the time a lock is held, so that a
writer that has waited long is not starved by those that came later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tablekeeper.errors import LockNotAcquiredError
from tablekeeper.runtime import Runtime
from tablekeeper.txn.locks.protocol import LockHolder

__all__ = ["Pace", "wait_for"]

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
