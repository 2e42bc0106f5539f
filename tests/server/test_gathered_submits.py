"""Requests that come together share a query and a transaction, and stay requests of their own in everything else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tablekeeper import Table
from tablekeeper.server.api.gathered_submits import Gathered, GatheredSubmits
from tablekeeper.server.api.permissions import LOCAL_ADMIN
from tablekeeper.server.api.refusals import RefusedCallError
from tablekeeper.server.api.writers import SubmitRequest, SubmittedPlan, WriterCalls
from tablekeeper.server.model import ServiceAction
from tablekeeper.server.places import AllowedPlaces
from tablekeeper.server.store.protocol import (
    NamedPlans,
    NewTable,
    OperationFilter,
    Page,
    Submission,
    Submitted,
    UnknownRecordError,
)
from tablekeeper.server.store.sql import SqlJobStore
from tablekeeper.table.summary import TimelineSummary
from tests.support.rest import code_of, register

COMPACTION = ServiceAction.COMPACTION
PLANS = tuple(f"2026111812000000{n}" for n in range(6))
TIMEOUT_S = 60


def made(answer: Submitted | UnknownRecordError) -> tuple[str, bool]:
    assert isinstance(answer, Submitted)
    return answer.operation.instant, answer.is_new


def test_many_are_stored_at_once_and_each_is_told_its_own(store: SqlJobStore) -> None:
    tables = [store.register_table(NewTable("db", f"t{n}", f"/lake/t{n}", owner=f"o{n}"))[0].table_id for n in (0, 1)]
    there = store.submit(Submission(tables[0], PLANS[0], COMPACTION)).operation
    taken_back = store.submit(Submission(tables[0], PLANS[1], COMPACTION)).operation
    store.remove(tables[0], [PLANS[1]])
    wanted = [(tables[1], PLANS[0]), (tables[0], PLANS[0]), (999, PLANS[0]), (tables[0], PLANS[1])]
    wanted += [(tables[0], PLANS[2]), (tables[0], PLANS[2])]
    answers = store.submit_all([Submission(table_id, plan, COMPACTION, delay_s=3.0) for table_id, plan in wanted])
    unknown = answers.pop(2)
    assert isinstance(unknown, UnknownRecordError)
    assert "999" in str(unknown)
    assert [made(each) for each in answers] == [
        (PLANS[0], True),
        (PLANS[0], False),
        (PLANS[1], True),
        (PLANS[2], True),
        (PLANS[2], False),
    ]
    operations = [each.operation for each in answers if isinstance(each, Submitted)]
    assert [each.owner for each in operations] == ["o1", "o0", "o0", "o0", "o0"]
    assert [each.operation_id for each in operations[1:3]] == [there.operation_id, taken_back.operation_id]
    assert operations[0].not_before_ms == there.not_before_ms + 3000
    assert operations[0].deadline_ms is None
    assert operations == [store.load_operation(each.operation_id) for each in operations]


def test_plans_are_found_by_the_names_of_their_tables(store: SqlJobStore) -> None:
    for db in ("a", "b"):
        table, _ = store.register_table(NewTable(db, "t", f"/lake/{db}"))
        store.submit(Submission(table.table_id, PLANS[0 if db == "a" else 1], COMPACTION))
    named = [NamedPlans("a", "t", PLANS[:2]), NamedPlans("b", "t", PLANS[:2]), NamedPlans("a", "T", PLANS[:1])]
    found = store.find_plans([*named, NamedPlans("b", "t", PLANS[2:3])])
    assert [each.table.base_path if each.table else None for each in found] == ["/lake/a", "/lake/b", None, "/lake/b"]
    assert [list(each.operations) for each in found] == [[PLANS[0]], [PLANS[1]], [], []]


def test_what_comes_while_a_round_is_under_way_is_one_round() -> None:
    rounds: list[list[int]] = []
    may_end = threading.Event()

    def answer(questions: Sequence[int]) -> list[int]:
        rounds.append(list(questions))
        assert may_end.wait(TIMEOUT_S)
        if 7 in questions:
            raise ValueError("seven")
        return [10 * each for each in questions]

    async def ask() -> list[int | BaseException]:
        gathered = Gathered(answer, size=lambda question: question)
        asked = []
        for each in (1, 2):
            asked.append(asyncio.create_task(gathered.ask(each)))
            while len(rounds) < each:
                await asyncio.sleep(0)
        asked += [asyncio.create_task(gathered.ask(each)) for each in (3, 7, 2000, 1999)]
        await asyncio.sleep(0)
        may_end.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(ask())
    assert sorted(map(tuple, rounds)) == [(1,), (2,), (3, 7), (1999,), (2000,)]
    assert answers[:2] == [10, 20]
    assert [str(each) for each in answers[2:4]] == ["seven", "seven"], "what fails fails for those of its round"
    assert answers[4:] == [20_000, 19_990]


class Timelines:
    """Has a plan for each table; that of the table at `/lake/hangs` cannot be read until the test says so."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_go_on = threading.Event()

    def plans(self, base_path: str) -> Mapping[str, tuple[ServiceAction | None, bool]]:
        if base_path == "/lake/hangs":
            self.is_asked.set()
            assert self.may_go_on.wait(TIMEOUT_S)
        return dict.fromkeys(PLANS, (COMPACTION, False))

    def summary(self, base_path: str) -> TimelineSummary:
        raise NotImplementedError(base_path)

    def metadata_compactions(self, base_path: str) -> frozenset[str]:
        raise NotImplementedError(base_path)


def test_a_table_that_hangs_holds_up_its_own_requests_alone(jobs: SqlJobStore) -> None:
    for name in ("hangs", "t"):
        jobs.register_table(NewTable("db", name, f"/lake/{name}"))
    timelines = Timelines()
    submits = GatheredSubmits(jobs, WriterCalls(jobs, AllowedPlaces(()), timelines, engines=()))

    async def submit(name: str) -> list[SubmittedPlan]:
        request = SubmitRequest(name, db_name="db", instant=PLANS[0])
        return await submits.submit(LOCAL_ADMIN, COMPACTION, request)

    async def run() -> None:
        hanging = asyncio.create_task(submit("hangs"))
        while not timelines.is_asked.is_set():
            await asyncio.sleep(0)
        [plan] = await submit("t")
        assert plan.state == "accepted"
        with pytest.raises(RefusedCallError, match="not registered"):
            await submit("nobody")
        assert not hanging.done()
        timelines.may_go_on.set()
        assert (await hanging)[0].state == "accepted"

    asyncio.run(run())


def test_requests_at_once_are_each_answered_by_themselves(
    client: TestClient, lake: Path, table: Table, jobs: SqlJobStore
) -> None:
    register(client, lake)
    plan = table.schedule_compaction()
    assert plan is not None
    bodies = [{"db_name": "db", "table_name": "trips", "instant": plan.instant.value}] * 6
    bodies += [{"db_name": "db", "table_name": "nobody", "instant": plan.instant.value}] * 3
    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda body: client.post("/v1/hoodie/service/compact/submit", json=body), bodies))
    states = [each.json()["plans"][0]["state"] for each in answers[:6]]
    assert sorted(states) == ["accepted", *["known"] * 5]
    assert {code_of(each) for each in answers[6:]} == {"table_not_found"}
    assert len(jobs.list_operations(OperationFilter(), Page())) == 1
