"""A record index by partitions: keys are unique in their partition, which has shards of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.errors import CorruptTableError, InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.key_shards import partition_shard_id
from tablekeeper.model import Operation
from tablekeeper.write import operation
from tablekeeper.write.operation import execute_write
from tests.scenario.test_record_index import compact_metadata
from tests.support import record_index_content
from tests.support.recovery_world import World, for_every_death
from tests.support.table_builder import TableBuilder, rows_of, trips

__all__: list[str] = []

OPTIONS = {
    "hoodie.metadata.record.level.index.enable": "true",
    "hoodie.metadata.record.level.index.min.filegroup.count": "2",
}
TWICE = trips(("a", "sf", 1, 1.0), ("a", "la", 1, 2.0), ("b", "sf", 1, 3.0))
INDEX = ".hoodie/metadata/record_index"
refuse_wrong_record_index = partial(record_index_content.refuse_wrong_record_index, by_partition=True)


def indexed(make: Callable[..., World], table_type: str = "mor") -> World:
    world = make(table_type=table_type, metadata=True)
    world.upsert(TWICE)
    world.clock.advance(10)
    assert world.table.create_index("record", options=OPTIONS).shards == 4
    return world


def opened(world: World, **options: str) -> tk.Table:
    world.clock.advance(10)
    return tk.Table.open(world.storage.spec.uri, engine="local", options=options, runtime=world.new_runtime())


def rows(world: World) -> list[tuple[Any, ...]]:
    return rows_of(world.table.read(), "city", "id", "fare")


def shards_of(world: World, city: str) -> set[str]:
    """File ids of shards of a partition, of whatever it has there."""
    names = [file.name for file in world.storage.list_files(INDEX)]
    return {name.lstrip(".").split("_")[0] for name in names if f"-{city}-" in name}


STEPS: list[tuple[str, Callable[[tk.Table], Any], list[str]]] = [
    ("a new partition", lambda t: t.upsert(trips(("a", "ny", 2, 2.0))), ["la:a", "ny:a", "sf:a", "sf:b"]),
    ("insert", lambda t: t.insert(trips(("e", "la", 3, 3.0))), ["la:a", "la:e", "ny:a", "sf:a", "sf:b"]),
    ("bulk", lambda t: t.bulk_insert(trips(("f", "x-y", 3, 3.0))), ["la:a", "la:e", "ny:a", "sf:a", "sf:b", "x-y:f"]),
    ("delete", lambda t: t.delete(trips(("a", "sf"), ("e", "sf"))), ["la:a", "la:e", "ny:a", "sf:b", "x-y:f"]),
    ("cluster", lambda t: t.cluster(), ["la:a", "la:e", "ny:a", "sf:b", "x-y:f"]),
    ("again", lambda t: t.upsert(trips(("a", "sf", 4, 4.0))), ["la:a", "la:e", "ny:a", "sf:a", "sf:b", "x-y:f"]),
    ("overwrite", lambda t: t.insert_overwrite(trips(("g", "sf", 5, 5.0))), ["la:a", "la:e", "ny:a", "sf:g", "x-y:f"]),
    ("drop partition", lambda t: t.delete_partitions(["la"]), ["ny:a", "sf:g", "x-y:f"]),
    ("back again", lambda t: t.upsert(trips(("a", "la", 6, 6.0))), ["la:a", "ny:a", "sf:g", "x-y:f"]),
    ("all", lambda t: t.insert_overwrite_table(trips(("a", "la", 7, 7.0), ("a", "q", 7, 7.0))), ["la:a", "q:a"]),
]


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_every_write_and_service_keeps_the_index_in_step(make: Callable[..., World], table_type: str) -> None:
    world = indexed(make, table_type)
    refuse_wrong_record_index(world.table)
    for number, (name, step, keys) in enumerate(STEPS):
        world.clock.advance(10)
        step(world.table)
        refuse_wrong_record_index(world.table)
        assert [f"{city}:{key}" for city, key, _ in rows(world)] == keys, name
        if number % 4 == 1:
            if table_type == "mor":
                world.table.compact()
            compact_metadata(world)
            refuse_wrong_record_index(world.table)
    world.refuse_stale_metadata_table()


def test_a_key_is_looked_for_in_the_partition_that_its_row_names(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = indexed(make)
    # Not in the files.
    monkeypatch.setattr(operation, "find_keys", None)
    result = world.table.upsert(trips(("a", "la", 2, 5.0), ("b", "la", 2, 6.0), ("a", "sf", 2, 7.0)))
    assert rows(world) == [("la", "a", 5.0), ("la", "b", 6.0), ("sf", "a", 7.0), ("sf", "b", 3.0)]
    assert (result.rows_inserted, result.rows_updated) == (1, 2)
    refuse_wrong_record_index(world.table)
    world.clock.advance(10)
    with pytest.raises(InvalidRequestError, match="city"):
        world.table.delete(trips(("a", "la")).select(["id"]))
    world.table.delete(trips(("a", "la")).select(["id", "city"]))
    assert rows(world) == [("la", "b", 6.0), ("sf", "a", 7.0), ("sf", "b", 3.0)]
    refuse_wrong_record_index(world.table)


def test_a_new_partition_gets_all_of_its_shards_with_its_first_key(make: Callable[..., World]) -> None:
    world = indexed(make)
    opened(world, **OPTIONS).upsert(trips(("n", "ny", 2, 2.0)))
    assert shards_of(world, "ny") == {partition_shard_id("ny", 0), partition_shard_id("ny", 1)}
    # A writer with other settings keeps to what is there.
    opened(world).upsert(trips(*((f"n{n}", "ny", 2, 2.0) for n in range(9))))
    assert len(shards_of(world, "ny")) == 2
    refuse_wrong_record_index(world.table)
    opened(world).upsert(trips(("n", "other", 2, 2.0)))
    assert len(shards_of(world, "other")) == 1
    refuse_wrong_record_index(world.table)


def test_shards_that_a_dead_writer_left_are_all_written_so_that_their_number_stays(make: Callable[..., World]) -> None:
    world = indexed(make)
    # Its log files in the metadata table are there, and it has not completed.
    left = [f"{INDEX}/.{partition_shard_id('ny', n)}_20991231000000000.log.1_0-0-0" for n in range(3)]
    for path in left:
        world.storage.put(path, b"")
    world.upsert(trips(("n", "ny", 2, 2.0)))
    for path in left:
        world.storage.delete(path)
    assert len(shards_of(world, "ny")) == 3
    refuse_wrong_record_index(world.table)
    world.upsert(trips(*((f"n{n}", "ny", 3, 3.0) for n in range(9)), ("n", "ny", 3, 3.0)))
    refuse_wrong_record_index(world.table)


def test_two_writers_may_begin_one_partition(make: Callable[..., World]) -> None:
    world = indexed(make)
    first, second = trips(("m", "ny", 2, 2.0)), trips(("n", "ny", 2, 2.0))
    slow = opened(world)._load_write(Operation.UPSERT, first.schema)
    world.clock.advance(10)
    opened(world, **OPTIONS).upsert(second)
    world.clock.advance(10)
    execute_write(slow, first)
    assert len(shards_of(world, "ny")) == 2
    refuse_wrong_record_index(world.table)


@pytest.mark.parametrize("compacts", [False, True])
def test_taking_commits_back_takes_them_out_of_the_index(make: Callable[..., World], compacts: bool) -> None:
    world = indexed(make)
    saved = world.table.savepoint()
    world.upsert(trips(("a", "sf", 2, 9.0), ("n", "ny", 2, 2.0)))
    world.clock.advance(10)
    world.table.delete(trips(("b", "sf")))
    if compacts:
        compact_metadata(world)
    world.table.rollback(world.timeline.completed_writes[-1].requested_at)
    refuse_wrong_record_index(world.table)
    world.table.restore(saved.instant)
    assert rows(world) == [("la", "a", 2.0), ("sf", "a", 1.0), ("sf", "b", 3.0)]
    refuse_wrong_record_index(world.table)
    world.upsert(trips(("b", "la", 5, 5.0), ("n", "ny", 5, 5.0)))
    refuse_wrong_record_index(world.table)


def test_a_writer_may_die_at_any_step_beside_the_index(make: Callable[..., World]) -> None:
    world = indexed(make)
    new = trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0))

    def check(after: World) -> None:
        after.clock.advance(3_600)
        after.upsert(trips(("a", "la", 3, 3.0), ("n", "ny", 3, 3.0)))
        refuse_wrong_record_index(after.table)

    assert for_every_death(world, lambda table: table.upsert(new), check) > 5


@pytest.mark.parametrize("kind", ["GLOBAL_SIMPLE", "SIMPLE", "RECORD_INDEX"])
def test_other_ways_to_find_keys_keep_the_index_in_step(make: Callable[..., World], kind: str) -> None:
    world = indexed(make)
    table = opened(world, **{"hoodie.index.type": kind})
    table.upsert(trips(("b", "la", 5, 5.0), ("n", "ny", 5, 5.0)))
    there = {(city, key) for city, key, _ in rows(world)}
    moves = kind != "SIMPLE"
    assert (("sf", "b") in there) != moves
    assert there >= {("la", "b"), ("ny", "n")}
    refuse_wrong_record_index(world.table)


def test_an_option_of_java_builds_the_index_as_java_defines_it(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    world.upsert(TWICE)
    table = opened(world, **{"hoodie.index.type": "RECORD_LEVEL_INDEX", **OPTIONS})
    table.upsert(trips(("n", "ny", 2, 2.0)))
    assert table.config.metadata_partitions == ("files", "record_index")
    definition = json.loads(world.storage.read(".hoodie/.index_defs/index.json"))["indexDefinitions"]["record_index"]
    assert definition["indexOptions"] == {"isPartitioned": "true"}
    refuse_wrong_record_index(table)
    assert repr(table.create_index("record")) == "index record was there"
    with pytest.raises(InvalidRequestError, match="has a record index by partitions"):
        world.table.create_index("record")
    assert world.table.drop_index("record").outcome == "dropped"
    assert world.storage.list_files(INDEX) == []
    both = {**OPTIONS, "hoodie.metadata.global.record.level.index.enable": "true"}
    with pytest.raises(InvalidRequestError, match="set only one"):
        opened(world, **both).upsert(TWICE)


def test_an_index_of_a_table_without_rows_learns_of_its_first_ones(make: Callable[..., World]) -> None:
    world = make(table_type="mor", metadata=True)
    world.table.create_index("record", options=OPTIONS)
    world.upsert(TWICE)
    refuse_wrong_record_index(world.table)
    world.upsert(trips(("a", "la", 2, 9.0)))
    assert rows(world) == [("la", "a", 9.0), ("sf", "a", 1.0), ("sf", "b", 3.0)]


def test_a_key_that_a_partition_has_twice_stops_the_index(make: Callable[..., World]) -> None:
    world = make(metadata=True)
    world.upsert(TWICE)
    world.table.insert(trips(("b", "sf", 2, 2.0)))
    with pytest.raises(InvalidRequestError, match="record key 'b' is in the table twice"):
        world.table.create_index("record", options=OPTIONS)


def test_a_partition_without_shards_stops_a_write_instead_of_doubling_its_keys(make: Callable[..., World]) -> None:
    world = indexed(make)
    for file in world.storage.list_files(INDEX):
        if "-la-" in file.name:
            world.storage.delete(file.path)
    with pytest.raises(CorruptTableError, match="no file group for partition 'la'"):
        world.upsert(trips(("a", "la", 2, 9.0)))


def test_a_partition_with_a_dot_is_refused_because_hudi_cannot_name_its_shard(make: Callable[..., World]) -> None:
    world = indexed(make)
    with pytest.raises(UnsupportedFeatureError, match="no dots"):
        world.upsert(trips(("a", "v1.2", 2, 9.0)))
    assert rows(world) == [("la", "a", 2.0), ("sf", "a", 1.0), ("sf", "b", 3.0)]
    refuse_wrong_record_index(world.table)


def test_the_index_of_a_table_without_partitions_has_the_shards_of_its_one(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor", partition_by=None)
    table.upsert(trips(("a", "sf", 1, 1.0)))
    table.create_index("record", options=OPTIONS)
    table.upsert(trips(("a", "sf", 2, 2.0), ("b", "sf", 2, 2.0)))
    assert rows_of(table.read(), "id", "fare") == [("a", 2.0), ("b", 2.0)]
    refuse_wrong_record_index(table)
