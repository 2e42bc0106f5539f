"""Random table histories with table services in them, from a seed.

`make_service_history(seed)` takes the writes of `make_history` and puts services between them. Every turn is Java's or
ours; a plan is often scheduled by the one and executed by the other, and may wait for some turns in between.

What these histories leave out on purpose: writes while a clustering is pending, because both refuse to update its file
groups; and clustering with a bucket index, which would take rows out of their buckets. And what Java refuses, which is
our turn then: to delete a partition while a plan is pending, and to execute a log compaction once the timeline has a
compaction or a commit that was requested later.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.history import DELETED, History, Model, Row, Shape, Step, make_history

__all__ = ["Party", "Phase", "ServiceHistory", "ServiceName", "Turn", "make_service_history"]

Party = Literal["java", "us"]
Phase = Literal["schedule", "execute"]
ServiceName = Literal["compaction", "log_compaction", "clustering", "clean", "archive"]

_PARTIES: tuple[Party, Party] = ("java", "us")
_REWRITING: frozenset[ServiceName] = frozenset({"compaction", "log_compaction", "clustering"})
_WRITES = 4
_SERVICES = 4
_CARRIED_OUT = 0.6
_BY_ANOTHER = 0.75


@dataclass(frozen=True)
class Turn:
    """A write, or one phase of a service. An archive has no plan: it is executed."""

    by: Party
    write: Step | None = None
    service: ServiceName | None = None
    phase: Phase = "execute"

    def __str__(self) -> str:
        what = str(self.write) if self.write is not None else f"{self.phase} {self.service}"
        return f"{self.by}: {what}"


@dataclass(frozen=True)
class ServiceHistory(History):
    """A shape and the turns to take, in order."""

    steps: tuple[Any, ...]

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.steps


def make_service_history(seed: int) -> ServiceHistory:
    """The history of a seed: some writes and services, each service of the shape at least as often as it fits in."""
    base = make_history(seed, steps=_WRITES)
    dealer = _Dealer(random.Random(f"services {seed}"), base.shape)
    return ServiceHistory(seed, base.shape, tuple(dealer.turns(base.steps)))


@dataclass
class _Dealer:
    """Deals out turns. Keeps book of the rows, so that it can update some where a service needs logs, and of plans."""

    rng: random.Random
    shape: Shape
    model: Model = field(init=False)
    waiting: dict[ServiceName, Turn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = Model(self.shape)

    def turns(self, writes: tuple[Step, ...]) -> Iterator[Turn]:
        services = iter(self._services())
        # A metadata table is made by Java only; we keep it in step.
        yield self._write(writes[0], by="java" if self.shape.metadata else self._party())
        remaining = list(writes[1:])
        while True:
            service = next(services, None)
            if service is not None:
                yield from self._serve(service)
            if remaining:
                yield from self._due("clustering")
                yield self._write(remaining.pop(0))
            elif service is None:
                break
            for waiting in [name for name in self.waiting if self.rng.random() < _CARRIED_OUT]:
                yield from self._due(waiting)
        for waiting in list(self.waiting):
            yield from self._due(waiting)

    def _services(self) -> list[ServiceName]:
        """Services in the order in which they come; clean and archive find something to do after the others."""
        rewriting: list[ServiceName] = []
        if self.shape.table_type == "mor":
            rewriting += ["compaction", "log_compaction"]
        if self.shape.index == "simple":
            rewriting.append("clustering")
        self.rng.shuffle(rewriting)
        tidying: list[ServiceName] = ["clean", "archive"]
        if self.rng.random() < 0.3:
            tidying.reverse()
        chosen = rewriting[: _SERVICES - len(tidying)] + tidying
        # What has been served once comes again if there is room.
        return chosen + [self.rng.choice(rewriting or tidying) for _ in range(_SERVICES - len(chosen))]

    def _serve(self, service: ServiceName) -> Iterator[Turn]:
        """Schedule a plan, which may wait from then on; an earlier one of the kind comes first."""
        yield from self._due(service)
        if service in ("compaction", "log_compaction"):
            yield from self._due("clustering")
            self._overtake_log_compaction()
            for _ in range(2 if service == "log_compaction" else 1):
                yield self._touch()
        first = self._party()
        if service == "archive":
            yield Turn(first, service=service)
            return
        other: Party = "us" if first == "java" else "java"
        yield Turn(first, service=service, phase="schedule")
        self.waiting[service] = Turn(other if self.rng.random() < _BY_ANOTHER else first, service=service)

    def _due(self, service: ServiceName) -> Iterator[Turn]:
        """The execution of the plan of this kind that waits, if there is one."""
        if service in self.waiting:
            yield self.waiting.pop(service)

    def _overtake_log_compaction(self) -> None:
        """What Java will not execute any more is left to us."""
        if "log_compaction" in self.waiting:
            self.waiting["log_compaction"] = Turn("us", service="log_compaction")

    def _write(self, step: Step, *, by: Party | None = None) -> Turn:
        self.model.apply(step)
        if step.operation == "bulk_insert":
            self._overtake_log_compaction()
        is_refused = step.operation == "delete_partitions" and _REWRITING & self.waiting.keys()
        return Turn("us" if is_refused else by or self._party(), write=step)

    def _touch(self) -> Turn:
        """An update of every other row, so that file groups get logs: rows trade their values, the moment stays."""
        rows = self.model.rows[::2]
        own = {*self.shape.key, *self.shape.partition_by, "ts", DELETED}
        traded: list[Row] = [
            {name: (row if name in own else other)[name] for name in row}
            for row, other in zip(rows, rows[1:] + rows[:1], strict=True)
        ]
        return self._write(Step("upsert", tuple(traded)))

    def _party(self) -> Party:
        return self.rng.choice(_PARTIES)
