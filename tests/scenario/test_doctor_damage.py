"""The doctor and a table that was damaged: files that are lost, cut off or empty. It says so, and deletes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tablekeeper as tk
from tablekeeper.errors import ConflictError, CorruptTableError, InvalidRequestError
from tablekeeper.model import Action, Instant, RequestedTime, State
from tablekeeper.timeline import instant_path
from tests.support.recovery_world import FIRST, LAPSED_S, World
from tests.support.table_builder import trips

__all__: list[str] = []

ROWS = [("a", 2.0), ("b", 1.0), ("c", 1.0)]
OLD = RequestedTime("20200101000000000")
SHORT = {"hoodie.keep.max.commits": 3, "hoodie.keep.min.commits": 2, "hoodie.clean.commits.retained": 1}
IS_LOG = {False: ".parquet", True: ".log."}


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """A merge-on-read table with a base file in each of two partitions, and a log on one of them."""
    made = make(table_type="mor")
    made.upsert(FIRST)
    made.upsert(trips(("a", "sf", 2, 2.0)))
    return made


def _file(world: World, *, is_log: bool) -> str:
    (path,) = [path for path in world.data_files() if path.startswith("sf/") and IS_LOG[is_log] in path]
    return path


def _kinds(report: tk.DoctorReport) -> list[str]:
    return [finding.kind for finding in report.findings]


@pytest.mark.parametrize("is_log", [False, True])
def test_a_file_that_readers_need_and_that_is_gone_is_named(world: World, *, is_log: bool) -> None:
    path = _file(world, is_log=is_log)
    world.storage.delete(path)
    report = world.table.doctor(fix=True)
    assert [(finding.kind, finding.paths) for finding in report.findings] == [("lost-files", (path,))]
    assert not report.is_healthy
    assert not report.repaired


@pytest.mark.parametrize("is_log", [False, True])
def test_a_file_that_was_cut_off_is_named(world: World, *, is_log: bool) -> None:
    path = _file(world, is_log=is_log)
    world.storage.put(path, world.storage.read(path)[:-10])
    report = world.table.doctor(fix=True)
    kinds = ["cut-files", "damaged-log"] if is_log else ["cut-files"]
    assert [(finding.kind, finding.paths) for finding in report.findings] == [(kind, (path,)) for kind in kinds]
    assert path in world.data_files()


def test_a_file_that_was_rewritten_without_its_newest_version_is_named(make: Callable[..., World]) -> None:
    """A write compares nothing with older commits: the slice that it makes is whole, and lacks rows."""
    world = make(table_type="cow")
    world.upsert(FIRST)
    world.upsert(trips(("a", "sf", 2, 2.0)))
    lost = max(
        (path for path in world.data_files() if path.startswith("sf/")), key=lambda path: path.rpartition("_20")[2]
    )
    world.upsert(trips(("c", "la", 3, 3.0)))
    world.clock.advance(10)
    assert world.table.doctor().is_healthy
    world.storage.delete(lost)
    world.upsert(trips(("b", "sf", 3, 3.0)))
    (finding,) = world.table.doctor().findings
    assert (finding.kind, finding.paths) == ("skipped-version", (lost,))
    assert str(world.timeline.completed_writes[-1].requested_at) == finding.subject


def test_files_that_were_compacted_replaced_and_cleaned_away_are_not_missed(world: World) -> None:
    world.table.compact()
    world.upsert(trips(("b", "sf", 2, 2.0)))
    world.clock.advance(10)
    world.table.insert_overwrite(trips(("n", "la", 1, 1.0)))
    world.clock.advance(10)
    world.table.delete_partitions(["sf"])
    for time in (1, 2):
        world.upsert(trips(("z", "ny", time, 1.0)))
    world.clock.advance(10)
    before = world.data_files()
    world.table.clean(keep_commits=1)
    assert world.data_files() < before
    assert _kinds(world.table.doctor()) == []
    world.clock.advance(10)
    assert world.table.archive(options=SHORT).instants
    assert _kinds(world.table.doctor()) == []


def test_files_of_a_commit_whose_metadata_is_empty_are_no_orphans(world: World) -> None:
    commit = world.timeline.completed_writes[-1]
    path = instant_path(world.table.config, commit)
    world.storage.put(path, b"")
    before = world.data_files()
    world.clock.advance(2 * LAPSED_S)
    report = world.table.doctor(fix=True)
    assert [(finding.kind, finding.subject) for finding in report.findings] == [("unreadable-commit", path)]
    assert world.data_files() == before
    with pytest.raises(CorruptTableError, match="is empty"):
        world.table.read()


def _put_rollback(world: World, *states: State) -> None:
    """The files of a rollback that holds nothing, as a writer leaves it who dies between making and filling it."""
    for state in states:
        world.storage.put(instant_path(world.table.config, Instant(OLD, Action.ROLLBACK, state)), b"")


@pytest.mark.parametrize("who", ["a writer", "a planner", "a clean", "the doctor"])
def test_a_rollback_that_died_before_its_plan_was_written_is_removed_by(world: World, who: str) -> None:
    _put_rollback(world, State.REQUESTED)
    match who:
        case "a writer":
            world.upsert(trips(("b", "sf", 1, 1.0)))
        case "a planner":
            assert world.table.schedule_compaction() is not None
        case "a clean":
            world.table.clean()
        case _:
            assert _kinds(world.table.doctor()) == ["half-done-rollback"]
            world.table.doctor(fix=True)
    assert world.timeline.find(OLD) is None
    assert world.table.doctor().is_healthy
    assert world.rows() == ROWS


def test_a_rollback_that_was_begun_and_whose_plan_is_lost_is_an_error_with_its_name(world: World) -> None:
    _put_rollback(world, State.REQUESTED, State.INFLIGHT)
    (finding,) = world.table.doctor(fix=True).findings
    assert finding.kind == "unreadable-plan"
    assert OLD.value in finding.subject
    with pytest.raises(CorruptTableError, match=OLD.value):
        world.upsert(FIRST)


@pytest.mark.parametrize("content", [b"", b"Obj\x01\x00"], ids=["empty", "cut off"])
def test_a_restore_that_died_before_its_plan_was_written_is_removed(world: World, content: bytes) -> None:
    config = world.table.config
    world.storage.put(instant_path(config, Instant(OLD, Action.RESTORE, State.REQUESTED)), content)
    with pytest.raises(ConflictError, match="doctor --fix"):
        world.upsert(trips(("b", "sf", 3, 3.0)))
    assert _kinds(world.table.doctor()) == ["half-done-restore"]
    assert len(world.table.doctor(fix=True).repaired) == 1
    world.upsert(trips(("b", "sf", 3, 3.0)))
    assert world.table.doctor().is_healthy


def test_a_restore_that_was_begun_and_whose_plan_is_lost_is_left_to_people(world: World) -> None:
    config = world.table.config
    for state in (State.REQUESTED, State.INFLIGHT):
        world.storage.put(instant_path(config, Instant(OLD, Action.RESTORE, state)), b"")
    report = world.table.doctor(fix=True)
    assert _kinds(report) == ["half-done-restore"]
    assert [error for _, error in report.failed if "was begun" in str(error)]


def test_the_advice_of_a_failed_read_leads_to_a_doctor_that_names_the_file(tmp_path: Path) -> None:
    table = tk.Table.create(tmp_path / "t", name="trips", schema=FIRST.schema, key="id", engine="local")
    (written,) = table.upsert(FIRST).files
    file = tmp_path / "t" / written
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CorruptTableError, match="tablekeeper doctor"):
        table.read()
    assert table.doctor().findings[0].paths == (written,)


def _archived(make: Callable[..., World]) -> tuple[World, str]:
    """A table of which the first commit is archived, and the file that the archive has it in."""
    world = make(table_type="cow")
    world.upsert(FIRST)
    for number in range(6):
        world.upsert(trips(("a", "sf", 2, float(number))))
    assert world.table.archive(options=SHORT).instants
    (path,) = [f.path for f in world.storage.list_files(world.table.config.history_directory) if "parquet" in f.name]
    return world, path


def test_a_lost_file_of_the_archive_stops_readers_and_the_doctor_names_it(make: Callable[..., World]) -> None:
    """Without it nobody knows that the rows of `c` were ever committed."""
    world, path = _archived(make)
    content = world.storage.read(path)
    world.storage.delete(path)
    with pytest.raises(CorruptTableError, match="the archived timeline names it"):
        world.table.read()
    with pytest.raises(CorruptTableError, match="the archived timeline names it"):
        world.upsert(FIRST)
    report = world.table.doctor(fix=True)
    assert {finding.kind for finding in report.findings} >= {"unreadable-file"}
    assert [file for finding in report.findings for file in finding.paths if file.endswith(path)]
    world.storage.put(path, content)
    assert len(world.rows()) == 3
    assert world.table.doctor().is_healthy


@pytest.mark.parametrize("file", ["manifest_1", "parquet"])
def test_the_doctor_goes_on_beside_an_archive_that_does_not_decode(make: Callable[..., World], file: str) -> None:
    world, path = _archived(make)
    broken = path if file == "parquet" else f"{world.table.config.history_directory}/{file}"
    world.storage.put(broken, b"no archive")
    dead = world.crash(trips(("d", "ny", 1, 1.0)))
    world.clock.stall(LAPSED_S)
    report = world.table.doctor(fix=True)
    assert [finding.paths for finding in report.findings if finding.kind == "unreadable-file"] == [(broken,)]
    assert dead in {repair.subject for repair in report.repaired}


def test_a_clean_whose_plan_does_not_decode_is_an_error(world: World) -> None:
    config = world.table.config
    world.storage.put(instant_path(config, Instant(OLD, Action.CLEAN, State.REQUESTED)), b"no plan")
    with pytest.raises(CorruptTableError):
        world.table.clean()
    assert _kinds(world.table.doctor(fix=True)) == ["unreadable-plan"]


def test_no_table_is_made_over_one_that_lost_its_properties(tmp_path: Path) -> None:
    def create() -> tk.Table:
        return tk.Table.create(
            tmp_path / "t", name="trips", schema=FIRST.schema, key="id", engine="local", if_not_exists=True
        )

    create().upsert(FIRST)
    (tmp_path / "t/.hoodie/hoodie.properties").unlink()
    with pytest.raises(InvalidRequestError, match="has lost that file"):
        create()
