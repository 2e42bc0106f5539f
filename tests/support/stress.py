"""A stress run: processes upsert overlapping keys into one table while table services rewrite, clean and archive it.

Any process may be killed at any time, and is started again. What must hold afterwards is in `stress_judge.py`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import tablekeeper as tk
from tests.support.stress_crew import Crew, kill_at_random, service, writer
from tests.support.stress_judge import load_service_journals
from tests.support.stress_worker import SCHEMA, StressPlan

__all__ = ["BUCKETS", "NON_BLOCKING", "make_table", "run_writers", "useful_jobs"]

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
_HEARTBEAT = {
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "4",
}
_SERVICES = {
    # One machine, one clock: whoever is killed is replaced within seconds.
    "tablekeeper.heartbeat.skew.allowance.ms": "1000",
    "hoodie.clean.commits.retained": "3",
    "hoodie.keep.min.commits": "6",
    "hoodie.keep.max.commits": "8",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.log.compaction.blocks.threshold": "2",
    # New keys make new file groups, which a clustering brings together again.
    "hoodie.parquet.small.file.limit": "0",
}


def make_table(plan: StressPlan, *, table_type: str, options: Mapping[str, str]) -> None:
    """The table that the writers meet in. It is empty: who inserts a key first is part of the contest."""
    tk.Table.create(
        plan.table,
        name="stress",
        schema=SCHEMA,
        key="id",
        partition_by="part",
        ordering="ts",
        table_type=table_type,
        engine="local",
        options={**_HEARTBEAT, **(_SERVICES if plan.jobs else {}), **options},
        storage_options=plan.storage_options or None,
    )


def useful_jobs(table_type: str, options: Mapping[str, str]) -> list[str]:
    """The table services that make sense for a table."""
    plans = ["compaction", "log_compaction"] if table_type == "mor" else []
    if not BUCKETS.items() <= options.items():
        plans.append("clustering")
    return [*plans, *(["cancel"] if plans else []), "clean", "archive", "read"]


def run_writers(
    plan: StressPlan,
    *,
    writers: int,
    seconds: float,
    kill_every_s: float,
    seed: int,
    services: Sequence[Sequence[str]] = (),
    most_s: float = 0.0,
) -> int:
    """Let processes write for a while, killing one every now and then. Returns how many were killed.

    `services` are the jobs of each process that looks after the table. With them the run goes on without kills, for up
    to `most_s` seconds, until each of the plan's jobs has succeeded once.
    """
    crew = Crew(plan, seed=seed)
    try:
        for number in range(writers):
            crew.start(writer(number))
        for number, jobs in enumerate(services):
            crew.start(service(number, jobs))
        crew.wait_for_all()
        kills = kill_at_random(crew, random.Random(seed), seconds=seconds, kill_every_s=kill_every_s)
        crew.wait_until(lambda: all(load_service_journals(plan).succeeded(job) for job in plan.jobs), most_s=most_s)
        crew.stop()
    finally:
        crew.kill_all()
    return kills
