"""The service at work on real tables with the engine `arrow`: worker processes, SQLite, no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.app import Service, open_service
from tablekeeper.server.engines.files import load_log_tail
from tablekeeper.server.model import AttemptOutcome, Operation, ServiceAction, Status
from tablekeeper.server.policy import Policy
from tablekeeper.server.settings import Limits, ServerSettings, Timing
from tablekeeper.server.store.protocol import NewTable, OperationFilter, Page
from tests.support.table_builder import TableBuilder, rows_of, trips

QUICK = Timing(
    lease_s=30.0,
    renew_every_s=1.0,
    look_min_s=0.1,
    look_max_s=1.0,
    back_off_s=0.1,
    back_off_max_s=0.5,
    held_retry_s=0.2,
    instance_gone_s=5.0,
)
COMPACT_OFTEN = Policy(services=(ServiceAction.COMPACTION,), compact_after_commits=2)
PATIENCE_S = 120.0


def settings_in(folder: Path, timing: Timing = QUICK) -> ServerSettings:
    return ServerSettings(work_dir=folder / "service", timing=timing, limits=Limits(slots=2))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = open_service(settings_in(tmp_path), runtime=SYSTEM_RUNTIME)
    yield opened
    opened.stop()


@pytest.fixture
def table(tmp_path: Path) -> tk.Table:
    made = TableBuilder().create(str(tmp_path / "trips"), table_type="mor")
    made.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    return made


def register(service: Service, table: tk.Table, policy: Policy) -> int:
    place = table.path.removeprefix("file://")
    return service.store.register_table(NewTable("db", Path(place).name, place, policy=policy))[0].table_id


def run_until(service: Service, is_done: Callable[[], bool]) -> None:
    """Rounds of the service until it is so; the jobs are processes, so somebody has to wait for them."""
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + PATIENCE_S
    while not is_done():
        assert clock.monotonic_s() < until_s, service.store.list_operations(OperationFilter(), Page())
        service.run_once()
        clock.sleep(0.05)


def operations(service: Service, status: Status) -> list[Operation]:
    return service.store.list_operations(OperationFilter(statuses=(status,)), Page())


def test_a_table_that_is_written_to_is_compacted_by_its_policy(service: Service, table: tk.Table) -> None:
    table_id = register(service, table, COMPACT_OFTEN)
    service.run_once()
    assert operations(service, Status.PENDING) == []
    for ts in (2, 3):
        table.upsert(trips(("a", "sf", ts, float(ts))))
        service.store.notice_commit(table_id)
    run_until(service, lambda: bool(operations(service, Status.COMPLETED)))
    (done,) = operations(service, Status.COMPLETED)
    assert done.action is ServiceAction.COMPACTION
    assert done.instant in {i.requested_at.value for i in table.timeline() if i.action.value == "commit"}
    assert "3 delta commits" in done.why
    assert [len(each.logs) for each in table.files(partitions=["sf"])] == [0]
    assert rows_of(table.read(), "id", "fare") == [("a", 3.0), ("b", 1.0)]
    (attempt,) = service.store.load_attempts(done.operation_id)
    assert (attempt.outcome, attempt.result["file_groups"]) == (AttemptOutcome.COMPLETED, 1)
    assert "compaction of" in load_log_tail(attempt.log_path)
