"""Contention: writers on disjoint partitions of one table must neither conflict nor starve each other.

    python -m bench.contention --writers 16 --seconds 30 --instants 1000

Every writer is a process with a partition of its own. The table starts with a timeline of 1,000 instants, which is read
under the lock at every commit. Printed: commits of each writer, conflicts, and how long the lock was held. Ends with
status 1 if there was a conflict, if the slowest writer committed less than a third of the mean, or if the lock was held
for 200 ms or more at the 99th percentile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import tablekeeper as tk
from tablekeeper.errors import ConflictError
from tablekeeper.format.commit_metadata import encode_commit_metadata
from tablekeeper.model import Action, CommitMetadata, CompletionTime, Operation, RequestedTime
from tablekeeper.storage import open_storage
from tablekeeper.timeline import complete_instant, create_requested, start_inflight

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("ts", pa.int64())])
ROWS = 50
LOCK_LIMIT_S = 0.2


@dataclass(frozen=True)
class Outcome:
    """What one writer did in its time."""

    commits: int
    conflicts: int
    locks_held_s: list[float]


def make_table(path: Path, *, instants: int) -> None:
    """A table whose timeline has `instants` completed commits that wrote nothing."""
    table = tk.Table.create(
        path, name="contention", schema=SCHEMA, key="id", partition_by="part", ordering="ts", engine="local"
    )
    storage, config = open_storage(path), table.config
    content = encode_commit_metadata(CommitMetadata(Operation.UPSERT, (), {}))
    for number in range(instants):
        moment = f"20240101{number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}"
        requested = create_requested(
            storage, config, requested_at=RequestedTime(f"{moment}000"), action=Action.DELTA_COMMIT
        )
        inflight = start_inflight(storage, config, requested)
        complete_instant(storage, config, inflight, completed_at=CompletionTime(f"{moment}500"), content=content)


def work(folder: Path, writer: int) -> None:
    """The life of one writer: say that it is ready, wait for the start, write until the end, report."""
    table = tk.Table.open(folder / "table", engine="local")
    commits, conflicts, locks_held_s, number = 0, 0, [], 0
    write_rows(table, writer, number)
    (folder / f"ready-{writer}").touch()
    while not (folder / "start").exists():
        time.sleep(0.05)
    while not (folder / "stop").exists():
        number += 1
        try:
            locks_held_s.append(write_rows(table, writer, number))
            commits += 1
        except ConflictError:
            conflicts += 1
    report = {"commits": commits, "conflicts": conflicts, "locks_held_s": locks_held_s}
    (folder / f"report-{writer}.json").write_text(json.dumps(report), encoding="utf-8")


def write_rows(table: tk.Table, writer: int, number: int) -> float:
    """One upsert, half of it updates; how long it held the lock."""
    rows = [{"id": f"{writer}-{number * ROWS // 2 + n}", "part": f"p{writer}", "ts": number} for n in range(ROWS)]
    return table.upsert(pa.Table.from_pylist(rows, schema=SCHEMA)).lock_held_s


def run(folder: Path, *, writers: int, seconds: float) -> list[Outcome]:
    """All writers at once for this long."""
    command = [sys.executable, "-m", "bench.contention", "--work", str(folder), "--writer"]
    processes = [subprocess.Popen([*command, str(writer)], cwd=ROOT) for writer in range(writers)]
    while len(list(folder.glob("ready-*"))) < writers:
        if any(process.poll() is not None for process in processes):
            raise SystemExit("a writer ended before the start; see its output above")
        time.sleep(0.1)
    (folder / "start").touch()
    time.sleep(seconds)
    (folder / "stop").touch()
    statuses = [process.wait() for process in processes]
    if any(statuses):
        raise SystemExit("a writer failed; see its output above")
    reports = [json.loads((folder / f"report-{n}.json").read_text(encoding="utf-8")) for n in range(writers)]
    return [Outcome(**report) for report in reports]


def judge(outcomes: list[Outcome], *, seconds: float) -> bool:
    """Print the figures; True if they are good."""
    commits = [outcome.commits for outcome in outcomes]
    mean = sum(commits) / len(commits)
    conflicts = sum(outcome.conflicts for outcome in outcomes)
    held = sorted(s for outcome in outcomes for s in outcome.locks_held_s)
    p50, p99 = held[len(held) // 2], held[min(len(held) - 1, int(0.99 * len(held)))]
    print(f"commits of each writer: {sorted(commits)}; {sum(commits) / seconds:.1f} a second")
    print(f"slowest {min(commits)}, mean {mean:.1f}: {min(commits) / mean:.2f} of the mean (at least 0.33)")
    print(f"conflicts: {conflicts} (none)")
    print(f"lock held: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms (under 200), max {held[-1] * 1000:.0f} ms")
    return conflicts == 0 and min(commits) * 3 >= mean and p99 < LOCK_LIMIT_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--instants", type=int, default=1000)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--writer", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work, arguments.writer)
        return
    with tempfile.TemporaryDirectory(prefix="tablekeeper-contention-") as folder:
        make_table(Path(folder) / "table", instants=arguments.instants)
        outcomes = run(Path(folder), writers=arguments.writers, seconds=arguments.seconds)
    sys.exit(0 if judge(outcomes, seconds=arguments.seconds) else 1)


if __name__ == "__main__":
    main()
