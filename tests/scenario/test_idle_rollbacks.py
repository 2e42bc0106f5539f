"""Rollbacks of completed commits that died before they had changed anything: who takes them back, who finishes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tablekeeper as tk
from tablekeeper.model import RequestedTime
from tests.support.crew import calls_before
from tests.support.recovery_world import LAPSED_S, World
from tests.support.step_faults import Fault, FaultPoint, ProcessDied
from tests.support.table_builder import trips

__all__: list[str] = []

ROWS = [("a", 3.0), ("b", 1.0), ("c", 3.0)]


@pytest.fixture
def world() -> Iterator[World]:
    made = World(table_type="mor", options={"hoodie.log.compaction.blocks.threshold": "2"})
    made.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    made.upsert(trips(("a", "sf", 2, 2.0), ("c", "la", 2, 2.0)))
    yield made
    made.forget()


@pytest.fixture
def busy(world: World) -> World:
    """With two logs on each file group."""
    world.upsert(trips(("a", "sf", 3, 3.0), ("c", "la", 3, 3.0)))
    return world


class TestARollbackThatDiedBeforeItHadDoneAnything:
    """Java's next writer would execute it, whatever has been built on the commit by then."""

    @pytest.fixture(params=["requested", "inflight"])
    def newest(self, request: pytest.FixtureRequest, busy: World) -> RequestedTime:
        target = busy.timeline.completed_writes[-1].requested_at

        def roll_back(table: tk.Table) -> object:
            return table.rollback(target)

        dies = calls_before(busy, roll_back, lambda _, path: path.endswith(f".rollback.{request.param}")) + 1
        table, _, threads = busy.client(FaultPoint(dies, Fault.DEATH_AFTER))
        with pytest.raises(ProcessDied):
            roll_back(table)
        threads.kill()
        assert [i.action.value for i in busy.timeline.pending] == ["rollback"]
        return target

    @pytest.mark.parametrize("who", ["a writer", "a planner", "a clean"])
    def test_is_taken_back_by(self, busy: World, newest: RequestedTime, who: str) -> None:
        match who:
            case "a writer":
                busy.upsert(trips(("b", "sf", 1, 1.0)))
            case "a planner":
                busy.table.compact()
            case "a clean":
                busy.table.clean()
        assert not busy.timeline.pending
        assert busy.timeline.find(newest) is not None
        assert busy.rows() == ROWS

    def test_is_carried_out_by_the_doctor_if_that_is_still_possible(self, busy: World, newest: RequestedTime) -> None:
        busy.clock.advance(LAPSED_S)
        assert busy.table.doctor(fix=True).is_healthy
        assert busy.timeline.find(newest) is None
        assert busy.rows() == [("a", 2.0), ("b", 1.0), ("c", 2.0)]

    def test_is_taken_back_by_the_doctor_if_others_have_built_on_the_commit(
        self, busy: World, newest: RequestedTime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            # As a writer would do that does not look for such rollbacks.
            patched.setattr("tablekeeper.write.operation.withdraw_idle_rollbacks", lambda *_: None)
            busy.upsert(trips(("b", "sf", 2, 2.0)))
        assert busy.timeline.pending
        busy.clock.advance(LAPSED_S)
        assert busy.table.doctor(fix=True).is_healthy
        assert not busy.timeline.pending
        assert busy.timeline.find(newest) is not None
        assert busy.rows() == [("a", 3.0), ("b", 2.0), ("c", 3.0)]
