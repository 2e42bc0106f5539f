"""Hosted but self-executing: a writer hands its plans over to the service, and executes them itself all the same.

The second one finds a plan held or done, and says so: nothing is executed twice, and nobody reports an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.client.http import ServiceClient
from tablekeeper.config.hosting_settings import hosted_writer_options
from tablekeeper.errors import PlanHeldError
from tablekeeper.model import Action
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.protocol import Job
from tablekeeper.server.engines.worker import execute_job, open_table
from tablekeeper.server.model import AttemptOutcome, ServiceAction
from tablekeeper.table.automatic_services import InlineService, run_inline
from tests.server.conftest import SCHEMA
from tests.support.served import Served, running_service

TABLES = 4
ROUNDS = 6
TIMEOUT_S = 90.0
# What is due after each commit is planned by the writer, and handed over.
PLANS = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}


def make_table(folder: Path, name: str) -> tk.Table:
    return tk.Table.create(folder / name, name=name, schema=SCHEMA, key="id", ordering="ts", engine="local")


def rows(version: int) -> pa.Table:
    return pa.table({"id": ["a", "b"], "ts": [version, version]}, schema=SCHEMA)


def assert_executed_once(table: tk.Table, instant: str, *, version: int) -> None:
    timeline = table.timeline()
    done = [each for each in timeline if each.requested_at.value == instant and each.is_completed]
    assert [each.action for each in done] == [Action.COMMIT]
    # Nobody took over what another had begun, and nobody made a second plan for the same logs.
    assert [each.action for each in timeline if each.action is Action.ROLLBACK] == []
    assert list(table.plans()) == []
    assert table.read().select(["id", "ts"]).sort_by("id").to_pydict() == rows(version).to_pydict()


def told_of_commits(client: ServiceClient, lake: Path) -> list[Mapping[str, object]]:
    """The operations, after the service was told of the commits as by a writer's hook: it looks at once."""
    for number in range(TABLES):
        commit = {"commitTime": "", "tableName": f"t{number}", "basePath": str(lake / f"t{number}")}
        client.post("/v1/hoodie/callback", commit)
    operations: list[Mapping[str, object]] = client.get("/v1/operations")["operations"]
    return operations


def is_over(operations: Sequence[Mapping[str, object]]) -> bool:
    return all(each["status"] not in ("pending", "claimed", "running") for each in operations)


def await_that(served: Served, is_so: Callable[[], bool], *, every_s: float = 0.02) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < until_s, served.log.read_text()[-3000:]
        clock.sleep(every_s)


def test_plans_that_writer_and_service_both_execute_are_completed_once(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    tables = [make_table(lake, f"t{number}") for number in range(TABLES)]
    with running_service(tmp_path / "service", allow=lake) as served:
        writers = [
            tk.Table.open(each.path, engine="local", options={**hosted_writer_options(served.url), **PLANS})
            for each in tables
        ]
        client = served.client()
        for writer in writers:
            writer.upsert(rows(1))
        # Of this one the service knows the plan and leaves it to the writer, so that each of the two executes some.
        (left,) = [each for each in client.get("/v1/tables")["tables"] if each["base_path"].endswith(f"t{TABLES - 1}")]
        left_path = f"/v1/tables/{left['db_name']}/{left['table_name']}"
        client.post(f"{left_path}/pause", {})
        plans = []
        for writer in writers:
            result = writer.upsert(rows(2))
            assert result.notes == ()
            plans.append(result.services[-1].plans[0])
        await_that(served, lambda: bool(client.get("/v1/operations?status=completed")["operations"]))
        # The service works from the front of its queue, the writer from the other end, until they have met and passed.
        executed = [done for writer in reversed(writers) if (done := writer.compact()) is not None]
        client.post(f"{left_path}/resume", {})
        await_that(served, lambda: is_over(told_of_commits(client, lake)), every_s=0.3)
        operations = client.get("/v1/operations")["operations"]
        attempts = [
            attempt
            for each in operations
            for attempt in client.get(f"/v1/operations/{each['operation_id']}")["attempts"]
        ]
        assert client.get("/v1/alarms")["alarms"] == []
    for table, instant in zip(tables, plans, strict=True):
        assert_executed_once(table, instant, version=2)
    assert [(each["status"], each["failures"]) for each in operations] == [("completed", 0)] * len(operations)
    assert {each["instant"] for each in operations} >= set(plans)
    assert {each["outcome"] for each in attempts} <= {"completed", "elsewhere", "nothing_to_do"}
    by_writer = {each.instant.value for each in executed if each.outcome == "completed"}
    by_service = {each["instant"] for each in operations if each["run_times"]}
    assert by_writer, "the writer came too late for each of them, and nothing was shown"
    assert by_service, "the service came too late for each of them, and nothing was shown"
    log = served.log.read_text()
    assert [line for line in log.splitlines() if " ERROR " in line or "Traceback" in line] == []


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_of_two_that_execute_a_plan_at_the_same_moment_one_does(tmp_path: Path, round_: int) -> None:
    table = make_table(tmp_path, "t")
    table.upsert(rows(1))
    table.upsert(rows(2))
    plan = table.schedule_compaction()
    assert plan is not None
    instant = plan.instant.value
    job = Job(1, 1, table.path, ServiceAction.COMPACTION, instant, str(tmp_path / "log"), str(tmp_path / "out"), 60.0)
    workers, barrier = open_table(job), Barrier(2)

    def by_service(_: int) -> str:
        barrier.wait()
        report = execute_job(workers, job, lambda _: None)
        assert report.outcome in (AttemptOutcome.COMPLETED, AttemptOutcome.ELSEWHERE), report.message
        return "held" if report.outcome is AttemptOutcome.ELSEWHERE else str(report.result["outcome"])

    def by_writer(_: int) -> str:
        barrier.wait()
        try:
            return table.execute(plan).outcome
        except PlanHeldError:
            return "held"

    calls = (by_service, by_writer)
    outcomes = SYSTEM_RUNTIME.threads.map(lambda number: calls[number](number), range(2), width=2)
    assert sorted(outcomes) in (["completed", "held"], ["already completed", "completed"])
    assert_executed_once(table, instant, version=2)


def test_a_service_that_another_process_is_at_work_on_has_not_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def held(_: InlineService) -> list[object]:
        raise PlanHeldError("the service is executing it", instant="20261118120000000", heartbeat_age_s=1.0)

    written = make_table(tmp_path, "t").upsert(rows(1))
    result = run_inline(written, [InlineService("clean", only_plans=False)], held)
    assert result.notes == ("clean is left to its executor: the service is executing it",)
    assert [each.levelname for each in caplog.records if "executing it" in each.message] in ([], ["INFO"])
