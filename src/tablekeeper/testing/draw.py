"""Histories drawn from a seed: a table's shape, a few actors with their jobs, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tablekeeper.testing.chance import Chance, chance_of
from tablekeeper.testing.history import Actor, Fault, FaultKind, History, Job, Shape
from tablekeeper.testing.jobs import JOBS, JobKind
from tablekeeper.testing.store import SORTS
from tablekeeper.testing.themes import ANYTHING, THEMES, Theme

__all__ = ["SHAPES", "draw_fault", "draw_history"]

SHAPES = (
    Shape("mor"),
    Shape("mor"),
    Shape("cow"),
    Shape("mor", "bucket"),
    Shape("mor", metadata=True),
    Shape("cow", metadata=True),
    Shape("mor", has_scopes=False),
    Shape("cow", has_scopes=False),
    Shape("mor", options="small files"),
    Shape("cow", options="by completion"),
    Shape("mor", "record"),
    Shape("cow", "record"),
)

_ROLES = {
    "compactor": 4,
    "log compactor": 3,
    "clusterer": 4,
    "executor": 3,
    "canceller": 2,
    "cleaner": 3,
    "archiver": 2,
    "metadata compactor": 3,
    "repairer": 2,
    "reader": 1,
    "auditor": 1,
}
"""Who joins the first writer, and how often among the others."""

_ONE_HOST = 0.25
"""How often all processes are on one host."""

_PAUSES_S = (0.0, 0.0, 0.0, 0.1, 1.0, 30.0, 400.0)
_SLEEPS_S = (90.0, 400.0, 400.0, 1_500.0)
_MOST_OF_SORT = {"timeline": 3, "lock": 4, "heartbeat": 3, "metadata table": 8, "deleting": 4, "publishing": 4}
_MOST_OF_SORT |= {"database": 40, "lease": 10}
_KINDS = (
    *[FaultKind.DEATH_BEFORE, FaultKind.DEATH_AFTER] * 3,
    *[FaultKind.SLEEP_BEFORE, FaultKind.SLEEP_AFTER] * 4,
    *[FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER] * 2,
    FaultKind.SLOW,
    FaultKind.CLOCK,
)


_WORKERS = Actor("worker", (Job("compact"),) * 3)
"""Stands for the first workers that a service starts."""


def draw_history(seed: int | str, *, theme: str | None = None, shapes: Sequence[Shape] = ()) -> History:
    """The history of this seed: of any theme and table, or of these."""
    chance = chance_of("history", seed, theme or "", *shapes)
    chosen = theme or chance.choice((ANYTHING, ANYTHING, *THEMES))
    if chosen == ANYTHING or not _can_be_played(THEMES[chosen]):
        history = _draw_anything(chance, chance.choice(shapes or SHAPES), str(seed))
    else:
        shape = chance.choice(shapes or THEMES[chosen].shapes or SHAPES)
        history = _draw_theme(chance, THEMES[chosen], shape, str(seed))
    return _on_one_host(history) if chance_of("host", seed).random() < _ONE_HOST else history


def _can_be_played(theme: Theme) -> bool:
    """Jobs that need an extra are not there without it."""
    return all(name in JOBS for slot in theme.slots for name in slot.jobs)


def _on_one_host(history: History) -> History:
    return replace(history, actors=tuple(replace(actor, host="host") for actor in history.actors))


def _draw_anything(chance: Chance, shape: Shape, schedule: str) -> History:
    kinds = [kind for kind in JOBS.values() if kind.fits(shape)]
    roles = [role for role, share in _ROLES.items() if any(kind.role == role for kind in kinds) for _ in range(share)]
    actors = [_draw_actor(chance, "writer", 1, kinds)]
    for number in range(2, chance.choice((3, 3, 4, 4, 5)) + 1):
        role = "writer" if chance.random() < 0.35 else chance.choice(roles)
        actors.append(_draw_actor(chance, role, number, kinds))
    faults = [draw_fault(chance, actors) for _ in range(chance.choice((0, 1, 1, 1, 2, 2)))]
    return History(shape, tuple(actors), tuple(faults), schedule=schedule)


def _draw_theme(chance: Chance, theme: Theme, shape: Shape, schedule: str) -> History:
    actors = []
    repeats_tasks = chance.random() < theme.repeats_tasks
    for number, slot in enumerate(theme.slots, start=1):
        fitting = [name for name in slot.jobs if JOBS[name].fits(shape)] or ["upsert"]
        jobs = tuple(
            Job(chance.choice(fitting), chance.randrange(1 << 30), chance.choice(slot.pauses_s))
            for _ in range(chance.randint(slot.least, max(slot.least, slot.most)))
        )
        skew_s = chance.choice(theme.skews_s)
        actors.append(Actor(f"{jobs[0].kind}-{number}", jobs, skew_s=skew_s, repeats_tasks=repeats_tasks))
    faults = _draw_faults(chance, theme, actors)
    early = tuple(Job(kind, chance.randrange(1 << 30), 5.0) for kind in theme.before if JOBS[kind].fits(shape))
    before = (Actor("early", early),) if early else ()
    return History(shape, tuple(actors), tuple(faults), schedule=schedule, before=before)


def _draw_faults(chance: Chance, theme: Theme, actors: Sequence[Actor]) -> list[Fault]:
    hit = [_WORKERS] if theme.hits_workers else actors[: theme.faulty]
    if theme.is_slow:
        return _draw_slow(chance, theme, actors)
    if theme.among:
        pairs = zip(hit, theme.among, strict=True)
        faults = [draw_fault(chance, [actor], theme.faults, among=sort) for actor, sort in pairs]
    else:
        count = chance.randint(1, theme.most_faults) if theme.faults else 0
        faults = [draw_fault(chance, hit, theme.faults) for _ in range(count)]
    if theme.seconds:
        faults = [replace(fault, seconds=chance.choice(theme.seconds)) for fault in faults]
    return faults


def _draw_slow(chance: Chance, theme: Theme, actors: Sequence[Actor]) -> list[Fault]:
    """Work so long that what is renewed is renewed, a sleep in the middle of that, and an heir who works as long."""
    first, heir = actors[0].name, actors[1].name
    slow = Fault(first, 0, chance.randint(1, 2), FaultKind.SLOW, chance.choice((80.0, 150.0)), "publishing")
    seconds = chance.choice((420.0, 450.0, 500.0, 1_500.0))
    asleep = Fault(first, 0, chance.randint(2, 3), chance.choice(theme.faults), seconds, "heartbeat")
    return [slow, asleep, Fault(heir, 0, chance.randint(1, 2), FaultKind.SLOW, 200.0, "publishing")]


def draw_fault(
    chance: Chance, actors: Sequence[Actor], kinds: Sequence[FaultKind] = _KINDS, *, among: str = ""
) -> Fault:
    """One thing that goes wrong for one of these actors: at any call, or at one of those that decide something."""
    actor = chance.choice(actors)
    number = chance.randrange(len(actor.jobs))
    sort = among or (chance.choice(SORTS) if chance.random() < 0.6 else "")
    most = _MOST_OF_SORT.get(sort, JOBS[actor.jobs[number].kind].calls)
    call = chance.randint(1, most)
    kind = chance.choice(kinds)
    seconds = 0.0
    if kind in (FaultKind.SLEEP_BEFORE, FaultKind.SLEEP_AFTER):
        seconds = chance.choice(_SLEEPS_S)
    elif kind is FaultKind.SLOW:
        seconds = chance.choice((1.0, 20.0, 200.0))
    elif kind is FaultKind.CLOCK:
        seconds = chance.choice((-2.0, 2.0, 15.0))
    return Fault(actor.name, number, call, kind, seconds, sort)


def _draw_actor(chance: Chance, role: str, number: int, kinds: list[JobKind]) -> Actor:
    fitting = [kind for kind in kinds if kind.role == role]
    weights = [kind.weight for kind in fitting]
    jobs = tuple(
        Job(chance.choices(fitting, weights)[0].name, chance.randrange(1 << 30), chance.choice(_PAUSES_S))
        for _ in range(chance.choice((1, 2, 2, 3)))
    )
    skew_s = chance.choice((-3.0, 2.0)) if chance.random() < 0.1 else 0.0
    return Actor(
        f"{role.replace(' ', '_')}-{number}",
        jobs,
        skew_s=skew_s,
        parallel=chance.random() < 0.1,
        repeats_tasks=chance.random() < 0.15,
    )
