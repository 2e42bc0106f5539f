"""Indexes of the metadata table that are not kept in step here: they stay right, or the action is refused.

The secondary index here has no definition, so that nobody knows its column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.config.concurrency_settings import LockProvider
from tablekeeper.config.keys import INDEX_DROP
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.errors import FencedError, UnsupportedFeatureError
from tablekeeper.metadata_table import update
from tablekeeper.metadata_table.indexes import refuse_index_loss
from tablekeeper.model import Operation
from tablekeeper.timeline.properties_file import change_properties
from tablekeeper.write.operation import execute_write
from tests.support.recovery_world import FIRST, ROWS_OF_FIRST, World
from tests.support.table_builder import listing, trips

__all__: list[str] = []

STATS = ("files", "column_stats", "partition_stats")
UPDATE = trips(("a", "sf", 2, 2.0), ("c", "la", 2, 2.0))
CONSENT = {INDEX_DROP: True}


def indexed(make: Callable[..., World], *names: str, table_type: str = "mor", updates: int = 2) -> World:
    """A table with logs whose metadata table has these indexes besides."""
    world = make(table_type=table_type, metadata=True)
    world.upsert(FIRST)
    for _ in range(updates):
        world.upsert(UPDATE)
    change_properties(world.storage, {METADATA_PARTITIONS_KEY: ",".join([*STATS, *names])})
    for name in names:
        world.storage.put(f".hoodie/metadata/{name}/kept.hfile", b"built by Java")
    return world


def indexes_of(world: World) -> set[str]:
    """The indexes that the table names, which are those that have a directory."""
    named = set(world.table.config.metadata_partitions) - set(STATS)
    there = {file.path.split("/")[2] for file in world.storage.walk(".hoodie/metadata")}
    assert {name for name in there if not name.startswith(".")} == named | set(STATS)
    return named


@pytest.mark.parametrize(
    ("service", "names"),
    [
        ("compact", ("secondary_index_fare",)),
        ("log_compact", ("secondary_index_fare",)),
        ("cluster", ("secondary_index_fare",)),
    ],
)
def test_a_compaction_leaves_indexes_of_keys_alone(
    make: Callable[..., World], service: str, names: tuple[str, ...]
) -> None:
    world = indexed(make, *names)
    options: dict[str, object] = {"hoodie.log.compaction.blocks.threshold": "2"} if service == "log_compact" else {}
    done = getattr(world.table, service)(options=options)
    assert done.outcome == "completed"
    assert done.notes == ()
    assert indexes_of(world) == set(names)
    world.refuse_stale_metadata_table()
    assert world.rows() == [("a", 2.0), ("b", 1.0), ("c", 2.0)]


@pytest.mark.parametrize(
    ("service", "name"),
    [(service, "expr_index_day") for service in ("compact", "log_compact", "cluster")],
)
def test_a_service_that_would_leave_an_index_wrong_is_refused_before_it_plans(
    make: Callable[..., World], service: str, name: str
) -> None:
    world = indexed(make, name)
    before = listing(world.storage)
    options: dict[str, object] = {"hoodie.log.compaction.blocks.threshold": "2"} if service == "log_compact" else {}
    with pytest.raises(UnsupportedFeatureError, match=f"index {name} .*{INDEX_DROP}=true"):
        getattr(world.table, service)(options=options)
    assert listing(world.storage) == before
    done = getattr(world.table, service)(options={**options, **CONSENT})
    assert any(name in note for note in done.notes)
    assert indexes_of(world) == set()
    assert world.rows() == [("a", 2.0), ("b", 1.0), ("c", 2.0)]


WRITES: dict[str, Callable[[tk.Table], Any]] = {
    "upsert": lambda table: table.upsert(UPDATE),
    "insert": lambda table: table.insert(trips(("n", "sf", 1, 1.0))),
    "bulk_insert": lambda table: table.bulk_insert(trips(("n", "sf", 1, 1.0))),
    "insert_overwrite": lambda table: table.insert_overwrite(UPDATE),
    "insert_overwrite_table": lambda table: table.insert_overwrite_table(UPDATE),
    "delete": lambda table: table.delete(trips(("a", "sf"))),
    "delete_partitions": lambda table: table.delete_partitions(["sf"]),
}


@pytest.mark.parametrize("name", ["secondary_index_fare", "expr_index_day"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_would_leave_an_index_wrong_is_refused_before_it_begins(
    make: Callable[..., World], write: str, name: str
) -> None:
    world = indexed(make, name, updates=0)
    before = listing(world.storage)
    with pytest.raises(UnsupportedFeatureError, match=f"index {name} .*{INDEX_DROP}=true"):
        WRITES[write](world.table)
    assert listing(world.storage) == before
    assert world.rows() == ROWS_OF_FIRST


def test_an_index_that_java_builds_during_a_write_stops_its_commit(make: Callable[..., World]) -> None:
    world = indexed(make, updates=0)
    table = world.table
    request = table._load_write(Operation.UPSERT, UPDATE.schema)
    change_properties(world.storage, {METADATA_PARTITIONS_KEY: ",".join([*STATS, "expr_index_day"])})
    world.storage.put(".hoodie/metadata/expr_index_day/kept.hfile", b"built by Java")
    with pytest.raises(UnsupportedFeatureError, match="index expr_index_day"):
        execute_write(request, UPDATE)
    assert indexes_of(world) == {"expr_index_day"}
    assert world.rows() == ROWS_OF_FIRST
    assert world.timeline.pending == ()


def test_taking_a_commit_back_is_refused_where_an_index_knows_its_rows(make: Callable[..., World]) -> None:
    world = indexed(make, "expr_index_day", updates=1)
    newest = world.timeline.completed_writes[-1].requested_at
    with pytest.raises(UnsupportedFeatureError, match=f"rollback .*expr_index_day .*{INDEX_DROP}=true"):
        world.table.rollback(newest)
    assert indexes_of(world) == {"expr_index_day"}
    assert world.rows() == [("a", 2.0), ("b", 1.0), ("c", 2.0)]
    assert world.timeline.pending == ()


def test_what_a_dead_writer_left_is_rolled_back_beside_an_index(make: Callable[..., World]) -> None:
    world = indexed(make, "expr_index_day", updates=0)
    change_properties(world.storage, {METADATA_PARTITIONS_KEY: ",".join(STATS)})
    dead = world.crash(UPDATE)
    change_properties(world.storage, {METADATA_PARTITIONS_KEY: ",".join([*STATS, "expr_index_day"])})
    world.clock.advance(3_600)
    world.table.rollback(dead)
    assert indexes_of(world) == {"expr_index_day"}
    assert world.rows() == ROWS_OF_FIRST


def test_a_restore_is_refused_where_an_index_knows_the_rows_that_go(make: Callable[..., World]) -> None:
    world = indexed(make, updates=0)
    saved = world.table.savepoint()
    world.upsert(UPDATE)
    change_properties(world.storage, {METADATA_PARTITIONS_KEY: ",".join([*STATS, "expr_index_day"])})
    world.storage.put(".hoodie/metadata/expr_index_day/kept.hfile", b"built by Java")
    with pytest.raises(UnsupportedFeatureError, match=f"restore .*expr_index_day .*{INDEX_DROP}=true"):
        world.table.restore(saved.instant)
    assert indexes_of(world) == {"expr_index_day"}
    assert world.timeline.pending == ()
    assert world.rows() == [("a", 2.0), ("b", 1.0), ("c", 2.0)]


def test_a_process_that_sleeps_through_its_lock_before_it_drops_an_index_drops_none(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = indexed(make, "expr_index_day")
    refuse = refuse_index_loss

    def asleep(*args: Any, **kwargs: Any) -> None:
        refuse(*args, **kwargs)
        world.clock.stall(3_600)

    monkeypatch.setattr(update, "refuse_index_loss", asleep)
    newest = world.timeline.completed_writes[-1].requested_at
    options = {**CONSENT, "hoodie.write.lock.provider": LockProvider.STORAGE_BASED.value}
    table = tk.Table.open(world.storage.spec.uri, engine="local", options=options, runtime=world.new_runtime())
    with pytest.raises(FencedError):
        table.rollback(newest)
    assert indexes_of(world) == {"expr_index_day"}
