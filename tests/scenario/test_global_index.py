"""Global indexes without a record index: keys are found in whatever partition they are, and rows move if told to."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError
from tablekeeper.write import global_look_up, prepare, staging
from tests.support.meanwhile import Arena
from tests.support.record_index_content import stored_groups
from tests.support.table_builder import TRIPS, TableBuilder, rows_of, trips

__all__: list[str] = []

KEYS = "abcdefghijkl"
DELETABLE = TRIPS.append(pa.field("_hoodie_is_deleted", pa.bool_()))
BY_COMMIT_TIME = {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"}
STAYS = {
    "hoodie.simple.index.update.partition.path": "false",
    "hoodie.bloom.index.update.partition.path": "false",
}


@pytest.fixture
def builder() -> Iterator[TableBuilder]:
    made = TableBuilder()
    yield made
    made.forget()


def rows(table: tk.Table) -> list[tuple[str, str, int]]:
    return rows_of(table.read(), "id", "city", "ts")


def partition_of(table: tk.Table, key: str) -> str:
    """The partition that has the key, whatever the row says."""
    return next(group.partition for name, group in stored_groups(table).items() if name == key)


kinds = pytest.mark.parametrize("kind", ["GLOBAL_SIMPLE", "GLOBAL_BLOOM"])
types = pytest.mark.parametrize("table_type", ["cow", "mor"])


def opened(builder: TableBuilder, table: tk.Table, kind: str, **more: str) -> tk.Table:
    return builder.through(table, options={"hoodie.index.type": kind, **more})


@kinds
@types
def test_a_row_that_names_another_partition_moves_there(builder: TableBuilder, table_type: str, kind: str) -> None:
    table = opened(builder, builder.create(table_type=table_type), kind)
    table.upsert(trips(("a", "sf", 1), ("b", "sf", 1), ("c", "la", 1)))
    result = table.upsert(trips(("a", "la", 2), ("b", "sf", 2), ("n", "ny", 2)))
    assert rows(table) == [("a", "la", 2), ("b", "sf", 2), ("c", "la", 1), ("n", "ny", 2)]
    assert result.partitions == ("la", "ny", "sf")
    table.upsert(trips(("a", "sf", 3), ("c", "sf", 3)))
    assert rows(table) == [("a", "sf", 3), ("b", "sf", 2), ("c", "sf", 3), ("n", "ny", 2)]
    if table_type == "mor":
        table.compact()
    assert rows(table) == [("a", "sf", 3), ("b", "sf", 2), ("c", "sf", 3), ("n", "ny", 2)]


@kinds
@types
def test_a_row_stays_where_its_key_is_if_told_so(builder: TableBuilder, table_type: str, kind: str) -> None:
    table = builder.through(builder.create(table_type=table_type), options={"hoodie.index.type": kind, **STAYS})
    table.upsert(trips(("a", "sf", 1), ("c", "la", 1)))
    result = table.upsert(trips(("a", "la", 2), ("n", "ny", 2)))
    # The columns are those of the new row, as in Java; the file group is the old one.
    assert result.partitions == ("ny", "sf")
    assert [(key, ts) for key, _, ts in rows(table)] == [("a", 2), ("c", 1), ("n", 2)]


@kinds
@types
def test_a_row_that_is_older_than_the_stored_one_does_not_move(
    builder: TableBuilder, table_type: str, kind: str
) -> None:
    table = opened(builder, builder.create(table_type=table_type), kind)
    table.upsert(trips(("a", "sf", 5), ("b", "sf", 5)))
    table.upsert(trips(("a", "la", 4), ("b", "la", 5)))
    assert rows(table) == [("a", "sf", 5), ("b", "la", 5)]
    table.upsert(trips(("a", "ny", 6)))
    table.upsert(trips(("a", "sf", 5), ("b", "sf", 4)))
    assert rows(table) == [("a", "ny", 6), ("b", "la", 5)]


@types
def test_by_commit_time_the_later_row_moves(builder: TableBuilder, table_type: str) -> None:
    made = builder.create(table_type=table_type, ordering=None, options=BY_COMMIT_TIME)
    table = opened(builder, made, "GLOBAL_SIMPLE")
    table.upsert(trips(("a", "sf", 5)))
    table.upsert(trips(("a", "la", 4)))
    table.upsert(trips(("a", "la", 3), ("a", "ny", 2)))
    assert rows(table) == [("a", "ny", 2)]
    table.upsert(trips(("a", "sf", 2), ("b", "sf", 2), ("a", "la", 1), ("b", "ny", 1), ("b", "la", 1)))
    assert rows(table) == [("a", "la", 1), ("b", "la", 1)]


@types
@pytest.mark.parametrize("mode", [{}, STAYS])
def test_of_rows_for_several_partitions_the_newest_counts(
    builder: TableBuilder, table_type: str, mode: dict[str, str]
) -> None:
    table = opened(builder, builder.create(table_type=table_type), "GLOBAL_SIMPLE", **mode)
    table.upsert(trips(("n", "sf", 2), ("n", "la", 3), ("n", "ny", 1)))
    assert rows(table) == [("n", "la", 3)]
    table.upsert(trips(("n", "sf", 4), ("n", "la", 5), ("n", "ny", 6)))
    (found,) = rows(table)
    assert found == ("n", "ny", 6)


@types
@pytest.mark.parametrize("mode", [{}, STAYS])
def test_keys_are_deleted_wherever_they_are(builder: TableBuilder, table_type: str, mode: dict[str, str]) -> None:
    table = opened(builder, builder.create(table_type=table_type, schema=DELETABLE), "GLOBAL_SIMPLE", **mode)
    table.upsert(trips(("a", "sf", 1), ("b", "la", 1), ("c", "ny", 1), schema=DELETABLE))
    table.delete(trips(("a",), ("nobody",)).select(["id"]))
    assert rows(table) == [("b", "la", 1), ("c", "ny", 1)]
    table.upsert(
        trips(("b", "sf", 0, None, True), ("c", "sf", 2, None, True), ("d", "sf", 2, None, True), schema=DELETABLE)
    )
    assert rows(table) == [("b", "la", 1)]


@kinds
def test_a_table_without_partitions_has_no_use_for_it_and_no_harm(builder: TableBuilder, kind: str) -> None:
    table = opened(builder, builder.create(partition_by=None), kind)
    table.upsert(trips(("a", "sf", 1), ("b", "sf", 1)))
    table.upsert(trips(("a", "la", 2), ("c", "sf", 2)))
    table.delete(trips(("b",)).select(["id"]))
    assert rows(table) == [("a", "la", 2), ("c", "sf", 2)]


@pytest.mark.parametrize("mode", [{}, STAYS])
def test_a_key_that_a_log_has_deleted_goes_where_java_has_it(builder: TableBuilder, mode: dict[str, str]) -> None:
    table = opened(builder, builder.create(table_type="mor"), "GLOBAL_SIMPLE", **mode)
    table.upsert(trips(("a", "sf", 1), ("b", "sf", 1)))
    table.delete(trips(("a", "sf")))
    table.upsert(trips(("a", "la", 2)))
    assert rows(table) == [("a", "la", 2), ("b", "sf", 1)]
    table.upsert(trips(("a", "sf", 3)))
    table.compact()
    assert [(key, ts) for key, _, ts in rows(table)] == [("a", 3), ("b", 1)]
    # Java looks into base files if rows stay, and into the merged slice if they move.
    assert partition_of(table, "a") == "sf"
    table.delete(trips(("b",)).select(["id"]))
    table.upsert(trips(("b", "ny", 2)))
    assert partition_of(table, "b") == ("sf" if mode else "ny")


def test_keys_that_were_there_several_times_are_there_once_when_their_row_moves(builder: TableBuilder) -> None:
    table = builder.create()
    table.insert(trips(("a", "sf", 1), ("a", "la", 2), ("b", "sf", 1), ("b", "la", 9)))
    table = opened(builder, table, "GLOBAL_SIMPLE")
    table.upsert(trips(("a", "ny", 3), ("b", "ny", 3)))
    assert rows(table) == [("a", "ny", 3), ("b", "la", 9)]
    table = opened(builder, table, "GLOBAL_SIMPLE", **STAYS)
    table.insert(trips(("a", "sf", 1)))
    table.upsert(trips(("a", "sf", 4)))
    assert [(key, ts) for key, _, ts in rows(table)] == [("a", 4), ("a", 4), ("b", 9)]


def test_a_row_stays_where_its_key_is_and_not_where_it_was(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor")
    moving = opened(builder, table, "GLOBAL_SIMPLE")
    moving.upsert(trips(("a", "sf", 1), ("b", "sf", 1)))
    moving.upsert(trips(("a", "la", 2)))
    opened(builder, table, "GLOBAL_SIMPLE", **STAYS).upsert(trips(("a", "ny", 3)))
    assert [(key, ts) for key, _, ts in rows(table)] == [("a", 3), ("b", 1)]
    assert partition_of(table, "a") == "la"


@types
@pytest.mark.parametrize("mode", [{}, STAYS])
@pytest.mark.parametrize("keys_a_task", [3, 1 << 20])
def test_random_writes_give_what_a_dictionary_gives(
    builder: TableBuilder, table_type: str, mode: dict[str, str], keys_a_task: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that were deleted come back with greater ordering values only: Hudi has rules of its own for the others."""
    monkeypatch.setattr(global_look_up, "_KEYS_A_TASK", keys_a_task)
    monkeypatch.setattr(staging, "_ROWS_A_LANE", keys_a_task)
    if keys_a_task < len(KEYS):
        monkeypatch.setattr(prepare, "_CARRIED_BYTES", 0)
    random = Random(7)
    expected: dict[str, tuple[str, int]] = {}
    buried: set[str] = set()
    made = builder.create(table_type=table_type)
    for step in range(1, 25):
        table = opened(builder, made, random.choice(["GLOBAL_SIMPLE", "GLOBAL_BLOOM"]), **mode)
        keys = random.choices(KEYS, k=random.randint(1, 5))
        if random.random() < 0.2:
            table.delete(trips(*((key, random.choice(["sf", "la"])) for key in keys)))
            buried |= {key for key in keys if expected.pop(key, None)}
        else:
            late = [0 if key in buried else random.randint(0, 15) for key in keys]
            given = [
                (key, random.choice(["sf", "la", "ny"]), 10 * step - lag) for key, lag in zip(keys, late, strict=True)
            ]
            table.upsert(trips(*given))
            for key, city, ts in sorted(given, key=lambda row: row[2]):
                if key not in expected or expected[key][1] <= ts:
                    expected[key] = (city, ts)
        if random.random() < 0.2:
            table.cluster()
        elif table_type == "mor" and random.random() < 0.3:
            table.compact()
        columns = ["id", "ts"] if mode else ["id", "ts", "city"]
        model = sorted((key, ts, city)[: len(columns)] for key, (city, ts) in expected.items())
        assert rows_of(table.read(), *columns) == model, step


