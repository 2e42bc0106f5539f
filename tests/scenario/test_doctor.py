"""The doctor: what it finds, what it says, what it repairs, and what it leaves alone."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import tablekeeper as tk
from tablekeeper.cli.main import app
from tablekeeper.config.table_properties import METADATA_PARTITIONS_KEY
from tablekeeper.model import Action, CompletionTime, RequestedTime, State
from tablekeeper.services.doctor import Severity
from tablekeeper.storage import forget_memory
from tablekeeper.timeline import instant_path, start_inflight
from tablekeeper.timeline.properties_file import change_properties
from tablekeeper.txn.markers import MarkerKind, create_marker, load_marked_instants
from tests.support.recovery_world import FIRST, LAPSED_S, ROWS_OF_FIRST, World, for_every_death, worlds
from tests.support.table_builder import TRIPS, TableBuilder, trips

__all__: list[str] = []

SECOND = trips(("a", "sf", 2, 2.0), ("d", "ny", 2, 2.0))
A_DAY_S = 86_400.0
GOLDEN = Path(__file__).parents[1] / "golden" / "tables"


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    """Makes tables with one commit."""
    with worlds() as new:

        def begin(**shape: Any) -> World:
            made = new(**shape)
            made.upsert(FIRST)
            return made

        yield begin


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """A copy-on-write table with one commit."""
    return make()


def _kinds(report: tk.DoctorReport) -> list[str]:
    return sorted(finding.kind for finding in report.findings)


def _repaired(world: World) -> tk.DoctorReport:
    """Repair, and insist that nothing is left."""
    report = world.table.doctor(fix=True)
    assert report.is_healthy, report
    assert not report.failed
    return report


@pytest.mark.parametrize("shape", [{"table_type": "cow"}, {"table_type": "mor", "metadata": True}])
def test_a_table_in_use_is_healthy(shape: dict[str, Any], make: Callable[..., World]) -> None:
    world = make(**shape)
    world.upsert(SECOND)
    world.clock.advance(10)
    world.table.delete_partitions(["la"])
    unwanted = world.upsert(trips(("x", "sf", 9, 9.0)))
    world.table.rollback(unwanted)
    world.table.savepoint()
    report = world.table.doctor()
    assert report.findings == (), report
    assert report.is_healthy
    assert "healthy" in repr(report)


def test_a_running_write_is_information_and_is_left_alone(world: World) -> None:
    pending = world.crash(SECOND)
    world.clock.advance(20)
    report = world.table.doctor(fix=True)
    assert _kinds(report) == ["running-write"]
    assert "20 s ago" in report.findings[0].meaning
    assert report.is_healthy
    assert world.timeline.find(RequestedTime(pending)) is not None


def test_a_dead_write_is_rolled_back(world: World) -> None:
    files = world.data_files()
    pending = world.crash(SECOND)
    world.clock.advance(LAPSED_S)
    report = world.table.doctor()
    assert _kinds(report) == ["dead-write"]
    assert not report.is_healthy
    assert [str(repair) for repair in report.repairs] == [f"roll back the write {pending}"]
    assert world.data_files() != files, "looking must not repair"
    assert [str(repair) for repair in _repaired(world).repaired] == [f"roll back the write {pending}"]
    assert world.data_files() == files
    assert not world.timeline.pending


def test_a_young_write_without_heartbeat_may_be_javas_and_is_not_touched(world: World) -> None:
    pending = world.crash(SECOND)
    world.storage.delete(f".hoodie/.heartbeat/{pending}")
    report = world.table.doctor(fix=True)
    assert _kinds(report) == ["write-without-heartbeat"]
    assert "EAGER" in report.findings[0].meaning
    assert world.timeline.pending
    world.clock.advance(LAPSED_S)
    _repaired(world)
    assert not world.timeline.pending


@pytest.mark.parametrize("metadata", [False, True])
def test_a_rollback_that_died_anywhere_is_finished(make: Callable[..., World], *, metadata: bool) -> None:
    world = make(metadata=metadata)
    unwanted = world.upsert(SECOND)

    def check(after: World) -> None:
        after.clock.advance(LAPSED_S)
        had_begun = any(i.action is Action.ROLLBACK for i in after.timeline)
        report = after.table.doctor(fix=True)
        assert report.is_healthy, report
        assert after.table.doctor().findings == ()
        assert not after.timeline.pending
        if had_begun:
            assert after.rows() == ROWS_OF_FIRST
            assert not set(unwanted.files) & after.data_files()
        after.refuse_stale_metadata_table()

    assert for_every_death(world, lambda table: table.rollback(unwanted), check) > 5


def test_a_restore_that_died_anywhere_is_finished(world: World) -> None:
    saved = world.table.savepoint()
    world.upsert(SECOND)
    world.upsert(trips(("x", "sf", 9, 9.0)))

    def check(after: World) -> None:
        after.clock.advance(LAPSED_S)
        had_begun = any(i.action is Action.RESTORE for i in after.timeline)
        report = after.table.doctor(fix=True)
        assert report.is_healthy, report
        assert not after.timeline.pending
        assert not had_begun or after.rows() == ROWS_OF_FIRST

    assert for_every_death(world, lambda table: table.restore(saved), check) > 10


def test_a_rollback_whose_target_is_gone_as_java_leaves_it_is_finished(world: World) -> None:
    unwanted = world.upsert(SECOND)
    copy = world.copy()
    done = copy.table.rollback(unwanted)
    # Java removes the target first and completes the rollback last: what lies between is half done.
    config = world.table.config
    found = next(i for i in copy.timeline if i.action is Action.ROLLBACK)
    for state in (State.REQUESTED, State.INFLIGHT):
        path = instant_path(config, replace(found, state=state, completed_at=None))
        world.storage.put(path, copy.storage.read(path))
    for instant in world.timeline:
        if instant.requested_at == unwanted.instant:
            for state in (State.REQUESTED, State.INFLIGHT):
                world.storage.delete(instant_path(config, replace(instant, state=state, completed_at=None)))
            world.storage.delete(instant_path(config, instant))
    copy.forget()
    world.clock.advance(LAPSED_S)
    assert "half-done-rollback" in _kinds(world.table.doctor())
    _repaired(world)
    assert not set(done.files) & world.data_files()
    assert world.rows() == ROWS_OF_FIRST


def test_files_that_no_write_owns_are_deleted_once_they_are_old(world: World) -> None:
    world.clock.advance(10)
    instant = world.crash(SECOND)
    world.clock.advance(LAPSED_S)
    world.table.rollback(instant)
    stray = f"sf/aaaa-0_0-0-0_{instant}.parquet"
    log = f"sf/.bbbb-0_{instant}.log.1_0-0-0"
    world.storage.put(stray, b"rows of nobody")
    world.storage.put(log, b"rows of nobody")
    young = world.table.doctor(fix=True)
    assert [(f.kind, f.severity) for f in young.findings] == [("orphan-files", Severity.WARNING)]
    assert {stray, log} <= world.data_files()
    world.clock.advance(LAPSED_S + 1)
    report = world.table.doctor()
    assert [(f.kind, f.severity) for f in report.findings] == [("orphan-files", Severity.ERROR)]
    assert set(report.findings[0].paths) == {stray, log}
    _repaired(world)
    assert not {stray, log} & world.data_files()
    assert world.rows() == ROWS_OF_FIRST


def test_a_file_of_a_commit_that_does_not_name_it_is_an_orphan(world: World) -> None:
    commit = world.timeline.completed_writes[0].requested_at
    stray = f"sf/aaaa-0_0-0-0_{commit}.parquet"
    kept = world.data_files()
    world.storage.put(stray, b"a task that ran twice")
    world.clock.advance(LAPSED_S + 1)
    assert _kinds(world.table.doctor()) == ["orphan-files"]
    _repaired(world)
    assert world.data_files() == kept


def test_logs_of_a_table_that_was_upgraded_are_not_taken_for_orphans(make: Callable[..., World]) -> None:
    world = make(table_type="mor")
    change_properties(world.storage, {"hoodie.table.initial.version": "6"})
    commit = world.timeline.completed_writes[0].requested_at
    world.storage.put(f"sf/.aaaa-0_{commit}.log.2_0-0-0", b"")
    world.clock.advance(LAPSED_S + 1)
    assert "orphan-files" not in _kinds(world.table.doctor())


def test_markers_and_heartbeats_of_writes_that_are_over_are_removed(world: World) -> None:
    commit = world.timeline.completed_writes[0].requested_at.value
    create_marker(world.storage, instant=commit, partition="sf", file_name="x.parquet", kind=MarkerKind.CREATE)
    world.storage.put(f".hoodie/.heartbeat/{commit}", b"")
    world.clock.advance(LAPSED_S)
    assert _kinds(world.table.doctor()) == ["heartbeat-without-instant", "markers-without-write"]
    _repaired(world)
    assert load_marked_instants(world.storage) == []
    assert not world.table.heartbeats()


def test_a_heartbeat_from_the_future_is_reported(world: World) -> None:
    pending = world.crash(SECOND)
    world.clock.suspend(-7_200)
    report = world.table.doctor()
    assert "heartbeat-from-the-future" in _kinds(report)
    assert "instant-from-the-future" in _kinds(report)
    assert world.table.heartbeats()[0].instant.value == pending


def test_leftovers_of_dead_processes_are_removed_after_a_day(make: Callable[..., World]) -> None:
    world = make(options={"hoodie.parquet.small.file.limit": "0"})
    world.storage.put(".hoodie/.tablekeeper/staging/0/part-0.arrow", b"rows")
    world.clock.advance(3_600)
    assert world.table.doctor().findings == ()
    world.clock.advance(A_DAY_S)
    assert _kinds(world.table.doctor()) == ["leftovers"]
    _repaired(world)
    assert not list(world.storage.walk(".hoodie/.tablekeeper/staging"))
    kept = [file.name for file in world.storage.list_files(".hoodie/.tablekeeper")]
    assert [name for name in kept if name.startswith("writer-")], "the options of the table are no leftovers"


def test_a_change_of_the_properties_that_died_is_finished(world: World) -> None:
    properties = world.storage.read(".hoodie/hoodie.properties")
    world.storage.put(".hoodie/hoodie.properties.backup", properties)
    world.storage.delete(".hoodie/hoodie.properties")
    assert _kinds(world.table.doctor()) == ["half-done-properties-change"]
    _repaired(world)
    assert world.storage.stat(".hoodie/hoodie.properties.backup") is None
    assert world.storage.stat(".hoodie/hoodie.properties") is not None
    assert world.rows() == ROWS_OF_FIRST


def test_a_metadata_table_that_misses_files_is_switched_off(make: Callable[..., World]) -> None:
    world = make(metadata=True)
    names = world.table.config.properties[METADATA_PARTITIONS_KEY]
    change_properties(world.storage, {METADATA_PARTITIONS_KEY: ""})
    world.upsert(SECOND)
    rows = world.rows()
    change_properties(world.storage, {METADATA_PARTITIONS_KEY: names})
    assert world.rows() != rows, "a stale metadata table hides rows: that is the trouble"
    report = world.table.doctor()
    assert _kinds(report) == ["stale-metadata-table"]
    assert report.findings[0].severity is Severity.ERROR
    _repaired(world)
    assert world.rows() == rows


def test_a_metadata_table_that_is_gone_is_switched_off(make: Callable[..., World]) -> None:
    world = make(metadata=True)
    world.storage.delete_tree(".hoodie/metadata")
    assert _kinds(world.table.doctor()) == ["stale-metadata-table"]
    _repaired(world)
    assert not world.table.config.has_metadata_table


def test_a_half_done_savepoint_is_removed(world: World) -> None:
    commit = world.timeline.completed_writes[0]
    start_inflight(world.storage, world.table.config, replace(commit, action=Action.SAVEPOINT))
    assert _kinds(world.table.doctor()) == ["half-done-savepoint"]
    _repaired(world)
    assert not world.timeline.pending


def test_a_commit_that_cannot_be_read_is_an_error_with_its_name(world: World) -> None:
    commit = world.timeline.completed_writes[0]
    path = instant_path(world.table.config, commit)
    world.storage.put(path, b"garbage")
    report = world.table.doctor()
    assert ("unreadable-commit", path) in [(f.kind, f.subject) for f in report.findings]


def test_oddities_of_the_timeline_are_named(world: World) -> None:
    commit = world.timeline.completed_writes[0]
    config = world.table.config
    twice = replace(commit, completed_at=CompletionTime("20990101000000000"))
    world.storage.put(instant_path(config, twice), world.storage.read(instant_path(config, commit)))
    other = replace(commit, action=Action.CLEAN, state=State.REQUESTED, completed_at=None)
    world.storage.put(instant_path(config, other), b"")
    world.storage.delete(instant_path(config, replace(commit, state=State.REQUESTED, completed_at=None)))
    kinds = _kinds(world.table.doctor())
    assert {"completed-twice", "two-actions-at-one-time"} <= set(kinds)


def test_a_lock_file_with_garbage_and_a_lock_for_one_process_are_reported(tmp_path: Path) -> None:
    table = TableBuilder().create(str(tmp_path / "t"), options={"hoodie.write.lock.provider": "InProcessLockProvider"})
    table.insert(FIRST)
    assert "lock-protects-one-process" in _kinds(table.doctor())
    shared = tk.Table.open(
        table.path, engine="local", options={"hoodie.write.lock.provider": "StorageBasedLockProvider"}
    )
    (tmp_path / "t" / ".hoodie" / ".locks").mkdir()
    (tmp_path / "t" / ".hoodie" / ".locks" / "table_lock.json").write_text("garbage")
    found = {f.kind: f for f in shared.doctor().findings}
    assert found["unreadable-lock"].severity is Severity.ERROR


def test_a_lock_that_is_held_names_its_holder(tmp_path: Path) -> None:
    table = TableBuilder().create(str(tmp_path / "t"))
    table.insert(FIRST)
    assert table.lock_holder() is None
    with table._load_environment().locked():
        holder = table.lock_holder()
        assert holder is not None
        assert "process" in holder.detail
        assert _kinds(table.doctor()) == ["held-lock"]
    assert table.doctor().findings == ()


@pytest.mark.parametrize("archive", sorted(GOLDEN.glob("*.zip")), ids=lambda archive: archive.stem)
def test_nothing_is_wrong_with_tables_that_java_made(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path)
    root = min((file.parents[1] for file in tmp_path.rglob("hoodie.properties")), key=lambda found: len(found.parts))
    report = tk.Table.open(root, engine="local").doctor()
    assert report.findings == (), report


@pytest.fixture
def path() -> Iterator[str]:
    name = "doctor-cli"
    table = tk.Table.create(
        f"memory://{name}/trips", name="trips", schema=TRIPS, key="id", partition_by="city", engine="local"
    )
    table.insert(pa.table(FIRST))
    yield table.path
    forget_memory(name)


def _run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, list(arguments))


def _stray(path: str) -> str:
    storage = TableBuilder().storage(tk.Table.open(path, engine="local"))
    create_marker(storage, instant="20200101000000000", partition="sf", file_name="x.parquet", kind=MarkerKind.CREATE)
    return "20200101000000000"


def test_the_command_says_what_it_will_mend_and_then_mends_it(path: str) -> None:
    assert _run("doctor", path).exit_code == 0
    stray = _stray(path)
    looked = _run("doctor", path)
    assert looked.exit_code == 1
    assert "markers-without-write" in looked.stdout
    assert "--fix" in looked.stdout
    tried = _run("doctor", path, "--fix", "--dry-run")
    assert f"delete the markers {stray}" in tried.stdout
    assert _run("doctor", path).exit_code == 1
    repaired = _run("doctor", path, "--fix")
    assert repaired.exit_code == 0, repaired.output
    assert f"delete the markers {stray}" in repaired.stdout
    assert "1 thing repaired" in repaired.stdout
    assert json.loads(_run("doctor", path, "--json").stdout)["healthy"] is True


def test_the_commands_for_locks_heartbeats_rollback_savepoint_and_restore(path: str) -> None:
    assert "free" in _run("locks", path).stdout
    assert json.loads(_run("locks", path, "--json").stdout) == {"held": False}
    assert "no heartbeats" in _run("heartbeats", path).stdout
    saved = json.loads(_run("savepoint", path, "--comment", "why not", "--json").stdout)
    assert "why not" in _run("savepoint", path, "--list").stdout
    table = tk.Table.open(path, engine="local")
    second = table.upsert(SECOND).instant.value
    assert "would be rolled back" in _run("rollback", path, second, "--dry-run").stdout
    assert json.loads(_run("rollback", path, second, "--json").stdout)["instant"] == second
    table.upsert(SECOND)
    assert "would be rolled back" in _run("restore", path, saved["instant"], "--dry-run").stdout
    assert _run("restore", path, saved["instant"]).exit_code == 0
    assert table.read().num_rows == FIRST.num_rows
    refused = _run("rollback", path, saved["instant"])
    assert refused.exit_code == 1
    assert "protected by a savepoint" in refused.stderr
    assert _run("savepoint", path, saved["instant"], "--delete").exit_code == 0
    assert "no savepoints" in _run("savepoint", path, "--list").stdout
