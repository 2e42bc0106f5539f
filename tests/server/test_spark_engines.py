"""The engines that bring a JVM: one worker with a warm Spark for many jobs, and spark-submit for each."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tablekeeper as tk
from tablekeeper.config.concurrency_settings import LockSettings
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.model import AttemptOutcome, Operation, RunParameters, ServiceAction, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import Limits, ServerSettings, Timing
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page, Submission
from tablekeeper.storage.local import LocalStorage
from tablekeeper.txn.locks.file_system import FileSystemLock
from tests.support.table_builder import TableBuilder, rows_of, trips

# One JVM at a time.
pytestmark = pytest.mark.xdist_group("spark")
TIMEOUT_S = 240.0


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[[str], Service]]:
    made: list[Service] = []

    def make(engine: str) -> Service:
        settings = ServerSettings(
            work_dir=tmp_path / "service",
            allow=(str(tmp_path),),
            engine=engine,
            master="local[1]",
            limits=Limits(slots=2),
            timing=Timing(look_min_s=0.5, look_max_s=1.0),
        )
        made.append(open_service(settings, runtime=SYSTEM_RUNTIME))
        return made[-1]

    yield make
    for service in made:
        service.stop()
    worker = tmp_path / "service" / "warm" / "worker.id"
    if worker.exists():
        os.kill(int(worker.read_text().split(":")[1]), signal.SIGTERM)


def a_table(place: Path) -> tk.Table:
    table = TableBuilder().create(str(place), table_type="mor")
    table.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    table.upsert(trips(("a", "sf", 2, 2.0)))
    return table


def run_until_completed(service: Service, count: int) -> list[Operation]:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while True:
        service.run_once()
        done = service.store.list_operations(OperationFilter(statuses=(Status.COMPLETED,)), Page())
        if len(done) == count:
            return done
        every = service.store.list_operations(OperationFilter(), Page())
        assert clock.monotonic_s() < until_s, [(each, logs(service, each)) for each in every]
        clock.sleep(0.1)


def logs(service: Service, operation: Operation) -> list[str]:
    return [load_log_tail(each.log_path) for each in service.store.load_attempts(operation.operation_id)]


def test_one_warm_worker_serves_many_jobs(make_service: Callable[[str], Service], tmp_path: Path) -> None:
    service = make_service("local")
    tables = [a_table(tmp_path / f"t{number}") for number in range(3)]
    policy = Policy(services=(ServiceAction.COMPACTION,), compact_after_commits=2)
    for number in range(3):
        service.store.register_table(NewTable("db", f"t{number}", str(tmp_path / f"t{number}"), policy=policy))
    done = run_until_completed(service, 3)
    assert {each.engine for each in done} == {"local"}
    for table in tables:
        assert [len(each.logs) for each in table.files()] == [0, 0]
        assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 1.0)]
    # Each attempt has its own output, although all ran in one process.
    for operation in done:
        (text,) = logs(service, operation)
        assert len(re.findall(rf"tablekeeper-{operation.operation_id}-1-\w+: completed", text)) == 1
        assert text.count(": completed") == 1
    assert len(list((tmp_path / "service" / "jobs").glob("*.minder"))) == 1


def virtual_machines(folder: Path) -> int:
    """How many processes of Java work for this folder."""
    found = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                found += words[0].endswith(b"java") and str(folder).encode() in b" ".join(words)
    return found


def test_jobs_of_a_warm_worker_that_dies_are_noticed_and_run_again(
    make_service: Callable[[str], Service], tmp_path: Path
) -> None:
    service = make_service("local")
    places = [tmp_path / f"t{number}" for number in range(2)]
    locks = [FileSystemLock(LocalStorage(place), settings=LockSettings(), runtime=SYSTEM_RUNTIME) for place in places]
    tables = [a_table(place) for place in places]
    policy = Policy(services=(ServiceAction.COMPACTION,), compact_after_commits=2)
    for place in places:
        service.store.register_table(NewTable("db", place.name, str(place), policy=policy))
    spool = tmp_path / "service" / "warm"
    with locks[0].acquire(timeout_s=5), locks[1].acquire(timeout_s=5):
        # Both are under way and wait for their tables.
        await_that(service, lambda: len(list(spool.glob("*.taken"))) == 2)
        assert virtual_machines(tmp_path) == 1
        os.kill(int((spool / "worker.id").read_text().split(":")[1]), signal.SIGKILL)
        lost = (AttemptOutcome.LOST, AttemptOutcome.LOST)
        await_that(service, lambda: first_outcomes(service) == lost)
    for operation in run_until_completed(service, 2):
        outcomes = [each.outcome for each in service.store.load_attempts(operation.operation_id)]
        assert outcomes.count(AttemptOutcome.COMPLETED) == 1
    for table in tables:
        assert [i.action.value for i in table.timeline() if i.action.value == "commit"] == ["commit"]
        assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 1.0)]


def await_that(service: Service, is_so: Callable[[], bool]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < until_s, service.store.list_operations(OperationFilter(), Page())
        service.run_once()
        clock.sleep(0.1)


def first_outcomes(service: Service) -> tuple[AttemptOutcome, ...]:
    """Of the first attempt of each operation."""
    operations = service.store.list_operations(OperationFilter(), Page())
    attempts = [service.store.load_attempts(each.operation_id) for each in operations]
    return tuple(min(each, key=lambda attempt: attempt.number).outcome for each in attempts if each)


def test_spark_submit_runs_a_job_with_what_the_request_asks_for(
    make_service: Callable[[str], Service], tmp_path: Path
) -> None:
    service = make_service("spark-submit")
    table = a_table(tmp_path / "t")
    managed, _ = service.store.register_table(NewTable("db", "t", str(tmp_path / "t"), policy=Policy(services=())))
    plan = table.schedule_compaction()
    assert plan is not None
    parameters = RunParameters("spark:512m,512m", 2, {"spark.ui.enabled": "false"})
    service.store.submit(
        Submission(managed.table_id, plan.instant.value, ServiceAction.COMPACTION, parameters=parameters)
    )
    (done,) = run_until_completed(service, 1)
    assert (done.engine, done.instant) == ("spark-submit", plan.instant.value)
    assert len(table.plans()) == 0
    assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 1.0)]
