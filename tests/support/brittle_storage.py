"""A store that fails at one chosen call, and a runtime in which that call is the same one every time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, Literal, TypeVar

from tablekeeper.errors import StorageError
from tablekeeper.runtime import SystemClock, Threads
from tablekeeper.storage import Storage
from tests.support.storage_wrappers import WatchedStorage

__all__ = ["BrittleStorage", "OneThread", "ShiftedClock", "When"]

T = TypeVar("T")
When = Literal["before", "after", "dead"]


class OneThread(Threads):
    """Everything in order on the caller's thread, so that the n-th call is the same one every time."""

    def map(self, function: Callable[[Any], T], items: Iterable[Any], *, width: int = 16) -> list[T]:
        del width
        return [function(item) for item in items]


class ShiftedClock(SystemClock):
    """The machine's clock, some seconds on: another process that comes later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now_ms(self) -> int:
        return super().now_ms() + int(self._seconds * 1000)


class BrittleStorage(WatchedStorage):
    """Fails at call number `at`: before it happens, after it happened, or from then on for good ("dead").

    The publishing of an output when it is closed is a call of its own.
    """

    def __init__(self, storage: Storage, *, at: int, when: When) -> None:
        super().__init__(storage)
        self._at = at
        self._when = when
        self.calls: list[str] = []

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        self._before(kind, path)
        result = call()
        self._after(kind, path)
        return result

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        return self._output(path, scope)

    @contextmanager
    def _output(self, path: str, scope: str | None) -> Iterator[BinaryIO]:
        opened = self.around("open_output", path, lambda: self.storage.open_output(path, scope=scope))
        with opened as stream:
            yield stream
            self._before("publish", path)
        self._after("publish", path)

    def _before(self, kind: str, path: str) -> None:
        self.calls.append(f"{kind} {path}")
        hit = len(self.calls) == self._at or (self._when == "dead" and len(self.calls) > self._at)
        if hit and self._when != "after":
            raise StorageError(f"{path}: {kind} was not done", path=path, transient=True)

    def _after(self, kind: str, path: str) -> None:
        if len(self.calls) == self._at and self._when == "after":
            raise StorageError(f"{path}: {kind} was done, but its answer got lost", path=path, transient=True)
