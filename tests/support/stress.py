"""A stress run: processes upsert overlapping keys into one table, are killed and started again; then the judgement.

The judge knows the journals of the writers and the table. What must hold, whoever was killed when:

- a write that reported success is on the timeline, once, under the instant that it was told;
- a write that reported a conflict is not; one whose writer was killed is there whole or not at all;
- the rows are those of the commits on the timeline, applied in the order in which they completed; in the non-blocking
  mode in that in which they began, which is how the log files of a slice are merged, and nobody met a conflict;
- after one more writer, which finds all heartbeats lapsed, nothing is pending and no data file is left over;
- the doctor mends what litter there is, and finds nothing more.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tablekeeper as tk
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime, SystemClock
from tablekeeper.storage import open_storage
from tablekeeper.timeline import load_commit_metadata, load_timeline
from tests.support.stress_worker import NAME_KEY, SCHEMA, StressPlan, Write, load_journal, open_table, rows_frame

__all__ = ["NON_BLOCKING", "StressReport", "judge", "make_table", "run_writers"]

ROOT = Path(__file__).parents[2]
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
_START_S = 180
_HEARTBEAT = {
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "3",
}


@dataclass
class StressReport:
    """What happened in a run and what is wrong with the table afterwards (nothing, one hopes)."""

    seconds: float
    kills: int
    outcomes: Counter[str]
    commits: int
    unreported: int
    rollbacks: int
    locks_held_s: list[float]
    conflicts: int
    faults: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Seconds that the lock was held at most in this share of the commits."""
        ordered = sorted(self.locks_held_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def __str__(self) -> str:
        return (
            f"{self.commits} commits in {self.seconds:.0f} s ({self.commits / self.seconds:.1f}/s), "
            f"{self.kills} kills, {self.unreported} commits of killed writers, {self.rollbacks} rollbacks, "
            f"{self.conflicts} conflicts, outcomes {dict(self.outcomes)}, "
            f"lock held p50 {1000 * self.percentile(0.5):.0f} ms, "
            f"p99 {1000 * self.percentile(0.99):.0f} ms, max {1000 * max(self.locks_held_s, default=0):.0f} ms"
        )


class _LaterClock(SystemClock):
    """Two days ahead: every heartbeat has lapsed, and what lies around counts as forgotten."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * 86_400_000


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
        options={**_HEARTBEAT, **options},
        storage_options=plan.storage_options or None,
    )


def run_writers(plan: StressPlan, *, writers: int, seconds: float, kill_every_s: float, seed: int) -> int:
    """Let `writers` processes write for a while, killing one every now and then. Returns how many were killed."""
    crew = _Crew(plan, seed=seed)
    try:
        for number in range(writers):
            crew.start(number)
        crew.wait_for_all()
        kills = _kill_at_random(crew, random.Random(seed), seconds=seconds, kill_every_s=kill_every_s)
        plan.stop_file.touch()
        crew.wait()
    finally:
        crew.kill_all()
    return kills


class _Crew:
    """The processes of a run."""

    def __init__(self, plan: StressPlan, *, seed: int) -> None:
        self._plan = plan
        self._path = plan.save()
        self._seeds = iter(range(seed * 1_000, (seed + 1) * 1_000))
        self._running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}

    def start(self, writer: int) -> None:
        seed = next(self._seeds)
        command = [sys.executable, "-m", "tests.support.stress_worker", str(self._path), str(writer), str(seed)]
        self._running[writer] = seed, subprocess.Popen(command, cwd=ROOT)

    def at_work(self) -> list[int]:
        """Writers that have begun to write. One that ended by itself is a fault of the run."""
        ended = [writer for writer, (_, process) in self._running.items() if process.poll() is not None]
        if ended:
            raise AssertionError(f"writers {ended} ended by themselves; see their output above")
        folder = Path(self._plan.folder)
        return [writer for writer, (seed, _) in self._running.items() if (folder / f"journal-{writer}-{seed}").exists()]

    def wait_for_all(self) -> None:
        """The time of a run begins when all are at work, however long a busy machine takes to start them."""
        deadline = time.monotonic() + _START_S
        while len(self.at_work()) < len(self._running):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {_START_S} s only {self.at_work()} of the writers are at work")
            SYSTEM_RUNTIME.clock.sleep(0.1)

    def kill(self, writer: int) -> None:
        _, process = self._running[writer]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_all(self) -> None:
        for writer in self._running:
            self.kill(writer)

    def wait(self) -> None:
        """All have been told to stop: wait for their last write."""
        statuses = [process.wait(timeout=120) for _, process in self._running.values()]
        if any(statuses):
            raise AssertionError("a writer ended with an error; see its output above")


def _kill_at_random(crew: _Crew, chance: random.Random, *, seconds: float, kill_every_s: float) -> int:
    kills = 0
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        SYSTEM_RUNTIME.clock.sleep(min(left, chance.uniform(0.2, 1.8) * kill_every_s))
        candidates = crew.at_work()
        if candidates and time.monotonic() < deadline:
            victim = chance.choice(candidates)
            crew.kill(victim)
            kills += 1
            crew.start(victim)
    return kills


def judge(plan: StressPlan, *, seconds: float, kills: int) -> StressReport:
    """Compare the journals with the table, tidy up as the next writer would, and compare again."""
    writes = _journals(plan)
    report = _examine(plan, writes, seconds=seconds, kills=kills)
    _last_write(plan, writes)
    again = _examine(plan, writes, seconds=seconds, kills=kills)
    report.faults += [f"after tidying up: {fault}" for fault in again.faults]
    report.faults += _leftovers(plan)
    report.faults += _findings(plan)
    report.rollbacks = again.rollbacks
    return report


def _journals(plan: StressPlan) -> dict[str, Write]:
    writes: dict[str, Write] = {}
    for path in sorted(Path(plan.folder).glob("journal-*")):
        writes.update(load_journal(path))
    return writes


def _examine(plan: StressPlan, writes: Mapping[str, Write], *, seconds: float, kills: int) -> StressReport:
    table = open_table(plan)
    storage = open_storage(plan.table, options=plan.storage_options or None)
    config = table.config
    timeline = load_timeline(storage, config)
    faults: list[str] = []
    model: dict[str, tuple[int, str]] = {}
    landed: dict[str, str] = {}
    for instant in timeline.completed_writes if plan.non_blocking else timeline.completed_writes_by_completion:
        name = load_commit_metadata(storage, config, instant).extra.get(NAME_KEY, "")
        if name not in writes:
            faults.append(f"{instant} is on the timeline, but nobody wrote {name!r}")
            continue
        if name in landed:
            faults.append(f"write {name} was committed twice, as {landed[name]} and {instant}")
        landed[name] = instant.requested_at.value
        _apply(model, writes[name])
    faults += _wrong_outcomes(writes, landed)
    faults += _wrong_rows(table, model)
    done = list(writes.values())
    if plan.non_blocking:
        faults += [f"write {write.name} met {write.conflicts} conflicts" for write in done if write.conflicts]
    committed = [write for write in done if write.outcome == "committed" and write.instant]
    return StressReport(
        seconds=seconds,
        kills=kills,
        outcomes=Counter(write.outcome or "killed" for write in done),
        commits=len(landed),
        unreported=sum(1 for write in done if not write.outcome and write.name in landed),
        rollbacks=sum(1 for instant in timeline if instant.action.value == "rollback"),
        locks_held_s=[write.lock_held_s for write in committed],
        conflicts=sum(write.conflicts for write in done),
        faults=faults,
    )


def _apply(model: dict[str, tuple[int, str]], write: Write) -> None:
    """The merge rule: an older row never replaces a newer one, of two of the same age the later commit wins."""
    for key, ts in write.rows:
        if write.kind == "delete":
            model.pop(key, None)
        elif key not in model or ts >= model[key][0]:
            model[key] = (ts, write.name)


def _wrong_outcomes(writes: Mapping[str, Write], landed: Mapping[str, str]) -> list[str]:
    faults = []
    for write in writes.values():
        if write.outcome == "committed" and write.instant and landed.get(write.name) != write.instant:
            faults.append(f"write {write.name} was reported as {write.instant}, and is {landed.get(write.name)}")
        if write.outcome in ("conflict", "FencedError", "LockNotAcquiredError") and write.name in landed:
            faults.append(f"write {write.name} was reported as {write.outcome}, and landed all the same")
        if write.outcome not in ("", "committed", "conflict"):
            faults.append(f"write {write.name} failed: {write.outcome}: {write.message}")
    return faults


def _wrong_rows(table: tk.Table, model: Mapping[str, tuple[int, str]]) -> list[str]:
    rows = table.read().to_pylist()
    faults = [f"key {key} is there {count} times" for key, count in Counter(r["id"] for r in rows).items() if count > 1]
    actual = {row["id"]: (row["ts"], row["value"]) for row in rows}
    for key in sorted(actual.keys() | model.keys()):
        if actual.get(key) != model.get(key):
            faults.append(f"key {key} is {actual.get(key)} and should be {model.get(key)}")
    return faults


def _last_write(plan: StressPlan, writes: dict[str, Write]) -> None:
    write = Write("last", "upsert", [("k0", 10_000)], outcome="committed")
    writes[write.name] = write
    table = open_table(plan, runtime=Runtime(clock=_LaterClock()))
    result = table.upsert(rows_frame(write, plan), extra={NAME_KEY: write.name})
    write.instant = "" if result.instant is None else result.instant.value


def _leftovers(plan: StressPlan) -> list[str]:
    storage = open_storage(plan.table, options=plan.storage_options or None)
    config = open_table(plan).config
    timeline = load_timeline(storage, config)
    faults = [f"{instant} is still pending" for instant in timeline.pending]
    committed = {
        stat.path
        for instant in timeline.completed_writes
        for stat in load_commit_metadata(storage, config, instant).stats
    }
    for file in storage.walk(""):
        is_data = not file.path.startswith(".hoodie/") and not file.name.startswith(".hoodie_partition_metadata")
        if is_data and file.path not in committed:
            faults.append(f"{file.path} belongs to no commit")
    done = {instant.requested_at.value for instant in timeline.completed_writes}
    faults += [f"markers of {name}" for name in storage.list_directories(".hoodie/.temp") if name not in done]
    return faults


def _findings(plan: StressPlan) -> list[str]:
    """What the doctor could not mend."""
    report = open_table(plan, runtime=Runtime(clock=_LaterClock())).doctor(fix=True)
    faults = [f"the doctor could not {repair}: {reason}" for repair, reason in report.failed]
    return faults + [f"the doctor found: {finding}" for finding in report.findings if finding.repair is not None]
