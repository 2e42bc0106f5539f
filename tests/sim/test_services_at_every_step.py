"""Every storage call of a table service goes wrong once; the table must come out whole each time.

Scheduling, executing, executing again after a death, yielding, cancelling and lazy clean, each for several kinds of
plans. A call that only looks can fail; one that changes something can fail before or after it has happened, and the
process can die before or after it. Whatever happens

- reads give the same rows, before, in between and at the end;
- a writer succeeds at once, on the same file groups too unless a firm clustering keeps them;
- once the heartbeats of the dead have lapsed, a clean and the next executor leave nothing pending: a firm plan is
  completed, one that may go is completed or gone, and what was reported as done is done;
- no data file is left over, a metadata table lists what is there, and the doctor is content once it has repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError, TablekeeperError
from tablekeeper.model import RequestedTime
from tablekeeper.timeline import load_commit_metadata
from tests.support.recovery_world import World
from tests.support.step_faults import ONE_CALL, WRITES, Fault, FaultPoint, ProcessDied
from tests.support.table_builder import trips

__all__: list[str] = []

HEARTBEAT_LAPSED_S = 600.0
TWO_DAYS_S = 2 * 86_400.0
OPTIONS = {
    "hoodie.log.compaction.blocks.threshold": "2",
    # New keys make new file groups, so that there is something to cluster.
    "hoodie.parquet.small.file.limit": "0",
}
STORE_LOCK = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.write.lock.wait_time_ms": "600000",
}
AT_ONCE = {"hoodie.table.service.rollback.delay.minutes": "0"}

Act = Callable[[tk.Table, RequestedTime], object]
Schedule = Callable[[tk.Table], Any]


@dataclass(frozen=True)
class Case:
    """What goes wrong, on which plan.

    `begun`: an executor died before, with its files written. `touched`: a writer was faster. `ends`: what may have
    become of the plan in the end; `done` after success was reported. Of the calls that only look, those for paths that
    begin with `looks_at` fail: the others are as in another case.
    """

    schedule: Schedule
    act: Act
    ends: tuple[str, ...] = ("completed",)
    done: str = "completed"
    begun: bool = False
    touched: bool = False
    metadata: bool = False
    is_firm_clustering: bool = False
    looks_at: str = ""
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """A table on which something is about to go wrong, and the plan that it is about."""

    world: World
    plan: RequestedTime
    rows: list[tuple[Any, ...]]
    is_lapsed: bool = False

    def copy(self) -> World:
        """The same again. A copy has been written just now, heartbeats too."""
        world = self.world.copy()
        if self.is_lapsed:
            world.clock.advance(HEARTBEAT_LAPSED_S)
        return world


def compaction(**flags: Any) -> Schedule:
    return lambda table: table.schedule_compaction(**flags)


def log_compaction(**flags: Any) -> Schedule:
    return lambda table: table.schedule_log_compaction(**flags)


def clustering(**flags: Any) -> Schedule:
    return lambda table: table.schedule_clustering(order_by="ts", **flags)


def execute(table: tk.Table, plan: RequestedTime) -> object:
    return table.execute(plan)


def cancel(table: tk.Table, plan: RequestedTime) -> object:
    result = table.cancel(plan, wait=0)
    assert result.outcome == "removed"
    return result


def clean(table: tk.Table, _: RequestedTime) -> object:
    return table.clean(options=AT_ONCE)


MAY_GO = ("completed", "gone")
METADATA = ".hoodie/metadata/"
SIDE_FOLDERS = ".hoodie/."
CASES = {
    "execute_compaction": Case(compaction(), execute),
    "execute_log_compaction": Case(log_compaction(), execute),
    "execute_clustering": Case(clustering(), execute, is_firm_clustering=True),
    "execute_compaction_metadata_table": Case(compaction(), execute, metadata=True),
    "execute_clustering_metadata_table": Case(clustering(), execute, metadata=True, is_firm_clustering=True),
    "execute_compaction_store_lock": Case(compaction(), execute, options=STORE_LOCK, looks_at=".hoodie/.locks/"),
    "execute_mutable_log_compaction": Case(log_compaction(mutable=True), execute, ends=MAY_GO, looks_at=SIDE_FOLDERS),
    "execute_cancellable_clustering": Case(clustering(cancellable=True), execute, ends=MAY_GO),
    "execute_compaction_again": Case(compaction(), execute, begun=True),
    "execute_clustering_again_metadata_table": Case(
        clustering(), execute, begun=True, metadata=True, is_firm_clustering=True
    ),
    "yield_compaction": Case(compaction(cancellable=True), execute, ends=("gone",), touched=True),
    "yield_clustering_metadata_table": Case(
        clustering(cancellable=True), execute, ends=("gone",), touched=True, metadata=True
    ),
    "cancel_log_compaction": Case(log_compaction(cancellable=True), cancel, ends=MAY_GO, done="gone"),
    "cancel_begun_clustering_metadata_table": Case(
        clustering(cancellable=True), cancel, ends=MAY_GO, done="gone", begun=True, metadata=True
    ),
    "clean_begun_mutable_compaction": Case(compaction(mutable=True), clean, ends=("gone",), done="gone", begun=True),
}
SCHEDULES = {
    "schedule_compaction": compaction(),
    "schedule_cancellable_log_compaction": log_compaction(cancellable=True),
    "schedule_clustering": clustering(),
}
# To die before a change is to die after the one before it: all four faults for two cases, three for the others.
FAULTS = [
    (name, fault)
    for name in CASES
    for fault in ONE_CALL
    if fault is not Fault.DEATH_BEFORE or name in ("execute_compaction", "cancel_log_compaction")
]


@cache
def prepared(name: str) -> Prepared:
    """The table before things go wrong. Trials work on copies of it."""
    case = CASES[name]
    world = new_world(metadata=case.metadata, options=case.options)
    plan = case.schedule(world.table)
    assert plan is not None
    world.clock.advance(1)
    if case.begun:
        begin_and_die(world, plan.instant)
    if case.touched:
        world.upsert(trips(("b", "sf", 5, 5.0)))
    return Prepared(world, plan.instant, world.rows(), is_lapsed=case.begun)


def new_world(*, metadata: bool = False, options: dict[str, str] | None = None) -> World:
    """Two file groups, one of them with logs."""
    world = World(table_type="mor", metadata=metadata, options={**OPTIONS, **(options or {})})
    world.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    world.upsert(trips(("a", "sf", 2, 2.0), ("c", "sf", 2, 2.0)))
    world.upsert(trips(("b", "sf", 3, 3.0)))
    world.clock.advance(10)
    return world


def begin_and_die(world: World, plan: RequestedTime) -> None:
    """An executor that dies with all its files written and nothing committed."""
    trial = world.copy()
    table, storage, _ = trial.client()
    table.execute(plan)
    trial.forget()
    last = max(n for n, (kind, path) in enumerate(storage.calls, 1) if kind in WRITES and path.startswith("sf/"))
    table, _, threads = world.client(FaultPoint(last, Fault.DEATH_AFTER))
    with suppress(ProcessDied):
        table.execute(plan)
    threads.kill()
    assert [instant.requested_at for instant in world.timeline.pending] == [plan]


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for name in CASES:
        prepared(name).world.forget()
    prepared.cache_clear()


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}-{fault.name.lower()}" for name, fault in FAULTS])
def test_a_service_leaves_the_rows_alone_and_can_be_finished_whatever_call_goes_wrong(name: str, fault: Fault) -> None:
    case, start = CASES[name], prepared(name)
    calls = calls_of(start.copy(), lambda table: case.act(table, start.plan), may_conflict=case.touched)
    for step in steps_of(calls, fault, looks_at=METADATA if case.metadata else case.looks_at):
        world = start.copy()
        with noted(name, FaultPoint(step, fault), calls):
            succeeded = attempt(world, FaultPoint(step, fault), lambda table: case.act(table, start.plan))
            assert world.rows() == start.rows
            rows = write_on(world, start.rows, same_groups=not case.is_firm_clustering)
            end = finish(world, start.plan)
            assert end == case.done if succeeded else end in case.ends
            assert_whole(world, rows)
        world.forget()


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_plan_is_scheduled_whole_or_not_at_all_whatever_call_goes_wrong(name: str, fault: Fault) -> None:
    schedule, start = SCHEDULES[name], new_world()
    rows = start.rows()
    calls = calls_of(start.copy(), schedule)
    for step in steps_of(calls, fault):
        world = start.copy()
        with noted(name, FaultPoint(step, fault), calls):
            succeeded = attempt(world, FaultPoint(step, fault), schedule)
            assert world.rows() == rows
            plans = world.table.plans()
            assert len(plans) == 1 if succeeded else len(plans) <= 1
            expected = write_on(world, rows, same_groups="clustering" not in name)
            for plan in plans:
                finish(world, plan.instant)
            assert_whole(world, expected)
        world.forget()
    start.forget()


def calls_of(world: World, act: Callable[[tk.Table], object], *, may_conflict: bool = False) -> list[tuple[str, str]]:
    """The storage calls of an undisturbed run, after which the world is gone."""
    table, storage, _ = world.client()
    with suppress(*([ConflictError] if may_conflict else [])):
        act(table)
        assert not may_conflict
    world.forget()
    return list(storage.calls)


def steps_of(calls: list[tuple[str, str]], fault: Fault, *, looks_at: str = "") -> list[int]:
    """The calls at which the fault makes a difference; of those that only look, the ones below a folder."""
    looks = fault is Fault.ERROR_BEFORE
    steps = [n for n, (kind, path) in enumerate(calls, 1) if kind in WRITES or (looks and path.startswith(looks_at))]
    assert steps
    return steps


@contextmanager
def noted(name: str, point: FaultPoint, calls: list[tuple[str, str]]) -> Iterator[None]:
    """Says where in the calls a check failed."""
    try:
        yield
    except Exception as error:
        call = " ".join(calls[point.step - 1])
        error.add_note(f"{name}: {point.fault.value} call {point.step} of {len(calls)}, {call}")
        raise


def attempt(world: World, point: FaultPoint, act: Callable[[tk.Table], object]) -> bool:
    """Do it with one fault on the way; whether it was reported as done."""
    table, storage, threads = world.client(point)
    try:
        act(table)
    except ProcessDied:
        assert point.fault.is_death
        threads.kill()
        return False
    except TablekeeperError:
        assert not point.fault.is_death or len(storage.calls) < point.step
        return False
    finally:
        assert len(storage.calls) >= point.step
    return True


def write_on(world: World, rows: list[tuple[Any, ...]], *, same_groups: bool) -> list[tuple[Any, ...]]:
    """Somebody writes at once; the rows that must be there from then on."""
    new = [("n", "ny", 9, 9.0), *([("a", "sf", 9, 9.0)] if same_groups else [])]
    world.upsert(trips(*new))
    expected = sorted({**dict(rows), **{key: fare for key, _, _, fare in new}}.items())
    assert world.rows() == expected
    return expected


def finish(world: World, plan: RequestedTime) -> str:
    """Those who come after the heartbeats have lapsed: a clean, and whoever executes what waits. How the plan ended."""
    world.clock.advance(HEARTBEAT_LAPSED_S)
    world.table.clean()
    for waiting in world.table.plans():
        world.clock.advance(1)
        try:
            assert world.table.execute(waiting.instant).outcome == "completed"
        except ConflictError:
            assert waiting.flags.cancellable
    found = world.timeline.find(plan)
    return "gone" if found is None else "completed" if found.is_completed else "pending"


def assert_whole(world: World, rows: list[tuple[Any, ...]]) -> None:
    assert world.rows() == rows
    timeline = world.timeline
    assert timeline.pending == ()
    config = world.table.config
    completed = timeline.completed_writes
    committed = {stat.path for i in completed for stat in load_commit_metadata(world.storage, config, i).stats}
    assert world.data_files() <= committed
    assert not list(world.storage.list_files(".hoodie/.cancel"))
    world.refuse_stale_metadata_table()
    world.clock.advance(TWO_DAYS_S)
    report = world.table.doctor(fix=True)
    assert report.failed == ()
    assert report.is_healthy, report
    assert report.repairs == ()
    assert not report.repaired or world.rows() == rows
