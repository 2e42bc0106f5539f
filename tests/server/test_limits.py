"""What keeps operations from starting: limits, however many claim at the same moment, and windows of the day."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.model import ServiceAction, Status, asked_for_instant
from tablekeeper.server.policy import MINUTES_PER_DAY, DayWindow, Policy
from tablekeeper.server.settings import ServerSettings
from tablekeeper.server.store.protocol import NewTable, Submission
from tablekeeper.server.store.sql import SqlJobStore

COMPACTION = ServiceAction.COMPACTION


@pytest.mark.parametrize("limited", ["queue_limit", "owner_limit"])
def test_limits_hold_whoever_claims_at_the_same_moment(store: SqlJobStore, limited: str) -> None:
    numbers = []
    for number in range(8):
        table, _ = store.register_table(NewTable("db", f"t{number}", f"/lake/t{number}", owner="ann", queue="q"))
        submitted = store.submit(Submission(table.table_id, "20261118120000000", COMPACTION))
        numbers.append(submitted.operation.operation_id)

    def claim(number: int) -> bool:
        return store.claim(number, instance_id=f"i{number}", lease_s=60.0, **{limited: 3}) is not None

    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(claim, numbers))
    assert sum(claimed) == 3
    assert sum(store.load_work(10).running.by_owner.values()) == 3


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    # On an engine that is not there whatever starts fails at once.
    opened = open_service(ServerSettings(work_dir=tmp_path), runtime=SYSTEM_RUNTIME)
    yield opened
    opened.stop()


def test_nothing_starts_outside_of_the_windows_but_what_was_asked_for(service: Service) -> None:
    store = service.store
    minute = store.now_ms() // 60_000 % MINUTES_PER_DAY
    window = DayWindow((minute + 120) % MINUTES_PER_DAY, (minute + 180) % MINUTES_PER_DAY)
    policy = Policy(windows=(window,), engine="absent")
    table, _ = store.register_table(NewTable("db", "t", "/lake/t", policy=policy))
    # As a request of a writer, an attempt that failed, or a backlog that outlasted its window leave it: ready to start.
    waits = store.submit(Submission(table.table_id, "20261118120000000", COMPACTION, engine="absent")).operation
    service.schedule.run_once()
    held = store.load_operation(waits.operation_id)
    assert (held.status, held.run_times, held.failures) == (Status.PENDING, 0, 0)
    assert 118 * 60_000 < held.not_before_ms - store.now_ms() <= 120 * 60_000
    assert held.note == f"outside of {window} UTC"
    instant = asked_for_instant(COMPACTION, store.now_ms())
    asked = store.submit(Submission(table.table_id, instant, COMPACTION, engine="absent")).operation
    service.schedule.run_once()
    assert store.load_operation(asked.operation_id).status is Status.FAILED, "it was started, and no engine took it"


def test_the_log_says_once_what_failed_and_why(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    table, _ = service.store.register_table(NewTable("db", "t", "/lake/t"))
    made = service.store.submit(Submission(table.table_id, "20261118120000000", COMPACTION, engine="absent")).operation
    with caplog.at_level(logging.WARNING, logger="tablekeeper"):
        service.schedule.run_once()
    (told,) = caplog.messages
    assert told.startswith(f"operation {made.operation_id}, compaction of db.t, is failed: ")
    assert told.endswith("Its operator can allow more with --allow.")
