"""Java Hudi writers in a stress run: threads that write through one Spark session until the run is told to stop.

Each has a write client and a lock provider of its own, and takes part in the table as a process would. They keep
journals as our writers do (see `stress_worker.py`), and put the name of a write into the commit's extra metadata.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from tablekeeper.storage import open_storage
from tablekeeper.timeline import load_commit_metadata, load_timeline
from tests.support.java_hudi import JavaTable
from tests.support.stress_worker import NAME_KEY, StressPlan, Write, next_write, note, open_table, rows_frame

__all__ = ["java_writers"]

_SHARED = {
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "200",
    "hoodie.write.lock.client.num_retries": "600",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "20",
    "hoodie.datasource.write.commitmeta.key.prefix": NAME_KEY.partition(".")[0],
}
_LOST = ("HoodieWriteConflictException", "HoodieRollbackException", "ConcurrentModificationException")


@contextmanager
def java_writers(
    spark: Any, plan: StressPlan, *, options: Mapping[str, str], writers: int, seed: int
) -> Iterator[None]:
    """Java writes from the first line of the block on, one commit being there already, and has ended after it."""
    table = _table(spark, plan, options)
    _write_until(table, plan, "java-first", random.Random(seed), most=1)
    with ThreadPoolExecutor(writers) as pool:
        running: list[Future[None]] = []
        try:
            for number in range(writers):
                chance = random.Random(1000 * seed + number)
                running.append(pool.submit(_write_until, table, plan, f"java{number}", chance))
            yield
        finally:
            plan.stop_file.touch()
        for each in running:
            each.result()


def _table(spark: Any, plan: StressPlan, options: Mapping[str, str]) -> JavaTable:
    described = JavaTable.options_for(
        name="stress", key=["id"], partition_by=["part"], ordering="ts", table_type="mor", extra={**_SHARED, **options}
    )
    return JavaTable(spark, plan.table, described)


def _write_until(
    table: JavaTable, plan: StressPlan, writer: str, chance: random.Random, most: int | None = None
) -> None:
    journal = os.open(Path(plan.folder) / f"journal-{writer}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = 0
    while not plan.stop_file.exists() and (most is None or number < most):
        number += 1
        write = next_write(f"{writer}-{number}", plan, chance)
        note(journal, {"name": write.name, "kind": write.kind, "rows": write.rows})
        note(journal, {"name": write.name, **_carry_out(table, plan, write)})
    os.close(journal)


def _carry_out(table: JavaTable, plan: StressPlan, write: Write) -> dict[str, Any]:
    try:
        table.write(rows_frame(write, plan), write.kind, **{NAME_KEY.replace(".", "__"): write.name})
    except Py4JJavaError as error:
        text = str(error.java_exception.toString()) + str(error)
        lost = next((name for name in _LOST if name in text), None)
        if lost is None:
            return {"outcome": "Java failed", "message": text[:2000]}
        return {"outcome": "conflict", "conflicts": 1, "message": lost}
    return {"outcome": "committed", "instant": _find(plan, write) or "nowhere"}


def _find(plan: StressPlan, write: Write) -> str | None:
    """The instant under which Java committed the write."""
    storage = open_storage(plan.table)
    config = open_table(plan).config
    for instant in reversed(load_timeline(storage, config).completed_writes):
        if load_commit_metadata(storage, config, instant).extra.get(NAME_KEY) == write.name:
            return instant.requested_at.value
    return None
