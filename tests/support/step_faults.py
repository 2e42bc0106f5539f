"""One storage call of a client goes wrong, in one of several ways, and a runtime that always makes the same calls.

`FaultPoint` says which call (from 1) and how. A process that dies raises `ProcessDied`, which no clean-up catches as
an error of the store; none of its later calls reach the store. Everything runs on one thread, so that a call has the
same number in every run.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from tablekeeper.errors import StorageError
from tablekeeper.runtime import Runtime
from tablekeeper.storage import FileInfo, Storage
from tests.support.fake_runtime import FakeClock, FakeIds, FakeThreads
from tests.support.storage_wrappers import WatchedStorage

__all__ = ["ONE_CALL", "WRITES", "Fault", "FaultPoint", "OneThread", "ProcessDied", "StepStorage", "one_thread_runtime"]

T = TypeVar("T")
R = TypeVar("R")

_OBJECTS = frozenset({"put", "put_if_absent", "replace", "delete", "delete_many", "delete_tree", "publish"})
WRITES = _OBJECTS | {"take_scope", "fence"}
"""Calls that change the store; the others only look."""


class Fault(enum.Enum):
    """How the call goes wrong."""

    ERROR_BEFORE = "error before"
    ERROR_AFTER = "error after"
    DEATH_BEFORE = "death before"
    DEATH_AFTER = "death after"
    OUTAGE = "outage"
    """This call and all that follow fail."""

    @property
    def is_death(self) -> bool:
        return self in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER)

    @property
    def is_before(self) -> bool:
        return self not in (Fault.ERROR_AFTER, Fault.DEATH_AFTER)


ONE_CALL = (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.DEATH_BEFORE, Fault.DEATH_AFTER)
"""Faults of one call: the store works again afterwards, or the process is gone."""


class ProcessDied(BaseException):
    """The process is gone."""


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """The call with this number goes wrong."""

    step: int
    fault: Fault


class StepStorage(WatchedStorage):
    """Numbers the calls of one client, remembers their kind and path, and lets one of them go wrong."""

    def __init__(self, storage: Storage, point: FaultPoint | None = None) -> None:
        super().__init__(storage)
        self._point = point
        self._is_dead = False
        self.calls: list[tuple[str, str]] = []

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        if self._is_dead:
            raise ProcessDied
        self.calls.append((kind, path))
        if self._point is None or not self._goes_wrong(self._point):
            return call()
        fault = self._point.fault
        if fault is Fault.DEATH_BEFORE:
            self._die()
        if fault in (Fault.ERROR_BEFORE, Fault.OUTAGE):
            raise StorageError(f"{path}: {kind} was not done", path=path, transient=True)
        call()
        if fault is Fault.DEATH_AFTER:
            self._die()
        raise StorageError(f"{path}: {kind} was done, but its answer got lost", path=path, transient=True)

    def _goes_wrong(self, point: FaultPoint) -> bool:
        return len(self.calls) == point.step or (point.fault is Fault.OUTAGE and len(self.calls) > point.step)

    def walk(self, directory: str) -> Iterator[FileInfo]:
        return self.around("walk", directory, lambda: iter(list(self.storage.walk(directory))))

    def open_output(self, path: str, *, scope: str | None = None) -> AbstractContextManager[BinaryIO]:
        return self._output(path, scope)

    @contextmanager
    def _output(self, path: str, scope: str | None) -> Iterator[BinaryIO]:
        """Opening is one call, publishing what was written another."""
        output = self.around("open_output", path, lambda: self.storage.open_output(path, scope=scope))
        stream = output.__enter__()
        try:
            yield stream
        except BaseException as error:
            output.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            self.around("publish", path, lambda: output.__exit__(None, None, None))
        except BaseException as error:
            if self._point is not None and self._point.fault.is_before:
                output.__exit__(type(error), error, error.__traceback__)
            raise

    def _die(self) -> None:
        self._is_dead = True
        raise ProcessDied


class OneThread(FakeThreads):
    """Parallel maps run one after the other, so that calls come in the same order every time."""

    def map(self, function: Callable[[T], R], items: Iterable[T], *, width: int = 32) -> list[R]:
        del width
        return [function(item) for item in items]

    def map_unordered(self, function: Callable[[T], R], items: Iterable[T], *, width: int) -> Iterator[R]:
        del width
        return (function(item) for item in items)

    def kill(self) -> None:
        """The process is gone, and its background threads with it."""
        for periodic in self.periodics:
            periodic.stop()


def one_thread_runtime(clock: FakeClock, *, process: int) -> Runtime:
    """A process on this clock, with ids of its own."""
    return Runtime(clock=clock, ids=FakeIds(process * 1_000_000 + 1), threads=OneThread(clock))
