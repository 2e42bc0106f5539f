"""A table of many file groups: what planning a read of it holds in memory."""

from __future__ import annotations

import os
import pickle
import tracemalloc
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.engine.local import LocalEngine
from tests.support.table_builder import TRIPS, trips

_GROUPS = 2_000


def _table_of_many_groups(path: Path) -> tk.Table:
    """One file group that was written, and links to its file under the names of others."""
    options = {"hoodie.metadata.enable": "false"}
    table = tk.Table.create(
        str(path), name="t", schema=TRIPS, key="id", partition_by=None, ordering="ts", table_type="mor",
        engine="local", options=options,
    )  # fmt: skip
    table.bulk_insert(trips(("k1", "sf", 1)))
    (base,) = path.glob("*.parquet")
    tail = base.name.partition("_")[2]
    for _ in range(_GROUPS - 1):
        os.link(base, path / f"{uuid.uuid4()}-0_{tail}")
    return tk.Table.open(str(path), engine="local")


def test_planning_a_read_holds_little_for_each_file_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table_of_many_groups(tmp_path / "table")
    planned: list[Any] = []

    def rows(_engine: LocalEngine, _kernel: Any, tasks: Sequence[Any], *, schema: pa.Schema, **_: Any) -> pa.Table:
        planned.extend(tasks)
        return schema.empty_table()

    monkeypatch.setattr(LocalEngine, "rows", rows)
    tracemalloc.start()
    table.read(columns=["id"])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(planned) == _GROUPS
    assert held < 2_000 * _GROUPS
    # Schemas, the store and the rest are the same object in all tasks, so that they travel to the executors once.
    assert len(pickle.dumps(planned)) < 500 * _GROUPS
