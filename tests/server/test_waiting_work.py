"""What a scheduler pass sees of the operations that wait: some of everybody, the urgent and the old."""

from __future__ import annotations

import pytest

from tablekeeper.server.model import Operation, ServiceAction
from tablekeeper.server.store.protocol import JobStore, NewTable, Page, Submission, TableFilter
from tablekeeper.server.store.sql import SqlJobStore
from tests.server.conftest import StoreClock

COMPACTION = ServiceAction.COMPACTION


@pytest.fixture
def table_id(store: SqlJobStore) -> int:
    """A registered table."""
    return store.register_table(NewTable("db", "trips", "/lake/trips", owner="ann", queue="q1"))[0].table_id


def submit(store: JobStore, table_id: int, instant: str = "20261118120000000", **more: object) -> Operation:
    return store.submit(Submission(table_id, instant, COMPACTION, **more)).operation  # type: ignore[arg-type]


def test_work_shows_every_queue_the_urgent_and_the_old(store: SqlJobStore, store_clock: StoreClock) -> None:
    for queue in ("a", "b"):
        table, _ = store.register_table(NewTable("db", queue, f"/lake/{queue}", queue=queue))
        for number in range(6):
            submit(store, table.table_id, str(number), priority=9 if number == 5 else 1, deadline_in_s=60)
            store_clock.advance(1)
    load = store.load_work(4)
    shown = {(each.queue, each.priority) for each in load.queued}
    assert shown == {("a", 1), ("a", 9), ("b", 1), ("b", 9)}
    oldest = max(load.queued, key=lambda each: each.waited_s)
    assert (oldest.waited_s, oldest.deadline_in_s) == (12.0, 48.0)


def test_work_of_paused_and_quarantined_tables_waits(store: SqlJobStore, table_id: int) -> None:
    submit(store, table_id)
    store.set_paused(table_id, is_paused=True)
    assert store.load_work(10).queued == ()
    store.set_paused(table_id, is_paused=False)
    store.quarantine_table(table_id, "unreadable")
    assert store.load_work(10).queued == ()
    assert len(store.list_tables(TableFilter(is_quarantined=True), Page())) == 1
    store.quarantine_table(table_id, "")
    assert len(store.load_work(10).queued) == 1


def test_the_backlog_of_one_owner_hides_nobody_elses_work(store: SqlJobStore, table_id: int) -> None:
    for number in range(20):
        submit(store, table_id, f"202611181200000{number:02d}", priority=9)
    other = submit(store, table_id, "20261118130000000", owner="bob", priority=1)
    load = store.load_work(4)
    assert len(load.queued) < 20
    assert other.operation_id in {each.operation_id for each in load.queued}


def test_a_near_deadline_is_seen_behind_a_backlog_of_the_same_owner(store: SqlJobStore, table_id: int) -> None:
    for number in range(20):
        submit(store, table_id, f"202611181200000{number:02d}")
    for number, in_s in enumerate((-9000.0, -8000.0, 3000.0)):
        submit(store, table_id, f"202611181230000{number:02d}", deadline_in_s=in_s)
    urgent = submit(store, table_id, "20261118130000000", deadline_in_s=60.0)
    # What is very late counts as no more than late.
    shown = [store.load_work(limit).queued for limit in (2, 6)]
    assert [len(each) for each in shown] == [2, 6]
    assert urgent.operation_id in {each.operation_id for each in shown[1]}
    assert max(each.deadline_in_s or 0.0 for each in shown[1]) == 60.0


def test_of_very_many_owners_the_most_urgent_and_the_oldest_are_seen(
    store: SqlJobStore, store_clock: StoreClock, table_id: int
) -> None:
    for number in range(80):
        priority = 8 if number == 79 else 7 if number == 40 else 5
        submit(store, table_id, f"202611181200000{number:02d}", owner=f"o{number:02d}", priority=priority)
        store_clock.advance(1)
    seen = [each.owner for each in store.load_work(10).queued]
    assert len(seen) == len(set(seen)) == 34
    assert {"o00", "o31", "o40", "o79"} <= set(seen)
    assert "o78" not in seen


def test_what_waits_for_its_own_table_takes_nobodys_place(store: SqlJobStore, table_id: int) -> None:
    first, *_ = [submit(store, table_id, f"202611181200000{number:02d}") for number in range(10)]
    assert store.claim(first.operation_id, instance_id="one", lease_s=60.0) is not None
    elsewhere = store.register_table(NewTable("db", "fares", "/lake/fares", owner="ann", queue="q1"))[0].table_id
    free = submit(store, elsewhere, "20261118130000000")
    assert [each.operation_id for each in store.load_work(4).queued] == [free.operation_id]
