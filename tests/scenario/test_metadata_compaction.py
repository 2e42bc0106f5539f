"""The metadata table is looked after by cleans and archives: it says the same before and after, and does not grow."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.config.metadata_settings import MetadataSettings
from tablekeeper.config.options import Options
from tablekeeper.config.table_properties import METADATA_INFLIGHT_KEY, METADATA_PARTITIONS_KEY
from tablekeeper.errors import CorruptTableError, InvalidRequestError, StorageError
from tablekeeper.format.commit_metadata import decode_commit_metadata
from tablekeeper.format.hfile import HFileReader
from tablekeeper.format.plans import CompactionPlan, decode_compaction_plan, encode_compaction_plan
from tablekeeper.metadata_table import compaction
from tablekeeper.metadata_table.compaction import compact_metadata_table
from tablekeeper.metadata_table.layout import METADATA_DIRECTORY, metadata_config
from tablekeeper.metadata_table.result import MetadataCompaction
from tablekeeper.model import Action, Operation, RequestedTime, State
from tablekeeper.services.archive import ArchiveResult
from tablekeeper.storage import Storage
from tablekeeper.table import maintenance
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.properties_file import change_properties
from tablekeeper.txn.environment import load_environment
from tests.support.metadata_content import load_content, load_slices, metadata_files, metadata_timeline
from tests.support.recovery_world import World
from tests.support.step_faults import one_thread_runtime
from tests.support.table_builder import trips

__all__: list[str] = []

TIMELINE = f"{METADATA_DIRECTORY}/.hoodie/timeline"


def written(make: Callable[..., World], count: int = 6, **shape: Any) -> World:
    world = make(metadata=True, **shape)
    for n in range(count):
        write(world, n)
    return world


def write(world: World, n: int) -> None:
    world.upsert(trips((f"k{n % 5}", ("sf", "la")[n % 2], n, float(n)), (f"m{n}", "ny", n, float(n))))


def keep(world: World, *, after: int = 1, storage: Storage | None = None) -> MetadataCompaction:
    world.clock.advance(1)
    runtime = one_thread_runtime(world.clock, process=77)
    environment = load_environment(storage or world.storage, Options(None), runtime=runtime)
    return compact_metadata_table(environment, MetadataSettings(compact_after=after))


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_a_compaction_changes_nothing_of_what_the_metadata_table_says(
    make: Callable[..., World], table_type: str
) -> None:
    world = written(make, table_type=table_type)
    world.table.delete_partitions(["ny"])
    world.table.clean(keep_commits=1, options={"tablekeeper.metadata.compact": "false"})
    before, rows = load_content(world.storage), world.rows()
    assert {partition for partition, _ in before} == {"files", "column_stats", "partition_stats"}
    done = keep(world)
    assert done.instant is not None
    assert (done.files_written, done.is_held_up, done.reason) == (4, False, "")
    assert load_content(world.storage) == before
    assert world.rows() == rows
    world.refuse_stale_metadata_table()
    for slices in load_slices(world.storage).values():
        assert all(each.base_instant == done.instant and each.logs == () for each in slices)


def test_the_base_files_hold_what_is_there_and_no_deletions(make: Callable[..., World]) -> None:
    world = written(make)
    world.table.clean(keep_commits=1, options={"tablekeeper.metadata.compact": "false"})
    keep(world)
    ((files,), statistics) = (load_slices(world.storage)[name] for name in ("files", "column_stats"))
    assert files.base is not None
    reader = HFileReader(world.storage.read(files.base.path), file=files.base.path)
    assert [key for key, _ in reader.items()] == [b"__all_partitions__", b"la", b"ny", b"sf"]
    assert (reader.info[b"minRecordKey"], reader.info[b"maxRecordKey"]) == (b"__all_partitions__", b"sf")
    stored = sum(
        HFileReader(world.storage.read(each.base.path), file="").entry_count for each in statistics if each.base
    )
    assert stored == len([key for key in load_content(world.storage) if key[0] == "column_stats"])


def test_the_timeline_tells_of_the_compaction_as_java_does(make: Callable[..., World]) -> None:
    world = written(make)
    commits = len(metadata_timeline(world.storage).completed)
    done = keep(world)
    assert done.instant is not None
    completed = metadata_timeline(world.storage).find(done.instant)
    assert completed is not None
    assert (completed.action, completed.state) == (Action.COMMIT, State.COMPLETED)
    assert completed.completed_at is not None
    assert completed.completed_at.value > done.instant.value
    path = f"{TIMELINE}/{done.instant}_{completed.completed_at}.commit"
    metadata = decode_commit_metadata(world.storage.read(path), file=path)
    assert (metadata.operation, metadata.compacted, len(metadata.stats)) == (Operation.COMPACT, True, 4)
    sizes = {f"{METADATA_DIRECTORY}/{stat.path}": stat.size for stat in metadata.stats}
    assert sizes == {file.path: file.size for file in metadata_files(world.storage) if file.name.endswith(".hfile")}
    plan = decode_compaction_plan(world.storage.read(f"{TIMELINE}/{done.instant}.compaction.requested"), file="")
    assert {operation.group for operation in plan.operations} == {stat.group for stat in metadata.stats}
    assert all(operation.metrics["TOTAL_LOG_FILES_SIZE"] > 0 for operation in plan.operations)
    assert done.delta_commits == commits
    assert world.storage.stat(f"{TIMELINE}/{done.instant}.compaction.inflight") is not None


def test_it_is_due_by_the_number_of_delta_commits_and_costs_one_listing_if_it_is_not(
    make: Callable[..., World],
) -> None:
    world = written(make, count=2)
    _, storage, _ = world.client()
    done = keep(world, after=6, storage=storage)
    assert (done.instant, done.is_held_up) == (None, False)
    assert done.reason == "5 delta commits since its last compaction, 6 make one due"
    looked = [path for _, path in storage.calls if path.startswith(METADATA_DIRECTORY)]
    assert looked.count(TIMELINE) == 1
    # Beside the listing, the oldest instant is looked for once more: an archive may be running.
    assert len(looked) == 2
    assert keep(world, after=5).instant is not None
    assert keep(world, after=1).reason.startswith("0 delta commits")


@pytest.mark.parametrize("service", ["clean", "archive"])
def test_cleans_and_archives_look_after_the_metadata_table(make: Callable[..., World], service: str) -> None:
    world = written(make, count=12)
    (note,) = getattr(world.table, service)().notes
    assert note.startswith("the metadata table was compacted")
    compactions = [i for i in metadata_timeline(world.storage).completed if i.action is Action.COMMIT]
    assert len(compactions) == 1
    world.refuse_stale_metadata_table()


def test_an_explanation_of_the_archive_says_what_becomes_of_the_metadata_table(make: Callable[..., World]) -> None:
    world = written(make, count=9)
    assert world.table.explain_archive().notes == ("the metadata table would be compacted first",)
    assert metadata_timeline(world.storage).find(RequestedTime("00000000000000000")) is not None
    keep(world)
    (note,) = world.table.explain_archive().notes
    assert note.startswith("the metadata table would not be compacted first: 0 delta commits")


def test_options_leave_it_to_java(make: Callable[..., World]) -> None:
    world = written(make, count=9)
    for option in ({"tablekeeper.metadata.compact": "false"}, {"hoodie.metadata.compact.max.delta.commits": "100"}):
        assert world.table.archive(options=option).notes == ()
    assert all(i.action is Action.DELTA_COMMIT for i in metadata_timeline(world.storage))
    with pytest.raises(InvalidRequestError, match="the least is 1"):
        world.table.archive(options={"hoodie.metadata.compact.max.delta.commits": "0"})


def test_a_table_without_a_metadata_table_has_nothing_to_look_after(make: Callable[..., World]) -> None:
    world = make()
    world.upsert(trips(("a", "sf", 1, 1.0)))
    assert keep(world).reason == "there is no metadata table that is kept in step here"


def test_a_hundred_commits_keep_the_metadata_table_and_its_timeline_small(make: Callable[..., World]) -> None:
    world = make(metadata=True)
    options = {"hoodie.keep.min.commits": "12", "hoodie.keep.max.commits": "15", "hoodie.clean.commits.retained": "3"}
    files, instants = [], []
    for n in range(100):
        write(world, n)
        if n % 4 == 3:
            world.clock.advance(1)
            world.table.clean(options=options)
            world.table.archive(options=options)
        files.append(len(metadata_files(world.storage)))
        instants.append(len(world.storage.list_files(TIMELINE)))
    assert max(files) <= 80
    assert max(instants) <= 150
    world.refuse_stale_metadata_table()
    assert len(world.rows()) == 110
    history = load_history(world.storage, metadata_config(world.table.config))
    assert {a.instant.action for a in history} == {Action.COMMIT, Action.DELTA_COMMIT}
    assert len([a for a in history if a.instant.action is Action.COMMIT]) > 3


def test_a_writer_that_commits_between_the_merge_and_its_publication_lies_on_top(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = written(make)
    merged = compaction._merge

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(compaction, "_merge", merged)
        write(world, 50)
        write(world, 51)
        return merged(*args)

    monkeypatch.setattr(compaction, "_merge", meanwhile)
    done = keep(world)
    assert done.instant is not None
    assert done.delta_commits == 9
    world.refuse_stale_metadata_table()
    (files,) = load_slices(world.storage)["files"]
    assert files.base_instant == done.instant
    assert len(files.logs) == 2
    assert [row[0] for row in world.rows()][-2:] == ["m50", "m51"]


def test_a_commit_that_was_merged_and_is_rolled_back_before_the_publication_starts_it_over(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = written(make)
    wait, rounds = compaction._wait_for_clock, []

    def meanwhile(*args: Any) -> Any:
        rounds.append(args[1])
        if len(rounds) == 1:
            world.clock.advance(1)
            world.table.rollback(world.timeline.completed_writes[-1].requested_at.value)
        return wait(*args)

    monkeypatch.setattr(compaction, "_wait_for_clock", meanwhile)
    done = keep(world)
    assert done.instant is not None
    assert [len(each.commits) for each in rounds] == [9, 8]
    world.refuse_stale_metadata_table()
    assert "m5" not in [row[0] for row in world.rows()]


@pytest.mark.parametrize("table_type", ["cow", "mor"])
def test_a_commit_that_was_compacted_is_rolled_back(make: Callable[..., World], table_type: str) -> None:
    world = written(make, table_type=table_type)
    done = keep(world)
    assert done.instant is not None
    world.clock.advance(1)
    world.table.rollback(world.timeline.completed_writes[-1].requested_at.value)
    world.refuse_stale_metadata_table()
    assert "m5" not in [row[0] for row in world.rows()]
    assert keep(world).instant is not None
    world.refuse_stale_metadata_table()
    write(world, 6)
    world.refuse_stale_metadata_table()


def test_a_commit_in_a_waiting_compaction_is_taken_back_without_its_log_files(make: Callable[..., World]) -> None:
    """Java executes the plan and looks for the logs that it names."""
    world = written(make)
    leave_attempt(world)
    named = {file.path for file in metadata_files(world.storage)}
    last = world.timeline.completed_writes[-1].requested_at
    world.clock.advance(1)
    world.table.rollback(last.value)
    assert named <= {file.path for file in metadata_files(world.storage)}
    world.refuse_stale_metadata_table()


def leave_attempt(world: World) -> RequestedTime:
    """A compaction that died after it had put its base files; its instant."""

    def die(*_: object, **__: object) -> None:
        raise ConnectionAbortedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "complete_instant", die)
        with pytest.raises(ConnectionAbortedError):
            keep(world)
    (waiting,) = metadata_timeline(world.storage).pending
    return waiting.requested_at


def test_what_a_compaction_left_half_done_counts_for_nobody_and_is_removed_by_the_next(
    make: Callable[..., World],
) -> None:
    world = written(make)
    before = load_content(world.storage)
    attempt = leave_attempt(world)
    assert any(attempt.value in file.name for file in metadata_files(world.storage))
    assert load_content(world.storage) == before
    write(world, 6)
    world.refuse_stale_metadata_table()
    done = keep(world)
    assert done.removed_attempts == (attempt,)
    assert done.instant is not None
    assert done.instant > attempt
    assert not any(attempt.value in file.path for file in world.storage.walk(METADATA_DIRECTORY))
    world.refuse_stale_metadata_table()


def test_a_waiting_compaction_of_somebody_else_is_left_alone(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = written(make)
    plan = encode_compaction_plan(CompactionPlan())
    world.storage.put(f"{TIMELINE}/20240310000000000.compaction.requested", plan)
    with caplog.at_level(logging.WARNING):
        done = keep(world)
    assert (done.instant, done.is_held_up) == (None, True)
    assert "20240310000000000.compaction.requested is unfinished" in done.reason
    assert "was not compacted" in caplog.text
    assert world.storage.read(f"{TIMELINE}/20240310000000000.compaction.requested") == plan
    (note,) = world.table.archive(options={"hoodie.metadata.compact.max.delta.commits": "1"}).notes
    assert "Java's next write finishes it" in note


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({METADATA_PARTITIONS_KEY: "files,expr_index_day"}, "the index expr_index_day is not kept in step here"),
        ({METADATA_INFLIGHT_KEY: "record_index"}, "the index record_index is being built"),
    ],
)
def test_a_metadata_table_with_other_indexes_is_not_touched(
    make: Callable[..., World], change: dict[str, str], reason: str
) -> None:
    world = written(make)
    change_properties(world.storage, change)
    files = {file.path for file in world.storage.walk(METADATA_DIRECTORY)}
    done = keep(world)
    assert (done.instant, done.is_held_up) == (None, True)
    assert done.reason.startswith(reason)
    assert {file.path for file in world.storage.walk(METADATA_DIRECTORY)} == files


def test_an_unfinished_action_that_is_in_the_metadata_table_already_holds_it_up(make: Callable[..., World]) -> None:
    """Its delta commit may be taken back, which nobody could do with one in a base file."""
    world = written(make, count=3)
    first = world.timeline.completed_writes[0]
    # As a commit that died between its two completions left it.
    world.storage.delete(f".hoodie/timeline/{first.requested_at}_{first.completed_at}.commit")
    done = keep(world, after=4)
    assert (done.instant, done.is_held_up) == (None, True)
    assert "is unfinished, and has to be rolled back first" in done.reason


def test_records_that_do_not_merge_are_reported_as_damage_and_do_not_fail_the_service(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = written(make, count=12)

    def fail(*_: object) -> None:
        raise ValueError("metadata records of keys a and b do not merge")

    monkeypatch.setattr("tablekeeper.format.metadata_log.merge_metadata_records", fail)
    with caplog.at_level(logging.WARNING), pytest.raises(CorruptTableError, match="does not merge"):
        keep(world)
    monkeypatch.setattr(maintenance, "execute_archive", lambda *_: ArchiveResult())
    (note,) = world.table.archive().notes
    assert "does not merge" in note
    assert "the compaction of the metadata table failed" in caplog.text
    assert metadata_timeline(world.storage).pending == ()


@pytest.mark.parametrize("partition", ["files", "column_stats", "partition_stats"])
def test_a_merge_without_one_of_its_logs_is_refused(make: Callable[..., World], partition: str) -> None:
    world = written(make)
    directory = f"{METADATA_DIRECTORY}/{partition}"
    lost = max((file.path for file in world.storage.list_files(directory)), key=lambda path: path.rpartition("_20")[2])
    world.storage.delete(lost)
    before = metadata_timeline(world.storage).instants
    with pytest.raises(CorruptTableError, match="gone"):
        keep(world)
    assert metadata_timeline(world.storage).instants == before


def test_a_listing_without_its_base_file_is_refused(make: Callable[..., World]) -> None:
    world = written(make)
    keep(world)
    write(world, 7)
    rows = world.rows()
    (files,) = load_slices(world.storage)["files"]
    assert files.base is not None
    data = world.storage.read(files.base.path)
    world.storage.delete(files.base.path)
    with pytest.raises(CorruptTableError, match="gone"):
        world.table.read()
    world.storage.put(files.base.path, data)
    assert world.rows() == rows


def test_a_failing_store_is_a_note_of_the_service_that_has_done_its_work(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = written(make, count=12)

    def fail(*_: object) -> None:
        raise StorageError("the store is away", transient=True)

    monkeypatch.setattr(compaction, "_put", fail)
    result = world.table.clean(keep_commits=1)
    assert result is not None
    assert result.files_deleted > 0
    assert result.notes == ("the compaction of the metadata table failed and will be tried again: the store is away",)
    assert "the store is away" in repr(result)
    assert json.loads(json.dumps(result.to_dict()))["notes"] == list(result.notes)
    monkeypatch.undo()
    world.clock.advance(1)
    assert "was compacted" in world.table.archive().notes[0]
    world.refuse_stale_metadata_table()


def test_the_files_of_the_newest_two_slices_stay_for_readers_that_are_at_work(make: Callable[..., World]) -> None:
    world = written(make, count=3)
    files = {file.path for file in world.storage.list_files(f"{METADATA_DIRECTORY}/files")}
    assert len(files) == 4
    keep(world)
    assert files <= {file.path for file in metadata_files(world.storage)}
    write(world, 7)
    assert keep(world).files_deleted >= len(files)
    left = world.storage.list_files(f"{METADATA_DIRECTORY}/files")
    assert not files & {file.path for file in left}
    assert len(left) == 3


def test_a_restore_goes_back_behind_compactions_of_the_metadata_table(make: Callable[..., World]) -> None:
    world = written(make, count=3)
    world.clock.advance(1)
    saved = world.table.savepoint()
    rows = world.rows()
    kept = {file.path for file in metadata_files(world.storage)}
    for n in range(3, 7):
        write(world, n)
        keep(world)
    # What the metadata table was made of at the savepoint stays for a restore of Java's.
    assert kept <= {file.path for file in metadata_files(world.storage)}
    world.clock.advance(1)
    world.table.restore(saved.instant.value)
    assert world.rows() == rows
    world.refuse_stale_metadata_table()
    assert keep(world).instant is not None
    world.refuse_stale_metadata_table()
    write(world, 9)
    world.refuse_stale_metadata_table()


def test_a_merge_starts_over_when_its_files_are_cleaned_away_under_it(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = written(make)
    merged, rounds = compaction._merge, []

    def meanwhile(*args: Any) -> Any:
        rounds.append(args[1])
        if len(rounds) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(compaction, "_merge", merged)
                for n in range(8, 11):
                    keep(world)
                    write(world, n)
        return merged(*args)

    monkeypatch.setattr(compaction, "_merge", meanwhile)
    done = keep(world)
    assert done.instant is not None
    assert rounds.count("files") == 1
    assert rounds[0] == "column_stats"
    world.refuse_stale_metadata_table()


def test_a_result_prints_and_goes_into_json(make: Callable[..., World]) -> None:
    world = written(make)
    done = keep(world)
    assert str(done).startswith(f"the metadata table was compacted ({done.instant}): 9 delta commits merged into 4")
    told = json.loads(json.dumps(done.to_dict()))
    assert (told["delta_commits"], told["files_written"], told["reason"]) == (9, 4, "")
    assert str(keep(world)).startswith("the metadata table was not compacted: 0 delta commits")


def test_a_clock_that_is_far_behind_the_table_waits_for_better_times(make: Callable[..., World]) -> None:
    world = written(make)
    world.clock.suspend(-3_600)
    done = keep(world)
    assert (done.instant, done.is_held_up) == (None, True)
    world.clock.suspend(7_200)
    assert keep(world).instant is not None


def test_the_table_is_open_to_readers_of_any_moment_while_it_is_archived(make: Callable[..., World]) -> None:
    world = written(make, count=12)
    rows = {
        i.requested_at: world.table.read(as_of=i.requested_at.value).num_rows for i in world.timeline.completed_writes
    }
    options = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": "1"}
    archived = world.table.archive(options=options)
    assert len(archived.instants) > 5
    assert len(archived.metadata_instants) > 5
    for instant, count in rows.items():
        assert world.table.read(as_of=instant.value).num_rows == count
    world.refuse_stale_metadata_table()


def test_a_table_handle_can_be_used_right_after(make: Callable[..., World]) -> None:
    table: tk.Table = written(make, count=9).table
    table.clean()
    table.upsert(trips(("z", "sf", 99, 99.0)))
    assert ("z", 99.0) in [(row["id"], row["fare"]) for row in table.read().to_pylist()]
