"""A commit that is rolled back between the listing of the timeline and the reading of the commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.meanwhile import Arena
from tests.support.table_builder import TableBuilder, trips

__all__: list[str] = []


@pytest.fixture
def arena() -> Iterator[Arena]:
    """A table with two commits, the newest of which is rolled back when the first client is about to read it."""
    builder = TableBuilder()
    table = builder.create(table_type="cow")
    table.upsert(trips(("a", "sf", 1, 1.0)))
    newest = table.upsert(trips(("a", "sf", 2, 2.0)))
    made = Arena(builder, table)
    made.meanwhile(
        lambda other: other.rollback(newest.instant),
        when=lambda kind, path: kind == "read" and f"/{newest.instant}_" in path,
    )
    yield made
    builder.forget()


def test_a_read_gives_the_rows_before_it(arena: Arena) -> None:
    rows = arena.writer.read().select(["id", "ts"]).to_pylist()
    assert arena.storage.action is None
    assert rows == [{"id": "a", "ts": 1}]


def test_a_write_goes_on_from_the_commit_before_it(arena: Arena) -> None:
    arena.writer.upsert(trips(("b", "sf", 3, 3.0)))
    assert arena.storage.action is None
    assert arena.rows("id", "ts") == [("a", 1), ("b", 3)]
