"""A history: everything that decides a run, as a value that can be kept as JSON.

The table's shape, who is at work on it with which jobs, what goes wrong, and who goes on when. Those in `before` have
done their jobs, one after the other, when the others begin. `schedule` is a text
that seeds the choices, or, in a history that was shrunk, `turns` say who went on for how many steps.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["Actor", "Fault", "FaultKind", "History", "Job", "Shape"]


@dataclass(frozen=True)
class Shape:
    """The table. `has_scopes` is false on a store that cannot keep late changes out, as object stores are.

    `options` names some of `TABLE_OPTIONS`.
    """

    table_type: str = "mor"
    index: str = "simple"
    metadata: bool = False
    has_scopes: bool = True
    options: str = ""

    @property
    def has_metadata_table(self) -> bool:
        """A record index is a part of one."""
        return self.metadata or self.index == "record"

    def __str__(self) -> str:
        oddities = ["metadata" if self.metadata else "", "" if self.has_scopes else "objects", self.options]
        return " ".join(filter(None, [self.table_type, self.index, *oddities]))


@dataclass(frozen=True)
class Job:
    """One thing that an actor does, `after_s` seconds after the one before. What is left open follows from `seed`."""

    kind: str
    seed: int = 0
    after_s: float = 0.0


@dataclass(frozen=True)
class Actor:
    """One process at a time: who dies is started again for the next job. Its clock is `skew_s` ahead.

    Those with the same `host` see which of them have died.
    """

    name: str
    jobs: tuple[Job, ...]
    skew_s: float = 0.0
    parallel: bool = False
    repeats_tasks: bool = False
    host: str = ""


class FaultKind(enum.Enum):
    """What goes wrong at one call of the store, before it happened or after."""

    DEATH_BEFORE = "death before"
    DEATH_AFTER = "death after"
    SLEEP_BEFORE = "sleep before"
    SLEEP_AFTER = "sleep after"
    ERROR_BEFORE = "error before"
    ERROR_AFTER = "error after"
    SLOW = "slow"
    CLOCK = "clock jump"

    @property
    def is_error(self) -> bool:
        return self in (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER)


@dataclass(frozen=True)
class Fault:
    """At the call with this number (from 1) of the actor's job with this number (from 0).

    With `among` only calls of that sort are counted (see `sort_of`).
    """

    actor: str
    job: int
    call: int
    kind: FaultKind
    seconds: float = 0.0
    among: str = ""

    def __str__(self) -> str:
        length = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.actor}: {self.kind.value}{length} at {self.among} call {self.call} of job {self.job}"


@dataclass(frozen=True)
class History:
    """One run, before it happened."""

    shape: Shape = field(default_factory=Shape)
    actors: tuple[Actor, ...] = ()
    faults: tuple[Fault, ...] = ()
    schedule: str = "0"
    turns: tuple[tuple[str, int], ...] | None = None
    before: tuple[Actor, ...] = ()

    @property
    def size(self) -> int:
        """How much there is to understand."""
        jobs = sum(len(actor.jobs) for actor in self.actors)
        return 10 * jobs + 5 * len(self.faults) + len(self.turns or ())

    def without_actor(self, name: str) -> History:
        return replace(
            self,
            actors=tuple(actor for actor in self.actors if actor.name != name),
            faults=tuple(fault for fault in self.faults if fault.actor != name),
            turns=None if self.turns is None else tuple(t for t in self.turns if t[0].partition("/")[0] != name),
        )

    def to_json(self) -> str:
        fields = asdict(self)
        for fault in fields["faults"]:
            fault["kind"] = fault["kind"].value
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str) -> History:
        fields = json.loads(text)
        turns = fields.get("turns")
        return cls(
            shape=Shape(**fields["shape"]),
            actors=tuple(_actor(each) for each in fields["actors"]),
            faults=tuple(Fault(**{**each, "kind": FaultKind(each["kind"])}) for each in fields["faults"]),
            schedule=fields["schedule"],
            turns=None if turns is None else tuple((name, count) for name, count in turns),
            before=tuple(_actor(each) for each in fields["before"]),
        )


def _actor(fields: Mapping[str, Any]) -> Actor:
    return Actor(**{**fields, "jobs": tuple(Job(**job) for job in fields["jobs"])})
