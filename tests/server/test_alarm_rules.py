"""Alarms of a lake where more waits, runs or is in quarantine than one look takes in: none flickers, none is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.loops import housekeeping
from tablekeeper.server.model import ServiceAction
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import NewTable, Page, Submission


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
