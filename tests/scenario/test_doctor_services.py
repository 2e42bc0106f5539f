"""The doctor and table services: plans that wait, run, died or were cancelled, cleans, and stray files."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

import tablekeeper as tk
from tablekeeper.cli.main import app
from tablekeeper.config.lifecycle_settings import LifecycleSettings
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.services.doctor import Severity
from tablekeeper.services.plans.cancel import remove_failed_plans
from tablekeeper.services.plans.schedule import ScheduledPlan
from tablekeeper.timeline import instant_path, load_commit_metadata, start_inflight
from tablekeeper.txn.cancel_requests import CancelRequest, save_cancel_request
from tablekeeper.txn.markers import MarkerKind, create_marker
from tablekeeper.txn.rollback import schedule_rollback
from tests.support.damage import as_written_to
from tests.support.fake_runtime import FakeClock
from tests.support.recovery_world import FIRST, LAPSED_S, World, for_every_death
from tests.support.step_faults import Fault, FaultPoint, ProcessDied
from tests.support.table_builder import trips

__all__: list[str] = []

OPTIONS = {"hoodie.log.compaction.blocks.threshold": "2"}
ROWS = [("a", 3.0), ("b", 1.0), ("c", 3.0)]
KINDS = {"compaction": Action.COMPACTION, "log compaction": Action.LOG_COMPACTION, "clustering": Action.CLUSTERING}

each_service = pytest.mark.parametrize("service", sorted(KINDS))


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """A merge-on-read table of three commits: in two partitions, a base file with two logs each."""
    return _fill(make(table_type="mor", options=OPTIONS))


def _fill(world: World) -> World:
    world.upsert(FIRST)
    for ts in (2, 3):
        world.upsert(trips(("a", "sf", ts, float(ts)), ("c", "la", ts, float(ts))))
    world.clock.advance(10)
    return world


def _schedule(world: World, service: str, **flags: bool | str) -> ScheduledPlan:
    table = world.table
    schedule: dict[str, Callable[..., ScheduledPlan | None]] = {
        "compaction": table.schedule_compaction,
        "log compaction": table.schedule_log_compaction,
        "clustering": table.schedule_clustering,
    }
    plan = schedule[service](**flags)
    assert plan is not None
    world.clock.advance(10)
    return plan


def _kinds(report: tk.DoctorReport) -> list[str]:
    return sorted(finding.kind for finding in report.findings)


def _repairs(report: tk.DoctorReport) -> list[str]:
    return [str(repair) for repair in report.repairs]


def _repaired(world: World) -> tk.DoctorReport:
    """Repair, insist that it worked, and that a second time there is nothing to repair."""
    report = world.table.doctor(fix=True)
    assert not report.failed, report
    assert report.is_healthy, report
    assert not world.table.doctor(fix=True).repaired
    return report


def _die_at_work(world: World, plan: ScheduledPlan) -> None:
    """An executor that dies when its first data file is there."""
    trial = world.copy()
    table, storage, _ = trial.client()
    table.execute(plan)
    calls = enumerate(storage.calls, start=1)
    step = next(n for n, (kind, path) in calls if kind in ("publish", "put") and not path.startswith(".hoodie"))
    trial.forget()
    table, _, threads = world.client(FaultPoint(step, Fault.DEATH_AFTER))
    with pytest.raises(ProcessDied):
        table.execute(plan)
    threads.kill()


def _find(world: World, plan: ScheduledPlan) -> Instant | None:
    return world.timeline.find(plan.instant)


@each_service
def test_a_plan_that_waits_is_information_with_its_age_its_size_and_who_scheduled_it(
    world: World, service: str
) -> None:
    plan = _schedule(world, service)
    world.clock.advance(290)
    report = world.table.doctor(fix=True)
    (finding,) = report.findings
    assert (finding.kind, finding.severity) == ("planned-service", Severity.INFO)
    for part in (f"A {service} (2 file groups", "bytes)", "5 minutes ago", f"by {SYSTEM_RUNTIME.process_name}"):
        assert part in finding.meaning
    assert {"compaction": "compact", "log compaction": "log-compact", "clustering": "cluster"}[
        service
    ] in finding.advice
    assert report.is_healthy
    assert world.table.execute(plan).outcome == "completed"
    assert world.table.doctor().findings == ()


@each_service
def test_a_plan_that_somebody_is_at_work_on_is_left_alone(world: World, service: str) -> None:
    plan = _schedule(world, service)
    _die_at_work(world, plan)
    world.clock.advance(20)
    report = world.table.doctor(fix=True)
    (finding,) = report.findings
    assert (finding.kind, finding.severity) == ("running-service", Severity.INFO)
    assert f"{SYSTEM_RUNTIME.process_name} is executing it, last heartbeat" in finding.meaning
    found = _find(world, plan)
    assert found is not None
    assert found.state is State.INFLIGHT


@each_service
def test_a_dead_attempt_is_rolled_back_and_its_immutable_plan_stays(world: World, service: str) -> None:
    plan = _schedule(world, service)
    before = world.data_files()
    _die_at_work(world, plan)
    world.clock.advance(LAPSED_S)
    report = world.table.doctor()
    assert _kinds(report) == ["stopped-service"]
    assert "the plan can be executed again" in report.findings[0].meaning
    assert _repairs(report) == [f"roll back the attempt at the plan {plan.instant}"]
    assert world.data_files() > before, "looking must not repair"
    assert _kinds(_repaired(world)) == ["planned-service"]
    assert world.data_files() == before
    found = _find(world, plan)
    assert found is not None
    assert found.state is State.REQUESTED
    assert world.table.execute(plan).outcome == "completed"
    assert world.rows() == ROWS
    assert world.table.doctor().findings == ()


def test_an_attempt_without_heartbeat_may_be_javas_until_it_has_been_silent_for_long(world: World) -> None:
    plan = _schedule(world, "compaction")
    requested = _find(world, plan)
    assert requested is not None
    world.clock.advance(2 * LAPSED_S)
    start_inflight(world.storage, world.table.config, requested)
    world.clock.advance(LAPSED_S - 1)
    report = world.table.doctor(fix=True)
    assert [(f.kind, f.repair) for f in report.findings] == [("stopped-service", None)]
    assert "if it still runs, wait" in report.findings[0].advice
    name = f"aaaa-0_0-0-0_{plan.instant}.parquet"
    create_marker(world.storage, instant=plan.instant.value, partition="sf", file_name=name, kind=MarkerKind.CREATE)
    world.storage.put(f"sf/{name}", b"a file that Java is writing")
    world.clock.advance(LAPSED_S - 1)
    assert not world.table.doctor(fix=True).repairs, "a new file is a sign of life"
    world.clock.advance(2)
    assert _kinds(_repaired(world)) == ["planned-service"]
    assert not any(str(plan.instant) in path for path in world.data_files())


@each_service
def test_a_mutable_plan_goes_with_its_dead_attempt(world: World, service: str) -> None:
    before = world.data_files()
    plan = _schedule(world, service, mutable=True)
    _die_at_work(world, plan)
    world.clock.advance(300)
    report = world.table.doctor()
    assert _kinds(report) == ["abandoned-plan"]
    assert "mutable" in report.findings[0].meaning
    assert _repairs(report) == [f"take off the timeline the plan {plan.instant}"]
    _repaired(world)
    assert _find(world, plan) is None
    assert world.data_files() == before
    assert world.table.doctor().findings == ()
    assert world.rows() == ROWS


@pytest.mark.parametrize(("delay", "wait_s"), [(None, 3600), ("10", 600)])
def test_a_mutable_plan_that_waits_is_removed_after_the_configured_delay(
    make: Callable[..., World], delay: str | None, wait_s: float
) -> None:
    more = {} if delay is None else {"hoodie.table.service.rollback.delay.minutes": delay}
    world = _fill(make(table_type="mor", options={**OPTIONS, **more}))
    plan = _schedule(world, "compaction", mutable=True)
    world.clock.advance(wait_s - 60)
    report = world.table.doctor(fix=True)
    assert _kinds(report) == ["planned-service"]
    assert f"tablekeeper cancel PATH {plan.instant}" in report.findings[0].advice
    world.clock.advance(60)
    assert _kinds(world.table.doctor()) == ["abandoned-plan"]
    _repaired(world)
    assert _find(world, plan) is None


def test_a_cancellable_plan_is_tried_again_until_it_is_too_old(world: World) -> None:
    plan = _schedule(world, "clustering", cancellable=True, cancel_after="2h")
    _die_at_work(world, plan)
    world.clock.advance(LAPSED_S)
    assert _kinds(_repaired(world)) == ["planned-service"]
    _die_at_work(world, plan)
    world.clock.advance(LAPSED_S)
    report = world.table.doctor()
    assert _kinds(report) == ["abandoned-plan"]
    assert "not executed within 7200 s" in report.findings[0].meaning
    _repaired(world)
    assert _find(world, plan) is None
    assert world.rows() == ROWS


@each_service
def test_a_plan_that_was_cancelled_is_removed_when_nobody_is_at_work_on_it(world: World, service: str) -> None:
    plan = _schedule(world, service, cancellable=True)
    before = world.data_files()
    _die_at_work(world, plan)
    assert world.table.cancel(plan, reason="the cores are needed", wait=0).outcome == "requested"
    report = world.table.doctor(fix=True)
    assert _kinds(report) == ["running-service"]
    assert "cancelled (the cores are needed)" in report.findings[0].meaning
    world.clock.advance(300)
    report = world.table.doctor()
    assert _kinds(report) == ["cancelled-plan"]
    assert "the cores are needed" in report.findings[0].meaning
    _repaired(world)
    assert _find(world, plan) is None
    assert world.data_files() == before
    assert not list(world.storage.list_files(".hoodie/.cancel"))


@pytest.mark.parametrize("is_completed", [False, True])
def test_a_cancel_request_that_nobody_waits_for_is_removed(world: World, *, is_completed: bool) -> None:
    plan = _schedule(world, "compaction", cancellable=True)
    if is_completed:
        world.table.execute(plan)
    else:
        world.table.cancel(plan)
    save_cancel_request(world.storage, CancelRequest(plan.instant, "too late", "somebody"))
    report = world.table.doctor()
    assert _kinds(report) == ["cancel-request-without-plan"]
    assert ("has completed" if is_completed else "is gone") in report.findings[0].meaning
    assert _repairs(report) == [f"delete the request to cancel {plan.instant}"]
    _repaired(world)
    assert not list(world.storage.list_files(".hoodie/.cancel"))


@pytest.mark.parametrize(
    ("service", "flags"),
    [("compaction", {}), ("log compaction", {"mutable": True}), ("clustering", {"cancellable": True})],
)
def test_wherever_an_executor_dies_the_table_is_repaired(
    make: Callable[..., World], service: str, flags: dict[str, bool]
) -> None:
    world = _fill(make(table_type="mor", metadata=True, options=OPTIONS))
    plan = _schedule(world, service, **flags)
    seen: set[str] = set()

    def check(after: World) -> None:
        after.clock.advance(LAPSED_S + 1)
        seen.update(_kinds(after.table.doctor()))
        _repaired(after)
        found = _find(after, plan)
        assert found is None or found.state is not State.INFLIGHT
        if found is not None and found.state is State.REQUESTED:
            assert after.table.execute(plan).outcome == "completed"
        assert after.table.doctor().findings == ()
        assert after.rows() == ROWS
        after.refuse_stale_metadata_table()

    assert for_every_death(world, lambda table: table.execute(plan), check) > 10
    assert ("abandoned-plan" if flags else "stopped-service") in seen
    assert "heartbeat-without-instant" in seen


@each_service
def test_wherever_a_removal_dies_it_is_finished(world: World, service: str) -> None:
    plan = _schedule(world, service, mutable=True, cancellable=True)
    before = world.data_files()
    _die_at_work(world, plan)
    # A copy of a file is as young as the copy, and a young heartbeat would keep everybody off.
    world.storage.delete(f".hoodie/.heartbeat/{plan.instant}")
    seen: set[str] = set()

    def check(after: World) -> None:
        after.clock.advance(LAPSED_S + 1)
        seen.update(_kinds(after.table.doctor()))
        _repaired(after)
        assert not after.timeline.pending
        assert _find(after, plan) is None
        assert after.data_files() == before
        assert not list(after.storage.list_files(".hoodie/.cancel"))
        assert after.rows() == ROWS

    def remove(table: tk.Table) -> None:
        remove_failed_plans(table._load_environment(), LifecycleSettings(rollback_delay_minutes=0))

    assert for_every_death(world, remove, check) > 8
    assert {"abandoned-plan", "half-done-rollback", "half-done-removal"} <= seen


def test_a_rollback_of_a_plan_that_is_being_carried_out_anew_is_left_to_its_executor(world: World) -> None:
    plan = _schedule(world, "compaction")
    _die_at_work(world, plan)
    world.clock.advance(LAPSED_S)
    files = world.data_files()
    assert schedule_rollback(world.table._load_environment(), plan.instant, approve=lambda *_: True) is not None
    world.clock.advance(LAPSED_S)
    looked = world.table.doctor()
    assert "half-done-rollback" in _kinds(looked)
    world.storage.put(f".hoodie/.heartbeat/{plan.instant}", b"another process")
    report = world.table.doctor(fix=True)
    assert _kinds(report) == ["running-rollback", "running-service"]
    assert report.is_healthy
    assert world.data_files() == files
    world.clock.advance(LAPSED_S)
    assert _kinds(_repaired(world)) == ["planned-service"]


@pytest.mark.parametrize("is_mor", [False, True])
def test_wherever_a_clean_dies_it_is_finished(make: Callable[..., World], *, is_mor: bool) -> None:
    world = _fill(make(table_type="mor" if is_mor else "cow", metadata=is_mor, options=OPTIONS))
    if is_mor:
        world.table.compact()
        world.upsert(trips(("a", "sf", 4, 4.0)))
        world.upsert(trips(("a", "sf", 5, 5.0)))
    rows = world.rows()
    seen: set[str] = set()

    def check(after: World) -> None:
        after.clock.advance(LAPSED_S + 1)
        began = any(i.action is Action.CLEAN for i in after.timeline)
        seen.update(_kinds(after.table.doctor()))
        _repaired(after)
        assert not after.timeline.pending
        if began:
            assert len(after.data_files()) < len(world.data_files())
        assert after.table.doctor().findings == ()
        assert after.rows() == rows
        after.refuse_stale_metadata_table()

    assert for_every_death(world, lambda table: table.clean(keep_commits=1), check) > 4
    assert "unfinished-clean" in seen


def test_a_clean_that_somebody_is_at_work_on_or_that_is_young_is_left_alone(world: World) -> None:
    world.table.compact()
    world.upsert(trips(("a", "sf", 4, 4.0)))
    trial = world.copy()
    table, storage, _ = trial.client()
    assert table.clean(keep_commits=1) is not None
    step = next(n for n, (_, path) in enumerate(storage.calls, start=1) if path.endswith(".clean.inflight"))
    trial.forget()
    table, _, threads = world.client(FaultPoint(step, Fault.DEATH_AFTER))
    with pytest.raises(ProcessDied):
        table.clean(keep_commits=1)
    threads.kill()
    report = world.table.doctor(fix=True)
    assert _kinds(report) == ["running-clean"]
    assert SYSTEM_RUNTIME.process_name in report.findings[0].meaning
    clean = next(i for i in world.timeline.pending if i.action is Action.CLEAN)
    world.storage.delete(f".hoodie/.heartbeat/{clean.requested_at}")
    assert _kinds(world.table.doctor(fix=True)) == ["pending-clean"]
    world.clock.advance(LAPSED_S + 1)
    assert _repairs(world.table.doctor()) == [f"finish the clean {clean.requested_at}"]
    _repaired(world)
    assert not world.timeline.pending


@pytest.mark.parametrize("service", ["compaction", "clustering"])
def test_files_that_a_completed_service_does_not_name_are_deleted(world: World, service: str) -> None:
    plan = _schedule(world, service)
    world.table.execute(plan)
    done = _find(world, plan)
    assert done is not None
    named = load_commit_metadata(world.storage, world.table.config, done).stats[0].path
    partition, _, name = named.rpartition("/")
    stray = f"{partition}/{'f' * 8}-0_{name.partition('_')[2]}"
    world.storage.put(stray, as_written_to(stray, world.storage.read(named)))
    assert len(world.rows()) > len(ROWS), "an earlier attempt's file shows its rows a second time: that is the danger"
    assert not world.table.doctor(fix=True).repairs, "a task may still be running"
    world.clock.advance(LAPSED_S + 1)
    report = world.table.doctor()
    (finding,) = report.findings
    assert (finding.kind, finding.severity, finding.paths) == ("orphan-files", Severity.ERROR, (stray,))
    assert "rows twice" in finding.meaning
    assert stray in world.data_files()
    _repaired(world)
    assert world.rows() == ROWS


def test_files_of_an_attempt_that_its_waiting_plan_would_bring_to_light_are_deleted(world: World) -> None:
    plan = _schedule(world, "clustering")
    stray = f"sf/aaaa-0_0-0-0_{plan.instant}.parquet"
    world.storage.put(stray, b"written by a process that slept through its rollback")
    assert not world.table.doctor(fix=True).repairs
    world.clock.advance(LAPSED_S + 1)
    report = world.table.doctor()
    assert _kinds(report) == ["orphan-files", "planned-service"]
    assert "when the plan completes" in report.findings[0].meaning
    _repaired(world)
    assert stray not in world.data_files()
    assert _find(world, plan) is not None


@pytest.mark.parametrize("is_cancellable", [False, True])
def test_a_plan_whose_inputs_are_gone_is_an_error(world: World, *, is_cancellable: bool) -> None:
    plan = _schedule(world, "compaction", cancellable=is_cancellable)
    gone = next(path for path in sorted(world.data_files()) if path.startswith("sf/") and ".log." in path)
    world.storage.delete(gone)
    report = world.table.doctor()
    assert _kinds(report) == ["lost-files", "plan-without-inputs", "planned-service"]
    finding = next(each for each in report.findings if each.kind == "plan-without-inputs")
    assert (finding.severity, finding.paths, finding.repair) == (Severity.ERROR, (gone,), None)
    assert ("tablekeeper cancel" if is_cancellable else "backup") in finding.advice
    if is_cancellable:
        assert world.table.cancel(plan).is_removed
        assert "plan-without-inputs" not in _kinds(world.table.doctor())


def test_a_plan_that_cannot_be_read_is_an_error_with_its_name(world: World) -> None:
    plan = _schedule(world, "clustering")
    requested = _find(world, plan)
    assert requested is not None
    path = instant_path(world.table.config, requested)
    world.storage.put(path, b"garbage")
    report = world.table.doctor(fix=True)
    found = {finding.kind: finding for finding in report.findings}
    assert found["unreadable-plan"].severity is Severity.ERROR
    assert path in found["unreadable-plan"].meaning
    assert _find(world, plan) == requested


def test_wherever_a_cancel_dies_the_plan_is_gone_in_the_end(world: World) -> None:
    plan = _schedule(world, "compaction", cancellable=True)

    def check(after: World) -> None:
        after.clock.advance(LAPSED_S + 1)
        _repaired(after)
        assert after.timeline.pending == ()
        assert not list(after.storage.list_files(".hoodie/.cancel"))

    assert for_every_death(world, lambda table: table.cancel(plan), check) > 5


def test_wherever_the_doctor_dies_another_one_ends_the_work(world: World) -> None:
    firm = _schedule(world, "compaction", partitions="city = 'sf'")
    _die_at_work(world, firm)
    loose = _schedule(world, "compaction", partitions="city = 'la'", mutable=True)
    _die_at_work(world, loose)
    save_cancel_request(world.storage, CancelRequest(RequestedTime("20200101000000000"), "long ago"))
    done = world.timeline.completed_writes[-1].requested_at
    world.storage.put(f"sf/aaaa-0_0-0-0_{done}.parquet", b"a task that ran twice")

    def repair(table: tk.Table) -> None:
        clock = table._runtime.clock
        assert isinstance(clock, FakeClock)
        clock.advance(LAPSED_S + 1)
        assert len(table.doctor(fix=True).repaired) == 4

    def check(after: World) -> None:
        after.clock.advance(LAPSED_S + 1)
        assert _kinds(_repaired(after)) == ["planned-service"]
        assert [i.requested_at for i in after.timeline.pending] == [firm.instant]
        assert after.table.execute(firm).outcome == "completed"
        assert after.table.doctor().findings == ()
        assert after.rows() == ROWS

    assert for_every_death(world, repair, check) > 15


def test_the_command_names_the_plans_that_it_will_deal_with_before_it_does(world: World) -> None:
    plan = _schedule(world, "compaction", mutable=True)
    save_cancel_request(world.storage, CancelRequest(plan.instant, "not now", "somebody"))
    path = world.table.path
    looked = _run("doctor", path)
    assert looked.exit_code == 1
    assert f"cancelled-plan: {plan.instant}" in looked.stdout
    assert "tablekeeper clean PATH" in looked.stdout
    assert f"take off the timeline the plan {plan.instant}" in _run("doctor", path, "--fix", "--dry-run").stdout
    assert _find(world, plan) is not None
    repaired = _run("doctor", path, "--fix")
    assert repaired.exit_code == 0, repaired.output
    assert _find(world, plan) is None


def _run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, list(arguments))
