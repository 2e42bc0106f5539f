"""We write a random history; after every commit Java Hudi, hudi-rs and we read exactly its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import Panel, engine_of, java_step, last_completion, our_step, our_table, panel_at
from tests.support.history import Model, history_seeds, make_history

__all__: list[str] = []


@pytest.mark.parametrize("seed", history_seeds())
def test_everyone_reads_what_we_wrote(seed: int, spark: Any, tmp_path: Path) -> None:
    history, engine = make_history(seed), engine_of(seed)
    shape, path = history.shape, tmp_path / "t"
    everyone = Panel(spark, path, history, "test_we_write")
    model = Model(shape)
    since: str | None = None
    for number, step in enumerate(history.steps):
        panel = panel_at(everyone, number)
        if shape.metadata and number == 0:
            # The metadata table is Java's to make; every write after this one is ours to keep in step with it.
            java_step(panel.java, shape, step)
            model.apply(step)
            since = last_completion(path)
            continue
        result = our_step(our_table(spark, path, shape, engine=engine), panel.java, shape, step, engine=engine)
        model.apply(step)
        panel.check_snapshot(model, number)
        panel.check_read_optimized(model, number)
        if result.completed_at is not None:
            changed = None if _shows_stale_rows(step, shape.table_type) else model.changed_after(number)
            panel.check_changes(changed, number, since=since)
            since = result.completed_at.value


def _shows_stale_rows(step: Any, table_type: str) -> bool:
    """Incremental queries on MOR show a stale update as it was written: there Java's answer is the measure."""
    return table_type == "mor" and step.operation == "upsert"
