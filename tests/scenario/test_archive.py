"""Archiving a table through `Table.archive`: what goes, what stays and why, and that nobody notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tablekeeper as tk
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError
from tablekeeper.format.commit_metadata import decode_commit_metadata, encode_commit_metadata
from tablekeeper.metadata_table.layout import load_metadata_timeline, metadata_config
from tablekeeper.model import Action, RequestedTime, State
from tablekeeper.snapshot.snapshot import load_replaced
from tablekeeper.storage import Storage
from tablekeeper.table.streaming import BATCH_KEY, WRITER_KEY, BatchCommittedError, load_batch_guard
from tablekeeper.timeline import load_instant_files, load_timeline
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.properties_file import change_properties
from tests.support.metadata_builder import MetadataBuilder
from tests.support.table_builder import TableBuilder, listing, rows_of, trips

__all__: list[str] = []

EAGER = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.clean.commits.retained": "1",
    "hoodie.compact.inline.max.delta.commits": "1",
}


@pytest.fixture(params=["cow", "mor"])
def table(request: pytest.FixtureRequest, tables: TableBuilder) -> tk.Table:
    return tables.create(table_type=request.param)


def write(table: tk.Table, count: int, *, city: str = "sf") -> list[tk.WriteResult]:
    start = len(table.timeline())
    return [table.upsert(trips((f"k{n % 3}", city, start + n, float(n)))) for n in range(count)]


def active(tables: TableBuilder, table: tk.Table) -> list[RequestedTime]:
    return [i.requested_at for i in load_timeline(tables.storage(table), table.config).completed_writes]


def archived(tables: TableBuilder, table: tk.Table) -> list[Action]:
    return [each.instant.action for each in load_history(tables.storage(table), table.config)]


def test_old_commits_move_and_every_read_gives_what_it_gave(tables: TableBuilder, table: tk.Table) -> None:
    results = write(table, 9)

    def answers() -> list[object]:
        moments = [rows_of(table.read(as_of=result.instant)) for result in results]
        return [
            rows_of(table.read()),
            rows_of(table.changes()),
            *moments,
            rows_of(table.changes(since=results[1].instant)),
        ]

    before = answers()
    result = table.archive(options=EAGER)
    assert [i.requested_at for i in result.instants] == [RequestedTime(str(r.instant)) for r in results[:6]]
    assert (result.active, len(result.files)) == (3, 1)
    assert result.bytes_written == len(tables.storage(table).read(result.files[0]))
    assert active(tables, table) == [RequestedTime(str(r.instant)) for r in results[6:]]
    assert answers() == before
    write(table, 1)
    assert table.archive(options=EAGER).instants == ()


def test_the_plans_of_services_are_archived_with_them(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor")
    write(table, 5)
    assert table.compact() is not None
    write(table, 4)
    rows = rows_of(table.read())
    result = table.archive(options={**EAGER, "tablekeeper.archive.keep.last.plans": "false"})
    assert [i.action for i in result.instants] == [Action.DELTA_COMMIT] * 5 + [Action.COMMIT, Action.DELTA_COMMIT]
    history = load_history(tables.storage(table), table.config)
    assert [each.plan is not None for each in history] == [False] * 5 + [True, False]
    assert rows_of(table.read()) == rows


def test_the_last_plan_of_a_service_and_what_follows_it_stays(tables: TableBuilder) -> None:
    table = tables.create(table_type="mor")
    write(table, 5)
    compacted = table.compact()
    assert compacted is not None
    write(table, 3)
    result = table.archive(options=EAGER)
    assert len(result.instants) == 5
    assert f"the next compaction is planned from the last one ({compacted.instant})" in result.reason
    write(table, 6)
    assert len(table.archive(options=EAGER).instants) == 7


def test_a_dry_run_says_what_would_go_and_what_is_in_the_way_and_changes_nothing(
    tables: TableBuilder, table: tk.Table
) -> None:
    results = write(table, 9)
    table.savepoint(results[2].instant)
    before = listing(tables.storage(table))
    explained = table.explain_archive(options=EAGER)
    assert listing(tables.storage(table)) == before
    assert explained.dry_run
    assert len(explained.instants) == 2
    assert f"stops at {results[2].instant}: a savepoint protects this commit" in repr(explained)
    done = table.archive(options=EAGER)
    assert (done.instants, done.bounds) == (explained.instants, explained.bounds)
    table.delete_savepoint(results[2].instant)
    assert len(table.archive(options=EAGER).instants) == 4


def test_a_replace_commit_goes_only_when_the_files_it_hid_are_gone(tables: TableBuilder, table: tk.Table) -> None:
    storage = tables.storage(table)
    write(table, 2, city="la")
    hidden = {file.path: storage.read(file.path) for file in storage.list_files("la") if "_metadata" not in file.name}
    table.insert_overwrite(trips(("z", "la", 1, 1.0)))
    write(table, 6)
    rows = rows_of(table.read())
    first = table.archive(options=EAGER)
    assert [i.action.writes_data for i in first.instants] == [True, True]
    assert "no clean has removed the files that this commit replaced" in first.reason
    table.clean(keep_commits=1)
    kept = {file.path for file in storage.list_files("la")}
    assert not hidden.keys() & kept
    # A deletion that failed unnoticed: the commit has to stay although the clean went past it.
    path, data = next(iter(hidden.items()))
    storage.put(path, data)
    write(table, 2)
    second = table.archive(options=EAGER)
    assert second.instants == ()
    assert f"replaced {path}, which no clean has removed yet" in second.reason
    assert f"replaced {path}, which no clean has removed yet" in table.explain_archive(options=EAGER).reason
    storage.delete(path)
    known = load_timeline(storage, table.config)
    third = table.archive(options=EAGER)
    assert Action.REPLACE_COMMIT in {i.action for i in third.instants}
    # A reader that loaded the timeline before finds what was replaced in the history.
    before = load_replaced(storage, table.config, known, runtime=tables.runtime)
    assert {group.partition for group in before} == {"la"}
    assert rows_of(table.read(where="city = 'la'")) == [row for row in rows if row[1] == "la"]


def test_a_moment_that_an_archived_clean_took_is_still_refused(tables: TableBuilder) -> None:
    table = tables.create(table_type="cow")
    results = write(table, 6)
    assert table.clean(keep_commits=2) is not None
    write(table, 7)
    table.archive(options=EAGER)
    assert Action.CLEAN in archived(tables, table)
    assert Action.CLEAN not in {i.action for i in load_timeline(tables.storage(table), table.config)}
    with pytest.raises(InvalidRequestError, match="was cleaned"):
        table.read(as_of=results[0].instant)
    assert table.read(as_of=results[5].instant).num_rows == 3


def test_a_stream_that_rested_while_others_wrote_finds_its_last_batch_in_the_history(tables: TableBuilder) -> None:
    table = tables.create()
    storage = tables.storage(table)
    write(table, 2)
    name_batch(storage, table, writer="w1", batch=7)
    write(table, 1)
    name_batch(storage, table, writer="w2", batch=3)
    write(table, 8)
    table.archive(options=EAGER)
    assert len(active(tables, table)) == 3
    for writer, last in (("w1", 7), ("w2", 3)):
        with pytest.raises(BatchCommittedError, match=f"the last one is {last}"):
            load_batch_guard(storage, table.config, {WRITER_KEY: writer, BATCH_KEY: f"{last}"})
        assert load_batch_guard(storage, table.config, {WRITER_KEY: writer, BATCH_KEY: f"{last + 1}"}) is not None
    assert load_batch_guard(storage, table.config, {WRITER_KEY: "w3", BATCH_KEY: "0"}) is not None


def name_batch(storage: Storage, table: tk.Table, *, writer: str, batch: int) -> None:
    """Make the newest commit that of a stream."""
    newest = load_timeline(storage, table.config).completed_writes[-1]
    path = next(
        file.path
        for file in storage.list_files(".hoodie/timeline")
        if file.name.endswith(f"_{newest.completed_at}.commit")
    )
    metadata = decode_commit_metadata(storage.read(path), file=path)
    extra = {**metadata.extra, WRITER_KEY: writer, BATCH_KEY: str(batch)}
    storage.put(path, encode_commit_metadata(replace(metadata, extra=extra)))


def test_files_of_earlier_states_and_markers_go_with_their_instants(tables: TableBuilder, table: tk.Table) -> None:
    results = write(table, 6)
    storage = tables.storage(table)
    for number in (0, 5):
        storage.put(f".hoodie/.temp/{results[number].instant}/sf/f.parquet.marker.CREATE", b"")
    table.archive(options=EAGER)
    assert storage.list_directories(".hoodie/.temp") == []
    states = [i.state for i in load_instant_files(storage, table.config)]
    assert [states.count(state) for state in State] == [3, 3, 3]


def test_a_commit_of_an_upgraded_table_without_completion_time_in_its_name_is_archived_with_the_time_of_its_file(
    tables: TableBuilder,
) -> None:
    table = tables.create()
    results = write(table, 6)
    storage = tables.storage(table)
    path = next(f.path for f in storage.list_files(".hoodie/timeline") if f.name.startswith(f"{results[0].instant}_"))
    bare = f".hoodie/timeline/{results[0].instant}.commit"
    storage.put(bare, storage.read(path))
    storage.delete(path)
    write(table, 1)
    completed_at = load_timeline(storage, table.config).completed_writes[0].completed_at
    table.archive(options=EAGER)
    assert storage.stat(bare) is None
    assert load_history(storage, table.config)[0].instant.completed_at == completed_at
    assert table.read().num_rows == 3


def test_many_instants_go_in_several_holds_of_the_lock(tables: TableBuilder) -> None:
    table = tables.create()
    write(table, 11)
    result = table.archive(options={**EAGER, "tablekeeper.archive.max.instants": "3"})
    assert len(result.instants) == 8
    assert len(result.files) == 3
    assert result.lock_held_s > 0
    assert len(archived(tables, table)) == 8


def test_the_defaults_keep_thirty_commits_and_options_that_make_no_sense_are_refused(table: tk.Table) -> None:
    write(table, 5)
    assert table.archive().reason == "5 completed commits are on the active timeline, 30 may be"
    with pytest.raises(InvalidRequestError, match="must be greater"):
        table.archive(options={"hoodie.keep.min.commits": 40})
    with pytest.raises(UnsupportedFeatureError, match="savepoint"):
        table.archive(options={"hoodie.archive.beyond.savepoint": True})


def test_tables_of_version_six_are_left_to_java(tables: TableBuilder) -> None:
    table = tables.create()
    storage = tables.storage(table)
    properties = storage.read(".hoodie/hoodie.properties").decode()
    lines = [line for line in properties.splitlines() if "table.version" not in line and "layout" not in line]
    storage.put(
        ".hoodie/hoodie.properties",
        "\n".join([*lines, "hoodie.table.version=6", "hoodie.timeline.layout.version=1"]).encode(),
    )
    with pytest.raises(UnsupportedFeatureError, match="version 6"):
        tables.through(table).archive()


def test_with_a_metadata_table_nothing_goes_before_it_was_compacted_and_then_its_timeline_is_archived_too(
    tables: TableBuilder, table: tk.Table
) -> None:
    storage = tables.storage(table)
    metadata = MetadataBuilder()
    for file in metadata.storage.walk(""):
        storage.put(file.path, metadata.storage.read(file.path))
    change_properties(storage, {METADATA_PARTITIONS_KEY: metadata.properties[METADATA_PARTITIONS_KEY]})
    results = write(tables.through(table), 14)
    table = tables.through(table)
    rows = rows_of(table.read())
    by_java = {**EAGER, "tablekeeper.metadata.compact": "false"}
    blocked = table.archive(options=by_java)
    assert (blocked.instants, blocked.metadata_instants) == ((), ())
    assert "the metadata table was never compacted" in blocked.reason
    compacted_at = results[11].instant
    storage.put(f".hoodie/metadata/.hoodie/timeline/{compacted_at}001_{compacted_at}002.commit", b"")
    result = table.archive(options={**by_java, "hoodie.metadata.compact.max.delta.commits": "1"})
    assert len(result.instants) == 11
    # The three that made it, and one for each commit that left the table's timeline.
    assert len(result.metadata_instants) == 3 + 11
    timeline = load_metadata_timeline(storage, table.config)
    first = active(tables, table)[0]
    assert first in {i.requested_at for i in timeline.completed}
    moved = load_history(storage, metadata_config(table.config))
    assert [each.instant for each in moved] == list(result.metadata_instants)
    assert rows_of(table.read()) == rows
    assert rows_of(table.read(as_of=results[3].instant), "id") == [("k0",), ("k1",), ("k2",)]
    write(table, 2)
    assert table.read().num_rows == 3
