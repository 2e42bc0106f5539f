"""The service may find a plan on the timeline before its writer asks for it: the request still says how it is run."""

from __future__ import annotations

import pytest

from tablekeeper.server.model import ASKED_BY_WRITER, RunParameters, ServiceAction
from tablekeeper.server.store.protocol import NewTable, Submission
from tablekeeper.server.store.sql import SqlJobStore

PLAN = "20261118120000000"
LARGE, SMALL = RunParameters("4g:4g", 100, {"k": "v"}), RunParameters("1g:1g")


@pytest.fixture
def table_id(store: SqlJobStore) -> int:
    table, _ = store.register_table(NewTable("db", "trips", "/lake/trips", owner="ann", queue="q1"))
    return table.table_id


def found(table_id: int) -> Submission:
    return Submission(table_id, PLAN, ServiceAction.COMPACTION, why="its plan waits on the timeline", deadline_in_s=60)


def asked(table_id: int, parameters: RunParameters = LARGE) -> Submission:
    return Submission(
        table_id,
        PLAN,
        ServiceAction.COMPACTION,
        engine="flink",
        owner="bob",
        queue="q2",
        parameters=parameters,
        why=ASKED_BY_WRITER,
    )


def test_the_first_request_says_how_a_plan_that_was_found_is_run(store: SqlJobStore, table_id: int) -> None:
    before = store.submit(found(table_id)).operation
    first = store.submit(asked(table_id))
    taken = first.operation
    assert (first.is_new, taken.operation_id, taken.deadline_ms) == (False, before.operation_id, before.deadline_ms)
    assert (taken.engine, taken.owner, taken.queue, taken.parameters) == ("flink", "bob", "q2", LARGE)
    assert store.submit(asked(table_id, SMALL)).operation == taken, "a repetition changes nothing"
    assert store.submit(found(table_id)).operation == taken


def test_a_request_changes_nothing_about_what_has_begun(store: SqlJobStore, table_id: int) -> None:
    before = store.submit(found(table_id)).operation
    claimed = store.claim(before.operation_id, instance_id="i", lease_s=60)
    assert claimed is not None
    store.start_attempt(claimed.lease, engine="arrow", log_path="log")
    begun = store.load_operation(before.operation_id)
    assert store.submit(asked(table_id)).operation == begun
