"""The judgement on a stress run, which knows the journals and the table. What must hold, no matter who was killed when:

- a write that reported success is in the table's past, once, under the instant and completion time that it was told;
- a write that reported a conflict is not; one whose writer was killed is there whole or not at all;
- the rows are those of the commits in the table's past, applied in the order in which they completed; in the
  non-blocking mode in that in which they began, which is how the log files of a slice are merged, and nobody met a
  conflict;
- no write ever lost to a plan that is cancellable, and each table service succeeded at least once;
- when all heartbeats have lapsed, a clean leaves no plan that is older than its limit; plans that stay are executed
  by the next process; then nothing is pending, and no data file is left over;
- the doctor repairs what litter there is, and finds nothing more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tablekeeper as tk
from tablekeeper.errors import TablekeeperError
from tablekeeper.model import ServiceKind, State
from tablekeeper.runtime import SYSTEM_RUNTIME, Runtime, SystemClock
from tablekeeper.services.doctor import Severity
from tablekeeper.timeline import load_timeline
from tests.support.stress_plans import Past, load_past
from tests.support.stress_service import AT_ONCE, SERVICE_JOURNAL
from tests.support.stress_worker import NAME_KEY, StressPlan, Write, load_journal, open_table, rows_frame

__all__ = ["ServiceJournals", "StressReport", "judge", "load_service_journals"]

_LAPSE_S = 60.0
_FINE = frozenset(
    {
        "completed",
        "already completed",
        "scheduled",
        "nothing",
        "held",
        "yielded",
        "cancelled",
        "fenced",
        "gone",
        "vanished",
        "removed",
        "requested",
    }
)
_REFUSED = ("conflict", "FencedError", "LockNotAcquiredError")


@dataclass
class ServiceJournals:
    """What all the processes that look after the table noted: entries in the order of each process."""

    entries: list[dict[str, Any]]

    def succeeded(self, job: str) -> bool:
        """Whether the job did what it is for at least once. Others may execute what a service planned.

        A plan was cancelled if it is gone, or if its executor stopped because of it.
        """
        if job == "cancel":
            return any(entry["outcome"] in ("removed", "cancelled") for entry in self.entries)
        return any(
            job in (entry["job"], entry["service"]) and entry["outcome"] == "completed" for entry in self.entries
        )

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Outcomes of each job, with how often."""
        found: dict[str, Counter[str]] = {}
        for entry in self.entries:
            found.setdefault(entry["job"], Counter())[entry["outcome"]] += 1
        return {job: dict(sorted(found[job].items())) for job in sorted(found)}

    @property
    def plans(self) -> dict[str, str]:
        """Flags of the plans that were noted as scheduled."""
        return {e["instant"]: e["flags"] for e in self.entries if e["outcome"] == "scheduled"}

    @property
    def faults(self) -> list[str]:
        return [f"{e['job']}: {e['outcome']}: {e['message']}" for e in self.entries if e["outcome"] not in _FINE]


