"""Another process on this machine that comes later: real time moved on, and everything on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tablekeeper.runtime import Runtime, SystemClock, Threads

__all__ = ["later_process"]

T = TypeVar("T")
R = TypeVar("R")


class _ShiftedClock(SystemClock):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now_ms(self) -> int:
        return super().now_ms() + int(self._seconds * 1000)


class _OneThread(Threads):
    """Everything in order on the caller's thread, so that the n-th call is the same one every time."""

    def map(self, function: Callable[[T], R], items: Iterable[T], *, width: int = 16) -> list[R]:
        del width
        return [function(item) for item in items]


def later_process(seconds: float) -> Runtime:
    """A runtime whose clock is so many seconds ahead."""
    return Runtime(clock=_ShiftedClock(seconds), threads=_OneThread())
