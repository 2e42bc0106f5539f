"""A runtime that a test owns: the clock stands still until it is advanced, ids count up, nothing runs by itself.

Periodic actions run on the thread that advances the clock, at the times at which they are due, in order; what they
raise reaches the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tablekeeper.runtime import Event, Periodic, Runtime, Threads

START_MS = 1_700_000_000_000
_REAL_WAIT_S = 0.02


class FakeClock:
    """Two hands: the wall clock, which a test may set, and the monotonic one, which only moves forward."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = float(now_ms)
        self._monotonic_s = 1_000.0
        self._timers: list[FakePeriodic] = []
        self.slept_s: list[float] = []

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass, running what falls due."""
        until_s = self._monotonic_s + seconds
        while True:
            due = [timer for timer in self._timers if timer.is_running and timer.due_s <= until_s]
            if not due:
                break
            timer = min(due, key=lambda each: each.due_s)
            self._move(max(0.0, timer.due_s - self._monotonic_s))
            timer.fire()
        self._move(max(0.0, until_s - self._monotonic_s))

    def stall(self, seconds: float) -> None:
        """Let time pass while nothing runs: the process is stopped, the world goes on."""
        self._move(seconds)

    def suspend(self, seconds: float) -> None:
        """Let time pass on the wall clock alone, as when a machine sleeps; also how a clock is set."""
        self._now_ms += seconds * 1000

    def due_in_s(self) -> float | None:
        """Seconds until the next periodic action; None if there is none."""
        return min((timer.due_s - self._monotonic_s for timer in self._timers if timer.is_running), default=None)

    def attach(self, timer: FakePeriodic) -> None:
        self._timers.append(timer)

    def _move(self, seconds: float) -> None:
        self._monotonic_s += seconds
        self._now_ms += seconds * 1000


class FakePeriodic(Periodic):
    """A periodic action that the clock runs."""

    def __init__(self, action: Callable[[], None], *, interval_s: float, clock: FakeClock) -> None:
        self._action = action
        self._interval_s = interval_s
        self._clock = clock
        self.failure = None
        self.is_running = True
        self.runs = 0
        self.due_s = clock.monotonic_s() + interval_s
        clock.attach(self)

    def fire(self) -> None:
        self.due_s = self._clock.monotonic_s() + self._interval_s
        self.runs += 1
        self._action()

    def stop(self) -> None:
        self.is_running = False


class FakeEvent:
    """An event that real threads report. Who waits for it gives them a moment, and then lets fake time pass."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._happened = threading.Event()

    def set(self) -> None:
        self._happened.set()

    def clear(self) -> None:
        self._happened.clear()

    def wait(self, timeout: float) -> bool:
        until_s = self._clock.monotonic_s() + timeout
        while not self._happened.wait(_REAL_WAIT_S):
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return False
            due_in_s = self._clock.due_in_s()
            self._clock.advance(left_s if due_in_s is None else min(left_s, max(0.0, due_in_s)))
        return True


class FakeThreads(Threads):
    """Periodic actions on the fake clock; mutexes and parallel maps are the real ones."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.periodics: list[FakePeriodic] = []

    def every(self, interval_s: float, action: Callable[[], None], *, name: str) -> Periodic:
        del name
        periodic = FakePeriodic(action, interval_s=interval_s, clock=self._clock)
        self.periodics.append(periodic)
        return periodic

    def event(self) -> Event:
        return FakeEvent(self._clock)


class FakeIds:
    """Ids that count up from `first`; jitter is always in the middle."""

    def __init__(self, first: int = 1) -> None:
        self._next = first

    def uuid(self) -> str:
        self._next += 1
        # Not all digits at the front, as few real ones are: eight digits there mark a bucket of the bucket index.
        return f"fa4e1d00-0000-4000-8000-{self._next - 1:012d}"

    def number(self, bound: int) -> int:
        self._next += 1
        return (self._next - 1) % bound

    def jitter(self) -> float:
        return 0.5


class FakeWorld:
    """One clock for several processes: each `process()` has ids of its own and sees the same time."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.clock = FakeClock(now_ms)
        self._processes = 0

    def process(self) -> Runtime:
        self._processes += 1
        return Runtime(clock=self.clock, ids=FakeIds(self._processes * 1_000_000 + 1), threads=FakeThreads(self.clock))


def fake_runtime(now_ms: int = START_MS) -> tuple[Runtime, FakeClock]:
    """A runtime and its clock."""
    world = FakeWorld(now_ms)
    return world.process(), world.clock
