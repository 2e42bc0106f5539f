"""Instances that die or sleep with work under way: real processes on one database, killed and stopped by signals.

Nothing is lost, nothing is executed twice, and an instance that wakes up late is fenced.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.model import AttemptOutcome, Operation, ServiceAction, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page
from tablekeeper.server.store.sql import SqlJobStore, open_store
from tests.support.freezing import freeze, thaw
from tests.support.table_builder import TableBuilder, rows_of, trips

TABLES = 4
TIMEOUT_S = 200.0
POLICY = Policy(
    services=(ServiceAction.COMPACTION,),
    compact_after_commits=2,
    max_failures=20,
    # A worker that was killed holds its plan for seconds, not for minutes.
    options={
        "hoodie.client.heartbeat.interval_in_ms": "1000",
        "hoodie.client.heartbeat.tolerable.misses": "6",
    },
)


class Crew:
    """Instances of the service on one working folder and database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *, lease_s: float = 4.0) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        arguments = [str(self.folder), self.url, "arrow", "", str(lease_s)]
        with (self.folder / f"instance-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.service_process", *arguments],
                stdout=log,
                stderr=log,
                cwd=Path(__file__).resolve().parents[2],
            )
        self.processes.append(process)
        return process

    def log(self, number: int) -> str:
        return (self.folder / f"instance-{number}.log").read_text()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            process.wait(TIMEOUT_S)


@pytest.fixture
def crew(tmp_path: Path, database_url: str) -> Iterator[Crew]:
    folder = tmp_path / "service"
    folder.mkdir()
    made = Crew(folder, database_url)
    yield made
    made.close()


@pytest.fixture
def store(crew: Crew) -> Iterator[SqlJobStore]:
    opened = open_store(crew.url)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def tables(store: SqlJobStore, tmp_path: Path) -> list[tk.Table]:
    """Registered tables on each of which a compaction is due."""
    made = []
    for number in range(TABLES):
        place = str(tmp_path / f"t{number}")
        table = TableBuilder().create(place, table_type="mor", options=dict(POLICY.options))
        table.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
        for ts in (2, 3):
            table.upsert(trips(("a", "sf", ts, float(ts))))
        store.register_table(NewTable("db", f"t{number}", place, policy=POLICY))
        made.append(table)
    return made


def await_that(is_so: Callable[[], bool], told: Callable[[], object]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < until_s, told()
        clock.sleep(0.1)


def in_status(store: SqlJobStore, *statuses: Status) -> list[Operation]:
    return store.list_operations(OperationFilter(statuses=statuses), Page())


def at_work(store: SqlJobStore) -> list[int]:
    """Operations whose jobs are known by their ids."""
    running = in_status(store, Status.RUNNING)
    return [each.operation_id for each in running if store.load_attempts(each.operation_id)[0].job_id]


def check_tables(tables: list[tk.Table]) -> None:
    """Each was compacted once, and nothing is left on the way."""
    for table in tables:
        assert [i.action.value for i in table.timeline() if i.action.value in ("commit", "compaction")] == ["commit"]
        assert all(instant.is_completed for instant in table.timeline())
        assert rows_of(table.read(), "id", "fare") == [("a", 3.0), ("b", 1.0)]


def test_another_instance_finishes_what_a_killed_one_had_begun(
    crew: Crew, store: SqlJobStore, tables: list[tk.Table]
) -> None:
    first = crew.start()
    await_that(lambda: bool(at_work(store)), lambda: crew.log(0))
    begun = at_work(store)
    first.kill()
    first.wait()
    crew.start()
    await_that(lambda: len(in_status(store, Status.COMPLETED)) == TABLES, lambda: crew.log(1))
    assert in_status(store, Status.PENDING, Status.CLAIMED, Status.RUNNING, Status.FAILED, Status.QUARANTINED) == []
    check_tables(tables)
    for operation in in_status(store, Status.COMPLETED):
        assert store.load_attempts(operation.operation_id)[0].outcome is AttemptOutcome.COMPLETED
    for operation_id in begun:
        (attempt,) = store.load_attempts(operation_id)
        assert attempt.number == 1, "a job that outlived its instance is gone on with, not started again"


# A process that is stopped in the middle of a write keeps a SQLite file from everybody: servers tell such clients off.
@pytest.mark.parametrize("kind", ["postgresql"])
def test_an_instance_that_sleeps_through_its_leases_is_fenced_when_it_wakes(
    crew: Crew, store: SqlJobStore, tables: list[tk.Table]
) -> None:
    sleeper = crew.start()
    await_that(lambda: bool(in_status(store, Status.RUNNING)), lambda: crew.log(0))
    freeze(sleeper)
    crew.start()
    await_that(lambda: len(in_status(store, Status.COMPLETED)) == TABLES, lambda: crew.log(1))
    before = {each.operation_id: each for each in in_status(store, Status.COMPLETED)}
    thaw(sleeper)
    await_that(lambda: "lost its lease" in crew.log(0), lambda: crew.log(0))
    assert {each.operation_id: each for each in in_status(store, Status.COMPLETED)} == before
    check_tables(tables)


def test_an_instance_that_is_asked_to_stop_finishes_its_work_first(
    crew: Crew, store: SqlJobStore, tables: list[tk.Table]
) -> None:
    instance = crew.start(lease_s=60.0)
    await_that(lambda: bool(in_status(store, Status.RUNNING)), lambda: crew.log(0))
    instance.terminate()
    assert instance.wait(TIMEOUT_S) == 0
    assert in_status(store, Status.CLAIMED, Status.RUNNING) == []
    assert len(in_status(store, Status.COMPLETED)) >= 1
    assert store.list_instances() == []
    assert "is down" in crew.log(0)
