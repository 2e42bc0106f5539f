"""A store that fails at any step of a write to a table whose metadata table Java made: the two never part.

Readers that list files from the metadata table and readers that list directories see the same rows after every
failure, and both see the rows from before or those from after.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tablekeeper as tk
from tablekeeper.errors import TablekeeperError
from tablekeeper.storage import LocalStorage, Storage, open_storage
from tests.support.later_process import later_process
from tests.support.step_faults import Fault, FaultPoint, StepStorage
from tests.support.table_builder import TableBuilder, rows_of

GOLDEN = Path(__file__).parent.parent / "golden" / "tables"
NAMES = ["cow_v9_txns_simple_meta", "mor_avro_v9_txns_nonpart_meta"]
# All calls take minutes; every few of them, from a start that differs by case, are enough for one run.
STRIDE = int(os.environ.get("TK_FAULT_STRIDE", "5"))
# The tables have indexes that are not kept in step here.
LOSES_INDEXES = {"tablekeeper.metadata.index.drop": "true"}


@pytest.fixture
def tables() -> Iterator[TableBuilder]:
    builder = TableBuilder(runtime=later_process(0), threads=1)
    yield builder
    builder.forget()


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An unpacked table of Java's, with a metadata table."""
    with zipfile.ZipFile(GOLDEN / f"{request.param}.zip") as archive:
        archive.extractall(tmp_path)
    roots = [path.parent.parent for path in tmp_path.glob("**/.hoodie/hoodie.properties")]
    return LocalStorage(min(roots, key=lambda path: len(path.parts)))


def copy(tables: TableBuilder, source: Storage, *, by_listing: bool = False) -> tk.Table:
    """The table in memory; with `by_listing` readers of the copy do not know of the metadata table."""
    place = tables.new_place()
    target = open_storage(place, runtime=tables.runtime)
    for file in source.walk(""):
        content = source.read(file.path)
        if by_listing and file.path.startswith(".hoodie/hoodie.properties"):
            lines = content.split(b"\n")
            content = b"\n".join(line for line in lines if not line.startswith(b"hoodie.table.metadata.partitions"))
        target.put(file.path, content)
    return tk.Table.open(place, engine="local", runtime=tables.runtime, options=LOSES_INDEXES)


def changed(table: tk.Table) -> pa.Table:
    """A new version of one row, and a row with a new key."""
    row = table.read().slice(0, 1).to_pylist()[0]
    newer = {**row, "txn_ts": row["txn_ts"] + 10**9, "merchant_name": "changed"}
    return pa.Table.from_pylist([newer, {**newer, "txn_id": "TXN-NEW"}], schema=table.schema)


def seen(table: tk.Table) -> list[tuple[Any, ...]]:
    return rows_of(table.read(), "txn_id", "txn_ts", "merchant_name")


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.OUTAGE], ids=lambda fault: fault.value)
def test_the_metadata_table_and_the_directories_agree_after_a_failure_at_any_call(
    tables: TableBuilder, golden: Storage, fault: Fault
) -> None:
    first = copy(tables, golden)
    rows, before = changed(first), seen(first)
    first.upsert(rows)
    after = seen(first)
    assert before != after
    for at in range(1 + len(fault.value) % STRIDE, 1000, STRIDE):
        table = copy(tables, golden)
        store = StepStorage(tables.storage(table), FaultPoint(at, fault))
        failure: Exception | None = None
        try:
            tables.through(table, store, options=LOSES_INDEXES).upsert(rows)
        except TablekeeperError as error:
            failure = error
        if len(store.calls) < at:
            assert at > 20
            return
        context = f"{fault.value} at call {at} ({store.calls[at - 1]}), {failure!r}"
        now = seen(table)
        assert now in (before, after), context
        assert seen(copy(tables, tables.storage(table), by_listing=True)) == now, context
        later = tables.through(table, options=LOSES_INDEXES, runtime=later_process(3600))
        later.upsert(rows)
        assert seen(table) == after, context
        assert seen(copy(tables, tables.storage(table), by_listing=True)) == after, context
    pytest.fail("the write never ended")
