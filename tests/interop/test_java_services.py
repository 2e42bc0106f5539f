"""Java compacts, clusters and cleans a table that we wrote; everyone agrees after each, and we write on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import Panel, engine_of, java_step, our_step, our_table
from tests.support.history import Model, history_seeds, make_history

__all__: list[str] = []

# A COW table and MOR ones, each merge mode with and without buckets and metadata table.
SEEDS = [seed for seed in history_seeds() if seed in (3, 5, 9, 10, 15)] or history_seeds()


def _data_files(path: Path) -> set[Path]:
    found = [*path.rglob("*.parquet"), *path.rglob(".*.log.*")]
    return {file for file in found if ".hoodie" not in file.parts and not file.name.endswith(".crc")}


@pytest.mark.parametrize("seed", SEEDS)
def test_java_services_keep_the_rows_of_a_table_that_we_wrote(seed: int, spark: Any, tmp_path: Path) -> None:
    history, engine = make_history(seed, steps=7), engine_of(seed)
    shape, path = history.shape, tmp_path / "t"
    panel = Panel(spark, path, history, "test_java_services")
    java, model = panel.java, Model(shape)

    def write(number: int) -> None:
        if number == 0 and shape.metadata:
            java_step(java, shape, history.steps[0])
        else:
            our_step(our_table(spark, path, shape, engine=engine), java, shape, history.steps[number], engine=engine)
        model.apply(history.steps[number])

    for number in range(4):
        write(number)
    if shape.table_type == "mor":
        java.compact()
        panel.check_snapshot(model, 3)
        panel.check_read_optimized(model, 3)
    write(4)
    if shape.index == "simple":
        assert java.cluster(order="ts")
    panel.check_snapshot(model, 4)
    write(5)
    files = _data_files(path)
    java.clean(retain=1)
    assert _data_files(path) < files
    panel.check_snapshot(model, 5)
    write(6)
    panel.check_snapshot(model, 6)
