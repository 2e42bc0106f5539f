"""What a job of the service costs in processor time before and beside its work: the engine `arrow` on small tables.

    python -m bench.jobs --jobs 20

Compacts small tables, two at a time, with jobs forked from a warm process, and again with one program each, and prints
the processor time a job, minders included, and the memory of the process that forks.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.server.engines.arrow import make_arrow
from tablekeeper.server.engines.process import EngineContext, ProcessExecutor
from tablekeeper.server.engines.protocol import Job, JobState
from tablekeeper.server.model import AttemptOutcome, ServiceAction
from tests.support.chaos_lake import ChaosTable, make_lake

__all__ = ["main"]

CLOCK = SYSTEM_RUNTIME.clock
AT_ONCE = 2
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """Of a number of jobs: processor seconds of the jobs, of whoever forks them, and seconds from start to end."""

    processor_s: float
    elapsed_s: float
    memory_mb: float


def tables(folder: Path, count: int) -> list[ChaosTable]:
    """Merge-on-read tables with a compaction that waits."""
    chance = random.Random(1)
    found = [each for each in make_lake(folder, 2 * count) if each.action is ServiceAction.COMPACTION][:count]
    for each in found:
        while not each.plans:
            each.write(chance)
            each.schedule()
    return found


def job_of(folder: Path, table: ChaosTable, number: int) -> Job:
    return Job(
        operation_id=number,
        number=1,
        base_path=str(table.path),
        action=ServiceAction.COMPACTION,
        instant=table.plans[0],
        log_path=str(folder / f"{number}.log"),
        result_path=str(folder / f"{number}.json"),
        time_limit_s=600.0,
    )


def run(executor: ProcessExecutor, jobs: list[Job]) -> None:
    """All of them, some at once; every one has to complete."""
    at_work: dict[str, Job] = {}
    waiting = list(reversed(jobs))
    while waiting or at_work:
        while waiting and len(at_work) < AT_ONCE:
            job = waiting.pop()
            at_work[executor.start(job)] = job
        CLOCK.sleep(0.02)
        for job_id, job in list(at_work.items()):
            report = executor.poll(job_id, job)
            if report.state is not JobState.RUNNING:
                assert report.outcome is AttemptOutcome.COMPLETED, report
                del at_work[job_id]


def cost_of(folder: Path, count: int, *, is_forked: bool) -> Cost:
    """Run so many jobs one way."""
    (folder / "work").mkdir(parents=True)
    made = tables(folder, count)
    executor = make_arrow(EngineContext(folder / "work", SYSTEM_RUNTIME))
    fork_server = executor._fork_server
    assert fork_server is not None, "there is nothing to compare here"
    if not is_forked:
        executor._fork_server = None
    jobs = [job_of(folder, table, number) for number, table in enumerate(made)]
    run(executor, jobs[:AT_ONCE])
    before_s, begun_s = _used_s(fork_server.pid), CLOCK.monotonic_s()
    run(executor, jobs[AT_ONCE:])
    # The minders end a moment after their jobs have told their outcome.
    elapsed_s = CLOCK.monotonic_s() - begun_s
    CLOCK.sleep(2.0)
    executor._reap()
    used_s, memory_mb = _used_s(fork_server.pid) - before_s, _memory_mb(fork_server.pid)
    executor.close()
    return Cost(used_s / (count - AT_ONCE), elapsed_s / (count - AT_ONCE), memory_mb)


def _used_s(forking: int | None) -> float:
    """Processor time of the programs that have ended, and of a process with what it forked."""
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = ours.ru_utime + ours.ru_stime
    if forking is not None:
        fields = Path(f"/proc/{forking}/stat").read_text().rpartition(")")[2].split()
        used += sum(map(int, fields[11:15])) / TICKS
    return used


def _memory_mb(pid: int | None) -> float:
    return 0.0 if pid is None else int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def main() -> None:
    """Print both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    count = parser.parse_args().jobs + AT_ONCE
    folder = Path(tempfile.mkdtemp(prefix="tkjobs"))
    try:
        for name, is_forked in (("a program each", False), ("forked", True)):
            cost = cost_of(folder / name, count, is_forked=is_forked)
            print(f"{name}: {cost.processor_s:.3f} s of a processor a job, one every {cost.elapsed_s:.2f} s", end="")
            print(f"; {cost.memory_mb:.0f} MB in the process that forks" if is_forked else "")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
