"""A simulated process: a runtime whose clock, ids and threads belong to the scheduler.

Several threads of one process really take turns, at calls of the store and wherever they wait for each other. The
clock of a process may be wrong by so many seconds. Processes of one host see which of them have died, others cannot.
Outside of the scheduler (a judge looks at the table) the same runtime works without any waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from tablekeeper.runtime import Event, Periodic, Pool, ProcessId, Runtime, Threads
from tablekeeper.testing.chance import chance_of
from tablekeeper.testing.loop import Fiber, Life, Loop

__all__ = ["START_MS", "Process"]

T = TypeVar("T")
R = TypeVar("R")

START_MS = 1_710_000_000_000
"""When every history begins."""


class Process(Life):
    """One process with its `runtime`. `skew_s` is how far its clock is ahead; `parallel` lets its tasks take turns.

    Without a `host` it is alone on its own.
    """

    def __init__(
        self,
        loop: Loop,
        name: str,
        *,
        seed: object,
        skew_s: float = 0.0,
        parallel: bool = False,
        host: str = "",
    ) -> None:
        super().__init__(name)
        self.loop = loop
        self.skew_s = skew_s
        self.parallel = parallel
        self.host = host or name.partition("/")[0]
        self.pid = loop.admit(self)
        self.runtime = Runtime(clock=_Clock(self), ids=_Ids(seed), threads=_Threads(self), processes=_Processes(self))

    def sleep(self, seconds: float) -> None:
        """Let time pass for the fiber that asks."""
        self.loop.park(until_s=self.loop.now_s + seconds)

    def stop(self, seconds: float) -> None:
        """Stop the whole process where it is: all of its fibers and timers."""
        self.stopped_until_s = self.loop.now_s + seconds
        self.loop.park(until_s=self.stopped_until_s)


class _Clock:
    def __init__(self, process: Process) -> None:
        self._process = process

    def now_ms(self) -> int:
        return START_MS + int((self._process.loop.now_s + self._process.skew_s) * 1000)

    def monotonic_s(self) -> float:
        return self._process.loop.now_s

    def sleep(self, seconds: float) -> None:
        self._process.sleep(seconds)


class _Ids:
    def __init__(self, seed: object) -> None:
        self._chance = chance_of("ids", seed)

    def uuid(self) -> str:
        text = f"{self._chance.getrandbits(128):032x}"
        # A letter in front: eight digits there mark a bucket of the bucket index.
        return f"a{text[1:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"

    def number(self, bound: int) -> int:
        return self._chance.randrange(bound)

    def jitter(self) -> float:
        return self._chance.random()


class _Processes:
    def __init__(self, process: Process) -> None:
        self._process = process

    def me(self) -> ProcessId:
        return ProcessId(self._process.host, machine=self._process.host, pid=self._process.pid, started="once")

    def is_dead(self, process: ProcessId) -> bool:
        return process.machine == self._process.host and self._process.loop.lives[process.pid].is_dead


class _Mutex:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._is_held = False

    def __enter__(self) -> bool:
        while self._is_held:
            self._loop.park(until=lambda: not self._is_held)
        self._is_held = True
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_held = False


class _Event:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._happened = False

    def set(self) -> None:
        self._happened = True

    def clear(self) -> None:
        self._happened = False

    def wait(self, timeout: float) -> bool:
        if not self._happened:
            self._loop.park(until=lambda: self._happened, until_s=self._loop.now_s + timeout)
        return self._happened


class _Periodic(Periodic):
    def __init__(self, process: Process, action: Callable[[], None], *, interval_s: float, name: str) -> None:
        self._process = process
        self._name = f"{process.name}/{name.removeprefix('tablekeeper-').split('-2')[0]}"
        self._action = action
        self._interval_s = interval_s
        self._is_stopped = False
        self._at_work: Fiber | None = None
        self.failure = None
        self._wait()

    def stop(self) -> None:
        self._is_stopped = True
        self._timer.is_over = True
        loop = self._process.loop
        if self._at_work is not None and self._at_work is not loop.current and loop.current is not None:
            loop.park(until=lambda: self._at_work is None)

    def _wait(self) -> None:
        loop = self._process.loop
        self._timer = loop.start_timer(self._process, self._name, self._fire, after_s=self._interval_s)

    def _fire(self) -> None:
        if self._is_stopped:
            return
        self._at_work = self._process.loop.current
        try:
            self._action()
        except Exception as error:
            self.failure = error
        finally:
            self._at_work = None
        if self.failure is None and not self._is_stopped:
            self._wait()


class _Threads(Threads):
    def __init__(self, process: Process) -> None:
        self._process = process
        self._loop = process.loop

    def every(self, interval_s: float, action: Callable[[], None], *, name: str) -> Periodic:
        return _Periodic(self._process, action, interval_s=interval_s, name=name)

    def start(self, action: Callable[[], None], *, name: str) -> None:
        self._loop.spawn(self._process, f"{self._process.name}/{name}", action)

    def lock(self) -> AbstractContextManager[bool]:
        return _Mutex(self._loop)

    def event(self) -> Event:
        return _Event(self._loop)

    def pool(self, width: int, *, name: str) -> Pool:
        raise NotImplementedError(f"{name}: a library that brings its own threads cannot be simulated")

    def call_within(self, seconds: float, function: Callable[[], T], *, name: str) -> T:
        if self._loop.current is None:
            return function()
        done = _Task(function)
        self._loop.spawn(self._process, f"{self._process.name}/{name}", done.run)
        self._loop.park(until=lambda: done.is_over, until_s=self._loop.now_s + seconds)
        if not done.is_over:
            raise TimeoutError(f"{name} took longer than {seconds:g} s")
        return done.result()

    def map(self, function: Callable[[T], R], items: Iterable[T], *, width: int = 16) -> list[R]:
        work = list(items)
        if not self._process.parallel or self._loop.current is None or width <= 1 or len(work) <= 1:
            return [function(item) for item in work]
        tasks = [_Task(partial(function, item)) for item in work]
        for task in tasks:
            self._loop.spawn(self._process, f"{self._process.name}/task", task.run)
        self._loop.park(until=lambda: all(task.is_over for task in tasks))
        return [task.result() for task in tasks]

    def map_unordered(self, function: Callable[[T], R], items: Iterable[T], *, width: int) -> Iterator[R]:
        del width
        return (function(item) for item in items)


class _Task(Generic[T]):
    """A call in a fiber of its own, and what came of it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._value: T | None = None
        self._error: Exception | None = None
        self.is_over = False

    def run(self) -> None:
        try:
            self._value = self._function()
        except Exception as error:
            self._error = error
        self.is_over = True

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]
