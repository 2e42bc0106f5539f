"""Java writes a random history; after every commit we read exactly its rows, now and in the past.

Before we are judged, the judges are: the model, Java and hudi-rs have to agree about what Java wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import Panel, check_rows, java_step, our_rows, panel_at
from tests.support.history import Model, history_seeds, make_history

__all__: list[str] = []

TEST = "test_java_writes"


@pytest.mark.parametrize("seed", history_seeds())
def test_we_read_what_java_wrote(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_history(seed)
    shape, path = history.shape, tmp_path / "t"
    everyone = Panel(spark, path, history, TEST)
    model = Model(shape)
    past: list[tuple[str, Any]] = []
    for number, step in enumerate(history.steps):
        panel = panel_at(everyone, number)
        java_step(panel.java, shape, step)
        model.apply(step)
        panel.check_snapshot(model, number)
        panel.check_read_optimized(model, number)
        past.append((_last_instant(path), model.table()))
    for number, (instant, expected) in enumerate(past):
        for engine in panel_at(everyone, number).engines:
            rows = our_rows(spark, path, engine=engine, as_of=instant)
            check_rows(f"{engine} as of {instant}", rows, expected, history=history, step=number, test=TEST)


def _last_instant(path: Path) -> str:
    """The requested time of the newest completed instant, from the file names alone."""
    completed = [file.name for file in (path / ".hoodie" / "timeline").iterdir() if "_" in file.name]
    return max(name.split("_")[0] for name in completed if not name.startswith("."))
