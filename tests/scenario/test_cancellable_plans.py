"""Cancellable plans: they yield to ingestion, can be cancelled, and are cleaned up.

With RFC-71's compaction anomaly, t0 to t3, told from end to end: with a plan that is executed, and with one that
is given up after writers have put logs on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import ConflictError, InvalidRequestError, PlanCancelledError
from tablekeeper.model import Action, ServiceKind
from tablekeeper.services.plans.cancel import remove_failed_plans
from tablekeeper.services.plans.schedule import ScheduledPlan
from tablekeeper.storage import MemoryStorage, forget_memory
from tablekeeper.timeline import load_timeline, load_timeline_beside
from tablekeeper.timeline.plans import load_pending_outline
from tests.support.fake_runtime import FakeClock
from tests.support.meanwhile import Interrupted, writes_data
from tests.support.step_faults import Fault, FaultPoint, ProcessDied, StepStorage, one_thread_runtime
from tests.support.table_builder import TRIPS, rows_of, trips

__all__: list[str] = []

OPTIONS = {"hoodie.log.compaction.blocks.threshold": "2"}
KINDS = {"compaction": ServiceKind.COMPACTION, "clustering": ServiceKind.CLUSTERING}
each_service = pytest.mark.parametrize("service", sorted(KINDS))
LAPSED_S = 86_400.0


class World:
    """A table in memory with a clock of its own, and as many processes as are asked for."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_710_000_000_000)
        self.name = "cancellable"
        self.processes = 0
        tk.Table.create(
            self.uri,
            name="trips",
            schema=TRIPS,
            key="id",
            partition_by="city",
            ordering="ts",
            table_type="mor",
            engine="local",
            options=OPTIONS,
            runtime=one_thread_runtime(self.clock, process=99),
        )

    @property
    def uri(self) -> str:
        return f"memory://{self.name}/table"

    def process(self, point: FaultPoint | None = None) -> tuple[tk.Table, StepStorage]:
        self.processes += 1
        runtime = one_thread_runtime(self.clock, process=self.processes)
        storage = StepStorage(MemoryStorage(self.uri, runtime=runtime), point)
        table = tk.Table(storage, LocalEngine(threads=1, runtime=runtime), Options(OPTIONS), runtime=runtime)
        return table, storage

    @property
    def table(self) -> tk.Table:
        return self.process()[0]

    def schedule(self, service: str, *, cancellable: bool = True, cancel_after: str | None = None) -> ScheduledPlan:
        table = self.table
        schedule = {"compaction": table.schedule_compaction, "clustering": table.schedule_clustering}[service]
        plan = schedule(cancellable=cancellable, cancel_after=cancel_after)
        assert plan is not None
        self.clock.advance(1)
        return plan

    def upsert(self, *rows: tuple[str, str, int, float]) -> None:
        self.table.upsert(trips(*rows))
        self.clock.advance(1)

    def rows(self) -> list[tuple[object, ...]]:
        return rows_of(self.table.read())

    def clean(self, delay_minutes: int = 60) -> int:
        settings = LifecycleSettings(rollback_delay_minutes=delay_minutes)
        return len(remove_failed_plans(self.table._load_environment(), settings))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.upsert(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0))
    made.upsert(("a", "sf", 2, 2.0), ("c", "la", 2, 2.0))
    yield made
    forget_memory(made.name)


def begin_upsert(world: World, rows: pa.Table, meanwhile: Callable[[], object]) -> None:
    """An upsert during which something else happens: when its files are there, and it is about to commit."""
    interrupted(world, meanwhile, when="_partition_metadata").upsert(rows)


def interrupted(world: World, action: Callable[[], object], *, when: str | Callable[[str, str], bool]) -> tk.Table:
    """The table as a process sees it during whose next work somebody else acts."""
    runtime = one_thread_runtime(world.clock, process=60)
    storage = Interrupted(MemoryStorage(world.uri, runtime=runtime))
    storage.when, storage.action = when, action
    return tk.Table(storage, LocalEngine(threads=1, runtime=runtime), Options(OPTIONS), runtime=runtime)


