"""The service on real tables with the engine `arrow`: worker processes, SQLite, no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.model import AttemptOutcome, Operation, ServiceAction, Signal, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import Limits, ServerSettings, Timing
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page, Submission
from tablekeeper.server.store.sql import open_store
from tests.support.table_builder import TableBuilder, rows_of, trips

QUICK = Timing(
    lease_s=30.0,
    renew_every_s=1.0,
    look_min_s=0.1,
    look_max_s=1.0,
    back_off_s=0.1,
    back_off_max_s=0.5,
    held_retry_s=0.2,
    instance_gone_s=5.0,
)
COMPACT_OFTEN = Policy(services=(ServiceAction.COMPACTION,), compact_after_commits=2)
TIMEOUT_S = 120.0


def settings_in(folder: Path, timing: Timing = QUICK) -> ServerSettings:
    return ServerSettings(work_dir=folder / "service", allow=(str(folder),), timing=timing, limits=Limits(slots=2))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = open_service(settings_in(tmp_path), runtime=SYSTEM_RUNTIME)
    yield opened
    opened.stop()


@pytest.fixture
def table(tmp_path: Path) -> tk.Table:
    made = TableBuilder().create(str(tmp_path / "trips"), table_type="mor")
    made.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    return made


def register(service: Service, table: tk.Table, policy: Policy) -> int:
    place = table.path.removeprefix("file://")
    return service.store.register_table(NewTable("db", Path(place).name, place, policy=policy))[0].table_id


def run_until(service: Service, is_done: Callable[[], bool]) -> None:
    """Rounds of the service until it is so; the jobs are processes, so somebody has to wait for them."""
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_done():
        assert clock.monotonic_s() < until_s, service.store.list_operations(OperationFilter(), Page())
        service.run_once()
        clock.sleep(0.05)


def operations(service: Service, status: Status) -> list[Operation]:
    return service.store.list_operations(OperationFilter(statuses=(status,)), Page())


def test_a_table_that_is_written_to_is_compacted_by_its_policy(service: Service, table: tk.Table) -> None:
    table_id = register(service, table, COMPACT_OFTEN)
    service.run_once()
    assert operations(service, Status.PENDING) == []
    for ts in (2, 3):
        table.upsert(trips(("a", "sf", ts, float(ts))))
        service.store.notice_commit(table_id)
    run_until(service, lambda: bool(operations(service, Status.COMPLETED)))
    (done,) = operations(service, Status.COMPLETED)
    assert done.action is ServiceAction.COMPACTION
    assert done.instant in {i.requested_at.value for i in table.timeline() if i.action.value == "commit"}
    assert "3 delta commits" in done.why
    assert [len(each.logs) for each in table.files(partitions=["sf"])] == [0]
    assert rows_of(table.read(), "id", "fare") == [("a", 3.0), ("b", 1.0)]
    (attempt,) = service.store.load_attempts(done.operation_id)
    assert (attempt.outcome, attempt.result["file_groups"]) == (AttemptOutcome.COMPLETED, 1)
    assert "compaction of" in load_log_tail(attempt.log_path)


def test_a_copy_on_write_table_is_clustered_and_cleaned_by_its_policy(service: Service, tmp_path: Path) -> None:
    table = TableBuilder().create(str(tmp_path / "flat"), partition_by=None, table_type="cow")
    for number in range(4):
        table.bulk_insert(trips((f"k{number}", "sf", 1, float(number))))
    policy = Policy(
        services=(ServiceAction.CLUSTERING, ServiceAction.CLEAN),
        cluster_after_commits=4,
        clean_after_commits=5,
        keep_commits=1,
        order_by=("fare",),
    )
    table_id = register(service, table, policy)
    run_until(service, lambda: len(operations(service, Status.COMPLETED)) == 2)
    assert {each.action for each in operations(service, Status.COMPLETED)} == set(policy.services or ())
    (sorted_file,) = table.files()
    assert sorted_file.base is not None
    # The first clean kept what readers of the commit before the clustering need, and is not repeated at each commit.
    service.store.change_policy(table_id, replace(policy, services=(ServiceAction.CLEAN,)))
    for ts in range(2, 7):
        assert len(operations(service, Status.COMPLETED)) == 2
        table.upsert(trips(("k0", "sf", ts, 5.0 + ts)))
        service.looks.look_at(service.store.load_table(table_id))
        assert [each.why for each in operations(service, Status.PENDING)] == (
            [] if ts < 6 else ["5 commits since the last clean, which found nothing to do, due from 5 on"]
        )
    run_until(service, lambda: len(operations(service, Status.COMPLETED)) == 3)
    newest, *_ = operations(service, Status.COMPLETED)
    (cleaned,) = service.store.load_attempts(newest.operation_id)
    assert (newest.action, cleaned.result["files_deleted"]) == (ServiceAction.CLEAN, 8)
    assert rows_of(table.read(), "id", "fare") == [("k0", 11.0), ("k1", 1.0), ("k2", 2.0), ("k3", 3.0)]


def test_a_plan_whose_request_was_lost_is_found_on_the_timeline(service: Service, table: tk.Table) -> None:
    table.upsert(trips(("a", "sf", 2, 2.0)))
    plan = table.schedule_compaction()
    assert plan is not None
    register(service, table, Policy(services=()))
    run_until(service, lambda: bool(operations(service, Status.COMPLETED)))
    (done,) = operations(service, Status.COMPLETED)
    assert done.instant == plan.instant.value
    assert len(table.plans()) == 0


def test_a_request_for_a_plan_that_is_not_there_is_cancelled_and_revived_when_it_is(
    service: Service, table: tk.Table
) -> None:
    table_id = register(service, table, Policy(services=()))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    plan = table.schedule_compaction()
    assert plan is not None
    timeline = Path(table.path.removeprefix("file://")) / ".hoodie" / "timeline"
    (requested,) = timeline.glob("*.compaction.requested")
    hidden = requested.rename(timeline.parent / "not-there-yet")
    submitted = service.store.submit(Submission(table_id, plan.instant.value, ServiceAction.COMPACTION))
    run_until(service, lambda: bool(operations(service, Status.CANCELLED)))
    assert "not on the timeline" in service.store.load_operation(submitted.operation.operation_id).note
    hidden.rename(requested)
    service.store.notice_commit(table_id)
    run_until(service, lambda: bool(operations(service, Status.COMPLETED)))
    assert len(table.plans()) == 0


def test_a_plan_that_was_rolled_back_after_the_request_is_cancelled(service: Service, table: tk.Table) -> None:
    table_id = register(service, table, Policy(services=()))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    plan = table.schedule_compaction(cancellable=True)
    assert plan is not None
    service.store.submit(Submission(table_id, plan.instant.value, ServiceAction.COMPACTION))
    table.cancel(plan)
    service.looks.run_once()
    (cancelled,) = operations(service, Status.CANCELLED)
    assert cancelled.run_times == 0


def test_a_plan_that_its_writer_executes_itself_is_completed_here_too(service: Service, table: tk.Table) -> None:
    table_id = register(service, table, Policy(services=()))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    plan = table.schedule_compaction()
    assert plan is not None
    service.store.submit(Submission(table_id, plan.instant.value, ServiceAction.COMPACTION))
    table.execute(plan)
    service.looks.run_once()
    (completed,) = operations(service, Status.COMPLETED)
    assert completed.run_times == 0


def test_a_table_that_cannot_be_read_is_quarantined_and_holds_up_nobody(
    service: Service, table: tk.Table, tmp_path: Path
) -> None:
    broken, _ = service.store.register_table(NewTable("db", "broken", str(tmp_path / "nowhere")))
    register(service, table, COMPACT_OFTEN)
    table.upsert(trips(("a", "sf", 2, 2.0)))
    run_until(service, lambda: bool(operations(service, Status.COMPLETED)))
    run_until(service, lambda: bool(service.store.load_table(broken.table_id).quarantine))
    service.alarms.run_once()
    (alarm,) = service.store.list_alarms(Page(), only_open=True)
    assert (alarm.rule, alarm.table_id) == ("quarantined", broken.table_id)
    service.store.quarantine_table(broken.table_id, "")
    service.alarms.run_once()
    assert service.store.list_alarms(Page(), only_open=True) == []


def test_an_operation_that_is_refused_fails_with_an_alarm_and_can_be_tried_again(
    service: Service, tmp_path: Path
) -> None:
    flat = TableBuilder().create(str(tmp_path / "flat"), table_type="cow")
    flat.bulk_insert(trips(("a", "sf", 1, 1.0)))
    table_id = register(service, flat, Policy(services=()))
    service.store.submit(Submission(table_id, "compaction@1", ServiceAction.COMPACTION))
    run_until(service, lambda: bool(operations(service, Status.FAILED)))
    (failed,) = operations(service, Status.FAILED)
    assert (failed.run_times, failed.failures) == (1, 1)
    assert "copy-on-write" in failed.note
    service.alarms.run_once()
    (alarm,) = service.store.list_alarms(Page(), only_open=True)
    assert (alarm.rule, alarm.operation_id) == ("failed", failed.operation_id)
    (event,) = service.store.list_events(Page(), operation_id=failed.operation_id)
    assert (event.kind, event.text, event.table_id) == ("failed", failed.note, table_id)
    service.store.revive(failed.operation_id, note="again")
    service.alarms.run_once()
    assert service.store.list_alarms(Page(), only_open=True) == []


def test_a_failure_is_over_once_the_service_has_worked_on_the_table(service: Service, table: tk.Table) -> None:
    table_id = register(service, table, Policy(services=()))
    for number in ("1", "2"):
        operation = service.store.submit(Submission(table_id, f"clean@{number}", ServiceAction.CLEAN)).operation
        claimed = service.store.claim(operation.operation_id, instance_id="one", lease_s=60)
        assert claimed is not None
        signal = Signal.FAIL if number == "1" else Signal.COMPLETE
        service.store.settle(claimed.lease, signal, note="disk full")
        service.alarms.run_once()
        open_alarms = service.store.list_alarms(Page(), only_open=True)
        assert [alarm.rule for alarm in open_alarms] == (["failed"] if number == "1" else [])


def test_an_operation_for_an_engine_that_is_not_here_fails_at_once(service: Service, table: tk.Table) -> None:
    table_id = register(service, table, Policy(services=()))
    service.store.submit(Submission(table_id, "clean@1", ServiceAction.CLEAN, engine="tez"))
    service.schedule.run_once()
    (failed,) = operations(service, Status.FAILED)
    assert "no engine 'tez'" in failed.note
    assert service.context.watched == {}


def test_a_job_whose_files_are_damaged_is_lost_and_holds_up_nobody(service: Service, table: tk.Table) -> None:
    table_id = register(service, table, Policy(services=()))
    for instant, action in (("clean@1", ServiceAction.CLEAN), ("archive@1", ServiceAction.ARCHIVE)):
        service.store.submit(Submission(table_id, instant, action))
    service.schedule.run_once()
    damaged, other = service.context.watched.values()
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not all(Path(each.job.result_path).exists() for each in (damaged, other)):
        assert clock.monotonic_s() < until_s
        clock.sleep(0.05)
    Path(damaged.job.result_path).write_text("{")
    run_until(service, lambda: bool(operations(service, Status.COMPLETED)))
    (lost,) = service.store.load_attempts(damaged.operation.operation_id)[-1:]
    assert lost.outcome is AttemptOutcome.LOST
    run_until(service, lambda: len(operations(service, Status.COMPLETED)) == 2)
    assert service.store.load_operation(damaged.operation.operation_id).failures == 1


def test_an_operation_that_is_being_claimed_when_the_service_is_to_stop_is_finished_first(
    tmp_path: Path, table: tk.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_in(tmp_path, replace(QUICK, drain_s=TIMEOUT_S))
    service = open_service(settings, runtime=SYSTEM_RUNTIME)
    register(service, table, COMPACT_OFTEN)
    for ts in (2, 3):
        table.upsert(trips(("a", "sf", ts, float(ts))))
    claims, claiming = service.store.claim, SYSTEM_RUNTIME.threads.event()

    def claim_while_the_drain_begins(operation_id: int, **more: Any) -> Operation | None:
        claimed = claims(operation_id, **more)
        claiming.set()
        while not service.schedule.is_draining:
            SYSTEM_RUNTIME.clock.sleep(0.01)
        return claimed

    monkeypatch.setattr(service.store, "claim", claim_while_the_drain_begins)
    service.start()
    assert claiming.wait(TIMEOUT_S)
    service.drain()
    store = open_store(settings.url)
    (done,) = store.list_operations(OperationFilter(), Page())
    store.close()
    assert done.status is Status.COMPLETED


@pytest.mark.parametrize("loses", ["the history of the table", "its database"])
def test_an_operation_with_the_number_of_one_that_was_forgotten_runs_all_the_same(
    tmp_path: Path, table: tk.Table, loses: str
) -> None:
    folder = settings_in(tmp_path).work_dir
    numbers = []
    for ts in (2, 3):
        table.upsert(trips(("a", "sf", ts, float(ts))))
        numbers.append(compact_once(tmp_path, table, ts, clears=loses == "the history of the table"))
        assert [len(each.logs) for each in table.files(partitions=["sf"])] == [0], ts
        for file in folder.glob("service.db*") if loses == "its database" else ():
            file.unlink()
    assert numbers[0] == numbers[1]


def compact_once(folder: Path, table: tk.Table, ts: int, *, clears: bool) -> int:
    """A service that does this one thing; the number of its operation."""
    service = open_service(settings_in(folder), runtime=SYSTEM_RUNTIME)
    try:
        table_id = register(service, table, Policy(services=()))
        asked = Submission(table_id, f"compaction@asked-{ts}", ServiceAction.COMPACTION)
        number = service.store.submit(asked).operation.operation_id
        run_until(service, lambda: bool(operations(service, Status.COMPLETED)))
        if clears:
            assert service.store.clear(table_id) == 1
        return number
    finally:
        service.stop()
