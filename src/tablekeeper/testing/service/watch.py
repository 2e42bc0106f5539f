"""What must hold of a service, transaction by transaction: who may change an operation, and what is said of it.

It keeps a picture of the operations, and compares it after each transaction with what the database has then: the rules
are written down here once more, and nothing of the store is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tablekeeper.testing.loop import Loop
from tablekeeper.testing.process import START_MS, Process
from tablekeeper.testing.service.database import ServiceDatabase
from tablekeeper.testing.service.engine import RunningJob
from tablekeeper.testing.world import World
from tablekeeper.timeline import load_timeline
from tablekeeper.timeline.history import load_history
from tablekeeper.timeline.properties_file import load_table_config

__all__ = ["ENDED", "HELD", "ServiceWatch"]

PENDING, CLAIMED, RUNNING, COMPLETED, FAILED, CANCELLED, QUARANTINED = range(7)
HELD: Final = (CLAIMED, RUNNING)
ENDED: Final = (COMPLETED, FAILED, CANCELLED, QUARANTINED)
_EDGES = {
    PENDING: {CLAIMED, COMPLETED, CANCELLED, QUARANTINED},
    CLAIMED: {RUNNING, COMPLETED, PENDING, FAILED, CANCELLED, QUARANTINED},
    RUNNING: {COMPLETED, PENDING, FAILED, CANCELLED, QUARANTINED},
    QUARANTINED: {CANCELLED, COMPLETED, PENDING},
    FAILED: {CANCELLED, PENDING},
    CANCELLED: {PENDING},
    COMPLETED: set[int](),
}
_PLANNED = ("compaction", "log_compaction", "clustering")
_BY_OTHERS = ("expire_leases", "request_cancel", "remove")
"""What may touch an operation that somebody else holds: after its lease, or to ask its holder to stop."""

_OPERATIONS = (
    "SELECT operation_id, tbl_id, instant, action, status, lease_token, lease_until_ms, instance_id, cancel_reason, "
    "run_times, failures, isDeleted AS is_deleted, note FROM operation"
)

Row = Mapping[str, Any]


class ServiceWatch:
    """The witness of a database."""

    def __init__(self, world: World, database: ServiceDatabase) -> None:
        self._story = world.story
        self._loop: Loop = world.loop
        self._storage = world.watch.storage
        self._database = database
        self._known: dict[int, Row] = {}
        self._processes: dict[str, str] = {}

    def admit(self, instance_id: str, process: Process) -> None:
        """An instance and its process."""
        self._processes[instance_id] = process.name

    def operations(self) -> Sequence[Row]:
        """All that there are."""
        return self._database.rows(_OPERATIONS)

    def saw_change(self, process: Process, what: str) -> None:
        """A process made a transaction."""
        now = {row["operation_id"]: row for row in self.operations()}
        for number, after in now.items():
            before = self._known.get(number)
            if before is not None and before != after:
                self._changed(process, what, before, after)
        self._refuse_crowds(what, list(now.values()))
        self._known = now

    def refuse_twins(self, job: RunningJob, jobs: Sequence[RunningJob]) -> None:
        """No second job of an operation is started where the first one can be seen."""
        host = job.process.host
        for other in jobs:
            is_same = other.job.operation_id == job.job.operation_id
            if other is not job and is_same and other.is_alive and other.process.host == host:
                self._complain("adopted", f"{other.process.name} still works on it, and {job.process.name} starts", job)

    def _changed(self, process: Process, what: str, before: Row, after: Row) -> None:
        name = f"{after['action']} {after['instant']} ({process.name}, {what})"
        self._story.counts[f"service {what}"] += 1
        if after["status"] != before["status"]:
            self._story.counts[f"service operation {after['action']} {_word(after['status'])}"] += 1
            if after["status"] not in _EDGES[before["status"]]:
                self._story.complain("status", f"{name}: {_word(before['status'])} became {_word(after['status'])}")
            self._refuse_lies(name, after)
        if before["status"] in HELD:
            self._refuse_strangers(name, process, what, before)

    def _refuse_strangers(self, name: str, process: Process, what: str, before: Row) -> None:
        """Only its holder changes what is held, and only as long as the lease lasts."""
        is_over = before["lease_until_ms"] is None or before["lease_until_ms"] <= self._now_ms
        if what == "expire_leases" and not is_over:
            self._story.complain("lease", f"{name}: expired before its time")
        if what in _BY_OTHERS:
            return
        holder = self._processes.get(before["instance_id"], "")
        if holder != process.name:
            self._story.complain("lease", f"{name}: {holder} holds it")
        elif is_over:
            self._story.complain("lease", f"{name}: the lease was over")

    def _refuse_lies(self, name: str, after: Row) -> None:
        """What is said of a plan is so on the timeline."""
        if after["action"] not in _PLANNED or "@" in after["instant"]:
            return
        if after["status"] == COMPLETED and not self._has_completed(after["instant"]):
            self._story.complain("told", f"{name}: it has not completed")
        if after["status"] == CANCELLED and not after["cancel_reason"] and self._has_completed(after["instant"]):
            self._story.complain("told", f"{name}: it has completed, and is said to be gone: {after['note']}")

    def _has_completed(self, instant: str) -> bool:
        config = load_table_config(self._storage)
        if any(each.requested_at.value == instant for each in load_timeline(self._storage, config).completed):
            return True
        past = load_history(self._storage, config, with_contents=False)
        return any(each.instant.requested_at.value == instant for each in past)

    def _refuse_crowds(self, what: str, rows: Sequence[Row]) -> None:
        """A table has one running operation of a kind."""
        held = Counter((row["tbl_id"], row["action"]) for row in rows if row["status"] in HELD)
        for (_, action), count in held.items():
            if count > 1:
                self._story.complain("crowd", f"{count} operations for a {action} are held after {what}")

    def _complain(self, invariant: str, text: str, job: RunningJob) -> None:
        self._story.complain(invariant, f"operation {job.job.operation_id}: {text}")

    @property
    def _now_ms(self) -> int:
        return START_MS + int(self._loop.now_s * 1000)


def _word(status: int) -> str:
    return ("pending", "claimed", "running", "completed", "failed", "cancelled", "quarantined")[status]
