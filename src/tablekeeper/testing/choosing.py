"""Who goes on: the ways to walk through the orders in which steps can happen.

Drawn from a seed there are three. A walk stays with a fiber for a while and then switches. Priorities run the first of
a random order, which changes at a few random steps: few switches, each where it may hurt. The third switches where
processes meet: before a call for a file or folder that another process has just touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from tablekeeper.testing.chance import Chance, chance_of
from tablekeeper.testing.loop import Fiber

__all__ = ["Chooser", "choose_by_seed", "choose_by_turns"]

_PRIVATE = (".hoodie/.tablekeeper/staging/", ".hoodie/.temp/")


class Chooser:
    """Chooses, and remembers whom: `turns` are the choices as names with counts."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, int]] = []

    def __call__(self, ready: Sequence[Fiber]) -> Fiber:
        fiber = self.pick(ready)
        if self.turns and self.turns[-1][0] == fiber.name:
            self.turns[-1] = (fiber.name, self.turns[-1][1] + 1)
        else:
            self.turns.append((fiber.name, 1))
        return fiber

    def pick(self, ready: Sequence[Fiber]) -> Fiber:
        raise NotImplementedError


def choose_by_seed(schedule: str) -> Chooser:
    """One of the ways to walk, as the text says."""
    chance = chance_of("schedule", schedule)
    match chance.randrange(3):
        case 0:
            return _Walk(chance)
        case 1:
            return _Priorities(chance)
        case _:
            return _Meeting(chance)


def choose_by_turns(turns: Sequence[tuple[str, int]]) -> Chooser:
    """The given choices; where they do not fit, whoever is first."""
    return _Replay(turns)


class _Walk(Chooser):
    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self._chance = chance
        self._stays = chance.choice((0.0, 0.5, 0.8, 0.9, 0.97))
        self._last: Fiber | None = None

    def pick(self, ready: Sequence[Fiber]) -> Fiber:
        if self._last is None or self._last not in ready or self._chance.random() >= self._stays:
            self._last = self._chance.choice(ready)
        return self._last


class _Priorities(Chooser):
    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self._chance = chance
        self._ranks: dict[str, float] = {}
        changes = chance.randrange(1, 6)
        self._changes = {chance.randrange(600) for _ in range(changes)}
        self._count = 0

    def pick(self, ready: Sequence[Fiber]) -> Fiber:
        self._count += 1
        for fiber in ready:
            if fiber.name not in self._ranks:
                self._ranks[fiber.name] = self._chance.random()
        first = max(ready, key=lambda each: self._ranks[each.name])
        if self._count in self._changes:
            self._ranks[first.name] = -self._chance.random()
            first = max(ready, key=lambda each: self._ranks[each.name])
        return first


class _Meeting(Chooser):
    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self._chance = chance
        self._touched: dict[str, str] = {}
        self._last: Fiber | None = None

    def pick(self, ready: Sequence[Fiber]) -> Fiber:
        last = self._last if self._last in ready else None
        if last is None or (self._is_meeting(last) and self._chance.random() < 0.4) or self._chance.random() < 0.02:
            meeting = [fiber for fiber in ready if self._is_meeting(fiber)]
            last = self._chance.choice(meeting or list(ready))
        call = last.about_to
        if call is not None and call.changes:
            self._touched[call.path] = self._touched[call.path.rpartition("/")[0]] = last.life.name
        self._last = last
        return last

    def _is_meeting(self, fiber: Fiber) -> bool:
        call = fiber.about_to
        if call is None or call.path.startswith(_PRIVATE):
            return False
        return self._touched.get(call.path, fiber.life.name) != fiber.life.name


class _Replay(Chooser):
    def __init__(self, turns: Sequence[tuple[str, int]]) -> None:
        super().__init__()
        self._left = list(reversed(turns))

    def pick(self, ready: Sequence[Fiber]) -> Fiber:
        names = {fiber.name: fiber for fiber in ready}
        while self._left:
            name, count = self._left.pop()
            if name in names:
                if count > 1:
                    self._left.append((name, count - 1))
                return names[name]
        return ready[0]
