"""Bloom filters in the metadata table: every action keeps an entry for each base file, and none for others."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.options import Options
from tablekeeper.format.bloom import might_contain
from tablekeeper.format.metadata_log import encode_metadata_base
from tablekeeper.format.metadata_records import BloomFilterRecord, encode_metadata_record
from tablekeeper.metadata_table.compaction import compact_metadata_table
from tablekeeper.txn.environment import load_environment
from tablekeeper.write import operation
from tablekeeper.write.finish import finish_write
from tests.support.bloom_filter_content import indexed_filters, refuse_wrong_bloom_filters, stored_filters
from tests.support.java_indexes import BLOOM_IDS, begin_index
from tests.support.recovery_world import FIRST, ROWS_OF_FIRST, World, for_every_death
from tests.support.step_faults import one_thread_runtime
from tests.support.table_builder import trips

__all__: list[str] = []

NAME = "bloom_filters"
EARLY = "20240101000000100"


def indexed(make: Callable[..., World], table_type: str = "cow") -> World:
    """A table that has the index from its beginning, with a first commit."""
    world = make(table_type=table_type, metadata=True)
    begin_index(world.storage, NAME, BLOOM_IDS, at=7, completed=EARLY)
    world.upsert(FIRST)
    return world


def compact_metadata(world: World) -> None:
    world.clock.advance(1)
    environment = load_environment(world.storage, Options(None), runtime=one_thread_runtime(world.clock, process=77))
    assert compact_metadata_table(environment, MetadataSettings(compact_after=1)).files_written > 0


STEPS: list[tuple[str, Callable[[tk.Table], Any]]] = [
    ("update", lambda t: t.upsert(trips(("a", "sf", 2, 2.0), ("d", "ny", 2, 2.0)))),
    ("insert", lambda t: t.insert(trips(("e", "la", 3, 3.0)))),
    ("bulk insert", lambda t: t.bulk_insert(trips(("f", "sf", 3, 3.0)))),
    ("delete", lambda t: t.delete(trips(("b", "sf")))),
    ("cluster", lambda t: t.cluster()),
    ("overwrite", lambda t: t.insert_overwrite(trips(("a", "sf", 5, 5.0)))),
    ("drop partition", lambda t: t.delete_partitions(["la"])),
    ("clean", lambda t: t.clean(options={"hoodie.clean.commits.retained": "1"})),
]


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_every_write_and_service_keeps_the_filters_in_step(make: Callable[..., World], table_type: str) -> None:
    world = indexed(make, table_type)
    most = refuse_wrong_bloom_filters(world.storage)
    assert most == 2
    for number, (name, step) in enumerate(STEPS):
        world.clock.advance(10)
        assert step(world.table) is not None, name
        count = refuse_wrong_bloom_filters(world.storage)
        most = max(most, count)
        if number % 3 == 1:
            if table_type == "mor":
                world.table.compact()
            compact_metadata(world)
            refuse_wrong_bloom_filters(world.storage)
    assert count < most, "the clean has deleted files"
    world.refuse_stale_metadata_table()


def test_a_filter_finds_the_keys_of_its_file(make: Callable[..., World]) -> None:
    world = indexed(make)
    filters = [base64.b64decode(content) for _, content in indexed_filters(world.storage).values()]
    found = [might_contain(each, pa.array(["a", "b", "c", "nobody"])).tolist() for each in filters]
    assert sorted(found) == [[False, False, True, False], [True, True, False, False]]


def test_a_file_without_a_filter_in_its_footer_gets_one_of_its_keys(make: Callable[..., World]) -> None:
    world = indexed(make)
    before = indexed_filters(world.storage)
    table = tk.Table.open(
        world.storage.spec.uri,
        engine="local",
        options={"hoodie.bloom.index.write": "false"},
        runtime=world.new_runtime(),
    )
    world.clock.advance(10)
    table.upsert(trips(("n", "ny", 1, 1.0)))
    ((kind, content),) = (filters for key, filters in indexed_filters(world.storage).items() if key not in before)
    assert kind == "SIMPLE"
    assert might_contain(base64.b64decode(content), pa.array(["n", "a"])).tolist() == [True, False]


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("begins_late", [False, True])
def test_taking_commits_back_takes_their_files_out(
    make: Callable[..., World], compacts: bool, begins_late: bool
) -> None:
    world = make(table_type="cow", metadata=True) if begins_late else indexed(make)
    if begins_late:
        world.upsert(FIRST)
    saved = world.table.savepoint()
    world.upsert(trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0)))
    world.upsert(trips(("b", "sf", 3, 3.0)))
    if begins_late:
        begin_late(world)
    if compacts:
        compact_metadata(world)
    world.table.rollback(world.timeline.completed_writes[-1].requested_at)
    assert refuse_wrong_bloom_filters(world.storage) == 4
    world.table.restore(saved.instant)
    assert world.rows() == ROWS_OF_FIRST
    assert refuse_wrong_bloom_filters(world.storage) == 2


def begin_late(world: World) -> None:
    """The index with base files of what the table holds already."""
    world.clock.advance(1)
    stored = stored_filters(world.storage)
    records = [BloomFilterRecord(key, kind, EARLY, content) for key, (kind, content) in stored.items()]
    entries = sorted((record.key.encode(), encode_metadata_record(record)) for record in records)
    now = world.timeline.completed_writes[-1].completed_at
    assert now is not None
    completed = f"{int(now.value) + 1:017d}"
    bases = {BLOOM_IDS[0]: encode_metadata_base(entries)}
    begin_index(world.storage, NAME, BLOOM_IDS[:1], at=7, completed=completed, bases=bases)
    assert refuse_wrong_bloom_filters(world.storage) == 5


def test_what_a_dead_writer_wrote_has_no_filter(make: Callable[..., World]) -> None:
    world = indexed(make)
    dead = world.crash(trips(("n", "ny", 2, 2.0), ("a", "sf", 2, 2.0)))
    assert refuse_wrong_bloom_filters(world.storage) == 2
    world.clock.advance(3_600)
    world.table.rollback(dead)
    assert refuse_wrong_bloom_filters(world.storage) == 2


def test_a_writer_may_die_at_any_step_beside_the_filters(make: Callable[..., World]) -> None:
    world = indexed(make)
    rows = trips(("a", "sf", 2, 2.0), ("n", "ny", 2, 2.0))

    def check(after: World) -> None:
        after.clock.advance(3_600)
        after.upsert(trips(("c", "la", 3, 3.0), ("n", "ny", 3, 3.0)))
        refuse_wrong_bloom_filters(after.storage)

    assert for_every_death(world, lambda table: table.upsert(rows), check) > 5


def test_an_index_that_java_builds_during_a_write_gets_its_filters(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(table_type="cow", metadata=True)

    def begun(*args: Any, **kwargs: Any) -> Any:
        begin_index(world.storage, NAME, BLOOM_IDS, at=7, completed=EARLY)
        return finish_write(*args, **kwargs)

    monkeypatch.setattr(operation, "finish_write", begun)
    world.upsert(FIRST)
    assert refuse_wrong_bloom_filters(world.storage) == 2
