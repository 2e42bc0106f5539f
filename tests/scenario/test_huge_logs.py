"""Slices whose logs take more than a task may hold: read and compacted with the help of the local disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.read import slice_rows, spilled_changes
from tablekeeper.read.spilled_changes import ParkedChanges
from tablekeeper.runtime import FRUGAL_ENVIRONMENT
from tablekeeper.write.context import WriteContext
from tests.support.table_services import compact_logs

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("text", pa.string())])
LITTLE = {"tablekeeper.write.task.memory.bytes": "2048"}

COMPACTION = """
import resource, sys
import tablekeeper as tk
from tablekeeper.runtime import memory_left_bytes

table = tk.Table.open(sys.argv[1], engine="local")
tk.Table.open(sys.argv[2], engine="local").compact()
used = 1 << 50
resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
used -= memory_left_bytes()
resource.setrlimit(resource.RLIMIT_AS, (used + (110 << 20), resource.RLIM_INFINITY))
table.compact()
"""


def _rows(numbers: list[int], *, ts: int, width: int = 20) -> pa.Table:
    letters = np.random.default_rng(ts).integers(97, 123, (len(numbers), width), dtype=np.uint8)
    texts = [row.tobytes().decode() for row in letters]
    return pa.table({"id": [f"k{n}" for n in numbers], "ts": [ts] * len(numbers), "text": texts}, schema=SCHEMA)


def _table(path: Path, rows: pa.Table, **options: str) -> tk.Table:
    table = tk.Table.create(
        str(path), name="t", schema=SCHEMA, key="id", partition_by=None, ordering="ts", table_type="mor",
        engine="local", options={"hoodie.metadata.enable": "false", **options},
    )  # fmt: skip
    table.bulk_insert(rows)
    return table


def _content(table: tk.Table) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = table.read().sort_by("id").to_pylist()
    return rows


@pytest.mark.parametrize("block_format", ["parquet", "avro"])
def test_a_compaction_by_lanes_makes_the_rows_that_one_in_memory_makes(tmp_path: Path, block_format: str) -> None:
    path = tmp_path / "table"
    options = {"hoodie.logfile.data.block.format": block_format}
    table = _table(path, _rows([*range(200)], ts=5), **options)
    table.upsert(_rows([*range(0, 200, 2)], ts=6))
    table.delete(_rows([*range(0, 200, 10)], ts=6).select(["id"]))
    table.upsert(_rows([*range(0, 200, 7)], ts=4))
    table.upsert(_rows([*range(0, 200, 20)], ts=9))
    expected = _content(table)
    order = table.read(columns=["id"]).column("id").to_pylist()
    assert 0 < len(expected) < 200
    little = tk.Table.open(str(path), engine="local", options=LITTLE)
    result = little.compact()
    assert result is not None
    assert _content(little) == expected
    assert [s for s in little.files() if s.logs] == []
    # The base file keeps its order; only rows that are new to it come at the end.
    assert little.read(columns=["id"]).column("id").to_pylist()[:150] == order[:150]


@pytest.mark.parametrize("block_format", ["parquet", "avro"])
def test_a_log_compaction_by_lanes_makes_logs_that_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_format: str
) -> None:
    path = tmp_path / "table"
    options = {"hoodie.logfile.data.block.format": block_format}
    table = _table(path, _rows([*range(200)], ts=5), **options)
    table.upsert(_rows([*range(0, 200, 2)], ts=6))
    table.delete(_rows([*range(0, 200, 10)], ts=6).select(["id"]))
    table.upsert(_rows([*range(0, 200, 7)], ts=4))
    table.upsert(_rows([*range(0, 200, 20)], ts=9))
    expected = _content(table)
    (before,) = table.files()
    # Neither the logs nor what becomes of them fit into memory.
    monkeypatch.setattr(WriteContext, "load_changes", None)
    little = tk.Table.open(str(path), engine="local", options=LITTLE)
    compact_logs(little)
    assert _content(little) == expected
    (after,) = table.files()
    new = [log for log in after.logs if log not in before.logs]
    assert len(new) > 1
    assert [log.version for log in new] == [*range(1, len(new) + 1)]
    table.upsert(_rows([1, 2, 3], ts=10))
    table.delete(_rows([4, 200], ts=10).select(["id"]))
    expected = _content(table)
    monkeypatch.undo()
    assert compact_logs(table).files
    assert _content(table) == expected
    table.compact()
    assert _content(table) == expected


def test_a_read_of_huge_logs_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table(tmp_path / "table", _rows([*range(100)], ts=1))
    table.upsert(_rows([*range(50)], ts=2))
    table.delete(_rows([*range(0, 100, 9)], ts=2).select(["id"]))
    expected, filtered = _content(table), table.read(where="ts = 2").num_rows
    lanes: list[int] = []

    class Watched(ParkedChanges):
        def __init__(self, number: int) -> None:
            lanes.append(number)
            super().__init__(number)

    monkeypatch.setattr(slice_rows, "_LOG_BYTES", 100)
    monkeypatch.setattr(spilled_changes, "ParkedChanges", Watched)
    assert _content(table) == expected
    assert table.read(where="ts = 2").num_rows == filtered
    assert len(lanes) == 2
    assert min(lanes) > 1


def test_a_compaction_holds_no_more_than_its_process_may(tmp_path: Path) -> None:
    """160 MB of updates in logs, in a process that may grow by 110 MiB."""
    path, warm = tmp_path / "table", tmp_path / "warm"
    numbers = [*range(16_000)]
    table = _table(path, _rows(numbers, ts=0, width=1000))
    for ts in range(1, 11):
        table.upsert(_rows(numbers, ts=ts, width=1000))
    small = _table(warm, _rows([1, 2], ts=1))
    small.upsert(_rows([1], ts=2))
    command = [sys.executable, "-c", COMPACTION, str(path), str(warm)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **FRUGAL_ENVIRONMENT}
    )
    assert done.returncode == 0, done.stderr
    again = tk.Table.open(str(path), engine="local")
    assert [len(s.logs) for s in again.files()] == [0]
    found = again.read(columns=["id", "ts", "text"]).sort_by("id")
    assert found.equals(_rows(numbers, ts=10, width=1000).sort_by("id"))
