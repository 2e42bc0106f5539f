"""A write of ours that died is rolled back by the next writer, Java or us, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.interop.crash import EXIT_STATUS
from tests.interop.peers import Panel, java_step, our_step, our_table
from tests.support.history import History, Model, make_history

__all__: list[str] = []

ROOT = Path(__file__).resolve().parents[2]
# One seed a table type, without and with metadata table, and one with buckets; where the writer dies.
CASES = [
    (0, "before_commit"),
    (1, "before_commit"),
    (5, "before_publish"),
    (8, "before_commit"),
    (8, "before_publish"),
    (9, "before_commit"),
    (9, "before_publish"),
]


def _start(seed: int, spark: Any, path: Path) -> tuple[Panel, Model]:
    history = make_history(seed, steps=3)
    panel = Panel(spark, path, history, "test_rollback")
    model = Model(history.shape)
    java_step(panel.java, history.shape, history.steps[0])
    model.apply(history.steps[0])
    return panel, model


def _crash(history: History, path: Path, *, step: int, moment: str) -> set[Path]:
    """Die in the middle of a step; the data files that are left behind."""
    before = _data_files(path)
    rows = path.parent / "crash.parquet"
    pq.write_table(history.shape.table(history.steps[step].rows), rows)
    command = [sys.executable, "-m", "tests.interop.crash", str(path), str(rows)]
    command += [json.dumps(history.shape.options), moment]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert done.returncode == EXIT_STATUS
    left = _data_files(path) - before
    assert left, "a crash that leaves no files proves nothing"
    assert _pending(path)
    return left


def _data_files(path: Path) -> set[Path]:
    found = {file for file in path.rglob("*") if file.is_file() and ".hoodie" not in file.relative_to(path).parts}
    return {file for file in found if not file.name.endswith(".crc") and file.name != ".hoodie_partition_metadata"}


def _pending(path: Path) -> list[str]:
    """Requested times of commits that are not completed, rollbacks left out, from the file names alone."""
    names = [file.name for file in (path / ".hoodie" / "timeline").iterdir() if not file.name.startswith(".")]
    completed = {name.split("_")[0] for name in names if "_" in name}
    return sorted({name.split(".")[0] for name in names if "." in name and "_" not in name} - completed)


@pytest.mark.parametrize(("seed", "moment"), CASES)
def test_java_rolls_back_a_write_that_we_left_pending(seed: int, moment: str, spark: Any, tmp_path: Path) -> None:
    panel, model = _start(seed, spark, tmp_path / "t")
    history = panel.history
    left = _crash(history, panel.path, step=1, moment=moment)
    panel.check_snapshot(model, 0)
    java_step(panel.java, history.shape, history.steps[2])
    model.apply(history.steps[2])
    panel.check_snapshot(model, 2)
    assert not left & _data_files(panel.path)
    assert not _pending(panel.path)


@pytest.mark.parametrize(("seed", "moment"), CASES[::2])
def test_our_next_write_rolls_back_what_we_left_pending(seed: int, moment: str, spark: Any, tmp_path: Path) -> None:
    panel, model = _start(seed, spark, tmp_path / "t")
    history = panel.history
    left = _crash(history, panel.path, step=1, moment=moment)
    for heartbeat in (panel.path / ".hoodie" / ".heartbeat").iterdir():
        os.utime(heartbeat, (0, 0))
    table = our_table(spark, panel.path, history.shape, engine="local")
    our_step(table, panel.java, history.shape, history.steps[2], engine="local")
    model.apply(history.steps[2])
    panel.check_snapshot(model, 2)
    assert not left & _data_files(panel.path)
    assert not _pending(panel.path)
