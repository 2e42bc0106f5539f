"""Java and we take turns on one table, ten commits each, and everyone agrees at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import Panel, engine_of, java_step, our_step, our_table, panel_at
from tests.support.history import Model, history_seeds, make_history

__all__: list[str] = []

COMMITS_EACH = 10
# Each table type with both merge modes, both indexes, and with and without metadata table.
SEEDS = [seed for seed in history_seeds() if seed in (0, 7, 9, 14)] or history_seeds()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_java_and_we_take_turns(seed: int, spark: Any, tmp_path: Path) -> None:
    history = make_history(seed, steps=2 * COMMITS_EACH)
    shape, path, engine = history.shape, tmp_path / "t", engine_of(seed)
    everyone = Panel(spark, path, history, "test_alternation")
    model = Model(shape)
    for number, step in enumerate(history.steps):
        panel = panel_at(everyone, number)
        if number % 2 == 0:
            java_step(panel.java, shape, step)
        else:
            our_step(our_table(spark, path, shape, engine=engine), panel.java, shape, step, engine=engine)
        model.apply(step)
        panel.check_snapshot(model, number)
