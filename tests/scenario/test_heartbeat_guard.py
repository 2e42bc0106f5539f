"""The heartbeat guard: one executor a plan. Its scenario tables, for compaction, log compaction and clustering.

Immutable plans, scenarios A to C; mutable plans, A to E. Two processes each, stopped at every storage call: every
schedule in which one is interrupted once, at any call, is run, and a sample of those in which both are interrupted
(all of them with TABLEKEEPER_ALL_INTERLEAVINGS=1). Where a scenario has somebody die, the death comes at every call.

Whatever the order: at most one execution completes the plan, the rows are those of before, every file of the plan that
readers see is in its commit, and a plan that was removed left nothing behind.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest

import tablekeeper as tk
from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import FencedError, InvalidRequestError, PlanCancelledError, PlanHeldError
from tablekeeper.model import Instant, RequestedTime, ServiceKind, State
from tablekeeper.services.plans.cancel import remove_failed_plans
from tablekeeper.services.plans.service import ServiceResult
from tablekeeper.snapshot.slices import load_files_of_instant, load_partitions_by_listing
from tablekeeper.storage import MemoryStorage, forget_memory
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.timeline import load_commit_metadata, load_timeline
from tests.support.fake_runtime import FakeClock
from tests.support.interleaving import Actor, ActorStorage, Outcome, Schedule, Stage, one_switch, two_switches
from tests.support.step_faults import WRITES, Fault, FaultPoint, StepStorage, one_thread_runtime
from tests.support.table_builder import TRIPS, rows_of, trips

__all__: list[str] = []

KINDS = {"compaction": ServiceKind.COMPACTION, "logcompaction": ServiceKind.LOG_COMPACTION}
KINDS["clustering"] = ServiceKind.CLUSTERING
OPTIONS = {"hoodie.log.compaction.blocks.threshold": "2"}
LAPSED_S = 86_400.0
SAMPLE = 24
ALL = os.environ.get("TABLEKEEPER_ALL_INTERLEAVINGS") == "1"

each_service = pytest.mark.parametrize("service", sorted(KINDS))


@dataclass(frozen=True)
class Start:
    """The files of a table with a plan, the plan's instant, the time, and how long ago its last heartbeat."""

    objects: dict[str, bytes]
    instant: RequestedTime
    now_ms: int
    idle_s: float = 0.0


class World:
    """One copy of the table, and the processes that work on it."""

    names = 0

    def __init__(self, start: Start) -> None:
        World.names += 1
        self.start = start
        self.instant = start.instant
        self.name = f"guard-{World.names}"
        self.clock = FakeClock(start.now_ms)
        self.stage = Stage(self.clock)
        self.storage = MemoryStorage(f"memory://{self.name}/table", runtime=one_thread_runtime(self.clock, process=0))
        for path, data in start.objects.items():
            self.storage.put(path, data)
        self.clock.advance(start.idle_s)

    def executor(self, name: str, point: FaultPoint | None = None) -> Actor:
        return self._actor(name, lambda table: table.execute(self.instant), point)

    def cleaner(self, name: str, *, delay_minutes: int, point: FaultPoint | None = None) -> Actor:
        settings = LifecycleSettings(rollback_delay_minutes=delay_minutes)
        return self._actor(name, lambda table: remove_failed_plans(table._load_environment(), settings), point)

    def _actor(self, name: str, work: Callable[[tk.Table], object], point: FaultPoint | None) -> Actor:
        number = len(self.stage.actors) + 1
        runtime = self.stage.runtime(number)
        storage = ActorStorage(MemoryStorage(self.storage.spec.uri, runtime=runtime), self.stage, point)
        options = Options(None).merged_over(load_writer_options(self.storage))
        table = tk.Table(storage, LocalEngine(threads=1, runtime=runtime), options, runtime=runtime)
        return self.stage.add(name, lambda: work(table), storage, runtime)

    @property
    def table(self) -> tk.Table:
        """The table as a process that nobody disturbs sees it."""
        runtime = one_thread_runtime(self.clock, process=90)
        options = Options(None).merged_over(load_writer_options(self.storage))
        return tk.Table(self.storage, LocalEngine(threads=1, runtime=runtime), options, runtime=runtime)

    @property
    def plan(self) -> Instant | None:
        return load_timeline(self.storage, self.table.config).find(self.instant)

    def clean(self, *, delay_minutes: int = 0) -> tuple[RequestedTime, ...]:
        settings = LifecycleSettings(rollback_delay_minutes=delay_minutes)
        return remove_failed_plans(self.table._load_environment(), settings)


