"""Many histories, one after the other: seeds as they come, or those that grew from seeds which reached something new.

What a run reached is its coverage: which kinds of calls of which jobs followed on each other in different processes,
and what was done on the timeline by whom. A history that reached something new is kept, and every other one to come is
a variation of a kept one: another order, another fault, other seeds for its jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.testing.chance import Chance, chance_of
from tablekeeper.testing.draw import SHAPES, draw_fault, draw_history
from tablekeeper.testing.history import Actor, History
from tablekeeper.testing.jobs import JOBS
from tablekeeper.testing.play import Outcome, play

__all__ = ["Campaign", "Found", "vary"]

_KEPT = 400


@dataclass(frozen=True)
class Found:
    """A history that failed, and the seed that gave it. With `--guided` the seed alone does not bring it back."""

    seed: int
    outcome: Outcome


@dataclass
class Campaign:
    """What came of the histories so far."""

    is_guided: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    coverage: set[int] = field(default_factory=set)
    histories: int = 0
    steps: int = 0
    seconds: float = 0.0
    _kept: list[History] = field(default_factory=list)

    def run(self, seeds: range, *, most_seconds: float | None = None) -> Iterator[Found]:
        """Play the seeds, and give those that failed as they come."""
        clock = SYSTEM_RUNTIME.clock
        began_s = clock.monotonic_s()
        for seed in seeds:
            self.seconds = clock.monotonic_s() - began_s
            if most_seconds is not None and self.seconds >= most_seconds:
                return
            history = self._next(seed)
            outcome = play(history)
            self._count(history, outcome)
            if outcome.complaints:
                self.failures[outcome.complaints[0].partition(":")[0]] += 1
                yield Found(seed, outcome)
        self.seconds = clock.monotonic_s() - began_s

    def summary(self) -> str:
        """Figures in a line."""
        rate = self.histories / self.seconds * 60 if self.seconds else 0.0
        return (
            f"{self.histories} histories, {self.steps:,} steps, {len(self.coverage)} places reached, "
            f"{sum(self.failures.values())} failed, {self.seconds:.0f} s ({rate:.0f} a minute)"
        )

    def _next(self, seed: int) -> History:
        if not self.is_guided or not self._kept or seed % 2 == 0:
            return draw_history(seed)
        chance = chance_of("vary", seed)
        return vary(chance.choice(self._kept), chance)

    def _count(self, history: History, outcome: Outcome) -> None:
        self.histories += 1
        self.steps += outcome.steps
        self.counts += outcome.story.counts
        if not outcome.coverage <= self.coverage:
            self.coverage |= outcome.coverage
            self._kept = [*self._kept[-_KEPT + 1 :], replace(history, turns=None)]


def vary(history: History, chance: Chance) -> History:
    """A history like this one."""
    variations: list[Callable[[History, Chance], History]] = [_other_order, _other_fault, _other_jobs, _other_table]
    return chance.choice(variations)(replace(history, schedule=str(chance.random())), chance)


def _other_order(history: History, chance: Chance) -> History:
    del chance
    return history


def _other_fault(history: History, chance: Chance) -> History:
    kept = chance.sample(history.faults, min(1, len(history.faults)))
    return replace(history, faults=(*kept, draw_fault(chance, list(history.actors))))


def _other_jobs(history: History, chance: Chance) -> History:
    def other(actor: Actor) -> Actor:
        jobs = tuple(replace(job, seed=chance.randrange(1 << 30)) for job in actor.jobs)
        return replace(actor, jobs=jobs)

    return replace(history, actors=tuple(map(other, history.actors)))


def _other_table(history: History, chance: Chance) -> History:
    kinds = [JOBS[job.kind] for actor in (*history.before, *history.actors) for job in actor.jobs]
    fitting = [shape for shape in SHAPES if all(kind.fits(shape) for kind in kinds)]
    return replace(history, shape=chance.choice(fitting or [history.shape]))
