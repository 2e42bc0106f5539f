"""Concurrency modes: several writers adding to the same buckets without conflict, and what becomes of failed writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError, FencedError, InvalidRequestError
from tablekeeper.model import Action
from tests.support.meanwhile import Arena, writes_data
from tests.support.recovery_world import LAPSED_S, World, for_every_death
from tests.support.table_builder import TableBuilder, trips

__all__: list[str] = []

MODE = "hoodie.write.concurrency.mode"
POLICY = "hoodie.clean.failed.writes.policy"
ONE_BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
NON_BLOCKING = {**ONE_BUCKET, MODE: "NON_BLOCKING_CONCURRENCY_CONTROL"}
OPTIMISTIC = {MODE: "OPTIMISTIC_CONCURRENCY_CONTROL"}
AFTER_ONE = {"hoodie.compact.inline.max.delta.commits": "1"}
SHARED_ID = "00000000-0000-0000-0000-000000000000-0"


@pytest.fixture
def builder() -> Iterator[TableBuilder]:
    builder = TableBuilder()
    yield builder
    builder.forget()


@pytest.fixture
def arena(builder: TableBuilder) -> Arena:
    """Two writers on a merge-on-read table with one bucket a partition, in the non-blocking mode."""
    return Arena(builder, builder.create(table_type="mor", options=NON_BLOCKING))


def groups(table: tk.Table) -> dict[str, tuple[bool, int]]:
    """Visible file groups, and of each whether it has a base file and how many logs."""
    return {str(s.group): (s.base is not None, len(s.logs)) for s in table.files()}


# --- the non-blocking mode


def test_two_writers_that_create_the_same_bucket_meet_in_one_file_group(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0))))
    arena.writer.upsert(trips(("c", "sf", 1, 1.0)))
    assert groups(arena.table) == {f"sf/{SHARED_ID}": (False, 2)}
    assert arena.rows() == [("a", "sf", 1), ("b", "sf", 1), ("c", "sf", 1)]


def test_the_first_write_of_a_bucket_is_a_log_file_that_counts_its_rows_as_inserts(arena: Arena) -> None:
    result = arena.table.upsert(trips(("a", "sf", 1, 1.0), ("b", "la", 1, 1.0)))
    assert all("/.0000" in path and ".log.1_" in path for path in result.files)
    assert (result.rows_inserted, result.rows_updated) == (2, 0)
    again = arena.table.upsert(trips(("a", "sf", 2, 2.0)))
    assert (again.rows_inserted, again.rows_updated) == (0, 1)


def test_the_same_new_keys_from_two_writers_are_no_conflict_and_the_ordering_value_decides(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 5, 5.0), ("b", "sf", 1, 1.0))))
    arena.writer.upsert(trips(("a", "sf", 3, 3.0), ("b", "sf", 3, 3.0)))
    assert arena.rows() == [("a", "sf", 5), ("b", "sf", 3)]


def test_updates_of_the_same_row_from_two_writers_are_no_conflict(arena: Arena) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 2, 2.0))))
    arena.writer.upsert(trips(("a", "sf", 3, 3.0)))
    assert arena.rows() == [("a", "sf", 3)]


def test_without_an_ordering_column_the_writer_that_began_later_wins(builder: TableBuilder) -> None:
    arena = Arena(builder, builder.create(table_type="mor", ordering=None, options=NON_BLOCKING))
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 2, 2.0))))
    arena.writer.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    assert arena.rows() == [("a", "sf", 2), ("b", "sf", 1)]


def test_a_row_is_deleted_by_a_writer_that_began_after_the_one_that_brings_it(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.delete(trips(("a", "sf"))))
    arena.writer.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    assert arena.rows() == [("b", "sf", 1)]


def test_a_delete_of_what_is_not_there_writes_nothing_if_nobody_else_is_at_work(arena: Arena) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    result = arena.table.delete(trips(("z", "la"), ("a", "sf")))
    assert result.partitions == ("sf",)
    assert arena.rows() == []


def test_a_bucket_that_an_optimistic_writer_made_keeps_its_file_group(builder: TableBuilder) -> None:
    table = builder.create(table_type="mor", options=ONE_BUCKET)
    table.upsert(trips(("a", "sf", 1, 1.0)))
    arena = Arena(builder, table, options=NON_BLOCKING)
    arena.meanwhile(lambda t: t.upsert(trips(("b", "sf", 1, 1.0))))
    arena.writer.upsert(trips(("c", "sf", 1, 1.0)))
    assert list(groups(table).values()) == [(True, 2)]
    assert arena.rows() == [("a", "sf", 1), ("b", "sf", 1), ("c", "sf", 1)]


def test_a_bucket_for_which_an_optimistic_writer_made_another_file_group_meanwhile_is_a_conflict(arena: Arena) -> None:
    optimistic = arena.builder.through(arena.table, options=OPTIMISTIC)
    arena.meanwhile(lambda _: optimistic.upsert(trips(("a", "sf", 1, 1.0))))
    with pytest.raises(ConflictError) as caught:
        arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    assert caught.value.file_groups == (f"sf/{SHARED_ID}",)
    arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    assert arena.rows() == [("a", "sf", 2)]


def test_a_partition_that_was_deleted_meanwhile_is_a_conflict_and_the_retry_is_seen(arena: Arena) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    arena.meanwhile(lambda t: t.delete_partitions(["sf"]))
    with pytest.raises(ConflictError) as caught:
        arena.writer.upsert(trips(("b", "sf", 2, 2.0)))
    assert caught.value.file_groups == (f"sf/{SHARED_ID}",)
    arena.writer.upsert(trips(("b", "sf", 2, 2.0)))
    assert arena.rows() == [("b", "sf", 2)]


def test_writers_agree_on_a_new_file_group_for_a_bucket_whose_first_one_was_deleted(arena: Arena) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    arena.table.delete_partitions(["sf"])
    arena.meanwhile(lambda t: t.upsert(trips(("b", "sf", 1, 1.0))))
    arena.writer.upsert(trips(("c", "sf", 1, 1.0)))
    assert groups(arena.table) == {"sf/00000000-0000-0000-0000-000000000000-1": (False, 2)}
    assert arena.rows() == [("b", "sf", 1), ("c", "sf", 1)]


def test_a_deletion_of_partitions_that_missed_a_new_bucket_is_a_conflict(arena: Arena) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    arena.meanwhile(lambda t: t.upsert(trips(("b", "sf", 2, 2.0))), when=".replacecommit.inflight")
    with pytest.raises(ConflictError):
        arena.writer.delete_partitions(["sf"])
    assert arena.rows() == [("a", "sf", 1), ("b", "sf", 2)]


def test_a_bulk_insert_makes_a_base_file_and_loses_against_a_writer_of_the_same_bucket(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.upsert(trips(("a", "sf", 1, 1.0))))
    with pytest.raises(ConflictError):
        arena.writer.bulk_insert(trips(("b", "sf", 2, 2.0)))
    arena.writer.bulk_insert(trips(("b", "la", 2, 2.0)))
    assert groups(arena.table) == {f"la/{SHARED_ID}": (True, 0), f"sf/{SHARED_ID}": (False, 1)}
    assert arena.rows() == [("a", "sf", 1), ("b", "la", 2)]


def test_a_bulk_insert_that_lands_first_lies_below_the_logs_of_a_writer_that_was_at_work(arena: Arena) -> None:
    arena.meanwhile(lambda t: t.bulk_insert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0))))
    arena.writer.upsert(trips(("a", "sf", 2, 2.0)))
    assert groups(arena.table) == {f"sf/{SHARED_ID}": (True, 1)}
    assert arena.rows() == [("a", "sf", 2), ("b", "sf", 1)]


@pytest.mark.parametrize("is_executed", [False, True], ids=["scheduled", "executed"])
def test_a_compaction_meanwhile_is_no_conflict_and_lies_below_the_logs_of_the_writer(
    arena: Arena, is_executed: bool
) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))
    arena.table.upsert(trips(("b", "sf", 2, 2.0)))

    def compact(other: tk.Table) -> None:
        plan = other.schedule_compaction(options=AFTER_ONE)
        if is_executed:
            other.execute(plan)

    arena.meanwhile(compact)
    arena.writer.upsert(trips(("a", "sf", 3, 3.0), ("c", "sf", 3, 3.0)))
    expected = [("a", "sf", 3), ("b", "sf", 2), ("c", "sf", 3)]
    assert arena.rows() == expected
    arena.table.compact(options=AFTER_ONE)
    assert arena.rows() == expected
    assert groups(arena.table)[f"sf/{SHARED_ID}"][0]


def test_a_compaction_that_runs_beside_writers_loses_none_of_their_rows(arena: Arena) -> None:
    """Two writers come in while it is running, and overlap each other."""
    arena.table.upsert(trips(("a", "sf", 1, 1.0), ("b", "sf", 1, 1.0)))

    def interfere(other: tk.Table) -> None:
        inner = Arena(arena.builder, arena.table)
        inner.meanwhile(lambda t: t.upsert(trips(("c", "sf", 2, 2.0), ("a", "sf", 2, 2.0))))
        inner.writer.upsert(trips(("d", "sf", 3, 3.0), ("a", "sf", 3, 3.0)))

    arena.meanwhile(interfere, when=writes_data)
    assert arena.writer.compact(options=AFTER_ONE) is not None
    assert arena.rows() == [("a", "sf", 3), ("b", "sf", 1), ("c", "sf", 2), ("d", "sf", 3)]
    arena.table.compact(options=AFTER_ONE)
    assert arena.rows() == [("a", "sf", 3), ("b", "sf", 1), ("c", "sf", 2), ("d", "sf", 3)]


def test_the_rollback_of_a_dead_writer_leaves_the_logs_of_others_in_the_shared_group() -> None:
    world = World(table_type="mor", options=NON_BLOCKING)
    world.upsert(trips(("a", "sf", 1, 1.0)))
    world.crash(trips(("b", "sf", 1, 1.0)))
    world.upsert(trips(("c", "sf", 1, 1.0)))
    world.clock.advance(LAPSED_S)
    world.upsert(trips(("d", "sf", 1, 1.0)))
    assert world.rows("id") == [("a",), ("c",), ("d",)]
    assert len(world.data_files()) == 3
    assert not world.timeline.pending
    world.forget()


def test_a_writer_that_dies_anywhere_harms_nobody_in_the_shared_group() -> None:
    world = World(table_type="mor", metadata=True, options=NON_BLOCKING)
    world.upsert(trips(("a", "sf", 1, 1.0)))

    def check(after: World) -> None:
        assert after.rows("id", "ts") in ([("a", 1)], [("a", 2), ("b", 2)])
        after.upsert(trips(("c", "sf", 1, 1.0)))
        after.clock.advance(LAPSED_S)
        after.upsert(trips(("c", "sf", 2, 1.0)))
        assert after.rows("id", "ts") in ([("a", 1), ("c", 2)], [("a", 2), ("b", 2), ("c", 2)])
        after.refuse_stale_metadata_table()
        assert not after.timeline.pending

    steps = for_every_death(world, lambda t: t.upsert(trips(("a", "sf", 2, 2.0), ("b", "sf", 2, 2.0))), check)
    assert steps > 5
    world.forget()


@pytest.mark.parametrize("operation", ["insert_overwrite", "insert_overwrite_table"])
def test_overwriting_is_refused_before_anything_is_written(arena: Arena, operation: str) -> None:
    arena.table.upsert(trips(("a", "sf", 1, 1.0)))
    with pytest.raises(InvalidRequestError, match=f"{operation} replaces the file groups that others are adding to"):
        getattr(arena.table, operation)(trips(("b", "sf", 1, 1.0)))
    assert len(arena.table.timeline()) == 1


@pytest.mark.parametrize(
    ("table_type", "options", "words"),
    [("cow", NON_BLOCKING, "copy on write"), ("mor", {MODE: NON_BLOCKING[MODE]}, "no bucket")],
)
def test_a_table_that_cannot_be_shared_is_refused_when_it_is_created_and_when_it_is_written(
    builder: TableBuilder, table_type: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        builder.create(table_type=table_type, options=options)
    without_mode = {name: value for name, value in options.items() if name != MODE}
    table = builder.create(table_type=table_type, options=without_mode)
    with pytest.raises(InvalidRequestError, match=words):
        builder.through(table, options=options).upsert(trips(("a", "sf", 1, 1.0)))
    assert len(table.timeline()) == 0


@pytest.mark.parametrize("count", ["2", "3", "8"])
def test_another_number_of_buckets_is_refused_although_there_is_no_base_file_yet(
    builder: TableBuilder, count: str
) -> None:
    table = builder.create(table_type="mor", options={**NON_BLOCKING, "hoodie.bucket.index.num.buckets": "4"})
    table.upsert(trips(*((str(n), "sf", 1, 1.0) for n in range(40))))
    other = builder.through(table, options={"hoodie.bucket.index.num.buckets": count})
    with pytest.raises(InvalidRequestError, match=rf"num\.buckets is {count}"):
        other.upsert(trips(("1", "sf", 2, 2.0)))
    table.upsert(trips(("1", "sf", 2, 2.0)))


# --- what becomes of failed writes


def other_write(arena: Arena, *, policy: str, mode: str) -> None:
    """While the writer is running, one with this policy begins and commits in another partition."""
    other = arena.builder.through(arena.table, options={MODE: mode, POLICY: policy})
    arena.meanwhile(lambda _: other.upsert(trips(("b", "la", 1, 1.0))))


@pytest.fixture
def plain(builder: TableBuilder) -> Arena:
    return Arena(builder, builder.create(table_type="cow"))


def test_an_eager_single_writer_rolls_back_a_pending_write_although_it_lives_and_the_victim_is_told(
    plain: Arena,
) -> None:
    other_write(plain, policy="EAGER", mode="SINGLE_WRITER")
    with pytest.raises(FencedError, match="ended this work"):
        plain.writer.upsert(trips(("a", "sf", 1, 1.0)))
    assert plain.rows() == [("b", "la", 1)]
    assert [i.action for i in plain.table.timeline()] == [Action.COMMIT, Action.ROLLBACK]


@pytest.mark.parametrize(
    ("policy", "mode"),
    [("LAZY", "SINGLE_WRITER"), ("NEVER", "SINGLE_WRITER"), ("LAZY", "OPTIMISTIC_CONCURRENCY_CONTROL")],
)
def test_other_policies_leave_a_live_write_alone(plain: Arena, policy: str, mode: str) -> None:
    other_write(plain, policy=policy, mode=mode)
    plain.writer.upsert(trips(("a", "sf", 1, 1.0)))
    assert plain.rows() == [("a", "sf", 1), ("b", "la", 1)]


@pytest.mark.parametrize(("policy", "is_left"), [("NEVER", True), ("LAZY", False)])
def test_a_dead_write_is_rolled_back_by_the_next_writer_unless_the_policy_says_never(
    policy: str, is_left: bool
) -> None:
    world = World(options={POLICY: policy})
    dead = world.crash(trips(("a", "sf", 1, 1.0)))
    world.clock.advance(LAPSED_S)
    world.upsert(trips(("b", "la", 1, 1.0)))
    assert [i.requested_at.value for i in world.timeline.pending] == ([dead] if is_left else [])
    assert world.rows("id") == [("b",)]
    world.forget()


def test_a_write_that_nobody_may_roll_back_by_itself_can_be_rolled_back_by_hand() -> None:
    world = World(options={POLICY: "NEVER"})
    dead = world.crash(trips(("a", "sf", 1, 1.0)))
    world.clock.advance(LAPSED_S)
    world.upsert(trips(("b", "la", 1, 1.0)))
    world.table.rollback(dead)
    assert not world.timeline.pending
    world.forget()


def test_an_eager_writer_tidies_up_after_a_crash_without_waiting_for_the_heartbeat_to_lapse() -> None:
    world = World(options={MODE: "SINGLE_WRITER"})
    world.crash(trips(("a", "sf", 1, 1.0)))
    world.upsert(trips(("b", "la", 1, 1.0)))
    assert not world.timeline.pending
    assert {path.partition("/")[0] for path in world.data_files()} == {"la"}
    world.forget()
