"""The doctor on what grows unattended: hints before it hurts, from what is at hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tablekeeper as tk
from tablekeeper.services.doctor import Severity, growth_checks
from tablekeeper.services.doctor.report import RepairKind
from tests.support.recovery_world import World
from tests.support.table_builder import trips

__all__: list[str] = []


def test_a_long_timeline_is_a_hint(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(table_type="mor")
    for ts in range(3):
        world.upsert(trips(("a", "sf", ts, float(ts))))
    monkeypatch.setattr(growth_checks, "_LONG_TIMELINE", 3)
    assert world.table.doctor().findings == ()
    world.upsert(trips(("z", "sf", 4, 4.0)))
    report = world.table.doctor()
    (finding,) = report.findings
    assert (finding.kind, finding.severity) == ("long-timeline", Severity.INFO)
    assert "4 completed instants in 12 files" in finding.meaning
    assert "tablekeeper archive" in finding.advice
    assert report.is_healthy


@pytest.mark.parametrize(
    "option", [("hoodie.clean.commits.retained", "2"), ("hoodie.clean.fileversions.retained", "2")]
)
def test_old_file_versions_are_a_hint_with_about_the_files_that_a_clean_deletes(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, option: tuple[str, str]
) -> None:
    world = make(options=dict([option]))
    for ts in range(8):
        world.upsert(trips(("a", "sf", ts, float(ts))))
    assert world.table.doctor().findings == ()
    going = world.table.explain_clean()
    assert len(going.files) >= 5
    monkeypatch.setattr(growth_checks, "_MANY_FILES", len(going.files))
    (finding,) = world.table.doctor().findings
    assert (finding.kind, finding.severity) == ("clean-due", Severity.INFO)
    assert f"About {len(going.files)} files ({going.bytes:,} bytes)" in finding.meaning
    world.table.clean()
    assert world.table.doctor().findings == ()


def test_a_metadata_table_that_nobody_compacts_is_reported_until_it_is_switched_off(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(metadata=True)
    initial = sum(1 for file in world.storage.list_files(".hoodie/metadata/.hoodie/timeline") if "_" in file.name)
    monkeypatch.setattr(growth_checks, "_MANY_METADATA_COMMITS", initial + 2)
    for ts in range(2):
        world.upsert(trips(("a", "sf", ts, float(ts))))
    assert world.table.doctor().findings == ()
    world.upsert(trips(("a", "sf", 3, 3.0)))
    report = world.table.doctor()
    (finding,) = report.findings
    assert (finding.kind, finding.severity) == ("growing-metadata-table", Severity.WARNING)
    assert f"{initial + 3} delta commits and was never compacted" in finding.meaning
    assert "--fix" in finding.advice
    off = tk.Table.open(
        world.table.path,
        engine="local",
        options={"hoodie.metadata.enable": "false"},
        runtime=world.table._runtime,
    )
    off.upsert(trips(("a", "sf", 4, 4.0)))
    assert world.table.doctor().findings == ()


def test_the_doctor_compacts_a_metadata_table_that_has_grown(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(metadata=True)
    monkeypatch.setattr(growth_checks, "_MANY_METADATA_COMMITS", 5)
    for ts in range(3):
        world.upsert(trips(("a", "sf", ts, float(ts))))
    rows = world.rows()
    report = world.table.doctor(fix=True)
    assert [repair.kind for repair in report.repaired] == [RepairKind.COMPACT_METADATA_TABLE]
    assert (report.findings, report.failed) == ((), ())
    assert world.rows() == rows
    world.refuse_stale_metadata_table()


def test_the_doctor_says_what_keeps_a_metadata_table_from_being_compacted(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(metadata=True)
    monkeypatch.setattr(growth_checks, "_MANY_METADATA_COMMITS", 5)
    for ts in range(3):
        world.upsert(trips(("a", "sf", ts, float(ts))))
    world.storage.put(".hoodie/metadata/.hoodie/timeline/20240310000000000.logcompaction.requested", b"")
    report = world.table.doctor(fix=True)
    ((repair, reason),) = report.failed
    assert repair.kind is RepairKind.COMPACT_METADATA_TABLE
    assert "20240310000000000.logcompaction.requested is unfinished" in reason
    assert [finding.kind for finding in report.findings] == ["growing-metadata-table"]


def test_a_metadata_table_is_counted_from_its_last_compaction(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(metadata=True)
    monkeypatch.setattr(growth_checks, "_MANY_METADATA_COMMITS", 1)
    for ts in range(3):
        world.upsert(trips(("a", "sf", ts, float(ts))))
    assert [f.kind for f in world.table.doctor().findings] == ["growing-metadata-table"]
    newest = int(world.timeline.newest_time)
    directory = ".hoodie/metadata/.hoodie/timeline"
    for name in (f"{newest + 1}.compaction.requested", f"{newest + 1}.compaction.inflight"):
        world.storage.put(f"{directory}/{name}", b"")
    world.storage.put(f"{directory}/{newest + 1}_{newest + 2}.commit", b"")
    assert "growing-metadata-table" not in [f.kind for f in world.table.doctor().findings]