@cache
def begin(service: str, *, mutable: bool) -> Start:
    """A table of three commits with a plan that nobody has begun."""
    clock = FakeClock(1_710_000_000_000)
    runtime = one_thread_runtime(clock, process=99)
    uri = f"memory://guard-{service}-{mutable}/table"
    table = tk.Table.create(
        uri,
        name="trips",
        schema=TRIPS,
        key="id",
        partition_by="city",
        ordering="ts",
        table_type="mor",
        engine="local",
        options=OPTIONS,
        runtime=runtime,
    )
    table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    for ts in (2, 3):
        clock.advance(60)
        table.upsert(trips(("a", "sf", ts, float(ts)), ("c", "la", ts, float(ts))))
    clock.advance(60)
    schedule = {
        ServiceKind.COMPACTION: table.schedule_compaction,
        ServiceKind.LOG_COMPACTION: table.schedule_log_compaction,
        ServiceKind.CLUSTERING: table.schedule_clustering,
    }[KINDS[service]]
    plan = schedule(mutable=mutable)
    assert plan is not None
    clock.advance(60)
    start = Start(_objects(uri), plan.instant, clock.now_ms())
    forget_memory(uri.removeprefix("memory://").partition("/")[0])
    return start


ROWS = [("a", "sf", 3, 3.0), ("b", "sf", 1, 1.0), ("c", "la", 3, 3.0)]


@cache
def left_inflight(service: str, *, mutable: bool) -> Start:
    """The same after an executor died when its files were written, and its heartbeat has lapsed."""
    start = begin(service, mutable=mutable)
    calls = calls_of(start, lambda world, name: world.executor(name))
    last_file = max(n for n, (kind, path) in enumerate(calls, 1) if kind in WRITES and ".hoodie" not in path)
    world = World(start)
    world.executor("x", FaultPoint(last_file, Fault.DEATH_AFTER))
    assert world.stage.run(Schedule())["x"].is_dead
    assert world.plan is not None
    assert world.plan.state is State.INFLIGHT
    left = Start(_objects(world.storage.spec.uri), start.instant, world.clock.now_ms(), idle_s=LAPSED_S)
    forget_memory(world.name)
    return left


def _objects(uri: str) -> dict[str, bytes]:
    storage = MemoryStorage(uri, runtime=one_thread_runtime(FakeClock(), process=98))
    return {file.path: storage.read(file.path) for file in storage.walk("")}


def calls_of(start: Start, add: Callable[[World, str], object]) -> list[tuple[str, str]]:
    """The calls of a process that nobody disturbs."""
    world = World(start)
    add(world, "x")
    world.stage.run(Schedule())
    calls = list(world.stage.actors["x"].calls)
    forget_memory(world.name)
    return calls


def schedules(lengths: dict[str, int], *, seed: str) -> Iterator[Schedule]:
    """Every schedule with one switch, and those with two, or a sample of them."""
    yield from one_switch(("x", "y"), lengths)
    twice = list(two_switches(("x", "y"), lengths))
    yield from twice if ALL else random.Random(seed).sample(twice, min(SAMPLE, len(twice)))


