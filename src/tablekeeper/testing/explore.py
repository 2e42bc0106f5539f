"""Bounded exhaustive search: every order of the calls of a few processes, with every fault, up to stated bounds.

A run is its choices: who goes on wherever more than one can. The search plays a scenario, takes every choice of the run
the other way, and goes on from there, up to so many preemptions (switches away from a process that could have gone on).
A switch is tried only before a call that somebody else's call depends on: one that touches the same file or folder, and
one of the two changes it. Orders that differ in nothing else are the same run, and are played once.

Faults are put before every call that changes something, which is after the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tablekeeper.testing.choosing import Chooser
from tablekeeper.testing.history import Actor, Fault, FaultKind, History, Job, Shape
from tablekeeper.testing.loop import Call, Fiber
from tablekeeper.testing.play import Outcome, play
from tablekeeper.testing.story import Event

__all__ = ["SCENARIOS", "Explored", "Scenario", "explore"]

_KINDS = (FaultKind.DEATH_BEFORE, FaultKind.SLEEP_BEFORE)
_ASLEEP_S = 1_500.0
_LATER_S = 400.0
_PRIVATE = (".hoodie/.tablekeeper/staging/", ".hoodie/.temp/")


@dataclass(frozen=True)
class Scenario:
    """Processes on a table that `before` has prepared. `forbids` names what must not be counted, with why."""

    name: str
    before: tuple[Actor, ...]
    actors: tuple[Actor, ...]
    before_faults: tuple[Fault, ...] = ()
    forbids: Mapping[str, str] = field(default_factory=dict)

    def history(self, faults: Sequence[Fault] = ()) -> History:
        return History(Shape("mor"), self.actors, (*self.before_faults, *faults), before=self.before)


@dataclass
class Explored:
    """What came of a search: runs that were played, how many of them were different, and those that failed."""

    runs: int = 0
    different: int = 0
    pruned: int = 0
    failures: list[Outcome] = field(default_factory=list)


def _planner(kind: str) -> tuple[Actor, ...]:
    return (Actor("planner", (Job(kind),)),)


_EXECUTE = "execute_waiting"


def _pair(first: str, second: str, *, after_s: float = 0.0) -> tuple[Actor, ...]:
    return Actor("x", (Job(first),)), Actor("y", (Job(second, after_s=after_s),))


_BEGUN = (Actor("planner", (Job("plan_firm"), Job(_EXECUTE))),)
_BEGUN_MUTABLE = (Actor("planner", (Job("plan_mutable"), Job(_EXECUTE))),)
_DIED = (Fault("planner", 1, 34, FaultKind.DEATH_BEFORE),)
_NEVER = dict.fromkeys(
    ("compaction completed", "tidy execute completed"), "a mutable plan that was begun is never executed again"
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("immutable A: two execute a new plan", _planner("plan_firm"), _pair(_EXECUTE, _EXECUTE)),
        Scenario(
            "immutable B: one executes, another one comes after its heartbeat",
            _planner("plan_firm"),
            _pair(_EXECUTE, _EXECUTE, after_s=_LATER_S),
        ),
        Scenario(
            "immutable C: two execute a plan that was begun",
            (*_BEGUN, Actor("waiter", (Job("plans", after_s=_LATER_S),))),
            _pair(_EXECUTE, _EXECUTE),
            before_faults=_DIED,
        ),
        Scenario("mutable A: two execute a new plan", _planner("plan_mutable"), _pair(_EXECUTE, _EXECUTE)),
        Scenario(
            "mutable B: one executes, another one comes after its heartbeat",
            _planner("plan_mutable"),
            _pair(_EXECUTE, _EXECUTE, after_s=_LATER_S),
        ),
        Scenario(
            "mutable C: two execute a plan that was begun",
            (*_BEGUN_MUTABLE, Actor("waiter", (Job("plans", after_s=_LATER_S),))),
            _pair(_EXECUTE, _EXECUTE),
            before_faults=_DIED,
            forbids=_NEVER,
        ),
        Scenario("mutable D: one executes, another one cleans", _planner("plan_mutable"), _pair(_EXECUTE, "clean")),
        Scenario(
            "mutable E: one cleans without delay, another one executes",
            _planner("plan_mutable"),
            _pair("clean_at_once", _EXECUTE),
        ),
    )
}
"""Those of the design of the heartbeat guard."""


def explore(
    scenario: Scenario,
    *,
    preemptions: int = 1,
    faults: int = 1,
    most_runs: int | None = None,
    stride: int = 1,
    is_together: bool = False,
    tell: Callable[[Explored], None] = lambda explored: None,
) -> Explored:
    """Play the scenario in all orders with up to so many preemptions, then with up to so many faults.

    Without `is_together` there are no preemptions with faults: the others act before, while the process sleeps or after
    it has died. With it all orders are played with each fault. `stride` takes every so-manieth place for a fault.
    """
    explored = Explored()
    _orders(scenario, explored, preemptions=preemptions, most_runs=most_runs, tell=tell)
    places = list(_places(scenario))[::stride]
    for count in range(1, faults + 1):
        for chosen in combinations(places, count):
            if len({(fault.actor, fault.call) for fault in chosen}) < count or _is_full(explored, most_runs):
                continue
            bound = preemptions if is_together else 0
            _orders(scenario, explored, preemptions=bound, most_runs=most_runs, tell=tell, faults=chosen)
    return explored


def _is_full(explored: Explored, most_runs: int | None) -> bool:
    return most_runs is not None and explored.runs >= most_runs


def _judge(scenario: Scenario, outcome: Outcome, explored: Explored) -> None:
    explored.runs += 1
    for what, why in scenario.forbids.items():
        if outcome.story.counts[what]:
            outcome.story.complain("scenario", f"{what}: {why}")
    if outcome.complaints:
        explored.failures.append(outcome)


@dataclass(frozen=True)
class _Choice:
    """A moment at which more than one could go on: who was there and before which call, and who was taken."""

    ready: tuple[tuple[str, Call | None], ...]
    taken: str
    preempts: bool


class _Forced(Chooser):
    """The first choices are given; after them whoever runs goes on."""

    def __init__(self, forced: Sequence[str]) -> None:
        super().__init__()
        self._forced = forced
        self._last = ""
        self.choices: list[_Choice] = []

    def pick(self, ready: Sequence[Fiber]) -> Fiber:
        names = {fiber.name: fiber for fiber in ready}
        number = len(self.choices)
        wanted = self._forced[number] if number < len(self._forced) else self._last
        fiber = names.get(wanted, ready[0])
        there = tuple((each.name, each.about_to) for each in ready)
        self.choices.append(_Choice(there, fiber.name, self._last in names and fiber.name != self._last))
        self._last = fiber.name
        return fiber


def _orders(
    scenario: Scenario,
    explored: Explored,
    *,
    preemptions: int,
    most_runs: int | None,
    tell: Callable[[Explored], None],
    faults: Sequence[Fault] = (),
) -> None:
    """All orders with these faults."""
    seen: set[int] = set()
    waiting: list[tuple[str, ...]] = [()]
    while waiting and not _is_full(explored, most_runs):
        forced = waiting.pop()
        chooser = _Forced(forced)
        outcome = play(scenario.history(faults), chooser=chooser)
        _judge(scenario, outcome, explored)
        tell(explored)
        identity = hash(_accesses(outcome.story.events))
        if identity in seen:
            explored.pruned += 1
            continue
        seen.add(identity)
        explored.different += 1
        if preemptions or not faults:
            waiting += _alternatives(chooser.choices, outcome.story.events, len(forced), preemptions)


def _alternatives(
    choices: Sequence[_Choice], events: Sequence[Event], begin: int, preemptions: int
) -> Iterator[tuple[str, ...]]:
    """Every choice after the forced ones, taken the other way where that can make a difference."""
    touched = _touched(events)
    spent = sum(choice.preempts for choice in choices[:begin])
    taken = [choice.taken for choice in choices]
    last = taken[begin - 1] if begin else ""
    for number in range(begin, len(choices)):
        choice = choices[number]
        preempts = last in dict(choice.ready)
        if spent + preempts <= preemptions:
            about_to = dict(choice.ready)[choice.taken]
            for name, _ in choice.ready:
                if name != choice.taken and _depends(about_to, touched.get(name.partition("/")[0], {})):
                    yield (*taken[:number], name)
        spent += choice.preempts
        last = choice.taken


def _touched(events: Sequence[Event]) -> dict[str, dict[str, bool]]:
    """By process, the files and folders that it touched, and whether it changed them."""
    touched: dict[str, dict[str, bool]] = {}
    for event in events:
        if event.call is not None:
            places = touched.setdefault(event.process.partition("/")[0], {})
            for place in (event.call.path, event.call.path.rpartition("/")[0]):
                places[place] = places.get(place, False) or event.call.changes
    return touched


def _depends(call: Call | None, others: Mapping[str, bool]) -> bool:
    if call is None:
        return True
    if call.path.startswith(_PRIVATE):
        return False
    places = (call.path, call.path.rpartition("/")[0])
    return any(place in others and (call.changes or others[place]) for place in places)


def _accesses(events: Sequence[Event]) -> tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]:
    """For each file and folder who did what with it in which order: two runs with the same are the same."""
    places: dict[str, list[tuple[str, str, str]]] = {}
    for event in events:
        if event.call is not None and not event.call.path.startswith(_PRIVATE):
            places.setdefault(event.call.path, []).append((event.process, event.call.kind, event.note))
    return tuple(sorted((place, tuple(each)) for place, each in places.items()))


def _places(scenario: Scenario) -> Iterator[Fault]:
    """Before every changing call that the actors make when nothing goes wrong."""
    calls: dict[str, int] = {}
    names = {actor.name for actor in scenario.actors}
    for event in play(scenario.history()).story.events:
        if event.call is None or event.process not in names:
            continue
        number = calls[event.process] = calls.get(event.process, 0) + 1
        if event.call.changes:
            for kind in _KINDS:
                seconds = _ASLEEP_S if kind is FaultKind.SLEEP_BEFORE else 0.0
                yield Fault(event.process, 0, number, kind, seconds)
