"""Alarms of a lake where more waits, runs or is in quarantine than one look takes in: none flickers, none is missed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.loops import housekeeping
from tablekeeper.server.model import AttemptOutcome, ServiceAction, Signal
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import EndedAttempt, NewInstance, NewTable, Page, Submission


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """One that looks at two of everything at a time."""
    for name in ("_SEEN", "_BATCH"):
        monkeypatch.setattr(housekeeping, name, 2)
    opened = open_service(ServerSettings(work_dir=tmp_path), runtime=SYSTEM_RUNTIME)
    yield opened
    opened.stop()


def submit_late(service: Service, number: int, *, priority: int) -> int:
    table, _ = service.store.register_table(NewTable("db", f"t{number}", f"/lake/{number}"))
    submission = Submission(table.table_id, "clean@1", ServiceAction.CLEAN, priority=priority, deadline_in_s=-60.0)
    return service.store.submit(submission).operation.operation_id


def open_alarms(service: Service) -> set[str]:
    service.alarms.run_once()
    return {alarm.key for alarm in service.store.list_alarms(Page(), only_open=True)}


def test_an_alarm_does_not_end_because_others_are_more_urgent(service: Service) -> None:
    # Looked at are the oldest and the most urgent one: what lies between them is out of sight.
    submitted = []
    for number in (1, 2, 3, 4):
        submitted.append(submit_late(service, number, priority=number))
        assert open_alarms(service) == {f"late:{each}" for each in range(1, number + 1)}
    service.store.request_cancel(submitted[1], "no more")
    assert open_alarms(service) == {"late:1", "late:3", "late:4"}
    assert len(service.store.list_alarms(Page(), only_open=False)) == 4, "each was opened once"


def test_every_table_in_quarantine_has_its_alarm(service: Service) -> None:
    for number in range(5):
        table, _ = service.store.register_table(NewTable("db", f"t{number}", f"/lake/{number}"))
        service.store.quarantine_table(table.table_id, "unreadable")
    assert open_alarms(service) == {f"table-quarantined:{number}" for number in range(1, 6)}
    service.store.quarantine_table(3, "")
    assert open_alarms(service) == {f"table-quarantined:{number}" for number in (1, 2, 4, 5)}


def test_the_alarm_of_a_failed_operation_ends_when_somebody_gives_it_up(service: Service) -> None:
    store = service.store
    operation_id = submit_late(service, 1, priority=5)
    held = store.claim(operation_id, instance_id="one", lease_s=60.0)
    assert held is not None
    store.start_attempt(held.lease, engine="arrow", log_path="")
    store.settle(held.lease, Signal.FAIL, note="broken", ended=EndedAttempt(1, AttemptOutcome.FAILED, "broken"))
    assert open_alarms(service) == {f"failed:{operation_id}"}
    assert store.request_cancel(operation_id, "seen").note == "cancelled: seen"
    assert open_alarms(service) == set()


def seen(service: Service, name: str, *, address: str, silent_s: float, is_draining: bool = False) -> NewInstance:
    """An instance on this host that was last seen so long ago."""
    instance = NewInstance(name, host="here", pid=1, address=address, slots=1)
    service.store.beat(instance, is_draining=is_draining)
    with sqlite3.connect(service.context.settings.work_dir / "service.db") as connection:
        connection.execute(
            "UPDATE instance SET seen_ms = seen_ms - ? WHERE instance_id = ?", (int(1000 * silent_s), name)
        )
    return instance


def test_an_instance_is_missed_unless_it_was_told_to_stop_or_another_took_its_place(service: Service) -> None:
    seen(service, "crashed", address="http://here:1", silent_s=120)
    seen(service, "stopped", address="http://here:2", silent_s=120, is_draining=True)
    seen(service, service.context.instance_id, address="", silent_s=120)
    assert open_alarms(service) == {"instance-gone:crashed"}
    again = seen(service, "again", address="http://here:1", silent_s=0)
    service.store.replace_instances(again)
    assert open_alarms(service) == set()
    assert "again" in {each.instance_id for each in service.store.list_instances()}
