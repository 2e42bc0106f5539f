"""Jobs of the engine `spark-submit` on a real cluster, while the instance that started them is killed.

An instance that takes an operation over goes on with its job: the cluster sees one program, the timeline one
compaction.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tablekeeper as tk
from tablekeeper.config.concurrency_settings import LockSettings
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.model import AttemptOutcome, Operation, RunParameters, ServiceAction, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page, Submission
from tablekeeper.server.store.sql import SqlJobStore, open_store
from tablekeeper.storage.local import LocalStorage
from tablekeeper.txn.locks.file_system import FileSystemLock
from tests.support.spark_cluster import SparkCluster
from tests.support.table_builder import TableBuilder, rows_of, trips

TIMEOUT_S = 250.0


class Instances:
    """Instances of the service on one working folder and database, whose jobs go to the cluster."""

    def __init__(self, folder: Path, cluster: SparkCluster) -> None:
        self.folder = folder
        self._cluster = cluster
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'service.db'}"

    def start(self) -> subprocess.Popen[bytes]:
        number = len(self._processes)
        with (self.folder / f"instance-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.service_process",
                    str(self.folder),
                    self.url,
                    "spark-submit",
                    self._cluster.url,
                ],
                stdout=log,
                stderr=log,
                env=dict(self._cluster.environment),
            )
        self._processes.append(process)
        return process

    def log(self, number: int) -> str:
        return (self.folder / f"instance-{number}.log").read_text()

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            process.wait(TIMEOUT_S)


@pytest.fixture
def instances(tmp_path: Path, cluster: SparkCluster) -> Iterator[Instances]:
    folder = tmp_path / "service"
    folder.mkdir()
    made = Instances(folder, cluster)
    yield made
    made.close()


@pytest.fixture
def store(instances: Instances) -> Iterator[SqlJobStore]:
    opened = open_store(instances.url)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def table(tmp_path: Path) -> tk.Table:
    """A table with a plan that waits."""
    made = TableBuilder().create(str(tmp_path / "t"), table_type="mor")
    made.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    made.upsert(trips(("a", "sf", 2, 2.0)))
    made.schedule_compaction()
    return made


def submit(store: SqlJobStore, table: tk.Table, place: Path) -> Operation:
    managed, _ = store.register_table(NewTable("db", "t", str(place), policy=Policy(services=())))
    (plan,) = table.plans()
    parameters = RunParameters("spark:512m,512m", 2, {"spark.ui.enabled": "false"})
    return store.submit(
        Submission(managed.table_id, plan.instant.value, ServiceAction.COMPACTION, parameters=parameters)
    ).operation


def await_that(is_so: Callable[[], bool], told: Callable[[], object]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < until_s, told()
        clock.sleep(0.1)


def test_a_job_outlives_its_instance_and_is_adopted_by_the_next_one(
    cluster: SparkCluster, instances: Instances, store: SqlJobStore, table: tk.Table, tmp_path: Path
) -> None:
    before = {each.application_id for each in cluster.applications()}

    def programs() -> list[str]:
        return [each.state for each in cluster.applications() if each.application_id not in before]

    operation = submit(store, table, tmp_path / "t")
    lock = FileSystemLock(LocalStorage(tmp_path / "t"), settings=LockSettings(), runtime=SYSTEM_RUNTIME)
    with lock.acquire(timeout_s=10):
        # The job has its executors, and waits for the table.
        first = instances.start()
        await_that(lambda: programs() == ["RUNNING"], lambda: instances.log(0))
        first.kill()
        first.wait()
        instances.start()
        await_that(lambda: "attempt 1 adopted" in instances.log(1), lambda: instances.log(1))
    log_path = store.load_attempts(operation.operation_id)[0].log_path
    # Its output can be read meanwhile.
    assert "tablekeeper" in load_log_tail(log_path)

    def is_completed() -> bool:
        return bool(store.list_operations(OperationFilter(statuses=(Status.COMPLETED,)), Page()))

    await_that(is_completed, lambda: instances.log(1) + load_log_tail(log_path))
    await_that(lambda: programs() == ["FINISHED"], programs)
    (attempt,) = store.load_attempts(operation.operation_id)
    assert (attempt.number, attempt.outcome) == (1, AttemptOutcome.COMPLETED)
    assert [i.requested_at.value for i in table.timeline() if i.action.value == "commit"] == [operation.instant]
    assert all(instant.is_completed for instant in table.timeline())
    assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 1.0)]
