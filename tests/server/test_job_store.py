"""The contract of a job store, on each kind of database: idempotent submits, claims, leases, looks, pruning."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import inspect

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.model import (
    AttemptOutcome,
    ForbiddenTransitionError,
    Operation,
    Role,
    RunParameters,
    ServiceAction,
    Signal,
    Status,
    TableFacts,
    unplanned_instant,
)
from tablekeeper.server.policy import DEFAULT_POLICY, Policy
from tablekeeper.server.store.protocol import (
    EndedAttempt,
    JobStore,
    LeaseLostError,
    NewAlarm,
    NewInstance,
    NewTable,
    NewToken,
    OperationFilter,
    Page,
    Submission,
    TableFilter,
    UnknownRecordError,
)
from tablekeeper.server.store.sql import SqlJobStore
from tests.server.conftest import StoreClock

COMPACTION, CLEAN = ServiceAction.COMPACTION, ServiceAction.CLEAN
LEASE_S = 60.0


@pytest.fixture
def table_id(store: SqlJobStore) -> int:
    return store.register_table(NewTable("db", "trips", "/lake/trips", owner="ann", queue="q1"))[0].table_id


def submit(store: JobStore, table_id: int, instant: str = "20261118120000000", **more: object) -> Operation:
    return store.submit(Submission(table_id, instant, COMPACTION, **more)).operation  # type: ignore[arg-type]


def claim(store: JobStore, operation: Operation, instance: str = "one") -> Operation:
    claimed = store.claim(operation.operation_id, instance_id=instance, lease_s=LEASE_S)
    assert claimed is not None
    return claimed


@pytest.fixture
def running(store: SqlJobStore, table_id: int) -> Operation:
    """An operation with its first attempt under way."""
    claimed = claim(store, submit(store, table_id))
    store.start_attempt(claimed.lease, engine="arrow", log_path="log")
    return store.load_operation(claimed.operation_id)


def test_the_tables_have_the_columns_and_unique_keys_of_rfc_43(store: SqlJobStore) -> None:
    schema = inspect(store._database.engine)
    wanted = {
        "tbl": "id db_name table_name base_path owner queue action_types priority",
        "operation": "operation_id tbl_id instant action status engine retry_on_error run_times isDeleted "
        "schedule_time create_time update_time",
    }
    for name, columns in wanted.items():
        found = [column["name"] for column in schema.get_columns(name)]
        assert found[: len(columns.split())] == columns.split()
    keys = {name: [set(key["column_names"]) for key in schema.get_unique_constraints(name)] for name in wanted}
    assert {"db_name", "table_name"} in keys["tbl"]
    assert {"tbl_id", "instant"} in keys["operation"]


def test_a_table_is_registered_once_and_registering_again_updates_it(store: SqlJobStore, table_id: int) -> None:
    store.change_policy(table_id, Policy(compact_after_commits=2))
    again, is_new = store.register_table(NewTable("db", "trips", "/lake/trips/", owner="bob"))
    assert (again.table_id, again.owner, is_new) == (table_id, "bob", False)
    assert again.policy == {"compact_after_commits": 2}, "a registration without a policy leaves the policy alone"
    assert store.find_table("db", "trips") == again == store.find_table_by_path("/lake/trips")


def test_names_are_compared_letter_by_letter(store: SqlJobStore, table_id: int) -> None:
    other, is_new = store.register_table(NewTable("db", "Trips", "/lake/Trips"))
    assert is_new
    assert other.table_id != table_id


def test_a_path_belongs_to_one_table(store: SqlJobStore, table_id: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"registered as db\.trips"):
        store.register_table(NewTable("db", "other", "/lake/trips"))


def test_an_unknown_table_or_operation_is_said_to_be_unknown(store: SqlJobStore) -> None:
    with pytest.raises(UnknownRecordError, match="99"):
        store.load_table(99)
    with pytest.raises(UnknownRecordError, match="98"):
        store.load_operation(98)
    with pytest.raises(UnknownRecordError, match="97"):
        submit(store, 97)
    assert store.find_table("no", "such") is None


def test_tables_are_listed_page_by_page_and_searched_literally(store: SqlJobStore) -> None:
    for name in ("a_1", "ab1", "A%2"):
        store.register_table(NewTable("db", name, f"/lake/{name}"))
    first = store.list_tables(TableFilter(), Page(limit=2))
    rest = store.list_tables(TableFilter(), Page(after=first[-1].table_id, limit=2))
    assert [table.table_name for table in (*first, *rest)] == ["a_1", "ab1", "A%2"]
    assert [table.table_name for table in store.list_tables(TableFilter(search="a_"), Page())] == ["a_1"]
    assert [table.table_name for table in store.list_tables(TableFilter(search="a%"), Page())] == ["A%2"]
    assert len(store.list_tables(TableFilter(search="lake/a"), Page())) == 3


def test_policies_come_from_table_database_and_default(store: SqlJobStore, table_id: int) -> None:
    for commits in (6, 7, 7):
        store.set_default_policy("db", Policy(compact_after_commits=commits, cluster_after_commits=3))
    store.change_policy(table_id, Policy(cluster_after_commits=2))
    policy = store.effective_policy(store.load_table(table_id))
    assert (policy.compact_after_commits, policy.cluster_after_commits) == (7, 2)
    assert policy.keep_commits == DEFAULT_POLICY.keep_commits


def test_submitting_again_changes_nothing(store: SqlJobStore, table_id: int) -> None:
    parameters = RunParameters("spark:4g,4g", 100, {"k": "v"})
    first = store.submit(Submission(table_id, "20261118120000000", COMPACTION, parameters=parameters))
    again = store.submit(Submission(table_id, "20261118120000000", COMPACTION, priority=9))
    assert (first.is_new, again.is_new) == (True, False)
    assert again.operation == first.operation
    assert (first.operation.owner, first.operation.queue) == ("ann", "q1")
    assert first.operation.parameters == parameters


def test_submits_at_once_make_one_operation(store: SqlJobStore, table_id: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: store.submit(Submission(table_id, "1", COMPACTION)), range(16)))
    assert len([each for each in made if each.is_new]) == 1
    assert len({each.operation.operation_id for each in made}) == 1


def test_an_operation_is_claimed_by_one_of_many(store: SqlJobStore, table_id: int) -> None:
    operation = submit(store, table_id)
    with ThreadPoolExecutor(8) as pool:
        claims = list(
            pool.map(
                lambda n: store.claim(operation.operation_id, instance_id=f"i{n}", lease_s=LEASE_S),
                range(16),
            )
        )
    assert len([each for each in claims if each is not None]) == 1


def test_two_operations_of_one_action_of_a_table_do_not_run_at_once(store: SqlJobStore, table_id: int) -> None:
    first, second = submit(store, table_id, "1"), submit(store, table_id, "2")
    clean = store.submit(Submission(table_id, "3", CLEAN)).operation
    claimed = claim(store, first)
    assert store.claim(second.operation_id, instance_id="two", lease_s=LEASE_S) is None
    assert store.claim(clean.operation_id, instance_id="two", lease_s=LEASE_S) is not None
    store.settle(claimed.lease, Signal.RETRY, note="", delay_s=1000)
    assert store.claim(second.operation_id, instance_id="two", lease_s=LEASE_S) is not None


def test_a_lease_that_lapsed_changes_nothing_any_more(
    store: SqlJobStore, store_clock: StoreClock, running: Operation
) -> None:
    store_clock.advance(LEASE_S)
    lease = running.lease
    for change in (
        lambda: store.renew(lease, lease_s=LEASE_S),
        lambda: store.record_job(lease, 1, "job"),
        lambda: store.record_plan(lease, "20261118130000000"),
        lambda: store.settle(lease, Signal.COMPLETE, note=""),
        lambda: store.start_attempt(lease, engine="arrow", log_path=""),
        lambda: store.resume_attempt(lease, 1),
    ):
        with pytest.raises(LeaseLostError):
            change()
    assert store.load_operation(running.operation_id) == running
    assert store.load_attempts(running.operation_id)[0].outcome is AttemptOutcome.RUNNING


def test_the_token_of_an_earlier_claim_is_refused(
    store: SqlJobStore, store_clock: StoreClock, running: Operation
) -> None:
    store_clock.advance(LEASE_S + 1)
    assert [each.operation_id for each in store.expire_leases(10)] == [running.operation_id]
    # The same instance, so that nothing but the token tells the two apart.
    second = claim(store, running, instance=running.instance_id)
    assert second.lease_token == running.lease_token + 1
    with pytest.raises(LeaseLostError):
        store.settle(running.lease, Signal.COMPLETE, note="")
    assert store.load_operation(running.operation_id).status is Status.CLAIMED


def test_renewing_keeps_a_lease(store: SqlJobStore, store_clock: StoreClock, running: Operation) -> None:
    for _ in range(3):
        store_clock.advance(LEASE_S * 0.9)
        store.renew(running.lease, lease_s=LEASE_S)
    assert store.expire_leases(10) == []
    assert store.settle(running.lease, Signal.COMPLETE, note="done").status is Status.COMPLETED


def test_a_vanished_attempt_is_closed_as_lost_and_counts(
    store: SqlJobStore, store_clock: StoreClock, running: Operation
) -> None:
    store_clock.advance(LEASE_S + 1)
    store.expire_leases(10)
    claimed = claim(store, running, "two")
    store.start_attempt(claimed.lease, engine="arrow", log_path="log")
    second, first = store.load_attempts(running.operation_id)
    assert (first.outcome, second.outcome, second.number) == (AttemptOutcome.LOST, AttemptOutcome.RUNNING, 2)
    after = store.load_operation(running.operation_id)
    assert (after.run_times, after.failures) == (2, 1)


def test_an_attempt_that_still_runs_is_resumed_by_another_instance(
    store: SqlJobStore, store_clock: StoreClock, running: Operation
) -> None:
    store.record_job(running.lease, 1, "pid:7")
    store_clock.advance(LEASE_S + 1)
    store.expire_leases(10)
    claimed = claim(store, running, "two")
    resumed = store.resume_attempt(claimed.lease, 1)
    assert (resumed.job_id, resumed.instance_id, resumed.outcome) == ("pid:7", "two", AttemptOutcome.RUNNING)
    assert store.load_operation(running.operation_id).run_times == 1


def test_a_failed_attempt_waits_for_its_back_off(
    store: SqlJobStore, store_clock: StoreClock, running: Operation
) -> None:
    ended = EndedAttempt(1, AttemptOutcome.FAILED, "disk full", {"files": 3})
    store.settle(running.lease, Signal.RETRY, note="disk full", delay_s=30, counts_as_failure=True, ended=ended)
    assert store.load_work(10).queued == ()
    assert store.claim(running.operation_id, instance_id="one", lease_s=LEASE_S) is None
    store_clock.advance(30)
    assert [each.operation_id for each in store.load_work(10).queued] == [running.operation_id]
    attempt = store.load_attempts(running.operation_id)[0]
    assert (attempt.message, attempt.result) == ("disk full", {"files": 3})
    assert store.load_operation(running.operation_id).failures == 1


def test_an_operation_takes_the_instant_of_its_plan(store: SqlJobStore, table_id: int) -> None:
    unplanned = submit(store, table_id, unplanned_instant(COMPACTION, "20261118120000000"))
    claimed = claim(store, unplanned)
    reported = submit(store, table_id, "20261118130000000")
    store.record_plan(claimed.lease, "20261118130000000")
    assert store.load_operation(unplanned.operation_id).instant == "20261118130000000"
    with pytest.raises(UnknownRecordError):
        store.load_operation(reported.operation_id)


def test_cancelling_ends_what_waits_and_asks_what_runs(store: SqlJobStore, table_id: int, running: Operation) -> None:
    waiting = submit(store, table_id, "20261118130000000")
    assert store.request_cancel(waiting.operation_id, "not needed").status is Status.CANCELLED
    assert store.request_cancel(running.operation_id, "too long").status is Status.RUNNING
    assert store.renew(running.lease, lease_s=LEASE_S).cancel_reason == "too long"
    with pytest.raises(ForbiddenTransitionError):
        store.request_cancel(waiting.operation_id, "again")


def test_a_plan_that_was_taken_back_and_submitted_again_waits_again(store: SqlJobStore, table_id: int) -> None:
    operation = submit(store, table_id)
    (removed,) = store.remove(table_id, [operation.instant, "20990101000000000"])
    assert (removed.status, removed.is_deleted) == (Status.CANCELLED, True)
    assert store.list_operations(OperationFilter(), Page()) == []
    again = store.submit(Submission(table_id, operation.instant, COMPACTION))
    assert again.is_new
    assert (again.operation.status, again.operation.is_deleted) == (Status.PENDING, False)


def test_what_completes_although_it_was_taken_back_belongs_to_the_history(
    store: SqlJobStore, running: Operation
) -> None:
    store.remove(running.table_id, [running.instant])
    assert store.list_operations(OperationFilter(), Page()) == []
    store.settle(running.lease, Signal.COMPLETE, note="it had completed when it was asked to stop")
    (listed,) = store.list_operations(OperationFilter(), Page())
    assert (listed.status, listed.is_deleted) == (Status.COMPLETED, False)


def test_a_failed_plan_that_was_taken_back_is_submitted_again_as_the_new_request_says(
    store: SqlJobStore, running: Operation
) -> None:
    store.settle(running.lease, Signal.FAIL, note="no such engine", counts_as_failure=True)
    store.remove(running.table_id, [running.instant])
    again = store.submit(Submission(running.table_id, running.instant, COMPACTION, engine="arrow", queue="q2"))
    assert again.is_new
    assert (again.operation.status, again.operation.is_deleted) == (Status.PENDING, False)
    assert (again.operation.engine, again.operation.queue, again.operation.failures) == ("arrow", "q2", 0)


def test_submitting_what_has_completed_does_not_run_it_again(store: SqlJobStore, running: Operation) -> None:
    store.settle(running.lease, Signal.COMPLETE, note="")
    again = store.submit(Submission(running.table_id, running.instant, COMPACTION))
    assert (again.is_new, again.operation.status) == (False, Status.COMPLETED)


def test_a_failed_operation_is_revived_with_its_failures_forgotten(store: SqlJobStore, running: Operation) -> None:
    store.settle(running.lease, Signal.FAIL, note="broken", counts_as_failure=True)
    revived = store.revive(running.operation_id, note="by ann")
    assert (revived.status, revived.failures) == (Status.PENDING, 0)
    store.settle_waiting(running.operation_id, Signal.COMPLETE, note="")
    with pytest.raises(ForbiddenTransitionError):
        store.revive(running.operation_id, note="again")


def test_what_nobody_holds_is_settled_by_the_timeline(store: SqlJobStore, table_id: int, running: Operation) -> None:
    waiting = submit(store, table_id, "20261118130000000")
    assert store.settle_waiting(waiting.operation_id, Signal.COMPLETE, note="executed elsewhere")
    assert not store.settle_waiting(running.operation_id, Signal.COMPLETE, note="executed elsewhere")
    assert store.load_operation(running.operation_id).status is Status.RUNNING


def test_an_attempt_whose_holder_is_gone_ends_as_the_timeline_says(
    store: SqlJobStore, store_clock: StoreClock, running: Operation
) -> None:
    store_clock.advance(LEASE_S + 1)
    store.expire_leases(10)
    assert store.settle_waiting(running.operation_id, Signal.COMPLETE, note="executed")
    (attempt,) = store.load_attempts(running.operation_id)
    assert (attempt.outcome, attempt.message) == (AttemptOutcome.COMPLETED, "executed")


def test_what_runs_is_counted_by_queue_and_owner(store: SqlJobStore, running: Operation) -> None:
    load = store.load_work(10)
    assert load.running.by_queue == {"q1": 1}
    assert load.running.by_owner == {"ann": 1}
    assert load.running.busy == {(running.table_id, COMPACTION)}
    assert [(each.status, each.operations) for each in store.queue_depths()] == [(Status.RUNNING, 1)]


def test_a_table_is_looked_at_by_one_instance(store: SqlJobStore, store_clock: StoreClock, table_id: int) -> None:
    assert [each.table_id for each in store.claim_looks(10, hold_s=60)] == [table_id]
    store.notice_commit(table_id)
    assert store.claim_looks(10, hold_s=60) == [], "held"
    store_clock.advance(60)
    assert len(store.claim_looks(10, hold_s=60)) == 1, "its holder is gone"


def test_a_commit_during_a_look_causes_another(store: SqlJobStore, store_clock: StoreClock, table_id: int) -> None:
    facts = TableFacts("20261118120000000", commits_behind=3, behind_since_ms=5)
    store.claim_looks(10, hold_s=60)
    store.finish_look(table_id, facts, next_in_s=600, is_idle=True)
    assert store.claim_looks(10, hold_s=60) == []
    store_clock.advance(600)
    store.claim_looks(10, hold_s=60)
    store.notice_commit(table_id)
    store.finish_look(table_id, facts, next_in_s=600, is_idle=True)
    (looked,) = store.claim_looks(10, hold_s=60)
    assert looked.facts == facts


def test_looks_count_what_was_idle_and_what_failed(store: SqlJobStore, table_id: int) -> None:
    store.finish_look(table_id, TableFacts(), next_in_s=1, is_idle=True)
    store.finish_look(table_id, None, next_in_s=1, is_idle=True)
    assert (store.load_table(table_id).idle_looks, store.load_table(table_id).failed_looks) == (2, 1)
    store.finish_look(table_id, TableFacts(), next_in_s=1, is_idle=False)
    assert (store.load_table(table_id).idle_looks, store.load_table(table_id).failed_looks) == (0, 0)


def test_finished_operations_are_pruned_by_age_and_active_ones_never(
    store: SqlJobStore, store_clock: StoreClock, table_id: int, running: Operation
) -> None:
    waiting = submit(store, table_id, "20261118130000000")
    store.settle(running.lease, Signal.COMPLETE, note="")
    store.add_event("started", "up", table_id=table_id)
    assert store.prune(keep_s=100, limit=10) == 0
    store_clock.advance(101)
    assert store.prune(keep_s=100, limit=10) == 2
    assert [each.operation_id for each in store.list_operations(OperationFilter(), Page())] == [waiting.operation_id]
    assert store.load_attempts(running.operation_id) == []
    assert store.list_events(Page()) == []


def test_operations_are_listed_newest_first_by_page_and_filter(store: SqlJobStore, table_id: int) -> None:
    made = [submit(store, table_id, str(number)).operation_id for number in range(5)]
    first = store.list_operations(OperationFilter(table_id=table_id), Page(limit=3))
    rest = store.list_operations(OperationFilter(table_id=table_id), Page(after=first[-1].operation_id, limit=3))
    assert [each.operation_id for each in (*first, *rest)] == made[::-1]
    assert store.list_operations(OperationFilter(statuses=(Status.RUNNING,)), Page()) == []
    assert store.list_operations(OperationFilter(actions=(CLEAN,)), Page()) == []
    assert len(store.list_active(table_id)) == 5
    assert store.clear(table_id) == 5


def test_a_table_with_work_under_way_is_not_removed(store: SqlJobStore, running: Operation) -> None:
    with pytest.raises(InvalidRequestError, match="running operations"):
        store.remove_table(running.table_id)
    store.settle(running.lease, Signal.COMPLETE, note="")
    store.remove_table(running.table_id)
    assert store.find_table("db", "trips") is None


def test_an_alarm_is_delivered_once_a_channel_and_resolved_once(store: SqlJobStore, store_clock: StoreClock) -> None:
    assert store.open_alarm(NewAlarm("failed:1", "failed", "it failed", ["hook", "mail"]))
    assert not store.open_alarm(NewAlarm("failed:1", "failed", "again", ["hook", "mail"]))
    first, second = store.claim_deliveries(10, hold_s=60)
    assert (first.channel, second.channel, first.alarm.text) == ("hook", "mail", "it failed")
    assert store.claim_deliveries(10, hold_s=60) == []
    store.finish_delivery(first, retry_in_s=None)
    store.finish_delivery(second, retry_in_s=30, note="refused")
    assert store.resolve_alarm("failed:1", channels=["hook"])
    assert not store.resolve_alarm("failed:1", channels=["hook"])
    store_clock.advance(30)
    mail, resolved = store.claim_deliveries(10, hold_s=60)
    assert (mail.channel, mail.tries, resolved.is_resolved) == ("mail", 1, True)
    assert store.list_alarms(Page(), only_open=True) == []
    assert store.open_alarm(NewAlarm("failed:1", "failed", "once more", []))


def test_a_delivery_whose_holder_died_is_claimed_again_and_the_dead_one_is_fenced(
    store: SqlJobStore, store_clock: StoreClock
) -> None:
    store.open_alarm(NewAlarm("k", "failed", "x", ["hook"]))
    (lost,) = store.claim_deliveries(10, hold_s=60)
    store_clock.advance(60)
    (held,) = store.claim_deliveries(10, hold_s=60)
    store.finish_delivery(lost, retry_in_s=None)
    store_clock.advance(60)
    assert len(store.claim_deliveries(10, hold_s=60)) == 1, "the late report of the first holder changed nothing"
    assert held.token == lost.token + 1


def test_tokens_are_found_by_digest_until_they_are_revoked(store: SqlJobStore) -> None:
    assert not store.has_tokens()
    made = store.add_token(NewToken("ci", "d" * 64, Role.WRITER, databases=("db",), path_prefixes=("/lake",)))
    assert store.find_token("d" * 64) == made
    assert (made.role, made.databases, made.path_prefixes) == (Role.WRITER, ("db",), ("/lake",))
    store.revoke_token(made.token_id)
    assert store.find_token("d" * 64) is None
    assert not store.has_tokens()
    assert len(store.list_tokens()) == 1


def test_instances_are_seen_with_what_they_hold(
    store: SqlJobStore, store_clock: StoreClock, running: Operation
) -> None:
    store.beat(NewInstance("one", "host", 7, "http://host", 4))
    store_clock.advance(5)
    store.beat(NewInstance("one", "host", 7, "http://host", 4), is_draining=True)
    (seen,) = store.list_instances()
    assert (seen.running, seen.is_draining, seen.seen_ms - seen.started_ms) == (1, True, 5000)
    store.remove_instance("one")
    assert store.list_instances() == []


def test_an_attempt_ends_and_its_alarm_opens_with_the_operation_or_not_at_all(
    store: SqlJobStore, store_clock: StoreClock, running: Operation
) -> None:
    """An instance that dies leaves an operation that runs, never one that completed and is tried again."""
    ended = EndedAttempt(1, AttemptOutcome.FAILED, "disk full")
    alarm = NewAlarm(f"failed:{running.operation_id}", "failed", "disk full", ["hook"])
    store_clock.advance(LEASE_S + 1)
    with pytest.raises(LeaseLostError):
        store.settle(running.lease, Signal.FAIL, note="disk full", ended=ended, alarm=alarm)
    assert store.load_attempts(running.operation_id)[0].outcome is AttemptOutcome.RUNNING
    assert store.list_alarms(Page(), only_open=True) == []
    store.expire_leases(10)
    again = claim(store, running)
    store.resume_attempt(again.lease, 1)
    store.settle(again.lease, Signal.FAIL, note="disk full", ended=ended, alarm=alarm)
    assert store.load_attempts(running.operation_id)[0].outcome is AttemptOutcome.FAILED
    assert [each.key for each in store.list_alarms(Page(), only_open=True)] == [alarm.key]
    assert len(store.claim_deliveries(10, hold_s=1.0)) == 1