def explore(
    start: Start,
    add: Callable[[World], object],
    check: Callable[[World, dict[str, Outcome]], None],
    *,
    seed: str,
) -> int:
    """Run `add`'s two processes in every order, and `check` each time. Returns how many orders there were."""
    alone = World(start)
    add(alone)
    alone.stage.run(Schedule())
    lengths = {name: len(actor.calls) for name, actor in alone.stage.actors.items()}
    forget_memory(alone.name)
    count = 0
    for schedule in schedules(lengths, seed=seed):
        world = World(start)
        add(world)
        try:
            outcomes = world.stage.run(schedule)
            check(world, outcomes)
            check_table(world)
        except BaseException as error:
            error.add_note(f"schedule: {schedule}")
            raise
        forget_memory(world.name)
        count += 1
    return count


def check_table(world: World) -> None:
    """What holds at the end of every scenario: the rows, and no file of the plan that its commit does not name."""
    table = world.table
    assert rows_of(table.read()) == ROWS
    partitions = load_partitions_by_listing(world.storage, runtime=world.table._runtime)
    files = load_files_of_instant(world.storage, partitions, world.instant, runtime=world.table._runtime)
    plan = world.plan
    if plan is None:
        assert files == frozenset()
    elif plan.is_completed:
        metadata = load_commit_metadata(world.storage, table.config, plan)
        assert files == {stat.path for stat in metadata.stats}


def completed(outcomes: dict[str, Outcome]) -> list[str]:
    """Who completed the plan itself."""
    return [
        name
        for name, outcome in outcomes.items()
        if isinstance(outcome.value, ServiceResult) and outcome.value.outcome == "completed"
    ]


def assert_gave_way(outcome: Outcome, *, errors: tuple[type[BaseException], ...] = (PlanHeldError,)) -> None:
    """The other one failed with an error that says so, or got what was completed."""
    if outcome.error is None:
        assert isinstance(outcome.value, ServiceResult)
        assert outcome.value.outcome == "already completed"
    else:
        assert isinstance(outcome.error, errors), outcome.error


def deaths(start: Start, add: Callable[[World, str], object]) -> list[FaultPoint]:
    """Every call at which a death makes a difference: those that change the store."""
    calls = calls_of(start, add)
    return [FaultPoint(n, Fault.DEATH_AFTER) for n, (kind, _) in enumerate(calls, 1) if kind in WRITES]


def two_executors(world: World) -> None:
    world.executor("x")
    world.executor("y")


def check_one_completes(world: World, outcomes: dict[str, Outcome]) -> None:
    (winner,) = completed(outcomes)
    (other,) = set(outcomes) - {winner}
    assert_gave_way(outcomes[other])
    assert world.plan is not None
    assert world.plan.is_completed


@each_service
def test_immutable_a_of_two_executors_of_a_new_plan_one_completes_it(service: str) -> None:
    orders = explore(begin(service, mutable=False), two_executors, check_one_completes, seed=f"immutable A {service}")
    assert orders > 50


@each_service
def test_immutable_b_an_executor_completes_an_inflight_plan_only_after_rolling_it_back(service: str) -> None:
    start = begin(service, mutable=False)
    for point in deaths(start, lambda world, name: world.executor(name)):
        world = World(start)
        world.executor("x", point)
        (outcome,) = world.stage.run(Schedule()).values()
        assert outcome.is_dead
        before = world.plan
        assert before is not None
        held = world.table.heartbeats()
        if before.is_pending and len(held):
            # The heartbeat of the dead has not lapsed: nobody touches the plan.
            with pytest.raises(PlanHeldError):
                world.table.execute(world.instant)
        world.clock.advance(LAPSED_S)
        result = world.table.execute(world.instant)
        assert result.outcome == ("already completed" if before.is_completed else "completed")
        check_table(world)
        rollbacks = [i for i in world.table.timeline() if i.action.value == "rollback"]
        assert bool(rollbacks) == (before.state is State.INFLIGHT)
        forget_memory(world.name)


