"""What the doctor never deletes: files that it cannot explain, too many of them, and whatever lies behind a link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tablekeeper as tk
from tablekeeper.cli.main import app
from tablekeeper.errors import CorruptTableError
from tablekeeper.format.data_files import PARTITION_METADATA_NAME
from tablekeeper.services.doctor.explained import without_unsafe_repairs
from tablekeeper.services.doctor.report import Finding, Repair, RepairKind, Severity
from tablekeeper.services.doctor.view import DoctorSettings, load_view
from tablekeeper.timeline.properties_file import change_properties
from tests.support.recovery_world import FIRST, LAPSED_S, ROWS_OF_FIRST, World
from tests.support.table_builder import trips

__all__: list[str] = []

MANY = 12


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """A table with one commit, and a write that was rolled back."""
    made = make()
    made.upsert(FIRST)
    return made


def _roll_back_one(world: World) -> str:
    """The instant of a write that was rolled back; the clock has gone on."""
    world.clock.advance(10)
    instant = world.crash(trips(("z", "sf", 9, 9.0)))
    world.clock.advance(LAPSED_S)
    world.table.rollback(instant)
    return instant


def _strays(world: World, instant: str, count: int) -> list[str]:
    paths = [f"sf/{number:08d}-0_0-0-0_{instant}.parquet" for number in range(count)]
    for path in paths:
        world.storage.put(path, b"late")
    world.clock.advance(LAPSED_S + 1)
    return paths


@pytest.mark.parametrize("how", ["missing", "misnamed"])
def test_nothing_is_deleted_beside_a_timeline_that_is(world: World, how: str) -> None:
    if how == "missing":
        world.storage.delete_tree(".hoodie/timeline")
    else:
        change_properties(world.storage, {"hoodie.timeline.path": "elsewhere"})
    world.clock.advance(LAPSED_S + 1)
    before = world.data_files()
    report = world.table.doctor(fix=True, yes=True, safe_age_s=0.0)
    assert [finding.kind for finding in report.findings if finding.severity.value == "error"] == [
        "implausible-timeline"
    ]
    assert not report.repairs
    assert not report.repaired
    assert world.data_files() == before
    with pytest.raises(CorruptTableError, match="no instant is there"):
        world.table.read()


def test_files_of_an_instant_that_was_lost_are_reported_and_kept(world: World) -> None:
    world.upsert(trips(("d", "la", 2, 2.0)))
    lost = world.timeline.completed_writes[-1].requested_at
    world.upsert(trips(("e", "sf", 3, 3.0)))
    for file in list(world.storage.list_files(".hoodie/timeline")):
        if file.name.startswith(lost.value):
            world.storage.delete(file.path)
    world.clock.advance(LAPSED_S + 1)
    before = world.data_files()
    report = world.table.doctor(fix=True, yes=True)
    assert "unexplained-files" in [finding.kind for finding in report.findings]
    assert world.data_files() == before


@pytest.mark.parametrize("part", ["partition", "file group", "token", "instant"])
def test_files_whose_names_are_damaged_in_their_commit_are_reported_and_kept(world: World, part: str) -> None:
    (base,) = [path for path in world.data_files() if path.startswith("sf/")]
    (commit,) = [file.path for file in world.storage.list_files(".hoodie/timeline") if "_" in file.name]
    content = world.storage.read(commit)
    within = {"partition": 1, "file group": 8, "token": base.index("_") + 3, "instant": base.rindex("_") + 16}[part]
    at = content.index(base.encode()) + within
    world.storage.put(commit, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    world.clock.advance(LAPSED_S + 1)
    before = world.data_files()
    report = world.table.doctor(fix=True, yes=True, safe_age_s=0.0)
    assert not report.is_healthy
    assert world.data_files() == before
    world.storage.put(commit, content)
    assert world.rows() == ROWS_OF_FIRST


def test_files_of_a_directory_that_was_renamed_are_reported_and_kept(world: World) -> None:
    before = {path: world.storage.read(path) for path in world.data_files() if path.startswith("sf/")}
    marker = world.storage.read(f"sf/{PARTITION_METADATA_NAME}")
    for path, data in before.items():
        world.storage.put(f"sf-old/{path[3:]}", data)
        world.storage.delete(path)
    world.storage.put(f"sf-old/{PARTITION_METADATA_NAME}", marker)
    world.clock.advance(LAPSED_S + 1)
    report = world.table.doctor(fix=True, yes=True)
    found = {finding.kind: finding for finding in report.findings}
    assert "misplaced-files" in found
    assert "orphan-files" not in found
    for path, data in before.items():
        assert world.storage.read(f"sf-old/{path[3:]}") == data


def test_more_than_a_few_files_are_deleted_only_if_that_is_said(world: World) -> None:
    strays = _strays(world, _roll_back_one(world), MANY)
    report = world.table.doctor(fix=True)
    ((repair, reason),) = report.failed
    assert set(repair.paths) == set(strays)
    assert f"{MANY} of" in reason
    assert "--yes" in reason
    assert set(strays) <= world.data_files()
    assert report.to_dict()["deletes"] == sorted(strays)
    assert world.table.doctor(fix=True, yes=True).is_healthy
    assert not set(strays) & world.data_files()
    assert world.rows() == ROWS_OF_FIRST


def test_a_few_files_are_deleted_as_ever(world: World) -> None:
    strays = _strays(world, _roll_back_one(world), 2)
    assert world.table.doctor(fix=True).is_healthy
    assert not set(strays) & world.data_files()


@pytest.fixture
def local(tmp_path: Path) -> tuple[tk.Table, str]:
    """A table on disk and the instant of a write that was undone."""
    table = tk.Table.create(
        tmp_path / "t", name="trips", schema=FIRST.schema, key="id", partition_by="city", engine="local"
    )
    table.upsert(FIRST)
    undone = table.upsert(trips(("z", "sf", 9, 9.0))).instant
    table.rollback(undone)
    return table, undone.value


def _make_old(path: Path) -> None:
    os.utime(path, (path.stat().st_mtime - 86_400,) * 2)


@pytest.mark.parametrize("linked", ["partition", "file", ".hoodie"])
def test_nothing_behind_a_link_is_deleted(local: tuple[tk.Table, str], tmp_path: Path, linked: str) -> None:
    table, instant = local
    root, outside = tmp_path / "t", tmp_path / "outside"
    name = f"aaaa-0_0-0-0_{instant}.parquet"
    stray = root / "sf" / name
    if linked == "file":
        outside.mkdir()
        (outside / name).write_bytes(b"of somebody else")
        _make_old(outside / name)
        stray.symlink_to(outside / name)
    else:
        stray.write_bytes(b"of somebody else")
        _make_old(stray)
        place = root / ("sf" if linked == "partition" else linked)
        place.rename(outside)
        place.symlink_to(outside)
    report = table.doctor(fix=True, yes=True, safe_age_s=0.0)
    assert [finding.kind for finding in report.findings] == ["orphan-files"]
    assert "symbolic link" in report.findings[0].advice
    assert stray.read_bytes() == b"of somebody else"
    assert stray.is_symlink() == (linked == "file")


@pytest.mark.parametrize("kind", [RepairKind.ROLL_BACK, RepairKind.FINISH_ROLLBACK, RepairKind.FINISH_CLEAN])
@pytest.mark.parametrize("is_linked", [False, True], ids=["directory", "link"])
def test_rollbacks_and_cleans_are_not_executed_where_a_partition_is_a_link(
    local: tuple[tk.Table, str], tmp_path: Path, kind: RepairKind, is_linked: bool
) -> None:
    table, instant = local
    if is_linked:
        (tmp_path / "t" / "sf").rename(tmp_path / "outside")
        (tmp_path / "t" / "sf").symlink_to(tmp_path / "outside")
    view = load_view(table._load_environment(), DoctorSettings())
    found = Finding("dead-write", Severity.WARNING, instant, "It died.", "Roll it back.", repair=Repair(kind, instant))
    (left,) = without_unsafe_repairs(view, [found])
    assert (left.repair is None) == is_linked
    assert ("symbolic link" in left.advice) == is_linked


def test_the_command_lists_what_it_deletes(local: tuple[tk.Table, str], tmp_path: Path) -> None:
    _, instant = local
    strays = [f"sf/{number:08d}-0_0-0-0_{instant}.parquet" for number in range(MANY)]
    for stray in strays:
        path = tmp_path / "t" / stray
        path.write_bytes(b"late")
        _make_old(path)
    runner = CliRunner()
    refused = runner.invoke(app, ["doctor", str(tmp_path / "t"), "--fix"])
    assert refused.exit_code == 1
    assert all(stray in refused.stdout for stray in strays)
    assert "--yes" in refused.stdout
    assert (tmp_path / "t" / strays[0]).exists()
    done = runner.invoke(app, ["doctor", str(tmp_path / "t"), "--fix", "--yes"])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "t" / strays[0]).exists()
