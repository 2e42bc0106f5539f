"""Trying again, with a bound: exponential waits with full jitter, for faults that may pass by themselves.

What is transient is decided where a fault is understood, and travels in `StorageError.transient`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tablekeeper.errors import StorageError
from tablekeeper.runtime import Runtime

__all__ = ["RetryPolicy", "retry_delays_s", "retry_transient"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how long at most between two tries. The n-th wait is random below `base_s * 2**n`, capped."""

    attempts: int = 6
    base_s: float = 0.1
    cap_s: float = 5.0


def retry_transient(operation: Callable[[], T], *, policy: RetryPolicy, runtime: Runtime) -> T:
    """What `operation` returns, trying again on transient `StorageError`s. The last one is raised as it is."""
    for delay_s in retry_delays_s(policy, runtime):
        try:
            return operation()
        except StorageError as error:
            if not error.transient:
                raise
        runtime.clock.sleep(delay_s)
    return operation()


def retry_delays_s(policy: RetryPolicy, runtime: Runtime) -> Iterator[float]:
    """The waits between the tries of one operation: one fewer than there are tries."""
    for retry in range(policy.attempts - 1):
        yield min(policy.cap_s, policy.base_s * 2**retry) * runtime.ids.jitter()