@each_service
def test_immutable_c_two_executors_of_a_plan_left_inflight_roll_it_back_and_one_completes_it(service: str) -> None:
    start = left_inflight(service, mutable=False)

    def check(world: World, outcomes: dict[str, Outcome]) -> None:
        check_one_completes(world, outcomes)
        rollbacks = [i for i in world.table.timeline() if i.action.value == "rollback"]
        assert len(rollbacks) == 1
        assert rollbacks[0].is_completed

    assert explore(start, two_executors, check, seed=f"immutable C {service}") > 50
    # The first one dies on the way: the second completes the plan, whatever the first had got to.
    for point in deaths(start, lambda world, name: world.executor(name)):
        world = World(start)
        world.executor("x", point)
        world.stage.run(Schedule())
        world.clock.advance(LAPSED_S)
        result = world.table.execute(world.instant)
        assert result.outcome in ("completed", "already completed")
        check_table(world)
        forget_memory(world.name)


@each_service
def test_mutable_a_of_two_executors_of_a_new_plan_one_completes_it(service: str) -> None:
    orders = explore(begin(service, mutable=True), two_executors, check_one_completes, seed=f"mutable A {service}")
    assert orders > 50


@each_service
def test_mutable_b_a_second_executor_never_takes_an_inflight_plan_over(service: str) -> None:
    start = begin(service, mutable=True)
    for point in deaths(start, lambda world, name: world.executor(name)):
        world = World(start)
        world.executor("x", point)
        world.stage.run(Schedule())
        before = world.plan
        assert before is not None
        world.clock.advance(LAPSED_S)
        if before.is_completed:
            assert world.table.execute(world.instant).outcome == "already completed"
        elif before.state is State.INFLIGHT:
            with pytest.raises(FencedError):
                world.table.execute(world.instant)
            assert world.clean() == (world.instant,)
            assert world.plan is None
        else:
            # The first one died before it had put the plan inflight: nothing of it was begun.
            assert world.table.execute(world.instant).outcome == "completed"
        check_table(world)
        forget_memory(world.name)


@each_service
def test_mutable_c_executors_of_a_plan_left_inflight_all_fail(service: str) -> None:
    def check(world: World, outcomes: dict[str, Outcome]) -> None:
        for outcome in outcomes.values():
            assert isinstance(outcome.error, FencedError)
        assert world.plan is not None
        assert world.plan.state is State.INFLIGHT
        assert world.clean() == (world.instant,)
        assert world.plan is None

    orders = explore(left_inflight(service, mutable=True), two_executors, check, seed=f"mutable C {service}")
    assert orders > 10


@each_service
@pytest.mark.parametrize("delay_minutes", [0, 60])
def test_mutable_d_clean_leaves_a_plan_alone_that_is_executed_or_young(service: str, delay_minutes: int) -> None:
    def executor_and_cleaner(world: World) -> None:
        world.executor("x")
        world.cleaner("y", delay_minutes=delay_minutes)

    def check(world: World, outcomes: dict[str, Outcome]) -> None:
        removed = outcomes["y"].value
        assert removed is not None, outcomes["y"].error
        if completed(outcomes):
            assert removed == ()
            assert world.plan is not None
            assert world.plan.is_completed
        else:
            # Clean was first, and the plan was old enough for it.
            assert delay_minutes == 0
            assert removed == (world.instant,)
            assert isinstance(outcomes["x"].error, FencedError | InvalidRequestError | PlanCancelledError)
            assert world.plan is None

    start = begin(service, mutable=True)
    assert explore(start, executor_and_cleaner, check, seed=f"mutable D {service} {delay_minutes}") > 30


@each_service
def test_mutable_e_an_executor_after_clean_runs_a_young_plan_and_fails_on_one_that_clean_took(service: str) -> None:
    start = begin(service, mutable=True)
    young = World(start)
    assert young.clean(delay_minutes=60) == ()
    assert young.table.execute(young.instant).outcome == "completed"
    check_table(young)
    forget_memory(young.name)
    old = World(start)
    old.clock.advance(60 * 60 + LAPSED_S)
    assert old.clean(delay_minutes=60) == (old.instant,)
    assert old.plan is None
    check_table(old)
    forget_memory(old.name)

    def cleaner(world: World, name: str) -> Actor:
        return world.cleaner(name, delay_minutes=0)

    before = [FaultPoint(n, Fault.DEATH_BEFORE) for n in range(1, len(calls_of(start, cleaner)) + 1)]
    for point in (None, *before, *deaths(start, cleaner)):
        world = World(start)
        world.cleaner("x", delay_minutes=0, point=point)
        (outcome,) = world.stage.run(Schedule()).values()
        assert outcome.is_dead == (point is not None)
        planned = [i for i in load_timeline(world.storage, world.table.config) if i.action.value == "rollback"]
        if planned:
            with pytest.raises((FencedError, InvalidRequestError)):
                world.table.execute(world.instant)
            world.clock.advance(LAPSED_S)
            world.clean()
            assert world.plan is None
            assert load_timeline(world.storage, world.table.config).pending == ()
        else:
            assert world.table.execute(world.instant).outcome == "completed"
        check_table(world)
        forget_memory(world.name)


