"""Stress: many processes write to one table and are killed at random; the table must tell the truth afterwards.

    python -m bench.stress --seconds 120 --writers 8 --store local --seed 1

Five tables one after the other: copy on write and merge on read, with the simple and with the bucket index, and merge
on read in the non-blocking mode, where no writer may lose against another. Beside the writers of the others run
compaction, log compaction, clustering, clean, archive, cancel, a second executor of all plans and a reader, each in a
process of its own that is killed like the writers. Ends with status 1 if any table is wrong, or a service never
succeeded, and says how.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.stress import BUCKETS, NON_BLOCKING, make_table, run_writers, useful_jobs
from tests.support.stress_judge import judge
from tests.support.stress_s3 import s3_process
from tests.support.stress_worker import StressPlan

__all__ = ["main"]

INDEXES: dict[str, dict[str, str]] = {
    "simple": {},
    "bucket": BUCKETS,
    "nonblocking": {**BUCKETS, **NON_BLOCKING},
}
TABLES = [(kind, index) for kind in ("cow", "mor") for index in ("simple", "bucket")] + [("mor", "nonblocking")]

# On a busy machine it takes longer until every service has succeeded once.
TIMEOUT_S = 120


@contextmanager
def place(store: str, folder: str, *, non_blocking: bool, jobs: list[str]) -> Iterator[StressPlan]:
    """Where the table of one run goes."""
    plan = StressPlan(table=str(Path(folder) / "table"), folder=folder, non_blocking=non_blocking)
    if jobs:
        plan = plan.beside(jobs)
    if store == "local":
        yield plan
        return
    with s3_process("stress") as options:
        yield replace(plan, table=f"s3://stress/{uuid.uuid4()}", storage_options=options)


def run_one(arguments: argparse.Namespace, *, table_type: str, index: str) -> list[str]:
    """One table; what is wrong with it afterwards."""
    folder = tempfile.mkdtemp(prefix="tablekeeper-stress-")
    is_shared = index == "nonblocking"
    jobs = [] if is_shared or arguments.writers_only else useful_jobs(table_type, INDEXES[index])
    with place(arguments.store, folder, non_blocking=is_shared, jobs=jobs) as plan:
        make_table(plan, table_type=table_type, options=INDEXES[index])
        kills = run_writers(
            plan,
            writers=arguments.writers,
            seconds=arguments.seconds,
            kill_every_s=arguments.kill_every,
            seed=arguments.seed,
            services=[[job] for job in (*jobs, "executor")] if jobs else [],
            most_s=TIMEOUT_S,
        )
        report = judge(plan, seconds=arguments.seconds, kills=kills)
    print(f"{arguments.store} {table_type} {index}: {report}", flush=True)
    for fault in report.faults:
        print(f"  WRONG: {fault}", flush=True)
    if report.faults:
        print(f"  kept for inspection: {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    return report.faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="for each table")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--store", choices=["local", "s3"], default="local")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every", type=float, default=3, help="seconds between two kills, on average")
    parser.add_argument("--writers-only", action="store_true", help="no table services beside the writers")
    parser.add_argument("--only", default="", help="one table, such as mor-bucket")
    arguments = parser.parse_args()
    faults: list[str] = []
    for table_type, index in TABLES:
        if arguments.only in ("", f"{table_type}-{index}"):
            faults += run_one(arguments, table_type=table_type, index=index)
    print(f"seed {arguments.seed}: {'all tables are right' if not faults else f'{len(faults)} faults'}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
