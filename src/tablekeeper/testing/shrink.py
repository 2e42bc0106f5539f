"""Make a history that fails smaller, for as long as it fails in the same way.

First the turns that were taken are written into the history, so that what is left of it goes on as before. Then actors,
jobs, faults, their odd ways and switches between them are left out, one after the other, until nothing more can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tablekeeper.testing.history import Actor, Fault, History
from tablekeeper.testing.play import Outcome, play

__all__ = ["shrink"]


def shrink(failed: Outcome, *, most_plays: int = 300, run: Callable[[History], Outcome] = play) -> Outcome:
    """The smallest failure that was found within so many plays. `failed` itself if nothing smaller fails alike."""
    invariant = _invariant(failed)
    best = run(failed.history)
    if _invariant(best) != invariant:
        return failed
    plays = 1
    is_smaller = True
    while is_smaller and plays < most_plays:
        is_smaller = False
        for candidate in _smaller(best.history):
            plays += 1
            tried = run(candidate)
            # What was taken, not what was asked for: a part of it may have become meaningless.
            if _invariant(tried) == invariant and tried.history.size < best.history.size:
                best, is_smaller = tried, True
                break
            if plays >= most_plays:
                break
    return best


def _invariant(outcome: Outcome) -> str:
    """By which invariant it failed, empty if it did not."""
    return outcome.complaints[0].partition(":")[0] if outcome.complaints else ""


def _smaller(history: History) -> Iterator[History]:
    for actor in history.actors:
        yield history.without_actor(actor.name)
    for fault in history.faults:
        yield replace(history, faults=tuple(each for each in history.faults if each is not fault))
    for actor in history.actors:
        if len(actor.jobs) > 1:
            yield from (_without_job(history, actor, number) for number in range(len(actor.jobs)))
        if actor.parallel or actor.repeats_tasks or actor.skew_s or actor.host:
            plain = replace(actor, parallel=False, repeats_tasks=False, skew_s=0.0, host="")
            yield _with(history, actor, plain)
    turns = history.turns or ()
    size = max(1, len(turns) // 2)
    while size:
        for start in range(0, len(turns), size):
            yield replace(history, turns=_joined((*turns[:start], *turns[start + size :])))
        size //= 2


def _joined(turns: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Without switches from a fiber to itself."""
    joined: list[tuple[str, int]] = []
    for name, count in turns:
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1] + count)
        else:
            joined.append((name, count))
    return tuple(joined)


def _with(history: History, old: Actor, new: Actor) -> History:
    return replace(history, actors=tuple(new if actor is old else actor for actor in history.actors))


def _without_job(history: History, actor: Actor, number: int) -> History:
    """The faults of later jobs move with them."""

    def moved(fault: Fault) -> Fault | None:
        if fault.actor != actor.name or fault.job < number:
            return fault
        return None if fault.job == number else replace(fault, job=fault.job - 1)

    jobs = (*actor.jobs[:number], *actor.jobs[number + 1 :])
    faults = tuple(found for found in map(moved, history.faults) if found is not None)
    return replace(_with(history, actor, replace(actor, jobs=jobs)), faults=faults)
