"""What lazy clean, the guard and the scheduler decide under the lock when others came in just before it.

The other scenarios let processes interleave at every call and look at the outcome. These pin one decision each: what
was true outside of the lock has changed by the time it is held, and the decision must go by what is true then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import ConflictError, FencedError
from tablekeeper.model import Action, RequestedTime, State
from tablekeeper.services.plans.cancel import remove_failed_plans
from tablekeeper.storage import MemoryStorage
from tablekeeper.table.writer_options import load_writer_options
from tablekeeper.txn.rollback import schedule_rollback
from tests.support.meanwhile import Interrupted
from tests.support.recovery_world import World
from tests.support.table_builder import trips

__all__: list[str] = []

LOCK = ".hoodie/.locks/table_lock.json"
OPTIONS = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider",
    "hoodie.log.compaction.blocks.threshold": "2",
}
AT_ONCE = LifecycleSettings(rollback_delay_minutes=0)
SERVICES = ["compaction", "log_compaction", "clustering"]

each_service = pytest.mark.parametrize("service", SERVICES)


@pytest.fixture
def world() -> Iterator[World]:
    """Two partitions with logs, so that there can be a plan for each."""
    made = World(table_type="mor", options=OPTIONS)
    for value in (1.0, 2.0, 3.0):
        made.upsert(trips(("a", "sf", 1, value), ("b", "sf", 1, value), ("c", "la", 1, value)))
    made.clock.advance(10)
    yield made
    made.forget()


def client(world: World) -> tuple[tk.Table, Interrupted]:
    """The table as a process has it during whose work others act."""
    runtime = world.new_runtime()
    storage = Interrupted(MemoryStorage(f"memory://{world.name}/table", runtime=runtime))
    options = Options(None).merged_over(load_writer_options(world.storage))
    return tk.Table(storage, LocalEngine(threads=1, runtime=runtime), options, runtime=runtime), storage


def schedule(table: tk.Table, service: str, **flags: Any) -> Any:
    return getattr(table, f"schedule_{service}")(**flags)


def before_the_lock(action: Callable[[], object], storage: Interrupted) -> None:
    """Let somebody act when the process has looked at the timeline and is about to take the lock."""
    storage.when = lambda kind, path: path == LOCK
    storage.action = action


@each_service
def test_lazy_clean_decides_about_each_plan_in_a_transaction_of_its_own(world: World, service: str) -> None:
    plans = [schedule(world.table, service, partitions=f"city = '{city}'", mutable=True) for city in ("la", "sf")]
    cleaner, storage = client(world)
    observer = world.table
    owners: dict[str, list[str | None]] = {"looked": [], "decided": []}

    def watch(kind: str, path: str) -> None:
        what = {".rollback.requested": "decided", ".hoodie/.heartbeat": "looked"}
        for ending, step in what.items():
            if path.endswith(ending) and kind in ("list_files", "put_if_absent"):
                holder = observer.lock_holder()
                owners[step].append(None if holder is None else holder.owner)

    storage.watch = watch
    removed = remove_failed_plans(cleaner._load_environment(), AT_ONCE)
    assert removed == tuple(plan.instant for plan in plans)
    first, second = owners["decided"]
    assert None not in (first, second)
    assert first != second
    # Whether the plan is held was asked under the same lock.
    assert owners["looked"][:2] == [first, second]


@each_service
def test_lazy_clean_judges_a_plan_by_the_timeline_that_it_loads_under_the_lock(world: World, service: str) -> None:
    plan = schedule(world.table, service, mutable=True)
    rows = world.rows()
    cleaner, storage = client(world)
    before_the_lock(lambda: world.table.execute(plan), storage)
    assert remove_failed_plans(cleaner._load_environment(), AT_ONCE) == ()
    found = world.timeline.find(plan.instant)
    assert found is not None
    assert found.is_completed
    assert [i for i in world.timeline if i.action is Action.ROLLBACK] == []
    assert world.rows() == rows


@each_service
def test_with_no_rollback_delay_lazy_clean_takes_a_plan_of_this_very_moment(world: World, service: str) -> None:
    plan = schedule(world.table, service, mutable=True)
    age_ms = world.clock.now_ms()
    assert remove_failed_plans(world.table._load_environment(), LifecycleSettings(rollback_delay_minutes=1)) == ()
    assert remove_failed_plans(world.table._load_environment(), AT_ONCE) == (plan.instant,)
    assert world.clock.now_ms() == age_ms
    assert world.timeline.find(plan.instant) is None


@each_service
def test_the_guard_stops_before_a_mutable_plan_is_begun_that_a_rollback_targets(world: World, service: str) -> None:
    plan = schedule(world.table, service, mutable=True)
    environment = world.table._load_environment()
    assert schedule_rollback(environment, plan.instant, approve=lambda *_: True) is not None
    files = world.data_files()
    executor, storage = client(world)
    with pytest.raises(FencedError, match="is being rolled back"):
        executor.execute(plan)
    found = world.timeline.find(plan.instant)
    assert found is not None
    assert found.state is State.REQUESTED
    assert world.data_files() == files
    assert [path for path in storage.paths("put", "put_if_absent") if "heartbeat" in path] == []


@pytest.mark.parametrize("other", SERVICES)
@each_service
def test_a_plan_leaves_out_what_another_scheduled_before_it_got_the_lock(
    world: World, service: str, other: str
) -> None:
    scheduler, storage = client(world)
    made: list[Any] = []
    before_the_lock(lambda: made.append(schedule(world.table, other, partitions="city = 'sf'")), storage)
    plan = schedule(scheduler, service)
    assert made[0].partitions == ("sf",)
    assert plan is not None
    assert plan.partitions == ("la",)
    assert plan.missing_partitions == ("sf",)


@pytest.mark.parametrize("service", ["compaction", "clustering"])
@pytest.mark.parametrize("moment", ["requested", "announced", "written"])
def test_no_write_is_wasted_on_a_cancellable_plan_whenever_that_wants_to_commit(
    world: World, service: str, moment: str
) -> None:
    """Also while the writer has not said yet what it touches: the plan waits for that, and yields."""
    plan = schedule(world.table, service, cancellable=True)
    world.clock.advance(1)
    writer, storage = client(world)
    outcomes: list[str] = []

    def execute() -> None:
        try:
            outcomes.append(world.table.execute(plan).outcome)
        except ConflictError:
            outcomes.append("yielded")

    marks = {"announced": ".marker.", "written": "_partition_metadata"}
    if moment == "requested":
        storage.when = lambda kind, path: kind == "put_if_absent" and path.endswith(".inflight")
    else:
        storage.when = lambda kind, path: marks[moment] in path
    storage.action = execute
    result = writer.upsert(trips(("a", "sf", 1, 9.0), ("c", "la", 1, 9.0)))
    assert outcomes == ["yielded"]
    assert result.instant is not None
    assert world.timeline.find(RequestedTime(result.instant.value)) is not None
    assert world.rows() == [("a", 9.0), ("b", 3.0), ("c", 9.0)]
    assert world.timeline.find(plan.instant) is None
