"""Table services of the stress run, as a process of its own: does its jobs in turn until it is told to stop, or killed.

    python -m tests.support.stress_service PLAN NUMBER SEED JOB,JOB,…

Every plan that is scheduled and everything that is tried is noted in a journal, with what came of it.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tablekeeper.errors import (
    ConflictError,
    FencedError,
    InvalidRequestError,
    PlanCancelledError,
    PlanHeldError,
    StorageError,
    TablekeeperError,
)
from tablekeeper.model import PlanFlags, RequestedTime, ServiceKind
from tablekeeper.runtime import SYSTEM_RUNTIME
from tablekeeper.services.plans.service import ServiceResult
from tests.support.stress_plans import flags_text
from tests.support.stress_worker import StressPlan, note, open_table

__all__ = ["AT_ONCE", "JOBS", "SERVICE_JOURNAL"]

SERVICE_JOURNAL = "service"
AT_ONCE = {"hoodie.table.service.rollback.delay.minutes": "0"}
"""Plans that may go without having been executed go at the first clean."""

KEPT_COMMITS = 3
# Compaction and clustering leave little to merge for a log compaction, and should not be at it all the time.
_GREEDY = ("compaction", "clustering")
_REST_S = 0.6
_CANCEL_AFTER_S = 6
_FLAGS = (
    [PlanFlags()] * 4
    + [PlanFlags(cancellable=True)] * 4
    + [PlanFlags(cancellable=True, cancel_after_s=_CANCEL_AFTER_S), PlanFlags(mutable=True)]
    + [PlanFlags(mutable=True, cancellable=True)]
)
_WORDS: dict[type[TablekeeperError], str] = {
    PlanHeldError: "held",
    PlanCancelledError: "cancelled",
    ConflictError: "yielded",
    FencedError: "fenced",
}


class _Service:
    """One process that looks after the table."""

    def __init__(self, plan: StressPlan, chance: random.Random, journal: int) -> None:
        self._plan = plan
        self._chance = chance
        self._journal = journal
        self._table = open_table(plan)
        self._hasty = open_table(plan, options=AT_ONCE)
        self._job = ""

    def run(self, job: str) -> None:
        self._job = job
        JOBS[job](self)

    def compaction(self) -> None:
        self._rewrite(ServiceKind.COMPACTION, self._table.schedule_compaction, self._table.compact)

    def log_compaction(self) -> None:
        self._rewrite(ServiceKind.LOG_COMPACTION, self._table.schedule_log_compaction, self._table.log_compact)

    def clustering(self) -> None:
        table, chance = self._table, self._chance
        order: dict[str, Any] = {"order_by": chance.choice(["ts", ["ts", "id"]])}
        order["strategy"] = chance.choice(["sort", "zorder"])
        self._rewrite(
            ServiceKind.CLUSTERING, partial(table.schedule_clustering, **order), partial(table.cluster, **order)
        )

    def executor(self) -> None:
        """Executes what others have left, as a background loop does."""
        for kind in ServiceKind:
            self._try(partial(self._execute_waiting, kind))

    def clean(self) -> None:
        table = self._chance.choice([self._table, self._hasty])

        def clean() -> None:
            result = table.clean(keep_commits=KEPT_COMMITS)
            self._note("completed" if result is not None else "nothing")

        self._try(clean)

    def archive(self) -> None:
        def archive() -> None:
            result = self._table.archive()
            self._note("completed" if result.instants else "nothing", message=str(len(result.instants)))

        self._try(archive)

    def cancel(self) -> None:
        """Cancels some of the plans that may be cancelled."""
        for each in self._listed():
            if each.flags.can_be_removed and self._chance.random() < 0.7:
                self._try(partial(self._cancel, each.instant), flags=each.flags)

    def read(self) -> None:
        def read() -> None:
            ids = self._table.read().column("id").to_pylist()
            doubled = [key for key, count in Counter(ids).items() if count > 1]
            self._note("doubled" if doubled else "completed", message=", ".join(doubled))

        self._try(read)

    def _rewrite(
        self,
        kind: ServiceKind,
        schedule: Callable[..., Any],
        run: Callable[..., ServiceResult | None],
    ) -> None:
        """Schedule a plan and execute it, or leave it to others; and look after those that wait."""
        chance = self._chance
        flags = chance.choice(_FLAGS)
        where: dict[str, Any] = {"cancellable": flags.cancellable, "mutable": flags.mutable}
        if chance.random() < 0.6:
            where["partitions"] = f"part = 'p{chance.randrange(self._plan.partitions)}'"
        if chance.random() < 0.2:
            self._try(lambda: self._note_results([run(**where)]), flags=flags)
            return
        scheduled: list[Any] = []
        if flags.cancel_after_s is not None:
            where["cancel_after"] = flags.cancel_after_s
        self._try(lambda: scheduled.append(schedule(**where)), flags=flags)
        for plan in scheduled:
            if plan is None:
                self._note("nothing")
                continue
            self._note("scheduled", plan.instant.value, flags=flags)
            if chance.random() < (0.4 if flags.can_be_removed else 0.7):
                self._execute(plan.instant, flags)
        if chance.random() < 0.5:
            for each in self._listed():
                if each.service == kind.value:
                    self._execute(each.instant, each.flags)

    def _execute(self, instant: RequestedTime, flags: PlanFlags) -> None:
        self._try(lambda: self._note_results([self._table.execute(instant)]), flags=flags, instant=instant.value)

    def _execute_waiting(self, kind: ServiceKind) -> None:
        self._note_results(self._table._execute_waiting(kind))

    def _cancel(self, instant: RequestedTime) -> None:
        self._note(self._table.cancel(instant, reason="stress", wait="1s").outcome, instant.value)

    def _listed(self) -> list[Any]:
        listed: list[Any] = []
        self._try(lambda: listed.extend(self._table.plans()))
        return listed

    def _note_results(self, results: Sequence[ServiceResult | None]) -> None:
        for result in results:
            if result is None:
                self._note("nothing")
            else:
                self._note(result.outcome, result.instant.value, service=result.service)

    def _try(self, do: Callable[[], None], *, flags: PlanFlags | None = None, instant: str = "") -> None:
        try:
            do()
        except TablekeeperError as error:
            self._note(_outcome(error, flags), instant, message=str(error), flags=flags)

    def _note(
        self, outcome: str, instant: str = "", message: str = "", *, flags: PlanFlags | None = None, service: str = ""
    ) -> None:
        entry = {
            "job": self._job,
            "outcome": outcome,
            "instant": instant,
            "message": message,
            "flags": flags_text(flags.to_metadata()) if flags is not None else "",
            "service": service.replace(" ", "_"),
        }
        note(self._journal, entry)


JOBS: dict[str, Callable[[_Service], None]] = {
    "compaction": _Service.compaction,
    "log_compaction": _Service.log_compaction,
    "clustering": _Service.clustering,
    "executor": _Service.executor,
    "clean": _Service.clean,
    "archive": _Service.archive,
    "cancel": _Service.cancel,
    "read": _Service.read,
}


def _outcome(error: TablekeeperError, flags: PlanFlags | None) -> str:
    """One word for what is part of the game, the name of the error for anything else."""
    may_go = flags is not None and flags.can_be_removed
    if isinstance(error, ConflictError) and not (flags is not None and flags.cancellable):
        return "firm plan lost"
    if isinstance(error, InvalidRequestError) and may_go and "there is no plan" in str(error):
        return "gone"
    if isinstance(error, StorageError) and "Read the table again" in str(error):
        return "vanished"
    return next((word for kind, word in _WORDS.items() if isinstance(error, kind)), type(error).__name__)


def main() -> None:
    plan_path, number, seed, jobs = sys.argv[1:5]
    plan = StressPlan(**json.loads(Path(plan_path).read_text(encoding="utf-8")))
    chance = random.Random(int(seed))
    path = Path(plan.folder) / f"{SERVICE_JOURNAL}-{number}-{seed}"
    service = _Service(plan, chance, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    while not plan.stop_file.exists():
        for job in jobs.split(","):
            service.run(job)
            SYSTEM_RUNTIME.clock.sleep(chance.uniform(0, plan.rest_s if job in _GREEDY else _REST_S))


if __name__ == "__main__":
    main()