def load_service_journals(plan: StressPlan) -> ServiceJournals:
    """The journals as they are now; a line that was cut off by a kill is left out."""
    entries = []
    for path in sorted(Path(plan.folder).glob(f"{SERVICE_JOURNAL}-*")):
        entries += [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return ServiceJournals(entries)


@dataclass
class StressReport:
    """What happened in a run and what is wrong with the table afterwards (nothing, one hopes)."""

    seconds: float
    kills: int
    outcomes: Counter[str]
    commits: int
    unreported: int
    locks_held_s: list[float]
    conflicts: int
    archived: int = 0
    rollbacks: int = 0
    lost_to_plans: int = 0
    services: dict[str, dict[str, int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Seconds that the lock was held at most in this share of the commits."""
        ordered = sorted(self.locks_held_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def __str__(self) -> str:
        text = (
            f"{self.commits} commits in {self.seconds:.0f} s ({self.commits / self.seconds:.1f}/s), "
            f"{self.kills} kills, {self.unreported} commits of killed writers, {self.rollbacks} rollbacks, "
            f"{self.conflicts} conflicts ({self.lost_to_plans} with firm plans), outcomes {dict(self.outcomes)}, "
            f"lock held p50 {1000 * self.percentile(0.5):.0f} ms, "
            f"p99 {1000 * self.percentile(0.99):.0f} ms, max {1000 * max(self.locks_held_s, default=0):.0f} ms"
        )
        if self.services:
            text += f", {self.archived} instants archived"
        width = max((len(job) for job in self.services), default=0)
        for job, counts in self.services.items():
            shown = ", ".join(f"{outcome} {count}" for outcome, count in counts.items())
            text += f"\n  {job:<{width}}  {shown}"
        return text


class _LaterClock(SystemClock):
    """Two days ahead: every heartbeat has lapsed, and what lies around counts as forgotten."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * 86_400_000


def judge(plan: StressPlan, *, seconds: float, kills: int) -> StressReport:
    """Compare the journals with the table, tidy up as those who come next would, and compare again."""
    writes = _journals(plan)
    report = _examine(plan, writes, seconds=seconds, kills=kills)
    if plan.jobs:
        journals = load_service_journals(plan)
        report.services = journals.counts
        report.faults += journals.faults
        report.faults += [f"{job} never succeeded" for job in plan.jobs if not journals.succeeded(job)]
        report.faults += _finish_plans(plan)
    _last_write(plan, writes)
    again = _examine(plan, writes, seconds=seconds, kills=kills)
    report.faults += [f"after tidying up: {fault}" for fault in again.faults if fault not in report.faults]
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
    past = load_past(table)
    faults: list[str] = []
    model: dict[str, tuple[int, str]] = {}
    landed: dict[str, tuple[str, str]] = {}
    ordered = past.ingestion
    if not plan.non_blocking:
        ordered.sort(key=lambda each: (each[0].completed_at, each[0].requested_at))
    for instant, metadata in ordered:
        name = metadata.extra.get(NAME_KEY, "")
        if name not in writes:
            faults.append(f"{instant} is in the table's past, but nobody wrote {name!r}")
            continue
        if name in landed:
            faults.append(f"write {name} was committed twice, as {landed[name]} and {instant}")
        landed[name] = instant.requested_at.value, instant.completed_at.value if instant.completed_at else ""
        _apply(model, writes[name])
    faults += _wrong_outcomes(writes, landed)
    faults += _wrong_rows(table, model)
    done = list(writes.values())
    if plan.non_blocking:
        faults += [f"write {write.name} met {write.conflicts} conflicts" for write in done if write.conflicts]
    lost_to_plans, wrongly_lost = _lost_to_plans(plan, done, past)
    committed = [write for write in done if write.outcome == "committed" and write.instant]
    return StressReport(
        seconds=seconds,
        kills=kills,
        outcomes=Counter(write.outcome or "killed" for write in done),
        commits=len(landed),
        unreported=sum(1 for write in done if not write.outcome and write.name in landed),
        locks_held_s=[write.lock_held_s for write in committed],
        conflicts=sum(write.conflicts for write in done),
        archived=past.archived,
        rollbacks=past.rollbacks,
        lost_to_plans=lost_to_plans,
        faults=faults + wrongly_lost,
    )


def _apply(model: dict[str, tuple[int, str]], write: Write) -> None:
    """The merge rule: an older row never replaces a newer one, of two of the same age the later commit wins."""
    for key, ts in write.rows:
        if write.kind == "delete":
            model.pop(key, None)
        elif key not in model or ts >= model[key][0]:
            model[key] = (ts, write.name)


def _wrong_outcomes(writes: Mapping[str, Write], landed: Mapping[str, tuple[str, str]]) -> list[str]:
    faults = []
    for write in writes.values():
        found = landed.get(write.name, ("nowhere", ""))
        told = write.instant, write.completed_at or found[1]
        if write.outcome == "committed" and write.instant and found != told:
            faults.append(f"write {write.name} was reported as {told}, and is {found}")
        if write.outcome in _REFUSED and write.name in landed:
            faults.append(f"write {write.name} was reported as {write.outcome}, and landed all the same")
        # On a busy machine a writer may be kept from beating for so long that it has to stop.
        if write.outcome not in ("", "committed", "conflict", "FencedError"):
            faults.append(f"write {write.name} failed: {write.outcome}: {write.message}")
    return faults


def _lost_to_plans(plan: StressPlan, writes: list[Write], past: Past) -> tuple[int, list[str]]:
    """How often writes lost to plans of table services, and those that must not have."""
    ingestion = {instant.requested_at.value for instant, _ in past.ingestion}
    known = {instant: flags for write in writes for instant, flags in write.lost_to if flags}
    known |= {**load_service_journals(plan).plans, **past.plans}
    count = 0
    faults = []
    for write in writes:
        for instant, flags in write.lost_to:
            if instant in ingestion:
                continue
            count += 1
            found = flags or known.get(instant, "a plan that nobody knows")
            if found not in ("firm", "mutable"):
                faults.append(f"write {write.name} lost to {instant}, which is {found}")
    return count, faults


def _wrong_rows(table: tk.Table, model: Mapping[str, tuple[int, str]]) -> list[str]:
    rows = table.read().to_pylist()
    faults = [f"key {key} is there {count} times" for key, count in Counter(r["id"] for r in rows).items() if count > 1]
    actual = {row["id"]: (row["ts"], row["value"]) for row in rows}
    for key in sorted(actual.keys() | model.keys()):
        if actual.get(key) != model.get(key):
            faults.append(f"key {key} is {actual.get(key)} and should be {model.get(key)}")
    return faults


def _finish_plans(plan: StressPlan) -> list[str]:
    """What becomes of the plans that are left: those that may go are gone after a clean, the others are executed."""
    table = open_table(plan)
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + _LAPSE_S
    while any(each.is_active for each in table.heartbeats()) and clock.monotonic_s() < until_s:
        clock.sleep(0.2)
    faults = [f"a heartbeat does not lapse: {each}" for each in table.heartbeats() if each.is_active]
    table.clean()
    for each in table.plans():
        limit_s = each.flags.cancel_after_s
        is_old = limit_s is not None and each.age_s > limit_s
        is_dead = each.flags.mutable and each.state == State.INFLIGHT.value
        if each.cancelled or is_old or is_dead:
            faults.append(f"a clean left {each}")
    open_table(plan, options=AT_ONCE).clean()
    faults += [f"a clean at once left {each}" for each in table.plans() if each.flags.can_be_removed]
    for waiting in table.plans():
        try:
            table.execute(waiting.instant)
        except TablekeeperError as error:
            faults.append(f"{waiting} cannot be executed: {type(error).__name__}: {error}")
    faults += [f"{each} is still pending" for each in table.plans()]
    if list(table._storage.list_files(".hoodie/.cancel")):
        faults.append("requests to cancel plans are left behind")
    for kind in ServiceKind:
        if kind.value.replace(" ", "_") in plan.jobs:
            table._execute_waiting(kind)
    return faults


def _last_write(plan: StressPlan, writes: dict[str, Write]) -> None:
    write = Write("last", "upsert", [("k0", 10_000)], outcome="committed")
    writes[write.name] = write
    table = open_table(plan, runtime=Runtime(clock=_LaterClock()))
    result = table.upsert(rows_frame(write, plan), extra={NAME_KEY: write.name})
    write.instant = "" if result.instant is None else result.instant.value


def _leftovers(plan: StressPlan) -> list[str]:
    table = open_table(plan)
    storage, config = table._storage, table.config
    timeline = load_timeline(storage, config)
    faults = [f"{instant} is still pending" for instant in timeline.pending]
    past = load_past(table)
    committed = {stat.path for _, metadata in past.commits for stat in metadata.stats}
    for file in storage.walk(""):
        is_data = not file.path.startswith(".hoodie/") and not file.name.startswith(".hoodie_partition_metadata")
        if is_data and file.path not in committed:
            faults.append(f"{file.path} belongs to no commit")
    done = {instant.requested_at.value for instant, _ in past.commits}
    faults += [f"markers of {name}" for name in storage.list_directories(".hoodie/.temp") if name not in done]
    return faults


def _findings(plan: StressPlan) -> list[str]:
    """What the doctor could not repair."""
    report = open_table(plan, runtime=Runtime(clock=_LaterClock())).doctor(fix=True)
    faults = [f"the doctor could not {repair}: {reason}" for repair, reason in report.failed]
    left = [f for f in report.findings if f.repair is not None or f.severity is not Severity.INFO]
    return faults + [f"the doctor found: {finding}" for finding in left]
