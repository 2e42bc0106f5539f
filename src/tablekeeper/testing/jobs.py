"""What actors can do: a registry of jobs.

A job is a function of a `Worker`; `@job` names it, and says how many calls of the store it makes about (so that faults
hit it), which actors do it how often, and for which tables it is. Everything that it leaves open it draws from
`worker.chance`. To add one, write the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tablekeeper.config.simulation_options import AT_ONCE
from tablekeeper.errors import InvalidRequestError
from tablekeeper.model import PlanFlags, ServiceKind
from tablekeeper.table.streaming import BATCH_KEY, WRITER_KEY, BatchCommittedError
from tablekeeper.testing.history import Shape
from tablekeeper.testing.story import deletes, drops, overwrites, puts
from tablekeeper.testing.worker import CITIES, KEYS, Worker, own_rows, rows_of, rows_of_unsorted, trips

__all__ = ["JOBS", "JobKind", "job"]

_FLAGS = (
    *[PlanFlags()] * 3,
    *[PlanFlags(cancellable=True)] * 3,
    PlanFlags(mutable=True),
    PlanFlags(mutable=True, cancellable=True),
)


@dataclass(frozen=True)
class JobKind:
    """A kind of job. It makes about so many `calls`; actors of the `role` do it as often as its `weight` says."""

    name: str
    run: Callable[[Worker], None]
    role: str
    calls: int
    weight: int
    fits: Callable[[Shape], bool]


JOBS: dict[str, JobKind] = {}


def job(
    role: str, *, calls: int, weight: int = 1, fits: Callable[[Shape], bool] = lambda shape: True
) -> Callable[[Callable[[Worker], None]], Callable[[Worker], None]]:
    """Register a job under the name of its function."""

    def register(function: Callable[[Worker], None]) -> Callable[[Worker], None]:
        name = function.__name__
        JOBS[name] = JobKind(name, function, role, calls, weight, fits)
        return function

    return register


def _has_no_buckets(shape: Shape) -> bool:
    return shape.index != "bucket"


def _is_mor(shape: Shape) -> bool:
    return shape.table_type == "mor"


def _takes_logs(shape: Shape) -> bool:
    return _is_mor(shape)


# ---- writers


@job("writer", calls=60, weight=10)
def upsert(worker: Worker) -> None:
    rows = _some_rows(worker)
    if worker.chance.random() < 0.3:
        # Others may bring the same new key.
        city = worker.chance.choice(CITIES)
        rows[f"n-{city}-{worker.chance.randrange(2)}"] = (city, rows[next(iter(rows))][1])
    worker.write(lambda extra: worker.table.upsert(trips(rows), extra=extra), puts(rows))


@job("writer", calls=60)
def upsert_new(worker: Worker) -> None:
    """Bring a key that is not there, and that others bring too."""
    city = worker.chance.choice(CITIES)
    rows = {f"n-{city}-{worker.chance.randrange(2)}": (city, float(100 + len(worker.story.writes)))}
    worker.write(lambda extra: worker.table.upsert(trips(rows), extra=extra), puts(rows))


@job("writer", calls=60, weight=3)
def delete(worker: Worker) -> None:
    rows = _some_rows(worker)
    worker.write(lambda extra: worker.table.delete(trips(rows), extra=extra), deletes(tuple(rows)))


@job("writer", calls=55, weight=2)
def insert(worker: Worker) -> None:
    rows = own_rows(worker)
    worker.write(lambda extra: worker.table.insert(trips(rows), extra=extra), puts(rows))


@job("writer", calls=50, weight=2, fits=_has_no_buckets)
def bulk_insert(worker: Worker) -> None:
    rows = own_rows(worker)
    worker.write(lambda extra: worker.table.bulk_insert(trips(rows), extra=extra), puts(rows))


@job("writer", calls=60, weight=2)
def insert_overwrite(worker: Worker) -> None:
    city = worker.chance.choice(CITIES)
    rows = {key: row for key, row in own_rows(worker).items() if row[0] == city}
    effect = overwrites(frozenset({city}), rows)
    worker.write(lambda extra: worker.table.insert_overwrite(trips(rows), extra=extra), effect)


@job("writer", calls=60)
def insert_overwrite_table(worker: Worker) -> None:
    rows = own_rows(worker)
    worker.write(lambda extra: worker.table.insert_overwrite_table(trips(rows), extra=extra), overwrites(None, rows))


@job("writer", calls=40)
def delete_partitions(worker: Worker) -> None:
    city = worker.chance.choice(CITIES)
    # Its commit has no name of ours: the watch knows it by its instant.
    effect = drops(frozenset({city}))
    # There may be no rows in it.
    worker.write(lambda _: worker.table.delete_partitions([city]), effect, may=(InvalidRequestError,))


@job("driver", calls=70, weight=3)
def batch(worker: Worker) -> None:
    """The next batch of a stream that another driver may be running too: each is committed once."""
    number = worker.chance.randrange(3)
    rows = {"a": (KEYS["a"], 500.0 + number), f"batch-{number}": ("sf", 1.0)}
    extra = {WRITER_KEY: "stream", BATCH_KEY: str(number)}
    worker.name = f"batch-{number}"
    worker.write(
        lambda named: worker.table.upsert(trips(rows), extra={**named, **extra}), puts(rows), may=(BatchCommittedError,)
    )


# ---- table services


def _rewrite(worker: Worker, kind: ServiceKind, schedule: Callable[..., Any]) -> None:
    """Schedule a plan, and perhaps leave it to others; execute what waits."""
    flags = worker.chance.choice(_FLAGS)
    plan = worker.attempt(
        f"schedule {kind.value}", lambda: schedule(cancellable=flags.cancellable, mutable=flags.mutable)
    )
    if plan is not None and worker.chance.random() < 0.8:
        worker.attempt(kind.value, lambda: worker.table.execute(plan))


@job("planner", calls=60, weight=1, fits=_takes_logs)
def plan_firm(worker: Worker) -> None:
    """Plan a compaction that stays until it is executed, and leave it to others."""
    worker.attempt("schedule compaction", worker.table.schedule_compaction)


@job("planner", calls=60, weight=1, fits=_takes_logs)
def plan_mutable(worker: Worker) -> None:
    """Plan a compaction that goes with its first attempt, and leave it to others."""
    worker.attempt("schedule compaction", partial(worker.table.schedule_compaction, mutable=True))


@job("planner", calls=60)
def plan_cancellable(worker: Worker) -> None:
    """Plan a compaction or a clustering that yields to everybody, and leave it to others."""
    table = worker.table
    schedule = table.schedule_compaction if table.config.is_mor else table.schedule_clustering
    worker.attempt("schedule", partial(schedule, cancellable=True))


@job("planner", calls=10)
def plans(worker: Worker) -> None:
    """Look what waits."""
    worker.attempt("plans", worker.table.plans)


@job("compactor", calls=120, weight=3, fits=_takes_logs)
def compact(worker: Worker) -> None:
    _rewrite(worker, ServiceKind.COMPACTION, worker.table.schedule_compaction)


@job("log compactor", calls=110, weight=2, fits=_takes_logs)
def log_compact(worker: Worker) -> None:
    _rewrite(worker, ServiceKind.LOG_COMPACTION, worker.table.schedule_log_compaction)


@job("clusterer", calls=110, weight=3, fits=_has_no_buckets)
def cluster(worker: Worker) -> None:
    _rewrite(worker, ServiceKind.CLUSTERING, partial(worker.table.schedule_clustering, order_by="ts"))


@job("executor", calls=90, weight=3)
def execute_waiting(worker: Worker) -> None:
    for plan in worker.attempt("plans", worker.table.plans) or ():
        worker.attempt(plan.service, partial(worker.table.execute, plan.instant))


@job("canceller", calls=40, weight=2)
def cancel(worker: Worker) -> None:
    for plan in worker.attempt("plans", worker.table.plans) or ():
        if not plan.flags.can_be_removed:
            continue
        result = worker.attempt("cancel", partial(worker.table.cancel, plan.instant, wait="1s"))
        if result is not None and result.outcome == "removed":
            worker.story.removed.add(result.instant.value)


@job("cleaner", calls=40, weight=3)
def clean(worker: Worker) -> None:
    worker.attempt("clean", worker.table.clean)


@job("cleaner", calls=40, weight=2)
def clean_at_once(worker: Worker) -> None:
    worker.attempt("clean", lambda: worker.table.clean(options=AT_ONCE))


@job("archiver", calls=30, weight=3)
def archive(worker: Worker) -> None:
    worker.attempt("archive", worker.table.archive)


@job("metadata compactor", calls=40, weight=2, fits=lambda shape: shape.has_metadata_table)
def compact_metadata_table(worker: Worker) -> None:
    worker.attempt("metadata compaction", worker.table.compact_metadata_table)


# ---- ways back


@job("repairer", calls=50)
def rollback_newest(worker: Worker) -> None:
    """Take the newest commit back, if nobody has built on it."""
    commits = sorted(worker.story.commits.values(), key=lambda each: each.completed_at)
    if commits:
        instant = commits[-1].requested_at
        worker.story.withdrawable.add(instant)
        worker.attempt("rollback", lambda: worker.table.rollback(instant), may=(InvalidRequestError,))


@job("repairer", calls=30)
def rollback_older(worker: Worker) -> None:
    """Take back a commit on which others have built, as a rule: it is refused then."""
    commits = sorted(worker.story.commits.values(), key=lambda each: each.completed_at)
    if commits:
        instant = worker.chance.choice(commits[-3:]).requested_at
        worker.story.withdrawable.add(instant)
        worker.attempt("rollback", lambda: worker.table.rollback(instant), may=(InvalidRequestError,))


@job("repairer", calls=20)
def savepoint(worker: Worker) -> None:
    worker.attempt("savepoint", worker.table.savepoint, may=(InvalidRequestError,))


@job("repairer", calls=90)
def restore(worker: Worker) -> None:
    saved = worker.attempt("savepoints", worker.table.savepoints)
    if saved is None or not len(saved):
        return
    instant = list(saved)[-1].instant
    worker.attempt("restore", lambda: worker.table.restore(instant), may=(InvalidRequestError,))


# ---- readers


@job("reader", calls=15, weight=3)
def read(worker: Worker) -> None:
    """A snapshot read sees the table as it was at one moment between its begin and its end."""
    begin = len(worker.story.states) - 1
    frame = worker.attempt("read", worker.table.read)
    if frame is None:
        return
    rows = rows_of(frame)
    seen = worker.story.states[begin:]
    if not any(rows == _sorted(state) for state in seen):
        worker.story.complain("serializable", f"{worker.name} read {rows}, and the table never held that meanwhile")


@job("reader", calls=20, weight=2)
def read_as_of(worker: Worker) -> None:
    """What a past moment held never changes; it may be refused once its files were cleaned."""
    story = worker.story
    moments = worker.attempt("timeline", worker.table.timeline)
    if moments is None:
        return
    pending = [i.requested_at.value for i in moments.instants if i.is_pending]
    settled = [time for time in story.commits if all(time < other for other in pending)]
    if settled:
        story.moments[max(settled)] = story.rows_as_of(max(settled))
    for moment, expected in list(story.moments.items()):
        frame = worker.attempt("read as of", partial(worker.table.read, as_of=moment), may=(InvalidRequestError,))
        if frame is not None and moment in story.moments and rows_of(frame) != _sorted(expected):
            story.complain("as of", f"{moment} reads as {rows_of(frame)} and was {_sorted(expected)}")


@job("reader", calls=20, weight=3)
def follow(worker: Worker) -> None:
    """Read what changed since the last time, whoever read then: each change comes once."""
    story = worker.story
    cursor = story.cursor
    changes = worker.attempt(
        "follow", lambda: worker.table.changes_since(cursor, meta_columns=True), may=(InvalidRequestError,)
    )
    if changes is None or story.cursor != cursor:
        return
    story.cursor = changes.next
    times = changes.rows.column("_hoodie_commit_time").to_pylist()
    for time, row in zip(times, rows_of_unsorted(changes.rows), strict=True):
        if (time, row[0]) in story.followed:
            story.complain("once", f"the change of {row[0]} by {time} came twice")
        story.followed[time, row[0]] = row


@job("auditor", calls=45)
def audit(worker: Worker) -> None:
    """Looks the table over and mends nothing. It may see what others are in the middle of."""
    worker.attempt("doctor", worker.table.doctor)


def _sorted(rows: Mapping[str, tuple[str, float]]) -> list[tuple[str, str, float]]:
    return sorted((key, city, fare) for key, (city, fare) in rows.items())


def _some_rows(worker: Worker) -> dict[str, tuple[str, float]]:
    keys = worker.chance.sample(list(KEYS), 2)
    fare = float(100 + len(worker.story.writes))
    return {key: (KEYS[key], fare) for key in sorted(keys)}
