"""Reading a table whose oldest commits were archived and whose oldest files were cleaned: right rows, or an error."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import InvalidRequestError, StorageError
from tablekeeper.format.history import (
    ArchivedInstant,
    HistoryFile,
    HistoryName,
    encode_history_file,
    encode_history_name,
    encode_manifest,
    encode_version,
)
from tablekeeper.format.plans import (
    CleanFile,
    CleanMetadata,
    CleanPlan,
    RetainedInstant,
    encode_clean_metadata,
    encode_clean_plan,
)
from tablekeeper.storage import Storage
from tablekeeper.timeline import load_content, load_timeline
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

NOTES = pa.schema([*TRIPS, ("note", pa.string())])
HISTORY = ".hoodie/timeline/history"


@pytest.fixture(params=["cow", "mor"])
def table(request: pytest.FixtureRequest, tables: TableBuilder) -> tk.Table:
    return tables.create(table_type=request.param)


def archive(storage: Storage, table: tk.Table, count: int) -> None:
    """Move the oldest `count` instants into the history, as Java lays it out."""
    timeline = load_timeline(storage, table.config)
    oldest = timeline.completed[:count]
    moved = [ArchivedInstant(i, metadata=load_content(storage, table.config, i)) for i in oldest]
    name = encode_history_name(HistoryName(oldest[0].requested_at.value, oldest[-1].requested_at.value, 0))
    content = encode_history_file(moved)
    storage.put(f"{HISTORY}/{name}", content)
    storage.put(f"{HISTORY}/manifest_1", encode_manifest([HistoryFile(name, len(content))]))
    storage.put(f"{HISTORY}/_version_", encode_version(1))
    for instant in oldest:
        for file in storage.list_files(".hoodie/timeline"):
            if file.name.startswith(instant.requested_at.value):
                storage.delete(file.path)
    assert len(load_timeline(storage, table.config)) == len(timeline) - count


def write_history(table: tk.Table) -> list[tk.WriteResult]:
    return [
        table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0), ("c", "la", 1, 1.0))),
        table.upsert(trips(("a", "sf", 2, 2.0))),
        table.insert_overwrite(trips(("d", "la", 1, 1.0))),
        table.upsert(trips(("b", "sf", 2, 2.0, "new"), schema=NOTES)),
        table.upsert(trips(("a", "sf", 3, 3.0, "newer"), schema=NOTES)),
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_rows_moments_and_changes_are_the_same_after_archiving(
    tables: TableBuilder, table: tk.Table, count: int
) -> None:
    results = write_history(table)

    def answers() -> list[object]:
        moments = [rows_of(table.read(as_of=r.instant)) for r in results]
        windows = [rows_of(table.changes(since=bound)) for r in results for bound in (r.instant, r.completed_at)]
        return [*moments, *windows, rows_of(table.changes()), rows_of(table.changes(until=results[1].instant))]

    before = answers()
    archive(tables.storage(table), table, count)
    assert answers() == before


def test_a_replace_commit_is_archived_after_its_files_were_cleaned_and_changes_still_leave_them_out(
    tables: TableBuilder, table: tk.Table
) -> None:
    results = write_history(table)
    storage = tables.storage(table)
    live = {name for s in table.files() for name in [s.base.name if s.base else "", *(log.name for log in s.logs)]}
    for file in storage.list_files("la"):
        if file.name not in live and not file.name.startswith(".hoodie"):
            storage.delete(file.path)
    rows, changes = rows_of(table.read()), rows_of(table.changes())
    archive(storage, table, 4)
    assert rows_of(table.read()) == rows
    assert rows_of(table.changes()) == changes
    assert rows_of(table.changes(since=results[2].instant), "id") == [("a",), ("b",)]
    with pytest.raises(StorageError, match="was cleaned"):
        table.changes(until=results[1].instant)


def clean(storage: Storage, table: tk.Table, retained: tk.WriteResult, *, completes: bool) -> None:
    """What a clean leaves on the timeline."""
    started_at = "20400101000000000"
    kept = RetainedInstant(retained.instant.value, "commit", "COMPLETED")
    files = {"la": (CleanFile("la/gone.parquet"),)}
    plan = encode_clean_plan(CleanPlan("KEEP_LATEST_COMMITS", files=files, earliest_instant_to_retain=kept))
    storage.put(f".hoodie/timeline/{started_at}.clean.requested", plan)
    storage.put(f".hoodie/timeline/{started_at}.clean.inflight", b"")
    if completes:
        metadata = CleanMetadata(started_at, 1, 1, earliest_commit_to_retain=retained.instant.value)
        storage.put(f".hoodie/timeline/{started_at}_{started_at}.clean", encode_clean_metadata(metadata))


@pytest.mark.parametrize("completes", [True, False], ids=["completed", "under way"])
def test_a_moment_whose_files_were_cleaned_is_refused_and_not_read_in_part(
    tables: TableBuilder, table: tk.Table, completes: bool
) -> None:
    results = write_history(table)
    clean(tables.storage(table), table, results[2], completes=completes)
    assert rows_of(table.read(as_of=results[2].instant), "id") == [("a",), ("b",), ("d",)]
    with pytest.raises(InvalidRequestError, match="was cleaned"):
        table.read(as_of=results[1].instant)
    assert table.read().num_rows == 3


@pytest.mark.parametrize("archived", [0, 3], ids=["active", "archived"])
def test_a_clean_that_deleted_nothing_leaves_every_moment_readable(
    tables: TableBuilder, table: tk.Table, archived: int
) -> None:
    results = write_history(table)
    completed_at = results[1].completed_at
    assert completed_at is not None
    storage, time = tables.storage(table), completed_at.value
    nothing = CleanMetadata(time, 1, 0, earliest_commit_to_retain=results[1].instant.value)
    storage.put(f".hoodie/timeline/{time}_{time}.clean", encode_clean_metadata(nothing))
    if archived:
        archive(storage, table, archived)
    assert rows_of(table.read(as_of=results[0].instant), "id") == [("a",), ("b",), ("c",)]


def test_a_savepointed_moment_can_be_read_whatever_was_cleaned(tables: TableBuilder, table: tk.Table) -> None:
    results = write_history(table)
    storage = tables.storage(table)
    clean(storage, table, results[3], completes=True)
    kept = results[1].instant.value
    storage.put(f".hoodie/timeline/{kept}_20400101000000001.savepoint", b"")
    assert rows_of(table.read(as_of=kept), "id", "fare") == [("a", 2.0), ("b", 1.0), ("c", 1.0)]


def test_the_schema_of_an_archived_moment_is_the_one_it_had(tables: TableBuilder, table: tk.Table) -> None:
    first = table.upsert(trips(("a", "sf", 1, 1.0)))
    table.upsert(trips(("b", "sf", 1, 1.0, "x"), schema=NOTES))
    table.upsert(trips(("c", "sf", 1, 1.0, "x"), schema=NOTES))
    archive(tables.storage(table), table, 2)
    assert table.read(as_of=first.instant).schema.names == TRIPS.names
    assert table.schema.names == NOTES.names


def test_a_moment_before_the_archived_commits_is_refused_too(tables: TableBuilder, table: tk.Table) -> None:
    write_history(table)
    archive(tables.storage(table), table, 2)
    with pytest.raises(InvalidRequestError, match="no commit at or before"):
        table.read(as_of="2001-01-01")


def test_writes_go_on_after_archiving(tables: TableBuilder, table: tk.Table) -> None:
    write_history(table)
    archive(tables.storage(table), table, 2)
    table.upsert(trips(("a", "sf", 9, 9.0), ("e", "sf", 9, 9.0)))
    table.delete(trips(("b", "sf")))
    assert rows_of(table.read(), "id", "fare") == [("a", 9.0), ("d", 1.0), ("e", 9.0)]
