"""Writers and table services on one table in memory, their storage calls in an order that follows from a seed.

Some processes die on the way, some meet a store that fails once, some are stopped for so long that others take them for
dead, and time passes in leaps. What happened is in the `Story`; `faults` are what must not have happened, then or to
the table in the end (see `stress_judge.py` for the same with real processes).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tablekeeper as tk
from tablekeeper.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    FencedError,
    InvalidRequestError,
    PlanCancelledError,
    PlanHeldError,
    StorageError,
    TablekeeperError,
)
from tablekeeper.model import PlanFlags, RequestedTime, ServiceKind
from tablekeeper.services.plans.listing import PendingPlanView
from tests.support.crew import Crew
from tests.support.interleaving import Schedule
from tests.support.recovery_world import World
from tests.support.step_faults import Fault, FaultPoint, OneThread
from tests.support.stress_plans import find_flags, flags_text, load_past
from tests.support.table_builder import trips

__all__ = ["Shape", "Story", "play"]

NAME_KEY = "sim.write"
AT_ONCE = {"hoodie.table.service.rollback.delay.minutes": "0"}
HEARTBEAT_LAPSED_S = 600.0
TWO_DAYS_S = 2 * 86_400.0
OPTIONS = {
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.parquet.small.file.limit": "0",
    # Time passes in leaps.
    "hoodie.write.lock.wait_time_ms": "100000000",
}
CITIES = {"a": "sf", "b": "sf", "c": "sf", "d": "la", "e": "la"}
FLAGS = (
    [PlanFlags()] * 3
    + [PlanFlags(cancellable=True)] * 3
    + [PlanFlags(mutable=True), PlanFlags(mutable=True, cancellable=True)]
)


@dataclass(frozen=True)
class Shape:
    """What kind of table, and who works on it: names of jobs, one process each."""

    table_type: str
    jobs: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    metadata: bool = False


@dataclass
class Write:
    """One write: what it does to which keys, and what its writer was told."""

    keys: list[str]
    is_delete: bool
    value: float
    outcome: str = ""
    instant: str = ""


@dataclass
class Story:
    """What happened."""

    writes: dict[str, Write] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    lost: list[tuple[str, str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def play(seed: int, shape: Shape) -> Story:
    """One run."""
    chance = random.Random(seed)
    world = World(table_type=shape.table_type, metadata=shape.metadata, options={**OPTIONS, **shape.options})
    story = Story()
    for number in range(3):
        world.clock.advance(10)
        write = Write(list(CITIES) if number == 0 else chance.sample(list(CITIES), 2), False, float(number))
        story.writes[f"first-{number}"] = write
        _Process(world.table, story, chance).write(f"first-{number}", write)
    crew = Crew(world)
    added = [_add(crew, f"{job}-{number}", job, story, chance) for number, job in enumerate(shape.jobs)]
    stopped = [threads for threads in added if threads is not None]
    crew.add("time", partial(_let_time_pass, world, chance, stopped))
    names = list(crew.stage.actors)
    runs = tuple((chance.choice(names), chance.choice((1, 2, 5, 20, 60))) for _ in range(80))
    for name, outcome in crew.stage.run(Schedule(runs)).items():
        if isinstance(outcome.error, RuntimeError):
            story.faults.append(f"{name} broke; see the output")
    _judge(world, story)
    world.forget()
    return story


def _add(crew: Crew, name: str, job: str, story: Story, chance: random.Random) -> OneThread | None:
    """A process, and perhaps what goes wrong with it. Its threads if it is stopped every now and then."""
    point = None
    is_stopped = False
    match chance.randrange(6):
        case 0 | 1:
            point = FaultPoint(chance.randrange(1, 180), chance.choice((Fault.DEATH_BEFORE, Fault.DEATH_AFTER)))
        case 2:
            point = FaultPoint(chance.randrange(1, 180), chance.choice((Fault.ERROR_BEFORE, Fault.ERROR_AFTER)))
        case 3:
            is_stopped = True
    own_chance = random.Random(chance.random())
    fails = point is not None and not point.fault.is_death

    def work(table: tk.Table) -> None:
        process = _Process(table, story, own_chance, store_fails=fails)
        for number in range(3):
            process.do(job, f"{name}-{number}")

    crew.add(name, work, point=point)
    threads = crew.stage.actors[name].runtime.threads
    assert isinstance(threads, OneThread)
    return threads if is_stopped else None


def _let_time_pass(world: World, chance: random.Random, stopped: list[OneThread], table: tk.Table) -> None:
    """Time passes in leaps, in which the heartbeats of the stopped are not renewed."""
    for _ in range(6):
        table._storage.stat(".hoodie/hoodie.properties")
        for threads in stopped:
            threads.kill()
        world.clock.advance(chance.choice((1, 30, 80)))


class _Process:
    """One process: what it does, and what it says about it."""

    def __init__(self, table: tk.Table, story: Story, chance: random.Random, *, store_fails: bool = False) -> None:
        self._table = table
        self._story = story
        self._chance = chance
        self._store_fails = store_fails

    def do(self, job: str, name: str) -> None:
        table, chance = self._table, self._chance
        match job:
            case "write":
                keys = sorted(chance.sample(list(CITIES), 2))
                write = Write(keys, chance.random() < 0.25, float(100 + len(self._story.writes)))
                self._story.writes[name] = write
                self.write(name, write)
            case "compaction":
                self._rewrite(ServiceKind.COMPACTION, table.schedule_compaction)
            case "log_compaction":
                self._rewrite(ServiceKind.LOG_COMPACTION, table.schedule_log_compaction)
            case "clustering":
                self._rewrite(ServiceKind.CLUSTERING, partial(table.schedule_clustering, order_by="ts"))
            case "clean":
                options = AT_ONCE if chance.random() < 0.5 else None
                self._try("clean", lambda: table.clean(options=options))
            case "archive":
                self._try("archive", lambda: table.archive().instants or None)
            case "cancel":
                self._cancel()

    def write(self, name: str, write: Write) -> None:
        rows = trips(*((key, CITIES[key], 1, write.value) for key in write.keys))
        do = self._table.delete if write.is_delete else self._table.upsert
        for _ in range(4):
            # Whoever dies has said nothing.
            write.outcome = ""
            try:
                result = do(rows, extra={NAME_KEY: name})
            except ConflictError as error:
                write.outcome = "conflict"
                flags = find_flags(self._table, RequestedTime(error.beaten_by))
                self._story.lost.append((name, error.beaten_by, flags))
            except TablekeeperError as error:
                write.outcome = self._word(error, None)
                break
            else:
                write.outcome = "committed"
                write.instant = "" if result.instant is None else result.instant.value
                break
        self._story.counts[f"write {write.outcome}"] += 1

    def _rewrite(self, kind: ServiceKind, schedule: Callable[..., Any]) -> None:
        flags = self._chance.choice(FLAGS)
        plan = self._try("schedule", lambda: schedule(cancellable=flags.cancellable, mutable=flags.mutable))
        if plan is not None:
            self._story.plans[plan.instant.value] = flags_text(flags.to_metadata())
            if self._chance.random() < 0.7:
                self._try(kind.value, lambda: self._table.execute(plan), flags)
        for each in self._plans():
            if each.service == kind.value:
                self._try(kind.value, partial(self._table.execute, each.instant), each.flags)

    def _cancel(self) -> None:
        for each in self._plans():
            if each.flags.can_be_removed:
                self._try("cancel", partial(self._table.cancel, each.instant, wait="1s"), each.flags)

    def _plans(self) -> tuple[PendingPlanView, ...]:
        """The plans there are, whose flags are noted: who made one may have died before it said so."""
        plans: tuple[PendingPlanView, ...] = tuple(self._try("plans", self._table.plans) or ())
        for each in plans:
            self._story.plans[each.instant.value] = flags_text(each.flags.to_metadata())
        return plans

    def _try(self, job: str, do: Callable[[], Any], flags: PlanFlags | None = None) -> Any:
        try:
            result = do()
        except TablekeeperError as error:
            self._story.counts[f"{job} {self._word(error, flags)}"] += 1
            return None
        self._story.counts[f"{job} {getattr(result, 'outcome', 'nothing' if result is None else 'done')}"] += 1
        return result

    def _word(self, error: TablekeeperError, flags: PlanFlags | None) -> str:
        """What became of it; a fault if that must not be."""
        word = type(error).__name__
        is_gone = isinstance(error, InvalidRequestError) and "there is no plan" in str(error)
        expected = (
            isinstance(error, (PlanHeldError, PlanCancelledError, FencedError))
            or (isinstance(error, ConflictError) and flags is not None and flags.cancellable)
            or (is_gone and flags is not None and flags.can_be_removed)
            or (isinstance(error, (StorageError, CommitOutcomeUnknownError)) and self._store_fails)
        )
        if not expected:
            self._story.faults.append(f"{word}: {error}")
        return word


def _judge(world: World, story: Story) -> None:
    faults = story.faults
    faults += [f"{fault} (before tidying up)" for fault in _wrong_rows(world, story)]
    world.clock.advance(HEARTBEAT_LAPSED_S)
    world.table.clean()
    for each in world.table.plans():
        if each.cancelled or (each.flags.mutable and each.state == "inflight"):
            faults.append(f"a clean left {each}")
    world.table.clean(options=AT_ONCE)
    faults += [f"a clean at once left {each}" for each in world.table.plans() if each.flags.can_be_removed]
    for each in world.table.plans():
        world.table.execute(each.instant)
    last = Write(["a", "d"], False, 1_000.0)
    story.writes["last"] = last
    _Process(world.table, story, random.Random(0)).write("last", last)
    faults += _wrong_rows(world, story)
    faults += [f"{instant} is pending" for instant in world.timeline.pending]
    past = load_past(world.table)
    known = {stat.path for _, metadata in past.commits for stat in metadata.stats}
    faults += [f"{path} belongs to no commit" for path in sorted(world.data_files() - known)]
    ingestion = {instant.requested_at.value for instant, _ in past.ingestion}
    story.plans |= {**{instant: flags for _, instant, flags in story.lost if flags}, **past.plans}
    for name, instant, _ in story.lost:
        if instant not in ingestion and story.plans.get(instant, "unknown") not in ("firm", "mutable"):
            faults.append(f"{name} lost to {instant}, which is {story.plans.get(instant, 'unknown')}")
    world.refuse_stale_metadata_table()
    world.clock.advance(TWO_DAYS_S)
    report = world.table.doctor(fix=True)
    if not report.is_healthy or report.repairs or report.failed:
        faults.append(f"the doctor is not content: {report}")
    faults += [f"{fault} (after the doctor)" for fault in _wrong_rows(world, story)]


def _wrong_rows(world: World, story: Story) -> list[str]:
    """The rows against those of the commits in the order in which they completed, and these against the reports."""
    commits = sorted(load_past(world.table).ingestion, key=lambda each: each[0].completed_at or each[0].requested_at)
    model: dict[str, float] = {}
    landed: dict[str, str] = {}
    for instant, metadata in commits:
        name = metadata.extra[NAME_KEY]
        if name in landed:
            return [f"{name} landed twice, as {landed[name]} and {instant}"]
        landed[name] = instant.requested_at.value
        write = story.writes[name]
        for key in write.keys:
            model.pop(key, None)
            if not write.is_delete:
                model[key] = write.value
    faults = []
    for name, write in story.writes.items():
        if write.outcome == "committed" and write.instant and landed.get(name) != write.instant:
            faults.append(f"{name} was reported as {write.instant} and is {landed.get(name)}")
        if write.outcome in ("conflict", "FencedError") and name in landed:
            faults.append(f"{name} was reported as {write.outcome} and landed")
    rows = world.rows()
    if rows != sorted(model.items()):
        faults.append(f"rows are {rows} and should be {sorted(model.items())}")
    return faults
