"""What must hold of a service in the end: everything that it was asked for has ended, and nobody holds anything."""

from __future__ import annotations

from tablekeeper.testing.service.site import Site
from tablekeeper.testing.service.watch import ENDED, HELD
from tablekeeper.testing.verdict import caretaker, invariant
from tablekeeper.testing.watch import Watch
from tablekeeper.testing.worker import Worker

__all__ = ["finish_operations"]

_ROUNDS = 40
_ROUND_S = 150.0


@caretaker
def finish_operations(worker: Worker) -> None:
    """One more instance works off what there is, in a bounded number of rounds."""
    site = worker.world.watch.shared.get(Site)
    if site is None:
        return
    service = site.open_instance(worker).service
    rounds = 0
    site.store.notice_commit(site.table_id)
    while rounds < 2 or any(row["status"] not in ENDED for row in site.watch.operations()):
        service.run_once()
        worker.process.sleep(_ROUND_S)
        rounds += 1
        if rounds > _ROUNDS:
            left = [row for row in site.watch.operations() if row["status"] not in ENDED]
            worker.story.complain("ends", f"after {rounds} rounds of the service there is still {left[:3]}")
            return


@invariant
def operations_have_ended(watch: Watch) -> None:
    """No operation is left, nor a lease, nor an attempt that still runs."""
    site = watch.shared.get(Site)
    if site is None:
        return
    for row in site.watch.operations():
        if row["status"] in HELD or row["status"] not in ENDED:
            watch.story.complain("ends", f"{row['action']} {row['instant']} has not ended: {row}")
        elif row["lease_until_ms"] is not None:
            watch.story.complain("ends", f"{row['action']} {row['instant']} has ended, and has a lease: {row}")
    running = site.database.rows("SELECT operation_id, number FROM attempt WHERE outcome = 'running'")
    if running:
        watch.story.complain("ends", f"attempts are still running: {running}")


@invariant
def acknowledged_plans_are_remembered(watch: Watch) -> None:
    """Who was told that a plan is accepted can rely on it."""
    site = watch.shared.get(Site)
    if site is None:
        return
    known = {row["instant"] for row in site.watch.operations() if not row["is_deleted"]}
    for instant, number in site.acknowledged.items():
        if instant not in known:
            watch.story.complain("remembered", f"{instant} was accepted as operation {number}, and is forgotten")
