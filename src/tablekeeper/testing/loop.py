"""The scheduler: everything that runs in a simulated world, one step at a time.

A fiber is a thread of a simulated process. It runs until it is about to call the store, sleeps, or waits for another
fiber; then whoever chooses says which fiber goes on. Exactly one fiber runs at any time, so that a run follows from the
choices alone. Time passes with each step, and in one leap when everybody waits for it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from tablekeeper.errors import TablekeeperError

__all__ = ["Call", "Choose", "Died", "Fiber", "Life", "Loop", "TooLongError"]

STEP_S = 0.002
"""How long a call of the store takes."""

_MOST_STEPS = 60_000


class Died(BaseException):
    """The process is gone. No clean-up of its own takes this for an error, and its store does nothing any more."""


class TooLongError(TablekeeperError):
    """The simulated processes did not come to an end within the bound on steps, or wait for each other for ever."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a fiber is about to ask of the store."""

    kind: str
    path: str
    changes: bool


class Life:
    """Whether a simulated process runs: it may be dead, or stopped until a moment, as by SIGSTOP."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.stopped_until_s = 0.0


@dataclass(eq=False)
class Fiber:
    """One thread of a process. `about_to` is the call that it stands before."""

    name: str
    life: Life
    is_main: bool
    run: Callable[[], Any]
    wakes_s: float = 0.0
    waits_for: Callable[[], bool] | None = None
    about_to: Call | None = None
    is_done: bool = False
    greenlet: Any = None


class Choose(Protocol):
    """Says who goes on."""

    def __call__(self, ready: Sequence[Fiber]) -> Fiber: ...


@dataclass(order=True)
class _Timer:
    due_s: float
    number: int
    name: str = field(compare=False)
    life: Life = field(compare=False)
    action: Callable[[], None] = field(compare=False)
    is_over: bool = field(default=False, compare=False)


class Loop:
    """Fibers and timers on one clock. `steps` counts how often a fiber was let go on."""

    def __init__(self, choose: Choose) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.current: Fiber | None = None
        self.failed: list[tuple[Fiber, BaseException]] = []
        self.lives: list[Life] = []
        self._choose = choose
        self._fibers: list[Fiber] = []
        self._killed: list[Life] = []
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()
        self._names: dict[str, int] = {}

    def spawn(self, life: Life, name: str, run: Callable[[], Any], *, is_main: bool = False) -> Fiber:
        """A new fiber of a process, which is ready at once. What it raises ends up in `failed`."""
        count = self._names[name] = self._names.get(name, 0) + 1
        fiber = Fiber(name if count == 1 else f"{name}#{count}", life, is_main, run)
        self._fibers.append(fiber)
        return fiber

    def admit(self, life: Life) -> int:
        """The number of a new process."""
        self.lives.append(life)
        return len(self.lives) - 1

    def kill(self, life: Life) -> None:
        """End a process from outside, before anybody goes on."""
        life.is_dead = True
        self._killed.append(life)

    def start_timer(self, life: Life, name: str, action: Callable[[], None], *, after_s: float) -> _Timer:
        """Run `action` in a fiber of the process once the time has come."""
        timer = _Timer(self.now_s + after_s, next(self._numbers), name, life, action)
        heapq.heappush(self._timers, timer)
        return timer

    def park(self, *, call: Call | None = None, until_s: float = 0.0, until: Callable[[], bool] | None = None) -> None:
        """Let others go on: until it is chosen again, not before a moment, and not before something holds.

        With both, whichever comes first. Outside of all fibers time simply passes.
        """
        fiber = self.current
        if fiber is None:
            self.now_s = max(self.now_s, until_s)
            return
        fiber.about_to, fiber.wakes_s, fiber.waits_for = call, until_s, until
        fiber.greenlet.parent.switch()
        if fiber.life.is_dead:
            raise Died

    def run(self) -> None:
        """Until all main fibers are done. Whatever else is left of their processes is left as it is."""
        while any(fiber.is_main for fiber in self._fibers):
            while self._killed:
                self.bury(self._killed.pop())
            self._start_due()
            ready = [fiber for fiber in self._fibers if self._is_ready(fiber)]
            if ready:
                self.steps += 1
                self._advance(ready[0] if len(ready) == 1 else self._choose(ready))
            elif (leap_s := self._next_moment()) is not None:
                self.now_s = leap_s
            else:
                raise TooLongError(f"nobody can go on: {[fiber.name for fiber in self._fibers]}")
            if self.steps > _MOST_STEPS:
                raise TooLongError(f"not at an end after {_MOST_STEPS} steps: {[f.name for f in self._fibers]}")

    def bury(self, life: Life) -> None:
        """End all fibers of a process that died or is over; their clean-ups reach nothing."""
        life.is_dead = True
        for fiber in [each for each in self._fibers if each.life is life and each is not self.current]:
            if fiber.greenlet is not None:
                self._switch(fiber, fiber.greenlet.throw, Died())
            fiber.is_done = True
        self._fibers = [fiber for fiber in self._fibers if not fiber.is_done]
        for timer in self._timers:
            timer.is_over = timer.is_over or timer.life is life

    def _advance(self, fiber: Fiber) -> None:
        self.now_s += STEP_S
        if fiber.greenlet is None:
            fiber.greenlet = greenlet(lambda: self._live(fiber), parent=getcurrent())
        self._switch(fiber, fiber.greenlet.switch)
        if fiber.is_done:
            self._fibers = [each for each in self._fibers if not each.is_done]
        if fiber.life.is_dead:
            self.bury(fiber.life)

    def _switch(self, fiber: Fiber, enter: Callable[..., Any], *arguments: object) -> None:
        before, self.current = self.current, fiber
        try:
            enter(*arguments)
        finally:
            self.current = before

    def _live(self, fiber: Fiber) -> None:
        try:
            if not fiber.life.is_dead:
                fiber.run()
        except Died:
            pass
        except BaseException as error:
            self.failed.append((fiber, error))
        finally:
            fiber.is_done = True

    def _is_ready(self, fiber: Fiber) -> bool:
        if fiber.life.stopped_until_s > self.now_s:
            return False
        if fiber.waits_for is None:
            return fiber.wakes_s <= self.now_s
        return fiber.waits_for() or 0 < fiber.wakes_s <= self.now_s

    def _start_due(self) -> None:
        late: list[_Timer] = []
        while self._timers and self._timers[0].due_s <= self.now_s:
            timer = heapq.heappop(self._timers)
            if timer.is_over:
                continue
            if timer.life.stopped_until_s > self.now_s:
                late.append(timer)
            else:
                timer.is_over = True
                self.spawn(timer.life, timer.name, timer.action)
        for timer in late:
            timer.due_s = timer.life.stopped_until_s
            heapq.heappush(self._timers, timer)

    def _next_moment(self) -> float | None:
        moments = [max(f.wakes_s, f.life.stopped_until_s) for f in self._fibers]
        moments += [t.due_s for t in self._timers if not t.is_over]
        return min((moment for moment in moments if moment > self.now_s), default=None)
