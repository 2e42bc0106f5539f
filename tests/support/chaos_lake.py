"""The lake of the chaos run: tables, the rows that each has to hold, and the plans that were made on them.

One process writes, one writer a table at a time, so that the model of a table is exact: a write that reported success
is in it, and one that did not is not. Table services come from the management service alone.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import tablekeeper as tk
from tablekeeper.errors import ConflictError, FencedError, InvalidRequestError, LockNotAcquiredError
from tablekeeper.server.model import ServiceAction
from tests.support.table_builder import TableBuilder, rows_of

__all__ = ["HEARTBEATS", "ChaosTable", "make_lake"]

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("value", pa.int64())])
KEYS = 40
HEARTBEATS = {
    # A worker that was killed holds its plan for eight seconds; one that sleeps longer has lost it.
    "hoodie.client.heartbeat.interval_in_ms": "2000",
    "hoodie.client.heartbeat.tolerable.misses": "4",
}
REFUSED = (ConflictError, FencedError, LockNotAcquiredError)


@dataclass
class ChaosTable:
    """A table, what it has to hold, and the instants of the plans that were scheduled on it."""

    name: str
    path: Path
    action: ServiceAction
    table: tk.Table
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    plans: list[str] = field(default_factory=list)
    clock: int = 0
    refused_writes: int = 0

    def write(self, rng: random.Random) -> None:
        """Update and insert some rows."""
        self.clock += 1
        keys = [f"k{rng.randrange(KEYS)}" for _ in range(rng.randint(1, 5))]
        fresh = {key: (self.clock, rng.randrange(1_000_000)) for key in keys}
        rows = [{"id": key, "ts": ts, "value": value} for key, (ts, value) in fresh.items()]
        try:
            self.table.upsert(pa.Table.from_pylist(rows, schema=SCHEMA))
        except REFUSED:
            self.refused_writes += 1
        else:
            self.rows |= fresh

    def schedule(self) -> str | None:
        """A plan for the service to execute; None if there is nothing to do, or one that waits."""
        if self.table.timeline_summary().pending:
            return None
        try:
            if self.action is ServiceAction.COMPACTION:
                plan = self.table.schedule_compaction()
            else:
                plan = self.table.schedule_clustering()
        except (*REFUSED, InvalidRequestError):
            return None
        if plan is None:
            return None
        self.plans.append(str(plan.instant))
        return str(plan.instant)

    def load_rows(self) -> dict[str, tuple[int, int]]:
        """What a reader sees."""
        found = rows_of(tk.Table.open(str(self.path), engine="local").read(), "id", "ts", "value")
        assert len({key for key, _, _ in found}) == len(found), f"{self.name}: a key is there twice"
        return {key: (ts, value) for key, ts, value in found}


def make_lake(folder: Path, count: int) -> Sequence[ChaosTable]:
    """Merge-on-read tables to be compacted and copy-on-write tables to be clustered, with a few rows each."""
    first = {f"k{n}": (0, n) for n in range(KEYS // 2)}
    rows = [{"id": key, "ts": ts, "value": value} for key, (ts, value) in first.items()]
    templates = {}
    for kind in ("mor", "cow"):
        made = TableBuilder().create(
            str(folder / f"template-{kind}"), schema=SCHEMA, partition_by=None, table_type=kind, options=HEARTBEATS
        )
        made.bulk_insert(pa.Table.from_pylist(rows, schema=SCHEMA))
        templates[kind] = folder / f"template-{kind}"
    lake = []
    for number in range(count):
        kind, action = ("cow", ServiceAction.CLUSTERING) if number % 4 == 3 else ("mor", ServiceAction.COMPACTION)
        path = folder / "lake" / f"t{number}"
        shutil.copytree(templates[kind], path)
        opened = tk.Table.open(str(path), engine="local")
        lake.append(ChaosTable(f"t{number}", path, action, opened, rows=dict(first), clock=1))
    return lake
