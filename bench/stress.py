"""Stress: many processes write to one table and are killed at random; the table must tell the truth afterwards.

    python -m bench.stress --seconds 120 --writers 8 --store local --seed 1

Five tables one after the other: copy on write and merge on read, with the simple and with the bucket index, and merge
on read in the non-blocking mode, where no writer may lose against another. Ends with status 1 if any table is wrong,
and says how.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.stress import NON_BLOCKING, judge, make_table, run_writers
from tests.support.stress_s3 import s3_process
from tests.support.stress_worker import StressPlan

__all__ = ["main"]

BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
INDEXES: dict[str, dict[str, str]] = {
    "simple": {},
    "bucket": BUCKETS,
    "nonblocking": {**BUCKETS, **NON_BLOCKING},
}
TABLES = [(kind, index) for kind in ("cow", "mor") for index in ("simple", "bucket")] + [("mor", "nonblocking")]


@contextmanager
def place(store: str, folder: str, *, non_blocking: bool) -> Iterator[StressPlan]:
    """Where the table of one run goes."""
    if store == "local":
        yield StressPlan(table=str(Path(folder) / "table"), folder=folder, non_blocking=non_blocking)
        return
    with s3_process("stress") as options:
        yield StressPlan(
            table=f"s3://stress/{uuid.uuid4()}", folder=folder, storage_options=options, non_blocking=non_blocking
        )


def run_one(arguments: argparse.Namespace, *, table_type: str, index: str) -> list[str]:
    """One table; what is wrong with it afterwards."""
    folder = tempfile.mkdtemp(prefix="tablekeeper-stress-")
    with place(arguments.store, folder, non_blocking=index == "nonblocking") as plan:
        make_table(plan, table_type=table_type, options=INDEXES[index])
        kills = run_writers(
            plan,
            writers=arguments.writers,
            seconds=arguments.seconds,
            kill_every_s=arguments.kill_every,
            seed=arguments.seed,
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
