"""Cleans that Java plans and we execute, and the other way round: the same files go, and no rows change by it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tablekeeper as tk
from tablekeeper.config.clean_settings import CleanSettings
from tests.interop.peers import Panel, check_rows, java_step, java_table, our_step, our_table
from tests.support.cleaning import by_versions, clean, keep, schedule
from tests.support.history import History, Model, make_history

__all__: list[str] = []

TEST = "test_clean"
KEPT = 2
BEFORE = 6
# Both table types, without and with metadata table; two of the histories delete a partition.
SEEDS = [1, 9, 10]


@dataclass(frozen=True)
class Lab:
    """One table with a past, and copies of it to try cleans on."""

    spark: Any
    path: Path
    history: History
    model: Model

    def copy(self, name: str) -> Lab:
        other = self.path.with_name(name)
        shutil.copytree(self.path, other)
        return Lab(self.spark, other, self.history, self.model)

    @property
    def panel(self) -> Panel:
        return Panel(self.spark, self.path, self.history, TEST)

    @property
    def table(self) -> tk.Table:
        return our_table(self.spark, self.path, self.history.shape, engine="local")

    @property
    def files(self) -> set[str]:
        found = [*self.path.rglob("*.parquet"), *self.path.rglob(".*.log.*")]
        data = [file for file in found if ".hoodie" not in file.parts and not file.name.endswith(".crc")]
        return {str(file.relative_to(self.path)) for file in data}

    def cleans(self, state: str) -> list[str]:
        """Requested times of the cleans on the timeline, from the names of their files in this state."""
        ending = {"completed": ".clean", "requested": ".clean.requested"}[state]
        names = [file.name for file in (self.path / ".hoodie" / "timeline").iterdir()]
        return sorted(n.split("_")[0].split(".")[0] for n in names if n.endswith(ending) and not n.startswith("."))

    def check_java(self, step: int) -> None:
        actual = java_table(self.spark, self.path, self.history.shape).read()
        check_rows("java snapshot", actual, self.model.table(), history=self.history, step=step, test=TEST)

    def check_all(self, step: int) -> None:
        self.panel.check_snapshot(self.model, step)


def _build(seed: int, spark: Any, path: Path) -> Lab:
    history = make_history(seed, steps=BEFORE + 1)
    lab = Lab(spark, path, history, Model(history.shape))
    for number, step in enumerate(history.steps[:BEFORE]):
        if number == 0 and history.shape.metadata:
            java_step(lab.panel.java, history.shape, step)
        else:
            our_step(lab.table, lab.panel.java, history.shape, step, engine="local")
        lab.model.apply(step)
        if history.shape.table_type == "mor" and number in (1, 3):
            lab.table.compact()
    return lab


@pytest.mark.parametrize("seed", SEEDS)
def test_java_and_we_delete_the_same_files_whoever_plans_and_whoever_deletes(
    seed: int, spark: Any, tmp_path: Path
) -> None:
    start = _build(seed, spark, tmp_path / "start")
    shape, history = start.history.shape, start.history

    of_java = start.copy("java")
    assert of_java.panel.java.clean(retain=KEPT) == 1
    wanted = of_java.files
    assert wanted < start.files
    assert clean(of_java.table, keep(KEPT)) is None, "Java left nothing for us"

    ours = start.copy("ours")
    result = clean(ours.table, keep(KEPT))
    assert result is not None
    assert ours.files == wanted
    ours.check_all(BEFORE - 1)
    ours.panel.java.clean(retain=KEPT)
    assert ours.files == wanted, "we left nothing for Java"
    assert ours.cleans("completed") == [result.instant.value]

    planned = start.copy("planned")
    instant = schedule(planned.table, keep(KEPT))
    assert instant is not None
    planned.panel.java.clean(retain=KEPT)
    assert planned.cleans("completed") == [instant.requested_at.value]
    assert planned.files == wanted
    planned.check_java(BEFORE - 1)

    finished = start.copy("finished")
    (name,) = [file.name for file in (of_java.path / ".hoodie/timeline").glob("*.clean.requested")]
    shutil.copy(of_java.path / ".hoodie/timeline" / name, finished.path / ".hoodie/timeline" / name)
    result = clean(finished.table, keep(KEPT))
    assert result is not None
    assert result.was_resumed
    assert [result.instant.value] == of_java.cleans("completed")
    assert finished.files == wanted
    finished.check_java(BEFORE - 1)

    start.model.apply(history.steps[BEFORE])
    java_step(ours.panel.java, shape, history.steps[BEFORE])
    ours.check_java(BEFORE)
    our_step(planned.table, planned.panel.java, shape, history.steps[BEFORE], engine="local")
    planned.check_java(BEFORE)


@pytest.mark.parametrize(("seed", "versions"), [(10, 1), (9, 2)])
def test_java_and_we_keep_the_same_versions(seed: int, versions: int, spark: Any, tmp_path: Path) -> None:
    start = _build(seed, spark, tmp_path / "start")
    of_java, ours = start.copy("java"), start.copy("ours")
    settings: CleanSettings = by_versions(versions)
    of_java.panel.java.clean(versions=versions)
    clean(ours.table, settings)
    assert ours.files == of_java.files
    ours.check_java(BEFORE - 1)
    ours.panel.java.clean(versions=versions)
    assert ours.files == of_java.files


def test_java_goes_on_after_a_clean_of_ours_that_found_nothing(spark: Any, tmp_path: Path) -> None:
    start = _build(10, spark, tmp_path / "start")
    files = start.files
    result = clean(start.table, keep(BEFORE - 1, empty_interval_hours=1))
    assert result is not None
    assert (result.files_deleted, start.files) == (0, files)
    start.model.apply(start.history.steps[BEFORE])
    java_step(start.panel.java, start.history.shape, start.history.steps[BEFORE])
    start.check_java(BEFORE)
    assert start.panel.java.clean(retain=KEPT) == 1
    assert start.files < files | start.files
    assert len(start.cleans("completed")) == 2
    start.check_java(BEFORE)
