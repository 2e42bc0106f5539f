"""What the service keeps is bounded: the old goes, and the newest stays."""

from __future__ import annotations

from tablekeeper.server.model import (
    AttemptOutcome,
    ServiceAction,
    Signal,
)
from tablekeeper.server.store.protocol import (
    EndedAttempt,
    NewInstance,
    NewTable,
    Submission,
)
from tablekeeper.server.store.sql import SqlJobStore
from tests.server.conftest import StoreClock


def test_old_attempts_and_instances_go_and_the_newest_stay(store: SqlJobStore, store_clock: StoreClock) -> None:
    table_id = store.register_table(NewTable("db", "trips", "/lake/trips"))[0].table_id
    operation = store.submit(Submission(table_id, "20261118120000000", ServiceAction.COMPACTION)).operation
    for number in range(1, 54):
        held = store.claim(operation.operation_id, instance_id="one", lease_s=60.0)
        assert held is not None
        store.start_attempt(held.lease, engine="arrow", log_path="")
        ended = EndedAttempt(number, AttemptOutcome.ELSEWHERE)
        store.settle(held.lease, Signal.RETRY, note="held elsewhere", ended=ended)
    store.beat(NewInstance("old", "h", 1, "", 2))
    store_clock.advance(3600)
    store.beat(NewInstance("new", "h", 1, "", 2))
    assert store.prune(keep_s=1800, limit=100) == 3 + 1
    assert [each.number for each in store.load_attempts(operation.operation_id)] == list(range(53, 3, -1))
    assert [each.instance_id for each in store.list_instances()] == ["new"]
    assert store.prune(keep_s=1800, limit=100) == 0