def test_plans_are_neither_cancellable_nor_mutable_unless_asked(world: World) -> None:
    plan = world.table.schedule_compaction()
    assert plan is not None
    assert not plan.flags.cancellable
    assert not plan.flags.mutable
    with pytest.raises(InvalidRequestError, match="neither cancellable nor mutable"):
        world.table.cancel(plan)
    assert world.table.execute(plan).outcome == "completed"


@each_service
def test_everybody_can_tell_from_the_timeline_that_a_plan_is_cancellable(world: World, service: str) -> None:
    plan = world.schedule(service)
    table = world.table
    instant = load_timeline(table._storage, table.config).find(plan.instant)
    assert instant is not None
    assert load_pending_outline(table._storage, table.config, instant).flags.cancellable
    assert table.plans()[0].flags.cancellable


@each_service
def test_a_cancellable_plan_yields_to_ingestion_and_is_off_the_timeline_at_once(world: World, service: str) -> None:
    plan = world.schedule(service)
    world.upsert(("a", "sf", 3, 3.0))
    with pytest.raises(ConflictError) as raised:
        world.table.execute(plan)
    assert raised.value.file_groups
    assert len(world.table.plans()) == 0
    assert load_timeline(world.table._storage, world.table.config).pending == ()
    assert world.rows() == [("a", "sf", 3, 3.0), ("b", "sf", 1, 1.0), ("c", "la", 2, 2.0)]
    again = world.schedule(service)
    assert world.table.execute(again).outcome == "completed"
    assert world.rows() == [("a", "sf", 3, 3.0), ("b", "sf", 1, 1.0), ("c", "la", 2, 2.0)]


@each_service
def test_a_cancellable_plan_that_nobody_disturbs_completes(world: World, service: str) -> None:
    plan = world.schedule(service)
    world.upsert(("n", "ny", 3, 3.0))
    before = world.rows()
    assert world.table.execute(plan).outcome == "completed"
    assert world.rows() == before


@each_service
def test_ingestion_never_fails_because_of_a_cancellable_plan(world: World, service: str) -> None:
    """Not before the plan is executed, not while it is, and not after it wanted to commit."""
    plan = world.schedule(service)
    world.upsert(("a", "sf", 3, 3.0))
    outcomes: list[str] = []

    def execute() -> None:
        try:
            outcomes.append(world.table.execute(plan).outcome)
        except ConflictError:
            outcomes.append("yielded")

    begin_upsert(world, trips(("b", "sf", 4, 4.0), ("c", "la", 4, 4.0)), execute)
    assert outcomes == ["yielded"]
    assert world.rows() == [("a", "sf", 3, 3.0), ("b", "sf", 4, 4.0), ("c", "la", 4, 4.0)]


@each_service
def test_the_executor_yields_to_ingestion_that_is_still_at_work(world: World, service: str) -> None:
    plan = world.schedule(service)
    outcomes: list[str] = []

    def execute() -> None:
        try:
            outcomes.append(world.table.execute(plan).outcome)
        except ConflictError as error:
            outcomes.append(error.beaten_by)

    begin_upsert(world, trips(("b", "sf", 4, 4.0)), execute)
    newest = load_timeline(world.table._storage, world.table.config).completed_writes[-1]
    assert outcomes == [newest.requested_at.value]
    assert world.rows() == [("a", "sf", 2, 2.0), ("b", "sf", 4, 4.0), ("c", "la", 2, 2.0)]


@each_service
def test_a_plan_that_is_not_cancellable_takes_file_groups_over(world: World, service: str) -> None:
    yielding = world.schedule(service)
    firm = world.schedule(service, cancellable=False)
    assert firm.file_groups == yielding.file_groups
    before = world.rows()
    with pytest.raises(ConflictError) as raised:
        world.table.execute(yielding)
    assert raised.value.beaten_by == firm.instant.value
    assert world.table.execute(firm).outcome == "completed"
    assert world.rows() == before


@each_service
def test_a_cancellable_plan_leaves_the_file_groups_of_other_plans_alone(world: World, service: str) -> None:
    world.schedule(service)
    table = world.table
    schedule = {"compaction": table.schedule_compaction, "clustering": table.schedule_clustering}[service]
    assert schedule(cancellable=True) is None


