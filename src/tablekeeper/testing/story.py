"""What happened in a run: the writes and what their writers were told, the commits that became visible, the complaints.

The rows that a table must hold follow from the commits alone: the effects of their writes, in the order in which they
completed. Each write has a name of its own in its commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tablekeeper.testing.loop import Call

__all__ = ["NAME_KEY", "Commit", "Effect", "Event", "Rows", "Story", "Write", "deletes", "drops", "overwrites", "puts"]

NAME_KEY = "simulated.write"
"""Where a commit names its write."""

Rows = dict[str, tuple[str, float]]
"""City and fare of each key."""

Effect = Callable[[Rows], None]


def puts(rows: Mapping[str, tuple[str, float]]) -> Effect:
    """Rows are there from then on."""
    return lambda table: table.update(rows)


def deletes(keys: tuple[str, ...]) -> Effect:
    """Keys are gone."""

    def effect(table: Rows) -> None:
        for key in keys:
            table.pop(key, None)

    return effect


def drops(cities: frozenset[str] | None) -> Effect:
    """Partitions are empty; all of them with None."""

    def effect(table: Rows) -> None:
        for key in [key for key, (city, _) in table.items() if cities is None or city in cities]:
            del table[key]

    return effect


def overwrites(cities: frozenset[str] | None, rows: Mapping[str, tuple[str, float]]) -> Effect:
    """Partitions hold these rows and no others."""

    def effect(table: Rows) -> None:
        drops(cities)(table)
        table.update(rows)

    return effect


@dataclass
class Write:
    """One write. `said` is what its writer was told: "committed", "refused", or "" if it cannot know."""

    name: str
    effect: Effect
    said: str = ""
    instant: str = ""
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """A write that readers see."""

    requested_at: str
    completed_at: str
    name: str
    effect: Effect


@dataclass(frozen=True, slots=True)
class Event:
    """One call of one process, as the trace shows it. Without a call it is a remark."""

    step: int
    now_s: float
    process: str
    fiber: str
    doing: str
    call: Call | None
    note: str


@dataclass
class Story:
    """All that was seen. `states` are the rows after each change of what is visible."""

    writes: dict[str, Write] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    states: list[Rows] = field(default_factory=lambda: [{}])
    withdrawable: set[str] = field(default_factory=set)
    flags: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    lost_to: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    fenced: list[str] = field(default_factory=list)
    moments: dict[str, Rows] = field(default_factory=dict)
    cursor: str = "earliest"
    followed: dict[tuple[str, str], tuple[str, str, float]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def rows(self) -> Rows:
        """What the table must hold now."""
        return _rows_after(self.commits.values())

    def rows_as_of(self, moment: str) -> Rows:
        """What it must hold as of a requested time, if nothing that began before is unfinished."""
        return _rows_after(commit for commit in self.commits.values() if commit.requested_at <= moment)

    def complain(self, invariant: str, what: str) -> None:
        """An invariant does not hold."""
        text = f"{invariant}: {what}"
        if text not in self.complaints:
            self.complaints.append(text)


def _rows_after(commits: Iterable[Commit]) -> Rows:
    table: Rows = {}
    for commit in sorted(commits, key=lambda each: (each.completed_at, each.requested_at)):
        commit.effect(table)
    return table
