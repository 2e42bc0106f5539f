"""The record index: every action keeps it in step, and writes find keys by it wherever they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.options import Options
from tablekeeper.engine.local import LocalEngine
from tablekeeper.errors import CorruptTableError, InvalidRequestError, StorageError, UnsupportedFeatureError
from tablekeeper.metadata_table.compaction import compact_metadata_table
from tablekeeper.model import Operation
from tablekeeper.txn.environment import load_environment
from tablekeeper.write import operation, record_look_up
from tablekeeper.write.operation import execute_write
from tests.support.meanwhile import Interrupted
from tests.support.record_index_content import indexed_groups, refuse_wrong_record_index, stored_groups
from tests.support.recovery_world import FIRST, ROWS_OF_FIRST, World, for_every_death
from tests.support.step_faults import one_thread_runtime
from tests.support.table_builder import TRIPS, trips

__all__: list[str] = []

DELETABLE = TRIPS.append(pa.field("_hoodie_is_deleted", pa.bool_()))
SMALL = {"hoodie.metadata.record.index.min.filegroup.count": "3"}
ONE_SHARD = {"hoodie.metadata.record.index.min.filegroup.count": "1"}


def indexed(make: Callable[..., World], table_type: str = "mor", **shape: Any) -> World:
    world = make(table_type=table_type, metadata=True, **shape)
    world.upsert(FIRST)
    world.clock.advance(10)
    world.table.create_index("record", options=SMALL)
    return world


def compact_metadata(world: World) -> None:
    world.clock.advance(1)
    environment = load_environment(world.storage, Options(None), runtime=one_thread_runtime(world.clock, process=77))
    assert compact_metadata_table(environment, MetadataSettings(compact_after=1)).files_written > 0


STEPS: list[tuple[str, Callable[[tk.Table], Any], list[str]]] = [
    ("new keys", lambda t: t.upsert(trips(("a", "sf", 2, 2.0), ("d", "ny", 2, 2.0))), ["a", "b", "c", "d"]),
    ("insert", lambda t: t.insert(trips(("e", "la", 3, 3.0))), ["a", "b", "c", "d", "e"]),
    ("bulk insert", lambda t: t.bulk_insert(trips(("f", "sf", 3, 3.0))), ["a", "b", "c", "d", "e", "f"]),
    ("delete", lambda t: t.delete(trips(("b", "sf"), ("nobody", "sf"))), ["a", "c", "d", "e", "f"]),
    ("cluster", lambda t: t.cluster(), ["a", "c", "d", "e", "f"]),
    ("again", lambda t: t.upsert(trips(("b", "sf", 4, 4.0), ("a", "sf", 4, 4.0))), ["a", "b", "c", "d", "e", "f"]),
    ("overwrite", lambda t: t.insert_overwrite(trips(("a", "sf", 5, 5.0), ("g", "sf", 5, 5.0))), list("acdeg")),
    ("drop partition", lambda t: t.delete_partitions(["la"]), ["a", "d", "g"]),
    ("all", lambda t: t.insert_overwrite_table(trips(("d", "sf", 6, 6.0), ("h", "la", 6, 6.0))), ["d", "h"]),
]


def rebuilt(make: Callable[..., World]) -> World:
    """The index was dropped, and built again."""
    world = indexed(make)
    world.upsert(trips(("x", "sf", 2, 2.0)))
    world.table.drop_index("record")
    world.upsert(trips(("y", "sf", 2, 2.0)))
    world.table.create_index("record", options=SMALL)
    return world


def test_the_metadata_table_is_compacted_after_the_index_was_dropped_and_built_again(
    make: Callable[..., World],
) -> None:
    world = rebuilt(make)
    world.upsert(trips(("z", "sf", 2, 2.0)))
    compact_metadata(world)
    refuse_wrong_record_index(world.table)


def test_a_lost_file_of_an_index_that_was_built_again_is_still_missed(make: Callable[..., World]) -> None:
    world = rebuilt(make)
    files = [file.path for file in world.storage.list_files(".hoodie/metadata/record_index")]
    world.storage.delete(next(path for path in files if path.endswith(".hfile")))
    with pytest.raises(CorruptTableError, match="gone"):
        compact_metadata(world)


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_every_write_and_service_keeps_the_index_in_step(make: Callable[..., World], table_type: str) -> None:
    world = indexed(make, table_type)
    refuse_wrong_record_index(world.table)
    for number, (name, step, keys) in enumerate(STEPS):
        world.clock.advance(10)
        result = step(world.table)
        assert result is not None, name
        refuse_wrong_record_index(world.table)
        assert [key for key, _ in world.rows()] == keys, name
        if number % 4 == 1:
            if table_type == "mor":
                world.table.compact()
            compact_metadata(world)
            refuse_wrong_record_index(world.table)
    world.refuse_stale_metadata_table()


def test_a_key_is_found_in_whatever_partition_it_is(make: Callable[..., World]) -> None:
    world = indexed(make)
    before = stored_groups(world.table)
    world.upsert(trips(("a", "ny", 2, 2.0), ("c", "sf", 2, 2.0), ("n", "ny", 2, 2.0)))
    after = stored_groups(world.table)
    assert {key: after[key] for key in before} == before
    assert after["n"].partition == "ny"
    assert world.rows() == [("a", 2.0), ("b", 1.0), ("c", 2.0), ("n", 2.0)]
    refuse_wrong_record_index(world.table)
    world.clock.advance(10)
    world.table.delete(trips(("b",)).select(["id"]))
    assert [key for key, _ in world.rows()] == ["a", "c", "n"]
    refuse_wrong_record_index(world.table)


def test_a_new_key_that_is_given_for_two_partitions_stops_the_write(make: Callable[..., World]) -> None:
    world = indexed(make)
    with pytest.raises(InvalidRequestError, match="'n' is new and is given for two partitions"):
        world.upsert(trips(("n", "ny", 2, 2.0), ("n", "sf", 2, 3.0)))
    assert world.rows() == ROWS_OF_FIRST
    refuse_wrong_record_index(world.table)
    world.upsert(trips(("a", "ny", 2, 2.0), ("a", "sf", 3, 3.0)))
    assert world.rows() == [("a", 3.0), ("b", 1.0), ("c", 1.0)]


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_a_row_that_says_it_is_deleted_counts_only_if_it_wins(make: Callable[..., World], table_type: str) -> None:
    world = indexed(make, table_type)
    late = trips(("a", "sf", 0, None, True), ("b", "sf", 9, None, True), schema=DELETABLE)
    world.upsert(late)
    assert [key for key, _ in world.rows()] == ["a", "c"]
    refuse_wrong_record_index(world.table)
    world.upsert(trips(("a", "sf", 2, 2.0, False), ("b", "sf", 10, 2.0, False), schema=DELETABLE))
    assert world.rows() == [("a", 2.0), ("b", 2.0), ("c", 1.0)]
    refuse_wrong_record_index(world.table)


def test_looking_keys_up_in_the_files_keeps_the_index_in_step_too(make: Callable[..., World]) -> None:
    world = indexed(make)
    world.clock.advance(10)
    world.table.delete(trips(("a", "sf"), ("b", "sf")))
    table = tk.Table.open(
        world.storage.spec.uri, engine="local", options={"hoodie.index.type": "SIMPLE"}, runtime=world.new_runtime()
    )
    world.clock.advance(10)
    table.upsert(trips(("a", "sf", 3, 3.0), ("n", "la", 3, 3.0)))
    assert world.rows() == [("a", 3.0), ("c", 1.0), ("n", 3.0)]
    refuse_wrong_record_index(world.table)


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_rows_that_move_by_another_global_index_move_in_this_one(make: Callable[..., World], table_type: str) -> None:
    world = indexed(make, table_type)
    world.clock.advance(10)
    options = {"hoodie.index.type": "GLOBAL_SIMPLE"}
    table = tk.Table.open(world.storage.spec.uri, engine="local", options=options, runtime=world.new_runtime())
    table.upsert(trips(("a", "ny", 3, 3.0), ("b", "sf", 3, 3.0), ("c", "ny", 0, 0.0), ("n", "la", 3, 3.0)))
    assert world.rows() == [("a", 3.0), ("b", 3.0), ("c", 1.0), ("n", 3.0)]
    refuse_wrong_record_index(world.table)
    assert stored_groups(world.table)["a"].partition == "ny"


def test_a_write_that_began_before_the_index_tells_it_of_its_keys(make: Callable[..., World]) -> None:
    world = make(table_type="mor", metadata=True)
    world.upsert(FIRST)
    rows = trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0))
    table = world.table
    request = table._load_write(Operation.UPSERT, rows.schema)
    world.clock.advance(10)
    world.table.create_index("record", options=SMALL)
    world.clock.advance(10)
    execute_write(request, rows)
    assert world.rows() == [("a", 2.0), ("b", 1.0), ("c", 1.0), ("n", 2.0)]
    refuse_wrong_record_index(world.table)


def test_a_write_whose_index_is_dropped_meanwhile_looks_into_the_files(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = indexed(make)
    look_up = record_look_up.look_up_records

    def dropped(*args: Any, **kwargs: Any) -> Any:
        world.table.drop_index("record")
        return look_up(*args, **kwargs)

    monkeypatch.setattr(operation, "look_up_records", dropped)
    world.upsert(trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0)))
    assert world.rows() == [("a", 2.0), ("b", 1.0), ("c", 1.0), ("n", 2.0)]
    assert "record_index" not in world.table.config.metadata_partitions


def test_keys_of_other_partitions_are_found_although_the_index_is_dropped_meanwhile(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = indexed(make)
    world.upsert(trips(("a", "sf", 2, 2.0), ("d", "ny", 1, 1.0)))
    look_up = record_look_up.look_up_records

    def dropped(*args: Any, **kwargs: Any) -> Any:
        world.table.drop_index("record")
        return look_up(*args, **kwargs)

    monkeypatch.setattr(operation, "look_up_records", dropped)
    world.upsert(trips(("a", "la", 3, 3.0), ("b", "ny", 0, 0.0), ("n", "ny", 3, 3.0)))
    assert world.rows() == [("a", 3.0), ("b", 1.0), ("c", 1.0), ("d", 1.0), ("n", 3.0)]
    world.clock.advance(10)
    world.table.create_index("record", options=SMALL)
    world.clock.advance(10)
    world.table.delete(trips(("c",)).select(["id"]))
    assert world.rows() == [("a", 3.0), ("b", 1.0), ("d", 1.0), ("n", 3.0)]


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("begins_late", [False, True])
def test_taking_commits_back_takes_them_out_of_the_index(
    make: Callable[..., World], compacts: bool, begins_late: bool
) -> None:
    world = make(table_type="mor", metadata=True) if begins_late else indexed(make)
    if begins_late:
        world.upsert(FIRST)
    saved = world.table.savepoint()
    world.upsert(trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0)))
    world.clock.advance(10)
    world.table.delete(trips(("b", "sf")))
    if begins_late:
        world.table.create_index("record", options=SMALL)
    if compacts:
        compact_metadata(world)
    world.table.rollback(world.timeline.completed_writes[-1].requested_at)
    refuse_wrong_record_index(world.table)
    world.table.restore(saved.instant)
    assert world.rows() == ROWS_OF_FIRST
    refuse_wrong_record_index(world.table)
    world.upsert(trips(("b", "sf", 5, 5.0), ("n", "ny", 5, 5.0)))
    assert world.rows() == [("a", 1.0), ("b", 5.0), ("c", 1.0), ("n", 5.0)]
    refuse_wrong_record_index(world.table)


@pytest.mark.parametrize("way_back", ["rollback", "restore"])
def test_a_way_back_whose_index_cannot_be_built_anew_is_done_and_says_so(
    make: Callable[..., World], way_back: str
) -> None:
    world = indexed(make)
    saved = world.table.savepoint()
    later = world.upsert(trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0)))
    compact_metadata(world)
    storage = Interrupted(world.storage)

    def fail() -> None:
        raise StorageError("the disk is full", path="record_index", transient=False)

    storage.when = lambda kind, path: kind == "put" and path.startswith(".hoodie/metadata/record_index/")
    storage.action = fail
    table = tk.Table(storage, LocalEngine(threads=1), Options(None), runtime=world.new_runtime())
    result = table.rollback(later.instant) if way_back == "rollback" else table.restore(saved.instant)
    (note,) = result.notes
    assert "the disk is full" in note
    assert note in repr(result)
    assert "record_index" not in world.table.config.metadata_partitions
    assert world.rows() == ROWS_OF_FIRST
    world.table.create_index("record", options=SMALL)
    refuse_wrong_record_index(world.table)


@pytest.mark.parametrize("compacts", [False, True])
def test_shards_that_changed_places_stop_a_write_instead_of_hiding_keys(
    make: Callable[..., World], compacts: bool
) -> None:
    world = indexed(make)
    world.upsert(trips(*((f"k{number}", "sf", 2, 2.0) for number in range(30))))
    if compacts:
        compact_metadata(world)
    files = [file.path for file in world.storage.list_files(".hoodie/metadata/record_index")]
    of_kind = [path for path in files if path.endswith(".hfile") == compacts]
    newest = [max(path for path in of_kind if f"record-index-000{number}" in path) for number in (0, 1)]
    for path, content in zip(newest, [world.storage.read(path) for path in reversed(newest)], strict=True):
        world.storage.put(path, content)
    with pytest.raises(CorruptTableError, match="do not belong to shard"):
        world.upsert(trips(*((f"k{number}", "sf", 3, 3.0) for number in range(30))))


def test_what_a_dead_writer_wrote_is_not_in_the_index(make: Callable[..., World]) -> None:
    world = indexed(make)
    dead = world.crash(trips(("n", "ny", 2, 2.0), ("a", "sf", 2, 2.0)))
    refuse_wrong_record_index(world.table)
    world.clock.advance(3_600)
    world.table.rollback(dead)
    refuse_wrong_record_index(world.table)
    assert world.rows() == ROWS_OF_FIRST


def test_a_writer_may_die_at_any_step_beside_the_index(make: Callable[..., World]) -> None:
    world = indexed(make)
    rows = trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0))

    def check(after: World) -> None:
        after.clock.advance(3_600)
        after.upsert(trips(("c", "la", 3, 3.0), ("n", "ny", 3, 3.0)))
        refuse_wrong_record_index(after.table)

    assert for_every_death(world, lambda table: table.upsert(rows), check) > 5


def test_building_and_dropping_may_die_at_any_step(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    world.upsert(FIRST)
    world.clock.advance(10)

    def build_and_drop(table: tk.Table) -> None:
        table.create_index("record", options=ONE_SHARD)
        table.drop_index("record")

    def check(after: World) -> None:
        after.clock.advance(3_600)
        after.upsert(trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0)))
        after.table.create_index("record", options=ONE_SHARD)
        refuse_wrong_record_index(after.table)
        after.refuse_stale_metadata_table()
        assert after.rows() == [("a", 2.0), ("b", 1.0), ("c", 1.0), ("n", 2.0)]

    assert for_every_death(world, build_and_drop, check) > 10


def test_a_table_whose_keys_are_not_unique_gets_no_index(make: Callable[..., World]) -> None:
    world = make(metadata=True)
    world.upsert(trips(("a", "sf", 1, 1.0), ("a", "la", 1, 1.0)))
    with pytest.raises(InvalidRequestError, match="record key 'a' is in the table twice"):
        world.table.create_index("record")
    assert "record_index" not in world.table.config.metadata_partitions


def test_the_index_is_named_as_java_names_it_and_goes_without_a_trace(make: Callable[..., World]) -> None:
    world = indexed(make)
    definition = json.loads(world.storage.read(".hoodie/.index_defs/index.json"))["indexDefinitions"]["record_index"]
    assert definition["indexOptions"] == {"isPartitioned": "false"}
    names = {file.name for file in world.storage.list_files(".hoodie/metadata/record_index")}
    assert {name.split("_")[0] for name in names if name.endswith(".hfile")} <= {
        f"record-index-000{n}-0" for n in range(3)
    }
    assert repr(world.table.create_index("record")) == "index record was there"
    assert world.table.drop_index("record").outcome == "dropped"
    assert world.table.drop_index("record").outcome == "was not there"
    assert world.storage.list_files(".hoodie/metadata/record_index") == []
    assert "record_index" not in json.loads(world.storage.read(".hoodie/.index_defs/index.json"))["indexDefinitions"]
    with pytest.raises(InvalidRequestError, match="index 'bloom'"):
        world.table.create_index("bloom")


def test_an_index_that_is_not_what_its_definition_says_stops_a_write(make: Callable[..., World]) -> None:
    world = indexed(make)
    path = ".hoodie/.index_defs/index.json"
    definitions = json.loads(world.storage.read(path))
    definitions["indexDefinitions"]["record_index"]["indexOptions"]["isPartitioned"] = "true"
    world.storage.put(path, json.dumps(definitions).encode())
    with pytest.raises(CorruptTableError, match="no shard of a record index by partitions"):
        world.upsert(trips(("a", "sf", 2, 2.0)))


def test_an_option_of_java_builds_the_index_with_the_next_write(make: Callable[..., World]) -> None:
    options = {"hoodie.metadata.record.index.enable": "true", **ONE_SHARD}
    world = make(table_type="mor")
    world.upsert(FIRST)
    table = tk.Table.open(world.storage.spec.uri, engine="local", options=options, runtime=world.new_runtime())
    world.clock.advance(10)
    table.upsert(trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0)))
    assert table.config.metadata_partitions == ("files", "record_index")
    refuse_wrong_record_index(table)
    moves = {"hoodie.record.index.update.partition.path": "true"}
    with pytest.raises(UnsupportedFeatureError, match="stays in the partition that has its key"):
        tk.Table.open(world.storage.spec.uri, engine="local", options=moves)


def test_an_update_of_known_keys_writes_nothing_to_the_index(make: Callable[..., World]) -> None:
    world = indexed(make)
    before = {file.name for file in world.storage.list_files(".hoodie/metadata/record_index")}
    world.upsert(trips(("a", "sf", 2, 2.0), ("b", "sf", 2, 2.0)))
    assert {file.name for file in world.storage.list_files(".hoodie/metadata/record_index")} == before
    assert len(indexed_groups(world.storage, runtime=world.new_runtime())) == 3
