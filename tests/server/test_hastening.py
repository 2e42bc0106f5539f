"""What waits starts when its table's policy, its priority, or somebody who asks for it says so; on each database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.server.model import (
    Operation,
    ServiceAction,
    Signal,
    Status,
    TableFacts,
    is_asked_for,
    unplanned_instant,
)
from tablekeeper.server.policy import Policy
from tablekeeper.server.store.protocol import NewTable, Submission
from tablekeeper.server.store.sql import SqlJobStore
from tests.server.conftest import StoreClock
from tests.support.rest import register

COMPACTION = ServiceAction.COMPACTION
UNTIL_THE_WINDOW_S = 5000.0
TRIPS = NewTable("db", "trips", "/lake/trips")


@pytest.fixture
def table_id(store: SqlJobStore) -> int:
    return store.register_table(TRIPS)[0].table_id


@pytest.fixture
def waiting(store: SqlJobStore, table_id: int) -> Operation:
    """An operation that waits for a window of the day."""
    return wait_for_window(store, table_id)


def wait_for_window(store: SqlJobStore, table_id: int) -> Operation:
    instant = unplanned_instant(COMPACTION, "20261118120000000")
    note = "outside of 22:00-06:00 UTC"
    submission = Submission(table_id, instant, COMPACTION, delay_s=UNTIL_THE_WINDOW_S, why="due", note=note)
    submitted = store.submit(submission).operation
    assert submitted.note == note
    return submitted


def can_start(store: SqlJobStore, operation: Operation) -> bool:
    return operation.operation_id in [each.operation_id for each in store.load_work(10).queued]


def change_table_policy(store: SqlJobStore, table_id: int) -> None:
    store.change_policy(table_id, Policy())


def change_database_policy(store: SqlJobStore, table_id: int) -> None:
    store.set_default_policy("db", Policy(compact_after_commits=2))


def register_with_policy(store: SqlJobStore, table_id: int) -> None:
    store.register_table(NewTable("db", "trips", "/lake/trips", policy=Policy()))


@pytest.mark.parametrize("change", [change_table_policy, change_database_policy, register_with_policy])
def test_another_policy_ends_the_wait_for_a_window_of_the_old_one(
    store: SqlJobStore, table_id: int, waiting: Operation, change: Callable[[SqlJobStore, int], None]
) -> None:
    other, _ = store.register_table(NewTable("other", "trips", "/lake/other"))
    of_other = wait_for_window(store, other.table_id)
    assert not can_start(store, waiting)
    change(store, table_id)
    assert can_start(store, waiting)
    assert not can_start(store, of_other)


def test_another_policy_leaves_the_pause_after_a_failure_alone(store: SqlJobStore, table_id: int) -> None:
    failed = store.submit(Submission(table_id, "20261118120000000", COMPACTION)).operation
    claimed = store.claim(failed.operation_id, instance_id="one", lease_s=60.0)
    assert claimed is not None
    store.settle(claimed.lease, Signal.RETRY, note="broken", delay_s=600.0, counts_as_failure=True)
    change_table_policy(store, table_id)
    assert not can_start(store, failed)
    revived = store.revive(failed.operation_id, note="by ann")
    assert (revived.status, revived.failures) == (Status.PENDING, 0)
    assert can_start(store, failed), "somebody wants it now"


def test_tables_of_a_database_are_looked_at_soon_after_its_policy_changed(
    store: SqlJobStore, store_clock: StoreClock, table_id: int
) -> None:
    store.claim_looks(10, hold_s=0.0)
    quiet = store.load_table(table_id)
    store.finish_look(table_id, quiet.facts, next_in_s=3600.0, is_idle=True)
    store_clock.advance(300)
    assert store.claim_looks(10, hold_s=0.0) == []
    change_database_policy(store, table_id)
    store_clock.advance(300)
    assert [each.table_id for each in store.claim_looks(10, hold_s=0.0)] == [table_id]


def test_what_waits_follows_the_priority_queue_and_owner_of_its_table(
    store: SqlJobStore, table_id: int, waiting: Operation
) -> None:
    named = store.submit(Submission(table_id, "20261118120000000", COMPACTION, queue="fast", owner="ann")).operation
    store.register_table(NewTable("db", "trips", "/lake/trips", priority=9, queue="slow", owner="bob"))
    followed, kept = (store.load_operation(each.operation_id) for each in (waiting, named))
    assert (followed.priority, followed.queue, followed.owner) == (9, "slow", "bob")
    assert (kept.priority, kept.queue, kept.owner) == (9, "fast", "ann")


def test_what_is_asked_for_by_hand_waits_for_no_window(
    client: TestClient, jobs: SqlJobStore, lake: Path, table: Table
) -> None:
    number = register(client, lake)["id"]
    waiting = wait_for_window(jobs, number)
    asked = client.post("/v1/tables/db/trips/run/compaction").json()
    assert asked["operation_id"] == waiting.operation_id
    assert is_asked_for(asked["instant"])
    assert can_start(jobs, waiting)
    tried = client.post(f"/v1/operations/{waiting.operation_id}/retry").json()
    assert tried["instant"] == asked["instant"]
    assert [each.operation_id for each in jobs.list_active(number)] == [waiting.operation_id]


@pytest.mark.parametrize("service", ["compaction", "log_compaction"])
def test_merging_logs_is_refused_where_the_last_look_found_a_table_without_logs(
    client: TestClient, jobs: SqlJobStore, lake: Path, table: Table, service: str
) -> None:
    number = register(client, lake)["id"]
    statuses = []
    for facts in (TableFacts("20261118120000000"), TableFacts("20261118120000000", read_amplification=1.0)):
        jobs.finish_look(number, facts, next_in_s=60.0, is_idle=True)
        answer = client.post(f"/v1/tables/db/trips/run/{service}")
        statuses.append((answer.status_code, answer.json().get("error", {}).get("code")))
    assert statuses == [(400, "unfit_service"), (200, None)]
