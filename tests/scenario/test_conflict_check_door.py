"""RFC-71 at the door: what a transaction records, whom it asks, how it ends, and that there is one door for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError, InvalidRequestError
from tablekeeper.model import Action, Instant, RequestedTime
from tablekeeper.timeline import create_requested, load_newest_time, start_inflight
from tablekeeper.txn.concurrent_commits import load_touched
from tablekeeper.txn.environment import time_after
from tablekeeper.txn.publish import Publication, Published
from tests.support.crew import TO_THE_END, Crew, calls_before
from tests.support.meanwhile import writes_data
from tests.support.recovery_world import FIRST, World
from tests.support.table_builder import trips

__all__: list[str] = []

ALLOW_UPDATES = {"hoodie.clustering.updates.strategy": "SparkAllowUpdateStrategy"}


@pytest.fixture
def world() -> Iterator[World]:
    made = World(table_type="mor", options={"hoodie.log.compaction.blocks.threshold": "2"})
    made.upsert(FIRST)
    made.clock.advance(10)
    yield made
    made.forget()


def upsert_of(fare: float, *, retries: int = 0) -> Callable[[tk.Table], Any]:
    return lambda table: table.upsert(trips(("a", "sf", int(fare), fare)), retries=retries)


def race(world: World, *, retries: int = 0) -> dict[str, Any]:
    """`early` begins first and completes while `late`, which began beside it, is working on the same rows."""
    crew = Crew(world)
    crew.add("early", upsert_of(5.0))
    crew.add("late", upsert_of(6.0, retries=retries))
    written = calls_before(world, upsert_of(5.0), writes_data)
    return crew.run(("early", written), ("late", written), ("early", TO_THE_END), ("late", TO_THE_END))


def test_a_write_that_was_pending_when_this_one_began_is_remembered(world: World) -> None:
    outcomes = race(world)
    early, late = outcomes["early"], outcomes["late"]
    assert early.error is None
    assert isinstance(late.error, ConflictError)
    assert late.error.beaten_by == early.value.instant.value
    assert late.error.instant > late.error.beaten_by, "it began later, and is told of the one before it"


def test_a_conflict_aborts_the_write_and_leaves_nothing_of_it(world: World) -> None:
    before = world.data_files()
    early = race(world)["early"]
    assert world.rows() == [("a", 5.0), ("b", 1.0), ("c", 1.0)]
    assert world.timeline.pending == ()
    assert len(world.data_files() - before) == len(early.value.files)
    assert world.table.doctor().is_healthy


def test_a_write_that_may_be_made_again_resolves_the_conflict_by_itself(world: World) -> None:
    outcomes = race(world, retries=1)
    assert outcomes["late"].error is None
    assert world.rows() == [("a", 6.0), ("b", 1.0), ("c", 1.0)]


@pytest.mark.parametrize("is_inflight", [False, True], ids=["requested", "inflight"])
def test_a_pending_write_without_metadata_touches_nothing_and_disturbs_nobody(world: World, is_inflight: bool) -> None:
    """Java's writers are requested without any content, and some go inflight so."""
    environment = world.table._load_environment()
    storage, config = environment.storage, environment.config
    time = RequestedTime(time_after(environment, load_newest_time(storage, config)))
    pending = create_requested(storage, config, requested_at=time, action=Action.DELTA_COMMIT, content=b"")
    if is_inflight:
        pending = start_inflight(storage, config, pending, content=b"")
    assert load_touched(environment, pending).file_groups == frozenset()
    world.clock.advance(1)
    world.upsert(trips(("a", "sf", 7, 7.0)))
    # Clustering that lets updates through asks pending ingestion which file groups it touches.
    assert world.table.cluster(options=ALLOW_UPDATES) is not None
    assert world.rows() == [("a", 7.0), ("b", 1.0), ("c", 1.0)]


def test_every_operation_is_published_by_the_same_piece_of_code(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Instant] = []
    complete = Publication.complete

    def watched(self: Publication, content: bytes, **ways: Any) -> Published:
        done = complete(self, content, **ways)
        published.append(done.instant)
        return done

    monkeypatch.setattr(Publication, "complete", watched)
    rows = trips(("a", "sf", 3, 3.0), ("d", "la", 3, 3.0))
    operations: list[Callable[[tk.Table], Any]] = [
        lambda table: table.insert(trips(("x", "sf", 1, 1.0))),
        lambda table: table.upsert(rows),
        lambda table: table.bulk_insert(trips(("y", "sf", 1, 1.0))),
        lambda table: table.delete(trips(("y", "sf"))),
        lambda table: table.upsert(rows),
        lambda table: table.log_compact(),
        lambda table: table.compact(),
        lambda table: table.cluster(),
        lambda table: table.insert_overwrite(trips(("z", "la", 1, 1.0))),
        lambda table: table.delete_partitions(["la"]),
        lambda table: table.insert_overwrite_table(trips(("q", "ny", 1, 1.0))),
        lambda table: table.clean(keep_commits=1),
        lambda table: table.savepoint(),
    ]
    for number, operate in enumerate(operations, start=1):
        world.clock.advance(10)
        assert operate(world.table) is not None
        assert len(published) == number
    # A savepoint has the time of the commit that it protects.
    completed = {i for i in world.timeline.completed if i.requested_at >= published[0].requested_at}
    assert completed == set(published)
    saved = world.table.savepoints()[0].instant
    world.upsert(rows)
    world.table.restore(saved)
    assert [i.action for i in published[len(operations) :]] == [Action.DELTA_COMMIT, Action.ROLLBACK, Action.RESTORE]


def test_there_is_no_switch_for_committing_by_hand(world: World) -> None:
    with pytest.raises(InvalidRequestError, match=r"hoodie\.auto\.commit"):
        tk.Table.open(world.table.path, engine="local", options={"hoodie.auto.commit": "false"})