@each_service
def test_a_plan_that_nobody_executes_is_removed_by_cancel(world: World, service: str) -> None:
    plan = world.schedule(service)
    result = world.table.cancel(plan, reason="not now")
    assert result.is_removed
    assert result.reason == "not now"
    assert len(world.table.plans()) == 0
    with pytest.raises(InvalidRequestError, match="no plan"):
        world.table.execute(plan)
    assert world.schedule(service).file_groups == plan.file_groups


@each_service
def test_a_running_executor_notices_that_its_plan_was_cancelled(world: World, service: str) -> None:
    plan = world.schedule(service)
    before = world.rows()
    results: list[str] = []

    def call_off() -> None:
        results.append(world.table.cancel(plan, reason="stop", wait=0).outcome)

    table = interrupted(world, call_off, when=writes_data)
    with pytest.raises(PlanCancelledError, match="stop"):
        table.execute(plan)
    assert results == ["requested"]
    assert len(world.table.plans()) == 0
    assert load_timeline(world.table._storage, world.table.config).pending == ()
    assert world.rows() == before


@each_service
def test_an_executor_that_has_committed_wins_over_cancel(world: World, service: str) -> None:
    plan = world.schedule(service)
    world.table.execute(plan)
    assert world.table.cancel(plan).outcome == "completed"
    assert not list(world.table._storage.list_files(".hoodie/.cancel"))


@each_service
def test_clean_removes_a_plan_that_was_cancelled_when_its_executor_is_gone(world: World, service: str) -> None:
    plan = world.schedule(service)
    before = world.rows()
    calls = _calls_of_execution(world, plan)
    data = max(n for n, (_, path) in enumerate(calls, 1) if path and not path.startswith(".hoodie"))
    table, _ = world.process(FaultPoint(data, Fault.DEATH_AFTER))
    with pytest.raises(ProcessDied):
        table.execute(plan)
    assert world.table.cancel(plan, wait=0).outcome == "requested"
    assert world.clean() == 0
    world.clock.advance(LAPSED_S)
    with pytest.raises(PlanCancelledError):
        world.table.execute(plan)
    assert world.clean() == 1
    assert len(world.table.plans()) == 0
    assert world.rows() == before
    assert not list(world.table._storage.list_files(".hoodie/.cancel"))


@each_service
def test_a_cancellable_plan_that_was_inflight_for_too_long_is_cleaned_up(world: World, service: str) -> None:
    plan = world.schedule(service, cancel_after="2h")
    calls = _calls_of_execution(world, plan)
    inflight = next(n for n, (_, path) in enumerate(calls, 1) if path.endswith(".inflight"))
    table, _ = world.process(FaultPoint(inflight, Fault.DEATH_AFTER))
    with pytest.raises(ProcessDied):
        table.execute(plan)
    world.clock.advance(3_600)
    assert world.clean() == 0
    world.clock.advance(3_700)
    assert world.clean() == 1
    assert len(world.table.plans()) == 0


@each_service
def test_a_plan_that_is_mutable_too_goes_at_the_age_that_it_was_given(world: World, service: str) -> None:
    schedule = getattr(world.table, f"schedule_{service}")
    early = schedule(cancellable=True, mutable=True, cancel_after="10m")
    world.clock.advance(599)
    assert world.clean() == 0
    world.clock.advance(2)
    assert world.clean() == 1
    late = schedule(cancellable=True, mutable=True, cancel_after="2h")
    assert late.instant != early.instant
    world.clock.advance(7_000)
    assert world.clean() == 0
    world.clock.advance(300)
    assert world.clean() == 1


def _calls_of_execution(world: World, plan: ScheduledPlan) -> list[tuple[str, str]]:
    """The calls of an executor of this plan, found out on a copy of the table."""
    storage = MemoryStorage(world.uri, runtime=one_thread_runtime(world.clock, process=80))
    copy = World.__new__(World)
    copy.clock, copy.name, copy.processes = FakeClock(world.clock.now_ms()), "cancellable-copy", 0
    target = MemoryStorage(copy.uri, runtime=one_thread_runtime(copy.clock, process=81))
    for file in storage.walk(""):
        target.put(file.path, storage.read(file.path))
    table, watched = copy.process()
    table.execute(plan)
    forget_memory(copy.name)
    return list(watched.calls)


