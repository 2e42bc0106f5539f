"""Texts that a database may refuse (NUL, half a character) are told or kept in all of them alike."""

from __future__ import annotations

import pytest

from tablekeeper.server.model import AttemptOutcome, ServiceAction, Signal, Status
from tablekeeper.server.store.protocol import (
    EndedAttempt,
    NewAlarm,
    NewTable,
    OperationFilter,
    Page,
    Submission,
    TableFilter,
)
from tablekeeper.server.store.sql import SqlJobStore

ODD = ["a\0b", "a\ud800b", "\u202e\U0001f600'; DROP TABLE tbl; --"]


@pytest.mark.parametrize("text", ODD)
def test_an_odd_text_matches_nothing(store: SqlJobStore, text: str) -> None:
    store.register_table(NewTable("db", "trips", "/lake/trips"))
    assert store.find_table("db", text) is None
    for wanted in (TableFilter(search=text), TableFilter(db_name=text), TableFilter(path_prefixes=(text,))):
        assert store.list_tables(wanted, Page()) == []
    assert store.list_operations(OperationFilter(queue=text), Page()) == []


@pytest.mark.parametrize("text", ODD)
def test_an_odd_message_of_an_engine_ends_its_attempt(store: SqlJobStore, text: str) -> None:
    table_id = store.register_table(NewTable("db", "trips", "/lake/trips"))[0].table_id
    operation = store.submit(Submission(table_id, "20261118120000000", ServiceAction.CLEAN)).operation
    held = store.claim(operation.operation_id, instance_id="one", lease_s=60.0)
    assert held is not None
    store.start_attempt(held.lease, engine="arrow", log_path="")
    ended = EndedAttempt(1, AttemptOutcome.FAILED, text)
    store.settle(held.lease, Signal.FAIL, note=text, ended=ended)
    shown = text.replace("\0", "\ufffd").replace("\ud800", "?")
    (known,) = store.list_operations(OperationFilter(), Page())
    assert (known.status, known.note) == (Status.FAILED, shown)
    assert store.load_attempts(operation.operation_id)[0].message == shown
    assert store.open_alarm(NewAlarm(f"failed:{text}", "failed", text, ("hook",), table_id, operation.operation_id))
    assert store.list_alarms(Page(), only_open=True)[0].text == shown
    assert store.resolve_alarm(f"failed:{text}", channels=("hook",))