class TestConcurrentWriters:
    """Two writers of one key never leave it in the table twice, and no deletion is lost."""

    @pytest.fixture(params=["cow", "mor"])
    def arena(self, request: pytest.FixtureRequest, builder: TableBuilder) -> Arena:
        table = builder.create(table_type=request.param)
        return Arena(builder, table, options={"hoodie.index.type": "GLOBAL_SIMPLE"})

    def test_both_bring_a_new_key_to_partitions_of_their_own(self, arena: Arena) -> None:
        arena.meanwhile(lambda t: t.upsert(trips(("a", "la", 1))))
        with pytest.raises(ConflictError, match="wrote the same keys"):
            arena.writer.upsert(trips(("a", "sf", 2)))
        arena.writer.upsert(trips(("a", "sf", 2)))
        assert arena.rows() == [("a", "sf", 2)]

    def test_both_move_a_key(self, arena: Arena) -> None:
        arena.other.upsert(trips(("a", "sf", 1)))
        arena.meanwhile(lambda t: t.upsert(trips(("a", "la", 2))))
        with pytest.raises(ConflictError, match="touches the same file groups"):
            arena.writer.upsert(trips(("a", "ny", 3)))
        assert arena.rows() == [("a", "la", 2)]

    def test_one_deletes_the_key_that_the_other_moves(self, arena: Arena) -> None:
        arena.other.upsert(trips(("a", "sf", 1)))
        arena.meanwhile(lambda t: t.upsert(trips(("a", "la", 2))))
        arena.writer.delete(trips(("a", "sf")), retries=1)
        assert arena.rows() == []

    def test_one_deletes_a_key_that_the_other_brings(self, arena: Arena) -> None:
        arena.meanwhile(lambda t: t.insert(trips(("a", "la", 2))))
        with pytest.raises(ConflictError, match="wrote the same keys"):
            arena.writer.delete(trips(("a", "sf")))

    def test_both_bring_back_a_key_that_a_log_has_deleted(self, arena: Arena) -> None:
        arena.other.upsert(trips(("a", "sf", 1), ("b", "sf", 1)))
        arena.other.delete(trips(("a", "sf")))
        arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 2))))
        with pytest.raises(ConflictError):
            arena.writer.upsert(trips(("a", "la", 3)))
        assert arena.rows() == [("a", "sf", 2), ("b", "sf", 1)]

    def test_other_keys_in_other_file_groups_are_no_conflict(self, arena: Arena) -> None:
        arena.other.upsert(trips(("a", "sf", 1), ("b", "la", 1)))
        arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 2), ("c", "ny", 2))))
        arena.writer.upsert(trips(("b", "la", 2), ("d", "la", 2)))
        assert arena.rows() == [("a", "sf", 2), ("b", "la", 2), ("c", "ny", 2), ("d", "la", 2)]