@pytest.mark.parametrize("ending", ["executed", "given up", "cancelled"])
def test_the_compaction_anomaly_loses_no_row_and_leaves_no_dirty_log(world: World, ending: str) -> None:
    """RFC-71, t0 to t3: a write at t1 does not see the plan of t2 and completes after it; one at t3 sees it.

    Logs are told apart by completion time here, not by a base instant in their names, so that both writes' logs lie on
    top of whatever the plan comes to.
    """
    cancellable = ending != "executed"
    plans: list[ScheduledPlan] = []

    def schedule_and_write() -> None:
        plans.append(world.schedule("compaction", cancellable=cancellable))  # t2, while t1 is running
        world.upsert(("a", "sf", 30, 30.0))  # t3: sees the plan

    if cancellable:
        begin_upsert(world, trips(("c", "la", 10, 10.0)), schedule_and_write)  # t1
    else:
        with pytest.raises(ConflictError):
            # A firm plan always counts: the write that missed it has to be made again.
            begin_upsert(world, trips(("c", "la", 10, 10.0)), schedule_and_write)
        world.upsert(("c", "la", 10, 10.0))
    expected = [("a", "sf", 30, 30.0), ("b", "sf", 1, 1.0), ("c", "la", 10, 10.0)]
    assert world.rows() == expected
    (plan,) = plans
    if ending == "executed":
        assert world.table.execute(plan).outcome == "completed"
    elif ending == "given up":
        with pytest.raises(ConflictError):
            world.table.execute(plan)
    else:
        assert world.table.cancel(plan).is_removed
    assert world.rows() == expected
    assert world.table.compact() is not None
    assert world.rows() == expected
    assert all(not file_slice.logs for file_slice in world.table.files())
    report = world.table.doctor()
    assert report.is_healthy, report


def test_a_write_that_allows_updates_goes_before_a_clustering(world: World) -> None:
    """RFC-71: with the update-allowing strategy the writer commits, and the clustering is rolled back."""
    allow = {"hoodie.clustering.updates.strategy": "SparkAllowUpdateStrategy"}
    plan = world.schedule("clustering", cancellable=False)
    runtime = one_thread_runtime(world.clock, process=70)
    table = tk.Table(
        MemoryStorage(world.uri, runtime=runtime),
        LocalEngine(threads=1, runtime=runtime),
        Options({**OPTIONS, **allow}),
        runtime=runtime,
    )
    table.upsert(trips(("a", "sf", 3, 3.0)))
    with pytest.raises(ConflictError):
        table.execute(plan)
    # The rows that it was planned on have changed: no later attempt could succeed, and the plan is gone.
    assert load_timeline(table._storage, table.config).pending == ()
    assert world.rows() == [("a", "sf", 3, 3.0), ("b", "sf", 1, 1.0), ("c", "la", 2, 2.0)]


def test_services_are_checked_against_each_other_when_they_are_scheduled(world: World) -> None:
    compaction = world.schedule("compaction", cancellable=False)
    assert world.table.schedule_clustering() is None
    assert world.table.schedule_compaction() is None
    world.table.execute(compaction)
    clustering = world.table.schedule_clustering()
    assert clustering is not None
    assert clustering.file_groups == compaction.file_groups


def test_a_transaction_loads_the_timeline_twice_first_without_and_then_with_the_lock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = world.table
    loads: list[bool] = []

    def counted(load: Callable[..., object]) -> Callable[..., object]:
        def counting(*args: object, **kwargs: object) -> object:
            loads.append(table.lock_holder() is not None)
            return load(*args, **kwargs)

        return counting

    monkeypatch.setattr("tablekeeper.txn.environment.load_timeline", counted(load_timeline))
    monkeypatch.setattr("tablekeeper.txn.commit.load_timeline_beside", counted(load_timeline_beside))
    table.upsert(trips(("a", "sf", 9, 9.0)))
    assert loads == [False, True]


def test_a_plan_of_before_keeps_its_flags_when_it_is_written_again(world: World) -> None:
    plan = world.schedule("compaction", cancel_after="90m")
    (listed,) = world.table.plans()
    assert listed.flags == replace(plan.flags)
    assert listed.flags.cancel_after_s == 5_400
    assert [i.action for i in load_timeline(world.table._storage, world.table.config).pending] == [Action.COMPACTION]
