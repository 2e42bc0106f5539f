"""Commits that came in while a write was running and share no file group with it, but keys or partitions.

The other commit lands when the first writer has written its files and is about to commit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tablekeeper.errors import ConflictError
from tests.support.meanwhile import Arena
from tests.support.table_builder import TableBuilder, trips

__all__: list[str] = []


@pytest.fixture(params=["cow", "mor"])
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    builder = TableBuilder()
    yield Arena(builder, builder.create(table_type=request.param))
    builder.forget()


def test_a_key_that_another_upsert_brought_first_is_a_conflict_that_names_its_file_group(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 1, 1.0))))
    with pytest.raises(ConflictError, match="wrote the same keys") as caught:
        arena.writer.upsert(trips(("a", "sf", 2, 2.0), ("b", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "sf", 1)]
    (group,) = caught.value.file_groups
    assert group.startswith("sf/")
    assert caught.value.beaten_by == str(arena.table.timeline()[0].requested_at)


def test_the_retry_updates_the_row_that_another_upsert_brought(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 1, 1.0))))
    arena.writer.upsert(trips(("a", "sf", 2, 2.0), ("b", "sf", 2, 2.0)), retries=1)
    assert arena.rows() == [("a", "sf", 2), ("b", "sf", 2)]


def test_a_key_that_an_insert_brought_first_is_a_conflict_for_an_upsert(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.bulk_insert(trips(("a", "sf", 1, 1.0))))
    with pytest.raises(ConflictError, match="wrote the same keys"):
        arena.writer.upsert(trips(("a", "sf", 2, 2.0)))


def test_other_keys_in_the_same_new_partition_are_no_conflict(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 1, 1.0))))
    arena.writer.upsert(trips(("b", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "sf", 1), ("b", "sf", 2)]


def test_the_same_keys_in_another_partition_are_no_conflict(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.upsert(trips(("a", "la", 1, 1.0))))
    arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "la", 1), ("a", "sf", 2)]


def test_an_insert_does_not_care_for_the_keys_of_others(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.insert(trips(("a", "sf", 1, 1.0))))
    arena.writer.insert(trips(("a", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "sf", 1), ("a", "sf", 2)]


def test_a_key_that_was_brought_while_it_was_being_deleted_does_not_outlive_its_deletion(arena: Arena) -> None:
    arena.table.upsert(trips(("c", "la", 1, 1.0)))
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 1, 1.0))))
    arena.writer.delete(trips(("a", "sf"), ("c", "la")), retries=1)
    assert arena.rows() == []


@pytest.mark.parametrize("operation", ["insert_overwrite", "insert_overwrite_table"])
def test_an_overwrite_hides_what_came_into_its_partition_meanwhile(arena: Arena, operation: str) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    overwrite = getattr(arena.writer, operation)
    arena.meanwhile(lambda t: t.bulk_insert(trips(("b", "sf", 1, 1.0))))
    with pytest.raises(ConflictError, match="keys or partitions"):
        overwrite(trips(("c", "sf", 2, 2.0)))
    arena.meanwhile(lambda t: t.bulk_insert(trips(("d", "sf", 1, 1.0))))
    overwrite(trips(("c", "sf", 2, 2.0)), retries=1)
    assert arena.rows() == [("c", "sf", 2)]


def test_an_overwrite_of_another_partition_is_no_conflict(arena: Arena) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    arena.meanwhile(lambda t: t.bulk_insert(trips(("b", "la", 1, 1.0))))
    arena.writer.insert_overwrite(trips(("c", "sf", 2, 2.0)))
    assert arena.rows() == [("b", "la", 1), ("c", "sf", 2)]


def test_the_deletion_of_a_partition_is_refused_if_rows_came_into_it_meanwhile(arena: Arena) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    arena.meanwhile(lambda t: t.bulk_insert(trips(("b", "sf", 1, 1.0))), when="sf")
    with pytest.raises(ConflictError, match="keys or partitions"):
        arena.writer.delete_partitions(["sf"])
    assert arena.rows() == [("a", "sf", 1), ("b", "sf", 1)]


def test_files_of_others_are_looked_into_without_the_lock(arena: Arena) -> None:
    holders: list[object] = []
    files: set[str] = set()

    def look(kind: str, path: str) -> None:
        if kind == "open_input" and path in files:
            holders.append(arena.other.lock_holder())

    arena.storage.watch = look
    arena.meanwhile(lambda t: files.update(t.upsert(trips(("a", "sf", 1, 1.0))).files))
    arena.writer.upsert(trips(("b", "sf", 2, 2.0)))
    assert holders == [None]
    assert arena.rows() == [("a", "sf", 1), ("b", "sf", 2)]


def test_a_write_that_nobody_disturbed_loads_the_timeline_once_under_the_lock_to_commit(arena: Arena) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    arena.storage.reset()
    arena.writer.upsert(trips(("b", "la", 2, 2.0)))
    calls = arena.storage.calls
    inflight = next(n for n, (_, path) in enumerate(calls) if path.endswith("inflight"))
    assert [path for kind, path in calls[inflight:] if kind == "list_files" and path.endswith("timeline")] == [
        ".hoodie/timeline"
    ]