def test_the_guard_makes_a_handful_of_calls_whatever_the_size_of_the_table() -> None:
    """Calls between taking the plan and going inflight, on tables of one and of four partitions."""
    counts = []
    for cities in (1, 4):
        clock = FakeClock(1_710_000_000_000)
        runtime = one_thread_runtime(clock, process=97)
        uri = f"memory://guard-calls-{cities}/table"
        made = tk.Table.create(
            uri,
            name="trips",
            schema=TRIPS,
            key="id",
            partition_by="city",
            ordering="ts",
            table_type="mor",
            engine="local",
            runtime=runtime,
        )
        for ts in (1, 2):
            made.upsert(trips(*((f"k{n}", f"c{n}", ts, 1.0) for n in range(cities))))
        plan = made.schedule_compaction()
        assert plan is not None
        storage = StepStorage(MemoryStorage(uri, runtime=runtime))
        table = tk.Table(storage, LocalEngine(threads=1, runtime=runtime), Options(None), runtime=runtime)
        table.execute(plan)
        paths = [path for _, path in storage.calls]
        inflight = next(n for n, path in enumerate(paths) if path.endswith(".compaction.inflight"))
        beat = next(n for n, path in enumerate(paths) if path.startswith(".hoodie/.heartbeat"))
        counts.append(inflight - beat + 1)
        forget_memory(uri.removeprefix("memory://").partition("/")[0])
    assert counts[0] == counts[1]
    assert counts[0] <= 8


def test_the_guard_can_be_switched_off() -> None:
    start = begin("compaction", mutable=False)
    world = World(start)
    calls = calls_of(start, lambda each, name: each.executor(name))
    inflight = next(n for n, (_, path) in enumerate(calls, 1) if path.endswith(".inflight"))
    world.executor("x", FaultPoint(inflight, Fault.DEATH_AFTER))
    world.stage.run(Schedule())
    with pytest.raises(PlanHeldError, match="executing it"):
        world.table.execute(world.instant)
    off = {"hoodie.table.service.execution.guard.enable": "false"}
    options = Options({**OPTIONS, **off})
    runtime = one_thread_runtime(world.clock, process=91)
    unguarded = tk.Table(world.storage, LocalEngine(threads=1, runtime=runtime), options, runtime=runtime)
    assert unguarded.execute(world.instant).outcome == "completed"
    check_table(world)
    forget_memory(world.name)


def test_the_heartbeat_is_removed_when_an_execution_ends_well_or_badly() -> None:
    start = begin("compaction", mutable=False)
    good = World(start)
    good.table.execute(good.instant)
    assert len(good.table.heartbeats()) == 0
    calls = calls_of(start, lambda each, name: each.executor(name))
    data = next(n for n, (kind, path) in enumerate(calls, 1) if kind == "publish" and ".hoodie" not in path)
    bad = World(start)
    bad.executor("x", FaultPoint(data, Fault.ERROR_BEFORE))
    (outcome,) = bad.stage.run(Schedule()).values()
    assert outcome.error is not None
    assert len(bad.table.heartbeats()) == 0
    assert bad.plan is not None
    assert bad.plan.state is State.REQUESTED
    assert bad.table.execute(bad.instant).outcome == "completed"
    check_table(bad)
    for world in (good, bad):
        forget_memory(world.name)
