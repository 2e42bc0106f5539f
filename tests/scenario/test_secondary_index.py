"""Secondary indexes: every action keeps them in step with the values of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.keys import INDEX_DROP
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.options import Options
from tablekeeper.errors import UnsupportedFeatureError
from tablekeeper.format.secondary_index import secondary_index_keys, secondary_index_shards
from tablekeeper.metadata_table.compaction import compact_metadata_table
from tablekeeper.txn.environment import load_environment
from tests.support.java_indexes import begin_index, define_index
from tests.support.record_index_content import refuse_wrong_record_index
from tests.support.recovery_world import World, for_every_death
from tests.support.secondary_index_content import indexed_values, refuse_wrong_secondary_index
from tests.support.step_faults import one_thread_runtime
from tests.support.table_builder import TRIPS, trips

__all__: list[str] = []

NAME = "secondary_index_by_note"
EARLY = "20240101000000100"
IDS = ("secondary-index-by-note-0000-0", "secondary-index-by-note-0001-0")
NOTED = TRIPS.append(pa.field("note", pa.string()))
DEFINITION = {
    "indexName": NAME,
    "indexType": "secondary_index",
    "indexFunction": "identity",
    "sourceFields": ["note"],
    "indexOptions": {},
    "version": "V2",
}
FIRST = (("a", "sf", 1, 1.0, "x"), ("b", "sf", 1, 1.0, "x$y"), ("c", "la", 1, 1.0, None))


def noted(*rows: tuple[Any, ...]) -> pa.Table:
    return trips(*rows, schema=NOTED)


def indexed(make: Callable[..., World], table_type: str = "mor", **definition: Any) -> World:
    """A table with a record index and a secondary one from its beginning, and a first commit."""
    world = make(table_type=table_type, metadata=True)
    world.table.create_index("record", options={"hoodie.metadata.record.index.min.filegroup.count": "1"})
    define_index(world.storage, NAME, DEFINITION | definition)
    begin_index(world.storage, NAME, IDS, at=9, completed=EARLY)
    if not definition:
        world.upsert(noted(*FIRST))
    return world


def compact_metadata(world: World) -> None:
    world.clock.advance(1)
    environment = load_environment(world.storage, Options(None), runtime=one_thread_runtime(world.clock, process=77))
    assert compact_metadata_table(environment, MetadataSettings(compact_after=1)).files_written > 0


def refuse_wrong(world: World) -> None:
    refuse_wrong_record_index(world.table)
    refuse_wrong_secondary_index(world.table, NAME, "note")


STEPS: list[tuple[str, Callable[[tk.Table], Any]]] = [
    (
        "update",
        lambda t: t.upsert(noted(("a", "sf", 2, 2.0, "z"), ("b", "sf", 2, 2.0, "x$y"), ("d", "ny", 2, 2.0, ""))),
    ),
    ("late update", lambda t: t.upsert(noted(("a", "sf", 0, 0.0, "too late"), ("c", "la", 3, 3.0, "\\$")))),
    ("insert", lambda t: t.insert(noted(("e", "la", 3, 3.0, "x")))),
    ("bulk insert", lambda t: t.bulk_insert(noted(("f", "sf", 3, 3.0, None)))),
    ("delete", lambda t: t.delete(trips(("b", "sf"), ("nobody", "sf")))),
    ("cluster", lambda t: t.cluster()),
    ("again", lambda t: t.upsert(noted(("b", "sf", 4, 4.0, "new"), ("f", "sf", 4, 4.0, "x")))),
    ("overwrite", lambda t: t.insert_overwrite(noted(("a", "sf", 5, 5.0, "z"), ("g", "sf", 5, 5.0, "\0")))),
    ("drop partition", lambda t: t.delete_partitions(["la"])),
]


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_every_write_and_service_keeps_the_index_in_step(make: Callable[..., World], table_type: str) -> None:
    world = indexed(make, table_type)
    refuse_wrong(world)
    assert indexed_values(world.storage, NAME) == {("x", "a"), ("x$y", "b"), (None, "c")}
    for number, (name, step) in enumerate(STEPS):
        world.clock.advance(10)
        assert step(world.table) is not None, name
        refuse_wrong(world)
        if number % 3 == 1:
            if table_type == "mor":
                world.table.compact()
            compact_metadata(world)
            refuse_wrong(world)
    assert indexed_values(world.storage, NAME) == {("z", "a"), ("\0", "g"), ("", "d")}


def test_an_entry_lies_in_the_shard_of_its_value_whatever_its_key() -> None:
    values = ["x", "x", "a$b", "a$b", None, None]
    entries = secondary_index_keys(pa.array(values), pa.array(["1", "$2", "1", "\\", "1", "2"]))
    assert entries.to_pylist() == ["x$1", "x$\\$2", "a\\$b$1", "a\\$b$\\\\", "\0$1", "\0$2"]
    shards = secondary_index_shards(entries, shards=7).tolist()
    # Java's hash of "x$" is 31 * 120 + 36.
    assert shards[0] == (31 * ord("x") + ord("$")) % 7
    assert [shards[n] == shards[n + 1] for n in (0, 2, 4)] == [True] * 3


@pytest.mark.parametrize("is_merged", [False, True])
def test_taking_commits_back_takes_their_values_out(make: Callable[..., World], is_merged: bool) -> None:
    world = indexed(make)
    saved = world.table.savepoint()
    world.upsert(noted(("a", "sf", 2, 2.0, "z"), ("n", "ny", 2, 2.0, "x")))
    world.clock.advance(10)
    world.table.delete(trips(("b", "sf")))
    if not is_merged:
        world.table.rollback(world.timeline.completed_writes[-1].requested_at)
        refuse_wrong(world)
        world.table.restore(saved.instant)
        refuse_wrong(world)
        assert len(indexed_values(world.storage, NAME)) == 3
        return
    compact_metadata(world)
    with pytest.raises(UnsupportedFeatureError, match=f"restore .*{NAME} .*{INDEX_DROP}=true"):
        world.table.restore(saved.instant)
    refuse_wrong(world)
    consenting = tk.Table.open(
        world.storage.spec.uri, engine="local", options={INDEX_DROP: "true"}, runtime=world.new_runtime()
    )
    consenting.restore(saved.instant)
    assert NAME not in world.table.config.metadata_partitions


def test_a_writer_may_die_at_any_step_beside_the_index(make: Callable[..., World]) -> None:
    world = indexed(make)
    rows = noted(("a", "sf", 2, 2.0, "z"), ("n", "ny", 2, 2.0, "x"))

    def check(after: World) -> None:
        after.clock.advance(3_600)
        after.upsert(noted(("c", "la", 3, 3.0, "x"), ("n", "ny", 3, 3.0, "w")))
        refuse_wrong(after)

    assert for_every_death(world, lambda table: table.upsert(rows), check) > 5


def test_what_a_dead_writer_wrote_is_not_in_the_index(make: Callable[..., World]) -> None:
    world = indexed(make)
    dead = world.crash(noted(("n", "ny", 2, 2.0, "x"), ("a", "sf", 2, 2.0, "z")))
    refuse_wrong(world)
    world.clock.advance(3_600)
    world.table.rollback(dead)
    refuse_wrong(world)


@pytest.mark.parametrize("definition", [{"sourceFields": ["fare"]}, {"version": "V1"}])
def test_an_index_that_cannot_be_told_stops_a_write_and_no_clustering(
    make: Callable[..., World], definition: dict[str, Any]
) -> None:
    world = indexed(make, **definition)
    with pytest.raises(UnsupportedFeatureError, match=f"upsert .*{NAME} .*{INDEX_DROP}=true"):
        world.upsert(noted(*FIRST))
    assert NAME in world.table.config.metadata_partitions
    world.table.cluster()
    assert NAME in world.table.config.metadata_partitions


def test_writers_that_share_file_groups_are_refused(make: Callable[..., World]) -> None:
    shared = {
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "1",
        "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    }
    world = indexed(make)
    table = tk.Table.open(world.storage.spec.uri, engine="local", options=shared, runtime=world.new_runtime())
    with pytest.raises(UnsupportedFeatureError, match=f"upsert .*{NAME}"):
        table.upsert(noted(*FIRST))
