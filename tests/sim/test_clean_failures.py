"""Every storage call of a clean goes wrong once: it fails, its answer gets lost, or the process dies before or after.

Whatever happens, readers see the same rows at every retained moment, a writer can go on at once, and the next clean
ends where an undisturbed one ends: the same files, nothing pending, a metadata table that lists what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tablekeeper.errors import TablekeeperError
from tablekeeper.model import Action, RequestedTime
from tests.support.cleaning import clean, keep, rows_by_moment
from tests.support.recovery_world import LAPSED_S, World
from tests.support.step_faults import ONE_CALL, WRITES, Fault, FaultPoint, ProcessDied
from tests.support.table_builder import trips
from tests.support.table_services import compact

__all__: list[str] = []

KEPT = keep(2)


def _build(shape: dict[str, Any]) -> World:
    """Old versions, logs, an overwritten group, and a partition that goes."""
    world = World(**shape)
    world.upsert(trips(("a", "sf", 1, 1.0), ("c", "la", 1, 1.0)))
    world.upsert(trips(("a", "sf", 2, 2.0)))
    if world.table.config.is_mor:
        world.clock.advance(10)
        compact(world.table)
    world.clock.advance(10)
    world.table.delete_partitions(["la"])
    for number in (3, 4):
        world.upsert(trips(("a", "sf", number, float(number))))
    if world.table.config.is_mor:
        world.clock.advance(10)
        compact(world.table)
        world.upsert(trips(("a", "sf", 5, 5.0)))
        world.upsert(trips(("a", "sf", 6, 6.0)))
    return world


@pytest.fixture(
    params=[{"table_type": "cow"}, {"table_type": "mor", "metadata": True}], ids=["cow", "mor_metadata"], scope="module"
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = _build(request.param)
    yield made
    made.forget()


def _steps(world: World) -> list[FaultPoint]:
    trial = world.copy()
    table, storage, _ = trial.client()
    assert clean(table, KEPT) is not None
    trial.forget()
    points = []
    for number, (kind, _) in enumerate(storage.calls, start=1):
        faults = ONE_CALL if kind in WRITES else (Fault.ERROR_BEFORE,)
        points += [FaultPoint(number, fault) for fault in faults]
    return points


def _attempt(world: World, point: FaultPoint) -> bool:
    """Clean with one fault on the way; whether the clean was reported as done."""
    table, _, threads = world.client(point)
    try:
        return clean(table, KEPT) is not None
    except ProcessDied:
        threads.kill()
    except TablekeeperError:
        pass
    return False


def test_a_clean_comes_out_whole_whichever_call_goes_wrong(world: World) -> None:
    rows = world.rows()
    moments = [i.requested_at for i in world.timeline.completed_writes][-2:]
    kept = rows_by_moment(world.table, moments)
    whole = world.copy()
    assert clean(whole.table, KEPT) is not None
    expected = Expected(rows, moments, kept, whole.data_files())
    whole.forget()
    outcomes = {_try(world, point, expected) for point in _steps(world)}
    assert outcomes == {True, False}, "some faults are borne, others are reported"


@dataclass(frozen=True)
class Expected:
    """What must be true whatever happens: the rows now and at the retained moments, and the files in the end."""

    rows: list[tuple[Any, ...]]
    moments: list[RequestedTime]
    kept: dict[str, list[tuple[Any, ...]]]
    files: set[str]


def _try(world: World, point: FaultPoint, expected: Expected) -> bool:
    copy = world.copy()
    is_done = _attempt(copy, point)
    assert copy.rows() == expected.rows, point
    assert rows_by_moment(copy.table, expected.moments) == expected.kept, point
    if is_done:
        assert copy.data_files() == expected.files, point
    copy.clock.advance(LAPSED_S)
    clean(copy.table, KEPT)
    assert copy.data_files() == expected.files, point
    assert not copy.timeline.pending, point
    assert len([i for i in copy.timeline if i.action is Action.CLEAN]) == 1, point
    copy.refuse_stale_metadata_table()
    copy.upsert(trips(("z", "la", 1, 1.0)))
    assert copy.rows() == [*expected.rows, ("z", 1.0)], point
    copy.refuse_stale_metadata_table()
    copy.forget()
    return is_done


def test_a_writer_goes_on_at_once_wherever_a_cleaner_died(world: World) -> None:
    rows = world.rows()
    deaths = [point for point in _steps(world) if point.fault is Fault.DEATH_AFTER]
    assert len(deaths) > 5
    for point in deaths:
        copy = world.copy()
        _attempt(copy, point)
        copy.upsert(trips(("z", "la", 1, 1.0)))
        assert copy.rows() == [*rows, ("z", 1.0)], point
        copy.clock.advance(LAPSED_S)
        clean(copy.table, KEPT)
        assert copy.rows() == [*rows, ("z", 1.0)], point
        copy.refuse_stale_metadata_table()
        copy.forget()
