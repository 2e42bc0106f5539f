"""A small scheduler: several processes on one table, stopped at every storage call, run in a chosen order.

Each actor is a thread that waits before every call until the scheduler lets it go on, so that exactly one is running at
any time and a run follows from its `Schedule` alone. An actor that sleeps (it waits for the lock) is passed over until
somebody else has taken a step; when all of them sleep, the clock moves on. An actor can be made to die at one of its
calls: what it had planned for the way out never reaches the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tablekeeper.errors import TablekeeperError
from tablekeeper.runtime import Runtime
from tablekeeper.storage import Storage
from tests.support.fake_runtime import FakeClock, FakeIds
from tests.support.step_faults import FaultPoint, OneThread, ProcessDied, StepStorage

__all__ = ["Actor", "ActorStorage", "Outcome", "Schedule", "Stage", "one_switch", "two_switches"]

T = TypeVar("T")

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who runs for how many calls, one after the other; then everybody runs to the end, in the order of their names."""

    runs: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{name} for {calls} calls" for name, calls in self.runs) or "one after the other"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an actor ended: with a value, an error, or by death."""

    value: Any = None
    error: BaseException | None = None

    @property
    def is_dead(self) -> bool:
        return isinstance(self.error, ProcessDied)


@dataclass(eq=False)
class Actor:
    """One process. `calls` are those that it made, in order."""

    name: str
    work: Callable[[], Any]
    storage: ActorStorage
    runtime: Runtime
    outcome: Outcome | None = None
    is_asleep: bool = False
    thread: threading.Thread | None = None
    go_on: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def calls(self) -> list[tuple[str, str]]:
        return self.storage.calls


class ActorStorage(StepStorage):
    """Stops its actor before every call. Calls from other threads (a heartbeat that the clock runs) just happen."""

    def __init__(self, storage: Storage, stage: Stage, point: FaultPoint | None = None) -> None:
        super().__init__(storage, point)
        self._stage = stage

    def around(self, kind: str, path: str, call: Callable[[], T]) -> T:
        if not self._stage.stop_here(self):
            return call()
        return super().around(kind, path, call)


class Stage:
    """The actors of one run, and the clock that they share."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.actors: dict[str, Actor] = {}
        self._arrived = threading.Semaphore(0)
        self._slept_s: dict[str, float] = {}

    def runtime(self, number: int) -> Runtime:
        """That of the actor with this number: ids of its own, and sleeping hands over to the others."""
        clock = _ActorClock(self)
        return Runtime(clock=clock, ids=FakeIds(number * 1_000_000 + 1), threads=OneThread(self.clock))

    def add(self, name: str, work: Callable[[], Any], storage: ActorStorage, runtime: Runtime) -> Actor:
        self.actors[name] = Actor(name, work, storage, runtime)
        return self.actors[name]

    def run(self, schedule: Schedule) -> dict[str, Outcome]:
        """All actors to their ends. Returns how each ended."""
        for actor in self.actors.values():
            actor.thread = threading.Thread(target=self._play, args=(actor,), name=actor.name, daemon=True)
            actor.thread.start()
            self._await_arrival()
        for name, calls in schedule.runs:
            for _ in range(calls):
                if not self._advance(self.actors[name]):
                    break
        while True:
            waiting = [actor for actor in self.actors.values() if actor.outcome is None]
            if not waiting:
                return {name: actor.outcome for name, actor in self.actors.items() if actor.outcome is not None}
            awake = [actor for actor in waiting if not actor.is_asleep]
            if not awake:
                self._let_time_pass(waiting)
            else:
                self._advance(awake[0])

    def stop_here(self, storage: ActorStorage) -> bool:
        """Called by an actor's thread before a call; False if this thread is not on the stage."""
        actor = self._current()
        if actor is None or actor.storage is not storage:
            return False
        self._hand_over(actor)
        return True

    def sleep(self, seconds: float) -> None:
        actor = self._current()
        if actor is None:
            self.clock.sleep(seconds)
            return
        actor.is_asleep = True
        self._slept_s[actor.name] = seconds
        self._hand_over(actor)

    def _play(self, actor: Actor) -> None:
        self._hand_over(actor)
        try:
            actor.outcome = Outcome(value=actor.work())
        except ProcessDied as death:
            actor.outcome = Outcome(error=death)
            assert isinstance(actor.runtime.threads, OneThread)
            actor.runtime.threads.kill()
        except TablekeeperError as error:
            actor.outcome = Outcome(error=error)
        finally:
            # Anything else ends the thread with a traceback and is missed by the scheduler as a broken actor.
            actor.outcome = actor.outcome or Outcome(error=RuntimeError(f"{actor.name} broke"))
            self._arrived.release()

    def _hand_over(self, actor: Actor) -> None:
        self._arrived.release()
        actor.go_on.acquire()

    def _advance(self, actor: Actor) -> bool:
        """One step of this actor; False if it has ended, or only sleeps."""
        if actor.outcome is not None or actor.is_asleep:
            return False
        actor.go_on.release()
        self._await_arrival()
        if not actor.is_asleep:
            # Somebody did something: whoever waits for it may look again.
            for other in self.actors.values():
                if other is not actor:
                    other.is_asleep = False
        return True

    def _let_time_pass(self, sleepers: list[Actor]) -> None:
        first = min(sleepers, key=lambda actor: self._slept_s[actor.name])
        self.clock.advance(self._slept_s[first.name])
        first.is_asleep = False

    def _await_arrival(self) -> None:
        if not self._arrived.acquire(timeout=_TIMEOUT_S):
            raise TimeoutError("an actor neither stopped at a call nor ended")

    def _current(self) -> Actor | None:
        thread = threading.current_thread()
        return next((actor for actor in self.actors.values() if actor.thread is thread), None)


class _ActorClock:
    """The clock of the stage, but for sleeping."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def now_ms(self) -> int:
        return self._stage.clock.now_ms()

    def monotonic_s(self) -> float:
        return self._stage.clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        self._stage.sleep(seconds)


def one_switch(names: tuple[str, str], calls: dict[str, int]) -> Iterator[Schedule]:
    """Each of the two runs for every possible number of calls before the other one runs to its end."""
    for name in names:
        for count in range(calls[name] + 1):
            other = names[1] if name == names[0] else names[0]
            yield Schedule(((name, count), (other, 1_000_000)))


def two_switches(names: tuple[str, str], calls: dict[str, int]) -> Iterator[Schedule]:
    """Each runs for a number of calls, then the other for one, then the first to its end: all of these."""
    for name in names:
        other = names[1] if name == names[0] else names[0]
        for count in range(1, calls[name] + 1):
            for interruption in range(1, calls[other] + 1):
                yield Schedule(((name, count), (other, interruption), (name, 1_000_000)))
