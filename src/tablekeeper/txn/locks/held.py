"""What every lease does alike: it measures how long the lock is held, and the end of a `with` block releases it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tablekeeper.errors import FencedError
from tablekeeper.runtime import Clock

__all__ = ["HeldLease"]


class HeldLease(ABC):
    """A lease of the lock `name`, held since `acquired_s` on the monotonic clock."""

    def __init__(self, name: str, *, acquired_s: float, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._acquired_s = acquired_s
        self._released_s: float | None = None

    @property
    def held_s(self) -> float:
        until_s = self._clock.monotonic_s() if self._released_s is None else self._released_s
        return until_s - self._acquired_s

    @abstractmethod
    def check(self) -> None: ...

    def look(self) -> None:
        self._refuse_if_over()

    @abstractmethod
    def release(self) -> None: ...

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
            raise FencedError(
                f"{self._name}: {reason}. Nothing was published under it; reload the table and start again."
            )
